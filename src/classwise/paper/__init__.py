"""The paper as data: what its tables and figures ran, what they reported, how to show them.

Drawing (``classwise.paper.figures``) and rows from runs (``classwise.paper.rows``) are imported by
those who need them.
"""

from __future__ import annotations

from classwise.paper.expand import expand, select, unknowns
from classwise.paper.hyper import hyper
from classwise.paper.load import item_names, list_exhibits, load
from classwise.paper.results import Result
from classwise.paper.schema import Cell, Figure, Reported, Table
from classwise.paper.show import show

__all__ = [
    "Cell",
    "Figure",
    "Reported",
    "Result",
    "Table",
    "expand",
    "hyper",
    "item_names",
    "list_exhibits",
    "load",
    "select",
    "show",
    "unknowns",
]
