"""The criterion beside ``F.cross_entropy``: forward and backward, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import classwise as cw
from benchmarks.timing import interleaved
from classwise.stats.bins import GROUPINGS

__all__ = ["measure", "running"]

SIZES = ((10, 128), (100, 128), (1_000, 256), (8_142, 256), (100_000, 32))
PHASES = {"mla": 0, "cla": 9}
"""Epochs of a training of ten that are in the first and in the deferred phase of CVS."""


def running(classes: int, slopes: str | cw.SlopeConfig | None, epoch: int = 9) -> cw.Criterion:
    """Return a criterion in the middle of training on long-tailed counts."""
    counts = cw.longtail_counts(1000, classes, 100)
    made = cw.Criterion("cvs+adrw", counts, epochs=10, slopes=slopes)
    made.start_epoch(epoch, jump=True)
    return made


def forward_backward(loss: Callable[..., Tensor], classes: int, batch: int) -> Callable[[], None]:
    """Return a call that takes a loss forward and backward on a fixed batch."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, classes, generator=generator, requires_grad=True)
    target = torch.randint(classes, (batch,), generator=generator)

    def call() -> None:
        logits.grad = None
        loss(logits, target).backward()

    return call


def eager(classes: int, batch: int, budget: float, *, everything: bool) -> dict[str, Any]:
    """Time the criterion with and without statistics."""
    losses: dict[str, Callable[..., Tensor]] = {
        "cross_entropy": F.cross_entropy,
        "no statistics": running(classes, None),
        **{name: running(classes, "stable", epoch) for name, epoch in PHASES.items()},
    }
    if everything:
        for group_by in GROUPINGS:
            config = cw.SlopeConfig(group_by=group_by, logits="adjusted")
            losses[group_by] = running(classes, config)
    calls = {name: forward_backward(loss, classes, batch) for name, loss in losses.items()}
    return {"classes": classes, "batch": batch, **interleaved(calls, budget=budget)}


def compiled(classes: int, batch: int, budget: float) -> dict[str, Any]:
    """Time both compiled."""
    torch.compiler.reset()
    made = running(classes, "stable")
    losses: dict[str, Callable[..., Tensor]] = {
        "cross_entropy": torch.compile(F.cross_entropy, fullgraph=True),
        "criterion": torch.compile(made, fullgraph=True),
    }
    calls = {name: forward_backward(loss, classes, batch) for name, loss in losses.items()}
    return {"classes": classes, "batch": batch, **interleaved(calls, budget=budget)}


def measure(*, quick: bool) -> dict[str, Any]:
    """Measure at all sizes; quickly, at two."""
    if quick:
        sizes = [(100, 128), (8_142, 256)]
        return {"eager": [eager(*size, 0.5, everything=False) for size in sizes]}
    return {
        "eager": [eager(*size, 2.5, everything=True) for size in SIZES],
        "compiled": [compiled(*size, 1.0) for size in SIZES],
    }
