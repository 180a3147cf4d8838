"""The VS loss of a linear head, without ever holding the (N, C) logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from classwise._checks import number, tensor_of_target, whole_number
from classwise.errors import ArgumentError
from classwise.losses._head import head_losses, logits_like
from classwise.losses._reduce import check_reduction, mean_divisor, reduce
from classwise.losses._scores import Scores, Target
from classwise.losses.vs import per_sample_vs
from classwise.terms import Terms, checked_terms

__all__ = ["checked_head", "linear_vs_loss", "weighted"]

_ROWS = 64


def linear_vs_loss(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    terms: Terms,
    *,
    reduction: str = "mean",
    normalize: str = "weights",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    normalizer: Tensor | float | None = None,
    chunk: int | None = None,
) -> Tensor:
    """Return ``vs_loss(features @ weight.T + bias, target, terms)`` in chunks.

    With class indices the chunks are of classes: beyond the gradients, memory does not grow with C,
    and the logits of a chunk are made twice, forward and backward. There is no second derivative.
    Torch's ``linear_cross_entropy`` would need the terms folded into the head: a copy of the
    weights, and one of their gradient, each larger than the logits where N < D.

    Class probabilities are (N, C) numbers themselves, and label smoothing makes such. The chunks
    are then of samples, and recomputed in the backward pass.

    Args:
        features: input of the head, (N, D); half precision is computed in float32.
        weight: (C, D).
        bias: (C,) or None.
        target: int64 (N,), or class probabilities (N, C).
        terms: the class terms.
        reduction: see ``classwise.vs_loss``, as the other arguments.
        normalize: ``"weights"`` or ``"batch"``.
        ignore_index: target value that does not count.
        label_smoothing: in [0, 1].
        normalizer: divide by this instead of the batch's own mass.
        chunk: classes at a time, or samples with probabilities and label smoothing; None is what
            makes 4 MB of logits, or 64 samples.

    >>> import torch, classwise as cw
    >>> x, w, y = torch.randn(8, 4), torch.randn(3, 4), torch.randint(3, (8,))
    >>> t = cw.terms.vs([90, 9, 1], tau=1.0, gamma=0.1)
    >>> dense = cw.vs_loss(x @ w.T, y, t)
    >>> torch.allclose(linear_vs_loss(x, w, None, y, t), dense, atol=1e-5)
    True
    """
    check_reduction(reduction, normalize)
    label_smoothing = number("label_smoothing", label_smoothing, low=0, high=1)
    chunk = None if chunk is None else whole_number("chunk", chunk, low=1)
    checked_head(features, weight, bias, terms)
    like = logits_like(features, weight)
    target = tensor_of_target(target, like, ignore_index)
    goal = Target(target, ignore_index, like.dtype)
    divisor = mean_divisor(goal, terms.alpha, normalize, like, normalizer)
    if goal.index is None or label_smoothing:
        losses = _by_samples(
            features, weight, bias, target, terms, ignore_index, label_smoothing, chunk or _ROWS
        )
    else:
        losses, _ = head_losses(features, weight, bias, goal.index, terms, chunk=chunk)
        losses = weighted(losses, goal, terms)
    return reduce(losses, reduction, divisor)


def weighted(losses: Tensor, target: Target, terms: Terms) -> Tensor:
    """Return losses of class indices times the weights of their classes, 0 where ignored."""
    if terms.weighs:
        losses = losses * terms.alpha.to(losses)[target.index]
    return target.mask(losses)


def checked_head(features: Tensor, weight: Tensor, bias: Tensor | None, terms: Terms) -> None:
    """Raise unless features, head and terms fit."""
    for name, tensor, ndim in (("features", features, 2), ("weight", weight, 2), ("bias", bias, 1)):
        if tensor is None and name == "bias":
            continue
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.ndim != ndim:
            got = (
                f"{tuple(tensor.shape)} {tensor.dtype}"
                if isinstance(tensor, Tensor)
                else type(tensor).__name__
            )
            raise ArgumentError(
                f"{name} must be a floating-point tensor of {ndim} dimension(s), got {got}."
            )
    if weight.shape[0] != checked_terms(terms).num_classes or features.shape[1] != weight.shape[1]:
        raise ArgumentError(
            f"features {tuple(features.shape)}, weight {tuple(weight.shape)} and terms of "
            f"{terms.num_classes} classes do not fit; expected (N, D), (C, D) and C."
        )
    if bias is not None and bias.shape[0] != terms.num_classes:
        raise ArgumentError(f"bias has {bias.shape[0]} entries for {terms.num_classes} classes.")


def _by_samples(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    terms: Terms,
    ignore_index: int,
    label_smoothing: float,
    rows: int,
) -> Tensor:
    # Imported here: on older versions of torch it loads sympy, a third of a second.
    from torch.utils.checkpoint import checkpoint  # noqa: PLC0415

    def one(x: Tensor, w: Tensor, b: Tensor | None, y: Tensor) -> Tensor:
        # Autocast would turn the matrix product into half precision.
        with torch.autocast(x.device.type, enabled=False):
            scores = Scores(F.linear(x, w, b), terms)
            goal = Target(y, ignore_index, x.dtype).smoothed(label_smoothing, scores.logits)
            return per_sample_vs(scores, goal, terms)

    widest = logits_like(features, weight).dtype
    features, weight = features.to(widest), weight.to(widest)
    bias = None if bias is None else bias.to(widest)
    parts = [
        checkpoint(one, x, weight, bias, y, use_reentrant=False, preserve_rng_state=False)
        for x, y in zip(features.split(rows), target.split(rows), strict=True)
    ]
    return torch.cat(parts) if parts else features.new_zeros(0)
