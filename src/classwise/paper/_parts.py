"""What the files of tables and figures have in common: data, protocols, needs, names."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from importlib.resources.abc import Traversable
from typing import Any

from classwise.paper._toml import FILES, Reader, read_toml
from classwise.paper.schema import Cell, Need, PaperProtocol

__all__ = [
    "DATASETS",
    "IMBALANCES",
    "all_needs",
    "needs",
    "number_of",
    "protocols",
    "read_data",
    "read_groups",
    "read_needs",
    "read_protocol",
    "slug",
    "unique",
]

DATASETS = ("cifar10", "cifar100", "fashion-mnist", "imagenet-lt", "inaturalist")
IMBALANCES = ("exp", "step", "as-is")


@functools.cache
def needs() -> Mapping[str, Need]:
    """Return what runs may want that does not come with classwise, by name."""
    found = {}
    for name, entry in read_toml(FILES / "needs.toml").named():
        found[name] = Need(name, entry.text("what"), entry.truth("expands"))
        entry.done()
    return found


@functools.cache
def protocols() -> Mapping[str, PaperProtocol]:
    """Return the paper's training protocols, by name."""
    found = {}
    for name, entry in read_toml(FILES / "protocols.toml").named():
        found[name] = PaperProtocol(
            name=name,
            title=entry.text("title"),
            source=entry.text("source"),
            train=entry.text("train", ""),
            needs=read_needs(entry),
            settings=entry.scalars("settings", {}),
        )
        entry.done()
        if bool(found[name].train) == bool(found[name].settings):
            raise entry.error("a protocol has either 'train' or 'settings'.")
    return found


def slug(title: str) -> str:
    """Return a title as part of a name.

    >>> slug("CVS+ADRW (Huber)")
    'cvs+adrw-huber'
    """
    return re.sub(r"[^a-z0-9+]+", "-", title.lower()).strip("-")


def number_of(top: Reader, file: Traversable, kind: str) -> int:
    """Read the number of a table or figure, which is in the name of its file as well."""
    number = top.whole("number")
    if file.name != f"{kind}-{number}.toml":
        raise top.error(f"number={number} does not fit the name of the file.")
    return number


def read_data(reader: Reader, *, required: bool) -> dict[str, Any]:
    """Read data set, imbalance and ratio; nothing where there is no data set."""
    dataset = reader.choice("dataset", DATASETS, *([] if required else [None]))
    imbalance = reader.choice("imbalance", IMBALANCES, None)
    ratio = reader.number("ratio", None)
    if dataset is None:
        return {}
    if imbalance is None or (ratio is None) != (imbalance == "as-is"):
        raise reader.error("imbalance must be 'as-is', or 'exp' or 'step' with a ratio.")
    if ratio is not None and ratio <= 1:
        raise reader.error(f"ratio={ratio:g} must be more than 1.")
    return {"dataset": dataset, "imbalance": imbalance, "ratio": ratio}


def read_groups(reader: Reader) -> tuple[int, ...] | None:
    """Read how many classes have many, medium and few shots."""
    numbers = reader.numbers("groups", ())
    if "groups" not in reader.values:
        return None
    if len(numbers) != 3 or not all(n and n > 0 and n == int(n) for n in numbers):
        raise reader.error("groups must be three numbers of classes: many, medium, few.")
    return tuple(int(n) for n in numbers if n)


def read_needs(reader: Reader) -> tuple[Need, ...]:
    """Read what is wanted."""
    wanted = reader.texts("needs", ())
    return tuple(needs()[reader.known("needs", name, needs())] for name in wanted)


def read_protocol(reader: Reader, default: Any) -> str | None:
    """Read the name of a protocol."""
    return reader.choice("protocol", protocols(), *default)


def all_needs(protocol: str | None, *lists: Iterable[Need]) -> tuple[Need, ...]:
    """Return the needs of a protocol and others, each once."""
    first = () if protocol is None else protocols()[protocol].needs
    return tuple(dict.fromkeys(itertools.chain(first, *lists)))


def unique(top: Reader, cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Return the cells if their names differ."""
    by_name: dict[str, Cell] = {}
    for cell in cells:
        if cell.name in by_name:
            raise top.error(f"there are two cells {cell.name!r}.")
        by_name[cell.name] = cell
    return tuple(by_name.values())
