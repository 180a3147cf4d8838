"""Which class eats which: the worst classes with what they are taken for, and the flow by shots."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from classwise.report.comparison import GROUPS, Comparison, Method
from classwise.stats.shots import group_index

__all__ = ["Eaten", "Worst", "flow", "worst_classes"]


@dataclass(frozen=True)
class Eaten:
    """A class that takes samples of another.

    Args:
        index: the class.
        share: of the other's samples, in [0, 1].
    """

    index: int
    share: float


@dataclass(frozen=True)
class Worst:
    """One of the classes that are recognised worst.

    Args:
        index: the class.
        accuracy: in [0, 1], the mean over the runs.
        reference: the baseline's accuracy; NaN where there is none.
        eaten_by: what it is most often taken for; empty where confusions were not kept.
    """

    index: int
    accuracy: float
    reference: float
    eaten_by: tuple[Eaten, ...]


def worst_classes(c: Comparison, method: Method, number: int = 10, top: int = 3) -> list[Worst]:
    """Return the worst classes of a method; of equally bad ones those with more tests first.

    Classes that are always right are not among them.
    """
    accuracy = method.class_mean(f"{c.split}.class_accuracy")
    if accuracy is None:
        return []
    count = method.class_mean(f"{c.split}.class_count")
    tested = torch.zeros_like(accuracy) if count is None else count
    reference = None
    if c.baseline is not None and c.baseline is not method:
        reference = c.baseline.class_mean(f"{c.split}.class_accuracy")
    confusion = method.total(f"{c.split}.confusion")
    # Sorted twice, stably: by the first key last.
    order = tested.argsort(descending=True, stable=True)
    order = order[accuracy[order].nan_to_num(nan=2.0).argsort(stable=True)]
    worst = [i for i in order[:number].tolist() if float(accuracy[i]) < 1]
    return [
        Worst(
            index=i,
            accuracy=float(accuracy[i]),
            reference=math.nan if reference is None else float(reference[i]),
            eaten_by=() if confusion is None else _eaten(confusion[i], i, top),
        )
        for i in worst
    ]


def _eaten(row: Tensor, own: int, top: int) -> tuple[Eaten, ...]:
    others = row.clone()
    others[own] = 0
    order = others.argsort(descending=True, stable=True)[:top].tolist()
    total = max(int(row.sum()), 1)
    return tuple(Eaten(i, int(others[i]) / total) for i in order if int(others[i]))


def flow(c: Comparison, method: Method) -> dict[str, dict[str, float]] | None:
    """Return which share of each group's samples is predicted into each group.

    Returns:
        By true group, then by predicted group; groups without test samples are absent. None where
        confusions were not kept.
    """
    confusion = method.total(f"{c.split}.confusion")
    if confusion is None:
        return None
    index = group_index(c.groups, len(c.class_names))
    by_true = torch.zeros(len(c.groups), len(index), dtype=torch.int64)
    by_true.index_add_(0, index, confusion)
    cells = torch.zeros(len(c.groups), len(c.groups), dtype=torch.int64)
    cells.index_add_(1, index, by_true)
    rows = dict(zip(c.groups, cells.double(), strict=True))
    return {
        group: dict(zip(c.groups, (rows[group] / rows[group].sum()).tolist(), strict=True))
        for group in GROUPS
        if float(rows[group].sum())
    }
