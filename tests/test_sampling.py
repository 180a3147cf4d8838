"""Samplers: how often, in which order, on which rank, and after a resume."""

import io
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from classwise.data.sampling import KINDS, ClassSampler, SequentialSampler
from classwise.errors import ArgumentError, CheckpointError, UnknownNameError

COUNTS = [300, 60, 20, 0, 4]


def labels_of(counts: list[int]) -> Tensor:
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]


LABELS = labels_of(COUNTS)


def sampler(kind: str = "shuffled", **settings: Any) -> ClassSampler:
    settings = {"batch_size": 16, "seed": 3, "epochs": 10, **settings}
    return ClassSampler(LABELS, len(COUNTS), kind=kind, **settings)


def epochs(made: ClassSampler, numbers: range) -> list[list[Tensor]]:
    shown = []
    for epoch in numbers:
        made.set_epoch(epoch)
        shown.append(list(made))
    return shown


def same(left: list[list[Tensor]], right: list[list[Tensor]]) -> bool:
    return all(
        torch.equal(a, b)
        for one, other in zip(left, right, strict=True)
        for a, b in zip(one, other, strict=True)
    )


# How often


def test_shuffled_shows_every_sample_once() -> None:
    for batches in epochs(sampler(), range(3)):
        assert torch.equal(torch.cat(batches).sort().values, torch.arange(len(LABELS)))


def expected(kind: str, epoch: int, total: int) -> list[float]:
    """Return the share of each class, from the formulas."""
    present = [n for n in COUNTS if n]
    if kind == "shuffled":
        return [n / sum(COUNTS) for n in COUNTS]
    if kind == "class-aware":
        return [bool(n) / len(present) for n in COUNTS]
    if kind == "sqrt":
        return [n**0.5 / sum(m**0.5 for m in COUNTS) for n in COUNTS]
    t = epoch / total
    return [(1 - t) * n / sum(COUNTS) + t * bool(n) / len(present) for n in COUNTS]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epoch", [0, 5, 199])
def test_classes_are_as_frequent_as_the_formula_says(kind: str, epoch: int) -> None:
    total, repeats = 200, 60
    share = torch.tensor(expected(kind, epoch, total), dtype=torch.float64)
    seen = torch.zeros(len(COUNTS), dtype=torch.float64)
    for seed in range(repeats):
        made = sampler(kind, seed=seed, epochs=total)
        made.set_epoch(epoch)
        torch.testing.assert_close(made.class_probabilities(), share)
        order = made.order()
        assert len(order) == len(LABELS)
        seen += torch.bincount(LABELS[order], minlength=len(COUNTS))
    draws = repeats * len(LABELS)
    deviation = (seen - draws * share).abs()
    if kind == "shuffled":
        assert deviation.max() < 1e-6
    elif kind == "class-aware":
        assert deviation.max() <= repeats * 4  # at most one run of 4 more or less in each epoch
    else:
        assert (deviation <= 4 * (draws * share * (1 - share)).sqrt()).all()
    assert seen[3] == 0  # a class without samples


def test_class_aware_takes_runs_of_one_class_and_all_classes_in_turn() -> None:
    made = sampler("class-aware", samples_per_class=3)
    runs = LABELS[made.order()[:384]].view(-1, 3)
    assert (runs == runs[:, :1]).all()
    rounds = runs[:, 0].view(-1, 4)
    assert (rounds.sort(dim=1).values == torch.tensor([0, 1, 2, 4])).all()
    assert len({tuple(row) for row in rounds.tolist()}) > 10  # in another order each time


@pytest.mark.parametrize("kind", ["class-aware", "sqrt", "progressive"])
def test_no_sample_returns_before_all_others_of_its_class_were_seen(kind: str) -> None:
    made = sampler(kind)
    made.set_epoch(9)
    order = made.order()
    cycles = set()
    for c, count in enumerate(COUNTS):
        drawn = order[LABELS[order] == c].tolist()
        for start in range(0, len(drawn), max(count, 1)):
            cycle = drawn[start : start + count]
            assert len(set(cycle)) == len(cycle)
            if c == 2 and len(cycle) == count:
                cycles.add(tuple(cycle))
    assert len(cycles) != 1  # every cycle is shuffled again


# In which order


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_depends_on_seed_kind_and_epoch_alone(kind: str) -> None:
    straight = epochs(sampler(kind), range(4))
    torch.manual_seed(99)
    before = torch.get_rng_state()
    resumed = sampler(kind)
    assert same(straight[2:], epochs(resumed, range(2, 4)))
    assert same(straight[:1], epochs(resumed, range(1)))  # and backwards
    assert torch.equal(torch.get_rng_state(), before)
    for other in (epochs(sampler(kind, seed=4), range(1)), epochs(resumed, range(1, 2))):
        assert not same(straight[:1], other)


def test_kinds_do_not_share_random_numbers() -> None:
    firsts = {kind: tuple(sampler(kind).order().tolist()) for kind in KINDS}
    assert len(set(firsts.values())) == len(KINDS)


# On which rank


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_together_are_one_process(kind: str, world: int) -> None:
    alone = sampler(kind, batch_size=50)  # 384 = 7 * 50 + 34
    ranks = [sampler(kind, batch_size=50, rank=rank, world=world) for rank in range(world)]
    for made in (alone, *ranks):
        made.set_epoch(1)
    for whole, *parts in zip(alone, *ranks, strict=True):
        assert torch.equal(whole, torch.cat(parts))
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@given(
    length=st.integers(2, 60),
    batch=st.integers(1, 12),
    world=st.integers(1, 5),
    seed=st.integers(0),
)
def test_no_rank_is_without_samples(length: int, batch: int, world: int, seed: int) -> None:
    batch, world = min(batch, length), min(world, batch, length)
    labels = torch.arange(length) % 2
    ranks = [
        ClassSampler(labels, 2, batch_size=batch, seed=seed, rank=rank, world=world)
        for rank in range(world)
    ]
    shown = [list(made) for made in ranks]
    assert all(len(indices) for batches in shown for indices in batches)
    assert [len(made) for made in ranks] == [len(batches) for batches in shown]
    seen = torch.cat([torch.cat(parts) for parts in zip(*shown, strict=True)])
    assert torch.equal(seen.sort().values, torch.arange(length))
    sizes = [sum(map(len, parts)) for parts in zip(*shown, strict=True)]
    assert all(size == batch for size in sizes[:-1])
    assert sizes[-1] < batch + max(world, 2)
    assert batch == 1 or length == 1 or sizes[-1] > 1


@pytest.mark.parametrize(("world", "sizes"), [(1, [4, 4, 4, 2]), (2, [4, 4, 4, 2]), (3, [4, 4, 6])])
def test_a_tail_too_small_for_all_ranks_joins_the_batch_before(
    world: int, sizes: list[int]
) -> None:
    labels = torch.zeros(14, dtype=torch.int64)
    made = ClassSampler(labels, 1, batch_size=4, world=world)
    assert [len(batch.indices) for batch in made.batches()] == sizes
    assert [batch.start for batch in made.batches()] == [0, 4, 8, 12][: len(sizes)]


def test_batches_can_begin_late() -> None:
    made = sampler("sqrt")
    late = list(made.batches(5))
    assert late[0].number == 5
    assert torch.equal(late[0].indices, list(made)[5])
    assert len(late) == len(made) - 5


def test_sequential_shows_every_sample_once_in_order() -> None:
    for world in (1, 2, 3):
        ranks = [SequentialSampler(23, batch_size=6, rank=r, world=world) for r in range(world)]
        for made in ranks:
            made.set_epoch(7)
        parts = [torch.cat(batch) for batch in zip(*ranks, strict=True)]
        assert torch.equal(torch.cat(parts), torch.arange(23))
    assert len(SequentialSampler(3, batch_size=100)) == 1


# After a resume


@pytest.mark.parametrize("kind", KINDS)
def test_state_goes_through_a_file_and_to_another_number_of_ranks(kind: str) -> None:
    made = sampler(kind)
    made.set_epoch(6)
    file = io.BytesIO()
    torch.save(made.state_dict(), file)
    file.seek(0)
    fresh = sampler(kind, rank=0, world=2)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert fresh.epoch == 6
    assert torch.equal(fresh.order(), made.order())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: sampler(seed=4), "seed is 3 there and 4 here"),
        (lambda: sampler("sqrt"), "kind is 'shuffled' there and 'sqrt' here"),
        (lambda: sampler(batch_size=8), "batch_size is 16 there and 8 here"),
        (
            lambda: ClassSampler(LABELS.flip(0), 5, batch_size=16, seed=3),
            "labels is '.*' there and '.*' here",
        ),
    ],
)
def test_a_foreign_state_is_refused(other: Any, message: str) -> None:
    state = sampler().state_dict()
    with pytest.raises(CheckpointError, match=message):
        other().load_state_dict(state)


def test_what_the_order_depends_on_is_part_of_the_state() -> None:
    with pytest.raises(CheckpointError, match="samples_per_class is 4 there and 2 here"):
        sampler("class-aware", samples_per_class=2).load_state_dict(
            sampler("class-aware").state_dict()
        )
    with pytest.raises(CheckpointError, match="epochs is 10 there and 20 here"):
        sampler("progressive", epochs=20).load_state_dict(sampler("progressive").state_dict())
    state = sampler().state_dict()
    del state["labels"]
    with pytest.raises(CheckpointError, match="lacks labels"):
        sampler().load_state_dict(state)
    with pytest.raises(ArgumentError, match="epoch=12 must be at least 0 and at most 9"):
        sampler().load_state_dict({**sampler().state_dict(), "epoch": 12})


# Bad inputs


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sampler("class_aware"), "did you mean 'class-aware'"),
        (lambda: sampler(batch_size=0), "batch_size=0 must be at least 1"),
        (lambda: sampler(batch_size=2.5), "batch_size=2.5 must be a whole number"),
        (lambda: sampler(batch_size=385), "larger than the 384 training samples; legal is 1 to"),
        (lambda: sampler(batch_size=2, world=3), "leaves some of the world=3 without samples"),
        (lambda: sampler(rank=2, world=2), "rank=2 must be at least 0 and at most 1"),
        (lambda: sampler(world=0), "world=0 must be at least 1"),
        (lambda: sampler(seed=-1), "seed=-1 must be at least 0"),
        (lambda: sampler(samples_per_class=0), "samples_per_class=0 must be at least 1"),
        (lambda: sampler("progressive", epochs=None), "needs epochs"),
        (lambda: sampler(epochs=0), "epochs=0 must be at least 1"),
        (lambda: sampler().set_epoch(-1), "epoch=-1 must be at least 0"),
        (lambda: sampler().set_epoch(10), "epoch=10 must be at least 0 and at most 9"),
        (lambda: ClassSampler(LABELS, 4, batch_size=2), "labels go from 0 to 4, legal are 0 to"),
        (lambda: ClassSampler(LABELS - 1, 5, batch_size=2), "labels go from -1 to 3"),
        (lambda: ClassSampler(LABELS[:0], 5, batch_size=2), "nothing to sample"),
        (lambda: ClassSampler(LABELS.float(), 5, batch_size=2), "must be int64"),
        (lambda: ClassSampler(LABELS[None], 5, batch_size=2), r"got torch.int64 \(1, 384\)"),
        (lambda: ClassSampler([0, 1], 5, batch_size=2), "must be a torch.Tensor, got list"),  # type: ignore[arg-type]
        (lambda: SequentialSampler(0, batch_size=2), "length=0 must be at least 1"),
        (lambda: SequentialSampler(1, batch_size=2, world=2), "cannot be divided over world=2"),
    ],
)
def test_bad_inputs(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_an_unknown_kind_is_an_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match="Known: 'shuffled', 'class-aware', 'sqrt', 'pro"):
        sampler("balanced")
