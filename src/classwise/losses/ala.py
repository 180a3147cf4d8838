"""Adaptive logit adjustment: a margin that grows with the difficulty of the sample."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from classwise._checks import ClassCounts, class_counts_tensor, number
from classwise.losses._module import TermsModule
from classwise.losses._reduce import check_reduction, loss_of_batch
from classwise.losses._scores import Scores, Target, across_classes
from classwise.losses.vs import (
    margin_cross_entropy,
    margin_loss_of_every_class,
)
from classwise.terms import Terms, ce

__all__ = ["ALALoss", "ala_loss", "ala_terms", "per_sample_ala"]


def ala_terms(
    class_counts: ClassCounts, *, scale: float = 30.0, allow_empty: bool = False
) -> Terms:
    """Return beta = scale and margin_y = scale / log(N_y / N_C + 1), ALA's quantity factor."""
    scale = number("scale", scale, low=0, low_open=True)
    counts = class_counts_tensor(class_counts, allow_empty=allow_empty).clamp(min=1).double()
    neutral = ce(class_counts, allow_empty=allow_empty)
    return neutral.replace(
        beta=torch.full_like(counts, scale), margin=scale / torch.log(counts / counts.min() + 1)
    )


def ala_loss(
    logits: Tensor,
    target: Tensor,
    class_counts: ClassCounts,
    *,
    scale: float = 30.0,
    weight: object = None,
    reduction: str = "mean",
    normalize: str = "weights",
    ignore_index: int = -100,
    normalizer: Tensor | float | None = None,
    allow_empty: bool = False,
) -> Tensor:
    """Return the adaptive logit adjustment loss (Zhao et al. 2022), for cosine logits.

        L(z, y) = w_y * CE(scale * (z - D * Q_y * onehot(y)), y)
        D = (1 - z_y) / 2 (difficulty, no gradient),      Q_y = 1 / log(N_y / N_C + 1)

    N_C is the smallest count. The paper at hand (Sec. 4, In3) prints N_1, which gives the tail a
    margin of -100 at CIFAR-100-LT; no official code was published, and one port scales Q by log 2.
    Under ``torch.compile`` use the module, which makes its terms once.

    Args:
        logits: cosines in [-1, 1], (N, C) or (N, C, d1, ...), not yet scaled.
        target: int64 (N, d1, ...) or class probabilities of the logits' shape.
        class_counts: training counts, (C,).
        scale: > 0, the inverse temperature of the cosine head.
        weight: class weights, (C,).
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        normalize: a mean divides by the summed ``"weights"`` of the targets or by their number
            (``"batch"``, as the ports do).
        ignore_index: target value that does not count.
        normalizer: divide by this instead of the batch's own mass.
        allow_empty: treat a class without samples as a class of one.

    >>> import torch
    >>> ala_loss(torch.tensor([[0.5, 0.4]]), torch.tensor([0]), [50, 5]).round(decimals=4)
    tensor(0.7591)
    """
    terms = _weighted(ala_terms(class_counts, scale=scale, allow_empty=allow_empty), weight)
    return _ala(logits, target, terms, reduction, normalize, ignore_index, normalizer)


def _weighted(terms: Terms, weight: object) -> Terms:
    return terms if weight is None else terms.replace(alpha=weight)


def _ala(
    logits: Tensor,
    target: Tensor,
    terms: Terms,
    reduction: str,
    normalize: str,
    ignore_index: int,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    check_reduction(reduction, normalize)
    return loss_of_batch(
        partial(per_sample_ala, terms=terms),
        logits,
        target,
        alpha=terms.alpha,
        terms=terms,
        reduction=reduction,
        normalize=normalize,
        ignore_index=ignore_index,
        normalizer=normalizer,
    )


def per_sample_ala(scores: Scores, target: Target, terms: Terms) -> Tensor:
    """Return the weighted ALA loss of each sample, 0 where the target is ignored."""
    difficulty = (1 - scores.logits.detach()) / 2
    margin = difficulty * across_classes(terms.margin, difficulty)
    if target.index is not None:
        of_target = margin.gather(1, target.index.unsqueeze(1)).squeeze(1)
        hard = margin_cross_entropy(scores.adjusted, target.index, of_target)
        return target.mask(hard) * target.pick_from(terms.alpha.to(hard))
    per_class = margin_loss_of_every_class(scores, margin)
    return target.pick(across_classes(terms.alpha, per_class) * per_class)


class ALALoss(TermsModule):
    """``ala_loss`` as a module: its quantity factors are held as class terms."""

    def __init__(
        self,
        class_counts: ClassCounts,
        *,
        scale: float = 30.0,
        weight: object = None,
        reduction: str = "mean",
        normalize: str = "weights",
        ignore_index: int = -100,
        allow_empty: bool = False,
    ) -> None:
        check_reduction(reduction, normalize)
        super().__init__(
            _weighted(ala_terms(class_counts, scale=scale, allow_empty=allow_empty), weight)
        )
        self.reduction = reduction
        self.normalize = normalize
        self.ignore_index = ignore_index

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return _ala(logits, target, self.terms, self.reduction, self.normalize, self.ignore_index)

    def extra_repr(self) -> str:
        """Describe the settings."""
        return f"{self.terms}, reduction={self.reduction!r}, normalize={self.normalize!r}"
