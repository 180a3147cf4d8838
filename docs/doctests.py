"""An extension of griffe: doctests at the end of a docstring are examples, and shown as code."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_DOCTEST = re.compile(r"^>>> ", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts the title of a section before the doctests of a docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change what was read, before it is parsed into sections."""
        found = _DOCTEST.search(obj.docstring.value) if obj.docstring else None
        if obj.docstring is None or found is None:
            return
        start = found.start()
        text, doctests = obj.docstring.value[:start], obj.docstring.value[start:]
        obj.docstring.value = f"{text}Examples:\n{textwrap.indent(doctests, '    ')}"
