"""How the paper's figures and our own are drawn: plain data in, a matplotlib figure out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from torch import Tensor

from classwise.calibration import Curve
from classwise.errors import ArgumentError
from classwise.paper._canvas import (
    COLOURS,
    DASHES,
    GREY,
    GROUP_COLOURS,
    GROUP_TITLES,
    MARKERS,
    canvas_of,
    save,
    style,
)

__all__ = [
    "Heatmap",
    "Lines",
    "Points",
    "bounds_figure",
    "heatmap_figure",
    "lines_figure",
    "reliability_figure",
    "save",
    "slopes_figure",
]


@dataclass(frozen=True)
class Points:
    """A line of a panel; one point alone is a horizontal line.

    Args:
        title: in the legend.
        x: where the points are; empty for a value that does not depend on it.
        y: their values.
        spread: half the height of an error bar at each point, 0 for none.
    """

    title: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()

    def __post_init__(self) -> None:
        if (
            not len(self.y)
            or len(self.x) not in (len(self.y), 0)
            or (len(self.y) > 1) > len(self.x)
        ):
            raise ArgumentError(
                f"{self.title!r} has {len(self.x)} places for {len(self.y)} values."
            )
        if len(self.spread) not in (0, len(self.y)):
            raise ArgumentError(f"{self.title!r}: spread must have an entry for each value.")


@dataclass(frozen=True)
class Lines:
    """A panel of lines.

    Args:
        title: above it.
        x: label of the horizontal axis.
        y: label of the vertical axis.
        lines: what is drawn.
        marks: places on the horizontal axis to mark, and what they are.
        markers: draw a marker at each point.
        letter: before the title, where there are several panels; empty counts them.
        log: make the vertical axis logarithmic.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Points]
    marks: Mapping[str, float] | None = None
    markers: bool = True
    letter: str = ""
    log: bool = False


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A panel of values over two settings.

    Args:
        title: above it.
        x: label of the horizontal axis.
        y: label of the vertical axis.
        columns: values of the horizontal axis.
        rows: values of the vertical axis.
        values: (rows, columns), NaN where nothing was measured.
        letter: before the title, where there are several panels; empty counts them.
    """

    title: str
    x: str
    y: str
    columns: Sequence[float]
    rows: Sequence[float]
    values: np.ndarray
    letter: str = ""

    def __post_init__(self) -> None:
        shape = (len(self.rows), len(self.columns))
        if self.values.shape != shape:
            raise ArgumentError(f"values must have shape {shape}, got {self.values.shape}.")


def reliability_figure(
    series: Mapping[str, Mapping[str, Curve]],
    errors: Mapping[str, Mapping[str, float]] | None = None,
    groups: Sequence[str] = ("all", "many", "medium", "few"),
) -> Figure:
    """Draw reliability by shots, as in the paper's Figures 1 and 8.

    Args:
        series: name of a run -> group of classes -> its curve, see ``classwise.calibration``.
        errors: name of a run -> group -> its ECE in [0, 1], written into the panel.
        groups: one panel for each.
    """
    with style():
        canvas = canvas_of(len(groups), width=2.5)
        for ax, group in zip(canvas.axes, groups, strict=True):
            ax.plot([0, 1], [0, 1], color=GREY, lw=0.9, ls=":", label="calibrated")
            notes = []
            for number, (name, curves) in enumerate(series.items()):
                if group not in curves:
                    continue
                _curve(ax, curves[group], name, number)
                error = (errors or {}).get(name, {}).get(group)
                if error is not None:
                    notes.append((f"ECE {100 * error:.1f}", COLOURS[number % len(COLOURS)]))
            for row, (note, colour) in enumerate(notes):
                ax.text(
                    0.03, 0.96 - 0.09 * row, note, color=colour, va="top", transform=ax.transAxes
                )
            ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", aspect="equal")
        canvas.vertical(["accuracy"] * len(groups))
        canvas.titles([GROUP_TITLES.get(group, group) for group in groups])
        canvas.legend()
    return canvas.figure


def _curve(ax: Axes, curve: Curve, name: str, number: int) -> None:
    """Draw one curve; the area of its markers grows with the samples in the bin."""
    there = (curve.count > 0).cpu().numpy()
    x, y = curve.confidence.cpu().numpy()[there], curve.accuracy.cpu().numpy()[there]
    share = curve.count.cpu().numpy()[there] / max(1, int(curve.count.sum()))
    colour = COLOURS[number % len(COLOURS)]
    ax.plot(x, y, color=colour, ls=DASHES[number % len(DASHES)], lw=1.2, label=name)
    ax.scatter(
        x,
        y,
        s=6 + 160 * share,
        color=colour,
        marker=MARKERS[number % len(MARKERS)],
        alpha=0.75,
        lw=0,
        zorder=3,
        clip_on=False,
    )


def lines_figure(panels: Sequence[Lines]) -> Figure:
    """Draw panels of lines: sensitivity curves, accuracy over epochs, calibration over epochs."""
    with style():
        canvas = canvas_of(len(panels))
        # A line looks the same in every panel.
        titles = list(dict.fromkeys(line.title for panel in panels for line in panel.lines))
        for ax, panel in zip(canvas.axes, panels, strict=True):
            for line in panel.lines:
                _line(ax, line, titles.index(line.title), markers=panel.markers)
            for title, place in (panel.marks or {}).items():
                ax.axvline(place, color=GREY, lw=1.2, ls=":", label=title, zorder=1)
            ax.set_xlabel(panel.x)
            if panel.log:
                ax.set_yscale("log")
                _number_logarithmic(ax)
            ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        canvas.vertical([panel.y for panel in panels])
        canvas.titles([panel.title for panel in panels], [panel.letter for panel in panels])
        canvas.legend(titles)
    return canvas.figure


def _line(ax: Axes, line: Points, number: int, *, markers: bool) -> None:
    look = {
        "color": COLOURS[number % len(COLOURS)],
        "ls": DASHES[number % len(DASHES)],
        "label": line.title,
    }
    if not len(line.x):
        ax.axhline(line.y[0], **look)
        if len(line.spread) and line.spread[0]:
            low, high = line.y[0] - line.spread[0], line.y[0] + line.spread[0]
            ax.axhspan(low, high, color=look["color"], alpha=0.12, lw=0)
        return
    if markers:
        look["marker"] = MARKERS[number % len(MARKERS)]
    x, y = np.asarray(line.x, dtype=float), np.asarray(line.y, dtype=float)
    if len(line.spread) and any(line.spread):
        ax.errorbar(x, y, yerr=np.asarray(line.spread), capsize=2, elinewidth=0.9, **look)
    else:
        ax.plot(x, y, **look)


def heatmap_figure(panels: Sequence[Heatmap], unit: str = "balanced accuracy, %") -> Figure:
    """Draw panels of values over two settings, as in the paper's Figures 5 and 10."""
    with style():
        canvas = canvas_of(len(panels), width=3.3, height=2.8)
        for number, (ax, panel) in enumerate(zip(canvas.axes, panels, strict=True), start=1):
            image = ax.imshow(panel.values, cmap="cividis", origin="lower", aspect="auto")
            ax.set_xticks(range(len(panel.columns)), [f"{v:g}" for v in panel.columns])
            ax.set_yticks(range(len(panel.rows)), [f"{v:g}" for v in panel.rows])
            ax.set(xlabel=panel.x)
            ax.grid(visible=False)
            ax.spines[:].set_visible(False)
            _numbers(ax, panel.values)
            last = number % canvas.columns == 0 or number == len(panels)
            canvas.figure.colorbar(image, ax=ax, label=unit if last else "", shrink=0.9)
        canvas.vertical([panel.y for panel in panels])
        canvas.titles([panel.title for panel in panels], [panel.letter for panel in panels])
    return canvas.figure


def _numbers(ax: Axes, values: np.ndarray) -> None:
    """Write each value into its field, dark on light and light on dark; frame the best."""
    if not np.isfinite(values).any():
        return
    low, high = np.nanmin(values), np.nanmax(values)
    best = np.unravel_index(np.nanargmax(values), values.shape)
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            continue
        dark = high > low and (value - low) / (high - low) < 0.55
        ax.text(
            column,
            row,
            f"{value:.1f}",
            ha="center",
            va="center",
            color="white" if dark else "black",
            weight="bold" if (row, column) == best else "normal",
            fontsize=7.5,
        )


def slopes_figure(
    slopes: Mapping[str, np.ndarray],
    groups: Mapping[str, np.ndarray],
    phase_starts: Sequence[int] = (),
) -> Figure:
    """Draw measured slopes over epochs: median and middle half of each group of classes.

    Args:
        slopes: title of a panel -> (epochs, classes); an epoch without slopes is NaN.
        groups: name -> bool (classes,), see ``classwise.shots``.
        phase_starts: epochs at which phases begin; 0 is not marked.
    """
    with style():
        canvas = canvas_of(len(slopes), width=4.2, height=3.0)
        for ax, values in zip(canvas.axes, slopes.values(), strict=True):
            ax.axhline(1, color=GREY, lw=0.9, ls=":")
            for number, (name, mask) in enumerate(groups.items()):
                _band(ax, values[:, np.asarray(mask, dtype=bool)], name, number)
            for start in phase_starts:
                if start:
                    ax.axvline(start, color=GREY, lw=0.9, ls="--", zorder=0)
            ax.set(xlabel="epoch", yscale="log")
            ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            _number_logarithmic(ax)
        canvas.vertical(["slope"] * len(slopes))
        canvas.titles(list(slopes))
        canvas.legend()
    return canvas.figure


def _number_logarithmic(ax: Axes) -> None:
    """Number a logarithmic vertical axis; powers of ten alone would leave a short one bare."""
    low, high = ax.get_ylim()
    if high < 15 * low:
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter("{x:g}")


def _band(ax: Axes, values: np.ndarray, name: str, number: int) -> None:
    """Draw the median of each row and the middle half, where all of the row is finite."""
    there = np.isfinite(values).all(1) & (values.shape[1] > 0)
    if not there.any():
        return
    lower, median, upper = np.percentile(values[there], [25, 50, 75], axis=1)
    epochs = np.flatnonzero(there)
    colour = GROUP_COLOURS.get(name, COLOURS[number % len(COLOURS)])
    title = f"{GROUP_TITLES.get(name, name)} ({values.shape[1]})"
    ax.plot(epochs, median, color=colour, ls=DASHES[number % len(DASHES)], label=title)
    ax.fill_between(epochs, lower, upper, color=colour, alpha=0.18, lw=0)


def bounds_figure(
    bounds: Mapping[str, np.ndarray], accuracy: Mapping[str, float], class_counts: Tensor
) -> Figure:
    """Draw the class-dependent bound of several methods: by class, and against their accuracy.

    Args:
        bounds: method -> its summand for each class, (classes,), see ``classwise.theory.bound``.
        accuracy: method -> balanced accuracy in percent.
        class_counts: training counts, (classes,); classes are drawn from the largest down.
    """
    if set(bounds) - set(accuracy):
        missing = ", ".join(sorted(set(bounds) - set(accuracy)))
        raise ArgumentError(f"accuracy lacks {missing}.")
    order = class_counts.argsort(descending=True, stable=True).cpu().numpy()
    with style():
        canvas = canvas_of(2, width=4.4, height=3.2)
        by_class, against = canvas.axes
        for number, (method, values) in enumerate(bounds.items()):
            colour = COLOURS[number % len(COLOURS)]
            by_class.plot(
                np.arange(1, len(order) + 1),
                values[order],
                color=colour,
                ls=DASHES[number % len(DASHES)],
                label=method,
            )
            total = float(values.sum())
            against.scatter(
                total, accuracy[method], color=colour, marker=MARKERS[number % len(MARKERS)], s=36
            )
            against.annotate(
                method, (total, accuracy[method]), xytext=(5, 4), textcoords="offset points"
            )
        by_class.set(xlabel="class, by training count", yscale="log")
        _number_logarithmic(by_class)
        against.xaxis.set_major_locator(MaxNLocator(5))
        against.set(xlabel="sum of the terms")
        against.margins(0.25, 0.15)
        canvas.vertical(["term of the bound", "balanced accuracy, %"])
        canvas.titles(["Terms by class", "Their sum and the accuracy"])
        canvas.legend()
    return canvas.figure
