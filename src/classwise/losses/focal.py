"""The focal loss for softmax classifiers."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from classwise._checks import class_weight, number
from classwise.losses._module import KeepsPrecision
from classwise.losses._reduce import check_reduction, loss_of_batch
from classwise.losses._scores import Scores, Target

__all__ = ["FocalLoss", "focal_loss", "per_sample_focal"]


def focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 2.0,
    weight: object = None,
    reduction: str = "mean",
    normalize: str = "weights",
    ignore_index: int = -100,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """Return the focal loss (Lin et al. 2017) of a softmax classifier.

        L(z, y) = w_y * (1 - p_y)^gamma * -log p_y,        p = softmax(z)

    p_y is the probability itself. The code that CIFAR-LT numbers come from (LDAM-DRW and all that
    grew from it) puts the class weight into the exponent, p_y^w_y, averages plainly, and so does
    not become weighted cross-entropy at gamma 0; this does. It also keeps gradients finite at
    p_y = 1 for gamma < 1.

    Args:
        logits: (N, C) or (N, C, d1, ...); computed in float32 or wider.
        target: int64 (N, d1, ...), or class probabilities (the loss is then the expectation).
        gamma: focusing strength, >= 0.
        weight: class weights, (C,).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        normalize: a mean divides by the summed ``"weights"`` of the targets, as weighted
            cross-entropy does, or by their number (``"batch"``, as published).
        ignore_index: target value that does not count.
        normalizer: divide by this instead of the batch's own mass.

    >>> import torch
    >>> focal_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), gamma=2.0).round(decimals=4)
    tensor(0.1733)
    """
    check_reduction(reduction, normalize)
    gamma = number("gamma", gamma, low=0)
    alpha = class_weight(weight)
    return _focal(logits, target, alpha, gamma, reduction, normalize, ignore_index, normalizer)


def _focal(
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    gamma: float,
    reduction: str,
    normalize: str,
    ignore_index: int,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    return loss_of_batch(
        partial(per_sample_focal, alpha=weight, gamma=gamma),
        logits,
        target,
        alpha=weight,
        reduction=reduction,
        normalize=normalize,
        ignore_index=ignore_index,
        normalizer=normalizer,
    )


def per_sample_focal(
    scores: Scores, target: Target, alpha: Tensor | None, *, gamma: float
) -> Tensor:
    """Return the weighted focal loss of each sample, 0 where the target is ignored."""
    # -expm1(log p) is 1 - p with the digits that log p has; the floor keeps the slope of x^gamma
    # finite at 0, where the loss itself is 0.
    log_probs = target.entries(scores.log_probs)
    wrong = -torch.expm1(log_probs)
    modulator = wrong.clamp_min(torch.finfo(wrong.dtype).tiny) ** gamma if gamma else 1.0
    return target.expect(modulator * -log_probs, alpha)


class FocalLoss(KeepsPrecision):
    """``focal_loss`` as a module; ``weight`` is a buffer outside the ``state_dict``."""

    weight: Tensor | None

    def __init__(
        self,
        *,
        gamma: float = 2.0,
        weight: object = None,
        reduction: str = "mean",
        normalize: str = "weights",
        ignore_index: int = -100,
    ) -> None:
        super().__init__()
        check_reduction(reduction, normalize)
        self.gamma = number("gamma", gamma, low=0)
        self.register_buffer("weight", class_weight(weight), persistent=False)
        self.reduction = reduction
        self.normalize = normalize
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return _focal(
            logits,
            target,
            self.weight,
            self.gamma,
            self.reduction,
            self.normalize,
            self.ignore_index,
        )

    def extra_repr(self) -> str:
        """Describe the settings."""
        return f"gamma={self.gamma:g}, reduction={self.reduction!r}, normalize={self.normalize!r}"
