"""From one loss per sample to the number that is minimised: the only place that knows means.

A weighted mean divides by the summed weights of the samples (``normalize="weights"``, what torch
does for index targets) or by their number (``"batch"``, the paper's 1/m in Algorithm 1).
"""

from __future__ import annotations

import torch
from torch import Tensor

from classwise._checks import known_name
from classwise.losses._scores import Target

__all__ = ["check_reduction", "mass", "reduce"]

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
