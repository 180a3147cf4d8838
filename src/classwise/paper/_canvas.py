"""What the drawings share: style, a figure with lettered panels, writing it to a file.

Colours are those of Okabe and Ito, which colour-blind readers tell apart; lines differ in their
markers and dashes as well, for prints without colour. Nothing here touches pyplot's global state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from classwise._checks import known_name
from classwise.errors import ArgumentError

__all__ = [
    "COLOURS",
    "DASHES",
    "GREY",
    "GROUP_COLOURS",
    "GROUP_TITLES",
    "MARKERS",
    "Canvas",
    "canvas_of",
    "save",
    "style",
]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (4, 1, 1, 1, 1, 1)), (0, (6, 2)), (0, (3, 1)))
GROUP_TITLES = {"all": "All", "many": "Many shots", "medium": "Medium shots", "few": "Few shots"}
GREY = "#888888"
GROUP_COLOURS = {
    "all": "#000000",
    "many": "#0072B2",
    "medium": "#009E73",
    "few": "#D55E00",
}

_STYLE: dict[Any, Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 200,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "classwise",
    "pdf.fonttype": 42,
}


@contextmanager
def style() -> Iterator[None]:
    with mpl.rc_context(_STYLE):
        yield


def save(figure: Figure, path: Path | str) -> Path:
    """Write a figure as PNG, PDF or SVG, by the ending of the path; equal figures, equal files."""
    path = Path(path)
    kind = known_name("the ending of the path", path.suffix.removeprefix("."), _KINDS)
    with style():
        figure.savefig(path, format=kind, metadata=_KINDS[kind])
    return path


_KINDS: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
}


@dataclass(frozen=True, eq=False)
class Canvas:
    """A figure with its panels, row by row."""

    figure: Figure
    axes: list[Axes]
    columns: int

    def titles(self, titles: Sequence[str], letters: Sequence[str] = ()) -> None:
        """Put a letter and a title above each panel; no letter where there is one panel."""
        letters = letters if any(letters) else "abcdefghijklmnopqrstuvwxyz"[: len(titles)]
        for ax, title, letter in zip(self.axes, titles, letters, strict=True):
            ax.set_title(f"({letter}) {title}" if len(self.axes) > 1 else title)

    def vertical(self, labels: Sequence[str]) -> None:
        """Label the vertical axes, but not again what the panel to the left already says."""
        for number, (ax, label) in enumerate(zip(self.axes, labels, strict=True)):
            if number % self.columns == 0 or label != labels[number - 1]:
                ax.set_ylabel(label)

    def legend(self, order: Sequence[str] = ()) -> None:
        """Put one legend below all panels, each title once, those of ``order`` first."""
        found: dict[str, Any] = {}
        for ax in self.axes:
            for handle, title in zip(*ax.get_legend_handles_labels(), strict=True):
                found.setdefault(title, handle)
        titles = [title for title in order if title in found]
        titles += [title for title in found if title not in titles]
        if titles:
            handles = [found[title] for title in titles]
            count = min(6, len(titles))
            self.figure.legend(handles, titles, loc="outside lower center", ncols=count)


def canvas_of(panels: int, *, width: float = 3.1, height: float = 2.6) -> Canvas:
    """Return a figure with ``panels`` panels: four in a row, three where that fills the rows."""
    if panels < 1:
        raise ArgumentError("there is no panel to draw.")
    columns = panels if panels <= 4 else 3 if panels % 3 == 0 else 4
    rows = -(-panels // columns)
    figure = Figure(figsize=(width * columns, height * rows + 0.5))
    figure.set_layout_engine("constrained", h_pad=0.07, w_pad=0.07)
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for spare in axes[panels:]:
        spare.set_axis_off()
    return Canvas(figure, axes[:panels], columns)
