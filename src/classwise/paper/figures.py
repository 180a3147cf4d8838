"""From results and run folders to the paper's figures and our own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
from matplotlib.figure import Figure as Drawing

from classwise.calibration import Curve, calibration_error, reliability
from classwise.errors import ArgumentError, DataError
from classwise.paper._canvas import GROUP_TITLES
from classwise.paper.drawing import (
    Heatmap,
    Lines,
    Points,
    bounds_figure,
    heatmap_figure,
    lines_figure,
    reliability_figure,
    slopes_figure,
)
from classwise.paper.results import Result
from classwise.paper.schema import Cell, Figure, Panel
from classwise.paper.show import Summary, summaries
from classwise.stats.bins import BinTable
from classwise.stats.shots import shots
from classwise.train.record import RunRecord

__all__ = [
    "Drawn",
    "bin_table_of",
    "draw",
    "draw_bounds",
    "draw_bounds_over_epochs",
    "draw_slopes",
    "reliability_of",
]

_LABELS = {
    "nu": r"$\nu$",
    "tau": r"$\tau$",
    "gamma": r"$\gamma$",
    "defer_at": r"$T_0$",
    "epoch": "epoch",
    "balanced": "balanced accuracy, %",
    "train_accuracy": "training accuracy, %",
    "train_ratio": "training accuracy, few / many",
    "ece": "ECE, %",
}
_KAPPA = {"kappa_star": r"$\kappa^*$", "kappa_plus": r"$\kappa^+$"}


@dataclass(frozen=True, eq=False)
class Drawn:
    """A figure, and which of its cells there was nothing to draw from.

    Args:
        figure: of matplotlib; ``classwise.paper.drawing.save`` writes it.
        missing: names of cells without results.
    """

    figure: Drawing
    missing: tuple[str, ...]


def draw(
    figure: Figure,
    results: Iterable[Result] = (),
    records: Mapping[str, RunRecord] | None = None,
    *,
    which: str = "best",
) -> Drawn:
    """Draw a figure of the paper from our own runs.

    Args:
        figure: of the paper.
        results: rows of results; those of other items are left out. They must agree on everything
            but cell and seed: filter them first where there are several devices or variants.
        records: runs by the name of their cell; what is drawn over epochs or confidence needs
            them.
        which: the accuracy of the ``"best"`` epoch or the ``"last"``.

    Raises:
        DataError: there is nothing to draw, or results that cannot be compared.
    """
    if which not in ("best", "last"):
        raise ArgumentError(f"which={which!r} must be 'best' or 'last'.")
    source = _Source(_by_cell(figure, results, which), dict(records or {}))
    if figure.kind in _FROM_RECORDS:
        drawing = _FROM_RECORDS[figure.kind](figure, source)
    elif figure.kind == "heatmap":
        maps = [_heatmap(panel, source) for panel in figure.panels]
        drawing = _drawn(figure, heatmap_figure, [m for m in maps if np.isfinite(m.values).any()])
    else:
        lines = [_lines(panel, source) for panel in figure.panels]
        drawing = _drawn(figure, lines_figure, [panel for panel in lines if panel.lines])
    missing = tuple(cell.name for cell in figure.cells if cell.name not in source.used)
    return Drawn(drawing, missing)


_AnyPanel = TypeVar("_AnyPanel", Lines, Heatmap)


def _drawn(
    figure: Figure, how: Callable[[list[_AnyPanel]], Drawing], panels: list[_AnyPanel]
) -> Drawing:
    """Draw the panels of which there is anything."""
    if not panels:
        raise DataError(f"there is no result of {figure.name} to draw.")
    return how(panels)


class _Source:
    """What there is to draw from, and a note of what was."""

    def __init__(self, points: dict[str, Summary], records: dict[str, RunRecord]) -> None:
        self.points, self.records = points, records
        self.used: set[str] = set()

    def point(self, cell: Cell) -> Summary | None:
        """Return the accuracy of a cell."""
        found = self.points.get(cell.name)
        self.used |= {cell.name} if found else set()
        return found

    def record(self, cell: Cell) -> RunRecord | None:
        """Return the run of a cell."""
        found = self.records.get(cell.name)
        self.used |= {cell.name} if found else set()
        return found


def _by_cell(figure: Figure, results: Iterable[Result], which: str) -> dict[str, Summary]:
    """Return the accuracy of each cell, after making sure that they can be compared."""
    mine: dict[str, list[Result]] = {}
    for row in results:
        if row.table == figure.name:
            mine.setdefault(row.cell, []).append(row)
    made, points = set(), {}
    for cell, rows in mine.items():
        groups = list(summaries(rows))
        if len(groups) > 1:
            raise DataError(
                f"{figure.name} {cell} has results of {len(groups)} kinds (settings, epochs, "
                "device or precision differ); draw from one of them."
            )
        made.add((groups[0][1]["made_on"], groups[0][1]["epochs"]))
        summary = Summary.of(getattr(row, which) for row in groups[0][0])
        if summary is not None:
            points[cell] = summary
    if len(made) > 1:
        listed = "; ".join(f"{device}, {epochs} epochs" for device, epochs in sorted(made))
        raise DataError(f"{figure.name} has results that cannot be compared: {listed}.")
    return points


# Lines and heatmaps


def _lines(panel: Panel, source: _Source) -> Lines:
    if panel.x == "epoch":
        lines = _over_epochs(panel, source)
        marks = _phases(panel, source)
        return Lines(panel.title, "epoch", _LABELS[panel.y], lines, marks, False, panel.name)
    lines = []
    for series in panel.series:
        points = [(cell, _value(cell, panel, source)) for cell in series.cells]
        found = [(cell, value) for cell, value in points if value is not None]
        if not found:
            continue
        swept = [cell.at[panel.x] for cell, _ in found if panel.x in cell.at]
        values = [value for _, value in found]
        spread = [value.spread or 0.0 for value in values]
        x = [float(place) for place in swept]
        lines.append(Points(series.title, x, [value.mean for value in values], spread))
    marks = {} if panel.best_at is None else {"best in the paper": panel.best_at}
    x, y = _LABELS[panel.x], _LABELS[panel.y]
    return Lines(panel.title, x, y, lines, marks, letter=panel.name)


def _value(cell: Cell, panel: Panel, source: _Source) -> Summary | None:
    if panel.y == "balanced":
        return source.point(cell)
    record = source.record(cell)
    if record is None:
        return None
    many, few = (_train_accuracy(record, group) for group in ("many", "few"))
    best = record.result.get("best", {}).get("epoch", len(many) - 1)
    return Summary(few[best] / max(many[best], 1e-9), None, 1)


def _over_epochs(panel: Panel, source: _Source) -> list[Points]:
    lines = []
    for series in panel.series:
        record = source.record(series.cells[0])
        if record is None:
            continue
        for group in panel.groups:
            if panel.y == "train_accuracy":
                values = dict(enumerate(100 * v for v in _train_accuracy(record, group)))
            else:
                values = _ece(record, group)
            if values:
                title = f"{series.title}, {GROUP_TITLES[group].lower()}"
                lines.append(Points(title, list(values), list(values.values())))
    return lines


def _train_accuracy(record: RunRecord, group: str) -> list[float]:
    """Return the training accuracy of a group of classes in each epoch."""
    try:
        return [epoch["train"][group] for epoch in record.epochs]
    except KeyError as error:
        raise DataError(
            f"{record.folder} did not record the training accuracy of {group} shots."
        ) from error


def _ece(record: RunRecord, group: str) -> dict[float, float]:
    name = "ece" if group == "all" else f"ece_{group}"
    rows = [(epoch["epoch"], epoch.get("test", {}).get(name)) for epoch in record.epochs]
    return {epoch: 100 * value for epoch, value in rows if value is not None}


def _phases(panel: Panel, source: _Source) -> dict[str, float]:
    records = [source.records.get(series.cells[0].name) for series in panel.series]
    starts = {start for record in records if record for start in record.phase_starts if start}
    return {r"$T_0$": float(starts.pop())} if len(starts) == 1 else {}


def _heatmap(panel: Panel, source: _Source) -> Heatmap:
    cells = [cell for series in panel.series for cell in series.cells]
    columns = sorted({float(cell.at[panel.x]) for cell in cells})
    rows = sorted({float(cell.at[panel.hue]) for cell in cells})
    values = np.full((len(rows), len(columns)), np.nan)
    for cell in cells:
        point = source.point(cell)
        if point is not None:
            place = rows.index(float(cell.at[panel.hue])), columns.index(float(cell.at[panel.x]))
            values[place] = point.mean
    x, y = _LABELS[panel.x], _LABELS[panel.hue]
    return Heatmap(panel.title, x, y, columns, rows, values, panel.name)


# Reliability, slopes, bounds


def bin_table_of(record: RunRecord, split: str = "test") -> BinTable:
    """Return the reliability table that a finished run left behind.

    Args:
        record: of the run.
        split: "test" or "val".
    """
    names = [f.name for f in fields(BinTable)]
    missing = [name for name in names if f"{split}.{name}" not in record.tensors]
    if missing:
        raise DataError(f"{record.folder} has no reliability table of the {split} split.")
    return BinTable(**{name: record.tensors[f"{split}.{name}"] for name in names})


def reliability_of(record: RunRecord) -> tuple[dict[str, Curve], dict[str, float]]:
    """Return a run's reliability curves by shots on the test split, and the ECE of each."""
    table = bin_table_of(record)
    groups = shots(record.class_counts, allow_empty=True)
    found = calibration_error(table, groups)
    errors = {"all": float(found.ece)}
    errors |= {name: float(value) for name, value in found.group_ece.items()}
    return reliability(table, groups), errors


def _records(figure: Figure, source: _Source) -> dict[str, RunRecord]:
    """Return the runs of a figure that are there, by the title of their series."""
    series = itertools.chain.from_iterable(panel.series for panel in figure.panels)
    found = {one.title: source.record(one.cells[0]) for one in series}
    there = {title: record for title, record in found.items() if record is not None}
    if not there:
        raise DataError(f"there is no run of {figure.name} to draw.")
    return there


def _reliability(figure: Figure, source: _Source) -> Drawing:
    found = {t: reliability_of(record) for t, record in _records(figure, source).items()}
    curves = {title: curve for title, (curve, _) in found.items()}
    errors = {title: error for title, (_, error) in found.items()}
    return reliability_figure(curves, errors, figure.panels[0].groups)


def _slopes(figure: Figure, source: _Source) -> Drawing:
    measured = {
        title: record
        for title, record in _records(figure, source).items()
        if any(name in epoch for epoch in record.epochs for name in _KAPPA)
    }
    return draw_slopes(measured)


def draw_slopes(records: RunRecord | Mapping[str, RunRecord]) -> Drawing:
    """Draw the slopes that runs measured, over their epochs and by shots.

    Args:
        records: a run, or several on the same class counts, by name.
    """
    named = _named(records) if isinstance(records, Mapping) else {"": records}
    found = {}
    for title, record in named.items():
        absent = [float("nan")] * len(record.class_counts)
        for name, kappa in _KAPPA.items():
            values = [epoch.get(name) or absent for epoch in record.epochs]
            found[f"{title}, {kappa}" if title else kappa] = np.array(values, dtype=float)
        if all(name not in epoch for epoch in record.epochs for name in _KAPPA):
            raise DataError(f"{record.folder} measured no slopes.")
    first = next(iter(named.values()))
    groups = shots(first.class_counts, allow_empty=True)
    masks = {name: mask.numpy() for name, mask in groups.items() if bool(mask.any())}
    return slopes_figure(found, masks, first.phase_starts)


def _bound(figure: Figure, source: _Source) -> Drawing:
    """Draw the bound by class at the end where the figure says so, or else over the epochs."""
    records = _records(figure, source)
    if figure.panels[0].x == "class":
        return draw_bounds({t: r for t, r in records.items() if "bound.per_class" in r.tensors})
    tracked = {t: r for t, r in records.items() if any(epoch.get("bound") for epoch in r.epochs)}
    return draw_bounds_over_epochs(tracked)


def draw_bounds(records: Mapping[str, RunRecord] | Sequence[RunRecord]) -> Drawing:
    """Draw the bound's terms by class for several runs on the same data, and their accuracies.

    Args:
        records: finished runs by name, or a list of them, which are then called by their method.
    """
    bounds, accuracy = {}, {}
    named = _named(records)
    for name, record in named.items():
        if "bound.per_class" not in record.tensors:
            raise DataError(
                f"{record.folder} has no bound: its terms have margins, or it runs yet."
            )
        bounds[name] = record.tensors["bound.per_class"].double().numpy()
        accuracy[name] = 100 * record.result["last"]["balanced"]
    return bounds_figure(bounds, accuracy, next(iter(named.values())).class_counts)


def draw_bounds_over_epochs(records: Mapping[str, RunRecord] | Sequence[RunRecord]) -> Drawing:
    """Draw the bound over training, its sum and that of each group, for several runs.

    Args:
        records: runs with ``track_bound``, by name, or a list of them, which are then called by
            their method.
    """
    lines: dict[str, list[Points]] = {"total": [], "many": [], "medium": [], "few": []}
    for name, record in _named(records).items():
        rows = [(e["epoch"], e["bound"]) for e in record.epochs if e.get("bound")]
        if not rows:
            raise DataError(f"{record.folder} did not track the bound, or its terms have margins.")
        for group, points in lines.items():
            if group in rows[0][1]:
                epochs = [epoch for epoch, _ in rows]
                points.append(Points(name, epochs, [bound[group] for _, bound in rows]))
    titles = {"total": "All", **GROUP_TITLES}
    return lines_figure(
        [
            Lines(titles[group], "epoch", "sum of the terms", points, log=True)
            for group, points in lines.items()
            if points
        ]
    )


def _named(records: Mapping[str, RunRecord] | Sequence[RunRecord]) -> Mapping[str, RunRecord]:
    """Return runs on the same class counts by name."""
    named = records if isinstance(records, Mapping) else {r.method: r for r in records}
    if len(named) != len(records) or not named:
        raise ArgumentError("records must be runs of different methods, at least one, or named.")
    first = next(iter(named.values()))
    for name, record in named.items():
        if not record.class_counts.equal(first.class_counts):
            raise DataError(f"{name} was trained on other class counts than the first run.")
    return named


_FROM_RECORDS: dict[str, Callable[[Figure, _Source], Drawing]] = {
    "reliability": _reliability,
    "slopes": _slopes,
    "bound": _bound,
}
