"""Sharpness-aware minimisation as two calls around an ordinary optimiser's step."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from classwise._checks import number
from classwise.errors import ArgumentError, StateError

__all__ = ["SAM"]


class SAM:
    """Climb to where the loss is worst nearby, so that the optimiser steps with the gradient there.

    With g the gradient at the weights w, the optimiser takes its ordinary step from w, with the
    gradient of the same batch at w + rho * g / (|g| + eps) (Foret et al., ICLR 2021). There is one
    norm, over all parameters:

        loss(model(x), y).backward()
        sam.ascend()                    # w -> w + rho * g / (|g| + eps)
        optimizer.zero_grad()
        loss(model(x), y).backward()
        sam.restore()                   # w, bit for bit
        optimizer.step()

    When ``ascend`` is called, ``.grad`` must be the gradient of the whole batch. Accumulate over
    micro-batches before, for both passes. With several processes let the gradients be averaged
    before, as DistributedDataParallel does in ``backward``: then all processes climb alike. (Where
    parameters are sharded, the norm would be that of a shard.) Clip after ``restore``, and unscale
    before ``ascend``. Weight decay belongs to the optimiser and is no part of g.

    A gradient with NaN or infinity makes the raised weights NaN, and with them the second loss and
    gradient; ``restore`` still returns the weights as they were. Nothing is skipped in silence and
    nothing is kept between steps, so there is no state to save.

    Args:
        params: those to raise; parameters without a gradient stay where they are.
        rho: radius, >= 0; may be set anew at any time. 0 makes both calls do nothing.
        eps: guards the division.

    >>> w = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> sam = SAM([w], rho=0.5)
    >>> (w @ w / 2).backward()  # g = w, |g| = 5
    >>> sam.ascend(); w.tolist()
    [3.299999952316284, 4.400000095367432]
    >>> sam.restore(); w.tolist()
    [3.0, 4.0]
    """

    def __init__(self, params: Iterable[Tensor], rho: float, eps: float = 1e-12) -> None:
        self.params = list(params)
        if not self.params:
            raise ArgumentError("params is empty: SAM needs parameters to raise.")
        self.rho = rho
        self.eps = number("eps", eps, low=0)
        self._raised: list[Tensor] | None = None
        self._before: list[Tensor] = []

    @property
    def rho(self) -> float:
        """Radius of the neighbourhood."""
        return self._rho

    @rho.setter
    def rho(self, value: float) -> None:
        self._rho = number("rho", value, low=0)

    @torch.no_grad()
    def ascend(self) -> None:
        """Add rho * g / (|g| + eps) to the parameters, and remember what they were."""
        if self._raised is not None:
            raise StateError("ascend() was called twice without restore().")
        raised = [p for p in self.params if p.grad is not None] if self.rho else []
        self._raised, self._before = raised, [p.clone() for p in raised]
        if not raised:
            return
        grads = [p.grad for p in raised if p.grad is not None]
        # A tensor throughout: reading the norm would make the host wait for the device.
        scale = self.rho / (torch.nn.utils.get_total_norm(grads) + self.eps)
        steps = torch._foreach_mul(grads, scale)  # type: ignore[reportPrivateImportUsage]
        torch._foreach_add_(raised, steps)  # type: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def restore(self) -> None:
        """Put the parameters back to what they were before ``ascend``."""
        if self._raised is None:
            raise StateError("restore() was called without ascend().")
        if self._raised:
            torch._foreach_copy_(  # type: ignore[reportPrivateImportUsage]
                self._raised, self._before
            )
        self._raised, self._before = None, []
