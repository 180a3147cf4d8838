"""Results as a CSV file: one row for each run and cell, written by the tool, checked when read.

Percentages are of the test split; epochs count from 0. A file is replaced as a whole, under a lock
on its folder, so that it is never half a row longer, and two processes may append at once.
"""

from __future__ import annotations

import csv
import dataclasses
import datetime
import io
import math
import os
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from classwise._checks import known_name
from classwise.errors import ArgumentError, DataError
from classwise.paper.load import item_names, load

__all__ = ["COLUMNS", "Result", "append", "canonical", "read", "validate"]

_PERCENT = {"high": 100.0}
_OPTIONAL_PERCENT = {"high": 100.0, "optional": True}

_SLACK = 0.1
"""Points by which numbers of one run may disagree: devices do not add up twice the same way."""


@dataclass(frozen=True)
class Result:
    """One row: what one run says of one cell.

    Args:
        key: of the run, as the store calls it.
        table: the table or figure, ``"table-3"``, or a study of our own.
        cell: its cell.
        method: in the grammar of recipes.
        hyper: what the method was trained with, see ``canonical``.
        seed: of the run.
        epochs: trained.
        last: balanced accuracy of the last epoch.
        best: of the best epoch; None where it was not measured on the test split.
        best_epoch: which that is.
        selected_on: the split that it was chosen on.
        many: accuracy of the classes with many shots, last epoch; None if there are none.
        medium: likewise.
        few: likewise.
        best_many: the same at the best epoch.
        best_medium: likewise.
        best_few: likewise.
        val: balanced accuracy on the validation split, last epoch; None without one.
        ece: expected calibration error, last epoch.
        ece_many: of the classes with many shots.
        ece_medium: likewise.
        ece_few: likewise.
        seconds: of training.
        images_per_second: while training.
        device: that trained.
        precision: of the training.
        revision: of the code.
        versions: of Python and the libraries, as ``hyper`` is written.
        data_checksum: of the data and the samples that were taken.
        date: when training began, ISO 8601 with an offset.
    """

    key: str
    table: str
    cell: str
    method: str
    hyper: str
    seed: int
    epochs: int = field(metadata={"low": 1})
    last: float = field(metadata=_PERCENT)
    best: float | None = field(metadata=_OPTIONAL_PERCENT)
    best_epoch: int | None = field(metadata={"optional": True})
    selected_on: str = field(metadata={"optional": True})
    many: float | None = field(metadata=_OPTIONAL_PERCENT)
    medium: float | None = field(metadata=_OPTIONAL_PERCENT)
    few: float | None = field(metadata=_OPTIONAL_PERCENT)
    best_many: float | None = field(metadata=_OPTIONAL_PERCENT)
    best_medium: float | None = field(metadata=_OPTIONAL_PERCENT)
    best_few: float | None = field(metadata=_OPTIONAL_PERCENT)
    val: float | None = field(metadata=_OPTIONAL_PERCENT)
    ece: float | None = field(metadata=_OPTIONAL_PERCENT)
    ece_many: float | None = field(metadata=_OPTIONAL_PERCENT)
    ece_medium: float | None = field(metadata=_OPTIONAL_PERCENT)
    ece_few: float | None = field(metadata=_OPTIONAL_PERCENT)
    seconds: float
    images_per_second: float
    device: str
    precision: str
    revision: str
    versions: str
    data_checksum: str
    date: str


_FIELDS = {f.name: f for f in dataclasses.fields(Result)}
_TYPES = typing.get_type_hints(Result)
COLUMNS = tuple(_FIELDS)
"""Columns of a file, in order."""


def canonical(values: Mapping[str, Any]) -> str:
    """Return settings as one text, equal exactly where the settings are.

    >>> canonical({"tau": 1.0, "gamma": 0.05, "slopes": "stable"})
    'gamma=0.05;slopes=stable;tau=1'
    """
    parts = []
    for name in sorted(values):
        value = values[name]
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        text = f"{value:.12g}" if number else str(value)
        if not re.fullmatch(r"\w[\w-]*", name) or not text or re.search(r"[;\s]", text):
            raise ArgumentError(f"{name}={value!r} cannot be written as name=value.")
        parts.append(f"{name}={text}")
    return ";".join(parts)


def validate(row: Result) -> None:
    """Raise for a row with a wrong type, a value out of range or a cell that does not exist."""
    for name in COLUMNS:
        _check(name, getattr(row, name))
    _check_canonical("hyper", row.hyper, _number_or_text)
    _check_canonical("versions", row.versions, str)  # 2.10 is no number
    if row.selected_on not in ("", "val", "test"):
        raise DataError(f"selected_on={row.selected_on!r} must be val, test or empty.")
    if row.best is not None and (row.best_epoch is None or not row.selected_on):
        raise DataError("best needs best_epoch and selected_on.")
    _check_accuracies(row)
    if row.best_epoch is not None and row.best_epoch >= row.epochs:
        raise DataError(f"best_epoch={row.best_epoch} must be less than epochs={row.epochs}.")
    try:
        aware = datetime.datetime.fromisoformat(row.date).tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        raise DataError(f"date={row.date!r} must be ISO 8601 with an offset from UTC.")
    if row.table in item_names():
        known_name(f"cell of {row.table}", row.cell, [c.name for c in load(row.table).cells])


def _check_accuracies(row: Result) -> None:
    """Raise for accuracies that cannot be of one run: typed in, or of another row."""
    if row.selected_on == "test" and row.best is not None and row.best < row.last - _SLACK:
        raise DataError(f"best={row.best} is of the best epoch, and less than last={row.last}.")
    # All classes together are a mean of the groups, whatever the groups are.
    parts = {
        "last": (row.many, row.medium, row.few),
        "best": (row.best_many, row.best_medium, row.best_few),
    }
    for name, groups in parts.items():
        value, known = getattr(row, name), [group for group in groups if group is not None]
        if value is None or not known:
            continue
        low, high = min(known), max(known)
        if not low - _SLACK <= value <= high + _SLACK:
            raise DataError(
                f"{name}={value} must lie between the accuracies of the groups, {low} and {high}."
            )


def _check(name: str, value: Any) -> None:
    limits, kind = _FIELDS[name].metadata, _TYPES[name]
    if value is None and limits.get("optional") and kind is not str:
        return
    if kind is str:
        if not isinstance(value, str) or not (value or limits.get("optional")):
            raise DataError(f"{name}={value!r} must be text that is not empty.")
        if not value.isprintable():
            raise DataError(f"{name}={value!r} must be one printable line.")
        return
    whole = kind in (int, int | None)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise DataError(f"{name}={value!r} must be a {'whole ' if whole else ''}number.")
    low, high = limits.get("low", 0), limits.get("high", math.inf)
    if not (low <= value <= high and math.isfinite(value)):
        raise DataError(f"{name}={value!r} must be in [{low:g}, {high:g}].")


def _check_canonical(name: str, text: str, of: Callable[[str], float | str]) -> None:
    pairs = [part.partition("=") for part in text.split(";")]
    values = {key: of(value) for key, _, value in pairs}
    try:
        same = len(values) == len(pairs) and canonical(values) == text
    except ArgumentError:
        same = False
    if not same:
        raise DataError(f"{name}={text!r} must be name=value;name=value, sorted, each name once.")


def _number_or_text(text: str) -> float | str:
    try:
        value = float(text)
    except ValueError:
        return text
    return value if math.isfinite(value) else text


def read(path: Path | str) -> list[Result]:
    """Return the rows of a file, oldest first; all are checked.

    Raises:
        DataError: the file is missing, cut off, has other columns, a wrong value or a row twice;
            says in which line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"there is no file of results {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return _parsed(path, text)


def _parsed(path: Path, text: str) -> list[Result]:
    lines = text.split("\n")
    if lines[-1]:
        raise DataError(
            f"{path} is cut off in line {len(lines)}: a whole file ends with a newline."
        )
    table = csv.reader(lines[:-1], strict=True)
    rows: list[Result] = []
    try:
        _check_header(path, next(table, []))
        seen: dict[_Identity, int] = {}
        for cells in table:
            rows.append(_row(cells))
            _check_new(seen, rows[-1])
    except (DataError, ArgumentError, csv.Error) as error:
        if str(error).startswith(str(path)):
            raise
        raise DataError(f"{path}, line {table.line_num}: {error}") from error
    return rows


def _check_header(path: Path, header: Sequence[str]) -> None:
    foreign = [name for name in header if name not in COLUMNS]
    absent = [name for name in COLUMNS if name not in header]
    if tuple(header) == COLUMNS:
        return
    trouble = ", ".join(
        [f"{name!r} is no column of results" for name in foreign]
        + [f"{name!r} is missing" for name in absent]
    )
    raise DataError(f"{path}, line 1: {trouble or 'the columns are not in order'}.")


def _row(cells: Sequence[str]) -> Result:
    if len(cells) != len(COLUMNS):
        raise DataError(f"there are {len(cells)} values for {len(COLUMNS)} columns.")
    row = Result(**{name: _value(name, text) for name, text in zip(COLUMNS, cells, strict=True)})
    validate(row)
    return row


def _value(name: str, text: str) -> Any:
    kind = _TYPES[name]
    if kind is str:
        return text
    if not text:
        return None
    try:
        return int(text) if kind in (int, int | None) else float(text)
    except ValueError:
        return text


_Identity: TypeAlias = tuple[str, str, str]


def _identity(row: Result) -> _Identity:
    return row.table, row.cell, row.key


def _check_new(seen: dict[_Identity, int], row: Result) -> None:
    """Note in which line a row stands, or raise if one for the same run and cell stands above."""
    identity = _identity(row)
    if identity in seen:
        raise DataError(
            f"run {row.key} of {row.table} {row.cell} is in line {seen[identity]} already."
        )
    seen[identity] = len(seen) + 2


def append(path: Path | str, rows: Iterable[Result], *, skip_known: bool = False) -> int:
    """Add rows to a file, all or none, and return how many rows it then has.

    Args:
        path: the file; made if it is not there, but not its folder.
        rows: new ones.
        skip_known: leave out a run that the file has for this cell, instead of refusing it.
    """
    path = Path(path)
    from classwise.train.checkpoint import write_atomic  # noqa: PLC0415  (only where it is written)

    new = list(rows)
    with _locked(path.parent):
        known = read(path) if path.exists() else []
        seen: dict[_Identity, int] = {}
        for row in known:
            _check_new(seen, row)
        for row in new:
            validate(row)
            if skip_known and _identity(row) in seen:
                continue
            _check_new(seen, row)
            known.append(row)
        text = _written(known)
        write_atomic(path, lambda part: _write(part, text))
    return len(known)


def _written(rows: Iterable[Result]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        values = (getattr(row, name) for name in COLUMNS)
        writer.writerow(["" if value is None else value for value in values])
    return file.getvalue()


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases if the process dies."""
    import fcntl  # noqa: PLC0415  (not on every system)

    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"there is no folder {folder} for results: {error}") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
