"""Gradient accumulation: the micro-batches of one optimiser step, and what they weigh together."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise._distributed import mean_over_ranks, sum_in_place, world_size
from classwise.criterion import Criterion
from classwise.errors import StateError

__all__ = ["Window"]


class Window:
    """The micro-batches of one optimiser step, one after the other, their number unknown.

    Each is divided by one constant ``r`` instead of by what it weighs, and the accumulated gradient
    is then scaled. With S_i the summed loss and m_i the mass of micro-batch i on one of W ranks,

        W * r / sum(m) * mean over ranks of sum_i grad(S_i / r) = grad(sum(S)) / sum(m)

    which is the gradient of one batch of all micro-batches and ranks.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._reference: Tensor | None = None
        self._mass: Tensor | None = None

    def add(self, criterion: Criterion, mass: Tensor) -> Tensor:
        """Note what a micro-batch weighs; return what all of them divide by until the step."""
        self.calls += 1
        if self.calls > 1:
            raise StateError(
                "the criterion was called twice in one training_step, so what the batches of a "
                "window weigh is not known; pass ImbalanceCallback(accumulation='mean')."
            )
        mass = mass.detach()
        if self._reference is None or self._mass is None:
            # One number for all ranks and micro-batches, of the size of a micro-batch's mass: the
            # losses that are logged look as usual.
            mean = mean_over_ranks(mass, criterion.process_group)
            self._reference = torch.where(mean == 0, 1, mean)
            self._mass = torch.zeros_like(mass)
        self._mass = self._mass + mass
        return self._reference

    def factor(self, criterion: Criterion) -> Tensor | None:
        """Return W * r / sum(m); None if there was no micro-batch."""
        if self._reference is None or self._mass is None:
            return None
        total = self._mass.clone()
        sum_in_place([total], criterion.process_group)
        world = world_size(criterion.process_group)
        return world * self._reference / torch.where(total == 0, 1, total)
