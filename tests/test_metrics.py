"""Accuracy and floors, and the shells around all statistics."""

import copy
import importlib
import math
import pickle

import pytest
import ranks
import torch
from reference import statistics as ref
from samples import (
    COUNTS,
    assert_equal_results,
    flat,
    soften,
    stream,
)
from sklearn.metrics import balanced_accuracy_score, recall_score
from torch import Tensor
from torchmetrics import Metric, MetricCollection

import classwise as cw
from classwise.stats.accuracy import accuracy_table, empty_accuracy, update_accuracy
from classwise.stats.bins import (
    GROUPINGS,
)
from classwise.stats.floors import FloorState, empty_floors, update_floors

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


@every_shell
def test_a_model_that_is_cast_does_not_round_its_metrics(name: str):
    logits, target = stream(90, 5)
    metric = shells()[name]
    model = torch.nn.ModuleDict({"metric": metric})
    casts = (model.half, model.bfloat16, lambda: model.to(torch.bfloat16), model.float)
    for part, cast in zip(torch.arange(90).split(24), casts, strict=True):
        cast()
        metric.update(logits[part], target[part])
    metric.set_dtype(torch.float32)
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
        ranks.run_ranks(2, importlib.import_module("test_metrics").everything),
    )
    for result in pair:
        for name, values in alone.items():
            assert_equal_results(result[name], values)


def test_floors_of_other_terms_are_not_merged():
    plain, adjusted = cw.ClassFloors(5), cw.ClassFloors(5, terms=cw.terms.la(COUNTS, tau=1.0))
    with pytest.raises(cw.ArgumentError, match="different terms cannot be merged"):
        plain.merge_state(adjusted)
