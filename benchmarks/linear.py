"""``linear_vs_loss`` beside the dense loss: time, and memory beyond what both must hold.

Each run is a process of its own, whose peak of resident memory the kernel keeps. Inputs, weights
and their gradients are the same for both and are left out; what is left is what the loss adds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["measure"]

BATCH, WIDTH = 256, 512
SIZES = (1_000, 8_142, 100_000, 1_000_000)
KINDS = ("dense", "linear", "linear, statistics")

PROGRAM = """
import json, sys, time
import torch
import classwise as cw
from benchmarks.criterion import running

kind, classes, batch, width, repeats = sys.argv[1], *map(int, sys.argv[2:])
generator = torch.Generator().manual_seed(0)
features = torch.randn(batch, width, generator=generator, requires_grad=True)
weight = torch.randn(classes, width, generator=generator).div_(width**0.5).requires_grad_()
bias = torch.zeros(classes, requires_grad=True)
target = torch.randint(classes, (batch,), generator=generator)
criterion = running(classes, "stable" if "statistics" in kind else None, epoch=0)

def once():
    for tensor in (features, weight, bias):
        tensor.grad = None
    if kind == "dense":
        loss = cw.vs_loss(torch.nn.functional.linear(features, weight, bias), target, terms)
    elif kind == "linear":
        loss = cw.linear_vs_loss(features, weight, bias, target, terms)
    else:
        loss = criterion.linear(features, weight, bias, target)
    loss.backward()
    return float(loss.detach())

def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

terms = criterion.terms
small = cw.Terms(*[[1.0] * 2, [1.0, 1.1], [0.0, 0.1], [0.0] * 2])
cw.linear_vs_loss(torch.randn(2, 4, requires_grad=True), torch.randn(2, 4), None,
                  torch.tensor([0, 1]), small).backward()  # loads what is loaded late
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # forget the peak of resident memory so far
before = status("VmRSS")
loss = once()
gradients = sum(t.grad.numel() * t.element_size() for t in (features, weight, bias))
memory = status("VmHWM") - before
spent = []
for _ in range(repeats):
    began = time.perf_counter()
    once()
    spent.append(time.perf_counter() - began)
print(json.dumps({"loss": loss, "mb": memory / 1e6, "gradients_mb": gradients / 1e6, "s": spent}))
"""


def run(kind: str, classes: int, repeats: int) -> dict[str, Any]:
    """Run one loss in a process of its own."""
    arguments = [kind, *map(str, (classes, BATCH, WIDTH, repeats))]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{kind} at {classes} classes failed: {done.stderr[-800:]}")
    return json.loads(done.stdout.splitlines()[-1])


def compared(classes: int, repeats: int) -> dict[str, Any]:
    """Return time and memory of all kinds."""
    found = {kind: run(kind, classes, repeats) for kind in KINDS}
    dense = found["dense"]
    own = {name: max(0.0, f["mb"] - f["gradients_mb"]) for name, f in found.items()}
    return {
        "classes": classes,
        "batch": BATCH,
        "width": WIDTH,
        "gradients_mb": dense["gradients_mb"],
        "ms": {name: 1e3 * min(f["s"]) for name, f in found.items()},
        "mb": own,
        "memory_ratio": {name: own[name] / own["dense"] for name in KINDS[1:]},
        "loss_apart": max(abs(f["loss"] - dense["loss"]) for f in found.values()),
    }


def measure(*, quick: bool) -> dict[str, Any]:
    """Measure at all sizes; quickly, at one."""
    sizes = (100_000,) if quick else SIZES
    return {"rows": [compared(classes, 1 if quick or classes > 10**5 else 3) for classes in sizes]}
