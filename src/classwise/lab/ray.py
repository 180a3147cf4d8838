"""Executing a plan as tasks of a Ray cluster; needs the extra ``classwise[ray]``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from classwise.errors import ArgumentError, StateError
from classwise.lab.execute import Resources, to_continue, train_node
from classwise.lab.plan import Node, Plan
from classwise.lab.store import Store

__all__ = ["execute_on_ray", "gpus_of"]

RETRIES = 5
"""Times that a phase is begun again after its worker died; it goes on from its checkpoint."""

_PASSED_ON = ("CLASSWISE_DATA",)


def execute_on_ray(
    plan: Plan,
    store: Store,
    resources: Resources,
    on_done: Callable[[Node, int, int], None] = lambda node, done, of: None,
) -> None:
    """Train the phases of a plan as Ray tasks, children after their parents.

    Connects to the cluster of ``RAY_ADDRESS``, or starts a local one. All workers must see the
    store and the data at the same paths.

    Args:
        plan: from ``make_plan``.
        store: where phases are kept.
        resources: of each task.
        on_done: told each phase that is finished, how many are, and of how many.
    """
    try:
        import ray  # noqa: PLC0415
    except ModuleNotFoundError:
        raise StateError('engine="ray" needs Ray: pip install "classwise[ray]".') from None
    with _connected(ray):
        has = ray.cluster_resources()
        _check_fits(resources, has)
        continued, where = to_continue(plan, store), (str(store.root.resolve()), store.expires)
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        tasks: dict[str, Any] = {}
        for node in plan.nodes.values():
            train = ray.remote(_task).options(
                num_cpus=resources.cpus,
                num_gpus=gpus_of(node, resources, has.get("GPU", 0)),
                max_retries=RETRIES,
                name=f"{node.key} epochs {node.first} to {node.stop - 1}",
                runtime_env={"env_vars": environment},
            )
            waits_for = [] if node.parent is None else [tasks[node.parent]]
            continues = node.key in continued
            tasks[node.key] = train.remote(node, *where, continues, os.getcwd(), *waits_for)
        _wait_for(ray, tasks, plan, on_done)


@contextlib.contextmanager
def _connected(ray: Any) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    ray.init(logging_level="warning", include_dashboard=False)
    try:
        yield
    finally:
        ray.shutdown()


def _check_fits(resources: Resources, has: Mapping[str, float]) -> None:
    """Raise for what would wait for ever."""
    for name, wanted in (("CPU", resources.cpus), ("GPU", resources.gpus or 0)):
        if wanted > has.get(name, 0):
            raise ArgumentError(
                f"a task wants {wanted:g} {name}s, and the Ray cluster has {has.get(name, 0):g}."
            )


def gpus_of(node: Node, resources: Resources, there: float) -> float:
    """Return how many GPUs a phase is given.

    Args:
        node: the phase.
        resources: what was asked for.
        there: how many the cluster has.
    """
    if resources.gpus is not None:
        return resources.gpus
    may = node.config.device == "auto" or node.config.device.startswith("cuda")
    return float(node.config.devices) if may and there else 0.0


def _wait_for(
    ray: Any, tasks: dict[str, Any], plan: Plan, on_done: Callable[[Node, int, int], None]
) -> None:
    waiting = {task: plan.nodes[key] for key, task in tasks.items()}
    try:
        while waiting:
            (task,), _ = ray.wait(list(waiting), num_returns=1)
            ray.get(task)
            node = waiting.pop(task)
            on_done(node, len(tasks) - len(waiting), len(tasks))
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error  # ours, without the worker's trace around it
    except ray.exceptions.RayError as error:
        said = str(error).splitlines()[0]
        raise StateError(
            f"Ray gave a phase up after {RETRIES} tries: {said} "
            "What was trained is in the store, and the same command goes on from there."
        ) from error


def _task(
    node: Node, root: str, expires: float, continues: bool, folder: str, *parents: str
) -> str:
    here = contextlib.chdir(folder) if Path(folder).is_dir() else contextlib.nullcontext()
    with here:  # relative paths of data mean what they meant to who made the plan
        train_node(node, Store(Path(root), expires=expires), continues=continues)
    return node.key
