"""The actions of ``classwise paper``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from classwise._checks import whole_number
from classwise.cli.console import console, print_json, table
from classwise.cli.flags import given
from classwise.cli.planning import print_plan, training
from classwise.errors import ArgumentError, StateError
from classwise.lab import Plan, Request, Store, execute, make_plan
from classwise.paper import expand, list_exhibits, load, results, select, show
from classwise.paper.rows import result_of
from classwise.paper.schema import Cell, Figure, Table
from classwise.paper.show import as_dict, as_rich
from classwise.train.checkpoint import make_folder
from classwise.train.config import RunConfig, with_values
from classwise.train.record import read_run

if TYPE_CHECKING:
    from classwise.cli.research import PaperFlags

__all__ = ["ACTIONS"]


def _item(flags: PaperFlags) -> Table | Figure:
    if flags.name is None:
        raise ArgumentError(f"paper {flags.action} needs a name; paper list shows them.")
    name = flags.name
    if flags.action == "figure" and name.isdigit():
        name = f"figure-{name}"
    return load(name)


def _list(flags: PaperFlags) -> int:
    rows = list_exhibits()
    if flags.output.json:
        print_json(rows)
        return 0
    header = [name for name in rows[0] if name != "label"]  # of LaTeX; a screen is narrow
    made = table("the paper", header, [[str(row[name]) for name in header] for row in rows])
    for column in made.columns:
        column.justify = "left"
    made.columns[0].no_wrap = True
    console().print(made)
    return 0


def _config(cell: Cell, seed: int, flags: PaperFlags) -> RunConfig:
    config = with_values(expand(cell, seed), {"device": flags.device})
    if flags.precision is not None:
        config = with_values(config, {"precision": flags.precision})
    return with_values(config, given(flags.settings))


def _plan(flags: PaperFlags, cells: Sequence[Cell]) -> tuple[Plan, list[Cell]]:
    """Return the graph of all cells that can be run, and the cell of each of its leaves."""
    able = [cell for cell in cells if cell.expands]
    if not able:
        wanted = "; ".join(dict.fromkeys(n.what for cell in cells for n in cell.needs))
        raise StateError(f"none of these {len(cells)} cells can be run here. They need {wanted}.")
    seeds = whole_number("seeds", flags.seeds, low=1)
    pairs = [(cell, seed) for cell in able for seed in range(seeds)]
    requests = [Request(cell.name, _config(cell, seed, flags)) for cell, seed in pairs]
    return make_plan(requests, need_data=not flags.dry_run), [cell for cell, _ in pairs]


def _run(flags: PaperFlags) -> int:
    item = _item(flags)
    plan, cells = _plan(flags, select(item, flags.where))
    if flags.dry_run:
        return print_plan(plan, flags.output, flags.store)
    _rows(flags, item)  # a damaged file is found before anything is trained
    make_folder(flags.results)
    store = Store(flags.store)
    try:
        execute(plan, store, **training(flags.work, flags.output))
    finally:  # what is finished is a result, whatever became of the rest
        _record(flags, item, store, zip(cells, plan.leaves, strict=True))
    return _show(flags)


def _record(
    flags: PaperFlags,
    item: Table | Figure,
    store: Store,
    runs: Iterable[tuple[Cell, tuple[Request, str]]],
) -> None:
    """Append a row for each finished run that the file has none for."""
    rows = [
        result_of(read_run(store.path(key)), table=item.name, cell=cell.name, key=key)
        for cell, (_, key) in runs
        if store.finished(key)
    ]
    if rows:
        # Another process may have been here.
        results.append(_path(flags, item), rows, skip_known=True)


def _path(flags: PaperFlags, item: Table | Figure) -> Path:
    return flags.results / f"{item.name}.csv"


def _rows(flags: PaperFlags, item: Table | Figure) -> list[results.Result]:
    path = _path(flags, item)
    return results.read(path) if path.exists() else []


def _show(flags: PaperFlags) -> int:
    item = _item(flags)
    lines = show(item, _rows(flags, item), flags.where)
    if flags.output.json:
        print_json([as_dict(line) for line in lines])
    else:
        console().print(as_rich(lines, title=f"{item.name}: {item.title}"))
    return 0


def _figure(flags: PaperFlags) -> int:
    from classwise.paper.drawing import save  # noqa: PLC0415  (loads matplotlib)
    from classwise.paper.figures import draw  # noqa: PLC0415

    item = _item(flags)
    if not isinstance(item, Figure):
        raise ArgumentError(f"{item.name} is a table; paper show {item.name} prints it.")
    rows = _rows(flags, item)
    if not rows:
        raise StateError(
            f"no run of {item.name} has a result here; paper run {item.name} makes them."
        )
    store = Store(flags.store)
    keys = {row.cell: row.key for row in rows}
    records = {
        cell: read_run(store.path(key)) for cell, key in keys.items() if store.path(key).is_dir()
    }
    drawn = draw(item, rows, records)
    out = save(drawn.figure, flags.out or flags.results / f"{item.name}.svg")
    if flags.output.json:
        print_json({"figure": str(out), "missing": drawn.missing})
        return 0
    screen = console()
    screen.print(str(out), markup=False)
    if drawn.missing:
        screen.print(f"without runs: {', '.join(drawn.missing)}", markup=False)
    return 0


ACTIONS: dict[str, Callable[[PaperFlags], int]] = {
    "list": _list,
    "run": _run,
    "show": _show,
    "figure": _figure,
}
