"""Small runs for the tests of the lab, and what they leave behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from classwise.lab import Plan, Request, Store, execute, make_plan
from classwise.train.config import RunConfig, with_values
from classwise.train.observe import Silent
from classwise.train.record import read_run
from classwise.train.setup import Setup

BASE = {
    "source": "digits",
    "imbalance": "exp:50",
    "model": "mlp",
    "epochs": 4,
    "defer_at": 2,
    "batch_size": 64,
    "device": "cpu",
}

METHODS = ("ce", "ce+drw", "cvs", "cvs+adrw")


def config(**values: Any) -> RunConfig:
    return with_values(RunConfig(), {**BASE, **values})


def plan_of(*methods: str, **values: Any) -> Plan:
    return make_plan(Request(m, config(method=m, **values)) for m in methods or METHODS)


def assert_same(a: Path, b: Path) -> None:
    """Bit for bit: weights, everything measured but time (slopes too), and the final tensors."""
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (a, b))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    ran, alone = read_run(a), read_run(b)
    assert [timeless(row) for row in ran.epochs] == [timeless(row) for row in alone.epochs]
    assert ran.tensors.keys() == alone.tensors.keys()
    for name, tensor in ran.tensors.items():
        torch.testing.assert_close(tensor, alone.tensors[name], rtol=0, atol=0, equal_nan=True)
    assert ran.result.get("last") == alone.result.get("last")


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k not in ("seconds", "images_per_second")}


class StopAt(Silent):
    """Interrupts training after so many steps in all."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def step(self, epoch: int, done: int, of: int) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def cifar_like(path: Path, each: int = 12) -> str:
    """Write a small data set in the shape of CIFAR-10; return its address."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), each)
    means = generator.integers(60, 200, (10, 1, 1, 3))
    noise = generator.integers(-50, 50, (len(labels), 32, 32, 3))
    images = (means[labels] + noise).clip(0, 255).astype(np.uint8)
    half = np.arange(len(labels)) % 2 == 0
    arrays = {"train_images": images, "train_labels": labels}
    arrays |= {"test_images": images[half], "test_labels": labels[half]}
    np.savez(path, **arrays)
    return f"npz:{path}"


_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["classwise.lab", "classwise.train.launch"])


class Slow(Silent):
    """Counts what was begun, and takes long enough to be killed or to be met by another."""

    def __init__(self, pause: float, begun: Any) -> None:
        self.pause, self.begun = pause, begun

    def begin(self, setup: Setup, first: int, stop: int) -> None:
        self.begun.release()

    def step(self, epoch: int, done: int, of: int) -> None:
        time.sleep(self.pause)


@dataclass
class Child:
    """A process that executes a plan.

    Args:
        process: it.
        begun: released for each phase that it begins.
    """

    process: Any
    begun: Any

    def wait_for_begin(self) -> None:
        assert self.begun.acquire(timeout=60)

    def kill(self) -> bool:
        """Kill it; return whether it was still at work."""
        self.process.kill()  # SIGKILL
        self.process.join()
        return self.process.exitcode != 0


def wait_for_any(children: list[Child]) -> None:
    """Wait until one of them begins a phase, or nothing is left for them to do."""
    while not any(child.begun.acquire(block=False) for child in children):
        if not any(child.process.is_alive() for child in children):
            return
        time.sleep(0.01)


def _execute(
    store: Path, methods: tuple[str, ...], values: dict[str, Any], pause: float, begun: Any
) -> None:
    torch.set_num_threads(1)
    slow = Slow(pause, begun)
    execute(plan_of(*methods, **values), Store(store), observer_for=lambda node: slow)


def executing(store: Path, *methods: str, pause: float = 0.0, **values: Any) -> Child:
    """Start a process that executes a plan."""
    begun = _PROCESSES.Semaphore(0)
    process = _PROCESSES.Process(target=_execute, args=(store, methods, values, pause, begun))
    process.start()
    return Child(process, begun)
