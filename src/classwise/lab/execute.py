"""Executing a plan: each phase once, parents first, resumed as often as it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classwise._checks import known_name, number
from classwise.errors import CheckpointError, StateError
from classwise.lab.locks import Busy, Lock
from classwise.lab.plan import Node, Plan
from classwise.lab.store import Store
from classwise.train.launch import run
from classwise.train.observe import Observer, Silent
from classwise.train.record import RunRecord, read_run
from classwise.train.setup import Setup, setup
from classwise.train.stopping import Interrupted, stop_requests

__all__ = ["ENGINES", "Resources", "execute", "results", "to_continue", "train_node"]

ENGINES = ("local", "ray")

_POLL = 1.0


@dataclass(frozen=True)
class Resources:
    """What a phase occupies, as a task of a cluster.

    Args:
        cpus: cores; fractions share one.
        gpus: devices; fractions share one. None is one if the cluster has any and the phase may
            use it, else none.
    """

    cpus: float = 1.0
    gpus: float | None = None

    def __post_init__(self) -> None:
        number("cpus", self.cpus, low=0, low_open=True)
        if self.gpus is not None:
            number("gpus", self.gpus, low=0)


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
    while not store.finished(node.key, with_state=continues):
        try:
            with store.lock(node.key) as lock:
                wrong = store.wrong(node.key, with_state=continues)
                if wrong:
                    store.put_aside(node.key, wrong)
                if wrong != "":
                    _train(node, store, _Guard(lock, observer or Silent()))
        except Busy:
            if not waits:
                raise
            time.sleep(_POLL)
    return store.path(node.key)


def _train(node: Node, store: Store, observer: Observer) -> None:
    """Train a phase, and once more from its beginning if what lies there cannot be continued."""
    setup(node.config)  # what is wrong with the data is no damage of the folder
    folder = store.path(node.key)
    for last in (False, True):
        wrong = store.unfit(node.key)
        if wrong:
            store.put_aside(node.key, wrong)
        store.sweep(node.key)
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
        except CheckpointError as error:
            # What is left of a phase that was begun may be damaged; what it continues is not.
            if last or not folder.exists():
                raise
            store.put_aside(node.key, str(error))
        except OSError as error:
            raise StateError(
                f"phase {node.key} stopped: {error}. What it had saved is in {folder}, and the "
                "same command goes on from there."
            ) from error
        else:
            break
    wrong = store.wrong(node.key)
    if wrong:
        raise StateError(f"phase {node.key} is damaged just after it was trained: {wrong}.")


@dataclass
class _Guard:
    """An observer that stops training once another process has taken the lock over.

    Args:
        lock: that this process took.
        inner: the observer that is told.
    """

    lock: Lock
    inner: Observer
    looked: float = 0.0

    def begin(self, setup: Setup, first: int, stop: int) -> None:
        """Hear what will be trained."""
        self.inner.begin(setup, first, stop)

    def step(self, epoch: int, done: int, of: int) -> None:
        """Hear that a step is done; now and then, look at the lock."""
        now = time.monotonic()
        if now - self.looked > _POLL:
            self.looked = now
            self.lock.check()
        self.inner.step(epoch, done, of)

    def writing(self) -> None:
        """Look at the lock: the folder may be another's by now."""
        self.lock.check()
        self.inner.writing()

    def epoch(self, row: dict[str, Any]) -> None:
        """Hear what an epoch brought."""
        self.inner.epoch(row)

    def end(self, finished: bool) -> None:
        """Hear that it is over."""
        self.inner.end(finished)


def execute(
    plan: Plan,
    store: Store,
    *,
    engine: str = "local",
    resources: Resources | None = None,
    observer_for: Callable[[Node], Observer | None] = lambda node: None,
    on_done: Callable[[Node, int, int], None] = lambda node, done, of: None,
) -> list[RunRecord]:
    """Train what is missing and return the finished runs, in the order of the plan's requests.

    Args:
        plan: from ``make_plan``.
        store: where phases are kept.
        engine: ``"local"``, one phase after the other, or ``"ray"``, as tasks of a Ray cluster.
            Several processes that execute the same plan locally share the work.
        resources: of a task of Ray; None is ``Resources()``.
        observer_for: makes the observer of a phase; local only.
        on_done: told each phase that is finished, how many are, and of how many.
    """
    known_name("engine", engine, ENGINES)
    if engine == "ray":
        from classwise.lab.ray import execute_on_ray  # noqa: PLC0415  (an extra)

        execute_on_ray(plan, store, resources or Resources(), on_done)
    else:
        _execute_here(plan, store, observer_for, on_done)
    return results(plan, store)


def _execute_here(
    plan: Plan,
    store: Store,
    observer_for: Callable[[Node], Observer | None],
    on_done: Callable[[Node, int, int], None],
) -> None:
    """Train one phase after the other; what another process is training, it need not wait for."""
    continued = to_continue(plan, store)
    waiting = dict(plan.nodes)
    with stop_requests(None) as stopped:
        while waiting:
            before = len(waiting)
            for node in list(waiting.values()):
                if node.parent in waiting:
                    continue
                if stopped():  # when a phase was all but finished, or between two
                    raise Interrupted(
                        f"stopped; {len(waiting)} phases are left, and the same command goes on "
                        "from there."
                    )
                try:
                    observer = observer_for(node)
                    train_node(node, store, observer, continues=node.key in continued, waits=False)
                except Busy:
                    continue
                del waiting[node.key]
                on_done(node, len(plan.nodes) - len(waiting), len(plan.nodes))
            if len(waiting) == before:
                time.sleep(_POLL)


def to_continue(plan: Plan, store: Store) -> set[str]:
    """Return the keys of the phases that a phase which is yet to be trained continues."""
    needed: set[str] = set()
    for node in reversed(plan.nodes.values()):  # children before their parents
        there = store.finished(node.key, with_state=node.key in needed)
        if node.parent is not None and not there:
            needed.add(node.parent)
    return needed


def results(plan: Plan, store: Store) -> list[RunRecord]:
    """Return the runs of a plan as they lie in the store."""
    return [read_run(store.path(key)) for _, key in plan.leaves]
