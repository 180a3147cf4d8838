"""Names from data, made fit to be shown. Escaping is the template's."""

from __future__ import annotations

import unicodedata

__all__ = ["clean", "short"]


def clean(name: object, number: int | None = None) -> str:
    r"""Return a name without what no document may hold: control characters and half characters.

    Args:
        name: anything.
        number: of the class, which stands for an empty name.

    >>> clean("caf\xe9\x00\ud800"), clean("  ", 7)
    ('café��', 'class 7')
    """
    kept = (
        " " if c in "\t\n\r" else "\N{REPLACEMENT CHARACTER}" if _unfit(c) else c for c in str(name)
    )
    text = "".join(kept).strip()
    return text or ("(no name)" if number is None else f"class {number}")


def _unfit(character: str) -> bool:
    # Cc: controls; Cs: halves of surrogate pairs, which UTF-8 has no bytes for.
    return unicodedata.category(character) in ("Cc", "Cs")


def short(name: str, length: int = 48) -> str:
    """Return a name with its middle left out if it is long; its ends tell most.

    >>> short("abcdefghij", 7)
    'abc…hij'
    """
    if len(name) <= length:
        return name
    half = (length - 1) // 2
    return f"{name[: length - 1 - half]}…{name[len(name) - half :]}"
