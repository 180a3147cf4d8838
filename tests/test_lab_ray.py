"""The same graph as tasks of a real local Ray cluster: equal results, killed workers, errors."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_runs import assert_same, config, plan_of

from classwise.errors import ArgumentError, ClasswiseError, DataError, StateError
from classwise.lab import Plan, Request, Resources, Store, execute, make_plan
from classwise.lab.locks import Holder
from classwise.lab.ray import gpus_of

ray = pytest.importorskip("ray", reason="needs Ray: pip install classwise[ray]")

pytestmark = pytest.mark.slow

METHODS = ("ce", "ce+drw", "vs+tla+adrw", "cvs", "cvs+adrw")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two workers that load slowly and train fast."""
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        logging_level="warning",
        object_store_memory=80 * 2**20,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of(*METHODS)


@pytest.fixture(scope="module")
def here(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("here")
    execute(plan, Store(root))
    return root


@pytest.mark.usefixtures("cluster")
def test_ray_equals_local_execution_bit_for_bit(plan, here, tmp_path):
    done: list[tuple[str, int]] = []
    records = execute(
        plan,
        Store(tmp_path),
        engine="ray",
        on_done=lambda node, count, of: done.append((node.key, count)),
    )
    assert [record.method for record in records] == list(METHODS)
    for key in plan.nodes:
        assert_same(tmp_path / key, here / key)
    keys = [key for key, _ in done]
    assert sorted(keys) == sorted(plan.nodes)
    assert [count for _, count in done] == [*range(1, len(keys) + 1)]
    assert not list(tmp_path.glob("*.lock"))


class Killer(threading.Thread):
    """Kills the worker that holds a phase, as soon as an epoch of it is written."""

    def __init__(self, root: Path, times: int) -> None:
        super().__init__(daemon=True)
        self.root, self.times, self.killed, self.over = root, times, [], threading.Event()

    def run(self) -> None:
        while len(self.killed) < self.times and not self.over.is_set():
            for lock in self.root.glob("*.lock"):
                folder, holder = self.root / lock.stem, Holder.read(lock)
                begun = (folder / "metrics.jsonl").exists() and not (folder / "done").exists()
                if holder is None or not begun or holder.pid in [pid for pid, _ in self.killed]:
                    continue
                os.kill(holder.pid, signal.SIGKILL)
                self.killed.append((holder.pid, lock.stem))
                break
            time.sleep(0.002)


@pytest.mark.usefixtures("cluster")
def test_a_killed_worker_costs_only_what_it_had_not_saved(tmp_path):
    """SIGKILL to the workers in the middle of three phases; all is as if nothing had happened."""
    plan = plan_of("ce", "ce+drw", "cvs+adrw", epochs=12, defer_at=6)
    execute(plan, Store(tmp_path / "here"))
    root = tmp_path / "store"
    root.mkdir()
    killer = Killer(root, times=3)
    killer.start()
    execute(plan, Store(root), engine="ray")
    killer.over.set()
    killer.join()
    assert len(killer.killed) == 3
    for key in plan.nodes:
        assert_same(root / key, tmp_path / "here" / key)
    assert not list(root.glob("*.damaged*"))
    assert not list(root.glob("*.lock"))


@pytest.mark.usefixtures("cluster")
def test_an_error_of_a_phase_arrives_as_what_it_is(tmp_path):
    """In one line, as if it had been raised here; what does not depend on it stays."""
    path = tmp_path / "data.csv"
    rows = [f"{i % 7},{(i * 3) % 5},{'xy'[i % 2]}" for i in range(60)]
    path.write_text("\n".join(["u,v,t", *rows]) + "\n")
    wanted = config(source=f"csv:{path}#target=t", imbalance="as-is", method="ce", batch_size=8)
    plan = make_plan([Request("gone", wanted)])
    path.unlink()
    with pytest.raises(DataError) as caught:
        execute(plan, Store(tmp_path / "store"), engine="ray")
    assert "data.csv" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, ray.exceptions.RayTaskError)  # of a worker
    assert not list((tmp_path / "store").glob("*.lock"))


@pytest.mark.usefixtures("cluster")
def test_a_phase_whose_worker_always_dies_is_given_up_with_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("classwise.lab.ray.RETRIES", 1)
    plan = plan_of("ce", epochs=200, defer_at=0.9)
    killer = Killer(tmp_path, times=9)
    killer.start()
    with pytest.raises(StateError, match=r"Ray gave a phase up after 1 tries") as caught:
        execute(plan, Store(tmp_path), engine="ray")
    killer.over.set()
    killer.join()
    assert isinstance(caught.value, ClasswiseError)
    assert "\n" not in str(caught.value)
    assert "the same command goes on from there" in str(caught.value)
    short = plan_of("ce")
    (record,) = execute(short, Store(tmp_path), engine="ray")  # the cluster is as good as before
    assert record.finished


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (Resources(cpus=64), "a task wants 64 CPUs, and the Ray cluster has 2."),
        (Resources(cpus=1, gpus=99), "a task wants 99 GPUs, and the Ray cluster has"),
    ],
)
def test_what_would_wait_for_ever_is_refused(resources, message, plan, tmp_path):
    with pytest.raises(ArgumentError, match=message):
        execute(plan, Store(tmp_path), engine="ray", resources=resources)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("cpus", "together"), [(1.0, 2), (2.0, 1)])
def test_resources_bound_how_many_phases_train_at_once(cpus, together, tmp_path):
    """Two cores: two tasks of one core each, or one of two."""
    plan = make_plan(
        Request("run", config(method="ce", seed=seed, epochs=30, defer_at=15)) for seed in range(4)
    )
    most, over = [0], threading.Event()

    def watch() -> None:
        while not over.is_set():
            most[0] = max(most[0], len(list(tmp_path.glob("*.lock"))))
            time.sleep(0.002)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    execute(plan, Store(tmp_path), engine="ray", resources=Resources(cpus=cpus))
    over.set()
    watcher.join()
    assert most[0] == together


def test_gpus_of_a_phase():
    (trunk, *_) = plan_of("ce").nodes.values()
    assert trunk.config.device == "cpu"
    assert gpus_of(trunk, Resources(), there=8) == 0.0
    assert gpus_of(trunk, Resources(gpus=0.5), there=0) == 0.5
    free = dataclasses.replace(
        trunk, config=dataclasses.replace(trunk.config, device="auto", devices=2)
    )
    assert gpus_of(free, Resources(), there=8) == 2.0
    assert gpus_of(free, Resources(), there=0) == 0.0


def test_the_command(tmp_path):
    """A cluster of its own, started and stopped by the command."""
    words = ["compare", "digits", "--imbalance", "exp:50", "--model", "mlp", "--epochs", "4",
             "--defer-at", "2", "--batch-size", "64", "--device", "cpu", "--methods", "ce,ce+drw",
             "--seeds", "1", "--engine", "ray", "--store", str(tmp_path / "store"),
             "--out", str(tmp_path / "out")]  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-m", "classwise", *words],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )
    assert ended.returncode == 0, ended.stderr
    assert "3/3 phases" in ended.stderr
    plan = plan_of("ce", "ce+drw")
    assert all(Store(tmp_path / "store").finished(key) for key in plan.nodes)
