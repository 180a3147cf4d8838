"""Many, medium and few: classes grouped by their training counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import Tensor

from classwise._checks import ClassCounts, class_counts_tensor, whole_number
from classwise.errors import ArgumentError

__all__ = ["Shots", "group_index", "group_matrix", "shots"]

Shots: TypeAlias = Mapping[str, Tensor]
"""Names of groups and which classes are in each, bool (C,)."""


def shots(
    class_counts: ClassCounts, *, many: int = 100, few: int = 20, allow_empty: bool = False
) -> dict[str, Tensor]:
    """Return which classes have many, medium and few training samples.

    many: N_y > 100; few: N_y < 20; medium: what is between, both ends included (Liu et al. 2019).

    Args:
        class_counts: training counts, (C,).
        many: more than this is many.
        few: fewer than this is few.
        allow_empty: accept classes without samples; they are few.

    Returns:
        Three masks, bool (C,), by name. Every class is in exactly one.

    >>> {name: int(mask.sum()) for name, mask in shots([500, 100, 20, 5]).items()}
    {'many': 1, 'medium': 2, 'few': 1}
    """
    many = whole_number("many", many, low=0)
    few = whole_number("few", few, low=0)
    if few > many + 1:
        raise ArgumentError(f"few={few} and many={many} overlap; few must be at most many + 1.")
    counts = class_counts_tensor(class_counts, allow_empty=allow_empty)
    return {
        "many": counts > many,
        "medium": (counts >= few) & (counts <= many),
        "few": counts < few,
    }


def group_matrix(groups: Shots, num_classes: int) -> Tensor:
    """Return the masks of groups stacked to bool (G, C)."""
    if not isinstance(groups, Mapping) or not groups:
        raise ArgumentError(
            f"shots must map group names to class masks, got {type(groups).__name__}; "
            "make them with classwise.shots(class_counts)."
        )
    rows = []
    for name, mask in groups.items():
        row = torch.as_tensor(mask)
        if row.dtype != torch.bool or row.shape != (num_classes,):
            raise ArgumentError(
                f"shots[{name!r}] must be a bool mask of shape ({num_classes},), "
                f"got {row.dtype} of shape {tuple(row.shape)}."
            )
        rows.append(row)
    return torch.stack(rows)


def group_index(groups: Shots, num_classes: int) -> Tensor:
    """Return the number of the group that each class is in, int64 (C,)."""
    matrix = group_matrix(groups, num_classes)
    times = matrix.sum(0)
    if bool((times != 1).any()):
        wrong = int(torch.nonzero(times != 1)[0])
        raise ArgumentError(
            f"class {wrong} is in {int(times[wrong])} groups of shots; it must be in exactly one."
        )
    return matrix.to(torch.int64).argmax(0)
