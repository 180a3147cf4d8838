"""Shots, long-tailed counts and the selection of samples."""

import pickle
import random

import numpy as np
import pytest
import torch

import classwise as cw

# Shots and profiles


def test_shots_of_cifar_100_lt():
    groups = cw.shots(cw.longtail_counts(500, 100, 100))
    assert {name: int(mask.sum()) for name, mask in groups.items()} == {
        "many": 35,
        "medium": 35,
        "few": 30,
    }
    assert bool((torch.stack(list(groups.values())).sum(0) == 1).all())


def test_shots_keep_both_thresholds_in_medium():
    groups = cw.shots([101, 100, 20, 19])
    assert [mask.tolist() for mask in groups.values()] == [
        [True, False, False, False],
        [False, True, True, False],
        [False, False, False, True],
    ]


def test_shots_may_not_overlap():
    with pytest.raises(cw.ArgumentError, match="overlap"):
        cw.shots([5, 3], many=2, few=10)


@pytest.mark.parametrize(
    ("max_count", "classes", "ratio", "profile", "total"),
    [
        (500, 100, 100, "exp", 10847),
        (500, 100, 10, "exp", 19573),
        (500, 100, 50, "exp", 12608),
        (500, 100, 200, "exp", 9502),
        (500, 100, 100, "step", 25250),
        (500, 100, 10, "step", 27500),
        (5000, 10, 100, "exp", 12406),
        (5000, 10, 10, "exp", 20431),
        (5000, 10, 50, "exp", 13996),
        (5000, 10, 200, "exp", 11203),
        (5000, 10, 100, "step", 25250),
        (5000, 10, 10, "step", 27500),
        (500, 100, 100, "uniform", 50000),
    ],
)
def test_totals_of_published_profiles(max_count, classes, ratio, profile, total):
    counts = cw.longtail_counts(max_count, classes, ratio, profile=profile)
    assert int(counts.sum()) == total
    assert int(counts.max()) == int(counts[0]) == max_count
    assert bool((counts.diff() <= 0).all())


def test_counts_of_published_profiles():
    ten = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert cw.longtail_counts(5000, 10, 100).tolist() == ten
    hundred = cw.longtail_counts(500, 100, 100).tolist()
    assert hundred[:4] == [500, 477, 455, 434]
    assert hundred[-6:] == [6, 6, 5, 5, 5, 5]
    assert cw.longtail_counts(500, 100, 10).tolist()[-5:] == [54, 53, 52, 51, 50]


@pytest.mark.parametrize("profile", ["exp", "step"])
def test_the_smallest_class_is_the_largest_divided_by_the_ratio(profile: str):
    for ratio in range(1, 300):
        for times in (1, 2, 10):
            counts = cw.longtail_counts(times * ratio, 2, ratio, profile=profile)
            assert counts.tolist() == [times * ratio, times]


def test_a_ratio_that_empties_a_class_is_an_error():
    with pytest.raises(cw.ArgumentError, match="without samples"):
        cw.longtail_counts(50, 5, 51)


LABELS = torch.randint(4, (400,), generator=torch.Generator().manual_seed(3))


def test_select_returns_sorted_indices_with_the_right_counts():
    index = cw.select(LABELS, [50, 7, 0, 1], torch.Generator().manual_seed(0))
    assert index.dtype == torch.int64
    assert bool((index.diff() > 0).all())
    assert torch.bincount(LABELS[index], minlength=4).tolist() == [50, 7, 0, 1]
    every = torch.bincount(LABELS)
    assert torch.equal(cw.select(LABELS, every, torch.Generator()), torch.arange(400))


def test_select_draws_from_its_own_generator_only():
    before = torch.get_rng_state(), pickle.dumps(np.random.get_state()), random.getstate()
    first, second = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    chosen = cw.select(LABELS, [20, 20, 20, 20], first)
    torch.manual_seed(9)
    assert torch.equal(chosen, cw.select(LABELS, [20, 20, 20, 20], second))
    assert not torch.equal(chosen, cw.select(LABELS, [20, 20, 20, 20], first))
    torch.set_rng_state(before[0])
    cw.select(LABELS, [20, 20, 20, 20], second)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert pickle.dumps(np.random.get_state()) == before[1]
    assert random.getstate() == before[2]


def test_select_takes_every_sample_equally_often():
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0])
    taken = torch.zeros(7)
    for _ in range(1200):
        taken[cw.select(labels, [1, 1], generator)] += 1
    expected = torch.tensor([300.0, 400, 300, 400, 300, 400, 300])
    assert bool(((taken - expected).abs() < 75).all())  # five standard deviations


def test_select_says_what_is_missing():
    with pytest.raises(cw.ArgumentError, match="class 1 has 1 samples, 2 are wanted"):
        cw.select([0, 0, 1], [1, 2], torch.Generator())
    with pytest.raises(cw.ArgumentError, match="labels go from 0 to 2"):
        cw.select([0, 2], [1, 1], torch.Generator())
