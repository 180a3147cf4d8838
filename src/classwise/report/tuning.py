"""The page of a search: how the score depends on each hyper-parameter (paper Figures 7 and 12)."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from classwise.report.numbers import percent
from classwise.report.svg import WIDTHS, axes, both_widths, canvas, color
from classwise.train.checkpoint import write_atomic

if TYPE_CHECKING:
    from classwise.lab.tune import Stage, Tuning

__all__ = ["sensitivity", "write_tuning"]

_TEMPLATE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{ method }} · tuning · classwise</title><style>{{ css }}</style></head><body>
<header><p class="eyebrow">classwise tuning</p><h1>{{ method }}</h1>
<p class="verdict">Best on the validation split: {{ best }}.</p>
<dl class="facts">
<div><dt>data</dt><dd>{{ data }}</dd></div>
<div><dt>epochs trained</dt><dd>{{ "{:,}".format(epochs) }}</dd></div>
<div><dt>these trials as separate runs</dt><dd>{{ "{:,}".format(alone) }}</dd></div>
<div><dt>the whole grid as separate runs</dt><dd>{{ "{:,}".format(product) }}</dd></div>
</dl></header><main>
{% for stage in stages %}
<section><h2>Stage {{ loop.index }}: {{ stage.names | join(", ") }}</h2><div>
{% if stage.ties %}<p class="absent">{{ stage.ties }}</p>{% endif %}
{% for figure in stage.figures %}{{ figure }}{% endfor %}
<div class="scroll"><table><thead><tr>
{% for name in stage.names %}<th scope="col" class="num">{{ name }}</th>{% endfor %}
<th scope="col" class="num">balanced accuracy, %</th></tr></thead><tbody>
{% for row in stage.rows %}<tr>{% for cell in row %}<td class="num">{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div></div></section>
{% endfor %}
</main></body></html>
"""


def sensitivity(stage: Stage, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the values of a hyper-parameter, and the best and mean score at each.

    Best and mean are over the other hyper-parameters of the stage.
    """
    at = np.array([trial.hyper[name] for trial in stage.trials])
    score = np.array([trial.score for trial in stage.trials])
    values = np.unique(at)
    best = np.array([score[at == value].max() for value in values])
    mean = np.array([score[at == value].mean() for value in values])
    return values, best, mean


def write_tuning(found: Tuning, out: Path) -> Path:
    """Write the page of a search."""
    css = (resources.files("classwise.report") / "style.css").read_text(encoding="utf-8")
    page = (
        jinja2.Environment(autoescape=True)
        .from_string(_TEMPLATE)
        .render(
            css=Markup(css),
            method=found.method,
            data=found.data,
            best=", ".join(f"{name} = {value:.4g}" for name, value in found.best.items()),
            epochs=found.epochs,
            alone=found.epochs_alone,
            product=found.epochs_product,
            stages=[_stage(stage) for stage in found.stages],
        )
    )
    write_atomic(out, lambda part: _write(part, page))
    return out


def _write(path: Path, page: str) -> None:
    path.write_text(page, encoding="utf-8")


def _stage(stage: Stage) -> dict[str, object]:
    ranked = sorted(stage.trials, key=lambda trial: -trial.score)
    return {
        "names": stage.names,
        "ties": stage.ties,
        "figures": [_figure(stage, name) for name in stage.names],
        "rows": [
            [*(f"{trial.hyper[name]:.4g}" for name in stage.names), percent(trial.score, 2)]
            for trial in ranked
        ],
    }


def _figure(stage: Stage, name: str) -> Markup:
    values, best, mean = sensitivity(stage, name)
    others = len(stage.names) > 1
    # Where hardly a value was tried twice there is nothing to take the best of.
    scattered = others and len(values) > len(stage.trials) / 2
    top = stage.best

    def draw(width: str) -> Figure:
        fig = canvas(WIDTHS[width] if width == "narrow" else 600, 220)
        ax = axes(fig, 46, 40, 12, 26)
        if scattered:
            points = np.array([[trial.hyper[name], 100 * trial.score] for trial in stage.trials])
            ax.plot(*points.T, color=color("m1"), linestyle="", marker="o", markersize=4)
        else:
            if others:
                ax.plot(values, 100 * mean, color=color("muted"), linewidth=1.2, linestyle="--")
            ax.plot(values, 100 * best, color=color("m1"), linewidth=1.8, marker="o", markersize=4)
            if _far_apart(values):
                ax.set_xticks(values, [f"{value:g}" for value in values])
        ax.plot(
            top.hyper[name], 100 * top.score, marker="o", markersize=9, color=color("m1"),
            markerfacecolor="none",
        )  # fmt: skip
        low, high = ax.get_ylim()
        ax.set_ylim(max(low, -1), min(high, 101))
        ax.set_xlabel(name, color=color("muted"))
        ax.set_title("balanced accuracy, %", loc="left", fontsize=11, color=color("muted"))
        return fig

    label = f"Balanced accuracy on the validation split over {name}"
    caption = f"{name}: {_caption(scattered, others)}; the ring is the best trial"
    return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(
        both_widths(draw, label), caption
    )


def _far_apart(values: np.ndarray) -> bool:
    """Whether each value can have its name below it; drawn ones lie as they fall.

    >>> _far_apart(np.array([0.65, 0.75, 0.8, 1.0])), _far_apart(np.array([0.1, 0.11, 1.0]))
    (True, False)
    """
    return bool((np.diff(values) > 0.12 * (values[-1] - values[0])).all())


def _caption(scattered: bool, others: bool) -> str:
    if scattered:
        return "every trial"
    return "the best over the rest of the stage, and the mean (dashed)" if others else "every value"
