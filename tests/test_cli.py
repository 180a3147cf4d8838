"""The command line, from the words to the exit code, what is printed and what is left behind."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import classwise
from classwise.cli import COMMANDS, main
from classwise.train.config import RunConfig
from classwise.train.record import read_run

QUICK = ("--epochs", "2", "--batch-size", "64", "--device", "cpu", "--threads", "1")
LINE = re.compile(r"classwise: [^\n]+\n")


def train(out: Path | str, *words: str) -> list[str]:
    return ["train", "digits", "--imbalance", "exp:20", *QUICK, "--out", str(out), *words]


def said(capsys: pytest.CaptureFixture[str], words: list[str], code: int = 0) -> str:
    """What a command prints on standard output; it must end with ``code``."""
    capsys.readouterr()
    assert main(words) == code
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], words: list[str], code: int) -> str:
    """The one line that a command ends with."""
    capsys.readouterr()
    assert main(words) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert LINE.fullmatch(err), err
    assert "Traceback" not in err
    return err


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, and beside it what is wrong in every way."""
    root = tmp_path_factory.mktemp("cli")
    assert main(train(root / "run", "--method", "ce", "--quiet", "--no-report")) == 0
    for name, text in {
        "bad.toml": "epochs = = 3",
        "unknown.toml": "[optim]\nepoch = 3\n",
        "type.toml": "[optim]\nepochs = 'many'\n",
        "deep.toml": "[optim.lr]\nx = 3\n",
        "words.txt": "3\nx\n",
        "nine.txt": "9\n" * 9,
        "file": "x",
    }.items():
        (root / name).write_text(text)
    (root / "thesis").mkdir()
    (root / "thesis/a.tex").write_text("x")
    with (root / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["x", "y"], *([n, n % 2] for n in range(40))])
    (root / "cut").mkdir()
    (root / "cut/config.json").write_text((root / "run/config.json").read_text()[:-20])
    return root


# Bad input. {r} is the folder of the fixture; what follows "!" is added to a sound command.

USAGE: dict[str, str] = {
    "trian digits": "there is no command 'trian', did you mean 'train'",
    "train": "train needs DATA: data set, as a URI",
    "train digits extra": "extra: there is no place for this",
    "train digits --epoch 3": "no flag --epoch, did you mean '--epochs'",
    "train digits --no-quiet": "no flag --no-quiet, did you mean '--quiet'",
    "train digits --quiet=3": "3: there is no place for this",
    "train digits --epochs": "Missing value for argument '--epochs'",
    "train digits --config": "--config: expected one argument",
    "train digitz": "data='digitz' is unknown, did you mean 'digits'",
    "train digits:x": "digits has no place",
    "train csv:{r}/t.csv": "needs the column to predict",
    "train csv:{r}/t.csv#target=z": "target='z' is unknown. Known: 'x', 'y'",
    "!--epochs x": "--epochs 'x' must be auto or INT",
    "!--epochs 2.5": "--epochs '2.5' must be auto or INT",
    "!--devices x": "--devices 'x' must be INT",
    "!--warmup x": "--warmup 'x' must be INT or FLOAT",
    "!--epochs 0": "epochs=0 must be at least 1",
    "!--batch-size -4": "batch_size=-4 must be at least 1",
    "!--accumulate 0": "accumulate=0 must be at least 1",
    "!--lr -1": "lr=-1.0 must be finite and not negative",
    "!--lr nan": "lr=nan must be finite",
    "!--momentum 0 --nesterov": "nesterov=True needs a momentum above 0",
    "!--threads 100000": "threads=100000 must be at most 1,024",
    "!--model=": "model='' is unknown",
    "!--out x -- digits": "digits: there is no place for this",
    "train csv:{r}/t.csv#target=y --tte": "tte=True averages over flipped images",
    "!--momentum 1.5": "momentum=1.5 must be below 1",
    "!--seed -1": "seed=-1 must be in",
    "!--seed 4294967296": "must be in",
    "!--devices 0": "devices=0 must be at least 1",
    "!--devices 5000": "devices=5000: at most",
    "!--device tpu": "device='tpu' is unknown, did you mean 'cpu'",
    "!--precision fp16": "precision='fp16' is unknown. Known: '32-true', 'bf16-mixed'",
    "!--imbalance exp": "must be written exp:R",
    "!--imbalance exp:0.5": "ratio=0.5 is out of range",
    "!--imbalance exp:1e9": "leaves 7 class\\(es\\) without samples",
    "!--imbalance step:10:2": "fraction=2.0 is out of range",
    "!--imbalance steps:10": "did you mean 'step'",
    "!--method xyz": "method='xyz' is unknown. Known: 'ce'",
    "!--method ce+tla": "no multiplicative term that could be dropped",
    "!--method vs+drw+adrw": "take one",
    "!--method ce --tau 1": "'ce' takes no hyper-parameters, not 'tau'",
    "!--method ce --head cosine": "it is for ldam and ala",
    "!--gamma -1": "gamma=-1.0 is out of range",
    "!--optimizer adam": "did you mean 'adamw'",
    "!--schedule cosin": "did you mean 'cosine'",
    "!--sampler x": "sampler='x' is unknown. Known: 'shuffled'",
    "!--augment x": "augment='x' is unknown. Known: 'none', 'crop-flip'",
    "!--mixing mixup:0": "alpha of mixup=0.0 is out of range",
    "!--model resnet33": "model='resnet33' is unknown",
    "!--model mlp:x": "widths are whole numbers",
    "!--select val": "needs a validation split: set val=0.1",
    "!--val 1.5": "val=1.5 must be a fraction in",
    "!--val 500": "class 0 has 142 samples, 500 are wanted",
    "!--slopes stable,foo=1": "did you mean 'pool'",
    "!--defer-at 70": "defer_at=70 lies beyond the training of epochs=2",
    "!--set epochs": "must be NAME=VALUE",
    "!--set optim.epoch=3": "no setting 'optim.epoch', did you mean 'optim.epochs'",
    "!--set epochs=abc": "epochs='abc' must be a whole number",
    "!--config {r}/unknown.toml": "no setting 'optim.epoch', did you mean 'optim.epochs'",
    "!--config {r}/type.toml": "optim.epochs='many' must be a whole number",
    "!--config {r}/deep.toml": "optim.lr={'x': 3} must be a number",
    "!--protocol z": "protocol='z' is unknown. Known: 'paper'",
    "!--out {r}/file": "file cannot be made: File exists",
    "!--out {r}/file/x": "cannot be made: Not a directory",
    "compare digits --methods ,": "at least one method and one seed",
    "compare digits --seeds 0": "at least one method and one seed",
    "compare digits --methods ce,xyz": "method='xyz' is unknown",
    "compare digits --method ce": "--methods ce,la instead of --method",
    "compare digits --methods ce --set method.method=la": "--methods ce,la instead of --method",
    "compare digits --methods ce --store s --out {r}/file": "file cannot be made: File exists",
    "compare digits --methods ce --store {r}/file": "is not a folder",
    "evaluate": "evaluate needs RUN",
    "evaluate {r}/run --split x": "split='x' is unknown. Known: 'train', 'val', 'test'",
    "evaluate {r}/run bogus:x": "data='bogus' is unknown",
    "report": "at least one run folder",
    "report {r}/run {r}/run": "the same method with the same seed",
    "report {r}/run --out {r}/thesis": "is a folder; name the file",
    "inspect": "inspect needs DATA",
    "inspect {r}/file": "is a place; say what is there",
    "list": "list needs WHAT",
    "list methodz": "did you mean 'methods'",
}
FAILURES: dict[str, str] = {
    "train folder:{r}/none": "there is no folder",
    "train npz:{r}/file": "is not a sound .npz file",
    "train list:{r}/file@{r}": "1 x bad line in file",
    "!--imbalance counts:{r}/none.txt": "none.txt cannot be read: No such file",
    "!--imbalance counts:{r}/words.txt": "words.txt",
    "!--imbalance counts:{r}/nine.txt": "9 counts where there are 10 classes",
    "!--config {r}/none.toml": "there is no settings file",
    "!--config {r}/bad.toml": "is no TOML file: .*line 1",
    "!--config {r}": "settings file .* cannot be read: Is a directory",
    "!--pretrained {r}/t.csv": "tensors only: it is none, or holds something else",
    "report {r}/run --out {r}/file/x.html": "could not be written: File exists",
    "!--out {r}/thesis": "is not empty and holds no run; name another folder",
    "!--out {r}/run": "already holds a run: resume it",
    "!--out {r}/run --resume --lr 0.3": "optim.lr: saved 0.01, here 0.3",
    "!--out {r}/cut --resume": "config.json cannot be read",
    "!--lr 1e9 --epochs 4 --method ce": "the loss became (nan|inf).*lower lr",
    "!--pretrained {r}/none.pt": "none.pt' is not a file",
    "evaluate {r}/none": "there is no run folder",
    "evaluate {r}/thesis": "config.json is missing",
    "evaluate {r}/run csv:{r}/t.csv#target=y": "has other classes than the run: 2",
    "evaluate {r}/run --split val": "has no val split",
    "report {r}/none": "there is no run folder",
    "report {r}/thesis": "is no run folder",
}


@pytest.mark.parametrize(
    ("words", "message", "code"),
    [(w, m, 2) for w, m in USAGE.items()] + [(w, m, 1) for w, m in FAILURES.items()],
)
def test_bad_input_is_one_line_and_a_code(
    words: str,
    message: str,
    code: int,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)  # what a refused command leaves behind, if anything
    given = words.replace("{r}", str(finished)).lstrip("!").split()
    if words.startswith("!"):
        given = [*train("run", "--quiet", "--no-report"), *given]
    line = refused(capsys, given, code)
    assert re.search(message, line), line
    assert not list(tmp_path.rglob("done"))


def test_debug_shows_where(finished: Path):
    with pytest.raises(classwise.ArgumentError, match="epochs=0"):
        main([*train(finished / "x"), "--epochs", "0", "--debug"])


def test_what_nobody_thought_of_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    monkeypatch.setattr("classwise.cli.training.run", broken)
    line = refused(capsys, train(tmp_path / "x"), 1)
    assert line == "classwise: ZeroDivisionError: division (--debug shows where)\n"


# Help


def test_the_front_page_names_every_command(capsys: pytest.CaptureFixture[str]):
    text = said(capsys, ["--help"])
    assert all(re.search(rf"^  {name} ", text, re.M) for name in COMMANDS)
    assert said(capsys, [], 2) == text
    assert said(capsys, ["--version"]) == f"classwise {classwise.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_short_help(name: str, capsys: pytest.CaptureFixture[str]):
    text = said(capsys, [name, "--help"])
    assert len(text.strip().splitlines()) <= 80
    assert f"usage: classwise {name}" in text
    assert ("--method " in text) == (name in ("train", "tune"))


def test_rare_settings_are_in_the_long_help_and_work_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    short, long = (said(capsys, ["train", word]) for word in ("--help", "--help-all"))
    assert "--help-all" in short
    assert len(long.splitlines()) > 1.5 * len(short.splitlines())
    for flag in ("--gamma", "--weight-decay", "--mixing"):
        assert flag not in short
        assert flag in long
    out = said(capsys, [*train(tmp_path, "--gamma", "0.3", "--no-report"), "--json"])
    assert json.loads(out)["run"] == str(tmp_path)
    assert read_run(tmp_path).config["method"]["gamma"] == 0.3


# What the commands do


def test_train_writes_a_run_and_a_page_and_prints_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    words = train("x")[:-2]  # the folder has a name of its own
    assert main([*words, "--method", "vs+drw", "--seed", "3"]) == 0
    out, err = capsys.readouterr()
    folder = Path("runs/digits-exp_20-vs+drw-seed3")
    record = read_run(folder)
    numbers = record.result["last"]
    row = re.search(r"vs\+drw .*", out)
    assert row is not None
    assert re.findall(r"[\d.]+", row[0]) == [
        f"{100 * numbers[name]:.1f}" for name in ("balanced", "many", "medium", "few", "ece")
    ]
    assert f"run:    {folder}\n" in out
    assert f"report: {folder / 'report.html'}\n" in out
    assert (folder / "report.html").read_text().lower().startswith("<!doctype html>")
    # Not on a terminal: lines without control characters, on standard error.
    assert "vs+drw digits exp:20 seed 3: epochs 1 to 2, small-cnn" in err
    assert "epoch 2/2  loss " in err
    assert "\x1b" not in out + err


def test_quiet_prints_the_result_only_and_json_nothing_else(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(train(tmp_path / "a", "--quiet", "--method", "ce", "--no-report")) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "balanced" in out
    assert "report" not in out
    assert main(train(tmp_path / "b", "--json", "--method", "ce", "--no-report")) == 0
    out, err = capsys.readouterr()
    assert err == ""
    value = json.loads(out)
    assert value["report"] is None
    assert value["last"] == read_run(finished / "run").result["last"]  # the same run, told anew


def test_resume_returns_a_finished_run_and_begins_where_there_is_none(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    before = (finished / "run/state.pt").stat().st_mtime_ns
    words = ["--method", "ce", "--no-report", "--json", "--resume"]
    again = json.loads(said(capsys, train(finished / "run", *words)))
    assert (finished / "run/state.pt").stat().st_mtime_ns == before
    fresh = json.loads(said(capsys, train(tmp_path / "new", *words)))
    assert fresh["last"] == again["last"]


def test_later_settings_win_protocol_file_flags_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    seen: list[RunConfig] = []

    def catch(config: RunConfig, *_: object, **__: object) -> None:
        seen.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr("classwise.cli.training.run", catch)
    file = tmp_path / "run.toml"
    file.write_text("seed = 5\n[optim]\nlr = 0.2\nweight_decay = 0.3\nclip = 0.4\nepochs = 7\n")
    words = ["train", "digits", "--protocol", "c", f"--config={file}", "--clip", "0.5"]
    words += ["--weight-decay", "0.6", "--set", "optim.weight_decay=0.7", "tau=auto", "--tau", "2"]
    assert main(words) == 130
    assert "interrupted" in capsys.readouterr().err
    config = seen[0]
    assert config.optim.sam == 0.2  # of the protocol
    assert (config.seed, config.optim.lr, config.optim.epochs) == (5, 0.2, 7)  # of the file
    assert config.optim.clip == 0.5  # of the flag
    assert config.optim.weight_decay == 0.7  # of --set
    assert config.method.tau is None


def test_a_file_may_name_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "run.toml"
    file.write_text('[data]\nsource = "digits"\nimbalance = "exp:30"\n[method]\nmethod = "ce"\n')
    words = ["train", "--config", str(file), *QUICK, "--no-report", "--json", "--out"]
    assert json.loads(said(capsys, [*words, str(tmp_path / "a")]))["split"] == "test"
    assert read_run(tmp_path / "a").config["data"]["source"] == "digits"
    table = tmp_path / "t.csv"
    table.write_text("x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(400)))
    said(capsys, [*words, str(tmp_path / "b"), f"csv:{table}#target=y", "--imbalance", "as-is"])
    assert read_run(tmp_path / "b").class_names == ("0", "1")


def test_names_of_methods_are_one_whatever_their_case(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["compare", "digits", *QUICK, "--methods", "ce,CE,CE+DRW", "--seeds", "1"]
    found = json.loads(said(capsys, [*words, "--dry-run", "--json"]))
    assert found["runs"] == 2
    said(capsys, [*train(tmp_path / "x", "--method", "CE"), "--no-report", "--json"])
    assert read_run(tmp_path / "x").method == "ce"


def test_few_samples_make_small_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table = tmp_path / "t.csv"
    table.write_text("x,y\n" + "".join(f"{n},{int(n < 3)}\n" for n in range(10)))
    words = ["train", f"csv:{table}#target=y", "--epochs", "2", "--no-report", "--json"]
    said(capsys, [*words, "--out", str(tmp_path / "run")])
    assert read_run(tmp_path / "run").config["optim"]["batch_size"] == 8


def test_compare_trains_shared_phases_once_and_writes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["compare", "digits", "--imbalance", "exp:20", *QUICK, "--epochs", "4", "--seeds", "2"]
    words += ["--methods", "ce,ce+drw,vs", "--store", str(tmp_path / "store")]
    planned = json.loads(said(capsys, [*words, "--dry-run", "--json"]))
    assert (planned["runs"], planned["epochs"], planned["epochs_alone"]) == (6, 18, 24)
    assert not (tmp_path / "store").exists()
    assert "18 epochs to train" in said(capsys, [*words, "--dry-run"])
    words += ["--out", str(tmp_path / "page")]
    made = json.loads(said(capsys, [*words, "--json"]))
    assert made["epochs"] == 18
    rows = {row["method"]: row for row in made["methods"]}
    assert list(rows) == ["ce", "ce+drw", "vs"]
    assert rows["ce"]["seeds"] == [0, 1]
    runs = [read_run(p.parent) for p in (tmp_path / "store").rglob("result.json")]
    balanced = [100 * r.result["last"]["balanced"] for r in runs if r.method == "vs"]
    assert rows["vs"]["balanced"]["mean"] == pytest.approx(sum(balanced) / 2)
    # Again: nothing is trained, and the table is the same.
    out = said(capsys, words)
    assert f"{rows['vs']['balanced']['mean']:.1f} ± {rows['vs']['balanced']['spread']:.1f}" in out
    assert f"report: {tmp_path / 'page/report.html'}" in out
    assert len(list((tmp_path / "store").rglob("done"))) == planned["phases"]


def test_evaluate_measures_what_training_measured(
    finished: Path, capsys: pytest.CaptureFixture[str]
):
    run = finished / "run"
    found = json.loads(said(capsys, ["evaluate", str(run), "--json", "--device", "cpu"]))
    last = read_run(run).result["last"]
    assert found["balanced"] == pytest.approx(last["balanced"])
    assert found["ece"] == pytest.approx(last["ece"], abs=1e-6)
    same = json.loads(said(capsys, ["evaluate", str(run), "digits", "--json"]))
    assert same["balanced"] == found["balanced"]
    learned = json.loads(said(capsys, ["evaluate", str(run), "--split", "train", "--json"]))
    assert learned["overall"] != found["overall"]
    text = said(capsys, ["evaluate", str(run), "--tte"])
    assert "test split, %" in text


def test_report_says_where_the_page_lies(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    page = tmp_path / "deep" / "page.html"
    assert said(capsys, ["report", str(finished / "run"), "--out", str(page)]) == f"{page}\n"
    assert "<svg" in page.read_text()


def test_inspect_tells_what_is_there_and_what_is_wrong(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = said(capsys, ["inspect", "digits"])
    assert "10 classes" in text
    assert "samples: train 1,438, test 359" in text
    assert "to begin: classwise train digits" in text
    assert json.loads(said(capsys, ["inspect", "digits", "--json"]))["sound"] is True
    for name in ("cat", "<b>[red]dog"):
        (tmp_path / name).mkdir()
        for number in range(12):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    (tmp_path / "cat/0.png").write_bytes(b"")
    text = said(capsys, ["inspect", f"folder:{tmp_path}"], 1)
    assert "problem: 1 x empty file in train (cat/0.png)" in text
    found = json.loads(said(capsys, ["inspect", f"folder:{tmp_path}", "--json"], 1))
    assert found["problems"][0]["kind"] == "empty file"


def test_inspect_lists_many_classes_by_their_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with (tmp_path / "t.csv").open("w", newline="") as file:
        rows = [[f"{n}.{k}", f"class {n}"] for n in range(1, 31) for k in range(2 * n)]
        csv.writer(file).writerows([["x", "y"], *rows])
    text = said(capsys, ["inspect", f"csv:{tmp_path}/t.csv#target=y"])
    listed = re.findall(r"class (\d+) ", text)
    assert [int(name) for name in listed[:10]] == list(range(30, 20, -1))
    assert [int(name) for name in listed[10:20]] == list(range(10, 0, -1))


@pytest.mark.parametrize(
    "what", ["methods", "sources", "models", "protocols", "schedules", "tables"]
)
def test_lists(what: str, capsys: pytest.CaptureFixture[str]):
    rows = json.loads(said(capsys, ["list", what, "--json"]))
    text = said(capsys, ["list", what])
    first = next(iter(rows[0]))
    assert len(rows) > 3
    assert all(str(row[first]).split(":")[0].split("[")[0] in text for row in rows)


# Data in other forms


def spread(count: int, classes: int) -> list[int]:
    """Labels, the classes more and more seldom."""
    return [c for c in range(classes) for _ in range(max(6, count // 3**c))]


def test_a_folder_of_images_from_inspection_to_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    generator = torch.Generator().manual_seed(0)
    for split, labels in {"train": spread(60, 3), "test": [0, 1, 2] * 5}.items():
        for number, label in enumerate(labels):
            folder = tmp_path / "images" / split / f"sort {label} <i>"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = torch.randint(0, 90, (14, 14, 3), generator=generator, dtype=torch.uint8)
            pixels[..., label] += 140
            Image.fromarray(pixels.numpy()).save(folder / f"{number}.png")
    uri = f"folder:{tmp_path}/images#size=12"
    assert "3 classes" in said(capsys, ["inspect", uri])
    words = ["train", uri, "--epochs", "6", "--out", str(tmp_path / "run"), "--json"]
    found = json.loads(said(capsys, words))
    assert found["last"]["balanced"] > 0.9  # the colour gives the class away
    page = (tmp_path / "run/report.html").read_text()
    assert "sort 0 &lt;i&gt;" in page
    assert "sort 0 <i>" not in page


def test_image_files_through_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for label in range(2):
        for number in range(12):
            (tmp_path / "d" / str(label)).mkdir(parents=True, exist_ok=True)
            shade = 20 + 200 * label + number
            Image.new("RGB", (20, 16 + number), (shade,) * 3).save(
                tmp_path / "d" / str(label) / f"{number}.jpg"
            )
    words = ["train", f"folder:{tmp_path}/d", "--image-size", "16", "--workers", "1"]
    words += ["--model", "small-cnn", "--epochs", "2", "--out", str(tmp_path / "r"), "--json"]
    found = json.loads(said(capsys, [*words, "--no-report", "--batch-size", "8"]))
    assert 0 <= found["last"]["balanced"] <= 1
    assert read_run(tmp_path / "r").config["data"]["augment"] == "crop-flip"


def test_a_table_from_inspection_to_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    generator = torch.Generator().manual_seed(0)
    with (tmp_path / "people.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["height", "town", "kind"])
        for label in spread(240, 3):
            x = 3.0 * label + float(torch.randn((), generator=generator))
            writer.writerow([f"{x:.3f}", ("Rome", "Oslo")[label % 2], f"k{label}"])
    uri = f"csv:{tmp_path}/people.csv#target=kind"
    assert "table" in said(capsys, ["inspect", uri])
    words = ["compare", uri, "--methods", "ce,cvs+adrw", "--seeds", "1", "--epochs", "10"]
    words += ["--store", str(tmp_path / "store"), "--out", str(tmp_path / "page"), "--json"]
    found = json.loads(said(capsys, words))
    assert all(row["balanced"]["mean"] > 60 for row in found["methods"])


# Real processes


def shell(*words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "classwise", *words],
        capture_output=True, text=True, timeout=240, check=False, **how,
    )  # fmt: skip


def test_the_command_starts_without_loading_torch_and_fails_without_a_traceback():
    code = "import sys, classwise.cli as c; c.main(['--help']); sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
        == 0
    )
    done = shell("train", "digits", "--epoch", "3")
    assert (done.returncode, done.stdout) == (2, "")
    assert LINE.fullmatch(done.stderr), done.stderr


def test_a_reader_that_leaves_is_no_error():
    done = subprocess.run(
        f"'{sys.executable}' -m classwise --help | true",
        shell=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""


def same_weights(one: Path, other: Path) -> bool:
    a, b = (load_file(folder / "model.safetensors") for folder in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_ends_with_130_and_resume_goes_on(number: int, tmp_path: Path, capsys):
    words = train(tmp_path / "parts", "--epochs", "30", "--no-report", "--method", "vs+drw")
    child = subprocess.Popen(
        [sys.executable, "-m", "classwise", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stderr is not None
    lines = [child.stderr.readline(), child.stderr.readline()]  # the title, the first epoch
    child.send_signal(number)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 130, lines
    assert out == ""
    assert re.fullmatch(
        r"classwise: stopped; the state is saved in .* resumed.", err.splitlines()[-1]
    )
    assert 0 < len(read_run(tmp_path / "parts").epochs) < 30
    assert main([*words, "--resume", "--quiet"]) == 0
    assert main([*words[:-1], "vs+drw", "--quiet", "--out", str(tmp_path / "whole")]) == 0
    assert same_weights(tmp_path / "whole", tmp_path / "parts")


def curve(folder: Path) -> list[float]:
    return [row["train"]["loss"] for row in read_run(folder).epochs]


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "classwise")


def spawned(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.parametrize("launcher", ["--devices", "torchrun"])
def test_two_processes_from_the_command_line_train_as_one(launcher: str, tmp_path: Path):
    words = train("x", "--no-report", "--warmup", "1", "--method", "cvs+adrw", "--epochs", "3")
    assert main([*words, "--out", str(tmp_path / "one"), "--quiet"]) == 0
    two = [*words, "--out", str(tmp_path / "two"), "--json"]
    if launcher == "torchrun":
        done = spawned(*TORCHRUN, *two)
    else:
        done = spawned("-m", "classwise", *two, "--devices", "2")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"] == str(tmp_path / "two")  # printed once
    assert read_run(tmp_path / "two").provenance["processes"] == 2
    assert curve(tmp_path / "two") == pytest.approx(curve(tmp_path / "one"), rel=1e-4)
    one, two_ = read_run(tmp_path / "one"), read_run(tmp_path / "two")
    assert torch.equal(one.tensors["test.class_count"], two_.tensors["test.class_count"])
    for a, b in zip(one.epochs, two_.epochs, strict=True):
        assert a["kappa_star"] == pytest.approx(b["kappa_star"], rel=1e-3)


def test_phases_are_not_for_torchrun(tmp_path: Path):
    words = ["compare", "digits", *QUICK, "--methods", "ce,la", "--store", str(tmp_path / "store")]
    done = spawned(*TORCHRUN, *words, "--out", str(tmp_path / "page"))
    assert done.returncode == 1
    assert "classwise: phases are not for torchrun: set --devices" in done.stderr
    assert not list(tmp_path.rglob("config.json"))


# Real data


def fashion() -> str:
    for root in (os.environ.get("CLASSWISE_DATA"), "/usr/share/datasets"):
        if root and (Path(root) / "fashion-mnist").is_dir():
            return str(Path(root) / "fashion-mnist")
    pytest.skip("there is no Fashion-MNIST: neither in CLASSWISE_DATA nor Debian's package")


@pytest.mark.slow
def test_fashion_mnist_with_the_same_commands(tmp_path: Path, capsys):
    uri = f"fashion-mnist:{fashion()}"
    assert "10 classes" in said(capsys, ["inspect", uri])
    words = ["compare", uri, "--imbalance", "exp:100", "--methods", "ce,cvs+adrw", "--seeds", "1"]
    words += ["--epochs", "3", "--store", str(tmp_path / "store"), "--out", str(tmp_path / "page")]
    ce, cvs = json.loads(said(capsys, [*words, "--json"]))["methods"]
    assert ce["few"] is None  # the smallest class has 60 samples
    assert cvs["medium"]["mean"] > ce["medium"]["mean"]
    assert ce["balanced"]["mean"] > 60  # percent; at too high a rate it stays at 10
    assert "Pullover" in (tmp_path / "page/report.html").read_text()


@pytest.mark.slow
def test_three_epochs_of_protocol_a_on_cifar_100_lt(tmp_path: Path, capsys):
    root = os.environ.get("CLASSWISE_DATA")
    if not root or not (Path(root) / "cifar100").is_dir():
        pytest.skip("CLASSWISE_DATA has no cifar100")
    words = ["train", "cifar100", "--protocol", "a", "--imbalance", "exp:100", "--epochs", "3"]
    found = json.loads(said(capsys, [*words, "--out", str(tmp_path / "run"), "--json"]))
    record = read_run(tmp_path / "run")
    assert int(record.class_counts.sum()) == 10_847
    assert record.tensors["test.class_count"].tolist() == [100] * 100
    assert len(record.tensors["test.class_accuracy"]) == 100
    assert found["last"]["balanced"] > 0.03
    assert found["best"]["selected_on"] == "test"
    page = (tmp_path / "run/report.html").read_text()
    assert all(name.replace("_", " ") in page or name in page for name in record.class_names)
