"""Reading a table of the paper."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from typing import Any

from classwise.paper._parts import (
    all_needs,
    number_of,
    read_data,
    read_groups,
    read_needs,
    read_protocol,
    slug,
    unique,
)
from classwise.paper._toml import Reader, read_toml
from classwise.paper.schema import METRICS, SOURCES, Cell, Inconsistency, Need, Reported, Table

__all__ = ["table_from"]

_INCONSISTENCIES = ("group-mean", "split", "backbone")


@dataclass(frozen=True)
class _Column:
    """What a column says of its cells."""

    name: str
    metrics: tuple[str, ...]
    protocol: str | None
    groups: tuple[int, ...] | None
    needs: tuple[Need, ...]
    data: dict[str, Any]


def table_from(file: Traversable) -> Table:
    """Return the table that a TOML file describes.

    Raises:
        DataError: the file is missing or not in the format; says where.
    """
    top = read_toml(file)
    number = number_of(top, file, "table")
    columns = [_column(reader) for reader in top.tables("columns")]
    parts: dict[str, str] = {}
    cells: list[Cell] = []
    for block in top.tables("blocks"):
        part, protocol = block.text("name"), read_protocol(block, [None])
        parts[part] = block.text("title")
        for row in block.tables("rows"):
            cells += _row(row, f"table-{number}", part, protocol, columns)
        block.done()
    table = Table(
        number=number,
        label=top.text("label"),
        title=top.text("title"),
        parts=parts,
        columns={column.name: column.metrics for column in columns},
        cells=_with_exceptions(top, unique(top, cells)),
        seeds=top.whole("seeds"),
        selected_on=top.choice("selected_on", ("val", "test"), ""),
        note=top.text("note", ""),
    )
    top.done()
    return table


def _column(reader: Reader) -> _Column:
    metrics = reader.texts("metrics")
    for metric in metrics:
        reader.known("metric", metric, METRICS)
    column = _Column(
        name=reader.text("name"),
        metrics=metrics,
        protocol=read_protocol(reader, [None]),
        groups=read_groups(reader),
        needs=read_needs(reader),
        data=read_data(reader, required=False),
    )
    reader.done()
    return column


def _row(
    row: Reader, item: str, part: str, protocol: str | None, columns: Sequence[_Column]
) -> Iterator[Cell]:
    """Yield a row's cells, one for each column in which the paper prints something."""
    title, method = row.text("title"), row.text("method", None)
    cited, note, needs = row.text("cited", ""), row.text("note", ""), read_needs(row)
    data = read_data(row, required=False)
    settings, source = row.scalars("settings", {}), row.choice("source", SOURCES, "")
    if bool(settings) != bool(source):
        raise row.error("source must say where settings come from, if there are any.")
    printed = list(_printed(row, [metric for column in columns for metric in column.metrics]))
    row.done()
    left = iter(printed)
    for column in columns:
        values = dict(itertools.islice(left, len(column.metrics)))
        reported = {metric: value for metric, value in values.items() if value is not None}
        if not reported:
            continue
        trained = (protocol or column.protocol) if method else None
        yield Cell(
            item=item,
            name="/".join((part, slug(title), *([] if data else [column.name]))),
            title=title,
            part=part,
            **(data or column.data),
            protocol=trained,
            method=method,
            settings=settings,
            source=source,
            needs=all_needs(trained, column.needs, needs),
            reported=reported,
            groups=column.groups,
            cited=cited,
            note=note,
        )


def _printed(row: Reader, metrics: Sequence[str]) -> Iterator[tuple[str, Reported | None]]:
    """Yield each metric of a row with the number that the paper prints, if it does."""
    means = row.numbers("mean")
    spreads = row.numbers("spread", ["-"] * len(metrics))
    if not len(means) == len(spreads) == len(metrics):
        raise row.error(
            f"mean and spread must have {len(metrics)} entries each, "
            f"got {len(means)} and {len(spreads)}."
        )
    for metric, mean, spread in zip(metrics, means, spreads, strict=True):
        high = METRICS[metric].high
        for value in (mean, spread):
            if value is not None and not 0 <= value <= high:
                raise row.error(f"{metric}={value:g} must be in [0, {high:g}].")
        if mean is None and spread is not None:
            raise row.error(f"{metric} has a spread but no mean.")
        yield metric, None if mean is None else Reported(mean, spread)


def _with_exceptions(top: Reader, cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    by_name = {cell.name: cell for cell in cells}
    for entry in top.tables("exceptions", []):
        found = Inconsistency(
            code=entry.text("code"),
            kind=entry.choice("kind", _INCONSISTENCIES),
            what=entry.text("what"),
            groups=read_groups(entry),
        )
        if (found.kind == "split") != (found.groups is not None):
            raise entry.error("a 'split', and nothing else, has groups.")
        for name in entry.texts("cells"):
            cell = by_name[entry.known("cell", name, by_name)]
            by_name[name] = replace(
                cell,
                exceptions=(*cell.exceptions, found),
                groups=found.groups or cell.groups,
            )
        entry.done()
    return tuple(by_name.values())
