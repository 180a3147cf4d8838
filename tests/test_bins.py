"""Statistics per class, their shells, and data profiles: against slow loops and at the edges."""

import copy
import importlib
import math
import pickle
import random
from typing import Any

import numpy as np
import pytest
import ranks
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import statistics as ref
from sklearn.metrics import balanced_accuracy_score, recall_score
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import Metric, MetricCollection

import classwise as cw
from classwise.stats.accuracy import accuracy_table, empty_accuracy, update_accuracy
from classwise.stats.bins import (
    GROUPINGS,
    BinState,
    BinTable,
    _bin_of,
    bin_table,
    empty_bins,
    update_bins,
)
from classwise.stats.floors import FloorState, empty_floors, update_floors

COUNTS = [500, 120, 60, 19, 5]
SUMS = ("correct", "confidence", "logit")
everywhere = pytest.mark.parametrize("group_by", GROUPINGS)


def stream(
    samples: int, classes: int, *, dtype: torch.dtype = torch.float64, spread: float = 3, seed=0
) -> tuple[Tensor, Tensor]:
    """Logits and labels, without ties and without scores that rounding could push over an edge."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2 * samples + 20, classes, generator=generator, dtype=torch.float64)
    logits = (spread * logits).to(dtype)
    scaled = 20 * logits.double().softmax(1)
    near_edge = ((scaled - scaled.round()).abs() < 1e-4) & (scaled > 0.5)
    top = logits.double().topk(2, dim=1).values
    kept = logits[~near_edge.any(1) & (top[:, 0] > top[:, 1])][:samples]
    assert len(kept) == samples
    target = torch.randint(classes, (samples,), generator=generator)
    # Half of the answers are right, so that every bin has something to say.
    right = torch.rand(samples, generator=generator) < 0.5
    return kept, torch.where(right, kept.argmax(1), target)


def soften(target: Tensor, classes: int) -> Tensor:
    noise = torch.rand(len(target), classes, dtype=torch.float64)
    q = noise / noise.sum(1, keepdim=True)
    return 0.6 * F.one_hot(target, classes).double() + 0.4 * q


def collect(
    logits: Tensor, target: Tensor, group_by: str, num_bins: int = 20, **options: Any
) -> BinState:
    state = empty_bins(logits.shape[1], num_bins)
    update_bins(state, logits, target, group_by=group_by, **options)
    return state


def assert_equals_loops(
    state: BinState, expected: tuple[ref.Table, list[int], int], rtol: float = 1e-9
) -> None:
    table, seen, skipped = expected
    assert state.count.tolist() == table["count"]
    assert state.seen.tolist() == seen
    assert int(state.skipped) == skipped
    for name in SUMS:
        right = torch.tensor(table[name], dtype=torch.float64)
        torch.testing.assert_close(getattr(state, name), right, rtol=rtol, atol=rtol)


def assert_same(one: BinState, other: BinState) -> None:
    for name, tensor in one.tensors():
        same = getattr(other, name)
        if name in SUMS:
            torch.testing.assert_close(tensor, same, rtol=1e-9, atol=0)
        else:
            assert torch.equal(tensor, same)


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


WAITS = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select"}
WAITS |= {"unique", "_unique2", "unique_dim", "bincount", "unique_consecutive"}


class Recorder(TorchDispatchMode):
    """Collects the operations that would make the host wait for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.operations += 1
        by_mask = name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]
        )
        if name in WAITS or by_mask:
            self.waits.append(name)
        return func(*args, **(kwargs or {}))


def record_update(kind: str, soft: bool) -> Recorder:
    logits, target = stream(20, 6)
    target[0] = -100
    labels = soften(target.clamp(min=0), 6) if soft else target
    with Recorder() as recorder:
        if kind == "accuracy":
            update_accuracy(empty_accuracy(6), logits, labels)
        elif kind == "floors":
            update_floors(empty_floors(6), logits, labels)
        else:
            update_bins(empty_bins(6), logits, labels, group_by=kind)
    return recorder


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("kind", [*GROUPINGS, "accuracy", "floors"])
def test_an_update_does_not_make_the_host_wait(kind: str, soft: bool, monkeypatch):
    # The range check looks at values on purpose, and on the CPU only.
    monkeypatch.setattr("classwise._checks._check_range", lambda *_: None)
    recorder = record_update(kind, soft)
    assert recorder.operations > 5
    assert recorder.waits == []


def test_the_recorder_notices_a_wait():
    assert record_update("target", soft=False).waits  # the range check, not switched off


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


# Accuracy


def groups_of(counts: list[int], many: int = 100, few: int = 20) -> ref.Groups:
    return {
        "many": [c for c, n in enumerate(counts) if n > many],
        "medium": [c for c, n in enumerate(counts) if few <= n <= many],
        "few": [c for c, n in enumerate(counts) if n < few],
    }


def assert_accuracy(result: dict[str, Tensor], logits: Tensor, target: Tensor) -> None:
    per_class, means = ref.accuracy(logits, target, groups_of(COUNTS))
    right = torch.tensor(per_class, dtype=torch.float64)
    torch.testing.assert_close(result["per_class"], right, equal_nan=True)
    assert {k: float(v) for k, v in result.items() if k != "per_class"} == pytest.approx(means)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_accuracy_equals_loops(dtype: torch.dtype):
    logits, target = stream(80, 5, dtype=dtype)
    target[::9] = -100
    state = empty_accuracy(5)
    for rows in (slice(0, 30), slice(30, 80)):
        update_accuracy(state, logits[rows], target[rows])
    assert_accuracy(accuracy_table(state, cw.shots(COUNTS)), logits, target)


def test_accuracy_of_dense_logits_and_of_soft_targets():
    logits, target = stream(60, 5)
    dense, labels = logits.reshape(12, 5, 5).transpose(1, 2), target.reshape(12, 5)
    metric = cw.ClassAccuracy(COUNTS)
    metric.update(dense, labels)
    assert_accuracy(metric.compute(), logits, target)
    metric.reset()
    metric.update(logits, soften(target, 5))
    assert_accuracy(metric.compute(), logits, target)


def test_accuracy_equals_scikit_learn():
    logits, target = stream(200, 5)
    metric = cw.ClassAccuracy(COUNTS)
    metric.update(logits, target)
    result = metric.compute()
    predicted = logits.argmax(1)
    recalls = [recall_score(target, predicted, labels=[c], average="macro") for c in range(5)]
    assert result["per_class"].tolist() == pytest.approx(recalls)
    assert float(result["balanced"]) == pytest.approx(balanced_accuracy_score(target, predicted))
    assert float(result["overall"]) == pytest.approx(float((predicted == target).double().mean()))


def test_an_absent_class_is_nan_and_left_out_of_means():
    metric = cw.ClassAccuracy([500, 300, 50, 5])
    metric.update(torch.eye(4), torch.tensor([0, 0, 2, 2]))
    result = metric.compute()
    torch.testing.assert_close(
        result["per_class"],
        torch.tensor([0.5, math.nan, 0.5, math.nan], dtype=torch.float64),
        equal_nan=True,
    )
    assert float(result["balanced"]) == float(result["many"]) == float(result["medium"]) == 0.5
    assert "few" not in result


def test_nothing_seen_gives_no_means():
    result = accuracy_table(empty_accuracy(3), cw.shots([300, 50, 5]))
    assert list(result) == ["per_class"]
    assert bool(result["per_class"].isnan().all())


def test_nan_logits_are_wrong_answers():
    metric = cw.ClassAccuracy([30, 20])
    metric.update(torch.tensor([[math.nan, 0.0], [1.0, 0.0]]), torch.tensor([0, 0]))
    assert metric.compute()["per_class"][0] == 0.5


# Floors


def assert_floors(state: FloorState, expected: dict[str, list[float]], rtol: float = 1e-9) -> None:
    right = {name: torch.tensor(value, dtype=torch.float64) for name, value in expected.items()}
    for name, value in (("logit", state.logit), ("margin", state.margin), ("rival", -state.rival)):
        torch.testing.assert_close(value, right[name], rtol=rtol, atol=rtol)
    probability = right["probability"].where(right["logit"] < math.inf, math.nan)
    torch.testing.assert_close(
        state.probability, probability, rtol=rtol, atol=1e-12, equal_nan=True
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_floors_equal_loops(dtype: torch.dtype):
    logits, target = stream(80, 5, dtype=dtype)
    target = torch.where(target == 3, 1, target)  # class 3 has no sample
    target[::9] = -100
    terms = cw.terms.vs(COUNTS, tau=1.0, gamma=0.2).replace(alpha=[1.0, 2, 3, 4, 5])
    state = empty_floors(5, terms=terms)
    for rows in (slice(0, 30), slice(30, 80)):
        update_floors(state, logits[rows], target[rows])
    expected = ref.floors(logits, target, terms.beta.tolist(), terms.delta.tolist())
    assert_floors(state, expected, rtol=1e-9 if dtype == torch.float64 else 1e-5)
    assert state.seen.tolist() == [True, True, True, False, True]


def test_floors_of_dense_logits_and_of_soft_targets():
    logits, target = stream(60, 5)
    expected = ref.floors(logits, target, [1.0] * 5, [0.0] * 5)
    floors = cw.ClassFloors(5)
    floors.update(logits.reshape(12, 5, 5).transpose(1, 2), target.reshape(12, 5))
    assert_floors(floors.compute(), expected)
    floors.reset()
    floors.update(logits, soften(target, 5))
    assert_floors(floors.compute(), expected)


def test_floors_leave_out_broken_logits_and_keep_masked_classes():
    logits, target = stream(40, 5)
    logits[2, 1], logits[3, 0], logits[5] = math.nan, math.inf, -math.inf
    logits[10:20, 4] = -math.inf
    target[10] = 4
    state = empty_floors(5)
    update_floors(state, logits, target)
    assert_floors(state, ref.floors(logits, target, [1.0] * 5, [0.0] * 5))
    assert float(state.logit[4]) == -math.inf
    assert float(state.probability[4]) == 0.0


def test_a_class_without_samples_has_infinite_floors():
    state = cw.ClassFloors(3)
    state.update(torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([1]))
    result = state.compute()
    assert result.logit.tolist() == [math.inf, 2.0, math.inf]
    assert result.seen.tolist() == [False, True, False]
    assert result.probability.isnan().tolist() == [True, False, True]


# The shells


def shells() -> dict[str, Metric]:
    terms = cw.terms.vs(COUNTS, tau=1.0, gamma=0.2)
    return {
        **{group_by: cw.ClassBins(5, group_by=group_by) for group_by in GROUPINGS},
        "floors": cw.ClassFloors(5, terms=terms),
        "accuracy": cw.ClassAccuracy(COUNTS),
    }


def flat(result: Any) -> dict[str, Tensor]:
    if isinstance(result, dict):
        return result
    if isinstance(result, BinTable):
        return {**vars(result)}
    return result._asdict()


def assert_equal_results(one: Any, other: Any) -> None:
    left, right = flat(one), flat(other)
    assert list(left) == list(right)
    for name, tensor in left.items():
        assert tensor.dtype == right[name].dtype
        torch.testing.assert_close(tensor, right[name], rtol=1e-12, atol=1e-13, equal_nan=True)


def fed(name: str, rows: slice) -> Metric:
    metric = shells()[name]
    logits, target = stream(90, 5)
    metric.update(logits[rows], target[rows])
    return metric


every_shell = pytest.mark.parametrize("name", list(shells()))


@every_shell
def test_a_shell_accumulates_and_resets(name: str):
    metric = fed(name, slice(0, 50))
    logits, target = stream(90, 5)
    metric.update(logits[50:], target[50:])
    assert_equal_results(metric.compute(), fed(name, slice(0, 90)).compute())
    metric.reset()
    metric.update(logits[:20], target[:20])
    assert_equal_results(metric.compute(), fed(name, slice(0, 20)).compute())


@every_shell
def test_forward_returns_the_batch_and_accumulates(name: str):
    metric = fed(name, slice(0, 50))
    logits, target = stream(90, 5)
    assert_equal_results(metric(logits[50:], target[50:]), fed(name, slice(50, 90)).compute())
    assert_equal_results(metric.compute(), fed(name, slice(0, 90)).compute())


@every_shell
def test_a_result_stays_as_it_was_when_the_metric_goes_on(name: str):
    metric = fed(name, slice(0, 50))
    result = metric.compute()
    before = copy.deepcopy(result)
    logits, target = stream(90, 5)
    metric.update(logits[50:] - 10, target[50:])
    assert_equal_results(result, before)


@every_shell
def test_states_merge(name: str):
    metric = fed(name, slice(0, 50))
    metric.merge_state(fed(name, slice(50, 90)))
    assert_equal_results(metric.compute(), fed(name, slice(0, 90)).compute())


@every_shell
def test_state_dict_round_trip(name: str):
    metric, fresh = fed(name, slice(0, 50)), shells()[name]
    fresh.load_state_dict(metric.state_dict())
    logits, target = stream(90, 5)
    fresh.update(logits[50:], target[50:])
    assert_equal_results(fresh.compute(), fed(name, slice(0, 90)).compute())


@every_shell
def test_pickle_round_trip(name: str):
    metric = pickle.loads(pickle.dumps(fed(name, slice(0, 50))))
    logits, target = stream(90, 5)
    metric.update(logits[50:], target[50:])
    assert_equal_results(metric.compute(), fed(name, slice(0, 90)).compute())


def test_shells_work_in_a_collection():
    logits, target = stream(90, 5)
    collection = MetricCollection(
        {"bins": cw.ClassBins(5), "floors": cw.ClassFloors(5), "acc": cw.ClassAccuracy(COUNTS)}
    )
    for rows in (slice(0, 50), slice(50, 90)):
        collection.update(logits[rows], target[rows])
    result = collection.compute()
    assert_equal_results(result["bins"], fed("target", slice(0, 90)).compute())
    per_class, _ = ref.accuracy(logits, target, groups_of(COUNTS))
    torch.testing.assert_close(result["per_class"], torch.tensor(per_class, dtype=torch.float64))
    assert (
        float(result["floors"].logit[0])
        == ref.floors(logits, target, [1.0] * 5, [0.0] * 5)["logit"][0]
    )


def test_groupings_in_one_collection_stay_apart():
    # The first batch is all right, so both groupings have the same state after it.
    right, labels = 5 * torch.eye(5), torch.arange(5)
    wrong = torch.zeros(5, dtype=torch.int64)
    collection = MetricCollection({name: cw.ClassBins(5, group_by=name) for name in GROUPINGS[:2]})
    collection.update(right, labels)
    collection.update(right, wrong)
    result = collection.compute()
    assert result["target"].count.sum(1).tolist() == [6, 1, 1, 1, 1]
    assert result["prediction"].count.sum(1).tolist() == [2, 2, 2, 2, 2]


def shard(rank: int | None) -> tuple[Tensor, Tensor]:
    """Uneven parts of one stream, class 4 missing on rank 1."""
    logits, target = stream(90, 5)
    first = (target == 4) | (torch.arange(90) < 12)
    rows = torch.ones_like(first) if rank is None else first if rank == 0 else ~first
    return logits[rows], target[rows]


def left_over(metric: Metric) -> Tensor:
    states = [torch.as_tensor(state).double() for state in metric.metric_state.values()]
    return torch.cat([state.nan_to_num(posinf=0).flatten() for state in states])


def everything(rank: int | None) -> dict[str, dict[str, Tensor]]:
    """Feed every shell in batches of ten and return what it computes; also what is left after."""
    logits, target = shard(rank)
    results = {}
    for name, metric in shells().items():
        for first in range(0, len(target), 10):
            metric.update(logits[first : first + 10], target[first : first + 10])
        local = left_over(metric)
        results[name] = dict(flat(metric.compute()))
        after = left_over(metric)
        results[name]["unsynced again"] = torch.tensor(torch.equal(after, local))
    return results


def test_two_processes_compute_what_one_does():
    sizes = [len(shard(rank)[1]) for rank in (0, 1)]
    assert abs(sizes[0] - sizes[1]) > 10
    assert not bool((shard(1)[1] == 4).any())
    # By its plain name, which a spawned process can import.
    alone, pair = (
        everything(None),
        ranks.run_ranks(2, importlib.import_module("test_bins").everything),
    )
    for result in pair:
        for name, values in alone.items():
            assert_equal_results(result[name], values)


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


# A clean pass


class Net(nn.Module):
    """Batch norm in train mode inside a model in eval mode inside one in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.body = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 5))
        self.body.eval()
        self.body[0].train()

    def forward(self, inputs: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        if len(inputs) == 1:
            raise RuntimeError("a batch of one")
        return self.body(self.norm(inputs))


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def loader(samples: int = 60) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(2)
    inputs = 3 * torch.randn(samples, 6, generator=generator)
    target = torch.randint(5, (samples,), generator=generator)
    target[0] = -100
    return DataLoader(TensorDataset(inputs, target), batch_size=20)


@everywhere
def test_measure_equals_the_metrics(group_by: str):
    model, data = Net(), loader()
    terms = cw.terms.vs(COUNTS, tau=1.0, gamma=0.2)
    metrics = (cw.ClassBins(5, 10, group_by), cw.ClassAccuracy(COUNTS), cw.ClassFloors(5, terms))
    clean = copy.deepcopy(model).eval()
    with torch.no_grad():
        for inputs, target in data:
            for metric in metrics:
                metric.update(clean(inputs), target)
    result = cw.measure(model, data, COUNTS, terms=terms, num_bins=10, group_by=group_by)
    assert_equal_results(result.table, metrics[0].compute())
    assert_equal_results(result.accuracy, metrics[1].compute())
    assert_equal_results(result.floors, metrics[2].compute())
    assert (result.samples, result.skipped) == (59, 0)
    assert list(result.shots) == ["many", "medium", "few"]


def test_measure_on_adjusted_logits():
    model, data = Net(), loader()
    terms = cw.terms.vs(COUNTS, tau=1.0, gamma=0.2)
    bins = cw.ClassBins(5)
    clean = copy.deepcopy(model).eval()
    with torch.no_grad():
        for inputs, target in data:
            adjusted = clean(inputs) * terms.beta.float() + terms.delta.float()
            bins.update(adjusted, target)
    result = cw.measure(model, data, COUNTS, terms=terms, adjusted=True)
    assert_equal_results(result.table, bins.compute())
    with pytest.raises(cw.ArgumentError, match="needs the terms"):
        cw.measure(model, data, COUNTS, adjusted=True)


def test_measure_leaves_the_model_as_it_was():
    model = Net()
    before, state = modes(model), copy.deepcopy(model.state_dict())
    assert len(set(before)) == 2
    cw.measure(model, loader(), COUNTS)
    assert modes(model) == before
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("samples", [41, 0])
def test_measure_restores_modes_after_an_exception(samples: int):
    model = Net()
    before = modes(model)
    data = loader(41) if samples else []
    with pytest.raises(RuntimeError, match="batch of one" if samples else "no sample"):
        cw.measure(model, data, COUNTS)
    assert modes(model) == before
    assert torch.is_grad_enabled()


def test_measure_counts_what_it_skipped():
    logits, target = stream(20, 5)
    logits[4] = math.nan
    data = [(logits, target)]
    result = cw.measure(nn.Identity(), data, COUNTS)
    assert (result.samples, result.skipped) == (20, 1)
    assert int(result.table.count.sum()) == 19


def test_floors_of_other_terms_are_not_merged():
    plain, adjusted = cw.ClassFloors(5), cw.ClassFloors(5, terms=cw.terms.la(COUNTS, tau=1.0))
    with pytest.raises(cw.ArgumentError, match="different terms cannot be merged"):
        plain.merge_state(adjusted)
