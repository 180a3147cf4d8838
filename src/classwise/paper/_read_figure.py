"""Reading a figure of the paper."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from typing import Any

from classwise.paper._parts import (
    all_needs,
    number_of,
    read_data,
    read_needs,
    read_protocol,
    slug,
    unique,
)
from classwise.paper._toml import Reader, Scalar, read_toml
from classwise.paper.schema import KINDS, METRICS, SOURCES, Cell, Figure, Panel, Reported, Series

__all__ = ["figure_from"]

_UNVARIED = ("epoch", "confidence", "class")
_QUANTITIES = ("balanced", "train_accuracy", "train_ratio", "ece", "accuracy", "slope", "bound")
_GROUPS = ("all", "many", "medium", "few")
_CHOSEN_HERE = "unknown: chosen here"

_Quoted = Mapping[str, Mapping[str, Reported]]


def figure_from(file: Traversable) -> Figure:
    """Return the figure or study that a TOML file describes.

    Raises:
        DataError: the file is missing or not in the format; says where.
    """
    top = read_toml(file)
    name = file.name.removesuffix(".toml")
    paper = not name.startswith("study-")
    if paper:
        number_of(top, file, "figure")
    quoted = dict(_quoted(reader) for reader in top.tables("quoted", []))
    figure = Figure(
        name=name,
        label=top.text("label") if paper else "",
        title=top.text("title"),
        kind=top.choice("kind", KINDS),
        panels=tuple(_panel(r, name, quoted) for r in top.tables("panels")),
        reported=top.choice("reported", ("none", "text")) if paper else "none",
        note=top.text("note", ""),
    )
    top.done()
    names = [cell.name for cell in unique(top, figure.cells)]
    for cell in quoted:
        top.known("quoted cell", cell, names)
    if bool(quoted) != (figure.reported == "text"):
        raise top.error("reported must be 'text' exactly where something is quoted.")
    return figure


def _quoted(reader: Reader) -> tuple[str, dict[str, Reported]]:
    name = reader.text("cell")
    numbers = {m: reader.number(m) for m in METRICS if m in reader.values}
    reader.done()
    return name, {metric: Reported(value) for metric, value in numbers.items()}


def _panel(reader: Reader, item: str, quoted: _Quoted) -> Panel:
    protocol = read_protocol(reader, [])
    groups = reader.texts("groups", ())
    for group in groups:
        reader.known("groups", group, _GROUPS)
    name, x, hue = reader.text("name"), reader.text("x"), reader.text("hue", "")
    common = {
        "item": item,
        "part": name,
        "protocol": protocol,
        "needs": all_needs(protocol, read_needs(reader)),
        **read_data(reader, required=True),
    }
    panel = Panel(
        name=name,
        title=reader.text("title"),
        x=x,
        y=reader.choice("y", _QUANTITIES),
        hue=hue,
        groups=groups,
        series=tuple(_series(r, common, quoted) for r in reader.tables("series")),
        best_at=reader.number("best_at", None),
    )
    reader.done()
    axes = {x, hue} - {"", *_UNVARIED}
    for series in panel.series:
        if any(not set(cell.at) <= axes for cell in series.cells):
            raise reader.error(f"series {series.title!r} varies what is on no axis.")
    return panel


def _series(reader: Reader, common: Mapping[str, Any], quoted: _Quoted) -> Series:
    sweep, settings = reader.lists("sweep"), reader.scalars("settings", {})
    source = reader.choice("source", (*SOURCES, _CHOSEN_HERE), "")
    title = reader.text("title")
    own = {
        **common,
        "title": title,
        "method": reader.text("method"),
        "settings": settings,
        "source": source,
        "note": reader.text("note", ""),
    }
    reader.done()
    if bool(source) != bool(sweep or settings):
        raise reader.error("source must say where settings and sweep come from, if there are any.")
    cells = []
    for values in itertools.product(*sweep.values()):
        at: dict[str, Scalar] = dict(zip(sweep, values, strict=True))
        point = ",".join(f"{key}={value:g}" for key, value in at.items())
        name = "/".join(filter(None, (common["part"], slug(title), point)))
        cells.append(Cell(**own, name=name, at=at, reported=quoted.get(name, {})))
    return Series(title, tuple(cells))
