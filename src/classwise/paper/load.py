"""The paper's tables and figures, read from the TOML files beside this module.

``tables/table-3.toml`` to ``table-7.toml`` and ``figures/figure-1.toml`` to ``figure-12.toml`` are
numbered in the order of the paper's source; ``studies/study-*.toml`` are experiments of our own.
Each holds the runs, the numbers that the paper prints and how they are shown; ``protocols.toml``,
``needs.toml`` and ``hyper.toml`` hold what is common.
"""

from __future__ import annotations

import functools
from typing import Any

from classwise._checks import known_name
from classwise.paper._parts import needs, protocols
from classwise.paper._read_figure import figure_from
from classwise.paper._read_table import table_from
from classwise.paper._toml import FILES
from classwise.paper.schema import Figure, Table

__all__ = [
    "figure_from",
    "item_names",
    "list_exhibits",
    "load",
    "load_all",
    "needs",
    "protocols",
    "table_from",
]


@functools.cache
def item_names() -> tuple[str, ...]:
    """Return the names of all tables and figures, in the order of the paper's source, and studies.

    >>> item_names()[:2], item_names()[16]
    (('table-3', 'table-4'), 'figure-12')
    """
    names = []
    for folder in ("tables", "figures", "studies"):
        found = [f.name.removesuffix(".toml") for f in (FILES / folder).iterdir()]
        # "figure-7" before "figure-12"
        names += sorted(found, key=lambda name: (len(name) if folder != "studies" else 0, name))
    return tuple(names)


def load(name: str) -> Table | Figure:
    """Return a table or figure of the paper, or a study.

    Args:
        name: ``"table-3"``, ``"figure-7"``, ``"study-slopes"``, or a label in LaTeX,
            ``"tab:caifar"``.

    >>> table = load("table-3")
    >>> table.label, len(table.cells), str(table.cells[0].reported["balanced"])
    ('tab:caifar', 136, '71.5 ± 0.4')
    """
    if isinstance(name, str) and ":" in name:
        by_label = {item.label: item for item in load_all()}
        return by_label[known_name("label", name, by_label)]
    return _load(known_name("item", name, item_names()))


def load_all() -> tuple[Table | Figure, ...]:
    """Return all tables and figures, in the order of the paper's source, and our studies."""
    return tuple(_load(name) for name in item_names())


def list_exhibits() -> list[dict[str, Any]]:
    """Return one row for each table, figure and study: what it is, how many runs, what they need.

    >>> rows = list_exhibits()
    >>> rows[0]["name"], rows[0]["runs"], rows[2]["needs"]
    ('table-3', 136, 'imagenet-lt, elsewhere, inaturalist, clip, peft, fivecrop')
    """
    rows = []
    for item in load_all():
        wanted = dict.fromkeys(need.name for cell in item.cells for need in cell.needs)
        rows.append(
            {
                "name": item.name,
                "label": item.label,
                "title": item.title,
                "runs": len(item.cells),
                "trainable": sum(cell.expands for cell in item.cells),
                "needs": ", ".join(wanted),
            }
        )
    return rows


@functools.cache
def _load(name: str) -> Table | Figure:
    if name.startswith("table"):
        return table_from(FILES / "tables" / f"{name}.toml")
    folder = "studies" if name.startswith("study-") else "figures"
    return figure_from(FILES / folder / f"{name}.toml")
