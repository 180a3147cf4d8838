"""What happens once in an epoch or in a run, at the size of iNaturalist: synthetic logits.

Evaluation is timed beside one pass over the same logits that finds the largest of each row.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import classwise as cw
from benchmarks.statistics import batch_of, inaturalist_counts
from benchmarks.timing import interleaved, seconds
from classwise.report import write_report
from classwise.train.checkpoint import load_state, save_state
from classwise.train.evaluate import evaluate

__all__ = ["measure"]

EVAL_BATCH = 1000
RUN_FOLDERS = Path(__file__).parent.parent / "tests/run_folders.py"


def evaluation(classes: int, samples: int, budget: float) -> dict[str, Any]:
    """Time an evaluation whose model hands out the same logits for every batch."""
    logits, target = batch_of(classes, EVAL_BATCH)
    groups = cw.shots(cw.longtail_counts(1000, classes, 500))
    batches = samples // EVAL_BATCH

    def loader() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(batches):
            yield logits, target

    calls = {
        "one pass": lambda: [logits.argmax(1) for _ in range(batches)],
        "evaluation": lambda: evaluate(lambda x: x, loader(), groups, device="cpu"),
    }
    found = interleaved(calls, budget=budget, least=2, warm=1)
    return {"classes": classes, "samples": batches * EVAL_BATCH, **found}


def epoch_end(counts: list[int]) -> dict[str, Any]:
    """Time the start of an epoch after one that saw every training sample."""
    spent: dict[str, float] = {}
    for slopes in ("stable", "paper", "released"):
        criterion = cw.Criterion("cvs+adrw", counts, epochs=10, slopes=slopes)
        criterion.start_epoch(0)
        state = criterion.statistics()
        generator = torch.Generator().manual_seed(0)
        seen = torch.tensor(counts)
        share = torch.rand(state.count.shape, generator=generator)
        state.count.copy_((share / share.sum(1, keepdim=True) * seen[:, None]).round())
        middles = (torch.arange(state.count.shape[1]) + 0.5) / state.count.shape[1]
        state.confidence.copy_(state.count * middles)
        state.correct.copy_(state.confidence * 0.8)
        state.logit.copy_(state.confidence * 8)
        state.seen.copy_(seen)
        spent[slopes] = seconds(lambda made=criterion: made.start_epoch(1))
    return {"classes": len(counts), "samples": sum(counts), "seconds": spent}


def checkpoint(counts: list[int]) -> dict[str, Any]:
    """Time writing and reading a criterion's state, and what comes back."""
    criterion = cw.Criterion("cvs+adrw", counts, epochs=10)
    criterion.start_epoch(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        save = seconds(lambda: save_state(path, {"criterion": criterion.state_dict()}))
        load = seconds(lambda: criterion.load_state_dict(load_state(path)["criterion"]))
        return {"save_s": save, "load_s": load, "mb": path.stat().st_size / 1e6}


def report(counts: list[int], epochs: int) -> dict[str, Any]:
    """Time the report on three runs with slopes logged in every epoch."""
    folders = _run_folders()
    with tempfile.TemporaryDirectory() as root:
        methods = ("ce", "la", "cvs+adrw")
        runs = [
            folders.write_run(
                Path(root) / method, counts, method=method, epochs=epochs, tested=3, kappa=True
            )
            for method in methods
        ]
        page = Path(root) / "report.html"
        spent = seconds(lambda: write_report(runs, page))
        return {
            "classes": len(counts),
            "runs": len(runs),
            "epochs": epochs,
            "seconds": spent,
            "mb": page.stat().st_size / 1e6,
        }


def _run_folders() -> ModuleType:
    """Return the tests' writer of synthetic runs."""
    spec = importlib.util.spec_from_file_location("run_folders", RUN_FOLDERS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault("run_folders", module)
    spec.loader.exec_module(module)
    return module


def measure(*, quick: bool) -> dict[str, Any]:
    """Measure all of it; quickly, an evaluation of one batch and a report on few epochs."""
    counts = inaturalist_counts()
    return {
        "evaluation": evaluation(8_142, 1_000 if quick else 24_000, 1.0 if quick else 8.0),
        "epoch_end": epoch_end(counts),
        "checkpoint": checkpoint(counts),
        "report": report(counts, 2 if quick else 90),
    }
