"""The VS loss of a linear head, without ever holding the (N, C) logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from classwise._checks import number, tensor_of_target, whole_number
from classwise.errors import ArgumentError
from classwise.losses._reduce import check_reduction, mean_divisor, reduce
from classwise.losses._scores import Scores, Target, across_classes, upcast
from classwise.losses.vs import folded_head, per_sample_vs
from classwise.terms import Terms, checked_terms

__all__ = ["linear_vs_loss"]

# New in torch 2.13. Without it, the chunks below are used for everything.
_TORCH_HAS_LINEAR_CROSS_ENTROPY = hasattr(F, "linear_cross_entropy")
_OWN_CHUNK = 64


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
    """Return ``vs_loss(features @ weight.T + bias, target, terms)`` in chunks of the batch.

    The terms are folded into the head (W * beta, b * beta + delta) and the rest is torch's
    ``linear_cross_entropy`` (torch >= 2.13). Margins touch the logit of the true class only and
    cannot be folded: with margins or label smoothing, and on an older torch, the chunks are made
    here and recomputed in the backward pass. Torch's chunks keep gradients instead of a graph, so
    there is one backward pass and no second derivative.

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
        chunk: rows at a time; None lets torch choose (64 rows where the chunks are made here).

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
    features, weight, bias = _checked_head(features, weight, bias, terms)
    # Only the shape of the logits is needed, never their values.
    shape = features.new_empty(()).expand(features.shape[0], weight.shape[0])
    target = tensor_of_target(target, shape, ignore_index)
    goal = Target(target, ignore_index, features.dtype)
    divisor = mean_divisor(goal, terms.alpha, normalize, features, normalizer)
    # What torch's chunks do not know.
    beyond_torch = terms.has_margin or label_smoothing or target.requires_grad
    if beyond_torch or not _TORCH_HAS_LINEAR_CROSS_ENTROPY:
        rows = _OWN_CHUNK if chunk is None else chunk
        losses = _own_chunks(
            features, weight, bias, target, terms, ignore_index, label_smoothing, rows
        )
    else:
        losses = _torch_chunks(
            features, weight, bias, target, terms, ignore_index, chunk, summed=reduction != "none"
        )
    return reduce(losses, reduction, divisor)


def _torch_chunks(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    terms: Terms,
    ignore_index: int,
    chunk: int | None,
    *,
    summed: bool,
) -> Tensor:
    """Return the weighted losses of all samples, or their sum."""
    weight, bias = folded_head(weight, bias, terms)
    soft = target.is_floating_point()
    options = torch.nn.LinearCrossEntropyOptions
    return F.linear_cross_entropy(
        features,
        weight,
        target.to(features.dtype) if soft else target,
        linear_bias=bias,
        weight=across_classes(terms.alpha, features) if terms.weighs else None,
        reduction="sum" if summed else "none",
        ignore_index=None if soft else ignore_index,  # torch refuses one beside probabilities
        options=options() if chunk is None else options(batch_chunk_size=chunk),
    )


def _checked_head(
    features: Tensor, weight: Tensor, bias: Tensor | None, terms: Terms
) -> tuple[Tensor, Tensor, Tensor | None]:
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
    # One dtype for all, float32 or wider: a chunk's logits must not be rounded to half.
    widest = torch.promote_types(upcast(features).dtype, upcast(weight).dtype)
    return features.to(widest), weight.to(widest), None if bias is None else bias.to(widest)


def _own_chunks(
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

    parts = [
        checkpoint(one, x, weight, bias, y, use_reentrant=False, preserve_rng_state=False)
        for x, y in zip(features.split(rows), target.split(rows), strict=True)
    ]
    return torch.cat(parts) if parts else features.new_zeros(0)
