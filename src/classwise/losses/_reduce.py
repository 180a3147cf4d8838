"""From one loss per sample to the number that is minimised: the only place that knows means.

A weighted mean divides by the summed weights of the samples (``normalize="weights"``, what torch
does for index targets) or by their number (``"batch"``, the paper's 1/m in Algorithm 1).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from classwise._checks import (
    check_length,
    known_name,
    number,
    tensor_of_logits,
    tensor_of_target,
)
from classwise.losses._scores import Scores, Target
from classwise.terms import Terms

__all__ = ["check_reduction", "loss_of_batch", "mass", "mean_divisor", "reduce"]

REDUCTIONS = ("mean", "sum", "none")
NORMALIZERS = ("weights", "batch")


def check_reduction(reduction: str, normalize: str) -> None:
    """Raise where a name is unknown."""
    known_name("reduction", reduction, REDUCTIONS)
    known_name("normalize", normalize, NORMALIZERS)


def mass(target: Target, alpha: Tensor | None, normalize: str, like: Tensor) -> Tensor:
    """Return what a batch weighs: the summed weights of its targets, or how many there are.

    Label smoothing does not enter: the targets weigh what they weighed before it, as in torch.
    """
    if normalize == "batch":
        return target.counted(like).sum()
    weight = like.new_ones(like.shape[1]) if alpha is None else alpha.to(like)
    return target.pick_from(weight).sum()


def reduce(per_sample: Tensor, reduction: str, divisor: Tensor | None) -> Tensor:
    """Reduce a loss per sample; a mean over nothing is 0 and keeps its gradient path."""
    if reduction == "none":
        return per_sample
    total = per_sample.sum()
    if reduction == "sum" or divisor is None:
        return total
    return total / torch.where(divisor == 0, 1, divisor)


def mean_divisor(
    target: Target,
    alpha: Tensor | None,
    normalize: str,
    like: Tensor,
    normalizer: Tensor | float | None,
) -> Tensor:
    """Return what a mean divides by: the given normalizer or the batch's own mass."""
    if normalizer is None:
        return mass(target, alpha, normalize, like)
    if not isinstance(normalizer, Tensor):  # filled there: a copy would make the host wait
        return like.new_full((), number("normalizer", normalizer, low=0))
    return normalizer.to(like)


def loss_of_batch(
    per_sample: Callable[[Scores, Target], Tensor],
    logits: Tensor,
    target: Tensor,
    *,
    alpha: Tensor | None,
    terms: Terms | None = None,
    reduction: str,
    normalize: str,
    ignore_index: int,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """Check a batch, take the loss of each sample and reduce: what all losses do alike.

    Args:
        per_sample: (scores, target) -> weighted loss per sample.
        logits: as the user gave them.
        target: as the user gave it.
        alpha: class weights that the loss per sample has in it, (C,); None is 1.
        terms: what adjusts the logits; None leaves them alone.
        reduction: checked already, as the rest.
        normalize: what a mean divides by.
        ignore_index: target value that does not count.
        normalizer: divide by this instead.
    """
    logits = tensor_of_logits(logits, None if terms is None else terms.num_classes)
    target = tensor_of_target(target, logits, ignore_index)
    check_length("weight", alpha, logits.shape[1])
    scores = Scores(logits, terms)
    goal = Target(target, ignore_index, scores.logits.dtype)
    losses = per_sample(scores, goal)
    divisor = mean_divisor(goal, alpha, normalize, scores.logits, normalizer)
    return reduce(losses, reduction, divisor)
