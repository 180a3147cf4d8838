"""Sums over processes; without ``torch.distributed`` there is one process and nothing to do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Group", "mean_over_ranks", "rank", "sum_in_place", "world_size"]

Group = object | None
"""A ``torch.distributed`` process group; None is the default one."""


def world_size(group: Group = None) -> int:
    """Return how many processes there are."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return dist.get_world_size(group)  # type: ignore[arg-type]


def rank(group: Group = None) -> int:
    """Return the number of this process."""
    return dist.get_rank(group) if world_size(group) > 1 else 0  # type: ignore[arg-type]


def sum_in_place(tensors: Sequence[Tensor], group: Group = None) -> None:
    """Sum tensors over all processes: one message per dtype. A collective."""
    if world_size(group) == 1:
        return
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.flatten() for tensor in same])
        dist.all_reduce(flat, group=group)  # type: ignore[arg-type]
        for tensor, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
            tensor.copy_(part.view_as(tensor))


def mean_over_ranks(value: Tensor, group: Group = None) -> Tensor:
    """Return the mean of a tensor over all processes, without a gradient. A collective."""
    world = world_size(group)
    if world == 1:
        return value
    total = value.detach().clone()
    sum_in_place([total], group)
    return total / world
