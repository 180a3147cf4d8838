"""Executing a plan as tasks of a Ray cluster; needs the extra ``classwise[ray]``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from classwise.errors import StateError
from classwise.lab.execute import to_continue, train_node
from classwise.lab.plan import Node, Plan
from classwise.lab.store import Store

__all__ = ["execute_on_ray"]

RETRIES = 5
"""Times that a phase is begun again after its worker died; it goes on from its checkpoint."""


def execute_on_ray(plan: Plan, store: Store, *, cpus: float = 1, gpus: float = 0) -> None:
    """Train the phases of a plan as Ray tasks, children after their parents.

    Connects to the cluster of ``RAY_ADDRESS``, or starts a local one. All workers must see the
    store's folder.

    Args:
        plan: from ``make_plan``.
        store: where phases are kept.
        cpus: that a phase occupies.
        gpus: that a phase occupies; fractions share one.
    """
    try:
        import ray  # noqa: PLC0415
    except ModuleNotFoundError:
        raise StateError('engine="ray" needs Ray: pip install "classwise[ray]".') from None
    own = not ray.is_initialized()
    if own:
        ray.init(logging_level="warning", include_dashboard=False)
    try:
        train = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)(_task)
        tasks: dict[str, Any] = {}
        continued = to_continue(plan, store)
        for node in plan.nodes.values():
            waits_for = [] if node.parent is None else [tasks[node.parent]]
            where = (str(store.root.resolve()), store.expires, node.key in continued)
            tasks[node.key] = train.remote(node, *where, *waits_for)
        ray.get(list(tasks.values()))
    finally:
        if own:
            ray.shutdown()


def _task(node: Node, root: str, expires: float, continues: bool, *parents: str) -> str:
    train_node(node, Store(Path(root), expires=expires), continues=continues)
    return node.key
