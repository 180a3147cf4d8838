"""The influence-balanced loss."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from classwise._checks import class_weight, number
from classwise.errors import ArgumentError
from classwise.losses._module import KeepsPrecision
from classwise.losses._reduce import check_reduction, loss_of_batch
from classwise.losses._scores import Scores, Target, upcast

__all__ = ["InfluenceBalancedLoss", "influence_balanced_loss", "per_sample_influence"]


def influence_balanced_loss(
    logits: Tensor,
    target: Tensor,
    features: Tensor,
    *,
    weight: object = None,
    strength: float = 1000.0,
    eps: float = 1e-3,
    detach: bool = False,
    reduction: str = "mean",
    normalize: str = "batch",
    ignore_index: int = -100,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """Return the influence-balanced loss (Park et al. 2021).

        L(z, y) = w_y * strength / (||softmax(z) - onehot(y)||_1 * ||h||_1 + eps) * -log p_y

    The factor is the inverse of the sample's influence on the last layer. The published code lets
    gradients flow through it, as the default does here; ``detach=True`` treats it as the weight
    that the text calls it. Published with plain means, weights 1 / N_y of sum C, and plain
    cross-entropy for the first half of training (recipe ``"ib"``).

    Args:
        logits: (N, C); computed in float32 or wider.
        target: int64 (N,), or class probabilities (N, C).
        features: what the last layer sees, (N, D).
        weight: class weights, (C,).
        strength: > 0; the authors advise one that keeps the loss at its usual magnitude.
        eps: > 0, keeps the factor finite.
        detach: cut gradients at the factor.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        normalize: a mean divides by the ``"batch"`` size or the summed ``"weights"``.
        ignore_index: target value that does not count.
        normalizer: divide by this instead of the batch's own mass.

    >>> import torch
    >>> z, h = torch.tensor([[0.0, 0.0]]), torch.ones(1, 4)
    >>> influence_balanced_loss(z, torch.tensor([1]), h, strength=4.0).round(decimals=3)
    tensor(0.6930)
    """
    check_reduction(reduction, normalize)
    strength = number("strength", strength, low=0, low_open=True)
    eps = number("eps", eps, low=0, low_open=True)
    factor = {"strength": strength, "eps": eps, "detach": detach}
    alpha = class_weight(weight)
    return _influence(
        logits, target, features, alpha, factor, reduction, normalize, ignore_index, normalizer
    )


def _influence(
    logits: Tensor,
    target: Tensor,
    features: Tensor,
    weight: Tensor | None,
    factor: Mapping[str, Any],
    reduction: str,
    normalize: str,
    ignore_index: int,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    return loss_of_batch(
        partial(per_sample_influence, alpha=weight, features=features, **factor),
        logits,
        target,
        alpha=weight,
        reduction=reduction,
        normalize=normalize,
        ignore_index=ignore_index,
        normalizer=normalizer,
    )


def per_sample_influence(
    scores: Scores,
    target: Target,
    alpha: Tensor | None,
    *,
    features: Tensor | None,
    strength: float,
    eps: float = 1e-3,
    detach: bool = False,
) -> Tensor:
    """Return the weighted influence-balanced loss of each sample, 0 where ignored."""
    if features is None:
        raise ArgumentError(
            "the influence-balanced loss needs the features that the last layer sees: "
            "pass features=..., a tensor (N, D)."
        )
    log_probs = scores.log_probs
    if not isinstance(features, Tensor):
        raise ArgumentError(f"features must be a torch.Tensor, got {type(features).__name__}.")
    if log_probs.ndim != 2 or features.ndim != 2 or len(features) != len(log_probs):
        raise ArgumentError(
            f"features must be (N, D) beside logits (N, C), got {tuple(features.shape)} and "
            f"{tuple(log_probs.shape)}."
        )
    log_probs = target.entries(log_probs)
    # ||p - onehot(c)||_1 = (1 - p_c) + sum of the others = 2 (1 - p_c).
    error = -2 * torch.expm1(log_probs)
    size = upcast(features).abs().sum(1, keepdim=True)
    factor = strength / (error * size + eps)
    return target.expect((factor.detach() if detach else factor) * -log_probs, alpha)


class InfluenceBalancedLoss(KeepsPrecision):
    """``influence_balanced_loss`` as a module, called with (logits, target, features)."""

    weight: Tensor | None

    def __init__(
        self,
        *,
        weight: object = None,
        strength: float = 1000.0,
        eps: float = 1e-3,
        detach: bool = False,
        reduction: str = "mean",
        normalize: str = "batch",
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        check_reduction(reduction, normalize)
        self.register_buffer("weight", class_weight(weight), persistent=False)
        self.strength = number("strength", strength, low=0, low_open=True)
        self.eps = number("eps", eps, low=0, low_open=True)
        self.detach = detach
        self.reduction = reduction
        self.normalize = normalize
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, target: Tensor, features: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return _influence(
            logits,
            target,
            features,
            self.weight,
            {"strength": self.strength, "eps": self.eps, "detach": self.detach},
            self.reduction,
            self.normalize,
            self.ignore_index,
        )

    def extra_repr(self) -> str:
        """Describe the settings."""
        return (
            f"strength={self.strength:g}, detach={self.detach}, reduction={self.reduction!r}, "
            f"normalize={self.normalize!r}"
        )
