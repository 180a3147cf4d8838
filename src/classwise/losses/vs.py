"""The VS family: one function that evaluates every loss that class terms can express."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classwise._checks import (
    ClassCounts,
    class_vector,
    log_prior,
    number,
    tensor_of_logits,
)
from classwise.errors import ArgumentError
from classwise.losses._module import TermsModule
from classwise.losses._reduce import check_reduction, loss_of_batch
from classwise.losses._scores import Scores, Target, across_classes, upcast
from classwise.terms import Terms, checked_terms

__all__ = ["VSLoss", "adjust", "fold", "per_sample_vs", "vs_loss"]


def vs_loss(
    logits: Tensor,
    target: Tensor,
    terms: Terms,
    *,
    reduction: str = "mean",
    normalize: str = "weights",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    normalizer: Tensor | float | None = None,
) -> Tensor:
    """Return the vector-scaling loss.

        L(z, y) = alpha_y * CE(beta * z + delta - margin_y * onehot(y), y)        Eq. 6 (eq:vs)

    For class probabilities q the loss is the expectation sum_c q_c L(z, c), which makes mixup's
    two-label form and its soft-label form the same, margins included.

    Args:
        logits: raw output of the model, (N, C) or (N, C, d1, ...); computed in float32 or wider.
        target: int64 class indices (N, d1, ...), or class probabilities of the logits' shape.
        terms: the class terms, see ``classwise.terms``.
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` (per-sample, weighted, 0 where ignored).
        normalize: what a mean divides by: ``"weights"``, the summed alpha of the targets, or
            ``"batch"``, their number. Unlike torch, ``"weights"`` also holds for probability
            targets, so that a one-hot target and its index give the same loss.
        ignore_index: target value that does not count. A batch of nothing else gives 0.
        label_smoothing: in [0, 1]; the target becomes (1 - s) * q + s / C, weights as in torch.
        normalizer: divide by this instead of the batch's own mass (gradient accumulation: the
            mass of all micro-batches together). 0 is taken for 1: nothing counts.

    Returns:
        A scalar, or per-sample losses (N, d1, ...) for ``reduction="none"``.

    >>> import torch, classwise as cw
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> vs_loss(logits, torch.tensor([0, 1]), cw.terms.la([3, 1], tau=1.0)).round(decimals=3)
    tensor(0.1920)
    """
    check_reduction(reduction, normalize)
    label_smoothing = number("label_smoothing", label_smoothing, low=0, high=1)
    checked_terms(terms)

    def per_sample(scores: Scores, goal: Target) -> Tensor:
        return per_sample_vs(scores, goal.smoothed(label_smoothing, scores.logits), terms)

    return loss_of_batch(
        per_sample,
        logits,
        target,
        alpha=terms.alpha,
        terms=terms,
        reduction=reduction,
        normalize=normalize,
        ignore_index=ignore_index,
        normalizer=normalizer,
    )


def per_sample_vs(scores: Scores, target: Target, terms: Terms) -> Tensor:
    """Return the weighted VS loss of each sample, 0 where the target is ignored."""
    if target.index is not None:
        loss = _index_loss(scores, target.index, terms)
        return target.mask(loss * terms.alpha.to(loss)[target.index] if terms.weighs else loss)
    per_class = -scores.log_probs
    if terms.has_margin:
        margin = across_classes(terms.margin, scores.adjusted)
        per_class = margin_loss_of_every_class(scores, margin)
    if terms.weighs:
        per_class = across_classes(terms.alpha, per_class) * per_class
    return target.pick(per_class)


def _index_loss(scores: Scores, index: Tensor, terms: Terms) -> Tensor:
    if not terms.has_margin:
        return -scores.log_probs.gather(1, index.unsqueeze(1)).squeeze(1)
    margin = terms.margin.to(scores.adjusted)
    return margin_cross_entropy(scores.adjusted, index, margin[index])


def margin_cross_entropy(adjusted: Tensor, index: Tensor, margin: Tensor) -> Tensor:
    """Return CE(a - margin * onehot(y), y) of each sample, ``margin`` being one number for each."""
    reduced = adjusted.scatter_add(1, index.unsqueeze(1), -margin.unsqueeze(1))
    return F.cross_entropy(reduced, index, reduction="none")


def margin_loss_of_every_class(scores: Scores, margin: Tensor) -> Tensor:
    """Return CE(a - margin_c * onehot(c), c) for every class c, (N, C, ...)."""
    # CE_c = log(1 + exp(r_c - a_c + margin_c)) with r_c the logsumexp over the other classes. From
    # the whole logsumexp, r_c = lse + log(1 - p_c), which loses all digits where p_c is next to 1:
    # that can be one class only, so its r_c is summed afresh.
    adjusted, log_probs = scores.adjusted, scores.log_probs
    top = adjusted.argmax(1, keepdim=True)
    rest_of_top = adjusted.scatter(1, top, -torch.inf).logsumexp(1, keepdim=True)
    is_top = torch.zeros_like(adjusted, dtype=torch.bool).scatter(1, top, True)
    probs = log_probs.exp().masked_fill(is_top, 0)
    rest = torch.where(is_top, rest_of_top, adjusted - log_probs + torch.log1p(-probs))
    # Not softplus, which is the identity from 20 on.
    return torch.logaddexp(rest - adjusted + margin, torch.zeros_like(adjusted))


class VSLoss(TermsModule):
    """``vs_loss`` as a module: holds the terms, which follow ``.to(device)``.

    The terms are constants and not part of the ``state_dict``; they stay in their own precision
    when the module is cast to half.

    >>> import torch, classwise as cw
    >>> loss = VSLoss(cw.terms.la([3, 1], tau=1.0))
    >>> loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0])).round(decimals=4)
    tensor(0.0441)
    """

    def __init__(
        self,
        terms: Terms,
        *,
        reduction: str = "mean",
        normalize: str = "weights",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> None:
        check_reduction(reduction, normalize)
        super().__init__(terms)
        self.reduction = reduction
        self.normalize = normalize
        self.ignore_index = ignore_index
        self.label_smoothing = number("label_smoothing", label_smoothing, low=0, high=1)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of a batch."""
        return vs_loss(
            logits,
            target,
            self.terms,
            reduction=self.reduction,
            normalize=self.normalize,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
        )

    def extra_repr(self) -> str:
        """Describe the settings."""
        return f"{self.terms}, reduction={self.reduction!r}, normalize={self.normalize!r}"


def fold(linear: nn.Linear, terms: Terms) -> nn.Linear:
    """Return a plain ``nn.Linear`` whose output is beta * linear(x) + delta.

    The weights are new and detached. alpha and margin belong to the loss, not to the logits, and
    are not folded.

    >>> import torch, classwise as cw
    >>> head = torch.nn.Linear(4, 2)
    >>> t = cw.terms.vs([90, 10], tau=1.0, gamma=0.5)
    >>> x = torch.randn(3, 4)
    >>> adjusted = head(x) * t.beta.float() + t.delta.float()
    >>> torch.allclose(fold(head, t)(x), adjusted, atol=1e-6)
    True
    """
    if not isinstance(linear, nn.Linear):
        raise ArgumentError(f"linear must be an nn.Linear, got {type(linear).__name__}.")
    if linear.out_features != checked_terms(terms).num_classes:
        raise ArgumentError(
            f"linear has {linear.out_features} outputs, the terms have {terms.num_classes} classes."
        )
    with torch.no_grad():
        weight, bias = folded_head(linear.weight, linear.bias, terms)
        # By way of "meta": the usual initialisation would draw random numbers.
        folded = nn.Linear(
            linear.in_features, linear.out_features, device="meta", dtype=linear.weight.dtype
        ).to_empty(device=weight.device)
        folded.weight.copy_(weight)
        folded.bias.copy_(torch.zeros_like(folded.bias) if bias is None else bias)
    return folded


def folded_head(weight: Tensor, bias: Tensor | None, terms: Terms) -> tuple[Tensor, Tensor | None]:
    """Return (beta * W, beta * b + delta), in float32 or wider, differentiable."""
    weight = upcast(weight)
    bias = None if bias is None else upcast(bias)
    if terms.scales:
        beta = terms.beta.to(weight)
        weight = weight * beta[:, None]
        bias = None if bias is None else bias * beta
    if terms.shifts:
        delta = terms.delta.to(weight)
        bias = delta if bias is None else bias + delta
    return weight, bias


def adjust(
    logits: Tensor,
    class_counts: ClassCounts,
    *,
    tau: float = 1.0,
    target_prior: object = None,
    allow_empty: bool = False,
) -> Tensor:
    """Return logits adjusted after training: z - tau * (log pi - log target_prior).

    Post-hoc logit adjustment (Menon et al. 2021) for a model trained with plain cross-entropy;
    with ``tau=1`` it is also PC-softmax (Hong et al. 2021).

    Args:
        logits: (N, C) or (N, C, d1, ...).
        class_counts: training counts, (C,).
        tau: >= 0; 0 leaves the logits alone.
        target_prior: class frequencies to expect at test, (C,), scaled to sum 1; None is uniform.
            Where it equals the training prior nothing changes.
        allow_empty: treat a class without samples as a class of one.

    >>> import torch
    >>> adjust(torch.zeros(1, 2), [75, 25]).softmax(1).round(decimals=2).tolist()
    [[0.25, 0.75]]
    """
    tau = number("tau", tau, low=0)
    log_pi = log_prior(class_counts, allow_empty=allow_empty)
    logits = tensor_of_logits(logits, log_pi.numel())
    if target_prior is not None:
        expected = class_vector("target_prior", target_prior, log_pi.numel()).double().cpu()
        if bool((expected <= 0).any()):
            wrong = int(expected.argmin())
            raise ArgumentError(
                f"target_prior[{wrong}]={float(expected[wrong])} must be > 0; "
                "give a class that cannot occur a small probability."
            )
        log_pi = log_pi - (expected / expected.sum()).log()
    logits = upcast(logits)
    return logits - across_classes(tau * log_pi, logits)
