"""What is wrong with a data set: collected in one pass, reported together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from classwise.errors import DataError

__all__ = ["Finding", "Findings", "FoundError", "shown"]

_EXAMPLES = 5


def shown(text: object) -> str:
    """Return ``text`` on one line that any terminal can print: names of files may be anything."""
    raw = os.fspath(text) if isinstance(text, os.PathLike) else str(text)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in raw)


@dataclass(frozen=True)
class Finding:
    """One kind of trouble in one place.

    Args:
        kind: what, in the singular: ``"missing file"``.
        where: the split, file or folder.
        count: how many.
        examples: the first few.
        fatal: whether training on this data is refused.
    """

    kind: str
    where: str
    count: int
    examples: tuple[str, ...]
    fatal: bool = True

    def __str__(self) -> str:
        more = ", ..." if self.count > len(self.examples) else ""
        listed = f" ({', '.join(self.examples)}{more})" if self.examples else ""
        return f"{self.count} x {self.kind} in {self.where}{listed}"


class FoundError(DataError):
    """Says what was found; all of it is in the findings as well."""


@dataclass
class Findings:
    """Collects what is found.

    >>> findings = Findings()
    >>> findings.add("empty file", "train", "a.png")
    >>> findings.add("empty file", "train", "b.png")
    >>> [str(f) for f in findings]
    ['2 x empty file in train (a.png, b.png)']
    """

    _found: dict[tuple[str, str, bool], tuple[int, list[str]]] = field(default_factory=dict)

    def add(
        self, kind: str, where: object, example: object = "", *, count: int = 1, fatal: bool = True
    ) -> None:
        """Count something; the first few examples are kept."""
        key = (kind, shown(where), fatal)
        before, examples = self._found.setdefault(key, (0, []))
        if example != "" and len(examples) < _EXAMPLES:
            examples.append(shown(example))
        self._found[key] = (before + count, examples)

    def __iter__(self) -> Iterator[Finding]:
        """Go through what was found, in the order in which it was."""
        for (kind, where, fatal), (count, examples) in self._found.items():
            yield Finding(kind, where, count, tuple(examples), fatal)

    def check(self, uri: str) -> None:
        """Raise if anything was found that forbids training."""
        fatal = [finding for finding in self if finding.fatal]
        if fatal:
            listed = "; ".join(map(str, fatal))
            raise FoundError(f"{shown(uri)}: {listed}.")
