"""``classwise train`` and ``classwise compare``."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from classwise.cli.console import Watcher, console, percent, print_json, table
from classwise.cli.flags import (
    Output,
    RunFlags,
    Settings,
    Switch,
    Work,
    defaults,
    given,
    run_config,
)
from classwise.cli.parsing import parse
from classwise.cli.planning import print_plan, training
from classwise.errors import ArgumentError
from classwise.lab import Request, Store, execute, make_plan
from classwise.recipes import Recipe
from classwise.report import write_report
from classwise.train.checkpoint import make_folder
from classwise.train.config import RunConfig, with_values
from classwise.train.launch import run, speaks
from classwise.train.record import RunRecord

__all__ = ["GROUPS", "compare", "summary_rows", "train"]

GROUPS = ("balanced", "many", "medium", "few", "ece")
HEADER = ("method", "balanced", "many", "medium", "few", "ECE")


@dataclass(frozen=True)
class TrainFlags:
    """Train one method on a data set, and write a report.

    Args:
        run: settings of the run.
        settings: where settings come from.
        output: what is printed.
        out: folder of the run; by default runs/ and a name made of data, method and seed.
        resume: go on with the run that lies in the folder.
        report: write report.html into the folder.
    """

    run: RunFlags = field(default_factory=RunFlags)
    settings: Settings = field(default_factory=Settings)
    output: Output = field(default_factory=Output)
    out: Path | None = None
    resume: Switch = False
    report: bool = True


def train(words: Sequence[str]) -> int:
    """Train one method."""
    flags = parse(TrainFlags, words, prog="train", default=TrainFlags(run=defaults(words)))
    config = run_config(flags.run, flags.settings)
    folder = flags.out or Path("runs") / name_of(config)
    quiet = flags.output.quiet or flags.output.json
    record = run(config, folder, resume=flags.resume, observer=Watcher(quiet=quiet))
    if not speaks():
        return 0
    page = write_report([record], folder / "report.html") if flags.report else None
    if flags.output.json:
        print_json({"run": str(folder), "report": page and str(page), **record.result})
        return 0
    _print_run(record)
    screen = console()
    screen.print(f"run:    {folder}", markup=False)
    if page is not None:
        screen.print(f"report: {page}", markup=False)
    return 0


def name_of(config: RunConfig) -> str:
    """Return the name of a run's folder."""
    source = config.data.source.partition(":")[0]
    text = f"{source}-{config.data.imbalance}-{config.method.method}-seed{config.seed}"
    return re.sub(r"[^\w.+-]+", "_", text)


def _print_run(record: RunRecord) -> None:
    result, screen = record.result, console()
    rows = [[record.method, *(percent(result["last"].get(name)) for name in GROUPS)]]
    best = result.get("best")
    if best is not None:
        chosen = f"best epoch ({best['epoch'] + 1}) by {best['selected_on']}"
        rows.append([chosen, *(percent(best.get(name)) for name in GROUPS)])
    screen.print(table(f"{result['split']} split, last epoch, %", HEADER, rows))
    if best is not None and best["selected_on"] == "test":
        screen.print("best epoch by test: chosen on the test split, as the papers' tables are.")


@dataclass(frozen=True)
class CompareFlags:
    """Train several methods on a data set, shared phases once, and write a report.

    Args:
        run: settings of all runs; --method is not used.
        settings: where settings come from.
        output: what is printed.
        work: who trains.
        methods: names with commas between them; see classwise list methods.
        seeds: runs of each method, with the seeds from --seed on.
        store: folder that keeps trained phases.
        out: folder of the report; by default runs/ and a name made of the data.
        dry_run: say what would be trained, and stop.
    """

    run: RunFlags = field(default_factory=RunFlags)
    settings: Settings = field(default_factory=Settings)
    output: Output = field(default_factory=Output)
    work: Work = field(default_factory=Work)
    methods: str = "ce,la,cvs+adrw"
    seeds: int = 3
    store: Path = Path("runs/store")
    out: Path | None = None
    dry_run: Switch = False


def compare(words: Sequence[str]) -> int:
    """Train several methods."""
    flags = parse(CompareFlags, words, prog="compare", default=CompareFlags(run=defaults(words)))
    said = {word.partition("=")[0] for word in words}
    if "--method" in said or {"method", "method.method"} & given(flags.settings).keys():
        raise ArgumentError("compare takes several methods: --methods ce,la instead of --method.")
    config = run_config(flags.run, flags.settings)
    names = [name.strip() for name in flags.methods.split(",") if name.strip()]
    methods = list(dict.fromkeys(Recipe.parse(name).name for name in names))
    if not methods or flags.seeds < 1:
        raise ArgumentError("compare needs at least one method and one seed.")
    requests = [
        Request(method, with_values(config, {"method.method": method, "seed": config.seed + seed}))
        for method in methods
        for seed in range(flags.seeds)
    ]
    plan = make_plan(requests)
    if flags.dry_run:
        return print_plan(plan, flags.output, flags.store)
    name = re.sub(r"[^\w.+-]+", "_", f"compare-{config.data.source.partition(':')[0]}"
                  f"-{config.data.imbalance}")  # fmt: skip
    out = flags.out or Path("runs") / name
    make_folder(out)  # before hours of training, not after
    records = execute(plan, Store(flags.store), **training(flags.work, flags.output))
    page = write_report(records, out / "report.html")
    rows = summary_rows(records)
    if flags.output.json:
        print_json({"report": str(page), "methods": rows, "epochs": plan.epochs})
        return 0
    shown = [[row["method"], *(_spread(row[name]) for name in GROUPS)] for row in rows]
    screen = console()
    split = records[0].result["split"]
    screen.print(table(f"{split} split, last epoch, %, {flags.seeds} seed(s)", HEADER, shown))
    screen.print(f"report: {page}", markup=False)
    return 0


def summary_rows(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return mean and standard deviation over seeds of each method, in percent."""
    by_method: dict[str, list[RunRecord]] = {}
    for record in records:
        by_method.setdefault(record.method, []).append(record)
    rows = []
    for method, runs in by_method.items():
        row: dict[str, Any] = {"method": method, "seeds": [run.seed for run in runs]}
        for name in GROUPS:
            values = [r.result["last"][name] for r in runs if name in r.result["last"]]
            row[name] = _mean_and_spread([100 * value for value in values])
        rows.append(row)
    return rows


def _mean_and_spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": statistics.fmean(values), "spread": spread, "runs": len(values)}


def _spread(cell: dict[str, float] | None) -> str:
    if cell is None:
        return "n/a"
    mean = f"{cell['mean']:.1f}"
    return mean if cell["runs"] == 1 else f"{mean} ± {cell['spread']:.1f}"
