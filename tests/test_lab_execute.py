"""Executing a plan: shared phases once, in any order, interrupted; all as if run in one piece."""

from __future__ import annotations

import contextlib
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lab_runs import StopAt, assert_same, config, plan_of, timeless
from torch.nn import functional

from classwise.errors import ArgumentError, StateError
from classwise.lab import Node, Plan, Request, Store, execute, make_plan
from classwise.models import MODELS, ModelSpec
from classwise.models.small import Mlp
from classwise.train.checkpoint import load_state
from classwise.train.launch import run
from classwise.train.observe import Silent
from classwise.train.record import read_run
from classwise.train.setup import Setup
from classwise.train.stopping import Interrupted

LEANING = ("cvs", "cvs+adrw")
MANY = ("ce", "ce+drw", "ce+adrw", "vs", "vs+tla+adrw", "ldam", "ldam+drw", *LEANING, "la", "ib")


class Told(Silent):
    """Writes down what is begun."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []

    def begin(self, setup: Setup, first: int, stop: int) -> None:
        self.begun.append((first, stop))


def assert_same_state(ours: Any, theirs: Any, where: str = "state") -> None:
    """Bit for bit, all that the next epoch would begin with: slopes, statistics, momentum, RNG."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, msg=where)
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for name in ours:
            assert_same_state(ours[name], theirs[name], f"{where}.{name}")
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs), where
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_same_state(*pair, f"{where}[{number}]")
    else:
        assert ours == theirs, where


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of(*MANY)


@pytest.fixture(scope="module")
def root(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("all")
    execute(plan, Store(found))
    return found


@pytest.mark.parametrize("method", MANY)
def test_a_run_of_shared_phases_equals_the_uninterrupted_one(method, plan, root, tmp_path):
    """And so does all that it would go on with: no more and no less is carried over a fork."""
    whole = tmp_path / "whole"
    run(config(method=method), whole)
    folder = root / dict(zip(MANY, (key for _, key in plan.leaves), strict=True))[method]
    assert_same(folder, whole)
    ours, theirs = (load_state(path / "state.pt") for path in (folder, whole))
    sizes = {state.pop("metrics_bytes") for state in (ours, theirs)}
    assert sizes
    assert {"rng", "criterion", "optimizer"} <= ours.keys()
    assert_same_state(ours, theirs)


def test_slopes_of_a_fork_are_measured_and_not_one(plan, root):
    """Else the equality above would say nothing of them."""
    leaf = dict(zip(MANY, (key for _, key in plan.leaves), strict=True))["cvs+adrw"]
    rows = read_run(root / leaf).epochs
    kappa = {name: torch.tensor(row[name]) for row in rows[-1:] for name in row if "kappa" in name}
    if not kappa:
        kappa = {n: t for n, t in read_run(root / leaf).tensors.items() if "kappa" in n}
    assert kappa
    assert any(bool((value != 1).any()) for value in kappa.values())


def test_each_shared_phase_is_trained_once(plan, tmp_path):
    told, done = Told(), []
    records = execute(
        plan,
        Store(tmp_path),
        observer_for=lambda node: told,
        on_done=lambda node, count, of: done.append((node.key, count, of)),
    )
    # By hand: ce (with ib, which begins as ce), vs, ldam, cvs and la have a trunk each.
    assert sorted(told.begun) == [(0, 2)] * 5 + [(2, 4)] * len(MANY)
    assert [key for key, _, _ in done] == list(plan.nodes)
    assert [count for _, count, _ in done] == [*range(1, len(plan.nodes) + 1)]
    assert [record.method for record in records] == list(MANY)
    again = Told()
    execute(plan, Store(tmp_path), observer_for=lambda node: again)
    assert again.begun == []


def test_the_order_of_runs_changes_nothing(plan, root, tmp_path):
    names = list(MANY)
    random.Random(1).shuffle(names)
    other = plan_of(*names)
    assert other.nodes.keys() == plan.nodes.keys()
    assert list(other.nodes) != list(plan.nodes)
    records = execute(other, Store(tmp_path))
    assert [record.method for record in records] == names
    for key in plan.nodes:
        assert_same(tmp_path / key, root / key)


def test_a_grown_plan_trains_what_is_new_and_nothing_else(plan, root, tmp_path):
    told = Told()
    execute(plan_of("ce+drw"), Store(tmp_path), observer_for=lambda node: told)
    assert told.begun == [(0, 2), (2, 4)]
    execute(plan_of("ce+drw", "ce+adrw"), Store(tmp_path), observer_for=lambda node: told)
    assert told.begun == [(0, 2), (2, 4), (2, 4)]
    for key in plan_of("ce+drw", "ce+adrw").nodes:
        assert_same(tmp_path / key, root / key)


def test_interrupted_again_and_again_it_goes_on(plan, root, tmp_path):
    """In the middle of epochs, at their ends, and at the ends of phases."""
    few, said = plan_of("cvs", "cvs+adrw", "ce+adrw"), []
    # An epoch has 7 steps, a phase 14, all five phases 70: after 14, 28, 42 and 56 one ends.
    for steps in (3, 4, 7, 5, 9, 14, 11, 3, 10, 99):
        stop = StopAt(steps)
        try:
            execute(few, Store(tmp_path), observer_for=lambda node, stop=stop: stop)
        except Interrupted as error:
            said.append(str(error))
    assert len(said) == 9
    assert sum("can be resumed" in text for text in said) == 5
    assert sum("phases are left, and the same command goes on" in text for text in said) == 4
    for key in few.nodes:
        assert_same(tmp_path / key, root / key)
    assert not list(tmp_path.glob("*.damaged*"))
    assert not list(tmp_path.glob("*.lock"))


class Dropping(Mlp):
    """Draws from the global stream in each step, as many backbones do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().forward(x), 0.5, self.training)


def test_dropout_draws_the_same_after_an_interruption_and_over_a_fork(tmp_path, monkeypatch):
    spec = ModelSpec("dropping", "", "", Dropping, dims=None)
    monkeypatch.setitem(MODELS, "dropping", spec)
    plan = plan_of("ce", "cvs+adrw", model="dropping")
    for steps in (3, 4, 9, 2, 99):
        stop = StopAt(steps)
        with contextlib.suppress(Interrupted):
            execute(plan, Store(tmp_path / "store"), observer_for=lambda node, stop=stop: stop)
        torch.rand(steps)  # another process would stand elsewhere in its stream
    for request, key in plan.leaves:
        run(request.config, tmp_path / request.label)
        assert_same(tmp_path / "store" / key, tmp_path / request.label)


def test_phases_of_different_lengths_share_what_is_equal(tmp_path):
    """A change of the last epochs' weight decay and rho forks at T0, too."""
    requests = [
        Request("plain", config(method="ce", defer_at=3)),
        Request("decay", config(method="ce", defer_at=3, deferred_weight_decay=0.01)),
        Request("sam", config(method="ce", defer_at=3, deferred_sam=0.1)),
    ]
    found = make_plan(requests)
    assert found.epochs == 3 + 3 * 1
    execute(found, Store(tmp_path / "store"))
    for request, key in found.leaves:
        run(request.config, tmp_path / request.label)
        assert_same(tmp_path / "store" / key, tmp_path / request.label)
    last = {r.label: read_run(tmp_path / "store" / key).epochs[-1] for r, key in found.leaves}
    assert timeless(last["plain"]) != timeless(last["decay"])
    assert timeless(last["plain"]) != timeless(last["sam"])


def test_an_unknown_engine(plan, tmp_path):
    with pytest.raises(ArgumentError, match=r"engine='rya' is unknown, did you mean 'ray'\?"):
        execute(plan, Store(tmp_path), engine="rya")
    assert not list(tmp_path.iterdir())


def test_without_ray_the_error_says_what_to_install(plan, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not there
    with pytest.raises(StateError, match=r"needs Ray: pip install \"classwise\[ray\]\"\."):
        execute(plan, Store(tmp_path), engine="ray")


def test_an_error_of_a_phase_leaves_the_others_and_no_lock(plan, tmp_path):
    class Failing(Silent):
        def begin(self, setup: Setup, first: int, stop: int) -> None:
            if setup.config.method.method == "vs":
                raise ArgumentError("no")

    def observer(node: Node) -> Silent:
        return Failing()

    with pytest.raises(ArgumentError, match="no"):
        execute(plan, Store(tmp_path), observer_for=observer)
    assert not list(tmp_path.glob("*.lock"))
    names = ("ce", "ce+drw", "ce+adrw")
    assert all(Store(tmp_path).finished(key) for key in plan_of(*names).nodes)
