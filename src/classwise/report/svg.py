"""Figures as inline SVG: small, in the page's own fonts and colours, for light and dark.

Matplotlib draws with stand-in colours, which become CSS variables here; text stays text. Nothing
that comes from data is ever drawn as text, so that there is nothing to escape.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

__all__ = [
    "METHOD_COLORS",
    "WIDTHS",
    "axes",
    "bars",
    "both_widths",
    "canvas",
    "color",
    "inline",
]

WIDTHS = {"wide": 900, "narrow": 350}
"""In pixels, of figures for a desk and for a phone."""

METHOD_COLORS = ("base", "m1", "m2", "m3", "m4", "m5")
"""Of the baseline, the headline and the others that are drawn."""

_TOKENS = (
    *METHOD_COLORS,
    "many",
    "medium",
    "few",
    "ink",
    "muted",
    "grid",
    "paper",
    "bar",
    "gap",
    "under",
)
_STAND_IN = {name: f"#fe{i:02x}fd" for i, name in enumerate(_TOKENS)}

_FONT = 11  # in pixels of the drawing, which is shown at about its own size

# One unit of the drawing is one pixel: 72 to the inch are matplotlib's points.
_RC: dict[str, Any] = {
    "svg.fonttype": "none",
    "font.size": _FONT,
    "hatch.linewidth": 0.6,
    "path.simplify": True,
    "path.simplify_threshold": 0.2,
}


def color(name: str) -> str:
    """Return the stand-in of one of the page's colours."""
    return _STAND_IN[name]


def canvas(width: int, height: int) -> Figure:
    """Return an empty figure of so many pixels."""
    return Figure(figsize=(width / 72, height / 72), facecolor="none")


def axes(fig: Figure, left: float, bottom: float, right: float, top: float) -> Axes:
    """Return axes that leave so many pixels free on each side, with the page's quiet look."""
    width, height = fig.get_size_inches() * 72
    ax = fig.add_axes(
        (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height),
        facecolor="none",
    )
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.spines["bottom"].set_color(color("muted"))
    ax.tick_params(length=0, pad=5, colors=color("muted"), labelsize=_FONT, which="both")
    ax.grid(axis="y", color=color("grid"), linewidth=0.8)
    ax.set_axisbelow(True)
    return ax


def bars(
    ax: Axes, at: np.ndarray, low: np.ndarray, high: np.ndarray, breadth: float, name: str
) -> None:
    """Draw bars of one colour as one path, which is a tenth of the work and of the bytes."""
    left, right = at - breadth / 2, at + breadth / 2
    corners = [[left, low], [left, high], [right, high], [right, low]]
    polygons = np.array(corners).transpose(2, 0, 1)
    if len(polygons):
        path = Path.make_compound_path_from_polys(polygons)
        ax.add_patch(PathPatch(path, facecolor=color(name), linewidth=0, zorder=2))


def both_widths(draw: Callable[[str], Figure], label: str) -> Markup:
    """Return a figure drawn for a desk and for a phone; the page shows the one that fits.

    Args:
        draw: from a name in ``WIDTHS`` to the figure.
        label: as for ``inline``.
    """
    return Markup("").join(inline(draw(name), label, name) for name in WIDTHS)


def inline(fig: Figure, label: str, css: str = "") -> Markup:
    """Return a figure as an ``<svg>`` element that a screen reader announces as an image.

    Args:
        fig: drawn.
        label: what it shows, in words; may come from data.
        css: class names of the element, besides "fig".
    """
    buffer = io.StringIO()
    salt = hashlib.sha256(f"{label}{fig.get_size_inches()}".encode(errors="replace")).hexdigest()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    settings: dict[Any, Any] = {**_RC, "svg.hashsalt": salt}
    with mpl.rc_context(settings):
        fig.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    body = buffer.getvalue()
    view = re.search(r'viewBox="([^"]+)"', body)
    assert view is not None
    body = body[body.index(">", body.index("<svg")) + 1 : body.rindex("</svg>")]
    width, height = (round(float(v)) for v in view[1].split()[2:])
    return Markup(
        f'<svg class="{escape(f"fig {css}".strip())}" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {width} {height}" width="{width}" height="{height}">{_small(body)}</svg>'
    )


def _small(body: str) -> str:
    """Return the body without what a browser does not need, in the page's colours and font."""
    body = re.sub(r"<(metadata|style)\b.*?</\1>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', body))
    body = re.sub(r' id="([^"]+)"', lambda m: m[0] if m[1] in used else "", body)
    body = re.sub(r"<[^>]*>", lambda m: _short_tag(m[0]), body)
    for name, stand_in in _STAND_IN.items():
        body = body.replace(stand_in, f"var(--{name})")
    body = re.sub(r'<path [^>]*style="fill: none"/>', "", re.sub(r">\s+<", "><", body))
    empty = re.compile(r"<(g|defs)/>|<(g|defs)></\2>")
    while empty.search(body):
        body = empty.sub("", body)
    return body.strip()


def _short_tag(tag: str) -> str:
    tag = re.sub(r"(\d\.\d\d)\d+", r"\1", tag)
    tag = re.sub(r"font: (?:\w+ )*?([\d.]+px)[^;\"]*", r"font-size: \1", tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?| transform=\"rotate\(-0 [^\"]*\"", "", tag)
    return re.sub(r"\s+", " ", tag)
