"""How cost grows: statistics and criterion with the classes, planning and the store with runs."""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import torch.nn.functional as F

import classwise as cw
from benchmarks.criterion import forward_backward, running
from benchmarks.statistics import batch_of
from benchmarks.timing import interleaved, seconds
from classwise.lab import tune
from classwise.lab.plan import Plan, Request, make_plan
from classwise.lab.store import Store
from classwise.paper import expand, load, select
from classwise.stats.bins import empty_bins, update_bins
from classwise.train import record
from classwise.train.config import RunConfig, with_values

__all__ = ["measure"]

CLASSES = (100, 300, 1_000, 3_000, 8_142, 30_000, 100_000)
RUNS = (30, 100, 300, 1_000)
PHASES = (100, 1_000, 10_000)
BATCH = 64
GRID = {name: tune.GRID[name] for name in ("gamma", "tau", "nu")}
"""The paper's grid for CVS + ADRW."""


def with_classes(sizes: tuple[int, ...], budget: float) -> list[dict[str, Any]]:
    """Time one batch by the number of classes."""
    rows = []
    for classes in sizes:
        logits, target = batch_of(classes, BATCH)
        log_probs, state = F.log_softmax(logits, dim=1), empty_bins(classes)

        def statistics(
            state: Any = state, z: Any = logits, y: Any = target, p: Any = log_probs
        ) -> None:
            update_bins(state, z, y, log_probs=p)

        calls = {
            "cross_entropy": forward_backward(F.cross_entropy, classes, BATCH),
            "criterion": forward_backward(running(classes, "stable"), classes, BATCH),
            "statistics": statistics,
        }
        ms = interleaved(calls, budget=budget)["ms"]
        rows.append({"classes": classes, "batch": BATCH, **ms})
    return rows


def base() -> RunConfig:
    """Return the run that the grid varies, on the bundled digits."""
    return with_values(
        RunConfig(),
        {
            "data.source": "digits",
            "data.imbalance": "exp:50",
            "method.method": "cvs+adrw",
            "optim.epochs": 200,
        },
    )


def many_runs(number: int) -> list[Request]:
    """Return so many runs: the paper's grid, over and over with other seeds."""
    seeds = range(1 + number // math.prod(len(values) for values in GRID.values()))
    requests = []
    for seed, *values in itertools.islice(itertools.product(seeds, *GRID.values()), number):
        hyper = {f"method.{name}": v for name, v in zip(GRID, values, strict=True)}
        requests.append(Request("cvs+adrw", with_values(base(), {**hyper, "seed": seed})))
    return requests


def planning(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Time the planning of as many runs."""
    requests = many_runs(max(sizes))
    make_plan(requests[:1])  # loads the data, once for all
    rows = []
    for runs in sizes:
        made: list[Plan] = []
        spent = seconds(lambda n=runs, into=made: into.append(make_plan(requests[:n])))
        rows.append({"runs": runs, "phases": len(made[0].nodes), "seconds": spent})
    return rows


def shared() -> dict[str, Any]:
    """Return epochs that plans train over those of separate runs."""
    search, stands_for = tune.tuning_plan(base(), GRID)
    epochs = base().optim.epochs or 0
    column = select(load("table-3"), "part=a,dataset=cifar100,imbalance=exp,ratio=100")
    # Those that the laboratory trains; planned by name where the data is not there.
    cells = [cell for cell in column if cell.expands and cell.method]
    table = make_plan([Request(c.name, expand(c)) for c in cells], need_data=False)
    return {
        "grid": {"runs": stands_for, "ratio": search.epochs / (stands_for * epochs)},
        "table-3": {"runs": len(table.leaves), "ratio": table.ratio},
    }


def listing(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Time the listing of a store that holds as many finished phases."""
    head = {"label": "cvs+adrw digits", "identity": {"epochs": [0, 200]}}
    lines = "".join(json.dumps({"epoch": e, "seconds": 1.0}) + "\n" for e in range(20))
    rows = []
    with tempfile.TemporaryDirectory() as root:
        made = 0
        for phases in sizes:
            for number in range(made, phases):
                folder = Path(root) / f"{number:016x}"
                folder.mkdir()
                (folder / record.CONFIG).write_text(json.dumps(head), encoding="utf-8")
                (folder / record.METRICS).write_text(lines, encoding="utf-8")
                (folder / record.DONE).write_text("{}", encoding="utf-8")
            made = phases
            store = Store(root)
            entries = store.entries()
            assert len(entries) == phases
            assert all(entry.state == "done" for entry in entries)
            rows.append({"phases": phases, "seconds": seconds(store.entries)})
    return rows


def measure(*, quick: bool) -> dict[str, Any]:
    """Measure growth; quickly, at small sizes."""
    cw.longtail_counts(10, 2, 1)  # loads what is loaded late
    return {
        "classes": with_classes(CLASSES[:2] if quick else CLASSES, 0.1 if quick else 1.0),
        "planning": planning((10, 30) if quick else RUNS),
        "listing": listing((10, 100) if quick else PHASES),
        "shared": shared(),
    }
