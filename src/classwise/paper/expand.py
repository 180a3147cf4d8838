"""From the paper's cells to runs: which cells, and the configuration of each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from classwise._checks import known_name, nearest, whole_number
from classwise.errors import ArgumentError, StateError
from classwise.paper._parts import protocols
from classwise.paper.hyper import UNKNOWN, Value, hyper
from classwise.paper.schema import Cell, Figure, Table
from classwise.recipes import Recipe
from classwise.train.config import RunConfig, check, with_values
from classwise.train.protocols import apply

__all__ = ["KEYS", "expand", "select", "unknowns"]

KEYS = ("dataset", "imbalance", "ratio", "protocol", "method", "part", "cell")
"""What cells are selected by."""

_LISTS = {
    "imagenet-lt": "ImageNet_LT_train.txt",
    "inaturalist": "iNaturalist18_train.txt",
}


def _uri(dataset: str) -> str:
    """Return where a data set lies: one of lists in a folder of its name in CLASSWISE_DATA."""
    if dataset not in _LISTS:
        return dataset
    folder = Path(os.environ.get("CLASSWISE_DATA", ".")) / dataset
    return f"list:{folder / _LISTS[dataset]}@{folder}"


def expand(cell: Cell, seed: int = 0) -> RunConfig:
    """Return the configuration of one run of a cell.

    It is the cell's protocol, its hyper-parameters (``hyper.toml``) and what the cell itself sets,
    in this order.

    Args:
        cell: of a table or figure.
        seed: of the run.

    Raises:
        StateError: the training loop cannot express the run; says what is needed.

    >>> from classwise.paper.load import load
    >>> config = expand(select(load("table-3"), "method=ldam+drw,dataset=cifar100")[0], seed=1)
    >>> config.data.imbalance, config.optim.epochs, config.method.max_margin, config.seed
    ('exp:100', 200, 0.5, 1)
    """
    if not cell.expands:
        wanted = "; ".join(need.what for need in cell.needs if not need.expands)
        raise StateError(f"{cell.item} {cell.name} needs {wanted}.")
    assert cell.method is not None
    assert cell.protocol is not None
    ratio = "" if cell.ratio is None else f":{cell.ratio:g}"
    config = apply(RunConfig(), protocols()[cell.protocol].train)
    config = with_values(
        config,
        {
            "data.source": _uri(cell.dataset),
            "data.imbalance": cell.imbalance + ratio,
            "method.method": cell.method,
            **{name: value.value for name, value in hyper(cell).items()},
            "seed": whole_number("seed", seed, low=0),
        },
    )
    check(config)
    Recipe.parse(config.method.method, **config.method.hyper)
    return config


def unknowns(cell: Cell) -> dict[str, Value]:
    """Return the settings of a cell that the paper leaves open, with the values to choose from."""
    return {name: value for name, value in hyper(cell).items() if value.source == UNKNOWN}


def select(item: Table | Figure, where: str | Mapping[str, str] = "") -> tuple[Cell, ...]:
    """Return the cells of a table or figure that a condition picks.

    Args:
        item: the table or figure.
        where: ``"dataset=cifar100,ratio=100,method=ce|vs+drw"``: all conditions must hold, ``|``
            separates alternatives; see ``KEYS``. Empty picks all.

    Raises:
        ArgumentError: a key or value that there is not, or conditions that no cell fulfils; names
            the legal ones.

    >>> from classwise.paper.load import load
    >>> [cell.title for cell in select(load("table-4"), "protocol=c,ratio=10,method=ce|vs")]
    ['CE', 'VS']
    """
    conditions = _parsed(where) if isinstance(where, str) else dict(where)
    chosen = item.cells
    for key, values in conditions.items():
        known_name(f"where: key of {item.name}", key, KEYS)
        legal = list(dict.fromkeys(_value(cell, key) for cell in item.cells))
        legal = [value for value in legal if value]
        wanted = values.split("|")
        for value in wanted:
            if value not in legal:
                shown = ", ".join(legal[:20]) + (", ..." if len(legal) > 20 else "")
                raise ArgumentError(
                    f"{item.name} has no cell with {key}={value!r}{nearest(value, legal)} "
                    f"Legal: {shown}."
                )
        chosen = tuple(cell for cell in chosen if _value(cell, key) in wanted)
    if not chosen:
        joined = ", ".join(f"{key}={value}" for key, value in conditions.items())
        raise ArgumentError(
            f"{item.name} has cells for each of these, but none for all together: {joined}. "
            f"It has {_combinations(item.cells, conditions)}."
        )
    return chosen


def _parsed(where: str) -> dict[str, str]:
    conditions: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in where.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not value or key in conditions:
            raise ArgumentError(
                f"where={where!r}: {part!r} must be key=value, each key once. "
                f"Keys: {', '.join(KEYS)}."
            )
        conditions[key.strip()] = value.strip()
    return conditions


def _value(cell: Cell, key: str) -> str:
    if key == "cell":
        return cell.name
    value = getattr(cell, key)
    return "" if value is None else f"{value:g}" if key == "ratio" else str(value)


def _combinations(cells: Iterable[Cell], keys: Iterable[str]) -> str:
    keys = list(keys)
    found = dict.fromkeys(" ".join(_value(cell, key) for key in keys) for cell in cells)
    return "; ".join(list(found)[:12]) + ("; ..." if len(found) > 12 else "")
