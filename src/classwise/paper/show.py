"""The paper's numbers beside ours: for the terminal, for documents, for programs."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from classwise.paper.expand import expand, select
from classwise.paper.results import Result, canonical
from classwise.paper.rows import settings_of
from classwise.paper.schema import METRICS, Cell, Figure, Reported, Table
from classwise.train.config import to_dict

if TYPE_CHECKING:
    from rich.table import Table as RichTable

__all__ = ["Line", "Summary", "as_dict", "as_markdown", "as_rich", "show", "summaries"]

HEADINGS = (
    "Run",
    "Data",
    "Classes",
    "Paper",
    "Ours, best epoch",
    "Ours, last epoch",
    "Validation, last epoch",
    "Difference",
    "Seeds",
    "Epochs",
    "Trained on",
    "Settings other than the cell's",
)


@dataclass(frozen=True)
class Summary:
    """A number of ours over seeds.

    Args:
        mean: over the seeds.
        spread: sample standard deviation, None for one seed.
        n: how many seeds.
    """

    mean: float
    spread: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Summary | None:
        """Return the summary of what is there; None if nothing is, or not for every seed."""
        found = list(values)
        numbers = [value for value in found if value is not None]
        if not numbers or len(numbers) < len(found):
            return None
        spread = statistics.stdev(numbers) if len(numbers) > 1 else None
        return cls(statistics.fmean(numbers), spread, len(numbers))

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + ("" if self.spread is None else f" ± {self.spread:.1f}")


@dataclass(frozen=True)
class Line:
    """One number of the paper beside ours.

    Args:
        cell: of the table or figure.
        metric: one of ``METRICS``.
        paper: what the paper prints, None if nothing.
        best: ours at the best epoch on the split that the rows name, None without results.
        last: ours at the last epoch.
        val: ours on the validation split, at the last epoch.
        selected_on: the split that the best epoch was chosen on.
        seeds: of our runs.
        epochs: that they were trained.
        made_on: device and precision that trained them.
        hyper: what their method was trained with.
        revisions: of the code that trained them.
    """

    cell: Cell
    metric: str
    paper: Reported | None
    best: Summary | None = None
    last: Summary | None = None
    val: Summary | None = None
    selected_on: str = ""
    seeds: tuple[int, ...] = ()
    epochs: int | None = None
    made_on: str = ""
    hyper: str = ""
    revisions: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Ours less the paper's, at the best epoch where it is known, else at the last."""
        ours = self.best or self.last
        if ours is None or self.paper is None:
            return None
        return ours.mean - self.paper.mean


def show(item: Table | Figure, results: Iterable[Result], where: str = "") -> list[Line]:
    """Return the paper's numbers beside ours, cell by cell.

    A mean is over seeds and nothing else: runs with other settings, epochs, device or precision
    have lines of their own. Of several runs with one seed the latest counts.

    Args:
        item: the table or figure.
        results: rows of results; those of other items are left out.
        where: which cells, see ``select``.
    """
    mine: dict[str, list[Result]] = {}
    for row in results:
        if row.table == item.name:
            mine.setdefault(row.cell, []).append(row)
    return [line for cell in select(item, where) for line in _lines(cell, mine.get(cell.name, []))]


def summaries(rows: Sequence[Result]) -> Iterator[tuple[Sequence[Result], dict[str, Any]]]:
    """Yield the rows that differ in nothing but the seed, and what they have in common.

    Args:
        rows: of one cell.
    """
    ordered = sorted(rows, key=_alike)
    for (hyper, epochs, device, precision, selected_on), group in itertools.groupby(
        ordered, key=_alike
    ):
        by_seed = {row.seed: row for row in sorted(group, key=lambda row: row.date)}
        alike = [by_seed[seed] for seed in sorted(by_seed)]
        yield (
            alike,
            {
                "hyper": hyper,
                "epochs": epochs,
                "made_on": f"{device}, {precision}",
                "selected_on": selected_on,
                "seeds": tuple(row.seed for row in alike),
                "revisions": tuple(sorted({row.revision for row in alike})),
            },
        )


def _alike(row: Result) -> tuple[str, int, str, str, str]:
    return row.hyper, row.epochs, row.device, row.precision, row.selected_on


def _lines(cell: Cell, rows: Sequence[Result]) -> Iterator[Line]:
    metrics = list(cell.reported) or ["balanced"]
    groups = list(summaries(rows))
    if not groups:
        yield from (Line(cell, metric, cell.reported.get(metric)) for metric in metrics)
    for alike, common in groups:
        for metric in metrics:
            last, best = METRICS[metric].column, METRICS[metric].best
            yield Line(
                cell,
                metric,
                cell.reported.get(metric),
                best=Summary.of(getattr(row, best) for row in alike) if best else None,
                last=Summary.of(getattr(row, last) for row in alike) if last else None,
                val=Summary.of(row.val for row in alike) if metric == "balanced" else None,
                **common,
            )


def as_dict(line: Line) -> dict[str, Any]:
    """Return a line as plain data."""

    def plain(value: Summary | Reported | None) -> dict[str, Any] | None:
        if value is None:
            return None
        count = {"n": value.n} if isinstance(value, Summary) else {}
        return {"mean": value.mean, "spread": value.spread, **count}

    cell = line.cell
    return {
        "item": cell.item,
        "cell": cell.name,
        "title": cell.title,
        "protocol": cell.protocol,
        "method": cell.method,
        "data": cell.setting,
        "metric": line.metric,
        "unit": METRICS[line.metric].unit,
        "paper": plain(line.paper),
        "best": plain(line.best),
        "last": plain(line.last),
        "val": plain(line.val),
        "difference": line.difference,
        "selected_on": line.selected_on,
        "seeds": list(line.seeds),
        "epochs": line.epochs,
        "made_on": line.made_on,
        "hyper": line.hyper,
        "revisions": list(line.revisions),
        "needs": [need.what for need in cell.needs],
        "exceptions": [f"{e.code}: {e.what}" for e in cell.exceptions],
    }


_NOTHING = "-"


def _texts(line: Line) -> list[str]:
    """Return a line as text, one for each heading."""
    cell, metric = line.cell, METRICS[line.metric]
    point = ", ".join(f"{name} {value:g}" for name, value in cell.at.items())
    needs = [need.name for need in cell.needs if not need.expands]
    return [
        f"{cell.part}: {cell.title}" + (f" ({point})" if point else ""),
        cell.setting,
        metric.title + ("" if metric.unit == "%" else f", {metric.unit}"),
        _paper_text(line),
        _text(line.best or (needs and not line.last and "needs " + ", ".join(needs))),
        _text(line.last),
        _text(line.val),
        _NOTHING if line.difference is None else f"{line.difference:+.1f}",
        _text(line.seeds and len(line.seeds)),
        _text(line.epochs),
        _text(line.made_on),
        _own_settings(line),
    ]


def _text(value: object) -> str:
    return str(value) if value else _NOTHING


def _paper_text(line: Line) -> str:
    if line.paper is None:
        return _NOTHING
    # A mean that does not fit is one number; another split or backbone is the whole row.
    odd = any(e.kind != "group-mean" or line.metric == "balanced" for e in line.cell.exceptions)
    return str(line.paper) + (" *" if odd else "")


@dataclass(frozen=True)
class _Layout:
    """Lines as text, without the columns that say the same in each or nothing at all."""

    headings: list[str]
    rows: list[list[str]]
    notes: list[str]


def _layout(lines: Sequence[Line]) -> _Layout:
    table = [_texts(line) for line in lines]
    kept, common = [], []
    for column, heading in enumerate(HEADINGS):
        values = {row[column] for row in table} - {_NOTHING}
        if len(values) == 1 and heading in _FOLDED:
            common.append(f"{heading.lower()} {values.pop()}")
        elif values or heading in _ALWAYS:
            kept.append(column)
    notes = [f"All: {'; '.join(common)}."] if common else []
    chosen = dict.fromkeys(line.selected_on for line in lines if line.best)
    if chosen:
        notes.append(f"Our best epoch was chosen on the {' or '.join(chosen)} split.")
    notes += _footnotes(lines)
    return _Layout(
        [HEADINGS[column] for column in kept],
        [[row[column] for column in kept] for row in table],
        notes,
    )


_ALWAYS = ("Run", "Paper", "Ours, best epoch")
_FOLDED = ("Data", "Classes", "Seeds", "Epochs", "Trained on")


def _own_settings(line: Line) -> str:
    """Return those settings of our runs that are not the cell's."""
    if not line.hyper or not line.cell.expands:
        return _NOTHING
    wanted = _pairs(canonical(settings_of(to_dict(expand(line.cell)))))
    have = _pairs(line.hyper)
    other = [f"{name}={value}" for name, value in have.items() if wanted.get(name) != value]
    other += [f"no {name}" for name in wanted if name not in have]
    return ", ".join(other) or _NOTHING


def _pairs(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";"))
    return {name: value for name, _, value in pairs}


def _footnotes(lines: Iterable[Line]) -> list[str]:
    notes = dict.fromkeys(
        f"* {line.cell.name}: {found.what} ({found.code})."
        for line in lines
        for found in line.cell.exceptions
    )
    wanted = dict.fromkeys(
        need for line in lines for need in line.cell.needs if not (need.expands or line.last)
    )
    return [*notes, *(f"{need.name}: {need.what}." for need in wanted)]


def as_markdown(lines: Sequence[Line]) -> str:
    """Return lines as a table in Markdown, with notes below."""
    layout = _layout(lines)
    rows = [layout.headings, ["---"] * len(layout.headings), *layout.rows]
    text = "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows)
    notes = "".join(f"- {note.removeprefix('* ')}\n" for note in layout.notes)
    return f"{text}\n\n{notes}" if notes else f"{text}\n"


def as_rich(lines: Sequence[Line], title: str = "") -> RichTable:
    """Return lines as a table for the terminal, with notes below."""
    from rich.table import Table as RichTable  # noqa: PLC0415  (only where it is printed)
    from rich.text import Text  # noqa: PLC0415

    layout = _layout(lines)
    caption = Text("\n".join(layout.notes), justify="left")
    table = RichTable(title=title or None, caption=caption if layout.notes else None)
    for heading in layout.headings:
        right = heading.startswith(("Paper", "Ours", "Validation", "Difference", "Seeds", "Epochs"))
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for row in layout.rows:
        table.add_row(*map(Text, row))  # as Text: nothing in it is markup
    return table
