"""Training: resuming, forking, several processes, folders."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lab_runs import StopAt, assert_same
from safetensors.torch import load_file
from torch import nn

from classwise.errors import ArgumentError, CheckpointError, StateError
from classwise.models import Classifier
from classwise.train.again import trained_model
from classwise.train.checkpoint import load_state, save_state, verify_done, write_atomic
from classwise.train.config import RunConfig, with_values
from classwise.train.evaluate import evaluate
from classwise.train.launch import run
from classwise.train.record import read_run
from classwise.train.setup import make_model, setup
from classwise.train.stopping import Interrupted

BASE = {"source": "digits", "imbalance": "exp:20", "epochs": 4, "batch_size": 64, "device": "cpu"}


def config(**values: object) -> RunConfig:
    return with_values(RunConfig(), {**BASE, **values})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("method", ["cvs+adrw", "ldam+drw", "ib"])
@pytest.mark.parametrize("steps", [1, 7, 10, 31])
def test_interrupted_and_resumed_equals_uninterrupted(tmp_path, method, steps):
    run(config(method=method), tmp_path / "whole")
    with pytest.raises(Interrupted, match="saved"):
        run(config(method=method), tmp_path / "parts", observer=StopAt(steps))
    assert not (tmp_path / "parts/done").exists()
    run(config(method=method), tmp_path / "parts")
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_interrupted_again_and_again(tmp_path):
    settings = config(sam=0.05, accumulate=2, clip=1.0, mixing="mixup:1.0", method="vs+drw")
    run(settings, tmp_path / "whole")
    for _ in range(20):
        try:
            run(settings, tmp_path / "parts", observer=StopAt(5))
            break
        except Interrupted:
            continue
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_dropout_draws_on_where_an_interrupted_epoch_stopped(tmp_path, monkeypatch):
    def with_dropout(ready: object) -> Classifier:
        backbone = nn.Sequential(nn.Flatten(), nn.Dropout(0.5))
        return Classifier(backbone, nn.Linear(64, 10), feature_dim=64, num_classes=10)

    monkeypatch.setattr("classwise.train.session.make_model", with_dropout)
    run(config(method="ce"), tmp_path / "whole")
    with pytest.raises(Interrupted):
        run(config(method="ce"), tmp_path / "parts", observer=StopAt(3))
    torch.rand(7)
    run(config(method="ce"), tmp_path / "parts")
    assert_same(tmp_path / "whole", tmp_path / "parts")


def test_a_step_with_sam_is_that_of_the_paper(tmp_path):
    still = {"momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "method": "ce"}
    settings = config(**still, sam=0.3, lr=0.01, epochs=1)
    train = setup(settings).prepared.train
    settings = with_values(settings, {"batch_size": len(train)})  # one step in all
    run(settings, tmp_path / "run")
    torch.manual_seed(0)
    model, data = make_model(setup(settings)), setup(settings).prepared.dataset
    assert isinstance(train.inputs, torch.Tensor)
    images = (train.inputs / 255 - data.mean[0]) / data.std[0]
    values = list(model.parameters())

    def gradient() -> list[torch.Tensor]:
        loss = nn.functional.cross_entropy(model(images), train.labels)
        return list(torch.autograd.grad(loss, values))

    begun, first = [v.detach().clone() for v in values], gradient()
    norm = sum(float(g.square().sum()) for g in first) ** 0.5
    with torch.no_grad():
        for value, g in zip(values, first, strict=True):
            value.add_(0.3 * g / norm)
    names = [name for name, _ in model.named_parameters()]
    ended = weights(tmp_path / "run")
    for name, w, g in zip(names, begun, gradient(), strict=True):
        torch.testing.assert_close(ended[name], w - 0.01 * g, rtol=1e-3, atol=1e-5)


def test_a_request_that_a_killed_run_left_behind_does_not_stop_the_next(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/.stop").touch()
    assert run(config(method="ce", epochs=1), tmp_path / "run").finished
    assert not (tmp_path / "run/.stop").exists()


@pytest.mark.parametrize("method", ["ce+drw", "cvs+adrw", "vs+tla+adrw", "ldam+drw"])
def test_a_fork_from_the_trunk_equals_the_whole_run(tmp_path, method):
    run(config(method=method), tmp_path / "whole")
    trunk = method.removesuffix("+drw").removesuffix("+adrw").removesuffix("+tla")
    run(config(method=trunk), tmp_path / "trunk", stop=3, identity={"phase": 1})
    run(
        config(method=method),
        tmp_path / "fork",
        first=3,
        parent=tmp_path / "trunk",
        identity={"phase": 2},
    )
    assert_same(tmp_path / "whole", tmp_path / "fork")


def test_deferred_weight_decay_and_rho_hold_from_t0_on(tmp_path):
    same = run(config(method="ce"), tmp_path / "same")
    late = run(config(method="ce", deferred_weight_decay=0.1, deferred_sam=0.5), tmp_path / "late")
    losses = [[row["train"]["loss"] for row in record.epochs] for record in (same, late)]
    assert losses[0][:3] == losses[1][:3]
    assert losses[0][3] != losses[1][3]
    for number, late in enumerate(({"deferred_sam": 0.5}, {"deferred_weight_decay": 5.0})):
        one = run(config(method="ce", **late), tmp_path / f"{number}")
        assert not torch.equal(*(weights(f)["head.weight"] for f in (same.folder, one.folder)))


def test_accumulated_micro_batches_give_the_step_of_the_whole_batch(tmp_path):
    whole = run(config(method="vs+drw"), tmp_path / "whole")
    parts = run(config(method="vs+drw", accumulate=4), tmp_path / "parts")
    for a, b in zip(whole.epochs, parts.epochs, strict=True):
        assert a["train"]["loss"] == pytest.approx(b["train"]["loss"], rel=1e-4)


def test_two_processes_train_as_one(tmp_path):
    settings = {"method": "cvs+adrw", "epochs": 3, "warmup": 1, "defer_at": 2}
    one = run(config(**settings), tmp_path / "one")
    two = run(config(**settings, devices=2), tmp_path / "two")
    for a, b in zip(one.epochs, two.epochs, strict=True):
        assert a["train"]["loss"] == pytest.approx(b["train"]["loss"], rel=1e-4)
        assert a["kappa_star"] == pytest.approx(b["kappa_star"], rel=1e-3)
    assert torch.equal(one.tensors["test.class_count"], two.tensors["test.class_count"])


def balanced(rows: list[dict], split: str) -> list[float]:
    return [row[split]["balanced"] for row in rows]


def test_the_best_epoch_is_chosen_on_validation_and_the_test_split_waits(tmp_path):
    record = run(config(method="ce", val=0.2, epochs=6, lr=0.2), tmp_path / "run")
    rows, best = record.epochs, record.result["best"]
    assert [("test" in row, "val" in row) for row in rows] == [(False, True)] * 5 + [(True, True)]
    assert best["selected_on"] == "val"
    assert balanced(rows, "val")[best["epoch"]] == max(balanced(rows, "val"))
    assert record.result["last"] == rows[-1]["test"]


def test_the_best_epoch_on_the_test_split_is_labelled(tmp_path):
    plain = run(config(method="ce", epochs=6, lr=0.2), tmp_path / "plain")
    assert "best" not in plain.result
    record = run(config(method="ce", epochs=6, lr=0.2, select="test"), tmp_path / "run")
    best = record.result["best"]
    assert best["selected_on"] == best["measured_on"] == "test"
    assert best["balanced"] == max(balanced(record.epochs, "test"))
    assert record.result["last"] == plain.result["last"] == record.epochs[-1]["test"]


def test_clipping_bounds_how_far_training_can_go(tmp_path):
    still = {"momentum": 0.0, "weight_decay": 0.0, "schedule": "constant", "method": "ce"}
    settings = config(**still, clip=1e-3, epochs=2)
    run(settings, tmp_path / "run")
    torch.manual_seed(0)
    begun = make_model(setup(settings)).state_dict()
    ended = weights(tmp_path / "run")
    moved = sum(float((ended[name] - begun[name]).square().sum()) for name in ended) ** 0.5
    steps = 2 * -(-read_run(tmp_path / "run").class_counts.sum().item() // 64)
    assert 0 < moved <= 1.001 * steps * 1e-3 * 0.05


def test_a_measurement_equals_counting_by_hand():
    generator = torch.Generator().manual_seed(0)
    logits = 8 * torch.randn(60, 4, generator=generator)
    target = torch.randint(3, (60,), generator=generator)  # the last class has no samples
    groups = {
        "many": torch.tensor([True, False, False, False]),
        "medium": torch.tensor([False, True, False, False]),
        "few": torch.tensor([False, False, True, True]),
    }
    batches = list(zip(logits.split(25), target.split(25), strict=True))
    found = evaluate(lambda x: x, batches, groups, device="cpu", views=[lambda x: x.roll(1, -1)])
    mean = ((logits + logits.roll(1, -1)) / 2).softmax(1)
    confidence, guess = mean.max(1)
    confusion = torch.zeros(4, 4, dtype=torch.int64)
    for y, g in zip(target.tolist(), guess.tolist(), strict=True):
        confusion[y, g] += 1
    assert found.confusion is not None
    assert torch.equal(found.confusion, confusion)
    right = [float((guess[target == c] == c).double().mean()) for c in range(3)]
    assert found.class_accuracy[:3].tolist() == pytest.approx(right)
    assert found.numbers["balanced"] == pytest.approx(sum(right) / 3)
    assert found.numbers["overall"] == pytest.approx(float((guess == target).double().mean()))
    assert found.numbers["few"] == pytest.approx(right[2])
    cells = (confidence * 20).ceil().long() - 1
    assert int(found.table.count[:, -1].sum()) > 0  # the last bin is used
    gaps = []
    for cell in range(20):
        inside = cells == cell
        assert int(found.table.count[:, cell].sum()) == int(inside.sum())
        if inside.any():
            hits = (guess == target)[inside].double().sum()
            gaps.append(float((hits - confidence[inside].double().sum()).abs()))
    assert found.numbers["ece"] == pytest.approx(sum(gaps) / 60, abs=1e-6)


def test_a_run_is_measured_as_its_model_is_used(tmp_path):
    settings = config(method="ce", model="resnet20", epochs=1, tte=True)
    record = run(settings, tmp_path / "run")
    model = trained_model(record).eval()  # batch normalisation: not what training mode yields
    data = setup(settings).prepared
    test = data.test
    assert isinstance(test.inputs, torch.Tensor)
    images = (test.inputs / 255 - data.dataset.mean[0]) / data.dataset.std[0]
    with torch.no_grad():
        guess = (model(images) + model(images.flip(-1))).argmax(1)
    assert record.result["last"]["overall"] == pytest.approx(
        float((guess == test.labels).double().mean())
    )


# Folders


def test_a_finished_run_is_returned_as_it_is(tmp_path):
    first = run(config(method="ce"), tmp_path / "run")
    stamp = (tmp_path / "run/state.pt").stat().st_mtime_ns
    again = run(config(method="ce"), tmp_path / "run")
    assert (tmp_path / "run/state.pt").stat().st_mtime_ns == stamp
    assert again.result == first.result


def test_another_configuration_is_refused_with_what_differs(tmp_path):
    run(config(method="ce"), tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"optim\.lr: saved 0\.01, here 0\.2"):
        run(config(method="ce", lr=0.2), tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"data\.imbalance: saved 'exp:20', here 'exp:10'"):
        run(config(method="ce", imbalance="exp:10"), tmp_path / "run")


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match="holds no run"):
        run(config(), tmp_path)


def test_without_resume_an_existing_run_is_refused(tmp_path):
    run(config(method="ce", epochs=1), tmp_path / "run")
    with pytest.raises(CheckpointError, match="resume"):
        run(config(method="ce", epochs=1), tmp_path / "run", resume=False)


@pytest.mark.parametrize("damage", ["empty", "half", "noise", "pickle"])
def test_a_damaged_checkpoint_is_never_a_silent_fresh_start(tmp_path, damage):
    with pytest.raises(Interrupted):
        run(config(), tmp_path / "run", observer=StopAt(9))
    path = tmp_path / "run/state.pt"
    data = path.read_bytes()
    if damage == "pickle":
        torch.save({"format": 1, "bad": Path("x")}, path)
    else:
        path.write_bytes({"empty": b"", "half": data[: len(data) // 2], "noise": b"x" * 99}[damage])
    with pytest.raises(CheckpointError, match=r"damaged|no checkpoint"):
        run(config(), tmp_path / "run")


def test_a_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    path = tmp_path / "state.pt"
    save_state(path, {"epoch": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(StateError, match=r"No space left.*untouched"):
        save_state(path, {"epoch": 2})
    assert load_state(path)["epoch"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["state.pt"]


def test_a_writer_that_dies_half_way_leaves_nothing(tmp_path):
    def half(part: Path) -> None:
        part.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "file", half)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.jsonl", "result.json", "state.pt"])
def test_a_finished_folder_knows_when_it_was_changed(tmp_path, name):
    run(config(method="ce", epochs=1), tmp_path / "run")
    assert verify_done(tmp_path / "run") == ""
    path = tmp_path / "run" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert name in verify_done(tmp_path / "run")
    path.write_bytes(data[:-3])
    assert "bytes instead of" in verify_done(tmp_path / "run")


def test_nan_inputs_end_in_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(StateError, match="lower lr"):
        run(config(method="ce", lr=1e9, epochs=3), tmp_path / "run")


def test_a_cosine_head_goes_with_margins_only():
    with pytest.raises(ArgumentError, match="cosine"):
        run(config(method="ce", head="cosine"), "unused")
    with pytest.raises(ArgumentError, match="cosine"):
        run(config(method="ldam", head="linear"), "unused")


# Killed for real

PROGRAM = """
import sys
from classwise.train.config import from_dict
from classwise.train.evaluate import evaluate
from classwise.train.launch import run
import json
run(from_dict(json.loads(sys.argv[1])), sys.argv[2])
"""


@pytest.mark.slow
def test_killed_ten_times_at_random_moments(tmp_path):
    """``kill -9``, each time resumed: the same weights and metrics as the uninterrupted run."""
    values = json.dumps({**BASE, "epochs": 40, "method": "cvs+adrw"})
    words = [sys.executable, "-c", PROGRAM, values]
    began = time.monotonic()
    subprocess.run([*words, str(tmp_path / "whole")], check=True, capture_output=True)
    whole, generator, kills = time.monotonic() - began, random.Random(0), 0
    while kills < 10:
        child = subprocess.Popen([*words, str(tmp_path / "parts")], stderr=subprocess.DEVNULL)
        time.sleep(generator.uniform(0.2, 1.1) * whole / 2)
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        if (tmp_path / "parts/done").exists():
            break
    subprocess.run([*words, str(tmp_path / "parts")], check=True, capture_output=True)
    assert kills > 0
    assert_same(tmp_path / "whole", tmp_path / "parts")
