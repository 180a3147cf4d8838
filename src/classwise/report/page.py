"""The page: everything put into the template, and written."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import classwise
from classwise.errors import ArgumentError, StateError
from classwise.report import tables
from classwise.report.comparison import GROUPS, Comparison, Method, compare, read_all, unfinished
from classwise.report.confusion import flow, worst_classes
from classwise.report.curves import learning_curves, slope_panels
from classwise.report.diagrams import reliability_panels
from classwise.report.gain import gains
from classwise.report.names import clean, short
from classwise.report.numbers import NOTHING, percent
from classwise.report.ranked import BINNED_FROM, SMOOTHED_FROM, accuracy_by_class, bound_by_class
from classwise.report.svg import METHOD_COLORS
from classwise.report.verdict import sentence
from classwise.train.checkpoint import write_atomic
from classwise.train.record import RunRecord

__all__ = ["render", "write_report"]

_SPLITS = {"test": "test split", "val": "validation split", None: "nothing"}


def write_report(
    runs: Sequence[Path | str | RunRecord], out: Path | str, *, title: str | None = None
) -> Path:
    """Write one self-contained HTML page on one run, or on several side by side.

    The page needs no network and no JavaScript. It says in one sentence what the best method gained
    on the tail and what it cost the head, and shows accuracy by shots and by class, reliability
    diagrams, slopes, the class-dependent part of the bound, learning curves, confusions and
    the configuration. Runs that differ in nothing but their seeds are one method with a spread.

    Args:
        runs: run folders, or records of them; on the same training data.
        out: the HTML file; folders above it are made.
        title: of the page; None is the data set with its imbalance.

    Returns:
        ``out``.

    Raises:
        ArgumentError: if the runs cannot stand side by side.
        DataError: if a folder holds no run.
        StateError: if the page cannot be written.
    """
    records = read_all(runs)
    out = Path(out)
    if out.is_dir():
        raise ArgumentError(f"out={str(out)!r} is a folder; name the file, such as report.html.")
    page = render(compare(records), title)
    # A handler for surrogates: text that is not from data, such as a title, may hold halves too.
    content = page.encode("utf-8", errors="replace")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(f"{out} could not be written: {error.strerror}.") from error
    write_atomic(out, lambda part: _write(part, content))
    return out


def _write(part: Path, content: bytes) -> None:
    part.write_bytes(content)


def render(c: Comparison, title: str | None = None) -> str:
    """Return the page as HTML.

    Args:
        c: runs that stand side by side.
        title: None is the data set with its imbalance.
    """
    package = resources.files("classwise.report")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "short": short}
    template = environment.from_string(
        package.joinpath("template.html").read_text(encoding="utf-8")
    )
    css = package.joinpath("style.css").read_text(encoding="utf-8")
    return template.render(
        css=Markup(css),
        title=clean(_title(c) if title is None else title),
        version=classwise.__version__,
        verdict=_unbroken(clean(sentence(c))),
        notes=[clean(note) for note in _notes(c)],
        facts=_facts(c),
        split=_SPLITS[c.split] if c.split else None,
        groups=GROUPS,
        names=[clean(name, i) for i, name in enumerate(c.class_names)],
        counts=c.class_counts.tolist(),
        swatches=[{"label": m.label, "token": METHOD_COLORS[n]} for n, m in c.colored],
        **_sections(c),
    )


def _unbroken(text: str) -> str:
    """Keep a number and its spread, or its sign, on one line."""
    return text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}").replace(
        " %", "\N{NO-BREAK SPACE}%"
    )


def _sections(c: Comparison) -> dict[str, Any]:
    shown = _shown(c)
    slopes = [(m, slope_panels(c, m)) for m in c.drawn]
    confusions = [(m, flow(c, m)) for m in shown]
    shares = [(m, tables.bound_shares(c, m)) for m in c.drawn]
    return {
        "columns": (head := tables.columns(c)),
        "methods": (rows := _method_rows(c, head)),
        "chosen": _common_note([row["best"] for row in rows]),
        "any_best": any(row["best"].note for row in rows),
        "rivals": len(c.rivals),
        "undrawn": len(c.methods) - len(list(c.colored)),
        "gains": gains(c),
        "baseline": c.baseline.label if c.baseline else None,
        "headline": c.headline.label,
        "seeds": max(len(m.runs) for m in c.methods),
        "classes": _class_rows(c),
        "measured": [m.label for _, m in c.colored if m.tensors(f"{c.split}.class_accuracy")],
        "listed": len(c.class_names) < SMOOTHED_FROM,
        "binned": len(c.class_names) >= BINNED_FROM,
        "by_class": accuracy_by_class(c) if len(c.class_names) >= SMOOTHED_FROM else None,
        "reliability": [(m.label, p) for m in c.drawn if (p := reliability_panels(c, m))],
        "slopes": [(m.label, panels) for m, panels in slopes if panels],
        "bound": bound_by_class(c),
        "bound_shares": [(m.label, share) for m, share in shares if share],
        "bound_top": tables.top_of_bound(c.headline),
        "curves": learning_curves(c),
        "phases": any(s > 0 for run in c.runs for s in run.phase_starts),
        "worst": worst_classes(c, c.headline),
        "flows": [(m.label, cells) for m, cells in confusions if cells],
        "runs": tables.run_rows(c),
        "configuration": tables.settings([run.config for run in c.runs]),
        "provenance": tables.settings([run.provenance for run in c.runs]),
        "recipes": [(m.label, clean(m.runs[0].recipe)) for m in c.methods],
    }


def _shown(c: Comparison) -> list[Method]:
    """Return the headline and the baseline, where there are two."""
    return list(dict.fromkeys(m for m in (c.baseline, c.headline) if m is not None))


def _title(c: Comparison) -> str:
    config = c.headline.runs[0].config
    data = config.get("data")
    if not isinstance(data, dict) or "source" not in data:
        return "Class-imbalanced training"
    imbalance = data.get("imbalance")
    return f"{data['source']}, {imbalance}" if imbalance else str(data["source"])


def _facts(c: Comparison) -> list[tuple[str, str]]:
    counts = c.class_counts
    smallest = max(1, int(counts.min()))
    runs = list(c.runs)
    model = runs[0].config.get("model")
    name = model.get("model") if isinstance(model, dict) else model
    facts = [
        ("classes", f"{len(counts):,}"),
        ("training samples", f"{int(counts.sum()):,}"),
        ("imbalance ratio", f"{int(counts.max()) / smallest:,.4g}"),
        ("model", clean(tables.written(name))),
        ("runs", f"{len(runs):,}{f', {len(c.methods)} methods' if len(c.methods) > 1 else ''}"),
        ("measured on", _SPLITS[c.split]),
    ]
    return [fact for fact in facts if fact[1] != "auto"]


def _notes(c: Comparison) -> list[str]:
    """Say what makes the numbers weaker than they look."""
    notes = []
    going = [run for run in c.runs if unfinished(run)]
    if going:
        states = "; ".join(
            f"{run.method}, seed {run.seed}: {tables.progress(run)}" for run in going
        )
        notes.append(f"Numbers are of the last epoch measured so far. {states}.")
    others = c.confounders()
    if others:
        notes.append(f"The methods also differ in {', '.join(others)}.")
    missing = [
        f"{m.label} ({s.missing} of {s.runs})"
        for m in c.methods
        if c.split and (s := m.number("balanced", c.split)).missing
    ]
    if missing:
        notes.append(f"Without a finite balanced accuracy: {', '.join(missing)}.")
    if c.split == "val":
        notes.append("There is no test split; all numbers are of the validation split.")
    return notes


def _method_rows(c: Comparison, head: list[tables.Column]) -> list[dict[str, Any]]:
    cells = [tables.method_cells(c, column) for column in head]
    tokens = {m.label: METHOD_COLORS[n] for n, m in c.colored}
    return [
        {
            "label": method.label,
            "token": tokens.get(method.label, "muted"),
            "cells": [column[i] for column in cells],
            "best": tables.best_epoch_cell(method),
            "seeds": len(method.runs),
            "going": sum(unfinished(run) for run in method.runs),
        }
        for i, method in enumerate(c.methods)
    ]


def _common_note(cells: list[tables.Cell]) -> str:
    """Return what all best epochs were chosen on, if it is the same, for the head of the table."""
    notes = {cell.note for cell in cells if cell.text != NOTHING}
    return notes.pop() if len(notes) == 1 else ""


def _class_rows(c: Comparison) -> list[dict[str, Any]]:
    """Return each class with its accuracies, the most frequent first; none for very many."""
    if len(c.class_names) >= BINNED_FROM:
        return []
    means = [(n, m.class_mean(f"{c.split}.class_accuracy")) for n, m in c.colored]
    measured = [(n, mean.tolist()) for n, mean in means if mean is not None]
    group_of = [next(g for g in GROUPS if bool(c.groups[g][i])) for i in range(len(c.class_names))]
    return [
        {
            "index": i,
            "group": group_of[i],
            "dots": [{"token": METHOD_COLORS[n], "value": values[i]} for n, values in measured],
        }
        for i in c.order.tolist()
        if measured
    ]
