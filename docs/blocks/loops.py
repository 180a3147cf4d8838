"""What the examples measured, from the files that they wrote with ``--json``."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

from blocks.markdown import table
from blocks.measured import RESULTS


def tabular() -> str:
    """Return balanced accuracy on scikit-learn's tables."""
    report = _read("tabular")
    names = list(report["tables"])
    header = ["model", *(f"{name} ({shape})" for name, shape in report["tables"].items())]
    rows = [[row["model"], *(_percent(row[name]) for name in names)] for row in report["rows"]]
    return table(header, rows) + _made("tabular_sklearn.py", report)


def segmentation() -> str:
    """Return what terms do to a rare class of pixels."""
    report = _read("segmentation")
    names = [name for name in report["rows"][0] if name != "method"]
    header = [
        "method",
        *(f"{name} of the spot" for name in names if name != "mean IoU"),
        "mean IoU",
    ]
    rows = [[f"`{row['method']}`", *(_percent(row[n]) for n in names)] for row in report["rows"]]
    return table(header, rows) + _made("segmentation.py", report)


def topics() -> str:
    """Return what methods do in a short training with Hugging Face's schedule."""
    report = _read("topics")
    names = [name for name in report["rows"][0] if name != "method"]
    rows = [[f"`{row['method']}`", *(_percent(row[n]) for n in names)] for row in report["rows"]]
    return table(["method", *names], rows) + _made("transformers_trainer.py --compare", report)


def priors() -> str:
    """Return accuracy and loss of two models for two test priors."""
    report = _read("priors")
    names = [name for name in report["rows"][0] if name != "model"]
    rows = [
        [f"`{row['model']}`", *(_cell(row[n], percent=n.startswith("accuracy")) for n in names)]
        for row in report["rows"]
    ]
    note = "Accuracy in percent, loss in nats; mean and deviation over seeds."
    return table(["model", *names], rows) + _made("which_prior.py", report, note)


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def _percent(values: Sequence[float]) -> str:
    return _cell(values, percent=True)


def _cell(values: Sequence[float], *, percent: bool) -> str:
    """Return mean and standard deviation over seeds."""
    mean, spread = statistics.mean(values), statistics.stdev(values)
    if percent:
        return f"{100 * mean:.1f} ± {100 * spread:.1f}"
    return f"{mean:.2f} ± {spread:.2f}"


def _made(example: str, report: Any, note: str = "Percent, mean and deviation over seeds.") -> str:
    made = ", ".join(f"{name} {value}" for name, value in report["made_by"].items())
    return f"\n{note} Made by `examples/{example}`: {made}.\n"
