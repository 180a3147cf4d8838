"""Reliability bins: against slow loops, at the edges, in any order, without waiting."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import statistics as ref
from samples import (
    SUMS,
    assert_equals_loops,
    assert_same,
    collect,
    everywhere,
    soften,
    stream,
)
from torch import Tensor
from waits import Recorder, recorded

import classwise as cw
from classwise.losses._scores import largest
from classwise.stats.accuracy import empty_accuracy, update_accuracy
from classwise.stats.bins import (
    GROUPINGS,
    _bin_of,
    bin_table,
    empty_bins,
    update_bins,
)
from classwise.stats.floors import empty_floors, update_floors

# Reliability bins against loops


@everywhere
@pytest.mark.parametrize("classes", [2, 3, 10, 19, 20, 21, 100, 300])
def test_bins_equal_loops(group_by: str, classes: int):
    logits, target = stream(60, classes)
    expected = ref.bins(logits, target, group_by=group_by)
    assert_equals_loops(collect(logits, target, group_by), expected)


@everywhere
@pytest.mark.parametrize("num_bins", [2, 5, 10, 40])
def test_any_number_of_bins(group_by: str, num_bins: int):
    logits, target = stream(60, 7, seed=num_bins)
    expected = ref.bins(logits, target, num_bins=num_bins, group_by=group_by)
    assert_equals_loops(collect(logits, target, group_by, num_bins), expected)


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_logits_are_binned_in_float32(group_by: str, dtype: torch.dtype):
    logits, target = stream(80, 12, dtype=dtype)
    expected = ref.bins(logits, target, group_by=group_by)
    assert_equals_loops(collect(logits, target, group_by), expected, rtol=2e-6)


@everywhere
def test_soft_targets_count_their_probability(group_by: str):
    logits, target = stream(60, 6)
    soft = soften(target, 6)
    state = collect(logits, soft, group_by)
    assert_equals_loops(state, ref.bins(logits, soft, group_by=group_by))
    assert bool((state.correct % 1 != 0).any())


@everywhere
def test_dense_logits_equal_their_flattened_rows(group_by: str):
    logits, target = stream(60, 6)
    dense = logits.reshape(4, 5, 3, 6).permute(0, 3, 1, 2)
    assert not dense.is_contiguous()
    expected = ref.bins(logits, target, group_by=group_by)
    assert_equals_loops(collect(dense, target.reshape(4, 5, 3), group_by), expected)
    soft = soften(target, 6)
    dense_soft = soft.reshape(4, 5, 3, 6).permute(0, 3, 1, 2)
    expected = ref.bins(logits, soft, group_by=group_by)
    assert_equals_loops(collect(dense, dense_soft, group_by), expected)
    assert_equals_loops(
        collect(dense, dense_soft, group_by), ref.bins(dense, dense_soft, group_by=group_by)
    )


@everywhere
@pytest.mark.parametrize("ignore_index", [-100, 3, 255])
def test_ignored_samples_leave_no_trace(group_by: str, ignore_index: int):
    logits, target = stream(60, 6)
    target[::4] = ignore_index
    state = collect(logits, target, group_by, ignore_index=ignore_index)
    expected = ref.bins(logits, target, group_by=group_by, ignore_index=ignore_index)
    assert_equals_loops(state, expected)
    kept = target != ignore_index
    assert_same(state, collect(logits[kept], target[kept], group_by))


@everywhere
def test_non_contiguous_logits(group_by: str):
    logits, target = stream(40, 9)
    wide = torch.randn(40, 18, dtype=torch.float64)
    wide[:, ::2] = logits
    assert_same(collect(wide[:, ::2], target, group_by), collect(logits, target, group_by))


@everywhere
def test_given_log_probabilities_are_used(group_by: str):
    logits, target = stream(40, 9)
    given = collect(logits, target, group_by, log_probs=logits.log_softmax(1))
    assert_same(given, collect(logits, target, group_by))


@everywhere
def test_no_sample_that_counts_leaves_the_state_empty(group_by: str):
    logits = torch.randn(4, 5)
    state = collect(logits, torch.full((4,), -100), group_by)
    update_bins(state, logits[:0], torch.zeros(0).long(), group_by=group_by)
    assert all(not bool(tensor.any()) for _, tensor in state.tensors())


def test_a_table_holds_means_and_zeros_in_empty_bins():
    logits, target = stream(60, 6)
    state = collect(logits, target, "prediction")
    table = bin_table(state)
    filled = state.count > 0
    assert torch.equal(table.count, state.count)
    for mean, total in zip((table.accuracy, table.confidence, table.logit), SUMS, strict=True):
        assert torch.equal(mean[filled], (getattr(state, total) / state.count)[filled])
        assert not bool(mean[~filled].any())
    state.count.zero_()
    assert bool(table.count.any())  # a table is no view of the state


def test_a_merged_table_is_the_table_of_merged_classes():
    logits, target = stream(200, 6)
    table = bin_table(collect(logits, target, "target"))
    sums, seen, _ = ref.bins(logits, target)
    merged = table.merged(torch.tensor([0, 1, 0, 1, 1, 0]), height=3)
    for row, members in enumerate(([0, 2, 5], [1, 3, 4])):
        expected = torch.tensor(ref.pooled(sums, members), dtype=torch.float64)
        total = expected[:, 0]
        assert torch.equal(merged.count[row].double(), total)
        torch.testing.assert_close(merged.accuracy[row] * total, expected[:, 1])
        torch.testing.assert_close(merged.confidence[row] * total, expected[:, 2])
        torch.testing.assert_close(merged.logit[row] * total, expected[:, 3])
        assert int(merged.seen[row]) == sum(seen[c] for c in members)
    assert not bool(merged.count[2].any())


# Edges


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [10, 20])
def test_a_confidence_on_an_edge_is_in_the_bin_below(bins: int, dtype: torch.dtype):
    edges = torch.arange(1, bins + 1, dtype=dtype) / bins
    assert _bin_of(edges, bins).tolist() == list(range(bins))
    assert _bin_of(edges.nextafter(torch.zeros(())), bins).tolist() == list(range(bins))
    above = edges.nextafter(torch.full((), 2, dtype=dtype))
    assert _bin_of(above, bins).tolist() == [*range(1, bins), bins - 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("group_by", ["prediction", "score"])
def test_scores_within_a_rounding_of_an_edge_are_binned_as_they_round(
    group_by: str, dtype: torch.dtype
):
    # Not every float is the rounded softmax of something, so all logits around an edge are tried.
    on_edge = 0
    for numerator in range(1, 20):
        edge = torch.tensor(numerator, dtype=dtype) / 20
        steps = 1 + torch.arange(-30, 31, dtype=dtype) * torch.finfo(dtype).eps
        middle = torch.logit(edge) if numerator != 10 else torch.full_like(edge, 1e-7)
        logits = torch.stack([middle * steps, torch.zeros_like(steps)], 1)
        scores = logits.log_softmax(1).exp()
        if group_by == "prediction" and numerator < 11:
            continue
        for row, score in zip(logits, scores[:, 0], strict=True):
            state = collect(row.unsqueeze(0), torch.tensor([0]), group_by)
            expected = numerator - 1 if score <= edge else numerator
            assert state.count[0].nonzero().flatten().tolist() == [expected]
            on_edge += bool(score == edge)
    assert on_edge > 20


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_confidence_one_is_in_the_last_bin(group_by: str, dtype: torch.dtype):
    logits = torch.tensor([[200.0, 0, 0], [0, 200, 0]], dtype=dtype)
    state = collect(logits, torch.tensor([0, 2]), group_by)
    last = {"target": [1, 0, 1], "prediction": [1, 1, 0], "score": [1, 1, 0]}[group_by]
    assert state.count[:, -1].tolist() == last
    assert int(state.count.sum()) == (6 if group_by == "score" else 2)
    assert state.confidence[:, -1].tolist() == last


@everywhere
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", range(2, 41))
def test_equal_scores_are_not_lost(classes: int, dtype: torch.dtype, group_by: str):
    state = collect(torch.zeros(3, classes, dtype=dtype), torch.arange(3) % classes, group_by)
    total = 3 * classes if group_by == "score" else 3
    assert int(state.count.sum()) == int(state.count[state.confidence > 0].sum()) == total
    assert float(state.confidence.sum()) == pytest.approx(total / classes)
    answers = range(3) if group_by == "score" else range(0, 3, classes)
    assert int(state.correct.sum()) == len(answers)  # all scores equal: class 0 is predicted
    # 1 / 20 itself is an edge, and the softmax may round to either side of it.
    used = state.count.sum(0).nonzero().flatten().tolist()
    below = ref.bin_of(1 / classes, 20)
    assert used in ([below], [below + 1] if 20 % classes == 0 else [below])


def test_tiny_scores_are_summed_to_full_precision():
    # Class 2 has nothing but tiny scores.
    logits = torch.tensor([[70.0, 1.0, 0.0], [1.0, 70.0, 0.0]], dtype=torch.float64)
    state = collect(logits, torch.tensor([0, 1]), "score")
    table, _, _ = ref.bins(logits, torch.tensor([0, 1]), group_by="score")
    assert state.count[2, 0] == 2
    assert 1e-31 < table["confidence"][2][0] < 1e-29
    assert float(state.confidence[2, 0]) == pytest.approx(
        table["confidence"][2][0], rel=1e-9, abs=0
    )


def test_tiny_scores_of_a_class_that_also_has_large_ones_keep_their_precision():
    logits = torch.tensor([[70.0, 1.0, 0.0], [1.0, 70.0, 0.0]], dtype=torch.float64)
    state = collect(logits, torch.tensor([0, 1]), "score")
    table, _, _ = ref.bins(logits, torch.tensor([0, 1]), group_by="score")
    assert state.count[0, 0] == 1
    assert float(state.confidence[0, 0]) == pytest.approx(
        table["confidence"][0][0], rel=1e-9, abs=0
    )


def test_sums_of_scores_are_never_negative_and_zero_where_nothing_is():
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(64, 3, generator=generator, dtype=torch.float64)
        target = torch.randint(3, (64,), generator=generator)
        state = empty_bins(3, num_bins=4)
        for part in range(0, 64, 16):
            rows = slice(part, part + 16)
            # The last class is likely enough to leave its first bin empty.
            shifted = logits[rows] + torch.tensor([0.0, 0.0, 3.0])
            update_bins(state, shifted, target[rows], group_by="score")
        assert bool((state.confidence >= 0).all())
        empty = state.count == 0
        assert not bool(state.confidence[empty].any() | state.logit[empty].any())


# Logits that are not numbers


@everywhere
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_broken_logits_are_skipped_and_counted(group_by: str, poison: float):
    logits, target = stream(40, 6)
    broken = logits.clone()
    broken[[3, 17], [0, 5]] = poison
    broken[20] = poison
    broken[21] = -math.inf
    bad = [3, 17, 20, 21]
    state = collect(broken, target, group_by)
    kept = [row for row in range(40) if row not in bad]
    clean = collect(logits[kept], target[kept], group_by)
    assert int(state.skipped) == 4
    assert int(clean.skipped) == 0
    for name, tensor in state.tensors():
        if name != "skipped":
            torch.testing.assert_close(tensor, getattr(clean, name), rtol=1e-9, atol=0)


@everywhere
def test_broken_logits_of_ignored_samples_are_not_counted(group_by: str):
    logits = torch.full((3, 4), math.nan)
    state = collect(logits, torch.tensor([-100, 1, -100]), group_by)
    assert int(state.skipped) == 1
    assert int(state.seen.sum()) == int(state.count.sum()) == 0


def test_overflow_in_half_precision_is_skipped():
    logits = torch.tensor([[70000.0, 0.0], [2.0, 0.0]]).half()
    state = collect(logits, torch.tensor([0, 0]), "target")
    assert (int(state.skipped), int(state.count.sum())) == (1, 1)


@everywhere
def test_masked_classes_survive(group_by: str):
    logits, target = stream(40, 6)
    logits[:, 4] = -math.inf
    target = torch.where(target == 4, 0, target)
    target[:3] = 4  # a label that the mask forbids is only a wrong answer
    state = collect(logits, target, group_by)
    assert int(state.skipped) == 0
    assert int(state.count.sum()) == (5 * 40 if group_by == "score" else 40)
    assert all(bool(torch.isfinite(tensor).all()) for _, tensor in state.tensors())
    assert_equals_loops(state, ref.bins(logits, target, group_by=group_by))


def test_a_class_masked_in_some_samples_is_measured_on_the_rest():
    logits = torch.tensor([[4.0, 0.0, -3.0], [4.0, 0.0, -math.inf]], dtype=torch.float64)
    table = bin_table(collect(logits, torch.tensor([0, 0]), "score"))
    assert int(table.count[2, 0]) == 1
    assert float(table.logit[2, 0]) == -3.0
    low = torch.tensor([[4.0, 0.0, torch.finfo(torch.float32).min]])  # finite, so it is no mask
    assert int(bin_table(collect(low, torch.tensor([0]), "score")).count[2, 0]) == 1


# Sums merge


LOGITS, TARGET = stream(70, 8, seed=5)
PARTS = {g: [collect(LOGITS[b::7], TARGET[b::7], g) for b in range(7)] for g in GROUPINGS}


@everywhere
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, 70), max_size=6))
def test_any_split_into_batches_gives_the_same_sums(group_by: str, cuts: list[int]):
    state = empty_bins(8)
    for first, last in zip([0, *sorted(cuts)], [*sorted(cuts), 70], strict=True):
        update_bins(state, LOGITS[first:last], TARGET[first:last], group_by=group_by)
    assert_same(state, collect(LOGITS, TARGET, group_by))


@everywhere
@settings(max_examples=15, deadline=None)
@given(order=st.permutations(range(7)), split=st.integers(0, 7))
def test_any_order_of_merging_gives_the_same_sums(group_by: str, order: list[int], split: int):
    parts = [PARTS[group_by][b] for b in order]
    left, right = empty_bins(8), empty_bins(8)
    for part in parts[:split]:
        left = left + part
    for part in parts[split:]:
        right = part + right
    assert_same(left + right, collect(LOGITS, TARGET, group_by))


def test_bins_of_other_shape_do_not_merge():
    with pytest.raises(cw.ArgumentError, match="cannot be merged"):
        _ = empty_bins(3) + empty_bins(4)


# Size and speed


def test_state_of_inaturalist_fits_into_eight_megabytes():
    state = empty_bins(8142)
    assert sum(t.numel() * t.element_size() for _, t in state.tensors()) <= 8 * 2**20


@everywhere
def test_a_hundred_thousand_classes(group_by: str):
    logits = torch.randn(8, 100_000)
    logits[:, 7] += 12
    state = collect(logits, torch.full((8,), 7), group_by)
    assert int(state.count.sum()) == (800_000 if group_by == "score" else 8)
    assert float(state.correct.sum()) == 8
    assert float(state.confidence.sum()) == pytest.approx(8, rel=1e-4) or group_by != "score"


def update(kind: str, logits: Tensor, labels: Tensor) -> None:
    if kind == "accuracy":
        update_accuracy(empty_accuracy(6), logits, labels)
    elif kind == "floors":
        update_floors(empty_floors(6), logits, labels)
    else:
        update_bins(empty_bins(6), logits, labels, group_by=kind)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("kind", [*GROUPINGS, "accuracy", "floors"])
def test_an_update_does_not_make_the_host_wait(kind: str, soft: bool):
    logits, target = stream(20, 6)
    target[0] = -100
    labels = soften(target.clamp(min=0), 6) if soft else target
    with recorded() as recorder:
        update(kind, logits, labels)
    assert recorder.operations > 5
    assert recorder.waits == []


def test_the_recorder_notices_a_wait():
    logits, target = stream(20, 6)
    with Recorder() as recorder:
        update("target", logits, target)
    assert recorder.waits  # the range check, not switched off


@pytest.mark.parametrize("kind", [*GROUPINGS, "accuracy", "floors"])
def test_an_update_needs_no_values(kind: str):
    # Meta tensors have none: whatever asked for a value would raise.
    logits = torch.zeros(4, 6, 2, device="meta")
    target = torch.zeros(4, 2, dtype=torch.int64, device="meta")
    if kind == "accuracy":
        accuracy = empty_accuracy(6, "meta")
        update_accuracy(accuracy, logits, target)
        assert accuracy.count.is_meta
    elif kind == "floors":
        floors = empty_floors(6, device="meta")
        update_floors(floors, logits, target)
        assert floors.logit.is_meta
    else:
        bins = empty_bins(6, device="meta")
        update_bins(bins, logits, target, group_by=kind)
        assert bins.count.is_meta


@pytest.mark.parametrize("classes", [2047, 2048, 2049, 2304, 8142])
def test_the_largest_by_blocks_is_the_first_largest(classes: int):
    generator = torch.Generator().manual_seed(classes)
    # Few different values, so that nearly every row has its largest many times.
    coarse = torch.randint(0, 5, (64, classes), generator=generator).float()
    fine = torch.randn(64, classes, generator=generator)
    last = torch.zeros(4, classes)
    last[:, -1], last[1, 0], last[2, -2] = 1.0, 1.0, 1.0
    odd = fine.clone()
    odd[0], odd[1, 7], odd[2, 3], odd[3, -1] = 0.0, torch.inf, torch.nan, torch.nan
    odd[4] = -torch.inf
    for values in (coarse, fine, last, odd, fine.t().contiguous().t(), fine.double()):
        best, index = largest(values)
        array = values.numpy()
        assert index.tolist() == array.argmax(1).tolist()
        torch.testing.assert_close(
            best, torch.from_numpy(array.max(1)), rtol=0, atol=0, equal_nan=True
        )
