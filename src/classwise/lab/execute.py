"""Executing a plan: each phase once, parents first, resumed as often as it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from classwise._checks import known_name
from classwise.errors import CheckpointError, DataError
from classwise.lab.plan import Node, Plan
from classwise.lab.store import Busy, Store
from classwise.train.launch import run
from classwise.train.observe import Observer
from classwise.train.record import RunRecord, read_run

__all__ = ["ENGINES", "execute", "results", "to_continue", "train_node"]

ENGINES = ("local", "ray")

_POLL = 1.0


def train_node(
    node: Node,
    store: Store,
    observer: Observer | None = None,
    *,
    continues: bool = False,
    waits: bool = True,
) -> Path:
    """Train a phase whose parent is finished, or return at once if it is done already.

    Args:
        node: of a plan.
        store: where phases are kept.
        observer: told how it goes.
        continues: whether another phase will continue this one.
        waits: for another process that is training this phase.

    Raises:
        Busy: another process is training this phase, and ``waits`` is False.
    """
    while True:
        if store.finished(node.key, with_state=continues):
            return store.path(node.key)
        try:
            with store.lock(node.key):
                if store.finished(node.key):
                    continue
                return _train(node, store, observer)
        except Busy:
            if not waits:
                raise
            time.sleep(_POLL)


def _train(node: Node, store: Store, observer: Observer | None) -> Path:
    folder = store.path(node.key)
    for last in (False, True):
        try:
            run(
                node.config,
                folder,
                first=node.first,
                stop=node.stop,
                parent=None if node.parent is None else store.path(node.parent),
                identity=dict(node.identity),
                observer=observer,
            )
        except (CheckpointError, DataError) as error:
            # What is left of a phase that was begun may be damaged; what it continues is not.
            if last or not folder.exists():
                raise
            store.put_aside(node.key, str(error))
        else:
            break
    return folder


def execute(
    plan: Plan,
    store: Store,
    *,
    engine: str = "local",
    observer_for: Callable[[Node], Observer | None] = lambda node: None,
) -> list[RunRecord]:
    """Train what is missing and return the finished runs, in the order of the plan's requests.

    Args:
        plan: from ``make_plan``.
        store: where phases are kept.
        engine: ``"local"``, one phase after the other, or ``"ray"``, as tasks of a Ray cluster.
            Several processes that execute the same plan locally share the work.
        observer_for: makes the observer of a phase; local only.
    """
    known_name("engine", engine, ENGINES)
    if engine == "ray":
        from classwise.lab.ray import execute_on_ray  # noqa: PLC0415  (an extra)

        execute_on_ray(plan, store)
    else:
        _execute_here(plan, store, observer_for)
    return results(plan, store)


def _execute_here(
    plan: Plan, store: Store, observer_for: Callable[[Node], Observer | None]
) -> None:
    """Train one phase after the other; what another process is training, it need not wait for."""
    continued = to_continue(plan, store)
    waiting = dict(plan.nodes)
    while waiting:
        before = len(waiting)
        for node in list(waiting.values()):
            if node.parent in waiting:
                continue
            try:
                observer = observer_for(node)
                train_node(node, store, observer, continues=node.key in continued, waits=False)
            except Busy:
                continue
            del waiting[node.key]
        if len(waiting) == before:
            time.sleep(_POLL)


def to_continue(plan: Plan, store: Store) -> set[str]:
    """Return the keys of the phases that a phase which is yet to be trained continues."""
    missing: set[str] = set()
    for node in reversed(plan.nodes.values()):
        if node.parent is not None and (node.key in missing or not store.finished(node.key)):
            missing.add(node.parent)
    return missing


def results(plan: Plan, store: Store) -> list[RunRecord]:
    """Return the runs of a plan as they lie in the store."""
    return [read_run(store.path(key)) for _, key in plan.leaves]
