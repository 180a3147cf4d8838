"""Write the tables of README and docs from the registry and from measured results.

Text between ``<!-- generated: NAME -->`` and ``<!-- end -->`` is replaced. ``--check`` changes
nothing and fails where something would change.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import classwise as cw
from classwise._hyper import DEFAULTS
from classwise.estimation import PRESETS
from classwise.recipes import SUFFIXES

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in line)} |\n" for line in lines)


def methods() -> str:
    """Return the methods, short."""
    rows = [
        [
            f"`{row.name}`",
            row.title,
            ", ".join(f"`+{s}`" for s in row.suffixes),
            row.needs,
            row.source,
        ]
        for row in cw.list_methods()
    ]
    return table(["base", "method", "may carry", "needs", "source"], rows)


def methods_in_full() -> str:
    """Return the methods with phases and defaults."""
    rows = []
    for row in cw.list_methods():
        defaults = "; ".join(f"{k} = {v:g} ({source})" for k, (v, source) in row.defaults.items())
        phases = row.recipe.partition(": ")[2].replace("|", "then")
        rows.append([f"`{row.name}`", row.title, phases, defaults, row.needs, row.source])
    return table(
        ["base", "method", "phases", "defaults and their sources", "needs", "source"], rows
    )


def suffixes() -> str:
    """Return the defaults of the suffixes."""
    rows = [
        [f"`+{suffix}`", name, f"{DEFAULTS[suffix, name].value:g}", DEFAULTS[suffix, name].source]
        for suffix, names in SUFFIXES.items()
        for name in names
    ]
    return table(["suffix", "hyper-parameter", "default", "source"], rows)


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


def streaming() -> str:
    """Return the cost of the criterion."""
    report = json.loads((ROOT / "benchmarks/results.json").read_text(encoding="utf-8"))
    rows = []
    for row in report["streaming"]:
        ratios = [
            f"{row[name][1]:.2f} ({row[name][0]:.2f} to {row[name][2]:.2f})"
            for name in ("criterion_ratio", "statistics_ratio")
        ]
        rows.append(
            [
                f"{row['classes']:,}",
                row["batch"],
                row["group_by"],
                f"{row['cross_entropy_ms']:.2f} ms",
                *ratios,
                f"{row['state_mb']:.1f} MB",
                f"{row['epoch_end_ms']:.1f} ms",
            ]
        )
    header = ["classes", "batch", "grouping", "`F.cross_entropy`", "criterion", "with statistics",
              "state", "epoch end"]  # fmt: skip
    made = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    return table(header, rows) + f"\nMeasured on: {made}.\n"


def quickstart() -> str:
    """Return what the quick start found."""
    report = json.loads((ROOT / "results/quickstart.json").read_text(encoding="utf-8"))
    names = ["balanced", "many", "medium", "few", "ece"]
    rows = [
        [f"`{row['method']}`", *(f"{row[name][0]:.1f} ± {row[name][1]:.1f}" for name in names)]
        for row in report["rows"]
    ]
    made = ", ".join(f"{name} {value}" for name, value in report["made_by"].items())
    header = ["method", "balanced", "many", "medium", "few", "ECE"]
    return table(header, rows) + f"\nMade by `examples/quickstart.py`: {made}.\n"


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods,
    "methods-in-full": methods_in_full,
    "presets": presets,
    "quickstart": quickstart,
    "streaming": streaming,
    "suffixes": suffixes,
}


def written(text: str) -> str:
    """Return a document with its tables made anew."""
    return MARKED.sub(lambda m: m[1] + TABLES[m[2]]() + m[3], text)


def main() -> int:
    """Write all documents, or check them."""
    stale = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        old = path.read_text(encoding="utf-8")
        new = written(old)
        if new != old and "--check" in sys.argv[1:]:
            stale.append(path.relative_to(ROOT))
        elif new != old:
            path.write_text(new, encoding="utf-8")
    for path in stale:
        print(f"{path} is not up to date; run `make docs`.", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
