"""Profiles over what there is, splits, and what a run trains on."""

import dataclasses
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_data import needs_cifar, write_folder
from torch import Tensor

import classwise as cw
from classwise.data import (
    DataSet,
    Files,
    Prepared,
    Split,
    load,
    parse_profile,
    prepare,
)
from classwise.data.splits import generator_for, stratified, with_test


def dataset(counts: list[int], **changed: object) -> DataSet:
    """Images that show their own number, so that each can be told from all others."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    names = tuple(f"class {c}" for c in range(len(counts)))
    settings: dict = {"test": numbered(torch.arange(len(counts)), 10**6), **changed}
    return DataSet("made", names, numbered(labels), mean=(0.5,), std=(0.5,), **settings)


def numbered(labels: Tensor, first: int = 0) -> Split:
    """Each image holds a number of its own, as bytes."""
    numbers = np.arange(first, first + len(labels), dtype=np.int32)
    pixels = torch.from_numpy(numbers.view(np.uint8).copy()).reshape(-1, 1, 2, 2)
    return Split(pixels, labels)


def ids(split: Split | None) -> list[int]:
    assert split is not None
    assert isinstance(split.inputs, Tensor)
    return split.inputs.flatten(1).numpy().view(np.int32).flatten().tolist()


def counts_of(split: Split | None, classes: int) -> list[int]:
    assert split is not None
    return torch.bincount(split.labels, minlength=classes).tolist()


# Profiles


@pytest.mark.parametrize(
    ("classes", "each", "imbalance", "total"),
    [
        (100, 500, "exp:100", 10847),
        (100, 500, "exp:10", 19573),
        (100, 500, "step:100", 25250),
        (100, 500, "step:10", 27500),
        (10, 5000, "exp:100", 12406),
        (10, 5000, "exp:10", 20431),
        (10, 5000, "step:100", 25250),
        (10, 5000, "step:10", 27500),
        (100, 500, "uniform", 50000),
        (100, 500, "as-is", 50000),
    ],
)
def test_totals_of_the_published_long_tailed_sets(
    classes: int, each: int, imbalance: str, total: int
):
    labels = torch.arange(classes).repeat(each)
    counts = parse_profile(imbalance).counts(labels, classes)
    assert int(counts.sum()) == total


@pytest.mark.parametrize(
    ("name", "imbalance", "total"),
    [
        ("cifar100", "exp:100", 10847),
        ("cifar100", "exp:10", 19573),
        ("cifar100", "step:100", 25250),
        ("cifar100", "step:10", 27500),
        ("cifar10", "exp:100", 12406),
        ("cifar10", "exp:10", 20431),
        ("cifar10", "step:100", 25250),
        ("cifar10", "step:10", 27500),
    ],
)
def test_totals_on_real_cifar(name: str, imbalance: str, total: int, cifar: dict[str, DataSet]):
    uri = needs_cifar(name)
    if name not in cifar:
        cifar[name] = load(uri)
    prepared = prepare(cifar[name], imbalance=imbalance)
    assert len(prepared.train) == int(prepared.class_counts.sum()) == total
    ratio = float(prepared.class_counts.max() / prepared.class_counts.min())
    assert ratio == float(imbalance.partition(":")[2])


@pytest.fixture(scope="module")
def cifar() -> dict[str, DataSet]:
    return {}


def test_what_cannot_be_drawn_is_an_error_that_names_the_class():
    # As the CIFAR copies for development: the second half has what ratio 10 needs.
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor([50, 50, 20, 5]))
    assert parse_profile("exp:10").counts(labels, 4).tolist() == [50, 23, 10, 5]
    names = ("a", "b", "c", "<d>")
    with pytest.raises(
        cw.ArgumentError, match=r"of 4 classes, but 3 \('<d>'\) has 5 and 0 \('a'\)"
    ):
        parse_profile("uniform").counts(labels, 4, class_names=names)
    with pytest.raises(
        cw.ArgumentError, match=r"wants 10 samples of class 3 \('<d>'\), which has 5"
    ):
        parse_profile("exp:5").counts(labels, 4, class_names=names)


def test_the_largest_count_is_what_the_classes_that_are_to_be_large_have():
    labels = torch.repeat_interleave(torch.arange(4), torch.tensor([50, 46, 48, 49]))
    assert parse_profile("uniform").counts(labels, 4).tolist() == [46] * 4
    assert parse_profile("step:2").counts(labels, 4).tolist() == [46, 46, 23, 23]
    assert parse_profile("step:2:0.25").counts(labels, 4).tolist() == [46, 46, 46, 23]
    assert parse_profile("exp:8").counts(labels, 4).tolist() == [50, 25, 12, 6]
    assert parse_profile("as-is").counts(labels, 4).tolist() == [50, 46, 48, 49]


@pytest.mark.parametrize(
    "text", ["exp:100", "exp:12.5", "step:10", "step:10:0.3", "uniform", "as-is"]
)
def test_a_profile_is_written_as_it_was_read(text: str):
    assert str(parse_profile(text)) == text
    assert parse_profile(str(parse_profile(text))) == parse_profile(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.txt", "7\n\n3\r\n2\n"),
        ("c.txt", "class 1 3\nclass 0: 7\nclass 2\t2\n"),
        ("c.csv", "class,count\nclass 0,7\nclass 2,2\nclass 1,3\n"),
        ("c.csv", '"class 0",7\n"class 1",3\n"class 2",2\n'),
        ("c.csv", "count\n7\n3\n2\n"),
        ("c.json", "[7, 3, 2]"),
        ("c.json", json.dumps({"class 2": 2, "class 0": 7, "class 1": 3})),
    ],
)
def test_counts_from_a_file(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text)
    prepared = prepare(dataset([9, 9, 9]), imbalance=f"counts:{tmp_path / name}")
    assert prepared.class_counts.tolist() == [7, 3, 2]


# Splits


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=8), st.floats(0.001, 0.999), st.integers(0, 9)
)
def test_stratified_splits(counts: list[int], fraction: float, seed: int):
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels))]
    kept, held = stratified(labels, fraction, torch.Generator().manual_seed(seed))
    assert sorted(kept.tolist() + held.tolist()) == list(range(len(labels)))
    assert kept.tolist() == sorted(kept.tolist())
    assert held.tolist() == sorted(held.tolist())
    for label, have in enumerate(counts):
        taken = int((labels[held] == label).sum())
        if have < 2:
            assert taken == 0
        else:
            assert 1 <= taken <= have - 1
            assert abs(taken - have * fraction) <= 1


def test_stratified_splits_hold_out_every_sample_equally_often():
    labels = torch.tensor([0] * 4 + [1] * 2)
    times = torch.zeros(6)
    generator = torch.Generator().manual_seed(0)
    for _ in range(1200):
        times[stratified(labels, 0.25, generator)[1]] += 1
    assert bool(((times - torch.tensor([300.0] * 4 + [600] * 2)).abs() < 85).all())


def test_a_test_split_is_made_where_there_is_none():
    whole = dataset([50, 10, 2, 1], test=None)
    made = with_test(whole)
    assert counts_of(made.train, 4) == [40, 8, 1, 1]
    assert counts_of(made.test, 4) == [10, 2, 1, 0]
    assert sorted(ids(made.train) + ids(made.test)) == list(range(63))
    assert made.notes == (
        "no test split: 13 of 63 samples (20% of each class) were held out as one.",
    )
    assert with_test(made) is made
    for seed in (0, 1):
        assert ids(prepare(whole, seed=seed).test) == ids(made.test)


def test_one_published_held_out_split_is_the_test_split():
    val = numbered(torch.tensor([0, 1]), 500)
    made = with_test(dataset([5, 5], test=None, val=val))
    assert ids(made.test) == [500, 501]
    assert made.val is None
    assert len(made.train) == 10


# Prepare


def test_select_then_validate_then_count():
    prepared = prepare(dataset([40, 40, 40]), imbalance="exp:16", val_fraction=0.25)
    assert counts_of(prepared.val, 3) == [10, 2, 1]
    assert prepared.class_counts.tolist() == counts_of(prepared.train, 3) == [30, 8, 1]
    assert not set(ids(prepared.train)) & set(ids(prepared.val))
    assert prepared.train_indices.tolist() == ids(prepared.train)
    assert ids(prepared.test) == [10**6 + n for n in range(3)]
    assert torch.equal(prepared.train.labels, prepared.dataset.train.labels[prepared.train_indices])


def test_a_class_of_one_stays_in_training():
    prepared = prepare(dataset([4, 2, 1]), val_fraction=0.5)
    assert prepared.class_counts.tolist() == [2, 1, 1]
    assert counts_of(prepared.val, 3) == [2, 1, 0]


def test_a_published_validation_split_is_used_as_it_is():
    val = numbered(torch.tensor([0, 1, 2]), 700)
    prepared = prepare(dataset([9, 9, 9], val=val), imbalance="exp:9", val_fraction=0.5)
    assert ids(prepared.val) == [700, 701, 702]
    assert prepared.class_counts.tolist() == [9, 3, 1]


def test_without_a_fraction_there_is_no_validation_split():
    prepared = prepare(dataset([9, 9]))
    assert prepared.val is None
    assert ids(prepared.train) == list(range(18))


def test_every_seed_selects_other_samples_and_the_same_again():
    made = dataset([100, 100])

    def drawn(seed: int) -> Prepared:
        return prepare(made, imbalance="exp:10", val_fraction=0.2, seed=seed)

    assert drawn(1).checksum == drawn(1).checksum
    assert ids(drawn(1).val) == ids(drawn(1).val)
    assert ids(drawn(1).train) != ids(drawn(2).train)
    assert drawn(1).class_counts.tolist() == drawn(2).class_counts.tolist()


def test_the_selection_does_not_depend_on_the_validation_split():
    made = dataset([100, 100])
    alone = prepare(made, imbalance="exp:10")
    parted = prepare(made, imbalance="exp:10", val_fraction=0.2)
    assert ids(alone.train) == sorted(ids(parted.train) + ids(parted.val))


@pytest.mark.parametrize("how", [{"val_fraction": 0.2}, {"val_per_class": 20}])
def test_no_sample_is_in_training_and_in_validation(how: dict):
    parted = prepare(dataset([100, 100]), imbalance="exp:2", **how)
    assert parted.val is not None
    assert not set(ids(parted.train)) & set(ids(parted.val))
    assert len(set(ids(parted.train))) == int(parted.class_counts.sum())


def test_nothing_but_its_own_generators_is_touched():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index, union-attr]
    prepare(dataset([9, 9], test=None), imbalance="exp:2", val_fraction=0.5)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index, union-attr]
    assert random.getstate() == before[2]


def test_generators_differ_by_purpose_and_seed():
    seeds = {generator_for(purpose, s).initial_seed() for purpose in ("a", "b") for s in range(50)}
    assert len(seeds) == 100


def test_the_checksum_tells_what_a_run_saw():
    made = dataset([20, 20])
    same = prepare(dataset([20, 20]), imbalance="exp:4", val_fraction=0.2)
    reference = prepare(made, imbalance="exp:4", val_fraction=0.2)
    assert reference.checksum == same.checksum
    assert len(reference.checksum) == 64
    assert isinstance(made.train.inputs, Tensor)
    pixel = made.train.inputs.clone()
    pixel[3, 0, 0, 0] += 1
    labels = made.train.labels.roll(1)
    others = [
        prepare(made, imbalance="exp:4"),
        prepare(made, imbalance="exp:5", val_fraction=0.2),
        prepare(made, imbalance="exp:4", val_fraction=0.3),
        prepare(made, imbalance="exp:4", val_fraction=0.2, seed=1),
    ]
    for change in (
        {"train": Split(pixel, made.train.labels)},
        {"train": Split(made.train.inputs, labels)},
        {"class_names": ("class 0", "class one")},
        {"test": numbered(torch.tensor([0, 0]), 10**6)},
        {"val": numbered(torch.tensor([0, 1]))},
    ):
        altered = dataclasses.replace(made, **change)
        others.append(prepare(altered, imbalance="exp:4", val_fraction=0.2))
    assert len({reference.checksum, *(other.checksum for other in others)}) == 1 + len(others)


def test_the_checksum_is_the_same_in_another_process():
    code = "from classwise.data import load, prepare; "
    code += "print(prepare(load('digits'), imbalance='exp:20', val_fraction=0.2, seed=3).checksum)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = prepare(load("digits"), imbalance="exp:20", val_fraction=0.2, seed=3)
    assert done.stdout.strip() == here.checksum


def test_the_checksum_of_files_does_not_depend_on_where_they_lie(tmp_path: Path):
    sums = []
    for place in ("one", "two/photos"):
        write_folder(tmp_path / place, {"a": 6, "b": 6})
        sums.append(prepare(load(f"folder:{tmp_path / place}"), imbalance="exp:2").checksum)
    assert sums[0] == sums[1]
    extra = tmp_path / "one" / "a" / "0.png"
    extra.write_bytes(extra.read_bytes() + b"\0")
    assert prepare(load(f"folder:{tmp_path / 'one'}"), imbalance="exp:2").checksum != sums[0]


def test_files_are_taken_like_arrays():
    files = Files(Path("/x"), ("a/0.png", "a/1.png", "b/0.png"))
    split = Split(files, torch.tensor([0, 0, 1])).take(torch.tensor([2, 0]))
    assert isinstance(split.inputs, Files)
    assert split.inputs.paths == ("b/0.png", "a/0.png")
    assert split.inputs.path(0) == Path("/x/b/0.png")
    assert split.labels.tolist() == [1, 0]
    assert (split.kind, split.input_shape) == ("files", (3, 224, 224))
