"""``classwise tune``, ``paper`` and ``lab``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from classwise._checks import known_name
from classwise.cli.console import Watcher, console, percent, print_json, table
from classwise.cli.flags import (
    Output,
    RunFlags,
    Settings,
    Switch,
    defaults,
    run_config,
)
from classwise.cli.parsing import parse
from classwise.cli.training import print_plan
from classwise.errors import ArgumentError
from classwise.lab import Store
from classwise.lab.tune import Tuning, default_grid, tuning_plan
from classwise.lab.tune import tune as search
from classwise.train.config import with_values

__all__ = ["lab", "paper", "tune"]


@dataclass(frozen=True)
class TuneFlags:
    """Search hyper-parameters in two stages on a validation split.

    First those that shape the first phase, then the others from the best one's trunk.

    Args:
        run: settings of all runs.
        settings: where settings come from.
        output: what is printed.
        grid: values to try, NAME=V1,V2,...; by default the paper's.
        search: grid, tpe or random.
        trials: of each stage, for tpe and random.
        seeds: runs of each point.
        store: folder that keeps trained phases.
        out: folder of the page; by default runs/ and a name made of the data and method.
        dry_run: say what the whole grid would cost, and stop.
    """

    run: RunFlags = field(default_factory=RunFlags)
    settings: Settings = field(default_factory=Settings)
    output: Output = field(default_factory=Output)
    grid: tuple[str, ...] = ()
    search: str = "grid"
    trials: int = 20
    seeds: int = 1
    store: Path = Path("runs/store")
    out: Path | None = None
    dry_run: Switch = False


def tune(words: Sequence[str]) -> int:
    """Search hyper-parameters."""
    from classwise.report.tuning import write_tuning  # noqa: PLC0415  (loads matplotlib)

    flags = parse(TuneFlags, words, prog="tune", default=TuneFlags(run=defaults(words)))
    config = run_config(flags.run, flags.settings)
    if config.data.val == 0 and config.select != "val":
        config = with_values(config, {"val": 0.2})
    config = with_values(config, {"select": "val"})
    method = config.method.method
    grid = dict(_values(text) for text in flags.grid) or default_grid(method)
    if flags.dry_run:
        plan, product = tuning_plan(config, grid, flags.seeds, need_data=False)
        return print_plan(plan, flags.output, alone=product * plan.epochs_alone // len(plan.leaves))
    quiet = flags.output.quiet or flags.output.json
    source = config.data.source.partition(":")[0]
    out = flags.out or Path("runs") / f"tune-{source}-{method}"
    out.mkdir(parents=True, exist_ok=True)
    found = search(
        config,
        Store(flags.store),
        grid=grid,
        sampler=flags.search,
        trials=flags.trials,
        seeds=flags.seeds,
        journal=out / "optuna.journal",
        observer_for=lambda node: Watcher(quiet=quiet),
    )
    page = write_tuning(found, out / "tuning.html")
    if flags.output.json:
        print_json({**dataclasses.asdict(found), "report": str(page)})
        return 0
    _print_tuning(found, page)
    return 0


def _values(text: str) -> tuple[str, list[float]]:
    name, equals, values = text.partition("=")
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError:
        numbers = []
    if not equals or not numbers:
        raise ArgumentError(f"--grid {text!r} must be NAME=V1,V2,... such as tau=0.8,0.9,1.")
    return name, numbers


def _print_tuning(found: Tuning, page: Path) -> None:
    screen = console()
    for number, stage in enumerate(found.stages, start=1):
        ranked = sorted(stage.trials, key=lambda trial: -trial.score)[:10]
        rows = [
            [*(f"{trial.hyper[name]:.4g}" for name in stage.names), percent(trial.score, 2)]
            for trial in ranked
        ]
        title = f"stage {number}: {', '.join(stage.names)} (the best {len(rows)})"
        screen.print(table(title, (*stage.names, "balanced, val, %"), rows))
    best = " ".join(f"--{name.replace('_', '-')} {value:.4g}" for name, value in found.best.items())
    screen.print(f"best: --method {found.method} {best}", markup=False)
    screen.print(
        f"{found.epochs:,} epochs trained; the same trials alone {found.epochs_alone:,}, "
        f"the whole grid {found.epochs_product:,}."
    )
    screen.print(f"page: {page}", markup=False)


@dataclass(frozen=True)
class PaperFlags:
    """The paper's tables and figures: what they need, ours beside theirs.

    Args:
        action: list, run, show or figure.
        name: table-3 ... table-7, figure-1 ... figure-12.
        where: cells to take, such as dataset=cifar100,imbalance=exp,ratio=100.
        seeds: runs of each cell; by default one.
        settings: further settings of the runs.
        output: what is printed.
        store: folder that keeps trained phases.
        results: folder of the CSV files.
        out: file of a figure.
        engine: local or ray.
        device: cpu, cuda, mps or auto.
        precision: 32-true or bf16-mixed.
        dry_run: say what would be trained, and stop.
    """

    action: tyro.conf.Positional[str]
    name: Annotated[str | None, tyro.conf.Positional] = None
    where: str = ""
    seeds: int = 1
    settings: Settings = field(default_factory=Settings)
    output: Output = field(default_factory=Output)
    store: Path = Path("runs/store")
    results: Path = Path("results")
    out: Path | None = None
    engine: str = "local"
    device: str = "auto"
    precision: str | None = None
    dry_run: Switch = False


def paper(words: Sequence[str]) -> int:
    """Reproduce the paper."""
    from classwise.cli import reproducing  # noqa: PLC0415  (loads the tables)

    flags = parse(PaperFlags, words, prog="paper")
    action = known_name("action", flags.action, reproducing.ACTIONS)
    return reproducing.ACTIONS[action](flags)


@dataclass(frozen=True)
class LabFlags:
    """Look into the store of trained phases, and tidy it.

    Args:
        action: ls, show or gc.
        key: of a phase, or how it begins; for show.
        store: the folder.
        output: what is printed.
        states: gc deletes checkpoints of finished phases too; nothing can fork from them any more.
        unfinished: gc deletes phases that were begun and not finished, too.
        dry_run: gc only says what it would free.
    """

    action: tyro.conf.Positional[str]
    key: Annotated[str | None, tyro.conf.Positional] = None
    store: Path = Path("runs/store")
    output: Output = field(default_factory=Output)
    states: Switch = False
    unfinished: Switch = False
    dry_run: Switch = False


def lab(words: Sequence[str]) -> int:
    """Look into the store."""
    flags = parse(LabFlags, words, prog="lab")
    action = known_name("action", flags.action, ("ls", "show", "gc"))
    if not flags.store.is_dir():
        raise ArgumentError(f"there is no store {flags.store}.")
    store = Store(flags.store)
    if action == "show":
        if flags.key is None:
            raise ArgumentError("lab show needs a key; lab ls lists them.")
        print_json(store.show(flags.key))
    elif action == "gc":
        freed = store.gc(states=flags.states, unfinished=flags.unfinished, dry_run=flags.dry_run)
        verb = "would free" if flags.dry_run else "freed"
        console().print(f"{verb} {freed / 2**20:.1f} MB")
    else:
        _list_store(store, flags.output)
    return 0


def _list_store(store: Store, output: Output) -> None:
    entries = store.entries()
    if output.json:
        print_json([dataclasses.asdict(entry) for entry in entries])
        return
    rows = [
        [e.key, e.state, e.label, f"{e.epochs[0]}..{e.epochs[1]}", f"{e.size / 2**20:.1f}",
         f"{e.seconds:.0f}"]
        for e in entries
    ]  # fmt: skip
    console().print(table(str(store.root), ("key", "state", "run", "epochs", "MB", "s"), rows))
