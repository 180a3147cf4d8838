"""A step of ResNet-32 as the library trains it: its parts, and its share of the machine's peak.

The whole step (data, forward, criterion, backward, optimiser, sums) takes turns with the model
alone, forward and backward of ``F.cross_entropy`` on a batch that lies ready, and with each part
alone. Peak is that of a large bfloat16 matrix product, measured in the same turns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import classwise as cw
from benchmarks import pipeline
from benchmarks.timing import interleaved
from classwise.models import build
from classwise.train.loop import Sums

__all__ = ["Step", "measure"]

MATMUL = 2048
KINDS = {
    "convolution": ("conv",),
    "batch normalisation": ("batch_norm",),
}
"""Kinds of operators by words in their names; all others are one kind more."""
TRIED = ("contiguous", "float32", "compiled", "batches not counted")
"""Ways to train the model; batch normalisation counts its batches, to no use here."""


class Step:
    """The model, the criterion and the optimiser of a training step, and its parts."""

    def __init__(self, *, depth: int = 32) -> None:
        torch.manual_seed(0)
        split, _ = pipeline.data()
        counts = torch.bincount(split.labels, minlength=pipeline.CLASSES)
        self.batches = pipeline.ours(split, "crop-flip", torch.device("cpu"))
        self.inputs, self.target = next(self.batches)
        model = build(
            f"resnet{depth}", num_classes=pipeline.CLASSES, input_shape=(3, 32, 32)
        ).train()
        self.model = model.to(memory_format=torch.channels_last)
        self.criterion = cw.Criterion("cvs+adrw", counts, epochs=10)
        self.criterion.start_epoch(0)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4
        )
        self.sums = Sums.zero(pipeline.CLASSES, torch.device("cpu"))
        self.logits = self.forward(self.inputs).detach().requires_grad_()
        self.model_only()  # so that there are gradients

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits."""
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(inputs)

    def whole(self) -> None:
        """Take a step, as in an epoch."""
        inputs, target = next(self.batches)
        self.optimizer.zero_grad()
        logits = self.forward(inputs)
        loss = self.criterion(logits, target)
        loss.backward()
        self.optimizer.step()
        self.sums.add(loss, logits, target)

    def model_only(self) -> None:
        """Go forward and backward on the same batch."""
        self.model.zero_grad()
        F.cross_entropy(self.forward(self.inputs).float(), self.target).backward()

    def criterion_only(self) -> None:
        """Take the criterion forward and backward on the same logits."""
        self.logits.grad = None
        self.criterion(self.logits, self.target).backward()

    def sums_only(self) -> None:
        """Sum what is logged."""
        self.sums.add(torch.zeros(()), self.logits, self.target)

    def parts(self) -> dict[str, Callable[[], object]]:
        """Return the whole step first, then its parts."""
        return {
            "step": self.whole,
            "model": self.model_only,
            "data": lambda: next(self.batches),
            "criterion": self.criterion_only,
            "optimiser": self.optimizer.step,
            "sums": self.sums_only,
        }


def flops(step: Step) -> int:
    """Return the floating-point operations of a forward and a backward pass."""
    counter = FlopCounterMode(display=False)
    with counter:
        step.model_only()
    return counter.get_total_flops()


def by_operator(step: Step, steps: int) -> dict[str, float]:
    """Return the share of the processor's time by kind of operator, in whole steps."""
    step.whole()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(steps):
            step.whole()
    shares: dict[str, float] = {}
    for event in profiled.key_averages():
        kind = next((k for k, words in KINDS.items() if any(w in event.key for w in words)), "")
        shares[kind or "other"] = shares.get(kind or "other", 0.0) + event.self_cpu_time_total
    total = sum(shares.values())
    return {kind: spent / total for kind, spent in shares.items()}


def variants(budget: float) -> dict[str, Any]:
    """Time a step in other ways that one might think faster."""
    made = {name: Step() for name in ("as trained", *TRIED)}
    contiguous = made["contiguous"]
    contiguous.model.to(memory_format=torch.contiguous_format)
    contiguous.forward = lambda inputs: Step.forward(contiguous, inputs.contiguous())
    made["compiled"].model.compile()
    made["float32"].forward = made["float32"].model
    for module in made["batches not counted"].model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = None
    calls: dict[str, Callable[[], object]] = {name: step.whole for name, step in made.items()}
    for name, how in (("fused SGD", {"fused": True}), ("loop over parameters", {"foreach": False})):
        step = Step()
        step.optimizer = torch.optim.SGD(
            step.model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4, **how
        )
        calls[name] = step.whole
    return interleaved(calls, budget=budget, least=3)


def measure(*, quick: bool) -> dict[str, Any]:
    """Measure the step of ResNet-32; quickly, of ResNet-20."""
    step = Step(depth=20 if quick else 32)
    size = 512 if quick else MATMUL
    left, right = (torch.randn(size, size).bfloat16() for _ in range(2))
    calls = step.parts() | {"matmul": lambda: left @ right}
    found = interleaved(calls, budget=0.5 if quick else 8.0, least=3)
    ms = found["ms"]
    work = flops(step)
    beside = math.fsum(ms[name] for name in ("data", "criterion", "optimiser", "sums"))
    result = {
        "model": f"resnet{20 if quick else 32}",
        **found,
        "images_per_second": 1e3 * pipeline.BATCH / ms["step"],
        "tflops": work / ms["step"] / 1e9,
        "peak_tflops": 2 * size**3 / ms["matmul"] / 1e9,
        "share_beside_model": beside / ms["step"],
        "operators": by_operator(step, 2 if quick else 8),
    }
    if not quick:
        result["variants"] = variants(8.0)
    return result
