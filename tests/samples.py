"""Streams of logits and labels, and comparisons of bins."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import statistics as ref
from torch import Tensor

from classwise.stats.bins import (
    GROUPINGS,
    BinState,
    BinTable,
    empty_bins,
    update_bins,
)

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
