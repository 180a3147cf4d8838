"""Text files that others wrote: lists, tables, counts."""

from __future__ import annotations

from pathlib import Path

from classwise.data.findings import shown
from classwise.errors import DataError

__all__ = ["numbered_lines", "read_text", "whole"]


def read_text(path: Path) -> str:
    """Return what is in a file of UTF-8 text, with or without byte-order mark."""
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{shown(path)} cannot be read: {reason}.") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{shown(path)}: line {line} is not UTF-8 text.") from error
    if not text.strip():
        raise DataError(f"{shown(path)} is empty.")
    return text


def numbered_lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines that are not blank, each with its number, without their ends.

    Only newlines end a line: other separators of Unicode may be part of a name.
    """
    lines = enumerate(read_text(path).split("\n"), start=1)
    return [(number, line.strip("\r \t")) for number, line in lines if line.strip()]


def whole(text: str) -> int | None:
    """Return a whole number >= 0 that fits into int64, or None."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    return None
