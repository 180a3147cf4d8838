"""The floors of each class: the worst that the model does on its own samples.

They are what the local Lipschitz constants (lemma lem:Lip_of_vs) are made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from classwise._checks import tensor_of_logits, tensor_of_target, whole_number
from classwise.errors import ArgumentError
from classwise.losses._scores import across_classes, upcast
from classwise.stats._where import sum_dtype
from classwise.terms import Terms, checked_terms

__all__ = ["FloorState", "empty_floors", "update_floors"]


class FloorState(NamedTuple):
    """Extremes over the samples S_y of each class y; (C,) each, inf where a class had none.

    Args:
        logit: B_y(f) = min f(x)_y.
        margin: min f(x)_y - max_{j != y} f(x)_j.
        log_prob: min log softmax(beta * f(x) + delta)_y.
        rival: *minus* max_{j != y} f(x)_j, so that all extremes merge by minimum.
        beta: what logits were scaled by for ``log_prob``.
        delta: what was added to them for ``log_prob``.
    """

    logit: Tensor
    margin: Tensor
    log_prob: Tensor
    rival: Tensor
    beta: Tensor
    delta: Tensor

    def extremes(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of what is merged by minimum."""
        for name in ("logit", "margin", "log_prob", "rival"):
            yield name, getattr(self, name)

    @property
    def probability(self) -> Tensor:
        """The smallest adjusted probability of the true class, (C,); NaN for an absent class."""
        return torch.where(self.seen, self.log_prob.exp(), torch.nan)

    @property
    def seen(self) -> Tensor:
        """Which classes had a sample, bool (C,)."""
        return self.log_prob < torch.inf


def empty_floors(
    num_classes: int, *, terms: Terms | None = None, device: torch.device | str | None = None
) -> FloorState:
    """Return the state before any sample."""
    num_classes = whole_number("num_classes", num_classes, low=2)
    if terms is not None and checked_terms(terms).num_classes != num_classes:
        raise ArgumentError(f"terms have {terms.num_classes} classes, num_classes={num_classes}.")
    none = torch.full((num_classes,), torch.inf, device=device, dtype=sum_dtype(device))
    return FloorState(
        *(none.clone() for _ in range(4)),
        beta=torch.ones_like(none) if terms is None else terms.beta.to(none),
        delta=torch.zeros_like(none) if terms is None else terms.delta.to(none),
    )


@torch.no_grad()
def update_floors(
    state: FloorState, logits: Tensor, target: Tensor, *, ignore_index: int = -100
) -> None:
    """Add a batch to the state, in place; samples with logits that are not finite are left out.

    Args:
        state: changed.
        logits: raw logits (N, C) or (N, C, d1, ...).
        target: int64 indices, or class probabilities (the likeliest class counts).
        ignore_index: target value that does not count.
    """
    logits = upcast(tensor_of_logits(logits, state.logit.numel()))
    target = tensor_of_target(target, logits, ignore_index)
    label = target.argmax(1) if target.is_floating_point() else target
    adjusted = logits * across_classes(state.beta, logits) + across_classes(state.delta, logits)
    log_probs = F.log_softmax(adjusted, dim=1)
    valid = torch.isfinite(log_probs.amax(1))
    if not target.is_floating_point():
        valid = valid & (label != ignore_index)
    index = torch.where(valid, label, 0).unsqueeze(1)
    own = logits.gather(1, index)
    rival = logits.scatter(1, index, -torch.inf).amax(1, keepdim=True)
    values = {
        "logit": own,
        "margin": own - rival,
        "log_prob": log_probs.gather(1, index),
        "rival": -rival,
    }
    index, keep = index.flatten(), valid.flatten()
    for name, tensor in state.extremes():
        batch = torch.where(keep, values[name].flatten().to(tensor.dtype), torch.inf)
        tensor.scatter_reduce_(0, index, batch, reduce="amin")
