"""Executing a plan: each phase once, parents first, resumed as often as it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from classwise._checks import known_name
from classwise.lab.plan import Node, Plan
from classwise.lab.store import Busy, Store
from classwise.train.launch import run
from classwise.train.observe import Observer
from classwise.train.record import RunRecord, read_run

__all__ = ["ENGINES", "execute", "results", "train_node"]

ENGINES = ("local", "ray")

_POLL = 1.0


def train_node(node: Node, store: Store, observer: Observer | None = None) -> Path:
    """Train a phase whose parent is finished, or return at once if it is done already.

    A phase that another process is training is waited for.
    """
    while True:
        if store.finished(node.key):
            return store.path(node.key)
        try:
            with store.lock(node.key):
                return _train(node, store, observer)
        except Busy:
            time.sleep(_POLL)


def _train(node: Node, store: Store, observer: Observer | None) -> Path:
    folder = store.path(node.key)
    if not store.finished(node.key):
        run(
            node.config,
            folder,
            first=node.first,
            stop=node.stop,
            parent=None if node.parent is None else store.path(node.parent),
            identity=dict(node.identity),
            observer=observer,
        )
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
        observer_for: makes the observer of a phase; local only.
    """
    known_name("engine", engine, ENGINES)
    if engine == "ray":
        from classwise.lab.ray import execute_on_ray  # noqa: PLC0415  (an extra)

        execute_on_ray(plan, store)
    else:
        for node in plan.nodes.values():
            train_node(node, store, observer_for(node))
    return results(plan, store)


def results(plan: Plan, store: Store) -> list[RunRecord]:
    """Return the runs of a plan as they lie in the store."""
    return [read_run(store.path(key)) for _, key in plan.leaves]
