"""How cost grows, drawn from the results: one SVG for each of four questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

__all__ = ["draw"]


def draw(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the plots of the growth part.

    Args:
        results: of the whole suite.
        folder: made if it is not there.
    """
    growth = results["growth"]
    rows = growth["classes"]
    classes, batch = [row["classes"] for row in rows], rows[0]["batch"]
    times = {name: [row[name] for row in rows] for name in rows[0] if name not in _SIZES}
    on_classes = ("classes", f"ms, batch {batch}")
    some = {name: times[name] for name in ("cross_entropy", "criterion")}
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _plot(folder / "growth-statistics.svg", classes, {"statistics": times["statistics"]},
              *on_classes),
        _plot(folder / "growth-criterion.svg", classes, some, *on_classes),
        _plot(folder / "growth-planning.svg", *_seconds(growth["planning"], "runs"), "runs",
              "s to plan"),
        _plot(folder / "growth-listing.svg", *_seconds(growth["listing"], "phases"),
              "phases in the store", "s to list"),
    ]  # fmt: skip


_SIZES = ("classes", "batch")


def _seconds(
    rows: Sequence[Mapping[str, Any]], size: str
) -> tuple[list[float], dict[str, list[float]]]:
    return [row[size] for row in rows], {"measured": [row["seconds"] for row in rows]}


def _plot(
    path: Path, sizes: Sequence[float], times: Mapping[str, Sequence[float]], x: str, y: str
) -> Path:
    """Draw times against sizes, both logarithmic, and a line in proportion to the size."""
    # The same file for the same numbers: no date, no random names.
    with mpl.rc_context({"svg.hashsalt": path.name, "font.size": 9}):
        figure = Figure(figsize=(4.4, 3.0), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for name, values in times.items():
            axes.plot(sizes, values, marker="o", markersize=4, label=name.replace("_", "-"))
        last = max(values[-1] for values in times.values())
        axes.plot(
            sizes,
            [last * size / sizes[-1] for size in sizes],
            color="0.6",
            linestyle=":",
            label="in proportion",
        )
        axes.set(xscale="log", yscale="log", xlabel=x, ylabel=y)
        axes.grid(color="0.9")
        axes.legend(frameon=False)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    return path
