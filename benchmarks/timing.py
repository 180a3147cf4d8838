"""How everything here is timed: in turns, many times, as ratios of the same turn.

A machine that is busy slows what runs on it at that moment. So the things to compare take turns,
the ratio is taken within a turn, and the median turn counts; the middle half says how much the
turns disagree.
"""

from __future__ import annotations

import datetime
import gc
import importlib.metadata
import os
import platform
import statistics as numbers
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["interleaved", "machine", "seconds"]

_LEAST = 2e-3
"""Seconds that a turn takes at least; a shorter call is repeated within it."""


def seconds(call: Callable[[], object], times: int = 1) -> float:
    """Return the mean time of a call."""
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times


def interleaved(
    calls: Mapping[str, Callable[[], object]],
    *,
    budget: float = 3.0,
    least: int = 5,
    most: int = 400,
    warm: int = 2,
) -> dict[str, Any]:
    """Time calls in turns.

    Args:
        calls: by name; ratios are to the first.
        budget: seconds to spend, more or less.
        least: turns at least, whatever the budget.
        most: turns at most.
        warm: turns before the first that counts.

    Returns:
        ``"ms"``: the median time of each call. ``"ratio"``: for each call but the first the
        quartiles of its time over the first's in the same turn. ``"turns"``: how many counted.
    """
    repeats = {}
    for name, call in calls.items():
        for _ in range(warm):
            call()
        repeats[name] = max(1, round(_LEAST / max(seconds(call), 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    try:
        began, turn = time.perf_counter(), 0
        while turn < least or (turn < most and time.perf_counter() - began < budget):
            for name, call in calls.items():
                times[name].append(seconds(call, repeats[name]))
            turn += 1
    finally:
        gc.enable()
    base, *others = calls
    return {
        "ms": {name: 1e3 * numbers.median(spent) for name, spent in times.items()},
        "ratio": {name: _quartiles(times[name], times[base]) for name in others},
        "turns": turn,
    }


def _quartiles(times: list[float], base: list[float]) -> list[float]:
    ratios = [t / b for t, b in zip(times, base, strict=True)]
    return numbers.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3


def machine() -> dict[str, Any]:
    """Return what measured: processor, threads, versions, date, and how busy it was before."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "classwise": importlib.metadata.version("classwise"),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    """Return the instruction sets that decide about speed, beside the architecture."""
    flags = Path("/proc/cpuinfo")
    if not flags.exists():
        return platform.machine()
    text = flags.read_text(encoding="utf-8")
    known = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in text]
    return " ".join([platform.machine(), *known])
