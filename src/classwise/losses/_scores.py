"""What every loss starts from: logits in a safe dtype, adjusted; targets asked in one way."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from classwise.terms import Terms

__all__ = ["Scores", "Target", "across_classes", "largest", "upcast"]

_MANY, _BLOCK = 2048, 128
"""Classes from which ``largest`` goes by blocks, and how many are in one."""


def upcast(values: Tensor) -> Tensor:
    """Return half-precision values as float32; wider ones unchanged."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def across_classes(vector: Tensor, like: Tensor) -> Tensor:
    """Return a class vector (C,) shaped to broadcast against (N, C, d1, ...) ``like``."""
    vector = vector.to(dtype=like.dtype).to(device=like.device)
    return vector.view(-1, *[1] * (like.ndim - 2)) if like.ndim > 2 else vector


def largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``values.max(1)``: the largest value over classes, and the first class that has it."""
    classes = values.shape[1]
    if classes < _MANY or values.ndim > 2 or not values.is_cpu:
        return values.max(1)
    # torch's max with indices is not vectorised on the CPU, its amax is: find the first block that
    # has the largest value, then look into that block only.
    blocks = classes // _BLOCK
    tops = values[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK)).amax(2)
    if classes % _BLOCK:
        tops = torch.cat([tops, values[:, blocks * _BLOCK :].amax(1, keepdim=True)], 1)
    # The last window reaches back into blocks without the largest value.
    start = (tops.argmax(1) * _BLOCK).clamp(max=classes - _BLOCK)
    best, inside = values.unfold(1, _BLOCK, 1)[torch.arange(len(values)), start].max(1)
    return best, start + inside


class Scores:
    """Logits of a batch: as the model gave them, as the terms adjust them, and their log-softmax.

    The log-probabilities are made when first asked for and kept, so that a loss and the statistics
    streamed beside it share one pass over (N, C).
    """

    def __init__(self, logits: Tensor, terms: Terms | None = None) -> None:
        self.logits = upcast(logits)
        adjusted = self.logits
        if terms is not None and terms.scales:
            adjusted = adjusted * across_classes(terms.beta, adjusted)
        if terms is not None and terms.shifts:
            adjusted = adjusted + across_classes(terms.delta, adjusted)
        self.adjusted = adjusted
        self._log_probs: Tensor | None = None

    @property
    def log_probs(self) -> Tensor:
        """The log-softmax of the adjusted logits, without margins."""
        if self._log_probs is None:
            self._log_probs = F.log_softmax(self.adjusted, dim=1)
        return self._log_probs


class Target:
    """Class indices or class probabilities q, asked in one way.

    ``index`` holds legal indices (0 where ignored) for an index target and is None for
    probabilities; ``probabilities`` the other way round. ``valid`` is None where all samples count.
    """

    def __init__(self, target: Tensor, ignore_index: int, dtype: torch.dtype) -> None:
        self.index: Tensor | None = None
        self.probabilities: Tensor | None = None
        self.valid: Tensor | None = None
        if target.is_floating_point():
            self.probabilities = target.to(dtype)
        else:
            self.valid = target != ignore_index
            self.index = torch.where(self.valid, target, 0)

    def smoothed(self, amount: float, like: Tensor) -> Target:
        """Return (1 - s) * q + s / C as a target of probabilities; an ignored one stays ignored."""
        if not amount:
            return self
        q = self.probabilities
        if self.index is not None:
            q = torch.zeros_like(like).scatter(1, self.index.unsqueeze(1), 1.0)
        assert q is not None
        smooth = object.__new__(Target)
        smooth.index, smooth.valid = None, self.valid
        smooth.probabilities = (1 - amount) * q + amount / like.shape[1]
        return smooth

    def pick(self, per_class: Tensor) -> Tensor:
        """Return sum_c q_c * per_class_c over the class dimension of (N, C, ...); ignored: 0."""
        return self.expect(self.entries(per_class), None)

    def entries(self, per_class: Tensor) -> Tensor:
        """Return what a loss needs of (N, C, ...): the target's entry (N, 1, ...), or all of them.

        A loss made of this alone costs nothing for the other classes, and one that is masked with a
        logit of -inf does not turn its gradient into NaN.
        """
        return per_class if self.index is None else per_class.gather(1, self.index.unsqueeze(1))

    def expect(self, entries: Tensor, alpha: Tensor | None) -> Tensor:
        """Return sum_c q_c * alpha_c * entries_c of what ``entries`` returned; ignored: 0."""
        if self.index is not None:
            own = entries.squeeze(1)
            return self.mask(own if alpha is None else own * alpha.to(own)[self.index])
        assert self.probabilities is not None
        if alpha is not None:
            entries = entries * across_classes(alpha, entries)
        return self.mask((self.probabilities * entries).sum(1))

    def pick_from(self, vector: Tensor) -> Tensor:
        """Return sum_c q_c * vector_c for a class vector (C,); ignored: 0."""
        if self.index is not None:
            return self.mask(vector[self.index])
        assert self.probabilities is not None
        return self.pick(across_classes(vector, self.probabilities))

    def mask(self, per_sample: Tensor) -> Tensor:
        """Return per-sample values with 0 where the target is ignored."""
        return per_sample if self.valid is None else torch.where(self.valid, per_sample, 0)

    def counted(self, like: Tensor) -> Tensor:
        """Return 1 for each sample that counts and 0 for each that is ignored, (N, d1, ...)."""
        return torch.ones_like(like[:, 0]) if self.valid is None else self.valid.to(like.dtype)
