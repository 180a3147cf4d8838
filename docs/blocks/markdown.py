"""Markdown, and what docstrings say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table without the columns that hold nothing."""
    kept = [n for n in range(len(header)) if any(str(row[n]) for row in rows)]
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(_cell(line[n]) for n in kept)} |\n" for line in lines)


def _cell(value: object) -> str:
    """Return what stands in a cell; a bar, which would end it, is written so that all read it."""
    text = " ".join(str(value).split())
    text = re.sub(r"`([^`]*\|[^`]*)`", r"<code>\1</code>", text)
    return text.replace("|", "&#124;")


def paragraphs(thing: object) -> list[str]:
    """Return the paragraphs of a docstring, up to its arguments and examples."""
    text = inspect.getdoc(thing) or ""
    text = re.split(r"^(?:Args|Returns|Raises|Attributes):\n|^>>> ", text, flags=re.MULTILINE)[0]
    return [part for part in text.strip().split("\n\n") if part.strip()]


def arguments(thing: object) -> dict[str, str]:
    """Return what the ``Args`` of a docstring say of each argument."""
    found = re.search(r"^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(thing) or "", re.M | re.S)
    entries = re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", found[1] if found else "", re.M | re.S)
    return {name: " ".join(text.split()) for name, text in entries}


def equation(thing: object) -> str:
    """Return the indented lines of a docstring, which are its equation, or an empty string."""
    blocks = [part for part in paragraphs(thing) if all(_INDENT.match(s) for s in part.split("\n"))]
    return "\n".join(inspect.cleandoc(block) for block in blocks)


_INDENT = re.compile(r" {4}")
