"""The VS loss of a linear head, some classes at a time: memory O(N * chunk) whatever C is.

The chunks are of classes and not of samples, so that each row of the weights is read once in a pass
and its gradient is written once, where it belongs; nothing as large as the weights is made but
their gradient. The backward pass makes the logits of a chunk again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from classwise.losses._scores import largest, upcast
from classwise.terms import Terms

__all__ = ["HeadView", "head_losses", "logits_like"]

_ELEMENTS = 2**20
"""Logits of one chunk by default: 4 MB in float32."""


def logits_like(features: Tensor, weight: Tensor) -> Tensor:
    """Return a stand-in for the logits, (N, C): their shape and the dtype that they are made in.

    That is one for all parts, float32 or wider: logits must not be rounded to half.
    """
    widest = torch.promote_types(upcast(features).dtype, upcast(weight).dtype)
    return features.new_empty((), dtype=widest).expand(len(features), len(weight))


class HeadView(NamedTuple):
    """What statistics want of logits that nobody holds; (N,) each.

    Args:
        log_prob: of the predicted class, which is the logarithm of the confidence.
        predicted: the class with the largest logit, the first of several.
        logit: of the predicted class.
    """

    log_prob: Tensor
    predicted: Tensor
    logit: Tensor


def head_losses(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    index: Tensor,
    terms: Terms,
    *,
    chunk: int | None = None,
    view: str | None = None,
    scale: float = 1.0,
) -> tuple[Tensor, HeadView | None]:
    """Return CE(beta * z + delta - margin_y * onehot(y), y) of each sample, unweighted.

    Args:
        features: input of the head, (N, D).
        weight: (C, D).
        bias: (C,) or None.
        index: legal class indices, int64 (N,).
        terms: the class terms; alpha is the caller's.
        chunk: classes at a time; None is as many as make 4 MB of logits.
        view: None, or which logits to look at as well: ``"raw"`` or ``"adjusted"``.
        scale: of the raw logits that ``view`` sees.
    """
    if chunk is None:
        chunk = max(256, _ELEMENTS // max(1, len(features)))
    how = _How(terms, chunk, view, scale)
    # Autocast would turn the matrix products into half precision.
    with torch.autocast(features.device.type, enabled=False):
        losses, *seen = _HeadLoss.apply(features, weight, bias, index, how)
    return losses, HeadView(*seen) if view else None


class _How(NamedTuple):
    terms: Terms
    chunk: int
    view: str | None
    scale: float


class _Head:
    """A head and terms, asked for the logits of some classes."""

    def __init__(
        self, features: Tensor, weight: Tensor, bias: Tensor | None, index: Tensor, how: _How
    ) -> None:
        self.dtype = logits_like(features, weight).dtype
        self.features, self.weight, self.bias = features.to(self.dtype), weight, bias
        self.index, self.terms, self.chunk = index.unsqueeze(1), how.terms, how.chunk

    def parts(self) -> Iterator[slice]:
        classes = len(self.weight)
        for start in range(0, classes, self.chunk):
            yield slice(start, min(start + self.chunk, classes))

    def rows(self, part: slice) -> Tensor:
        return self.weight[part].to(self.dtype)

    def raw(self, part: slice) -> Tensor:
        bias = None if self.bias is None else self.bias[part].to(self.dtype)
        return F.linear(self.features, self.rows(part), bias)

    def adjust_(self, logits: Tensor, part: slice) -> Tensor:
        if self.terms.scales:
            logits.mul_(self.terms.beta[part].to(logits))
        if self.terms.shifts:
            logits.add_(self.terms.delta[part].to(logits))
        return logits

    def inside(self, part: slice) -> tuple[Tensor, Tensor]:
        """Return each sample's own class within a chunk, (N, 1), and whether it is there."""
        there = (self.index >= part.start) & (self.index < part.stop)
        return torch.where(there, self.index - part.start, 0), there

    def take_margin_(self, logits: Tensor, part: slice) -> Tensor:
        if self.terms.has_margin:
            own, there = self.inside(part)
            margin = self.terms.margin.to(logits)[self.index]
            logits.scatter_add_(1, own, torch.where(there, -margin, 0))
        return logits


class _Tracker:
    """The largest logit of each sample so far, its class, and the logarithm of the normaliser."""

    def __init__(self, features: Tensor) -> None:
        self.best = features.new_full((len(features),), -torch.inf)
        self.norm = self.best.clone()
        self.predicted = torch.zeros_like(self.best, dtype=torch.int64)

    def add(self, logits: Tensor, start: int) -> None:
        top, where = largest(logits)
        better = top > self.best
        self.predicted = torch.where(better, where + start, self.predicted)
        self.best = torch.maximum(self.best, top)
        self.norm = torch.logaddexp(self.norm, logits.logsumexp(1))


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None, index: Tensor, how: _How
    ) -> tuple[Tensor, ...]:
        head = _Head(features, weight, bias, index, how)
        norm = head.features.new_full((len(features),), -torch.inf)
        target = torch.zeros_like(norm)
        seen = _Tracker(head.features) if how.view else None
        for part in head.parts():
            logits = head.raw(part)
            if seen is not None and how.view == "raw":
                seen.add(logits if how.scale == 1 else logits * how.scale, part.start)
            head.adjust_(logits, part)
            if seen is not None and how.view == "adjusted":
                seen.add(logits, part.start)
            head.take_margin_(logits, part)
            own, there = head.inside(part)
            target += torch.where(there, logits.gather(1, own), 0).squeeze(1)
            norm = torch.logaddexp(norm, logits.logsumexp(1))
        ctx.save_for_backward(features, weight, bias, index, norm)
        ctx.how = how
        if seen is None:
            return (norm - target,)
        ctx.mark_non_differentiable(confidence := seen.best - seen.norm, seen.predicted, seen.best)
        return norm - target, confidence, seen.predicted, seen.best

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # of the decorator's type
        ctx: Any, grad: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, ...]:
        features, weight, bias, index, norm = ctx.saved_tensors
        with torch.autocast(features.device.type, enabled=False):
            head = _Head(features, weight, bias, index, ctx.how)
            want_x, want_w, want_b = ctx.needs_input_grad[:3]
            of_x = torch.zeros_like(head.features) if want_x else None
            of_w = torch.empty_like(weight) if want_w else None
            of_b = torch.empty_like(bias) if want_b else None
            for part in head.parts():
                logits = head.take_margin_(head.adjust_(head.raw(part), part), part)
                slope = logits.sub_(norm[:, None]).exp_()  # the softmax, in place
                own, there = head.inside(part)
                slope.scatter_add_(1, own, torch.where(there, -1.0, 0.0).to(slope))
                slope.mul_(grad[:, None])
                if head.terms.scales:
                    slope.mul_(head.terms.beta[part].to(slope))
                if of_x is not None:
                    of_x.addmm_(slope, head.rows(part))
                if of_w is not None and of_w.dtype == slope.dtype:
                    torch.mm(slope.T, head.features, out=of_w[part])
                elif of_w is not None:
                    of_w[part] = slope.T @ head.features
                if of_b is not None:
                    of_b[part] = slope.sum(0)
        return None if of_x is None else of_x.to(features.dtype), of_w, of_b, None, None
