"""Hyper-parameters of the paper's runs, each with its source: the rules of ``hyper.toml``."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources.abc import Traversable

from classwise._checks import known_name
from classwise.errors import ClasswiseError, DataError
from classwise.paper._parts import protocols
from classwise.paper._toml import FILES, Reader, Scalar, read_toml
from classwise.paper.schema import SOURCES, Cell
from classwise.recipes import BASES, SUFFIXES, Recipe
from classwise.train.config import RunConfig, with_values

__all__ = ["UNKNOWN", "Rule", "Value", "hyper", "hyper_names", "rules", "rules_from"]

UNKNOWN = "unknown: tune"

_KEYS = ("method", "setting", "protocol")
_TRAINING = (
    "slopes",
    "warmup",
    "defer_at",
    "weight_decay",
    "deferred_weight_decay",
    "sam",
    "deferred_sam",
)


@dataclass(frozen=True)
class Value:
    """A setting of a run.

    Args:
        value: that the run takes.
        source: one of ``SOURCES``, or "unknown: chosen here" for the axis of a figure.
        note: more on it.
        grid: values to choose from on a validation split, where the source is unknown.
    """

    value: Scalar
    source: str
    note: str = ""
    grid: tuple[Scalar, ...] = ()


@dataclass(frozen=True)
class Rule:
    """Values that hold for some runs.

    Args:
        where: for "method", "setting" and "protocol" the legal values; a key that is absent holds
            for all.
        values: by name.
    """

    where: Mapping[str, tuple[Scalar, ...]]
    values: Mapping[str, Value]

    def holds(self, cell: Cell) -> bool:
        """Return whether the rule is for this run."""
        have = {"method": cell.method, "setting": cell.setting, "protocol": cell.protocol}
        return all(have[key] in legal for key, legal in self.where.items())


@dataclass(frozen=True)
class _Entry:
    """A rule as it stands in the file."""

    where: Mapping[str, tuple[Scalar, ...]]
    values: Mapping[str, Scalar]
    grid: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)


def hyper_names(method: str) -> tuple[str, ...]:
    """Return the hyper-parameters that a method has.

    >>> hyper_names("vs+tla+adrw")
    ('tau', 'gamma', 'nu', 'deferred_tau')
    """
    Recipe.parse(method)
    base, *suffixes = method.split("+")
    names = (*BASES[base].hyper, *(name for suffix in suffixes for name in SUFFIXES[suffix]))
    return (*names, "deferred_tau") if "tla" in suffixes and "tau" in names else names


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Return the rules for the paper's runs; a later one takes the place of an earlier."""
    return rules_from(FILES / "hyper.toml")


def rules_from(file: Traversable) -> tuple[Rule, ...]:
    """Return the rules of a TOML file.

    Raises:
        DataError: the file is missing or not in the format; says where.
    """
    top = read_toml(file)
    found = tuple(_rule(reader) for reader in top.tables("rules"))
    top.done()
    return found


def _rule(reader: Reader) -> Rule:
    entry = _Entry(reader.lists("where"), reader.scalars("set"), reader.lists("grid"))
    source = reader.choice("source", SOURCES)
    note = reader.text("note", "")
    reader.done()
    try:
        _check(entry)
    except ClasswiseError as error:
        raise reader.error(str(error)) from error
    if set(entry.grid) != (set(entry.values) if source == UNKNOWN else set()):
        raise reader.error(f"{UNKNOWN!r} has a grid for all that is set, other sources have none.")
    values = {
        name: Value(value, source, note, entry.grid.get(name, ()))
        for name, value in entry.values.items()
    }
    return Rule(entry.where, values)


def _check(entry: _Entry) -> None:
    """Raise for keys, methods, names and values that mean nothing."""
    for key in entry.where:
        known_name("where", key, _KEYS)
    for name in entry.where.get("protocol", ()):
        known_name("protocol", name, protocols())
    methods = [str(method) for method in entry.where.get("method", ())]
    common = set.intersection(*(set(hyper_names(m)) for m in methods)) if methods else set()
    legal = (*sorted(common), *_TRAINING)
    for name, value in entry.values.items():
        known_name("set", name, legal)
        for one in (value, *entry.grid.get(name, ())):
            config = with_values(RunConfig(), {name: one})
            for method in methods if name in common else ():
                Recipe.parse(method, **config.method.hyper)


def hyper(cell: Cell, among: Sequence[Rule] | None = None) -> dict[str, Value]:
    """Return the settings of a cell that depend on method, data and protocol, with their sources.

    What the cell itself sets (``settings``, ``at``) comes last and takes their place.

    Args:
        cell: of a table or figure, with a method.
        among: the rules; None is the paper's.

    Raises:
        DataError: no rule says what a hyper-parameter of the method is.

    >>> from classwise.paper.load import load
    >>> cvs = load("table-3").cells[76]
    >>> cvs.name, hyper(cvs)["tau"].value, hyper(cvs)["tau"].source
    ('a/cvs+adrw/cifar100-exp-100', 0.9, 'paper')
    """
    found: dict[str, Value] = {}
    for rule in rules() if among is None else among:
        if rule.holds(cell):
            found.update(rule.values)
    for settings in (cell.settings, cell.at):
        found.update({name: Value(v, cell.source, cell.note) for name, v in settings.items()})
    if cell.method is not None:
        for name in hyper_names(cell.method):
            if name not in found and name != "deferred_tau":
                raise DataError(f"no rule says what {name} of {cell.item} {cell.name} is.")
    return found
