"""Tuning: two stages, what they cost, and a journal of Optuna that outlives its writer."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from lab_runs import BASE, config
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from classwise.cli import main
from classwise.errors import ArgumentError, DataError, StateError
from classwise.lab import Node, Store
from classwise.lab.journal import Search, journal_in, repair
from classwise.lab.tune import GRID, Stage, Trial, default_grid, stages_of, tune, tuning_plan
from classwise.report.tuning import sensitivity, write_tuning
from classwise.train.launch import run
from classwise.train.observe import Silent
from classwise.train.record import read_run
from classwise.train.setup import Setup

SMALL = {"gamma": [0.0, 0.3], "tau": [0.5, 1.5], "nu": [0.1, 1.0]}
TUNED = {"method": "cvs+adrw", "val": 0.3, "select": "val"}
LINE = {"nu": [0.1, 1.0]}


def settings(**values: Any) -> Any:
    return config(**{**TUNED, **values})


class Told(Silent):
    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []

    def begin(self, setup: Setup, first: int, stop: int) -> None:
        self.begun.append((first, stop))


def told(*into: Told) -> Any:
    def observer_for(node: Node) -> Told:
        return into[0]

    return observer_for


# Two stages


@pytest.mark.parametrize(
    ("method", "names", "stages"),
    [
        ("cvs+adrw", ["gamma", "tau", "nu"], [("gamma",), ("tau", "nu")]),
        ("cvs+adrw", ["nu", "gamma"], [("gamma",), ("nu",)]),
        ("cvs", ["tau", "gamma"], [("gamma",), ("tau",)]),
        ("vs+tla+adrw", ["gamma", "tau", "deferred_tau", "nu"],
         [("gamma", "tau"), ("deferred_tau", "nu")]),
        ("vs", ["gamma", "tau"], [("gamma", "tau")]),
        ("ldam+drw", ["max_margin", "p"], [("max_margin",), ("p",)]),
        ("ce+adrw", ["nu"], [("nu",)]),
    ],
)  # fmt: skip
def test_first_what_shapes_the_first_phase(method, names, stages):
    grid = {name: GRID[name] for name in names}
    assert stages_of(method, grid) == stages
    assert stages_of(method, {name: values[:1] for name, values in grid.items()}) == stages


@pytest.fixture(scope="module")
def brute(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[float, ...], float]:
    """Every point of the product as a run of its own, without the lab: its score."""
    root, scores = tmp_path_factory.mktemp("brute"), {}
    for number, point in enumerate(itertools.product(*SMALL.values())):
        wanted = settings(**dict(zip(SMALL, point, strict=True)))
        scores[point] = run(wanted, root / str(number)).epochs[-1]["val"]["balanced"]
    return scores


def test_the_search_finds_what_brute_force_finds(brute, tmp_path):
    """Stage one at the method's own tau and nu; stage two over their product at the best gamma."""
    found = tune(settings(), Store(tmp_path), grid=SMALL)
    assert [stage.names for stage in found.stages] == [("gamma",), ("tau", "nu")]
    first, second = found.stages
    gamma = first.best.hyper["gamma"]
    by_hand = {}
    for value in SMALL["gamma"]:
        alone = run(settings(gamma=value), tmp_path / f"gamma-{value}")
        by_hand[value] = alone.epochs[-1]["val"]["balanced"]
    assert {trial.hyper["gamma"]: trial.score for trial in first.trials} == by_hand
    assert by_hand[gamma] == max(by_hand.values())
    scores = {(t.hyper["tau"], t.hyper["nu"]): t.score for t in second.trials}
    assert scores == {point[1:]: score for point, score in brute.items() if point[0] == gamma}
    assert len(set(scores.values())) > 1  # or the best of them is no choice
    best = (found.best["tau"], found.best["nu"])
    assert scores[best] == max(scores.values())
    assert found.best == {"gamma": gamma, **second.best.hyper}
    assert (found.method, found.data) == ("cvs+adrw", "digits exp:50")


def test_what_a_search_costs(tmp_path):
    seen = Told()
    found = tune(settings(), Store(tmp_path), grid=SMALL, observer_for=told(seen))
    trained = sum(stop - first for first, stop in seen.begun)
    # By hand: two whole trainings of 4 epochs, and four ends of 2 from the best trunk.
    assert trained == found.epochs == 2 * 4 + 4 * 2
    assert found.epochs_alone == (2 + 4) * 4
    assert found.epochs_product == 2 * 2 * 2 * 4
    plan, product = tuning_plan(settings(), SMALL)
    assert (plan.epochs, product) == (found.epochs, 8)
    again = Told()
    assert tune(settings(), Store(tmp_path), grid=SMALL, observer_for=told(again)) == found
    assert again.begun == []


def test_scores_are_means_over_seeds(tmp_path):
    found = tune(settings(method="ce+adrw"), Store(tmp_path / "s"), grid=LINE, seeds=2)
    for trial in found.stages[0].trials:
        each = [
            run(
                settings(method="ce+adrw", seed=seed, **trial.hyper),
                tmp_path / f"{seed}-{trial.hyper['nu']}",
            ).epochs[-1]["val"]["balanced"]
            for seed in (0, 1)
        ]
        assert trial.score == pytest.approx(sum(each) / 2, abs=1e-12)


def test_the_best_trial_and_ties():
    made = [Trial({"nu": nu}, score) for nu, score in ((0.1, 0.5), (0.2, 0.7), (0.3, 0.7))]
    stage = Stage(("nu",), tuple(made))
    assert stage.best is made[1]
    assert stage.ties.startswith("2 of 3 trials share the best score, and the first is taken.")
    assert Stage(("nu",), tuple(made[:2])).ties == ""


def test_the_grid_of_a_method():
    assert default_grid("cvs+adrw") == {name: GRID[name] for name in ("gamma", "tau", "nu")}
    assert default_grid("vs")["gamma"] == (0.05, 0.1, 0.15, 0.2, 0.3)  # another gamma
    assert default_grid("ldam+drw") == {name: GRID[name] for name in ("p", "max_margin")}
    with pytest.raises(ArgumentError, match="nothing that 'ce' takes"):
        default_grid("ce")
    with pytest.raises(ArgumentError, match="method='cvss' is unknown"):
        default_grid("cvss+adrw")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"grid": {"nu": []}}, "the grid of nu is empty"),
        ({"grid": {"mu": [1.0]}}, "takes gamma, tau, nu, not 'mu'"),
        ({"sampler": "tpa"}, r"sampler='tpa' is unknown, did you mean 'tpe'\?"),
        ({"trials": 0}, "trials=0 must be at least 1"),
        ({"seeds": 0}, "seeds=0 must be at least 1"),
        ({"grid": {"gamma": [-1.0]}}, "gamma=-1.0 is out of range"),
    ],
)
def test_what_cannot_be_searched(more, message, tmp_path):
    with pytest.raises(ArgumentError, match=message):
        tune(settings(), Store(tmp_path), **more)
    assert not list(tmp_path.iterdir())


def test_without_a_validation_split_there_is_no_search(tmp_path):
    with pytest.raises(ArgumentError, match=r"needs a validation split: set val=0\.2"):
        tune(config(method="cvs+adrw"), Store(tmp_path))


# Optuna


TOY = {"x": [0.0, 0.5, 1.0], "y": [1.0, 3.0]}


def toy(point: dict[str, float]) -> float:
    """A score with one top, at x = 0.3 and y = 2."""
    return 1 - (point["x"] - 0.3) ** 2 - (point["y"] - 2) ** 2


def searched(path: Path | None, sampler: str, trials: int, seed: int = 0) -> list[Any]:
    with journal_in(path) as storage:
        search = Search(storage, "toy", sampler=sampler, seed=seed, grid=TOY)
        while len(search.scored) < trials:
            trial, point = search.ask()
            search.tell(trial, toy(point))
        return search.scored


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_draws_depend_on_the_seed_and_on_what_was_scored(sampler, tmp_path):
    whole = searched(None, sampler, 12)
    assert len({point["x"] for point, _ in whole}) == 12
    assert all(0 <= point["x"] <= 1 <= point["y"] <= 3 for point, _ in whole)
    assert all(score == toy(point) for point, score in whole)
    assert searched(None, sampler, 12) == whole
    assert searched(None, sampler, 12, seed=1) != whole
    for trials in (1, 5, 5, 12):  # closed and opened again
        parts = searched(tmp_path / "journal", sampler, trials)
    assert parts == whole


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_journal_cut_at_any_byte_loses_what_was_cut_and_no_more(sampler, tmp_path):
    """As a kill in the middle of a write leaves it; at forty places, the last record's all."""
    path = tmp_path / "journal"
    whole = searched(path, sampler, 6)
    written = path.read_bytes()
    last = written[:-1].rfind(b"\n") + 1
    cuts = random.Random(0).sample(range(1, last), 20)
    cuts += random.Random(1).sample(range(last, len(written) + 1), min(20, len(written) - last))
    for cut in cuts:
        path.write_bytes(written[:cut])
        with journal_in(path) as storage:
            kept = Search(storage, "toy", sampler=sampler, seed=0, grid=TOY).scored
        assert kept == whole[: len(kept)], cut
        records = [json.loads(line) for line in written[:cut].split(b"\n")[:-1]]
        assert len(kept) == sum(record.get("state") == TrialState.COMPLETE for record in records)
        after = searched(path, sampler, 6)
        assert after == whole, cut
        assert all(json.loads(line) for line in path.read_bytes().splitlines())


def test_repair_cuts_a_torn_record_and_only_that(tmp_path):
    path = tmp_path / "journal"
    path.write_bytes(b'{"a": 1}\n{"b": 2}\n{"c"')
    assert repair(path) == 4
    assert path.read_bytes() == b'{"a": 1}\n{"b": 2}\n'
    assert repair(path) == 0
    path.write_bytes(b'{"a"\n{"b": 2}\n')
    with pytest.raises(DataError, match=r"line 1 cannot be read: .*Move the file away"):
        repair(path)


def test_a_journal_is_of_one_process_at_a_time(tmp_path):
    with (
        journal_in(tmp_path / "journal"),
        pytest.raises(StateError, match="another process searches with"),
        journal_in(tmp_path / "journal"),
    ):
        pass
    with journal_in(tmp_path / "journal"):
        pass


def test_optuna_itself_reads_the_journal(tmp_path):
    """It is an ordinary one: Optuna's own tools may look at it."""
    whole = searched(tmp_path / "journal", "tpe", 3)
    backend = JournalFileBackend(str(tmp_path / "journal"))
    study = optuna.load_study(study_name="toy", storage=optuna.storages.JournalStorage(backend))
    assert [(trial.params, trial.value) for trial in study.trials] == whole


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_with_optuna(sampler, tmp_path):
    seen = Told()
    found = tune(
        settings(), Store(tmp_path / "s"), grid=SMALL, sampler=sampler, trials=3,
        journal=tmp_path / "journal", observer_for=told(seen),
    )  # fmt: skip
    assert [len(stage.trials) for stage in found.stages] == [3, 3]
    for stage, name in itertools.product(found.stages, SMALL):
        for trial in stage.trials:
            assert min(SMALL[name]) <= trial.hyper.get(name, min(SMALL[name])) <= max(SMALL[name])
    # Three trunks with their ends, then three ends of the best.
    assert sum(stop - first for first, stop in seen.begun) == found.epochs == 3 * 4 + 3 * 2
    again = Told()
    same = tune(
        settings(), Store(tmp_path / "s"), grid=SMALL, sampler=sampler, trials=3,
        journal=tmp_path / "journal", observer_for=told(again),
    )  # fmt: skip
    assert same == found
    assert again.begun == []


def test_another_search_in_one_journal_takes_no_foreign_scores(tmp_path):
    for values in ({}, {"epochs": 3}):
        seen = Told()
        tune(
            settings(method="ce+adrw", **values), Store(tmp_path / "s"), grid=LINE,
            sampler="random", trials=2, journal=tmp_path / "journal", observer_for=told(seen),
        )  # fmt: skip
        assert len(seen.begun) == 3


_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["classwise.lab.tune", "classwise.lab.journal"])


class Slow(Silent):
    def step(self, epoch: int, done: int, of: int) -> None:
        time.sleep(0.02)


def _tune(root: Path, sampler: str) -> None:
    torch.set_num_threads(1)
    tune(
        settings(), Store(root / "store"), grid=SMALL, sampler=sampler, trials=3,
        journal=root / "journal", observer_for=lambda node: Slow(),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_killed_at_random_moments_a_search_loses_nothing_that_was_finished(sampler, tmp_path):
    """SIGKILL, and a record that it was just writing; the end is as if nothing had happened."""
    whole = tune(settings(), Store(tmp_path / "whole"), grid=SMALL, sampler=sampler, trials=3)
    random_ = random.Random(0)
    root, killed = tmp_path / "parts", 0
    root.mkdir()
    for _ in range(8):
        child = _PROCESSES.Process(target=_tune, args=(root, sampler))
        child.start()
        child.join(0.8 + 1.5 * random_.random())
        child.kill()
        child.join()
        killed += child.exitcode != 0
        if (root / "journal").exists():
            with (root / "journal").open("ab") as file:
                file.write(b'{"op_code": 6, "worker_id": "x", "trial')  # half a record
    assert killed >= 4
    before = finished(root / "store")
    seen = Told()
    found = tune(
        settings(), Store(root / "store"), grid=SMALL, sampler=sampler, trials=3,
        journal=root / "journal", observer_for=told(seen),
    )  # fmt: skip
    assert found == whole
    assert not list((root / "store").glob("*.damaged*"))
    assert len(seen.begun) == len(finished(root / "store")) - len(before)
    assert before.items() <= finished(root / "store").items()  # not one was written again


def finished(store: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in store.glob("*/done")}


# The page


def test_sensitivity_is_the_best_and_the_mean_at_each_value():
    points = list(itertools.product((0.5, 1.0), (0.1, 0.2, 0.3)))
    scores = [0.1, 0.5, 0.3, 0.4, 0.2, 0.6]
    trials = [Trial({"tau": t, "nu": n}, s) for (t, n), s in zip(points, scores, strict=True)]
    random.Random(0).shuffle(trials)
    values, best, mean = sensitivity(Stage(("tau", "nu"), tuple(trials)), "tau")
    assert values.tolist() == [0.5, 1.0]
    assert best.tolist() == [0.5, 0.6]
    np.testing.assert_allclose(mean, [0.3, 0.4])
    values, best, mean = sensitivity(Stage(("tau", "nu"), tuple(trials)), "nu")
    assert values.tolist() == [0.1, 0.2, 0.3]
    assert best.tolist() == [0.4, 0.5, 0.6]
    np.testing.assert_allclose(mean, [0.25, 0.35, 0.45])


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_the_page_has_every_trial_and_a_curve_of_each_value(sampler, tmp_path):
    found = tune(settings(), Store(tmp_path / "s"), grid=SMALL, sampler=sampler, trials=3)
    text = write_tuning(found, tmp_path / "tuning.html").read_text()
    assert "://" not in text.replace("http://www.w3.org", "")  # loads nothing
    assert text.count("<figure>") == len(SMALL)
    for name in SMALL:
        assert f"{name} = {found.best[name]:.4g}" in text
    rows = re.findall(r"<tr>(?:<td class=\"num\">.*?</td>)+</tr>", text)
    cells = [re.findall(r"<td class=\"num\">(.*?)</td>", row) for row in rows]
    expected = [
        [*(f"{trial.hyper[name]:.4g}" for name in stage.names), f"{100 * trial.score:.2f}"]
        for stage in found.stages
        for trial in sorted(stage.trials, key=lambda trial: -trial.score)
    ]
    assert cells == expected
    for number in (found.epochs, found.epochs_alone, found.epochs_product):
        assert f"<dd>{number}</dd>" in text


# The command


def command(*words: str) -> list[str]:
    given = {k.replace("_", "-"): v for k, v in BASE.items() if k != "source"}
    flags = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    return ["tune", "digits", *flags, *words]


def test_the_command_trains_prints_and_writes_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = command("--grid", "gamma=0,0.3", "tau=0.5,1.5", "nu=0.1,1", "--quiet", "--val", "0.3")
    assert main([*words, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["epochs"], planned["epochs_alone"], planned["epochs_saved"]) == (16, 32, 16)
    assert main(words) == 0
    said = capsys.readouterr().out
    direct = tune(settings(), Store("runs/store"), grid=SMALL)
    best = " ".join(f"--{name} {value:.4g}" for name, value in direct.best.items())
    assert f"best: --method cvs+adrw {best}" in said
    assert "16 epochs trained; the same trials alone 24, the whole grid 32." in said
    assert "page: runs/tune-digits-exp_50-cvs+adrw/tuning.html" in said
    assert (tmp_path / "runs/tune-digits-exp_50-cvs+adrw/tuning.html").exists()
    assert main([*words, "--json"]) == 0
    told_again = json.loads(capsys.readouterr().out)
    assert told_again["best"] == direct.best
    assert [len(stage["trials"]) for stage in told_again["stages"]] == [2, 4]


def test_what_was_found_can_be_typed(tmp_path, monkeypatch, capsys):
    """The line that says what is best is a line for classwise train."""
    monkeypatch.chdir(tmp_path)
    words = ["--method", "vs+tla+adrw", "--grid", "deferred_tau=0.5,1.5", "--quiet"]
    assert main(command(*words)) == 0
    line = re.search(r"^best: (.*)$", capsys.readouterr().out, re.MULTILINE)
    assert line is not None
    assert "--deferred-tau" in line[1]
    assert main(["train", *command()[1:], *line[1].split(), "--quiet", "--out", "run"]) == 0
    assert read_run(Path("run")).method == "vs+tla+adrw"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--grid", "gama=0.1"], "takes gamma, tau, nu, not 'gama', did you mean 'gamma'?"),
        (["--grid", "gamma="], "--grid 'gamma=' must be NAME=V1,V2,..."),
        (["--grid", "gamma"], "--grid 'gamma' must be NAME=V1,V2,..."),
        (["--grid", "gamma=much"], "--grid 'gamma=much' must be NAME=V1,V2,..."),
        (["--grid", "gamma=nan"], "gamma=nan is out of range"),
        (["--grid", "gamma=-1"], "gamma=-1.0 is out of range"),
        (["--grid"], "--grid needs NAME=V1,V2,..."),
        (["--grid", "gamma=0.1", "gamma=0.2"], "--grid names gamma twice"),
        (["--grid", "lr=0.1,0.2"], "takes gamma, tau, nu, not 'lr'"),
        (["--method", "ce"], "nothing that 'ce' takes"),
        (["--method", "ce", "--grid", "nu=1"], "'ce' takes no hyper-parameters, not 'nu'"),
        (["--method", "cvss"], "method='cvss' is unknown, did you mean 'cvs'?"),
        (["--search", "tpa"], "search='tpa' is unknown, did you mean 'tpe'?"),
        (["--search", "tpe", "--trials", "0"], "trials=0 must be at least 1"),
        (["--seeds", "-1"], "seeds=-1 must be at least 1"),
        (["--engine", "rya"], "engine='rya' is unknown, did you mean 'ray'?"),
        (["--store", "file"], "the store file is not a folder"),
        (["--out", "file"], "file cannot be made"),
        (["--val", "1.5"], "val=1.5 must be a fraction in [0, 1)"),
    ],
)
def test_bad_input_of_the_command(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    assert main(command(*words)) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_a_damaged_journal_ends_the_command_with_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/optuna.journal").write_bytes(b"{{{\n{}\n")
    words = ["--search", "tpe", "--trials", "1", "--out", "out", "--quiet"]
    assert main(command(*words)) == 1
    assert re.fullmatch(r"classwise: out/optuna.journal, line 1 cannot .*\n",
                        capsys.readouterr().err)  # fmt: skip
    shutil.rmtree("out")
    assert main(command(*words)) == 0


def test_the_command_goes_on_with_a_torn_journal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words: Sequence[str] = command(
        "--search", "tpe", "--trials", "2", "--out", "out", "--grid", "nu=0.1,1", "--json"
    )
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    with Path("out/optuna.journal").open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    before = finished(Path("runs/store"))
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert finished(Path("runs/store")) == before
