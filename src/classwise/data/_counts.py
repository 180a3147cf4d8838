"""Files of counts: ``name -> count`` or one count for each class, as JSON, CSV or plain text."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from classwise.data._text import numbered_lines, read_text, whole
from classwise.data.findings import shown
from classwise.errors import DataError

__all__ = ["Counts", "read_counts"]

Counts = tuple[tuple[str | None, int], ...]
"""Pairs of class name and count; without names, in the order of the classes."""

_HEADERS = ("count", "counts", "samples", "n")
_NAMED = re.compile(r"(?P<name>.*[^\s,;:=])(?:\s*[,;:=]\s*|\s+)(?P<count>\S+)")


def read_counts(path: Path) -> Counts:
    """Read a file of counts.

    Raises:
        DataError: says which line or key is wrong.
    """
    where = shown(path)
    pairs = _from_json(path) if path.suffix.lower() == ".json" else _from_lines(path)
    if not pairs:
        raise DataError(f"{where} has no counts.")
    named = sum(name is not None for name, _ in pairs)
    if named not in (0, len(pairs)):
        raise DataError(f"{where}: {named} of {len(pairs)} counts have a name; all or none must.")
    twice = [
        name for name, times in Counter(n for n, _ in pairs if n is not None).items() if times > 1
    ]
    if twice:
        raise DataError(f"{where}: class {shown(twice[0])!r} is given twice.")
    return pairs


def _from_json(path: Path) -> Counts:
    where = shown(path)
    try:
        # Pairs, not a dictionary: of a name that is given twice, json keeps the last.
        value = json.loads(read_text(path), object_pairs_hook=lambda pairs: (dict, pairs))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON: {error}.") from error
    pairs: list[tuple[str | None, Any]]
    if isinstance(value, tuple):
        pairs = value[1]
    elif isinstance(value, list):
        pairs = [(None, count) for count in value]
    else:
        raise DataError(f"{where}: must be a list of counts or an object of name: count.")
    for position, (name, count) in enumerate(pairs):
        if type(count) is not int or not 0 <= count < 2**62:
            key = f"[{position}]" if name is None else f"[{shown(name)!r}]"
            raise DataError(f"{where}: {key} must be a whole number >= 0, got {shown(count)!r}.")
    return tuple(pairs)


def _from_lines(path: Path) -> Counts:
    pairs: list[tuple[str | None, int]] = []
    for position, (number, line) in enumerate(numbered_lines(path)):
        name, text = _cells(line, comma=path.suffix.lower() == ".csv")
        count = whole(text)
        if count is None and position == 0 and text.lower() in _HEADERS:
            continue
        if count is None:
            raise DataError(
                f"{shown(path)}: line {number}: must be a count, or a class name and a count, "
                f"got {shown(line)[:80]!r}."
            )
        pairs.append((name, count))
    return tuple(pairs)


def _cells(line: str, comma: bool) -> tuple[str | None, str]:
    if comma:
        try:
            row = next(csv.reader([line], strict=True))
        except (csv.Error, StopIteration):
            return None, line
        if len(row) == 2:
            return row[0], row[1].strip()
        return None, line.strip()
    found = _NAMED.fullmatch(line)
    return (found["name"], found["count"]) if found else (None, line)
