"""Sums over processes; without ``torch.distributed`` there is one process and nothing to do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Group", "join", "mean_over_ranks", "rank", "sum_in_place", "world_size"]

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
    """Return the mean of a number over all processes, without a gradient. A collective.

    A process that waits in ``join`` takes part with 0.
    """
    world = world_size(group)
    if world == 1:
        return value
    message = torch.stack([value.detach().double(), value.new_ones((), dtype=torch.float64)])
    dist.all_reduce(message, group=group)  # type: ignore[arg-type]
    return (message[0] / world).to(value.dtype)


def join(device: torch.device, group: Group = None) -> None:
    """Return when all processes are here; until then take part in the means of the others.

    A process that has run out of batches so waits for those that have not. A collective.
    """
    if world_size(group) == 1:
        return
    message = torch.ones(2, dtype=torch.float64, device=device)
    while message[1]:
        message.zero_()
        dist.all_reduce(message, group=group)  # type: ignore[arg-type]
