"""The training loop: epochs, steps, and nothing else.

A step never waits for the device: what it measures is summed there and read once per epoch.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from classwise._distributed import sum_in_place
from classwise.criterion import Criterion
from classwise.data.loading import Loader
from classwise.errors import StateError
from classwise.stats.accuracy import (
    AccuracyState,
    accuracy_table,
    empty_accuracy,
    update_accuracy,
)
from classwise.train.config import OptimConfig
from classwise.train.sam import SAM
from classwise.train.schedules import lr_at

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Sums", "Trainer", "stream_seed"]


def stream_seed(seed: int, epoch: int, rank: int) -> int:
    """Return the seed of torch's global generator in one epoch on one rank.

    Every epoch begins from its own seed, so that resuming and forking need no generator's past.
    """
    return (seed * 1_000_003 + epoch * 8_191 + rank) % 2**63


@dataclass
class Sums:
    """What an epoch has summed so far, on the device: the loss, and how many of each class."""

    loss: Tensor
    correct: Tensor
    count: Tensor
    step: int = 0

    @classmethod
    def zero(cls, num_classes: int, device: torch.device) -> Sums:
        """Return nothing summed."""
        accuracy = empty_accuracy(num_classes, device)
        loss = torch.zeros((), dtype=torch.float64, device=device)
        return cls(loss, accuracy.correct, accuracy.count)

    @property
    def accuracy(self) -> AccuracyState:
        """Right and all samples of each class; a mixed sample is of its larger part's."""
        return AccuracyState(self.correct, self.count)

    def add(self, loss: Tensor, logits: Tensor, target: Tensor) -> None:
        """Add a step."""
        self.loss += loss.detach() * len(target)
        update_accuracy(self.accuracy, logits, target)
        self.step += 1


@dataclass(eq=False)
class Trainer:
    """What a training step touches.

    Args:
        fabric: device, precision, processes.
        model: as ``fabric`` wrapped it.
        criterion: the loss.
        optimizer: as ``fabric`` wrapped it.
        loader: training batches.
        optim: how it is trained, with nothing left open.
        deferred_from: T0, from which the deferred weight decay and rho hold.
        seed: of the run.
        stop: asked before every step; true ends the epoch there.
    """

    fabric: Fabric
    model: Any
    criterion: Criterion
    optimizer: Any
    loader: Loader
    optim: OptimConfig
    deferred_from: int
    seed: int
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.rho = self.optim.sam
        self.sam = SAM(self.parameters, self.rho)

    def epoch(
        self,
        epoch: int,
        sums: Sums | None = None,
        on_step: Callable[[int, int, int], None] | None = None,
    ) -> tuple[dict[str, float], Sums, bool]:
        """Train an epoch, or the rest of one.

        Args:
            epoch: 0-based.
            sums: of the steps that are already done.
            on_step: told the epoch, how many steps are done, and of how many.

        Returns:
            What to record, the sums, and whether the epoch was finished.
        """
        self._begin(epoch)
        if sums is None:
            torch.manual_seed(stream_seed(self.seed, epoch, self.fabric.global_rank))
            sums = Sums.zero(self.criterion.class_counts.numel(), self.fabric.device)
        self.model.train()
        began, done, steps = time.perf_counter(), sums.step, len(self.loader)
        for inputs, target in itertools.islice(self.loader, done, None):
            if self.stop():
                return {}, sums, False
            loss, logits = self.step(inputs, target)
            sums.add(loss, logits, target)
            if on_step is not None:
                on_step(epoch, sums.step, steps)
        return self._report(epoch, sums, time.perf_counter() - began, sums.step - done), sums, True

    def _begin(self, epoch: int) -> None:
        self.criterion.start_epoch(epoch)
        self.loader.set_epoch(epoch)
        deferred, optim = epoch >= self.deferred_from, self.optim
        decay, rho = optim.weight_decay, optim.sam
        if deferred and optim.deferred_weight_decay is not None:
            decay = optim.deferred_weight_decay
        if deferred and optim.deferred_sam is not None:
            rho = optim.deferred_sam
        assert optim.epochs is not None
        assert optim.lr is not None
        for group in self.optimizer.param_groups:
            group["lr"] = lr_at(optim.schedule, epoch, optim.epochs, optim.lr, self.deferred_from)
            group["weight_decay"] = decay
        self.rho = self.sam.rho = rho

    def step(self, inputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step of the optimiser; return the loss and the logits before it."""
        loss, logits = self._backward(inputs, target, track=True)
        if self.rho:
            self.sam.ascend()
            self._backward(inputs, target, track=False)
            self.sam.restore()
        if self.optim.clip:
            nn.utils.clip_grad_norm_(self.parameters, self.optim.clip)
        self.optimizer.step()
        return loss, logits

    def _backward(self, inputs: Tensor, target: Tensor, *, track: bool) -> tuple[Tensor, Tensor]:
        """Put the gradient of the whole batch into the parameters, micro-batch by micro-batch."""
        self.optimizer.zero_grad()
        parts = min(self.optim.accumulate, len(target))
        whole = self.criterion.mass(target) if parts > 1 else None
        losses, outputs = [], []
        pairs = zip(inputs.tensor_split(parts), target.tensor_split(parts), strict=True)
        for number, (x, y) in enumerate(pairs, start=1):
            with self.fabric.no_backward_sync(self.model, enabled=number < parts):
                logits, features = self.model(x, with_features=True)
                loss = self.criterion(logits, y, features=features, normalizer=whole, track=track)
                self.fabric.backward(loss)
            losses.append(loss.detach())
            outputs.append(logits.detach())
        return torch.stack(losses).sum(), torch.cat(outputs)

    def _report(self, epoch: int, sums: Sums, seconds: float, steps: int) -> dict[str, float]:
        sum_in_place([sums.loss, sums.correct, sums.count], None)
        loss, samples = float(sums.loss), int(sums.count.sum())
        if not math.isfinite(loss):
            raise StateError(
                f"the loss became {loss} in epoch {epoch}: lower lr or set clip, and look at the "
                f"inputs for values that are not finite. {self.criterion.slope_warning}".rstrip()
            )
        found = accuracy_table(sums.accuracy, self.criterion.shots)
        groups = {name: float(found[name]) for name in self.criterion.shots if name in found}
        rate = samples / sums.step * steps / max(seconds, 1e-9)
        return {
            "loss": loss / samples,
            "accuracy": float(found["overall"]),
            **groups,
            "seconds": seconds,
            "images_per_second": rate,
            "lr": self.optimizer.param_groups[0]["lr"],
        }
