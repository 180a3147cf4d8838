"""``classwise paper`` as it is typed: rows from real runs of a tiny CIFAR-10."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from sample_data import write_cifar10

from classwise.cli import main
from classwise.lab import Store
from classwise.paper import results
from classwise.train.observe import Silent
from classwise.train.setup import Setup

CELLS = "part=a,dataset=cifar10,imbalance=exp,ratio=100,method=ce|ce+drw"
HERE = ("run", "table-3", "--where", CELLS)
SHORT = ("--set", "epochs=3", "--device", "cpu", "--precision", "32-true")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data with 1,000 images, and what a run of two cells leaves beside it."""
    root = tmp_path_factory.mktemp("paper")
    write_cifar10(root / "data/cifar10", each=200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLASSWISE_DATA", str(root / "data"))
        patch.chdir(root)
        assert main(["paper", "run", "table-3", "--where", CELLS, *SHORT, "--quiet"]) == 0
    return root


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLASSWISE_DATA", str(made / "data"))
    monkeypatch.chdir(made)
    return made


def paper(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["paper", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_row_for_each_run_says_what_its_folder_says(here):
    rows = results.read(here / "results/table-3.csv")
    assert [(row.cell, row.method, row.seed) for row in rows] == [
        ("a/ce/cifar10-exp-100", "ce", 0),
        ("a/ce+drw/cifar10-exp-100", "ce+drw", 0),
    ]
    store = Store(here / "runs/store")
    for row in rows:
        folder = store.path(row.key)
        result = json.loads((folder / "result.json").read_text())
        head = json.loads((folder / "config.json").read_text())
        assert row.last == pytest.approx(100 * result["last"]["balanced"], abs=1e-4)
        assert row.best == pytest.approx(100 * result["best"]["balanced"], abs=1e-4)
        assert row.ece == pytest.approx(100 * result["last"]["ece"], abs=1e-4)
        assert (row.epochs, row.precision, row.selected_on) == (3, "32-true", "test")
        assert row.data_checksum == head["provenance"]["data_checksum"]
        assert "schedule=released" in row.hyper
        assert "torch=" in row.versions
    # Two shared epochs and two ends of one, instead of six.
    heads = [json.loads(path.read_text()) for path in store.root.glob("*/config.json")]
    assert sorted(head["identity"]["epochs"] for head in heads) == [[0, 2], [2, 3], [2, 3]]


def test_again_trains_nothing_and_adds_no_row(here, capsys):
    before = (here / "results/table-3.csv").read_bytes()
    done = {p: p.stat().st_mtime_ns for p in (here / "runs/store").glob("*/done")}
    code, out, _ = paper(capsys, "run", "table-3", "--where", CELLS, *SHORT, "--quiet")
    assert code == 0
    assert "75.8" in out
    assert (here / "results/table-3.csv").read_bytes() == before
    assert {p: p.stat().st_mtime_ns for p in (here / "runs/store").glob("*/done")} == done


def test_show_sets_ours_beside_theirs(here, capsys):
    code, out, _ = paper(capsys, "show", "table-3", "--where", CELLS)
    assert code == 0
    for row, printed in zip(
        results.read(here / "results/table-3.csv"), ("71.5", "75.8"), strict=True
    ):
        (line,) = [text for text in out.splitlines() if printed in text]
        assert f"{row.best:.1f}" in line


def test_dry_run_knows_what_is_done_and_how_fast_it_was(here, capsys):
    more = CELLS + "|ce+adrw"
    words = ("run", "table-3", "--where", more, *SHORT, "--dry-run")
    code, out, _ = paper(capsys, *words, "--json")
    plan = json.loads(out)
    assert code == 0
    assert (plan["runs"], plan["phases"], plan["epochs"]) == (3, 4, 2 + 3)
    assert (plan["epochs_alone"], plan["epochs_left"]) == (9, 1)
    assert plan["estimate"]["seconds"] > 0
    assert sorted(node["left"] for node in plan["nodes"]) == [0, 0, 0, 1]
    code, out, _ = paper(capsys, *words)
    assert code == 0
    assert all(node["key"] in out for node in plan["nodes"])
    assert "1 of these epochs are not in the store yet." in out


class StopAt(Silent):
    """Asks to stop in the second phase, as Ctrl-C does."""

    def __init__(self) -> None:
        self.phases = 0

    def begin(self, setup: Setup, first: int, stop: int) -> None:
        self.phases += 1

    def step(self, epoch: int, done: int, of: int) -> None:
        if self.phases == 2:
            os.kill(os.getpid(), signal.SIGINT)
            self.phases = 0


def test_interrupted_it_keeps_the_rows_that_are_finished(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLASSWISE_DATA", str(made / "data"))
    monkeypatch.chdir(tmp_path)
    words = ("run", "table-3", "--where", CELLS.replace("|ce+drw", "|ldam"), *SHORT, "--quiet")
    stop = StopAt()
    with monkeypatch.context() as patch:
        patch.setattr(
            "classwise.cli.reproducing.training",
            lambda *_: {"observer_for": lambda node: stop},
        )
        code, _, err = paper(capsys, *words)
    assert (code, err.count("\n")) == (130, 1)
    assert "can be resumed" in err
    assert not Path("results/table-3.csv").exists()  # no run is whole yet
    assert paper(capsys, *words)[0] == 0
    assert [row.method for row in results.read("results/table-3.csv")] == ["ce", "ldam"]
    ours, theirs = (results.read(p / "results/table-3.csv")[0] for p in (tmp_path, made))
    assert (ours.key, ours.last, ours.best, ours.ece) == (
        theirs.key, theirs.last, theirs.best, theirs.ece,
    )  # fmt: skip


def test_a_damaged_file_of_results_is_found_before_anything_is_trained(
    made, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("CLASSWISE_DATA", str(made / "data"))
    monkeypatch.chdir(tmp_path)
    text = (made / "results/table-3.csv").read_text()
    Path("results").mkdir()
    Path("results/table-3.csv").write_text(text[:-9])
    for action in ("run", "show"):
        code, _, err = paper(capsys, action, "table-3", "--where", CELLS)
        assert (code, err.count("\n")) == (1, 1)
        assert "results/table-3.csv is cut off in line 3" in err
    assert not Path("runs").exists()


def test_a_figure_is_drawn_from_what_there_is(here, capsys):
    done = len(list((here / "runs/store").glob("*/done")))
    code, _, _ = paper(capsys, "run", "figure-4", "--where", "cell=a/ce", *SHORT, "--quiet")
    assert code == 0
    assert len(list((here / "runs/store").glob("*/done"))) == done  # the table has trained it
    code, out, _ = paper(capsys, "figure", "4", "--json")
    assert code == 0
    told = json.loads(out)
    assert Path(told["figure"]).read_text().startswith("<?xml")
    assert told["missing"]


def test_a_list_of_all_and_what_they_need(capsys):
    code, out, _ = paper(capsys, "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert [n for n in rows if not n.startswith("study")] == [
        *(f"table-{number}" for number in range(3, 8)),
        *(f"figure-{number}" for number in range(1, 13)),
    ]
    assert (rows["table-3"]["label"], rows["table-3"]["runs"]) == ("tab:caifar", 136)
    code, out, _ = paper(capsys, "list")
    assert code == 0
    assert all(name in out for name in rows)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "paper needs"),
        (("lst",), 2, "action='lst' is unknown, did you mean 'list'?"),
        (("run",), 2, "paper run needs a name; paper list shows them."),
        (("show", "table-9"), 2, "item='table-9' is unknown, did you mean"),
        (("show", "table-3", "--where", "dataset=cifar1"), 2, "no cell with dataset='cifar1'"),
        (("show", "table-3", "--where", "dataset"), 2, "must be key=value"),
        (("run", "table-3", "--where", CELLS, "--seeds", "0"), 2, "seeds=0 must be at least 1"),
        (("run", "table-3", "--where", CELLS, "--precision", "fp8"), 2, "precision='fp8'"),
        (
            ("run", "table-3", "--where", CELLS, "--set", "epoch=5"),
            2,
            "there is no setting 'epoch', did you mean 'epochs'?",
        ),
        (("run", "table-3", "--where", CELLS, "--set", "epochs"), 2, "must be NAME=VALUE"),
        (("run", "table-6"), 1, "none of these 2 cells can be run here. They need weights of CLIP"),
        (HERE, 1, "which has no folder cifar10"),
        (("run", "table-3", "--where", CELLS, "--results", "file"), 2, "file"),
        (("figure", "table-3"), 2, "table-3 is a table; paper show table-3 prints it."),
        (("figure", "13"), 2, "item='figure-13' is unknown"),
        (("figure", "7"), 1, "no run of figure-7 has a result here; paper run figure-7 makes"),
    ],
)
def test_bad_input(words, code, message, tmp_path, monkeypatch, capsys, made):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("CLASSWISE_DATA", str(tmp_path if words == HERE else made / "data"))
    found, _, err = paper(capsys, *words)
    assert (found, err.count("\n")) == (code, 1)
    assert message in err
    assert not (tmp_path / "runs").exists()
