"""Reliability diagrams for all, many, medium and few: the panels of the paper's Figure 1."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
import torch
from markupsafe import Markup
from matplotlib.axes import Axes

from classwise.calibration import Curve, calibration_error, reliability
from classwise.report.comparison import GROUPS, Comparison, Method
from classwise.report.numbers import Spread, percent, spread_of
from classwise.report.svg import axes, bars, canvas, color, inline
from classwise.stats.bins import BinTable

__all__ = ["Panel", "reliability_panels"]


@dataclass(frozen=True, eq=False)
class Panel:
    """One diagram.

    Args:
        group: ``"all"`` or a group of classes.
        ece: of each run, as in the table of methods.
        figure: None where the group has no samples.
    """

    group: str
    ece: Spread
    figure: Markup | None


def reliability_panels(c: Comparison, method: Method) -> list[Panel]:
    """Return the four diagrams of a method, none without measured bins.

    Bins hold the samples of all its runs; the error is the mean of the runs' own.
    """
    tables = method.tables(c.split)
    if not tables:
        return []
    errors = [calibration_error(table, c.groups) for table in tables]
    pooled = BinTable(*(torch.cat([getattr(t, f.name) for t in tables]) for f in fields(BinTable)))
    tiled = {name: mask.repeat(len(tables)) for name, mask in c.groups.items()}
    curves = reliability(pooled, tiled)
    panels = []
    for group in ("all", *GROUPS):
        found = [e.ece if group == "all" else e.group_ece.get(group, math.nan) for e in errors]
        ece = spread_of([float(value) for value in found])
        curve = curves.get(group)
        drawn = None
        if curve is not None and int(curve.count.sum()):
            drawn = _draw(curve, group, f"{method.label}, {group}: ECE {percent(ece.mean)} percent")
        panels.append(Panel(group, ece, drawn))
    return panels


def _draw(curve: Curve, group: str, label: str) -> Markup:
    fig = canvas(220, 232)
    ax, below = axes(fig, 28, 50, 12, 6), axes(fig, 28, 32, 12, 186)
    bins = len(curve.count)
    filled = (curve.count > 0).numpy()
    at = ((np.arange(bins) + 0.5) / bins)[filled]
    accuracy, confidence = (part.numpy()[filled] for part in (curve.accuracy, curve.confidence))
    _draw_bars(ax, at, accuracy, confidence, 1 / bins)
    share = curve.count.double().numpy()[filled] / float(curve.count.sum())
    bars(below, at, np.zeros_like(share), share, 0.9 / bins, "base")
    below.set_ylim(0, max(share))
    below.set_yticks([])
    for axis in (ax, below):
        axis.set_xlim(0, 1)
        axis.set_xticks([0, 0.5, 1], ["0", "50", "100"])
    ax.tick_params(axis="x", labelbottom=False)
    below.set_xlabel("confidence, %", color=color("muted"), fontsize=11, labelpad=1)
    over = int((confidence > accuracy).sum())
    label += f", over-confident in {over} of {len(at)} filled bins."
    return inline(fig, label)


def _draw_bars(
    ax: Axes, at: np.ndarray, accuracy: np.ndarray, confidence: np.ndarray, breadth: float
) -> None:
    """Draw accuracy as bars, and the gap between it and the confidence in a colour of its own."""
    common, broad = np.minimum(accuracy, confidence), 0.9 * breadth
    bars(ax, at, np.zeros_like(common), common, broad, "bar")
    for name, more in (("gap", confidence), ("under", accuracy)):
        some = more > common
        bars(ax, at[some], common[some], more[some], broad, name)
    ax.plot([0, 1], [0, 1], color=color("ink"), linewidth=0.9, dashes=(4, 3), zorder=4)
    ax.set_ylim(0, 1)
    ax.set_yticks([0, 0.5, 1], ["0", "50", "100"])
