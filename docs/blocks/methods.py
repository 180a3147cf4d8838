"""Methods, suffixes and slope estimators, from their registries."""

from __future__ import annotations

import dataclasses
import re
import textwrap

import classwise as cw
from blocks.markdown import equation, paragraphs, table
from classwise._hyper import DEFAULTS
from classwise.estimation import PRESETS
from classwise.lab.tune import default_grid
from classwise.losses import LOSSES
from classwise.phases import DEFER, TERMS, WEIGHTS, Part, Phase
from classwise.recipes import BASES, SUFFIXES, MethodRow, Recipe


def methods() -> str:
    """Return the methods, short."""
    rows = [
        [f"`{row.name}`", row.title, _suffixes(row), row.needs, row.source]
        for row in cw.list_methods()
    ]
    return table(["base", "method", "may carry", "needs", "source"], rows)


def methods_in_full() -> str:
    """Return a section for each method: its source, phases, formulas, defaults, what it needs."""
    return "\n".join(_section(row) for row in cw.list_methods())


def _section(row: MethodRow) -> str:
    facts = {
        "Source": row.source,
        "May carry": _suffixes(row),
        "Needs": row.needs,
    }
    lines = [f"### `{row.name}`: {row.title}", ""]
    lines += [" · ".join(f"{name}: {value}" for name, value in facts.items() if value), ""]
    lines += [*_phases(Recipe.parse(row.name)), ""]
    if row.defaults:
        rows = [[f"`{k}`", f"{v:g}", source] for k, (v, source) in row.defaults.items()]
        lines += [table(["hyper-parameter", "default", "its source"], rows)]
    refusals = BASES[row.name].refuses
    if refusals:
        why: dict[str, list[str]] = {}
        for suffix, reason in refusals.items():
            why.setdefault(reason, []).append(f"`+{suffix}`")
        lines += [f"Not with {', '.join(names)}: {reason}." for reason, names in why.items()]
        lines += [""]
    return "\n".join(lines)


def _phases(recipe: Recipe) -> list[str]:
    """Return what holds from when on: terms, weights and loss, with their formulas."""
    lines = ["```text"]
    for phase in recipe.phases:
        assert isinstance(phase.terms, Part)
        assert isinstance(phase.loss, Part)
        lines += [_when(phase), f"  {phase.terms}", _formula(TERMS[phase.terms.name].build)]
        if phase.weights is not None:
            lines += [f"  weights {phase.weights}", _formula(WEIGHTS[phase.weights.name][0])]
        if phase.loss.name != "vs":
            loss = equation(LOSSES[phase.loss.name].function)
            lines += [f"  loss {phase.loss}", textwrap.indent(loss, "      ")]
    return [*lines, "```"]


def _when(phase: Phase) -> str:
    if phase.start == 0:
        return "from the first epoch on"
    if phase.start == DEFER:
        return "from T0 on"
    return f"from {phase.start:.0%} of training on"


def _formula(function: object) -> str:
    """Return what the first paragraph of a docstring says that the function returns."""
    said = " ".join(paragraphs(function)[0].split()).removeprefix("Return ").rstrip(".")
    said = re.sub(r" eq:\w+", "", said)  # labels of the paper's source
    return textwrap.fill(said, 76, initial_indent=" " * 6, subsequent_indent=" " * 6)


def _suffixes(row: MethodRow) -> str:
    return ", ".join(f"`+{s}`" for s in row.suffixes)


def suffixes() -> str:
    """Return the defaults of the suffixes."""
    rows = [
        [f"`+{suffix}`", f"`{name}`", f"{value.value:g}", value.source]
        for suffix, names in SUFFIXES.items()
        for name, value in ((name, DEFAULTS[suffix, name]) for name in names)
    ]
    return table(["suffix", "hyper-parameter", "default", "source"], rows)


def grids() -> str:
    """Return the default of each hyper-parameter that is worth a search, and what is tried."""
    rows = []
    for method in ("la", "vs+tla+adrw", "cvs+adrw"):
        base, *more = method.split("+")
        for name, values in default_grid(method).items():
            parts = (part for part in (base, *more) if (part, name) in DEFAULTS)
            default = next((f"{DEFAULTS[part, name].value:g}" for part in parts), "that of tau")
            rows.append([f"`{method}`", f"`{name}`", default, ", ".join(f"{v:g}" for v in values)])
    return table(["method", "hyper-parameter", "default", "tried"], rows)


def presets() -> str:
    """Return the parts of the slope presets."""
    rows = []
    for field in dataclasses.fields(cw.SlopeConfig):
        values = (getattr(config, field.name) for config in PRESETS.values())
        rows.append([f"`{field.name}`", *(_part(value) for value in values)])
    return table(["part", *(f'`"{name}"`' for name in PRESETS)], rows)


def _part(value: object) -> str:
    if isinstance(value, tuple):
        return f"{value[0]:.3g} to {value[1]:.3g}"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:g}" if isinstance(value, float) else f"{value}"
