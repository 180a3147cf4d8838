"""Reliability bins per class: mergeable sums in O(C * bins) memory.

Sample i falls into bin b of class c by a confidence in ((b - 1) / M, b / M] (paper Sec. 3.2). Which
class and which confidence is the grouping:

- ``"target"``: c is the true class, the confidence the largest softmax score (the paper's S_y);
  accuracy per class is then recall at a confidence.
- ``"prediction"``: c is the predicted class; accuracy is precision, as in the published code.
- ``"score"``: every class c sees every sample (but those in which it is masked by a logit of
  -inf), at the confidence p_c and with the accuracy 1[y = c], which is what Assumption 2
  (asm:local_linear) says of p_c.

The state is sums only, so batches, epochs and processes merge by addition, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from torch import Tensor

from classwise._checks import known_name, tensor_of_logits, tensor_of_target, whole_number
from classwise.errors import ArgumentError
from classwise.losses._scores import largest, upcast
from classwise.stats._where import sum_dtype

__all__ = [
    "GROUPINGS",
    "BinState",
    "BinTable",
    "add_checked",
    "bin_table",
    "empty_bins",
    "update_bins",
    "update_bins_with_predictions",
]

GROUPINGS = ("target", "prediction", "score")


@dataclass(frozen=True, eq=False)
class BinState:
    """Sums over the samples of each (class, bin), and two counters.

    Args:
        count: samples, int64 (C, B).
        correct: right ones (for soft targets: summed probability of the predicted class), (C, B).
        confidence: summed confidence, (C, B).
        logit: summed logit of the class that the confidence belongs to, (C, B).
        seen: samples of each true class, int64 (C,).
        skipped: samples left out because their logits were not finite, int64 ().
    """

    count: Tensor
    correct: Tensor
    confidence: Tensor
    logit: Tensor
    seen: Tensor
    skipped: Tensor

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of each field."""
        for field in fields(self):
            yield field.name, getattr(self, field.name)

    def map(self, fn: Callable[[Tensor], Tensor]) -> BinState:
        """Return the state with ``fn`` applied to each tensor."""
        return BinState(**{name: fn(tensor) for name, tensor in self.tensors()})

    def zero_(self) -> None:
        """Forget all samples, in place."""
        for _, tensor in self.tensors():
            tensor.zero_()

    def __add__(self, other: BinState) -> BinState:
        if self.count.shape != other.count.shape:
            raise ArgumentError(
                f"bins of shape {tuple(self.count.shape)} and {tuple(other.count.shape)} "
                "cannot be merged."
            )
        return BinState(**{name: value + getattr(other, name) for name, value in self.tensors()})


@dataclass(eq=False)  # not frozen: torchmetrics refuses to return a frozen one
class BinTable:
    """What the bins say: means per (class, bin), 0 where the bin is empty.

    Args:
        count: samples, int64 (C, B).
        accuracy: share of right ones, (C, B).
        confidence: mean confidence, (C, B).
        logit: mean logit, (C, B).
        seen: samples of each true class, int64 (C,).
    """

    count: Tensor
    accuracy: Tensor
    confidence: Tensor
    logit: Tensor
    seen: Tensor

    @property
    def num_classes(self) -> int:
        """The number of classes C."""
        return self.count.shape[0]

    @property
    def num_bins(self) -> int:
        """The number of bins B."""
        return self.count.shape[1]

    def merged(self, rows: Tensor, height: int | None = None) -> BinTable:
        """Return a table in which classes are taken together.

        Args:
            rows: the row of the result that each class goes to, int64 (C,).
            height: rows of the result; None is as many as ``rows`` names.
        """
        height = int(rows.max()) + 1 if height is None else height
        count = self.count.new_zeros(height, self.num_bins).index_add_(0, rows, self.count)
        means = {
            name: self._merged_mean(getattr(self, name), rows, count)
            for name in ("accuracy", "confidence", "logit")
        }
        seen = self.seen.new_zeros(height).index_add_(0, rows, self.seen)
        return BinTable(count=count, seen=seen, **means)

    def _merged_mean(self, mean: Tensor, rows: Tensor, count: Tensor) -> Tensor:
        total = mean.new_zeros(count.shape).index_add_(0, rows, mean * self.count)
        return total / count.clamp(min=1)


def empty_bins(
    num_classes: int, num_bins: int = 20, device: torch.device | str | None = None
) -> BinState:
    """Return the state before any sample."""
    num_classes = whole_number("num_classes", num_classes, low=2)
    num_bins = whole_number("num_bins", num_bins, low=2)
    shape, wide = (num_classes, num_bins), sum_dtype(device)
    return BinState(
        count=torch.zeros(shape, dtype=torch.int64, device=device),
        correct=torch.zeros(shape, dtype=wide, device=device),
        confidence=torch.zeros(shape, dtype=wide, device=device),
        logit=torch.zeros(shape, dtype=wide, device=device),
        seen=torch.zeros(num_classes, dtype=torch.int64, device=device),
        skipped=torch.zeros((), dtype=torch.int64, device=device),
    )


@torch.no_grad()
def update_bins(
    state: BinState,
    logits: Tensor,
    target: Tensor,
    *,
    group_by: str = "target",
    ignore_index: int = -100,
    log_probs: Tensor | None = None,
) -> None:
    """Add a batch to the state, in place and without making the host wait for the device.

    Args:
        state: changed.
        logits: (N, C) or (N, C, d1, ...), any floating dtype.
        target: int64 indices, or class probabilities (then accuracy is the probability of the
            class in question, and the true class the likeliest one).
        group_by: ``"target"``, ``"prediction"`` or ``"score"``.
        ignore_index: target value that does not count.
        log_probs: log-softmax of the logits where the caller has it already.
    """
    known_name("group_by", group_by, GROUPINGS)
    logits = upcast(tensor_of_logits(logits, state.count.shape[0]))
    target = tensor_of_target(target, logits, ignore_index)
    if log_probs is None:
        log_probs = F.log_softmax(logits, dim=1)
    add_checked(state, logits, target, log_probs, group_by=group_by, ignore_index=ignore_index)


@torch.no_grad()
def add_checked(
    state: BinState,
    logits: Tensor,
    target: Tensor,
    log_probs: Tensor,
    *,
    group_by: str,
    ignore_index: int,
) -> None:
    """Add a batch that somebody has checked; as ``update_bins``, in float32 or wider."""
    soft = target.to(logits.dtype) if target.is_floating_point() else None
    label = target.argmax(1) if soft is not None else target
    best, predicted = largest(log_probs)
    label, valid = _counted(state, label, best, None if soft is not None else ignore_index)
    if group_by == "score":
        _add_scores(state, logits, log_probs, label, soft, valid)
    else:
        right = (predicted == label) if soft is None else _at(soft, predicted)
        logit = _at(logits, predicted)
        _add_predictions(state, group_by, label, valid, predicted, right, best.exp(), logit)


@torch.no_grad()
def update_bins_with_predictions(
    state: BinState,
    target: Tensor,
    *,
    log_prob: Tensor,
    predicted: Tensor,
    logit: Tensor,
    group_by: str = "target",
    ignore_index: int = -100,
) -> None:
    """Add a batch whose logits nobody holds, by what was kept of them; (N,) each.

    Args:
        state: changed.
        target: int64 indices.
        log_prob: log-probability of the predicted class.
        predicted: the class with the largest logit.
        logit: of the predicted class.
        group_by: ``"target"`` or ``"prediction"``; ``"score"`` needs all logits.
        ignore_index: target value that does not count.
    """
    if known_name("group_by", group_by, GROUPINGS) == "score":
        raise ArgumentError(
            "group_by='score' needs all logits of a sample; legal without them are "
            "'target' and 'prediction'."
        )
    label, valid = _counted(state, target, log_prob, ignore_index)
    right = predicted == label
    _add_predictions(state, group_by, label, valid, predicted, right, log_prob.exp(), logit)


def _counted(
    state: BinState, label: Tensor, best: Tensor, ignore_index: int | None
) -> tuple[Tensor, Tensor]:
    """Count the samples of each class; return their classes, and which have a place in the bins."""
    finite = torch.isfinite(best)  # a NaN or +inf anywhere in a row makes its log-softmax NaN
    wanted = torch.ones_like(finite) if ignore_index is None else label != ignore_index
    valid = wanted & finite
    label = torch.where(valid, label, 0)
    state.skipped.add_((wanted & ~finite).sum())
    state.seen.index_add_(0, label.flatten(), valid.flatten().long())
    return label, valid


def _add_predictions(
    state: BinState,
    group_by: str,
    label: Tensor,
    valid: Tensor,
    predicted: Tensor,
    right: Tensor,
    confidence: Tensor,
    logit: Tensor,
) -> None:
    group = label if group_by == "target" else predicted
    bins = _bin_of(confidence, state.count.shape[1])
    _scatter(state, group, bins, valid, right, confidence, logit)


def _add_scores(
    state: BinState,
    logits: Tensor,
    log_probs: Tensor,
    label: Tensor,
    soft: Tensor | None,
    valid: Tensor,
) -> None:
    """Class-wise bins without N * C scatters.

    At most B - 1 scores of a sample exceed 1 / B; those are scattered. All others lie in the first
    bin, whose sums are the column sums of what is left.
    """
    classes, bins = state.count.shape
    # One more than B - 1: rounding can push B equal scores over the edge together.
    top, index = log_probs.topk(min(bins, classes), dim=1)
    score, value = top.exp(), logits.gather(1, index)
    which = _bin_of(score, bins)
    keep = valid.unsqueeze(1) & (which > 0)
    # A class that is masked in a sample (logit -inf) does not see that sample.
    open_ = valid.unsqueeze(1) & (logits > -torch.inf)
    truth = soft
    if truth is None:
        truth = torch.zeros_like(logits).scatter(1, label.unsqueeze(1), 1.0)
    right = truth.gather(1, index)
    _scatter(state, index, which, keep, right, score, value)
    kept = state.seen.new_zeros(classes).index_add_(0, index.flatten(), keep.flatten().long())
    state.count[:, 0] += _column_sum(open_, torch.int64) - kept
    for tensor, all_values, top_values in (
        (state.correct, truth, right),
        (state.confidence, log_probs.exp(), score),
        (state.logit, logits, value),
    ):
        rest = all_values.scatter(1, index, torch.where(keep, 0, top_values))
        tensor[:, 0] += _column_sum(torch.where(open_, rest, 0), tensor.dtype)


def _column_sum(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.sum([d for d in range(values.ndim) if d != 1], dtype=dtype)


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index.unsqueeze(1)).squeeze(1)


def _bin_of(confidence: Tensor, bins: int) -> Tensor:
    # Edges compared, not multiplied: 0.55 * 20 rounds up to the next bin. Right-closed, so that
    # 1 is in the last bin; a softmax can exceed 1 by a rounding.
    edges = torch.arange(1, bins, device=confidence.device, dtype=confidence.dtype) / bins
    return torch.bucketize(confidence.contiguous(), edges)


def _scatter(
    state: BinState,
    group: Tensor,
    bins: Tensor,
    keep: Tensor,
    right: Tensor,
    confidence: Tensor,
    logit: Tensor,
) -> None:
    flat = (group * state.count.shape[1] + bins).flatten()
    flat = torch.where(keep.flatten(), flat, 0)
    state.count.view(-1).index_add_(0, flat, keep.flatten().long())
    for tensor, values in (
        (state.correct, right),
        (state.confidence, confidence),
        (state.logit, logit),
    ):
        kept = torch.where(keep, values, 0).flatten().to(tensor.dtype)
        tensor.view(-1).index_add_(0, flat, kept)


def bin_table(state: BinState) -> BinTable:
    """Return means instead of sums."""
    filled = state.count.clamp(min=1)
    return BinTable(
        count=state.count.clone(),
        accuracy=state.correct / filled,
        confidence=state.confidence / filled,
        logit=state.logit / filled,
        seen=state.seen.clone(),
    )
