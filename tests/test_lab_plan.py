"""Plans: what a key depends on, what is shared, what a plan costs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from lab_runs import BASE, config, plan_of

from classwise.errors import ArgumentError, DataError
from classwise.lab import Request, make_plan
from classwise.lab.estimate import Kind, Speed, estimate, left, speeds
from classwise.lab.plan import key_of
from classwise.lab.tune import GRID, tuning_plan
from classwise.paper import expand, load, select
from classwise.paper.load import load_all
from classwise.train.config import RunConfig, with_values


def keys(**values: Any) -> list[str]:
    """The keys of a run's phases, the trunk first."""
    plan = make_plan([Request("run", config(**{"method": "vs+tla+adrw", **values}))])
    return [node.key for node in plan.chain(plan.leaves[0][1])]


# What changes the weights or what is measured from the first epoch on, with another value each.
EVERYWHERE = {
    "source": None,  # tested by its own
    "imbalance": "exp:20",
    "subset_seed": 1,
    "val": 0.1,
    "sampler": "class-aware",
    "augment": "crop-flip",
    "mixing": "mixup:1.0",
    "image_size": 64,
    "model": "small-cnn",
    "compile": True,
    "label_smoothing": 0.1,
    "tau": 0.5,
    "gamma": 0.1,
    "epochs": 5,
    "batch_size": 32,
    "accumulate": 2,
    "optimizer": "adamw",
    "lr": 0.07,
    "schedule": "constant",
    "momentum": 0.8,
    "nesterov": True,
    "weight_decay": 1e-3,
    "sam": 0.05,
    "clip": 1.0,
    "seed": 1,
    "select": "test",
    "eval_every": 2,
    "precision": "bf16-mixed",
    "track_bound": True,
    "tte": True,
}
# What only the deferred phase sees.
DEFERRED = {
    "deferred_tau": 0.5,
    "nu": 0.3,
    "deferred_weight_decay": 1e-3,
    "deferred_sam": 0.1,
}
# What says where and not what, or what this method does not look at.
NOWHERE = {"device": "auto", "devices": 2, "threads": 1, "workers": 0, "slopes": "paper",
           "warmup": 1}  # fmt: skip
# Tested by their own, or only for other methods.
OTHERS = {"method", "defer_at", "head", "pretrained", "p", "max_margin", "scale", "strength",
          "start", "weight", "remine"}  # fmt: skip


def test_every_setting_is_in_one_of_the_lists():
    parts = ("data", "model", "method", "optim")
    plain = dataclasses.asdict(RunConfig())
    names = {name for part in parts for name in plain[part]} | (plain.keys() - set(parts))
    lists = [set(EVERYWHERE), set(DEFERRED), set(NOWHERE), OTHERS]
    assert set.union(*lists) - {"model", "method"} == names - {"model", "method"}
    assert sum(map(len, lists)) == len(set.union(*lists))


@pytest.mark.parametrize("name", [name for name, value in EVERYWHERE.items() if value is not None])
def test_a_setting_that_matters_changes_all_keys(name: str):
    assert not set(keys(**{name: EVERYWHERE[name]})) & set(keys())


@pytest.mark.parametrize("name", DEFERRED)
def test_a_setting_of_the_deferred_phase_leaves_the_trunk(name: str):
    trunk, leaf = keys()
    assert keys(**{name: DEFERRED[name]})[0] == trunk
    assert keys(**{name: DEFERRED[name]})[1] != leaf


@pytest.mark.parametrize("name", NOWHERE)
def test_a_setting_that_does_not_matter_changes_no_key(name: str):
    assert keys(**{name: NOWHERE[name]}) == keys()


@pytest.mark.parametrize(
    ("method", "changed", "shared"),
    [
        ("ce+drw", {"p": 0.9}, 1),
        ("ldam+drw", {"p": 0.9}, 1),
        ("ldam+drw", {"max_margin": 0.3}, 0),
        ("ldam+drw", {"scale": 16.0}, 0),
        ("ib", {"strength": 10.0}, 1),
        ("lade", {"weight": 0.3}, 0),
        ("lade", {"remine": 0.3}, 0),
    ],
)
def test_a_setting_of_one_method_changes_the_phases_that_have_it(method, changed, shared):
    before, after = keys(method=method), keys(method=method, **changed)
    assert before[:shared] == after[:shared]
    assert not set(before[shared:]) & set(after[shared:])


def test_when_a_factor_begins_is_where_phases_are_cut():
    early, late = keys(method="ib", start=0.25), keys(method="ib", start=0.5)
    assert (len(early), len(late)) == (3, 2)  # T0 is another cut
    assert not set(early) & set(late)


def test_slopes_matter_to_what_leans_on_them():
    mine = keys(method="cvs")
    for changed in ({"slopes": "paper"}, {"warmup": 1}, {"slopes": "none"}):
        assert not set(mine) & set(keys(method="cvs", **changed))
    assert keys(method="cvs", slopes="none", warmup=1) == keys(method="cvs", slopes="none")


def test_other_t0_other_cuts_but_the_same_trunk_up_to_the_smaller_is_not_claimed():
    early, late = keys(defer_at=1), keys(defer_at=3)
    assert not set(early) & set(late)  # cut at different epochs


def test_data_is_its_content_and_not_its_name(tmp_path: Path):
    for name, last in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        rows = [f"{i % 7},{(i * 3) % 5},{'xy'[i % 2]}" for i in range(40)]
        text = "\n".join(["u,v,t", *rows, f"{last},0,x", "1,1,y"]) + "\n"
        (tmp_path / f"{name}.csv").write_text(text)
    found = {
        n: keys(source=f"csv:{tmp_path / n}.csv#target=t", imbalance="as-is", model="mlp")
        for n in "abc"
    }
    assert found["a"] == found["b"]
    assert not set(found["a"]) & set(found["c"])


def test_pretrained_weights_are_their_content(tmp_path: Path):
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).write_bytes(content)
    a, b, c = (keys(pretrained=str(tmp_path / name)) for name in "abc")
    assert a == b
    assert not set(a) & set(c)
    assert not set(a) & set(keys())


def test_a_key_is_a_hash_of_the_identity_and_of_the_parents_key():
    plan = plan_of()
    for node in plan.nodes.values():
        # As the store reads it again.
        assert key_of(json.loads(json.dumps(dict(node.identity)))) == node.key
        assert node.identity["parent"] == node.parent
        changed = {**node.identity, "parent": "0" * 16}
        assert key_of(changed) != node.key


def test_runs_share_what_they_have_in_common():
    plan = plan_of()  # ce, ce+drw, cvs, cvs+adrw
    assert len(plan.nodes) == 6
    assert [node.epochs for node in plan.nodes.values()] == [2] * 6
    assert (plan.epochs, plan.epochs_alone, plan.ratio) == (12, 16, 0.75)
    chains = [plan.chain(key) for _, key in plan.leaves]
    assert chains[0][0] is chains[1][0]
    assert chains[2][0] is chains[3][0]
    assert chains[0][0] is not chains[2][0]
    order = list(plan.nodes)
    for node in plan.nodes.values():
        assert node.parent is None or order.index(node.parent) < order.index(node.key)
    assert len(plan_of("ce", "ce", "ce").nodes) == 2


def test_seeds_share_nothing():
    plan = make_plan(Request("ce", config(method="ce", seed=seed)) for seed in range(3))
    assert plan.ratio == 1.0


def test_missing_data_is_an_error_unless_it_is_not_needed():
    wanted = [Request("far", config(source="npz:/nowhere/at-all.npz", method="ce"))]
    with pytest.raises(DataError, match="nowhere"):
        make_plan(wanted)
    plan = make_plan(wanted, need_data=False)
    assert "nowhere" in plan.missing["npz:/nowhere/at-all.npz"]
    assert plan.nodes[plan.leaves[0][1]].samples == 0
    with pytest.raises(ArgumentError, match="epochs"):
        make_plan(
            [Request("far", with_values(wanted[0].config, {"epochs": "auto"}))], need_data=False
        )


def test_the_order_of_requests_is_kept_however_data_is_loaded():
    requests = [
        Request(f"{method} {ratio}", config(method=method, imbalance=f"exp:{ratio}"))
        for method in ("ce", "vs")
        for ratio in (50, 20, 10)
    ]
    plan = make_plan(requests)
    assert [request.label for request, _ in plan.leaves] == [r.label for r in requests]
    for request, key in plan.leaves:
        assert plan.nodes[key].config.data.imbalance == request.config.data.imbalance


def test_each_data_set_is_loaded_once(monkeypatch: pytest.MonkeyPatch):
    from classwise import data  # noqa: PLC0415
    from classwise.train import setup  # noqa: PLC0415

    setup._LOADED.clear()
    setup._READ.clear()
    loaded: list[str] = []
    load_real = data.load
    monkeypatch.setattr(data, "load", lambda uri: (loaded.append(uri), load_real(uri))[1])
    make_plan(
        Request("run", config(method=method, imbalance=f"exp:{ratio}"))
        for method in ("ce", "vs", "la")
        for ratio in (50, 20)
    )
    assert loaded == ["digits"]


# The paper


@pytest.fixture
def without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLASSWISE_DATA", str(tmp_path))


@pytest.mark.usefixtures("without_data")
@pytest.mark.parametrize("item", load_all(), ids=lambda item: item.name)
def test_every_run_of_every_table_and_figure_resolves(item: Any):
    cells = [cell for cell in item.cells if cell.expands]
    if not cells:
        pytest.skip(f"{item.name} has no run that the training loop can express")
    plan = make_plan([Request(c.name, expand(c)) for c in cells], need_data=False)
    assert len(plan.leaves) == len(cells)
    assert plan.missing
    for request, key in plan.leaves:
        chain = plan.chain(key)
        assert [node.first for node in chain] == [0, *(node.stop for node in chain[:-1])]
        assert chain[-1].stop == request.config.optim.epochs
    assert plan.epochs <= plan.epochs_alone


@pytest.mark.usefixtures("without_data")
def test_a_column_of_table_3_trains_at_most_52_of_100_epochs():
    cells = select(load("table-3"), "part=a,dataset=cifar100,imbalance=exp,ratio=100")
    plan = make_plan([Request(c.name, expand(c)) for c in cells], need_data=False)
    assert len(cells) == 10
    trunks = [node for node in plan.nodes.values() if node.parent is None]
    # By hand: four trunks of 160 epochs and ten ends of 40, instead of ten times 200.
    assert (len(trunks), plan.epochs, plan.epochs_alone) == (4, 4 * 160 + 10 * 40, 10 * 200)
    assert plan.ratio <= 0.52


def test_the_papers_grid_trains_at_most_7_of_100_epochs():
    grid = {name: GRID[name] for name in ("gamma", "tau", "nu")}
    assert [len(values) for values in grid.values()] == [5, 7, 5]
    settings = config(method="cvs+adrw", epochs=200, defer_at=0.8, val=0.2, select="val")
    plan, product = tuning_plan(settings, grid)
    assert product == 175
    # By hand: five trainings, then 35 ends of 40 epochs. An end that stage one trained is shared:
    # the defaults tau = 0.9 and nu = 0.2 of the first gamma.
    assert plan.epochs == 5 * 200 + (35 - 1) * 40
    assert plan.epochs / (product * 200) <= 0.07


# Time


def kind(**values: Any) -> Kind:
    parts = {
        "model": "mlp", "device": "cpu (x86_64)", "precision": "32-true", "devices": 1,
        "compile": False, "sam": False, "batch_size": 64, "augment": "none", "mixing": "none",
        "data": "digits",
    }  # fmt: skip
    return Kind(**{**parts, **values})


def test_an_estimate_is_epochs_times_samples_over_the_measured_speed(monkeypatch):
    monkeypatch.setattr("classwise.lab.estimate.device_name", lambda device: "cpu (x86_64)")
    plan = plan_of("ce", "ce+drw")
    samples = next(iter(plan.nodes.values())).samples
    known = [Speed(kind(), 100.0, epochs=3), Speed(kind(), 900.0), Speed(kind(model="x"), 1.0)]
    found = estimate(plan, left(plan, Path("nowhere")), known)
    assert (found.epochs, found.unknown) == (6, 0)
    assert found.seconds == pytest.approx(6 * samples / 100)  # the median over epochs
    assert "100 images/s of mlp (digits, 32-true) on cpu (x86_64)" in str(found)
    assert "4 epochs" in str(found)


@pytest.mark.parametrize(
    "other",
    [{"model": "resnet32"}, {"device": "H200"}, {"precision": "bf16-mixed"}, {"sam": True},
     {"augment": "crop-flip"}, {"batch_size": 128}, {"data": "cifar100"}, {"compile": True}],
)  # fmt: skip
def test_what_was_measured_on_something_else_is_no_measurement(other: dict[str, Any]):
    plan = plan_of("ce")
    found = estimate(plan, left(plan, Path("nowhere")), [Speed(kind(**other), 100.0)])
    assert (found.epochs, found.unknown, found.seconds) == (0, 4, 0.0)
    assert str(found) == "time: unknown; nothing like it was trained here yet."


def test_no_store_has_no_speeds(tmp_path: Path):
    assert speeds(tmp_path / "nowhere") == []
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk/config.json").write_text("{")
    assert speeds(tmp_path) == []


def test_base_is_what_the_lists_are_measured_against():
    assert not {name for name in BASE if EVERYWHERE.get(name) == BASE[name]}
