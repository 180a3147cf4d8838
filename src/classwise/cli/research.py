"""``classwise tune``, ``paper`` and ``lab``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from classwise._checks import known_name, whole_number
from classwise.cli.console import console, percent, print_json, table
from classwise.cli.flags import (
    Output,
    RunFlags,
    Settings,
    Switch,
    Work,
    defaults,
    run_config,
)
from classwise.cli.parsing import parse
from classwise.cli.planning import print_plan, training
from classwise.errors import ArgumentError
from classwise.lab import Store
from classwise.lab.tune import SAMPLERS, Tuning, default_grid, tuning_plan
from classwise.lab.tune import tune as search
from classwise.train.checkpoint import make_folder
from classwise.train.config import with_values

__all__ = ["lab", "paper", "tune"]


@dataclass(frozen=True)
class TuneFlags:
    """Search hyper-parameters in two stages on a validation split.

    That is a fifth of the training samples, unless --val or the data say otherwise. First those
    that shape the first phase, then the others from the best one's trunk.

    Args:
        run: settings of all runs.
        settings: where settings come from.
        output: what is printed.
        work: who trains.
        grid: values to try, NAME=V1,V2,...; by default the paper's. tpe and random draw between the
            smallest and largest.
        search: grid, tpe or random.
        trials: of each stage, for tpe and random.
        seeds: runs of each point.
        store: folder that keeps trained phases.
        out: folder of the page; by default runs/ and a name made of data and method.
        dry_run: say what the search would cost, and stop.
    """

    run: RunFlags = field(default_factory=RunFlags)
    settings: Settings = field(default_factory=Settings)
    output: Output = field(default_factory=Output)
    work: Work = field(default_factory=Work)
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
    method, sampler = config.method.method, known_name("search", flags.search, SAMPLERS)
    trials, seeds = (whole_number(n, getattr(flags, n), low=1) for n in ("trials", "seeds"))
    if "--grid" in words and not flags.grid:
        raise ArgumentError("--grid needs NAME=V1,V2,... such as tau=0.8,0.9,1.")
    grid = _grid(flags.grid) or default_grid(method)
    if flags.dry_run:
        plan, stands_for = tuning_plan(
            config, grid, seeds, sampler=sampler, trials=trials, need_data=False
        )
        alone = stands_for * plan.epochs_alone // len(plan.leaves)
        return print_plan(plan, flags.output, flags.store, alone=alone)
    how = training(flags.work, flags.output)
    name = f"tune-{config.data.source.partition(':')[0]}-{config.data.imbalance}-{method}"
    out = flags.out or Path("runs") / re.sub(r"[^\w.+-]+", "_", name)
    make_folder(out)
    found = search(
        config,
        Store(flags.store),
        grid=grid,
        sampler=sampler,
        trials=trials,
        seeds=seeds,
        journal=out / "optuna.journal",
        **how,
    )
    page = write_tuning(found, out / "tuning.html")
    if flags.output.json:
        print_json({**dataclasses.asdict(found), "report": str(page)})
        return 0
    _print_tuning(found, page)
    return 0


def _grid(texts: Sequence[str]) -> dict[str, list[float]]:
    grid: dict[str, list[float]] = {}
    for text in texts:
        name, values = _values(text)
        if name in grid:
            raise ArgumentError(f"--grid names {name} twice; give all its values at once.")
        grid[name] = values
    return grid


def _values(text: str) -> tuple[str, list[float]]:
    name, equals, values = text.partition("=")
    try:
        numbers = [float(value) for value in values.split(",")]
    except ValueError:
        numbers = []
    if not equals or not numbers:
        raise ArgumentError(f"--grid {text!r} must be NAME=V1,V2,... such as tau=0.8,0.9,1.")
    return name, list(dict.fromkeys(numbers))


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
        if stage.ties:
            screen.print(stage.ties, markup=False)
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
        work: who trains.
        store: folder that keeps trained phases.
        results: folder of the CSV files.
        out: file of a figure.
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
    work: Work = field(default_factory=Work)
    store: Path = Path("runs/store")
    results: Path = Path("results")
    out: Path | None = None
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
        check: ls reads every file and says what is damaged, which ends with code 1.
        states: gc deletes checkpoints of finished phases too; nothing can fork from them any more.
        unfinished: gc deletes phases that were begun and not finished, too.
        dry_run: gc only says what it would free.
    """

    action: tyro.conf.Positional[str]
    key: Annotated[str | None, tyro.conf.Positional] = None
    store: Path = Path("runs/store")
    output: Output = field(default_factory=Output)
    check: Switch = False
    states: Switch = False
    unfinished: Switch = False
    dry_run: Switch = False


def lab(words: Sequence[str]) -> int:
    """Look into the store."""
    flags = parse(LabFlags, words, prog="lab")
    action = known_name("action", flags.action, _LAB)
    if not flags.store.is_dir():
        raise ArgumentError(f"there is no store {flags.store}.")
    return _LAB[action](Store(flags.store), flags)


def _show(store: Store, flags: LabFlags) -> int:
    if flags.key is None:
        raise ArgumentError("lab show needs a key; lab ls lists them.")
    shown = store.show(flags.key)
    print_json(shown)
    return 1 if shown["state"] == "damaged" else 0


def _gc(store: Store, flags: LabFlags) -> int:
    freed = store.gc(states=flags.states, unfinished=flags.unfinished, dry_run=flags.dry_run)
    if flags.output.json:
        print_json({"freed": 0 if flags.dry_run else freed, "found": freed})
        return 0
    verb = "would free" if flags.dry_run else "freed"
    console().print(f"{verb} {freed / 2**20:.1f} MB")
    return 0


def _list_store(store: Store, flags: LabFlags) -> int:
    entries = store.entries(verify=flags.check)
    damaged = [entry for entry in entries if entry.wrong]
    code = 1 if flags.check and damaged else 0
    if flags.output.json:
        print_json([dataclasses.asdict(entry) for entry in entries])
        return code
    rows = [
        [e.key, e.state, e.label, f"{e.epochs[0]}..{e.epochs[1]}", f"{e.size / 2**20:.1f}",
         f"{e.seconds:.0f}"]
        for e in entries
    ]  # fmt: skip
    screen = console()
    made = table(str(store.root), ("key", "state", "run", "epochs", "MB", "s"), rows)
    made.columns[0].no_wrap = True
    screen.print(made)
    for entry in damaged:
        screen.print(f"{entry.key}: {entry.wrong}", markup=False)
    return code


_LAB = {"ls": _list_store, "show": _show, "gc": _gc}
