"""What the statistics cost beside the loss they are streamed with: time and memory.

Each row times three things in turn, many times over: ``F.cross_entropy`` forward and backward, the
criterion without statistics, and the criterion with them. Ratios are to ``F.cross_entropy`` in the
same round; the median round and the middle half are shown. Run with ``make bench``.
"""

from __future__ import annotations

import datetime
import json
import platform
import statistics as numbers
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import classwise as cw
from classwise.stats.bins import GROUPINGS

RESULTS = Path(__file__).parent / "results.json"
SIZES = ((100, 128, 200), (8_142, 256, 15), (100_000, 32, 9))  # classes, batch, rounds


def seconds(call: Callable[[], None]) -> float:
    """Return the time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def forward_backward(
    loss: Callable[..., torch.Tensor], classes: int, batch: int
) -> Callable[[], None]:
    """Return a call that takes a loss forward and backward on a fixed batch."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(batch, classes, generator=generator, requires_grad=True)
    target = torch.randint(classes, (batch,), generator=generator)

    def call() -> None:
        logits.grad = None
        loss(logits, target).backward()

    return call


def criterion(classes: int, slopes: cw.SlopeConfig | None) -> cw.Criterion:
    """Return a running criterion for long-tailed counts."""
    counts = cw.longtail_counts(1000, classes, 100)
    made = cw.Criterion("cvs+adrw", counts, epochs=10, slopes=slopes)
    made.start_epoch(0)
    return made


def state_megabytes(made: cw.Criterion) -> float:
    """Return the memory of the streamed statistics."""
    return sum(t.numel() * t.element_size() for _, t in made.statistics().tensors()) / 2**20


def measure(classes: int, batch: int, rounds: int, group_by: str) -> dict[str, Any]:
    """Measure one configuration."""
    with_statistics = criterion(classes, cw.SlopeConfig(group_by=group_by, logits="adjusted"))
    calls = {
        "cross_entropy": forward_backward(F.cross_entropy, classes, batch),
        "criterion": forward_backward(criterion(classes, None), classes, batch),
        "statistics": forward_backward(with_statistics, classes, batch),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 2):
        for name, call in calls.items():
            spent = seconds(call)
            if number >= 2:  # the first rounds warm up
                times[name].append(spent)
    base = times["cross_entropy"]
    epoch_end = seconds(lambda: with_statistics.start_epoch(1))
    return {
        "classes": classes,
        "batch": batch,
        "group_by": group_by,
        "cross_entropy_ms": 1e3 * numbers.median(base),
        "criterion_ratio": quartiles(times["criterion"], base),
        "statistics_ratio": quartiles(times["statistics"], base),
        "state_mb": state_megabytes(with_statistics),
        "epoch_end_ms": 1e3 * epoch_end,
    }


def quartiles(times: list[float], base: list[float]) -> list[float]:
    """Return the quartiles of the ratio in the same round."""
    return numbers.quantiles([t / b for t, b in zip(times, base, strict=True)], n=4)


def shown(row: dict[str, Any]) -> str:
    """Return one line of the table."""
    ratios = ""
    for name in ("criterion_ratio", "statistics_ratio"):
        low, median, high = row[name]
        ratios += f"{median:6.2f} ({low:.2f} to {high:.2f})".ljust(26)
    return (
        f"{row['classes']:>8,} {row['batch']:>6} {row['group_by']:<11}"
        f"{row['cross_entropy_ms']:>12.2f} ms  {ratios}"
        f"{row['state_mb']:>7.1f} MB{row['epoch_end_ms']:>9.1f} ms"
    )


def main() -> None:
    """Print the table, and keep it in ``benchmarks/results.json``."""
    machine = {
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "date": datetime.date.today().isoformat(),
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(
        f"{'classes':>8} {'batch':>6} {'grouping':<11}{'F.cross_entropy':>15}  "
        f"{'criterion, times that':<26}{'with statistics':<26}{'state':>10}{'epoch end':>12}"
    )
    rows = []
    for classes, batch, rounds in SIZES:
        for group_by in GROUPINGS:
            rows.append(measure(classes, batch, rounds, group_by))
            print(shown(rows[-1]), flush=True)
    report = {"machine": machine, "streaming": rows}
    RESULTS.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written to benchmarks/{RESULTS.name}")


if __name__ == "__main__":
    main()
