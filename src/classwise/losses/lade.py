"""The LADE loss: logit adjustment plus a regulariser on each class's logit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from classwise._checks import (
    ClassCounts,
    log_prior,
    number,
    tensor_of_logits,
    tensor_of_target,
)
from classwise.errors import ArgumentError
from classwise.losses._module import KeepsPrecision
from classwise.losses._reduce import mean_divisor, reduce
from classwise.losses._scores import Scores, Target, across_classes

__all__ = ["LADELoss", "lade_loss", "lade_regularizer"]


def lade_loss(
    logits: Tensor,
    target: Tensor,
    class_counts: ClassCounts,
    *,
    weight: float = 0.1,
    remine: float = 0.1,
    ignore_index: int = -100,
    allow_empty: bool = False,
) -> Tensor:
    """Return the LADE loss (Hong et al. 2021), a mean over the batch.

        L = CE(z + log pi, y) + weight * R
        R = - sum_c pi_c * (T1_c - T2_c - remine * T2_c^2)
        T1_c = mean of z_ic over samples of class c (0 where the batch has none)
        T2_c = logsumexp_i(z_ic - log pi_c - log C) - log N

    R is the published code's. There the importance weight inside T2_c is the prior of the column
    c for every sample, where the derivation weights each sample by the prior of its own label. R
    couples the samples of a batch, so there is no per-sample form, and N ranks that see N parts of
    a batch do not compute what one process computes. Under ``torch.compile`` use the module, which
    makes the log-prior once.

    Args:
        logits: (N, C); computed in float32 or wider.
        target: int64 (N,), or class probabilities (N, C).
        class_counts: training counts, (C,).
        weight: of the regulariser, >= 0; with 0 this is logit adjustment at tau = 1.
        remine: of the squared term, >= 0.
        ignore_index: target value that does not count.
        allow_empty: treat a class without samples as a class of one.

    >>> import torch, classwise as cw
    >>> z, y = torch.randn(4, 2), torch.tensor([0, 1, 0, 0])
    >>> adjusted = cw.vs_loss(z, y, cw.terms.la([3, 1], tau=1.0))
    >>> torch.allclose(lade_loss(z, y, [3, 1], weight=0.0), adjusted)
    True
    """
    log_pi = log_prior(class_counts, allow_empty=allow_empty)
    return _lade(logits, target, log_pi, weight, remine, ignore_index)


def _lade(
    logits: Tensor,
    target: Tensor,
    log_pi: Tensor,
    weight: float,
    remine: float,
    ignore_index: int,
) -> Tensor:
    weight = number("weight", weight, low=0)
    remine = number("remine", remine, low=0)
    logits = tensor_of_logits(logits, log_pi.numel())
    target = tensor_of_target(target, logits, ignore_index)
    raw = Scores(logits)
    adjusted = Scores(raw.logits + across_classes(log_pi, raw.logits))
    goal = Target(target, ignore_index, raw.logits.dtype)
    divisor = mean_divisor(goal, None, "batch", raw.logits, None)
    loss = reduce(goal.pick(-adjusted.log_probs), "mean", divisor)
    return loss + weight * lade_regularizer(raw.logits, goal, log_pi, remine=remine)


def lade_regularizer(logits: Tensor, target: Target, log_pi: Tensor, *, remine: float) -> Tensor:
    """Return R of ``lade_loss``; 0 for a batch in which everything is ignored."""
    if logits.ndim != 2:
        raise ArgumentError(f"LADE needs logits (N, C), got shape {tuple(logits.shape)}.")
    log_pi = across_classes(log_pi, logits)
    if target.index is not None:
        member = torch.zeros_like(logits).scatter(1, target.index[:, None], 1.0)
        member = member * target.counted(logits)[:, None]
    else:
        assert target.probabilities is not None
        member = target.probabilities
    of_class = (member * logits).sum(0) / (member.sum(0) + 1e-8)
    counted = target.counted(logits)
    size = counted.sum()
    # An ignored row weighs exp(-inf); an empty batch would make the whole sum -inf, so it is
    # given one row back here and taken out at the end.
    shut = torch.where((counted > 0) | (size == 0), 0.0, -torch.inf).to(logits.dtype)
    spread = (logits + shut[:, None]).logsumexp(0) - log_pi - math.log(logits.shape[1])
    spread = spread - size.clamp(min=1).log()
    estimate = of_class - spread - remine * spread.square()
    return torch.where(size > 0, -(log_pi.exp() * estimate).sum(), 0.0)


class LADELoss(KeepsPrecision):
    """``lade_loss`` as a module; the log-prior is a buffer outside the ``state_dict``."""

    log_prior: Tensor

    def __init__(
        self,
        class_counts: ClassCounts,
        *,
        weight: float = 0.1,
        remine: float = 0.1,
        ignore_index: int = -100,
        allow_empty: bool = False,
    ) -> None:
        super().__init__()
        prior = log_prior(class_counts, allow_empty=allow_empty)
        self.register_buffer("log_prior", prior, persistent=False)
        self.weight = number("weight", weight, low=0)
        self.remine = number("remine", remine, low=0)
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return _lade(logits, target, self.log_prior, self.weight, self.remine, self.ignore_index)

    def extra_repr(self) -> str:
        """Describe the settings."""
        return f"classes={self.log_prior.numel()}, weight={self.weight:g}, remine={self.remine:g}"
