"""``csv:FILE#target=COLUMN``: tables, with numeric and categorical columns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from classwise._checks import known_name
from classwise.data._text import whole
from classwise.data.dataset import DataSet, Split
from classwise.data.findings import Findings, shown
from classwise.data.sources._address import Address
from classwise.data.sources._assemble import assemble
from classwise.data.sources._csv import Table, read_csv
from classwise.data.sources._files import siblings
from classwise.data.splits import held_out
from classwise.errors import ArgumentError, DataError

__all__ = ["OPTIONS", "read"]

OPTIONS = ("target", "drop")

_MISSING = frozenset(("", "na", "n/a", "nan", "null", "?"))
_MOST_CLASSES = 10_000
_MOST_LEVELS = 256
_FEW_LEVELS = 20  # no more than these are never too many, however few rows there are
_MOSTLY = 0.9  # a column with more numbers than this is meant to be of numbers


@dataclass(frozen=True)
class _Numeric:
    """A column of numbers, to be standardised; std is 0 where all are equal."""

    name: str
    mean: float
    std: float

    def encode(self, table: Table, unseen: Counter[str]) -> np.ndarray:
        values = np.array([_number(cell) for cell in table.column(self.name)], dtype=np.float64)
        return ((values - self.mean) / (self.std or 1.0))[:, None]


@dataclass(frozen=True)
class _Categorical:
    """A column of words, each of which becomes a column of zeros and ones."""

    name: str
    levels: tuple[str, ...]

    def encode(self, table: Table, unseen: Counter[str]) -> np.ndarray:
        cells = np.array(table.column(self.name), dtype=object)
        coded = cells[:, None] == np.array(self.levels, dtype=object)[None, :]
        unseen[self.name] += int((~coded.any(1)).sum())
        return coded.astype(np.float64)


def read(address: Address, findings: Findings) -> DataSet:
    """Read a table, and those of validation and test beside X_train.csv.

    Numbers are standardised by mean and deviation of the training rows, in double precision; words
    become one column of zeros and ones for each that training rows have.
    """
    path = address.required_place("csv:FILE#target=COLUMN")
    tables = {"train": read_csv(path, findings)}
    header = tables["train"].header
    target = _target(address, header)
    dropped = [name for name in address.options.get("drop", "").split(",") if name]
    features = [name for name in header if name not in (target, *dropped)]
    for name in dropped:
        known_name("drop", name, [column for column in header if column != target])
    if not features:
        raise DataError(f"{shown(path)} has no column beside the target.")
    for role, beside in siblings(path).items():
        tables[role] = read_csv(beside, findings)
        if tables[role].header != header:
            raise DataError(f"{shown(beside)} has other columns than {shown(path.name)}.")
    tables = {
        role: _complete(table, (*features, target), findings) for role, table in tables.items()
    }
    class_names = _class_names(tables["train"], target)
    notes = []
    if len(tables) == 1:
        tables, note = _parted(tables["train"], target, class_names)
        notes.append(note)
    columns = [_column(tables["train"], name) for name in features]
    for column in columns:
        if isinstance(column, _Numeric) and column.std == 0:
            findings.add("column with one value", path.name, column.name, fatal=False)
    splits = {
        role: _split(role, table, columns, (target, class_names), findings, notes)
        for role, table in tables.items()
    }
    width = splits["train"].input_shape[0]
    return assemble(
        path.stem,
        class_names,
        splits["train"],
        splits.get("val"),
        splits.get("test"),
        statistics=((0.0,) * width, (1.0,) * width),
        notes=notes,
    )


def _parted(table: Table, target: str, class_names: Sequence[str]) -> tuple[dict[str, Table], str]:
    """Hold out test rows before anything is measured on the rest."""
    known = {name: label for label, name in enumerate(class_names)}
    labels = torch.tensor([known[cell] for cell in table.column(target)])
    kept, held, note = held_out(table.path.stem, labels)
    return {"train": table.take(kept.tolist()), "test": table.take(held.tolist())}, note


def _split(
    role: str,
    table: Table,
    columns: Sequence[_Numeric | _Categorical],
    target: tuple[str, Sequence[str]],
    findings: Findings,
    notes: list[str],
) -> Split:
    table = _sound(table, columns, target, findings)
    unseen: Counter[str] = Counter()
    values = np.concatenate([column.encode(table, unseen) for column in columns], axis=1)
    for name, times in (+unseen).items():
        notes.append(
            f"{times} rows of the {role} split have a value of {shown(name)!r} that no training "
            "row has: zeros stand for it."
        )
    known = {name: label for label, name in enumerate(target[1])}
    labels = torch.tensor([known[cell] for cell in table.column(target[0])])
    return Split(torch.from_numpy(values.astype(np.float32)), labels)


def _sound(
    table: Table,
    columns: Sequence[_Numeric | _Categorical],
    target: tuple[str, Sequence[str]],
    findings: Findings,
) -> Table:
    """Return the rows that can be encoded; tell about the others."""
    wrong: set[int] = set()
    for column in columns:
        if isinstance(column, _Numeric):
            for i, cell in enumerate(table.column(column.name)):
                if _number(cell) is None:
                    where = _place(table, column.name)
                    detail = f"line {table.lines[i]}: {cell}"
                    findings.add("value that is no finite number", where, detail)
                    wrong.add(i)
    for i, cell in enumerate(table.column(target[0])):
        if cell not in target[1]:
            detail = f"line {table.lines[i]}: {cell}"
            findings.add("class that is not in train", table.path.name, detail)
            wrong.add(i)
    if len(wrong) == len(table.rows):
        findings.check(str(table.path))
    return table.take([i for i in range(len(table.rows)) if i not in wrong])


def _place(table: Table, column: str) -> str:
    return f"{table.path.name}, column {shown(column)!r}"


def _target(address: Address, header: Sequence[str]) -> str:
    listed = ", ".join(shown(name) for name in header[:20])
    target = address.options.get("target")
    if not target:
        raise ArgumentError(
            f"csv needs the column to predict: {address.scheme}:{shown(address.place)}"
            f"#target=COLUMN, where COLUMN is one of {listed}."
        )
    return known_name("target", target, header)


def _complete(table: Table, used: Sequence[str], findings: Findings) -> Table:
    """Return the rows that have all values; tell about the others."""
    kept = []
    places = [(table.header.index(name), _place(table, name)) for name in used]
    for position, row in enumerate(table.rows):
        lacking = [place for i, place in places if row[i].lower() in _MISSING]
        for place in lacking:
            findings.add("missing value", place, f"line {table.lines[position]}")
        if not lacking:
            kept.append(position)
    if not kept:
        findings.check(str(table.path))
    return table.take(kept)


def _class_names(table: Table, target: str) -> list[str]:
    names = set(table.column(target))
    if len(names) < 2:
        raise DataError(f"{shown(table.path)}: the target {shown(target)!r} has one value only.")
    if len(names) > min(_MOST_CLASSES, len(table.rows) / 2):
        raise DataError(
            f"{shown(table.path)}: the target {shown(target)!r} has {len(names)} values in "
            f"{len(table.rows)} rows: it names no classes."
        )
    numeric = all(whole(name) is not None for name in names)
    return sorted(names, key=lambda name: (int(name) if numeric else 0, name))


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in cell else None


def _column(table: Table, name: str) -> _Numeric | _Categorical:
    cells = table.column(name)
    numbers = [number for number in map(_number, cells) if number is not None]
    if len(numbers) > _MOSTLY * len(cells):
        values = np.array(numbers, dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = float(values.mean()), float(values.std())
        if not math.isfinite(std):
            raise DataError(f"{_place(table, name)}: numbers are too large to be standardised.")
        constant = std <= 1e-12 * abs(mean)  # the rest is rounding
        return _Numeric(name, mean, 0.0 if constant else std)
    levels = sorted(set(cells))
    if len(levels) > _MOST_LEVELS or _FEW_LEVELS < len(levels) > len(cells) / 2:
        raise DataError(
            f"{_place(table, name)}: {len(levels)} different words in {len(cells)} rows: names "
            "rather than categories. Leave the column out with #drop=, or mend it if it should be "
            "numbers."
        )
    return _Categorical(name, tuple(levels))
