"""The tables of the page as plain data: methods, classes, what holds the bound back, settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from classwise.report.comparison import (
    GROUPS,
    Comparison,
    Method,
    flat,
    last_numbers,
    unfinished,
    written,
)
from classwise.report.names import clean
from classwise.report.numbers import NOTHING, Spread, difference, percent, spread_of
from classwise.train.record import RunRecord

__all__ = [
    "Cell",
    "Column",
    "bound_shares",
    "columns",
    "method_cells",
    "run_rows",
    "settings",
    "top_of_bound",
]


@dataclass(frozen=True)
class Column:
    """A number of the table of methods.

    Args:
        name: in a run's numbers.
        title: in the table.
        note: what it is about, lines under the title.
        lower: whether less is better.
    """

    name: str
    title: str
    note: tuple[str, ...] = ()
    lower: bool = False


@dataclass(frozen=True)
class Cell:
    """A number over seeds, written.

    Args:
        text: the mean, or "n/a".
        spread: the standard deviation with its sign, or nothing.
        best: whether no other method is better beyond the spread.
        note: what the reader must know of it.
    """

    text: str
    spread: str = ""
    best: bool = False
    note: str = ""


def columns(c: Comparison) -> list[Column]:
    """Return the numbers that the table of methods shows."""
    sizes = {group: int(mask.sum()) for group, mask in c.groups.items()}
    limits = {"many": "> 100", "medium": "20 to 100", "few": "< 20"}
    shots = [
        Column(g, g, (f"{sizes[g]:,} {'class' if sizes[g] == 1 else 'classes'}", limits[g]))
        for g in GROUPS
    ]
    return [
        Column("balanced", "balanced", ("mean over", "classes")),
        *shots,
        Column("overall", "overall", ("share of", "samples")),
        Column("ece", "ECE", ("less is", "better"), lower=True),
        Column("ece_few", "ECE few", ("less is", "better"), lower=True),
    ]


def method_cells(c: Comparison, column: Column) -> list[Cell]:
    """Return a column of the table of methods; with several of them the best are marked."""
    spreads = [method.number(column.name, c.split) for method in c.methods]
    marked = _best(spreads, lower=column.lower) if len(spreads) > 1 else [False] * len(spreads)
    return [_cell(spread, best) for spread, best in zip(spreads, marked, strict=True)]


def best_epoch_cell(method: Method) -> Cell:
    """Return the balanced accuracy of the best epochs and what they were chosen on."""
    best = [run.result.get("best") or {} for run in method.runs]
    cell = _cell(spread_of(b.get("balanced") for b in best), best=False)
    chosen = {(b.get("selected_on"), b.get("measured_on", b.get("selected_on"))) for b in best if b}
    notes = []
    for on, measured in sorted((str(a), str(b)) for a, b in chosen):
        optimistic = ", optimistic" if on == measured else ""
        notes.append(f"chosen on {on}{optimistic}")
    return Cell(cell.text, cell.spread, note="; ".join(notes))


def _cell(spread: Spread, best: bool) -> Cell:
    note = f"{spread.missing} of {spread.runs} n/a" if spread.values and spread.missing else ""
    deviation = f"± {percent(spread.deviation)}" if math.isfinite(spread.deviation) else ""
    return Cell(percent(spread.mean), deviation, best, note)


def _best(spreads: Sequence[Spread], *, lower: bool) -> list[bool]:
    """Mark the best mean and all that are not worse than it beyond the spread."""
    sign = -1.0 if lower else 1.0
    known = [s for s in spreads if s.values]
    if not known:
        return [False] * len(spreads)
    best = max(known, key=lambda s: sign * s.mean)
    return [bool(s.values) and (s is best or difference(best, s).within) for s in spreads]


@dataclass(frozen=True)
class BoundTerm:
    """A class of those that hold the bound back most.

    Args:
        index: the class.
        share: of the method's total, in [0, 1].
        lipschitz: its local Lipschitz constant; NaN where it was not kept.
    """

    index: int
    share: float
    lipschitz: float


def top_of_bound(method: Method, number: int = 10) -> list[BoundTerm]:
    """Return the classes with the largest summands of the bound."""
    terms = method.class_mean("bound.per_class")
    if terms is None:
        return []
    finite = torch.isfinite(terms)
    total = float(terms[finite].sum())
    if not total > 0:
        return []
    constants = method.class_mean("bound.lipschitz")
    order = torch.where(finite, terms, -1.0).argsort(descending=True, stable=True)
    top = [i for i in order[:number].tolist() if bool(finite[i])]
    return [
        BoundTerm(
            i, float(terms[i]) / total, math.nan if constants is None else float(constants[i])
        )
        for i in top
    ]


def bound_shares(c: Comparison, method: Method) -> dict[str, str] | None:
    """Return each group's share of the bound in percent, and of the classes that are in it."""
    terms = method.class_mean("bound.per_class")
    if terms is None:
        return None
    finite = torch.where(torch.isfinite(terms), terms, 0.0)
    total = float(finite.sum())
    return {
        g: percent(float(finite[c.groups[g]].sum()) / total)
        if total > 0 and bool(c.groups[g].any())
        else NOTHING
        for g in GROUPS
    }


def run_rows(c: Comparison) -> list[dict[str, str]]:
    """Return a row for each run: where it lies, how far it is, what it reached."""
    rows = []
    for method in c.methods:
        for run in method.runs:
            numbers, epoch = last_numbers(run, c.split)
            best = run.result.get("best") or {}
            rows.append(
                {
                    "method": method.label,
                    "seed": str(run.seed),
                    "state": progress(run),
                    "epoch": NOTHING if epoch is None else str(epoch + 1),
                    "balanced": percent(_number(numbers.get("balanced"))),
                    "best": percent(_number(best.get("balanced"))),
                    "best_epoch": _epoch_of(best),
                    "seconds": _whole(run.result.get("seconds")),
                    "speed": _whole(run.result.get("images_per_second")),
                    "folder": clean(run.folder),
                }
            )
    return rows


def progress(run: RunRecord) -> str:
    """Say how far a run is."""
    if not unfinished(run):
        return "finished"
    done = run.epochs[-1].get("epoch", len(run.epochs) - 1) + 1 if run.epochs else 0
    planned = flat(run.config).get("optim.epochs")
    return f"unfinished, {done} of {planned} epochs" if planned else f"unfinished, {done} epochs"


def _epoch_of(best: Mapping[str, Any]) -> str:
    if not isinstance(best.get("epoch"), int):
        return NOTHING
    return f"{best['epoch'] + 1}, chosen on {best.get('selected_on')}"


def _number(value: object) -> float:
    return spread_of([value]).mean


def _whole(value: object) -> str:
    number = _number(value)
    return f"{number:,.0f}" if math.isfinite(number) else NOTHING


def settings(nested: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return what is the same in all settings, and what differs with a value for each of them.

    >>> settings([{"optim": {"lr": 0.1}, "seed": 0}, {"optim": {"lr": 0.1}, "seed": 1}])
    ({'optim.lr': '0.1'}, {'seed': ['0', '1']})
    """
    flattened = [flat(one) for one in nested]
    same, different = {}, {}
    for key in dict.fromkeys(key for one in flattened for key in one):
        values = [clean(written(one[key])) if key in one else NOTHING for one in flattened]
        if len(set(values)) == 1:
            same[key] = values[0]
        else:
            different[key] = values
    return same, different
