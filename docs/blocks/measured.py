"""What was measured, from the files that hold it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blocks.markdown import table
from classwise.paper import item_names, load, show
from classwise.paper.results import read
from classwise.paper.show import Line, as_markdown

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "results"


def demo() -> str:
    """Return what ``make demo`` prints."""
    report = json.loads((RESULTS / "demo.json").read_text(encoding="utf-8"))
    names = ["balanced", "many", "medium", "few", "ece"]
    rows = [
        [f"`{row['method']}`", *(_mean_and_spread(row[name]) for name in names)]
        for row in report["methods"]
    ]
    made = ", ".join(f"{name} {value}" for name, value in report["made_on"].items())
    header = ["method", "balanced", "many", "medium", "few", "ECE"]
    return table(header, rows) + f"\n`{report['command']}`; {made}.\n"


def _mean_and_spread(value: dict[str, Any] | None) -> str:
    return "n/a" if value is None else f"{value['mean']:.1f} ± {value['spread']:.1f}"


def _lines(name: str, where: str = "") -> list[Line]:
    """Return the lines of a table of the paper that we have runs for."""
    path = RESULTS / f"{name}.csv"
    lines = show(load(name), read(path), where) if path.exists() else []
    return [line for line in lines if line.last is not None]


def cifar100() -> str:
    """Return our runs of one column of Table 3: CIFAR-100-LT, exponential, ratio 100."""
    where = "dataset=cifar100,imbalance=exp,ratio=100"
    lines = _lines("table-3", where)
    if not lines:
        return f"Not trained yet: `classwise paper run table-3 --where {where}`.\n"
    return as_markdown(lines)


def paper() -> str:
    """Return our runs of the paper's tables and figures."""
    names = [name for name in item_names() if not name.startswith("study")]
    return _items(names) or "Nothing of the paper has been trained here yet.\n"


def studies() -> str:
    """Return our runs of our own studies."""
    names = [name for name in item_names() if name.startswith("study")]
    return _items(names) or "None of the studies has been trained here yet.\n"


def _items(names: Sequence[str]) -> str:
    """Return a section for each item that has results; its picture where one is kept."""
    parts = []
    for name in names:
        lines = _lines(name)
        if not lines:
            continue
        item = load(name)
        number = name.replace("-", " ").capitalize()
        title = item.title if name.startswith("study") else f"{number}: {item.title}"
        picture = ROOT / f"docs/figures/{name}.svg"
        drawn = f"![{item.title}](figures/{name}.svg)\n\n" if picture.exists() else ""
        parts.append(f"### {title}\n\n{drawn}{as_markdown(lines)}")
    return "\n".join(parts)
