"""The clean pass."""

import copy
import math
from typing import Any

import pytest
import torch
from samples import (
    COUNTS,
    assert_equal_results,
    everywhere,
    stream,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import classwise as cw

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


def test_without_counts_there_are_no_groups():
    model, data = Net(), loader()
    with_counts = cw.measure(model, data, COUNTS)
    without = cw.measure(model, data)
    assert without.shots == {}
    assert set(with_counts.accuracy) - set(without.accuracy) <= {"many", "medium", "few"}
    assert torch.equal(without.accuracy["balanced"], with_counts.accuracy["balanced"])
    assert torch.equal(without.table.count, with_counts.table.count)
    assert without.samples == with_counts.samples


def test_counts_of_other_classes_than_the_logits_are_refused():
    with pytest.raises(cw.ArgumentError, match="logits have 5 classes"):
        cw.measure(Net(), loader(), [5, 3])
