"""What each method gained and what it cost, against the baseline, by shots."""

from __future__ import annotations

import math

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from classwise.report.comparison import COLORS, GROUPS, Comparison
from classwise.report.numbers import Difference, difference, points
from classwise.report.svg import METHOD_COLORS, WIDTHS, axes, both_widths, canvas, color

__all__ = ["gains"]

_ROOM = 34  # pixels that a number needs


def gains(c: Comparison) -> Markup | None:
    """Draw the difference from the baseline for each group and method, None without a baseline.

    Differences within the seeds' spread are outlines, the others are filled.
    """
    if c.baseline is None or not c.rivals:
        return None
    rivals, baseline = c.rivals[: COLORS - 1], c.baseline
    found = {
        name: [
            difference(method.number(name, c.split), baseline.number(name, c.split))
            for method in rivals
        ]
        for name in (*GROUPS, "balanced")
    }
    found = {name: row for name, row in found.items() if any(d.exists for d in row)}
    if not found:
        return None
    words = [
        f"{method.label}: "
        + ", ".join(f"{name} {points(row[i].mean)}" for name, row in found.items())
        for i, method in enumerate(rivals)
    ]
    label = f"Accuracy in points against {baseline.label}. {'; '.join(words)}."
    return both_widths(lambda size: _draw(found, WIDTHS[size]), label)


def _draw(found: dict[str, list[Difference]], width: int) -> Figure:
    fig = canvas(width, 240)
    ax = axes(fig, 34, 28, 8, 14)
    methods = len(next(iter(found.values())))
    breadth = min(0.8 / methods, 0.24)
    numbered = breadth / len(found) * (width - 50) > _ROOM
    for x, row in enumerate(found.values()):
        for i, d in enumerate(row):
            if d.exists:
                at = x + (i - (methods - 1) / 2) * breadth
                _bar(ax, at, d, 0.82 * breadth, color(METHOD_COLORS[i + 1]), numbered=numbered)
    bottom, top = ax.get_ylim()
    margin = 0.09 * (top - bottom)  # for the numbers
    ax.set_ylim(bottom - margin, top + margin)
    ax.axhline(0, color=color("muted"), linewidth=1)
    ax.spines["bottom"].set_visible(False)
    ax.set_xlim(-0.55, len(found) - 0.45)
    ax.set_xticks(range(len(found)), list(found), color=color("ink"))
    ax.tick_params(axis="x", pad=8)
    ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: points(v / 100, 0)))
    return fig


def _bar(ax: Axes, at: float, d: Difference, breadth: float, tone: str, *, numbered: bool) -> None:
    """Draw a bar with its whisker, and its number beyond the whisker."""
    face = "none" if d.within else tone
    ax.bar(at, 100 * d.mean, breadth, facecolor=face, edgecolor=tone, linewidth=1.2, zorder=3)
    reach = d.spread if math.isfinite(d.spread) else 0.0
    if reach:
        low, high = 100 * (d.mean - reach), 100 * (d.mean + reach)
        ax.plot([at, at], [low, high], color=color("ink"), linewidth=1.2, zorder=4)
    if numbered:
        up = d.mean >= 0
        ax.annotate(
            points(d.mean),
            (at, 100 * (d.mean + (reach if up else -reach))),
            xytext=(0, 4 if up else -4),
            textcoords="offset points",
            ha="center",
            va="bottom" if up else "top",
            color=color("ink"),
        )
