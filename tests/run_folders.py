"""Synthetic run folders in the schema of ``classwise.train.record``, made sample by sample."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

# method: accuracy of a middling class, how much a tenfold count adds, over-confidence
METHODS = {
    "ce": (0.42, 0.30, 0.30),
    "la": (0.47, 0.12, 0.22),
    "vs": (0.46, 0.08, 0.24),
    "cvs+adrw": (0.48, 0.09, 0.15),
}


def exponential(classes: int, largest: int, ratio: float) -> list[int]:
    """Return counts that fall exponentially."""
    return [int(largest * ratio ** (-c / (classes - 1))) for c in range(classes)]


def groups_of(counts: list[int]) -> dict[str, Tensor]:
    many = torch.tensor([n > 100 for n in counts])
    few = torch.tensor([n < 20 for n in counts])
    return {"many": many, "medium": ~many & ~few, "few": few}


def simulate(counts: list[int], method: str, seed: int, tested: Tensor) -> dict[str, Tensor]:
    """Return label, prediction and confidence of every tested sample."""
    middle, tilt, over = METHODS.get(method, METHODS["la"])
    generator = torch.Generator().manual_seed(1000 * seed + sum(map(ord, method)))
    logs = torch.tensor(counts).clamp(min=1).double().log10()
    noise = torch.randn(len(counts), generator=torch.Generator().manual_seed(5)) * 0.08
    skill = (middle + tilt * (logs - logs.mean()) + noise).clamp(0.03, 0.97)
    skill = (skill + 0.01 * torch.randn(1, generator=generator)).clamp(0.0, 1.0)
    label = torch.repeat_interleave(torch.arange(len(counts)), tested)
    chance = torch.rand(len(label), generator=generator).double()
    right = chance < skill[label]
    confidence = skill[label] + over + 0.25 * torch.randn(len(label), generator=generator)
    confidence = (confidence + 0.15 * right).clamp(1.5 / len(counts), 1.0).double()
    wrong = torch.multinomial((10**logs).float(), len(label), replacement=True, generator=generator)
    wrong = torch.where(wrong == label, (label + 1) % len(counts), wrong)
    return {"label": label, "predicted": torch.where(right, label, wrong), "confidence": confidence}


def measure(samples: dict[str, Tensor], classes: int, split: str) -> dict[str, Tensor]:
    """Return the tensors of a split, summed up without the package."""
    label, predicted = samples["label"], samples["predicted"]
    right = (label == predicted).double()
    cell = label * 20 + ((samples["confidence"] * 20).ceil().long() - 1).clamp(0, 19)

    def table(values: Tensor) -> Tensor:
        return torch.zeros(classes * 20, dtype=values.dtype).index_add_(0, cell, values)

    count = table(torch.ones_like(label))
    seen = torch.bincount(label, minlength=classes)
    tensors = {
        "count": count,
        "accuracy": table(right) / count.clamp(min=1),
        "confidence": table(samples["confidence"]) / count.clamp(min=1),
        "logit": table(8 * samples["confidence"]) / count.clamp(min=1),
    }
    tensors = {name: value.view(classes, 20) for name, value in tensors.items()}
    correct = torch.zeros(classes, dtype=torch.float64).index_add_(0, label, right)
    tensors |= {"seen": seen, "class_count": seen.clone(), "class_accuracy": correct / seen}
    if classes <= 1000:
        pairs = torch.bincount(label * classes + predicted, minlength=classes**2)
        tensors["confusion"] = pairs.view(classes, classes)
    return {f"{split}.{name}": value.contiguous() for name, value in tensors.items()}


def summarise(tensors: dict[str, Tensor], counts: list[int], split: str) -> dict[str, float]:
    """Return the numbers of a split, with what has no samples absent."""
    accuracy, seen = tensors[f"{split}.class_accuracy"], tensors[f"{split}.class_count"]
    numbers = {"overall": float((accuracy.nan_to_num() * seen).sum() / seen.sum())}
    groups = {"balanced": torch.ones(len(counts), dtype=torch.bool), **groups_of(counts)}
    for name, mask in groups.items():
        present = mask & (seen > 0)
        if bool(present.any()):
            numbers[name] = float(accuracy[present].mean())
            key = "ece" if name == "balanced" else f"ece_{name}"
            numbers[key] = ece(tensors, split, mask)
    return numbers


def ece(tensors: dict[str, Tensor], split: str, mask: Tensor) -> float:
    count = tensors[f"{split}.count"][mask].double()
    sums = [
        (count * tensors[f"{split}.{name}"][mask]).sum(0) for name in ("accuracy", "confidence")
    ]
    return float((sums[0] - sums[1]).abs().sum() / count.sum())


def write_run(
    folder: Path,
    counts: list[int],
    *,
    method: str = "ce",
    seed: int = 0,
    epochs: int = 20,
    done: int | None = None,
    split: str | None = "test",
    tested: int | Tensor = 50,
    names: list[str] | None = None,
    kappa: bool | None = None,
    bound: bool = True,
    best_on: str | None = "test",
    settings: dict[str, Any] | None = None,
    numbers: dict[str, float] | None = None,
) -> Path:
    """Write a run folder; return it.

    Args:
        done: finished epochs, if not all.
        split: that was measured on; None for none.
        tested: samples of each class in the split.
        kappa: whether slopes were logged; None is for cvs only.
        settings: of the configuration, by dotted name.
        numbers: final numbers other than those of the simulation.
    """
    classes, folder = len(counts), Path(folder)
    folder.mkdir(parents=True)
    start = round(0.8 * epochs)
    phased = "+" in method
    config = _config(method, seed, epochs, settings or {})
    head = {
        "format": 1,
        "config": config,
        "parent": None,
        "provenance": {
            "classwise": "0.1.0",
            "torch": str(torch.__version__),
            "libraries": {"numpy": "2.0"},
            "device": "cpu (x86_64)",
            "started": f"2026-01-0{1 + seed % 9}T12:00:00+00:00",
            "data_checksum": "00c0ffee",
        },
        "class_names": names or [f"class-{i}" for i in range(classes)],
        "class_counts": counts,
        "recipe": f"{method}: mla(gamma=0.01) | from defer: cla(tau=0.9)" if phased else method,
        "phase_starts": [0, start] if phased else [0],
    }
    (folder / "config.json").write_text(json.dumps(head), encoding="utf-8")
    tested = torch.full((classes,), tested) if isinstance(tested, int) else tested
    tensors: dict[str, Tensor] = {}
    final: dict[str, float] = {}
    if split is not None:
        tensors = measure(simulate(counts, method, seed, tested), classes, split)
        final = summarise(tensors, counts, split) | (numbers or {})
    slopes = method.startswith("cvs") if kappa is None else kappa
    done = epochs if done is None else done
    rows = [_row(e, epochs, start, split, final, counts, slopes, seed) for e in range(done)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    if done < epochs:
        return folder
    if bound:
        tensors |= _bound(counts, method)
    save_file(tensors, folder / "final.safetensors")
    result: dict[str, Any] = {"split": split, "epoch": epochs - 1, "last": final, "seconds": 61.5}
    if best_on and final:
        better = {name: value + 0.01 for name, value in final.items()}
        result["best"] = {
            **better,
            "epoch": epochs - 3,
            "selected_on": best_on,
            "measured_on": split,
        }
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    (folder / "done").touch()
    return folder


def _config(method: str, seed: int, epochs: int, settings: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "data": {"source": "synthetic", "imbalance": "exp:100", "subset_seed": 0, "val": 0.0},
        "model": {"model": "resnet32", "head": "linear"},
        "method": {"method": method, "defer_at": 0.8, "gamma": None, "tau": None},
        "optim": {"epochs": epochs, "lr": 0.1, "schedule": "released"},
        "seed": seed,
        "device": "cpu",
    }
    for name, value in settings.items():
        part, _, key = name.rpartition(".")
        (config[part] if part else config)[key] = value
    return config


def _row(
    epoch: int,
    epochs: int,
    start: int,
    split: str | None,
    final: dict[str, float],
    counts: list[int],
    slopes: bool,
    seed: int,
) -> dict[str, Any]:
    share = 1 - math.exp(-4 * (epoch + 1) / epochs)
    wave = 0.02 * math.sin(7 * epoch + seed)
    row: dict[str, Any] = {
        "epoch": epoch,
        "lr": 0.1 if epoch < start else 0.001,
        "seconds": 3.0,
        "images_per_second": 5000.0,
        "train": {"loss": 4.0 - 3.2 * share + wave, "accuracy": 0.9 * share},
    }
    if split is not None:
        row[split] = {name: value * share + (epoch < start) * wave for name, value in final.items()}
    if slopes:
        generator = torch.Generator().manual_seed(epoch + 100 * seed)
        logs = torch.tensor(counts).clamp(min=1).double().log10()
        lean = 0.12 * share * (logs - logs.mean())
        for name in ("kappa_star", "kappa_plus"):
            kappa = (lean + 0.05 * torch.randn(len(counts), generator=generator)).exp()
            row[name] = [float(f"{value:.4g}") for value in kappa.tolist()]
    return row


def _bound(counts: list[int], method: str) -> dict[str, Tensor]:
    prior = torch.tensor(counts).clamp(min=1).double()
    prior /= prior.sum()
    noise = torch.rand(len(counts), generator=torch.Generator().manual_seed(len(method))).double()
    lipschitz = math.sqrt(2) * (0.6 + 0.4 * noise) * prior ** -METHODS.get(method, (0, 0.1, 0))[1]
    return {
        "bound.lipschitz": lipschitz,
        "bound.per_class": lipschitz * prior.sqrt() / (len(counts) * prior.min()),
    }
