"""Figures over all classes, the most frequent first: accuracy, and what holds the bound back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from torch import Tensor

from classwise.report.comparison import GROUPS, Comparison, Method
from classwise.report.svg import METHOD_COLORS, WIDTHS, axes, both_widths, canvas, color

__all__ = ["BINNED_FROM", "SMOOTHED_FROM", "accuracy_by_class", "bound_by_class"]

SMOOTHED_FROM = 31
"""From so many classes on, they have no names in figures, and a running mean is drawn."""

BINNED_FROM = 201
"""From so many classes on, neighbours in training count are drawn together."""

_MARKERS = ("o", "s", "^", "D", "v", "P")
_BINS = {"wide": 60, "narrow": 30}
_HEIGHT = {"wide": 340, "narrow": 320}

_Row = tuple[Method, int, np.ndarray]


def accuracy_by_class(c: Comparison) -> Markup | None:
    """Draw the accuracy of each class over its rank by training count, a line for each method."""
    rows = _rows(c, f"{c.split}.class_accuracy", lambda accuracy: 100 * accuracy)
    if not rows:
        return None
    label = f"Accuracy of each class in percent{_in_words(rows)}"
    return both_widths(lambda size: _ranked(c, rows, size, "%", top=100.0), label)


def bound_by_class(c: Comparison) -> Markup | None:
    """Draw each class's summand of the bound, in multiples of the method's mean summand."""
    rows = _rows(c, "bound.per_class", lambda term: term / term[torch.isfinite(term)].mean())
    if not rows:
        return None
    label = f"Summand of each class in the bound, in multiples of the mean{_in_words(rows)}"
    times = "\N{MULTIPLICATION SIGN}"
    return both_widths(lambda size: _ranked(c, rows, size, times, top=None), label)


def _rows(c: Comparison, name: str, scaled: Callable[[Tensor], Tensor]) -> list[_Row]:
    """Return method, number of its colour and its values in the order of the classes."""
    found = []
    for number, method in c.colored:
        values = method.class_mean(name)
        if values is None:
            continue
        values = scaled(values)[c.order]
        values = torch.where(torch.isfinite(values), values, torch.nan)
        if not bool(values.isnan().all()):
            found.append((method, number, values.numpy()))
    return found


def _in_words(rows: Sequence[_Row]) -> str:
    text = ", the class with the most training samples first."
    for method, _, values in rows:
        finite = values[np.isfinite(values)]
        third = max(1, len(finite) // 3)
        first, last = finite[:third].mean(), finite[-third:].mean()
        text += (
            f" {method.label}: {first:.1f} on average in the first third, {last:.1f} in the last."
        )
    return text


def _ranked(c: Comparison, rows: Sequence[_Row], size: str, unit: str, top: float | None) -> Figure:
    fig = canvas(WIDTHS[size], _HEIGHT[size])
    main, below = axes(fig, 44, 108, 8, 24), axes(fig, 44, 34, 8, _HEIGHT[size] - 86)
    for method, number, values in reversed(rows):
        if len(values) < BINNED_FROM:
            _draw_classes(main, values, number)
        else:
            spread = method in (c.headline, c.baseline)
            _draw_binned(main, values, number, _BINS[size], spread=spread)
    main.set_ylim(0, top)
    main.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g} {unit}"))
    _draw_counts(below, c)
    for ax in (main, below):
        ax.set_xlim(-0.5, len(c.class_names) - 0.5)
    main.set_xticks([])
    _draw_groups(main, below, c, WIDTHS[size])
    return fig


def _draw_classes(ax: Axes, values: np.ndarray, number: int) -> None:
    tone, order, rank = color(METHOD_COLORS[number]), 2 + (number == 1), np.arange(len(values))
    dots = {"marker": _MARKERS[number], "markeredgewidth": 0, "zorder": order, "color": tone}
    if len(values) < SMOOTHED_FROM:
        ax.plot(rank, values, markersize=5, linewidth=1.2, **dots)
    else:
        ax.plot(rank, values, markersize=4, linestyle="none", alpha=0.45, **dots)
        ax.plot(rank, _smooth(values), color=tone, linewidth=2, zorder=order + 2)


def _draw_binned(ax: Axes, values: np.ndarray, number: int, bins: int, *, spread: bool) -> None:
    tone, order = color(METHOD_COLORS[number]), 2 + (number == 1)
    rank, mean, low, high = _binned(values, bins)
    if spread:
        ax.fill_between(rank, low, high, color=tone, alpha=0.14, linewidth=0, zorder=order)
    ax.plot(rank, mean, color=tone, linewidth=2, zorder=order + 2)


def _smooth(values: np.ndarray) -> np.ndarray:
    """Return the running mean over a tenth of the classes, at the ends over what there is."""
    half = max(1, len(values) // 20)
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.where(finite, values, 0.0).cumsum()])
    seen = np.concatenate([[0], finite.cumsum()])
    low = np.maximum(np.arange(len(values)) - half, 0)
    high = np.minimum(np.arange(len(values)) + half + 1, len(values))
    number = seen[high] - seen[low]
    return np.where(number > 0, (sums[high] - sums[low]) / np.maximum(number, 1), np.nan)


def _binned(values: np.ndarray, bins: int) -> tuple[np.ndarray, ...]:
    """Return rank, mean and quartiles of neighbours taken together; NaN where none is finite."""
    columns = []
    edges = np.linspace(0, len(values), bins + 1).round().astype(int)
    for first, last in itertools.pairwise(edges):
        part = values[first:last]
        part = part[np.isfinite(part)]
        found = (part.mean(), *np.quantile(part, (0.25, 0.75))) if len(part) else (np.nan,) * 3
        columns.append(((first + last - 1) / 2, *found))
    return tuple(np.array(columns).T)


def _draw_counts(ax: Axes, c: Comparison) -> None:
    counts = c.class_counts[c.order].clamp(min=1).numpy()
    number = len(counts)
    first = np.unique(np.linspace(0, number, 401).astype(int)[:-1])  # as many steps as one sees
    edges = np.append(first, number) - 0.5
    ax.stairs(counts[first], edges, baseline=0.8, fill=True, color=color("muted"), alpha=0.35)
    ax.set_yscale("log")
    ax.set_ylim(0.8, float(counts.max()) * 1.3)
    ax.yaxis.set_major_locator(LogLocator(base=10, numticks=4))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
    ax.set_title("training samples", loc="left", fontsize=11, color=color("muted"), pad=4)
    ax.set_xlabel("classes, most training samples first", color=color("muted"), fontsize=11)
    middle = number // 2
    ax.set_xticks([0, middle, number - 1], ["1", f"{middle + 1:,}", f"{number:,}"])
    left, *_, right = ax.get_xticklabels()
    left.set_horizontalalignment("left")
    right.set_horizontalalignment("right")


def _draw_groups(main: Axes, below: Axes, c: Comparison, width: int) -> None:
    """Separate many, medium and few, and name each where it is wide enough."""
    first = 0
    for group in GROUPS:
        size = int(c.groups[group].sum())
        if first and size:
            for ax in (main, below):
                ax.axvline(first - 0.5, color=color("muted"), linewidth=0.8, dashes=(3, 3))
        if size / len(c.class_names) * width > 55:
            main.annotate(
                group,
                (first + (size - 1) / 2, 1),
                xytext=(0, 8),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                color=color("ink"),
            )
        first += size
