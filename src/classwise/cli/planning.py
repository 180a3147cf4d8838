"""Phases on the command line: what ``--dry-run`` prints, and how they are trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from classwise.cli.console import Watcher, console, print_json, table
from classwise.cli.flags import Output, Work
from classwise.errors import ArgumentError
from classwise.lab import Node, Plan
from classwise.lab.estimate import Estimate, estimate, left, speeds
from classwise.train.launch import by_torchrun

__all__ = ["print_plan", "training"]


def print_plan(plan: Plan, output: Output, store: Path, *, alone: int | None = None) -> int:
    """Print what there is to train.

    Args:
        plan: the phases.
        output: how.
        store: folder of trained phases, which need not be there.
        alone: epochs that it stands for; None is those of its runs without sharing.
    """
    alone = plan.epochs_alone if alone is None else alone
    missing = left(plan, store)
    time = estimate(plan, missing, speeds(store))
    totals = {
        "runs": len(plan.leaves),
        "phases": len(plan.nodes),
        "epochs": plan.epochs,
        "epochs_alone": alone,
        "epochs_saved": alone - plan.epochs,
        "ratio": round(plan.epochs / max(1, alone), 4),
        "epochs_left": sum(missing.values()),
    }
    if output.json:
        nodes = [
            {"key": n.key, "parent": n.parent, "epochs": [n.first, n.stop],
             "terms": n.identity["terms"], "seed": n.identity["seed"], "left": missing[n.key]}
            for n in plan.nodes.values()
        ]  # fmt: skip
        found = {**dataclasses.asdict(time), "seconds": time.seconds if time.epochs else None}
        print_json({**totals, "estimate": found, "missing": plan.missing, "nodes": nodes})
        return 0
    _print(plan, output, missing, totals, time)
    return 0


def _print(
    plan: Plan, output: Output, missing: dict[str, int], totals: dict[str, float], time: Estimate
) -> None:
    screen = console()
    if not output.quiet:
        rows = [
            [n.key, n.parent or "", f"{n.first}..{n.stop}", str(missing[n.key] or "done"),
             n.identity["terms"], str(n.config.seed)]
            for n in plan.nodes.values()
        ]  # fmt: skip
        header = ("key", "parent", "epochs", "left", "terms", "seed")
        made = table("phases", header, rows)
        for column in made.columns[:2]:  # keys are no use when cut short
            column.no_wrap = True
        screen.print(made)
    for source, reason in plan.missing.items():
        screen.print(f"{source}: {reason}", markup=False)
    screen.print(
        f"{totals['runs']} run(s), {totals['phases']} phases, {totals['epochs']:,} epochs to "
        f"train; separate runs would train {totals['epochs_alone']:,}. Sharing saves "
        f"{totals['epochs_saved']:,}: it is {totals['ratio']:.3f} of that."
    )
    if totals["epochs_left"] < totals["epochs"]:
        screen.print(f"{totals['epochs_left']:,} of these epochs are not in the store yet.")
    if totals["epochs_left"]:
        screen.print(str(time), markup=False)


def training(work: Work, output: Output) -> dict[str, Any]:
    """Return what ``execute`` takes beside a plan and a store: who trains, and what is shown."""
    if by_torchrun():  # its processes would share out the phases, and wait for each other in each
        raise ArgumentError("phases are not for torchrun: set --devices, or train a single run.")
    quiet = output.quiet or output.json
    far = work.engine == "ray" and not quiet

    def done(node: Node, count: int, of: int) -> None:
        if far:  # nobody here sees the epochs go by
            said = f"{count}/{of} phases  {node.key}  epochs {node.first + 1} to {node.stop}"
            console(stderr=True).print(said, markup=False)

    return {**work.how, "observer_for": lambda node: Watcher(quiet=quiet), "on_done": done}
