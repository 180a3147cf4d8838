"""Hooks of the site's build: equations become MathML, which browsers draw without any script."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex makes of $...$ and of $$...$$.
_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)


def on_page_content(text: str, **_: Any) -> str:
    """Return a page with its equations as MathML."""
    text = _DISPLAY.sub(lambda found: _mathml(found[1], "block"), text)
    return _INLINE.sub(lambda found: _mathml(found[1], "inline"), text)


def _mathml(latex: str, display: str) -> str:
    # Names of functions get the room that an operator has; as identifiers they would stick.
    found = convert(html.unescape(latex).strip(), display=display)
    return re.sub(r"<mi>(log|softmax)</mi>", r'<mo lspace="0.17em" rspace="0.17em">\1</mo>', found)
