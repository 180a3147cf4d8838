"""Figures over epochs: learning curves, and the slopes by shots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, ScalarFormatter

from classwise.errors import DataError
from classwise.report.comparison import GROUPS, Comparison, Method
from classwise.report.svg import METHOD_COLORS, axes, canvas, color, inline
from classwise.train.record import RunRecord

__all__ = ["learning_curves", "slope_panels"]

_KAPPAS = {"kappa_star": "κ*, accuracy on logit", "kappa_plus": "κ+, accuracy on confidence"}


def learning_curves(c: Comparison) -> list[Markup]:
    """Draw loss, balanced accuracy and learning rate over epochs; what was not logged is absent."""
    wanted: list[tuple[str, Callable[[Mapping[str, Any]], object]]] = [
        ("training loss", lambda row: (row.get("train") or {}).get("loss")),
        ("balanced accuracy, %", lambda row: (row.get(str(c.split)) or {}).get("balanced")),
        ("learning rate", lambda row: row.get("lr")),
    ]
    panels = []
    for title, pick in wanted:
        lines = [(m, n, [_series(run, pick) for run in m.runs]) for n, m in c.colored]
        if any(len(epochs) for _, _, seeds in lines for epochs, _ in seeds):
            panels.append(_learning(c, title, lines))
    return panels


_Series = tuple[np.ndarray, np.ndarray]


def _series(run: RunRecord, pick: Callable[[Mapping[str, Any]], object]) -> _Series:
    pairs = [(row.get("epoch", i), pick(row)) for i, row in enumerate(run.epochs)]
    finite = [(e, float(v)) for e, v in pairs if isinstance(v, (int, float)) and np.isfinite(v)]
    columns = np.array(finite, dtype=float).reshape(-1, 2).T
    return columns[0], columns[1]


def _learning(c: Comparison, title: str, lines: list[tuple[Method, int, list[_Series]]]) -> Markup:
    fig = canvas(300, 210)
    ax = axes(fig, 44, 34, 8, 24)
    scale = 100.0 if title.startswith("balanced") else 1.0
    ends = []
    for method, number, seeds in reversed(lines):
        for epochs, values in seeds:
            one = len(epochs) == 1
            ax.plot(
                epochs + 1,
                scale * values,
                color=color(METHOD_COLORS[number]),
                linewidth=1.4,
                alpha=0.85 if len(seeds) == 1 else 0.6,
                marker="o" if one else None,
                zorder=2 + (number == 1),
            )
        last = [values[-1] for _, values in seeds if len(values)]
        if last:
            ends.append(f"{method.label} ends at {scale * float(np.mean(last)):.3g}")
    if title == "learning rate":
        _log_if_possible(ax)
    elif title.startswith("balanced"):
        ax.set_ylim(0, None)
    _over_epochs(ax, title, list(c.runs))
    label = f"{title} over epochs: {'; '.join(reversed(ends))}."
    return inline(fig, label)


def _log_if_possible(ax: Axes) -> None:
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in ax.lines])
    if values.min() > 0 and values.max() > 20 * values.min():
        ax.set_yscale("log")
        ax.yaxis.set_minor_locator(NullLocator())
        ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    else:
        ax.set_ylim(0, None)


def _over_epochs(ax: Axes, title: str, runs: Sequence[RunRecord]) -> None:
    ax.set_title(title, loc="left", fontsize=11, color=color("ink"), pad=8)
    ax.set_xlabel("epoch", color=color("muted"), fontsize=11, labelpad=1)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    for start in sorted({int(s) for run in runs for s in run.phase_starts if s > 0}):
        ax.axvline(start + 0.5, color=color("muted"), linewidth=0.9, dashes=(3, 3), zorder=1)
        ax.annotate(
            "T0",
            (start + 0.5, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            color=color("muted"),
        )


def slope_panels(c: Comparison, method: Method) -> list[Markup]:
    """Draw kappa* and kappa+ of a method over epochs: median and quantiles by shots."""
    panels = []
    for name, title in _KAPPAS.items():
        epochs, values = _slopes(method, name)
        if len(epochs):
            panels.append(_slope_panel(c, method, title, epochs, values))
    return panels


def _slopes(method: Method, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return epochs (E,) and slopes (E, seeds, C); NaN where a run has none."""
    classes = len(method.runs[0].class_names)
    by_epoch: dict[int, list[np.ndarray]] = {}
    for run in method.runs:
        for i, row in enumerate(run.epochs):
            values = row.get(name)
            if values is None:
                continue
            if not isinstance(values, list) or len(values) != classes:
                raise DataError(
                    f"{run.folder}: {name} of epoch {row.get('epoch', i)} must list one slope for "
                    f"each of the {classes} classes."
                )
            by_epoch.setdefault(row.get("epoch", i), []).append(np.array(values, dtype=float))
    epochs = sorted(by_epoch)
    seeds = max((len(rows) for rows in by_epoch.values()), default=0)
    values = np.full((len(epochs), seeds, classes), np.nan)
    for i, epoch in enumerate(epochs):
        values[i, : len(by_epoch[epoch])] = by_epoch[epoch]
    values[~(values > 0)] = np.nan  # what a logarithm cannot show
    kept = np.isfinite(values).any((1, 2))
    return np.array(epochs)[kept], values[kept]


def _slope_panel(
    c: Comparison, method: Method, title: str, epochs: np.ndarray, values: np.ndarray
) -> Markup:
    fig = canvas(440, 240)
    ax = axes(fig, 40, 34, 8, 24)
    ax.axhline(1, color=color("muted"), linewidth=0.9)
    words = []
    for group in GROUPS:
        mask = c.groups[group].numpy()
        some = np.isfinite(values[:, :, mask]).any((1, 2))
        if not some.any():
            continue
        part = values[:, :, mask].reshape(len(epochs), -1)[some]
        low, middle, high = _quantiles(part)
        tone = color(group)
        if len(part) > 1:
            ax.fill_between(epochs[some] + 1, low, high, color=tone, alpha=0.18, linewidth=0)
        marker = "o" if len(part) == 1 else None
        ax.plot(epochs[some] + 1, middle, color=tone, linewidth=2, marker=marker)
        words.append(f"{group} {middle[-1]:.2f} ({low[-1]:.2f} to {high[-1]:.2f})")
    ax.set_yscale("log")
    _plain_log_ticks(ax)
    _over_epochs(ax, title, method.runs)
    label = f"{title} of {method.label} by shots, last epoch: {', '.join(words)}."
    return inline(fig, label)


def _quantiles(part: np.ndarray) -> np.ndarray:
    """Return the 10, 50 and 90 % quantiles of each row without its NaN, (3, E)."""
    return np.stack([np.quantile(row[np.isfinite(row)], (0.1, 0.5, 0.9)) for row in part], axis=1)


def _plain_log_ticks(ax: Axes) -> None:
    low, high = ax.get_ylim()
    low, high = min(low, 0.8), max(high, 1.25)
    ax.set_ylim(low, high)
    ticks = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 5, 10, 20, 50, 100]
    coarse = high / low > 6
    shown = [t for t in ticks if low <= t <= high and not (coarse and t in (0.67, 0.8, 1.25, 1.5))]
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(ScalarFormatter())
    ax.set_yticks(shown, [f"{t:g}" for t in shown])
