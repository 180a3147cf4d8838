"""One process's part of a run: set up, train some epochs, write down what was found."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from classwise import theory
from classwise.data.dataset import Split
from classwise.data.loading import Loader, Sampler, make_loader
from classwise.data.sampling import ClassSampler, SequentialSampler
from classwise.errors import ArgumentError, CheckpointError, ClasswiseError
from classwise.stats import measure
from classwise.train import record
from classwise.train.checkpoint import load_state, save_state, write_atomic, write_done, write_json
from classwise.train.config import to_dict
from classwise.train.distributed import synced
from classwise.train.evaluate import VIEWS, Evaluation, evaluate
from classwise.train.loop import Sums, Trainer
from classwise.train.observe import Observer, Silent
from classwise.train.provenance import stamp
from classwise.train.setup import Setup, label, make_criterion, make_model, make_optimizer

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Session"]

_EVAL_BATCH = {"images": 1000, "table": 1000, "files": 128}
"""Samples at a time of each process; files are large images, and networks for these are large."""


class Session:
    """One process's part of a run."""

    def __init__(
        self,
        fabric: Fabric,
        ready: Setup,
        folder: Path,
        identity: dict[str, Any] | None,
        asked: Callable[[], bool],
    ) -> None:
        self.fabric, self.ready, self.folder, self.asked = fabric, ready, folder, asked
        self.identity = identity
        config, found = ready.config, ready.prepared
        self.writes = fabric.is_global_zero
        torch.manual_seed(config.seed)
        self.criterion = make_criterion(config, found).to(fabric.device)
        model = make_model(ready)
        self.raw_model = synced(model) if fabric.world_size > 1 else model
        self.raw_optimizer = make_optimizer(config, self.raw_model)
        compiled: Any = torch.compile(self.raw_model) if config.model.compile else self.raw_model
        wrapped, self.optimizer = fabric.setup(compiled, self.raw_optimizer)
        self.trainer = Trainer(
            fabric,
            wrapped,
            self.criterion,
            self.optimizer,
            self._loader(),
            config.optim,
            ready.defer_epoch,
            config.seed,
            stop=asked if fabric.world_size == 1 else lambda: False,
        )
        splits = {"val": found.val, "test": found.test}
        self.splits = {name: split for name, split in splits.items() if split is not None}
        self._loaders = {name: self._clean(split) for name, split in self.splits.items()}
        self.last: dict[str, Evaluation] = {}
        self.observer: Observer = Silent()

    def _loader(self) -> Loader:
        config, found = self.ready.config, self.ready.prepared
        assert config.optim.batch_size is not None
        sampler = ClassSampler(
            found.train.labels,
            found.dataset.num_classes,
            batch_size=config.optim.batch_size,
            kind=config.data.sampler,
            seed=config.seed,
            epochs=self.ready.epochs,
            rank=self.fabric.global_rank,
            world=self.fabric.world_size,
        )
        return self._make(
            found.train,
            sampler,
            augment=config.data.augment,
            mixing=config.data.mixing,
        )

    def _make(self, split: Split, sampler: Sampler, **how: Any) -> Loader:
        config, dataset = self.ready.config, self.ready.prepared.dataset
        return make_loader(
            split,
            sampler,
            num_classes=dataset.num_classes,
            mean=dataset.mean,
            std=dataset.std,
            device=self.fabric.device,
            seed=config.seed,
            workers=config.data.workers,
            image_size=config.data.image_size,
            **how,
        )

    def _clean(self, split: Split) -> Loader:
        """Return a loader for evaluation, of this rank's share."""
        sampler = SequentialSampler(
            len(split),
            batch_size=_EVAL_BATCH[split.kind] * self.fabric.world_size,
            rank=self.fabric.global_rank,
            world=self.fabric.world_size,
        )
        return self._make(split, sampler, train=False)

    # The epochs

    def train(self, first: int, stop: int, parent: Path | None, observer: Observer) -> None:
        """Train, from wherever the folder or the parent is."""
        self.observer = observer
        epoch, sums = self._restore(first, parent)
        observer.begin(self.ready, epoch, stop)
        finished = True
        while epoch < stop:
            train, sums, finished = self.trainer.epoch(epoch, sums, observer.step)
            if not finished:
                self._save(epoch, sums)
                break
            row = self._row(epoch, train, last=epoch + 1 == self.ready.epochs)
            epoch, sums = epoch + 1, None
            self._save(epoch, None, row)
            observer.epoch(row)
            if self._stops() and epoch < stop:
                finished = False
                break
        if finished:
            self._finish(stop)
        observer.end(finished)

    def _stops(self) -> bool:
        """Whether any rank was asked to stop, on all of them."""
        if self.fabric.world_size == 1:
            return self.asked()
        asked = torch.tensor(float(self.asked()), device=self.fabric.device)
        return float(self.fabric.all_reduce(asked, reduce_op="max")) > 0  # type: ignore[arg-type]

    def _row(self, epoch: int, train: dict[str, float], *, last: bool) -> dict[str, Any]:
        seconds = {name: train.pop(name) for name in ("lr", "seconds", "images_per_second")}
        row: dict[str, Any] = {"epoch": epoch, **seconds, "train": train}
        assert self.ready.config.eval_every is not None
        if last or (epoch + 1) % self.ready.config.eval_every == 0:
            found = {name: self.evaluate(name) for name in self._watched(last=last)}
            row.update({name: evaluation.numbers for name, evaluation in found.items()})
            if last:
                self.last = found
        if self.ready.config.track_bound and (epoch + 1) % max(1, self.ready.epochs // 20) == 0:
            row["bound"] = self._bound_by_group()
        if self.criterion.slope_config is not None:
            row["kappa_star"] = _rounded(self.criterion.kappa_star)
            row["kappa_plus"] = _rounded(self.criterion.kappa_plus)
        return row

    def _watched(self, *, last: bool) -> list[str]:
        """Splits to evaluate: with a validation split, the test split waits for the end."""
        if self.ready.config.select == "val" and not last:
            return ["val"]
        return list(self.splits)

    def evaluate(self, name: str) -> Evaluation:
        """Evaluate a split, all ranks together."""
        views = VIEWS.values() if self.ready.config.tte else ()
        self.raw_model.eval()
        with self.fabric.autocast():
            return evaluate(
                self.raw_model,
                self._loaders[name],
                self.criterion.shots,
                device=self.fabric.device,
                scale=self.criterion.logit_scale,
                views=views,
            )

    # The folder

    def _restore(self, first: int, parent: Path | None) -> tuple[int, Sums | None]:
        """Take up the folder's state or the parent's; return where to go on."""
        own = self.folder / record.STATE
        if own.exists():
            state = load_state(own)
            # A shared phase may have been begun by another of the methods that share it.
            self._take_up(state, strict=self.identity is None)
            self._truncate(state["metrics_bytes"])
            sums = state.get("sums")
            return state["epoch"], None if sums is None else self._running(sums, state["rng"])
        if first:
            if parent is None:
                raise ArgumentError(f"first={first} needs the parent that it continues.")
            state = load_state(parent / record.STATE)
            if state["epoch"] != first:
                raise CheckpointError(
                    f"{parent} ends before epoch {state['epoch']}, not before {first}."
                )
            self._take_up(state, strict=False)
        if self.writes:
            self.observer.writing()
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / record.METRICS).unlink(missing_ok=True)
            write_json(self.folder / record.CONFIG, self._head(parent))
        self.fabric.barrier()
        return first, None

    def _take_up(self, state: dict[str, Any], *, strict: bool) -> None:
        try:
            self.raw_model.load_state_dict(state["model"])
            self.raw_optimizer.load_state_dict(state["optimizer"])
            self.criterion.load_state_dict(state["criterion"], strict=strict)
        except ClasswiseError:
            raise
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint is of another model: {error}") from error

    def _running(self, sums: dict[str, Any], rng: dict[str, Tensor]) -> Sums:
        torch.set_rng_state(rng["cpu"])
        if "cuda" in rng and self.fabric.device.type == "cuda":
            torch.cuda.set_rng_state(rng["cuda"], self.fabric.device)
        on = {n: v.to(self.fabric.device) for n, v in sums.items() if isinstance(v, Tensor)}
        return Sums(**on, step=sums["step"])

    def _save(self, epoch: int, sums: Sums | None, row: dict[str, Any] | None = None) -> None:
        """Write the checkpoint: everything of the epochs before ``epoch``, and its begun steps."""
        self.criterion.sync()
        if self.writes:
            self.observer.writing()
            path = self.folder / record.METRICS
            if row is not None:
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
            rng = {"cpu": torch.get_rng_state()}
            if self.fabric.device.type == "cuda":
                rng["cuda"] = torch.cuda.get_rng_state(self.fabric.device)
            state = {
                "epoch": epoch,
                "model": self.raw_model.state_dict(),
                "optimizer": self.raw_optimizer.state_dict(),
                "criterion": self.criterion.state_dict(),
                "metrics_bytes": path.stat().st_size if path.exists() else 0,
                "rng": rng,
            }
            if sums is not None:
                state["sums"] = {f.name: getattr(sums, f.name) for f in dataclasses.fields(sums)}
            save_state(self.folder / record.STATE, state)
        self.fabric.barrier()

    def _truncate(self, size: int) -> None:
        """Forget the epochs that the checkpoint does not know of: they are trained again."""
        path = self.folder / record.METRICS
        if self.writes and path.exists():
            if path.stat().st_size < size:
                raise CheckpointError(f"{path} is shorter than its checkpoint says.")
            os.truncate(path, size)
        self.fabric.barrier()

    def _head(self, parent: Path | None) -> dict[str, Any]:
        found = self.ready.prepared
        return {
            "format": record.FORMAT,
            "config": to_dict(self.ready.config),
            "label": label(self.ready.config),
            "identity": self.identity,
            "parent": None if parent is None else parent.name,
            "class_names": list(found.dataset.class_names),
            "class_counts": found.class_counts.tolist(),
            "recipe": str(self.criterion.recipe),
            "phase_starts": list(self.criterion.phase_starts),
            "provenance": stamp(self.fabric, self.ready),
        }

    def _finish(self, stop: int) -> None:
        tensors: dict[str, Tensor] = {}
        if stop == self.ready.epochs:
            if not self.last:  # resumed after the last epoch
                self.last = {name: self.evaluate(name) for name in self.splits}
            for name, evaluation in self.last.items():
                tensors |= evaluation.tensors(name)
            tensors |= self._theory()
        if self.writes:
            self.observer.writing()
            if tensors:
                write_atomic(self.folder / record.FINAL, lambda part: save_file(tensors, part))
                write_json(self.folder / record.RESULT, self._result())
            weights = {k: v.contiguous() for k, v in self.raw_model.state_dict().items()}
            write_atomic(self.folder / record.MODEL, lambda part: save_file(weights, part))
            write_done(self.folder, record.DONE)
        self.fabric.barrier()

    def _result(self) -> dict[str, Any]:
        rows = record.read_run(self.folder).epochs
        select = self.ready.config.select
        name = "test" if "test" in self.splits else next(iter(self.splits), None)
        result: dict[str, Any] = {
            "split": name,
            "epoch": self.ready.epochs - 1,
            "last": self.last[name].numbers if name else {},
            "val": rows[-1].get("val", {}),
            "seconds": sum(row["seconds"] for row in rows),
            "images_per_second": sum(row["images_per_second"] for row in rows) / max(1, len(rows)),
            "epochs": len(rows),
        }
        seen = [row for row in rows if select in row]
        if select and seen:
            best = max(seen, key=lambda row: row[select].get("balanced", 0.0))
            numbers = best.get(str(name)) or best[select]
            result["best"] = {**numbers, "epoch": best["epoch"], "selected_on": select,
                              "measured_on": name if name in best else select}  # fmt: skip
        return result

    def _bound_by_group(self) -> dict[str, float]:
        """Return the bound's class-dependent part: its sum, and that of each group of classes."""
        per_class = self._theory().get("bound.per_class")
        if per_class is None:
            return {}
        groups = {"total": torch.ones_like(per_class, dtype=torch.bool), **self.criterion.shots}
        return {name: float(per_class[mask.cpu()].sum()) for name, mask in groups.items()}

    def _theory(self) -> dict[str, Tensor]:
        """Return the class-dependent part of the bound, where the terms have one."""
        terms = self.criterion.terms
        if terms.has_margin or bool((self.ready.prepared.class_counts == 0).any()):
            return {}
        loader = self._clean(self.ready.prepared.train)
        with self.fabric.autocast():
            floors = measure(self.raw_model, loader, terms=terms, device=self.fabric.device).floors
        found = theory.bound(terms, floors, self.ready.prepared.class_counts)
        named = {
            "bound.lipschitz": theory.lipschitz(terms, floors),
            "bound.per_class": found.per_class,
            "floors.logit": floors.logit,
            "floors.margin": floors.margin,
            "floors.probability": floors.probability,
        }
        return {name: value.cpu().contiguous() for name, value in named.items()}


def _rounded(kappa: Tensor) -> list[float]:
    return [float(f"{value:.4g}") for value in kappa.tolist()]
