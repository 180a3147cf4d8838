from typing import Any

import pytest
import ranks
import torch

import classwise as cw


@pytest.fixture(scope="module")
def results() -> list[dict[str, Any]]:
    return ranks.run_ranks(2, ranks.all_scenarios)


@pytest.mark.parametrize("training", ranks.TRAININGS, ids=lambda t: f"{t[0]}-{t[1]}")
def test_two_ranks_train_as_one_process_on_the_whole_batch(results, training):
    alone = ranks.train(None, *training)
    pair = [result["train"][training] for result in results]
    for mine in pair:
        for got, expected in zip(mine["parameters"], alone["parameters"], strict=True):
            assert torch.allclose(got, expected, atol=1e-9)
        assert torch.allclose(mine["kappa"], alone["kappa"], rtol=1e-9)
    mean_loss = (pair[0]["losses"] + pair[1]["losses"]) / 2
    assert torch.allclose(mean_loss, alone["losses"], atol=1e-9)
    assert torch.equal(pair[0]["count"] + pair[1]["count"], alone["count"])


def test_a_plain_mean_on_each_rank_would_not_train_the_same():
    inputs, target, rows = ranks.whole_batch(0)
    weight = 1.0 / torch.tensor(ranks.COUNTS)
    loss = torch.nn.CrossEntropyLoss(weight=weight)
    model = torch.nn.Linear(6, 5)
    whole = torch.autograd.grad(loss(model(inputs), target), model.weight)[0]
    halves = [
        torch.autograd.grad(loss(model(inputs[mine]), target[mine]), model.weight)[0]
        for mine in rows
    ]
    assert not torch.allclose((halves[0] + halves[1]) / 2, whole, rtol=0.05)


def test_a_criterion_inside_the_wrapped_model_keeps_what_each_rank_has_seen(results):
    alone = ranks.train_with_loss(None)
    first, second = (result["with_loss"] for result in results)
    assert torch.equal(first["count"] + second["count"], alone["count"])
    assert torch.allclose(first["kappa"], alone["kappa"])
    assert torch.equal(first["kappa"], second["kappa"])


@pytest.mark.parametrize("normalize", ["weights", "batch"])
def test_ranks_may_see_different_numbers_of_batches(results, normalize):
    alone, losses = ranks.stream(None, (5, 2), normalize)
    for result in results:
        slopes, _ = result["stream"][normalize]
        assert torch.allclose(slopes, alone, rtol=1e-9)
    # Rank 1 has run out after two batches: averaged over both ranks, those of rank 0 count whole.
    last = torch.stack(results[0]["stream"][normalize][1][2:])
    share = 2.0 if normalize == "weights" else 1.0
    assert torch.allclose(last, share * torch.stack(losses[2:5]), rtol=1e-6)


def test_rank_zero_saves_for_all(results):
    counted = sum(int((ranks.whole_batch(step)[1] >= 0).sum()) for step in range(5))
    assert counted < 5 * 30
    assert [result["resume"]["synced"] for result in results] == [counted, 0]
    assert [result["resume"]["loaded"] for result in results] == [counted, 0]
    for result in results:
        assert torch.equal(result["resume"]["first"], result["resume"]["resumed"])
        assert not torch.equal(result["resume"]["first"], torch.ones(2, 5, dtype=torch.float64))


def test_a_synced_state_is_whole_in_one_process():
    criterion = cw.Criterion("ce", ranks.COUNTS, epochs=2)
    criterion.start_epoch(0)
    criterion(torch.randn(7, 5, requires_grad=True), torch.zeros(7).long())
    criterion.sync()
    twin = cw.Criterion("ce", ranks.COUNTS, epochs=2)
    twin.load_state_dict(criterion.state_dict())
    assert twin.table().count.sum() == 7
