"""Accuracy per class, and what is made of it: balanced, and by shots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from classwise._checks import tensor_of_logits, tensor_of_target, whole_number
from classwise.stats.shots import Shots, group_matrix

__all__ = ["AccuracyState", "accuracy_table", "empty_accuracy", "update_accuracy"]


@dataclass(frozen=True, eq=False)
class AccuracyState:
    """Right and all samples of each true class, int64 (C,) both."""

    correct: Tensor
    count: Tensor

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each field."""
        yield "correct", self.correct
        yield "count", self.count


def empty_accuracy(num_classes: int, device: torch.device | str | None = None) -> AccuracyState:
    """Return the state before any sample."""
    num_classes = whole_number("num_classes", num_classes, low=2)
    zeros = torch.zeros(2, num_classes, dtype=torch.int64, device=device)
    return AccuracyState(correct=zeros[0].clone(), count=zeros[1].clone())


@torch.no_grad()
def update_accuracy(
    state: AccuracyState, logits: Tensor, target: Tensor, *, ignore_index: int = -100
) -> None:
    """Add a batch to the state, in place. A row with NaN logits is a wrong answer."""
    logits = tensor_of_logits(logits, state.count.numel())
    target = tensor_of_target(target, logits, ignore_index)
    label = target.argmax(1) if target.is_floating_point() else target
    valid = (
        torch.ones_like(label, dtype=torch.bool)
        if target.is_floating_point()
        else (label != ignore_index)
    )
    best, predicted = logits.max(1)
    right = valid & (predicted == label) & ~torch.isnan(best)
    label = torch.where(valid, label, 0).flatten()
    state.count.index_add_(0, label, valid.flatten().long())
    state.correct.index_add_(0, label, right.flatten().long())


def accuracy_table(state: AccuracyState, shots: Shots | None = None) -> dict[str, Tensor]:
    """Return accuracies in [0, 1].

    Args:
        state: counts.
        shots: groups of classes, see ``classwise.shots``.

    Returns:
        ``"per_class"`` (C,), NaN for a class without samples; ``"overall"``, the share of right
        samples; ``"balanced"``, the mean over the classes that have samples; and one mean for each
        group of ``shots``. A group without any sample is *absent*, as is every mean of nothing.
    """
    per_class = state.correct.double() / state.count
    result = {"per_class": per_class}
    groups = {"balanced": torch.ones_like(state.count, dtype=torch.bool)}
    if shots is not None:
        matrix = group_matrix(shots, state.count.numel()).to(state.count.device)
        groups.update(zip(shots, matrix, strict=True))
    if int(state.count.sum()):
        result["overall"] = state.correct.sum().double() / state.count.sum()
    for name, mask in groups.items():
        present = mask & (state.count > 0)
        if bool(present.any()):
            result[name] = per_class[present].mean()
    return result
