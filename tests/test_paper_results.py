"""Results as a CSV file: what goes in comes out, and nothing else gets in."""

import csv
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_rows import ROW, record_of, row

from classwise.errors import ArgumentError, DataError, StateError
from classwise.paper import load, select
from classwise.paper.results import COLUMNS, Result, append, canonical, read
from classwise.paper.rows import result_of, settings_of
from classwise.train.config import RunConfig, to_dict, with_values


def edited(path: Path, column: str, text: str) -> None:
    """Write another value into the first row of a file, as somebody with an editor would."""
    lines = list(csv.reader(path.read_text().splitlines()))
    lines[1][lines[0].index(column)] = text
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)


# In and out


def test_rows_come_back_as_they_went_in(tmp_path: Path):
    path = tmp_path / "results.csv"
    absent = dict.fromkeys(("best", "best_epoch", "many", "medium", "few", "ece"), None)
    rows = [ROW, row(key="b", seed=1), row(key="c", cell="a/cvs/cifar10-exp-10", **absent)]
    assert append(path, rows[:2]) == 2
    assert append(path, rows[2:]) == 3
    assert read(path) == rows
    assert path.read_text().splitlines()[0].split(",") == list(COLUMNS)
    assert [p.name for p in tmp_path.iterdir()] == ["results.csv"]


text = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1)
percent = st.floats(0, 100)


@settings(max_examples=50)
@given(device=text, precision=text, last=percent, few=st.none() | percent, seed=st.integers(0))
def test_any_legal_row_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    device: str,
    precision: str,
    last: float,
    few: float | None,
    seed: int,
):
    path = tmp_path_factory.mktemp("results") / "r.csv"
    groups = {"many": 100.0, "medium": last, "few": few if few is None else min(few, last)}
    best = {"best": last, "best_many": last, "best_medium": None, "best_few": 0.0}
    mine = row(device=device, precision=precision, last=last, seed=seed, **groups, **best)
    append(path, [mine])
    assert read(path) == [mine]


def test_one_run_may_answer_several_cells_but_each_once(tmp_path: Path):
    path = tmp_path / "r.csv"
    append(path, [ROW, row(table="figure-4", cell="c/ce")])
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"run 0123456789abcdef of table-3 .* is in line 2 already"):
        append(path, [row(key="new"), row(last=10.0)])
    assert path.read_bytes() == before  # all or none


def test_a_row_twice_in_a_file_is_refused(tmp_path: Path):
    path = tmp_path / "r.csv"
    append(path, [ROW])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[1]]))
    with pytest.raises(DataError, match=r"r\.csv, line 3: run .* is in line 2 already"):
        read(path)


def test_results_of_a_study_of_our_own(tmp_path: Path):
    append(tmp_path / "r.csv", [row(table="slopes", cell="anything")])
    assert read(tmp_path / "r.csv")[0].cell == "anything"


def test_rows_may_be_appended_at_once(tmp_path: Path):
    path = tmp_path / "r.csv"

    def append_some(worker: int) -> None:
        for number in range(10):
            append(path, [row(key=f"{worker}-{number}")])

    # The lock is of an open file, so threads exclude each other as processes do.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(append_some, range(4)))
    assert {r.key for r in read(path)} == {f"{w}-{n}" for w in range(4) for n in range(10)}


# Damage


@pytest.mark.parametrize("kept", [1, 5, 40, 300, -1, -30, -250])
def test_a_file_that_is_cut_off_is_found(tmp_path: Path, kept: int):
    path = tmp_path / "r.csv"
    append(path, [ROW, row(key="b")])
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=r"r\.csv is cut off in line \d"):
        read(path)
    with pytest.raises(DataError, match="is cut off"):
        append(path, [row(key="c")])


def test_an_empty_file_is_no_file_of_results(tmp_path: Path):
    (tmp_path / "r.csv").write_text("")
    with pytest.raises(DataError, match=r"line 1: 'key' is missing"):
        read(tmp_path / "r.csv")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (["note", *COLUMNS], "line 1: 'note' is no column of results"),
        ([c for c in COLUMNS if c != "seed"], "line 1: 'seed' is missing"),
        (["sede" if c == "seed" else c for c in COLUMNS], "'sede' is no column.* 'seed' is miss"),
        (list(reversed(COLUMNS)), "the columns are not in order"),
    ],
)
def test_a_file_with_other_columns(tmp_path: Path, header: list[str], message: str):
    (tmp_path / "r.csv").write_text(",".join(header) + "\n")
    with pytest.raises(DataError, match=message):
        read(tmp_path / "r.csv")


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        ("key", "", "key='' must be text that is not empty"),
        ("cell", "a/ce/cifar100-exp-1000", "cell of table-3=.* did you mean 'a/ce/cifar100-exp-10"),
        ("hyper", "tau=1;gamma=0.1", "hyper=.* must be name=value;name=value, sorted"),
        ("hyper", "tau=1.0", "hyper='tau=1.0' must be"),
        ("hyper", "tau=1;tau=1", "each name once"),
        ("hyper", "", "hyper='' must be"),
        ("seed", "0.5", "seed='0.5' must be a whole number"),
        ("seed", "-1", r"seed=-1 must be in \[0, inf\]"),
        ("epochs", "0", r"epochs=0 must be in \[1, inf\]"),
        ("last", "", "last=None must be a number"),
        ("last", "101.5", r"last=101.5 must be in \[0, 100\]"),
        ("last", "nan", "last=nan must be in"),
        ("last", "48.12", "best=38.9 is of the best epoch, and less than last=48.12"),
        ("last", "3.12", "last=3.12 must lie between the accuracies of the groups, 8.25 and 66.0"),
        ("best", "83.9", "best=83.9 must lie between the accuracies of the groups, 8.5 and 66.5"),
        ("few", "-3", r"few=-3.0 must be in \[0, 100\]"),
        ("best", "high", "best='high' must be a number"),
        ("best_epoch", "200", "best_epoch=200 must be less than epochs=200"),
        ("best_epoch", "", "best needs best_epoch and selected_on"),
        ("selected_on", "train", "selected_on='train' must be val, test or empty"),
        ("selected_on", "", "best needs best_epoch and selected_on"),
        ("seconds", "inf", "seconds=inf must be in"),
        ("device", "", "device='' must be text"),
        ("versions", "torch", "versions='torch' must be name=value"),
        ("date", "yesterday", "date='yesterday' must be ISO 8601"),
        ("date", "2026-01-02T03:04:05", "with an offset from UTC"),
    ],
)
def test_a_wrong_value_is_refused(tmp_path: Path, column: str, text: str, message: str):
    path = tmp_path / "r.csv"
    append(path, [ROW])
    edited(path, column, text)
    with pytest.raises(DataError, match=rf"r\.csv, line 2: .*{message}"):
        read(path)


def test_a_line_with_too_many_values(tmp_path: Path):
    path = tmp_path / "r.csv"
    append(path, [ROW])
    path.write_text(path.read_text().rstrip("\n") + ",more\n")
    with pytest.raises(DataError, match=r"line 2: there are 31 values for 30 columns"):
        read(path)


@pytest.mark.parametrize("value", ["two\nlines", "bell\a"])
def test_text_is_one_printable_line(tmp_path: Path, value: str):
    with pytest.raises(DataError, match="must be one printable line"):
        append(tmp_path / "r.csv", [row(device=value)])
    assert not (tmp_path / "r.csv").exists()


def test_a_file_or_folder_that_is_not_there(tmp_path: Path):
    with pytest.raises(DataError, match=r"there is no file of results"):
        read(tmp_path / "r.csv")
    with pytest.raises(DataError, match="there is no folder"):
        append(tmp_path / "none" / "r.csv", [ROW])


def test_canonical_text_is_equal_where_settings_are():
    assert canonical({"tau": 1, "nu": 0.2}) == canonical({"nu": 0.2, "tau": 1.0}) == "nu=0.2;tau=1"
    assert canonical({"nu": 0.1 + 0.2}) == canonical({"nu": 0.3})
    for bad in ({"a b": 1}, {"a": "x;y"}, {"a": ""}, {"a": "b c"}):
        with pytest.raises(ArgumentError, match="cannot be written as name=value"):
            canonical(bad)


# From runs

(CELL,) = select(load("table-3"), "cell=a/cvs+adrw/cifar100-exp-100")


def test_a_row_is_made_of_a_run(tmp_path: Path):
    made = result_of(record_of(CELL, seed=2), table="table-3", cell=CELL.name, key="k")
    assert (made.method, made.seed, made.epochs) == ("cvs+adrw", 2, 20)
    assert (made.last, made.best, made.best_epoch, made.selected_on) == (40.0, 41.0, 18, "test")
    assert (made.many, made.best_few, made.ece_few) == (60.0, 10.0, 50.0)
    assert (made.seconds, made.images_per_second) == (123.5, 1000.0)
    assert made.versions == "classwise=0.2.0;lightning-fabric=2.6;python=3.11.7;torch=2.10.0"
    pairs = dict(part.split("=") for part in made.hyper.split(";"))
    assert pairs == {
        "augment": "crop-flip", "batch_size": "128", "defer_at": "0.8", "gamma": "0.01",
        "lr": "0.1", "nu": "0.25", "schedule": "released", "slopes": "stable", "tau": "0.9",
        "warmup": "0.05", "weight_decay": "0.0002",
    }  # fmt: skip
    append(tmp_path / "r.csv", [made])
    assert read(tmp_path / "r.csv") == [made]


def test_groups_without_classes_stay_empty():
    run = record_of(CELL)
    for numbers in (run.result["last"], run.result["best"]):
        del numbers["few"]
    del run.result["last"]["ece_few"]
    made = result_of(run, table="table-3", cell=CELL.name, key="k")
    assert (made.few, made.best_few, made.ece_few) == (None, None, None)
    assert made.many is not None


def test_the_best_epoch_on_validation_has_no_number_on_test():
    run = record_of(CELL)
    run.result["best"] |= {"selected_on": "val", "measured_on": "val"}
    made = result_of(run, table="table-3", cell=CELL.name, key="k")
    assert (made.best, made.best_many, made.best_epoch, made.selected_on) == (None, None, 18, "val")


def test_a_run_that_is_no_result():
    with pytest.raises(StateError, match="is not finished"):
        result_of(record_of(CELL, finished=False), table="table-3", cell=CELL.name, key="k")
    run = record_of(CELL)
    run.result["split"] = "val"
    with pytest.raises(DataError, match="was evaluated on 'val', not on test"):
        result_of(run, table="table-3", cell=CELL.name, key="k")
    del run.result["split"]
    with pytest.raises(DataError, match="lacks what a result needs: KeyError"):
        result_of(run, table="table-3", cell=CELL.name, key="k")
    with pytest.raises(ArgumentError, match="cell of table-3='a/cvs'"):
        result_of(record_of(CELL), table="table-3", cell="a/cvs", key="k")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("a/ce/cifar100-exp-100", r"is no run of table-3 .*: method is cvs\+adrw, not ce\."),
        (
            "a/cvs+adrw/cifar10-step-100",
            r"imbalance is exp:100, not step:100; source is cifar100, n",
        ),
    ],
)
def test_a_run_of_something_else_is_no_result_of_a_cell(cell: str, message: str):
    with pytest.raises(DataError, match=message):
        result_of(record_of(CELL), table="table-3", cell=cell, key="k")
    made = result_of(record_of(CELL), table="a-study", cell=cell, key="k")
    assert made.table == "a-study"


def test_where_the_data_lies_does_not_matter():
    run = record_of(CELL)
    run.config["data"]["source"] = "cifar100:/somewhere"
    assert result_of(run, table="table-3", cell=CELL.name, key="k").seed == 0


def test_settings_of_runs_that_train_differently_differ():
    base = with_values(RunConfig(), {"method.method": "vs+tla+adrw", "optim.epochs": 10})
    seen = {canonical(settings_of(to_dict(base)))}
    changes = [
        {"tau": 0.5}, {"gamma": 0.1}, {"nu": 0.1}, {"deferred_tau": 0.5}, {"defer_at": 5},
        {"weight_decay": 0.0}, {"deferred_weight_decay": 1e-3}, {"sam": 0.1},
        {"schedule": "printed"}, {"lr": 0.2}, {"augment": "none"}, {"mixing": "mixup:1.0"},
        {"val": 0.1}, {"label_smoothing": 0.1}, {"batch_size": 64},
    ]  # fmt: skip
    for change in changes:
        seen.add(canonical(settings_of(to_dict(with_values(base, change)))))
    assert len(seen) == 1 + len(changes)


def test_a_default_that_was_left_open_is_written_down():
    said = with_values(RunConfig(), {"method.method": "vs+drw", "tau": 1.0, "p": 0.9999})
    left = with_values(RunConfig(), {"method.method": "vs+drw"})
    assert settings_of(to_dict(said)) == settings_of(to_dict(left))


def test_a_known_run_is_refused_or_left_out(tmp_path: Path):
    path = tmp_path / "r.csv"
    append(path, [ROW])
    other = row(key="fedcba9876543210", seed=1)
    with pytest.raises(DataError, match="is in line 2 already"):
        append(path, [ROW, other])
    assert append(path, [ROW, other], skip_known=True) == 2
    assert [r.key for r in read(path)] == [ROW.key, other.key]


def test_columns_are_those_that_were_promised():
    names = [f.name for f in dataclasses.fields(Result)]
    assert names[:8] == ["key", "table", "cell", "method", "hyper", "seed", "epochs", "last"]
    assert len(names) == 30
