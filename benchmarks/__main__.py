"""Measure everything, print it, and write ``results.json``, plots and tables.

python -m benchmarks            everything, in five minutes; writes
python -m benchmarks PART ...   some parts; only prints
python -m benchmarks --quick    small sizes and few turns; only prints

Measure when nothing else runs. Images are CIFAR-100 where ``CLASSWISE_DATA`` names a folder that
holds it, and noise of its shape otherwise.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.targets import TARGETS
from benchmarks.timing import machine

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results.json"
PARTS = (
    "starting",
    "statistics",
    "criterion",
    "linear",
    "training",
    "pipeline",
    "ends",
    "growth",
)


def measured(parts: Sequence[str], *, quick: bool) -> dict[str, Any]:
    """Measure parts of the suite, and say what came out."""
    results: dict[str, Any] = {"machine": machine()}
    print(", ".join(f"{name} {value}" for name, value in results["machine"].items()), flush=True)
    took: dict[str, float] = {}
    for part in parts:
        began = time.perf_counter()
        results[part] = importlib.import_module(f"benchmarks.{part}").measure(quick=quick)
        took[part] = round(time.perf_counter() - began, 1)
        print(f"\n{part}, {took[part]:.0f} s")
        print(_indented(results[part]), flush=True)
    results["took"] = {**took, "together": round(sum(took.values()), 1)}
    results["targets"] = _verdicts(results)
    print(f"\ntogether {results['took']['together']:.0f} s")
    return results


def _verdicts(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Print what is claimed beside what was measured, and return it."""
    print(f"\n{'what is claimed':<66}{'limit':>14}{'measured':>12}")
    rows = []
    for target in TARGETS:
        if target.part not in results:
            continue
        value = target.value(results[target.part])
        limit = f"{'>=' if target.at_least else '<='} {target.limit:g} {target.unit}"
        verdict = "" if target.met(value) else "   missed"
        print(f"{target.what:<66}{limit:>14}{value:>12.3g}{verdict}")
        said = {name: getattr(target, name) for name in _SAID}
        rows.append({**said, "value": value, "met": target.met(value)})
    return rows


_SAID = ("what", "against", "limit", "unit", "at_least")


def _indented(value: Any, depth: int = 1) -> str:
    """Return nested results as lines, numbers with three digits."""
    pad = "  " * depth
    lines = []
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in pairs:
        if isinstance(item, dict) or (isinstance(item, list) and item and not _number(item[0])):
            lines += [f"{pad}{key}", _indented(item, depth + 1)]
        elif isinstance(item, list):
            low, middle, high = item
            lines.append(f"{pad}{key:<22}{middle:.3g} ({low:.3g} to {high:.3g})")
        else:
            lines.append(f"{pad}{key:<22}{f'{item:.4g}' if _number(item) else item}")
    return "\n".join(lines)


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def main() -> int:
    """Run the suite from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure speed.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="small sizes, few turns, no files")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}.")
    results = measured(options.parts or PARTS, quick=options.quick)
    if options.quick or options.parts:
        return 0
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"written to {RESULTS.relative_to(ROOT)}; now plots and tables")
    from benchmarks.plots import draw  # noqa: PLC0415  (matplotlib is not needed to measure)

    draw(results, ROOT / "docs/plots")
    done = subprocess.run([sys.executable, "docs/generate.py"], cwd=ROOT, check=False)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
