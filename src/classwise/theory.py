"""What the paper's theory says of class terms: local Lipschitz constants, the bound, consistency.

Pure functions of ``classwise.terms.Terms`` and measured floors; they apply to every method
that class terms can express.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from classwise._checks import ClassCounts, class_counts_tensor, class_vector, log_prior, number
from classwise.errors import ArgumentError, StateError
from classwise.stats.floors import FloorState
from classwise.terms import Terms, checked_terms

__all__ = ["Bound", "Consistency", "Verdict", "bound", "consistent", "lipschitz"]

_CHUNK = 256


def lipschitz(terms: Terms, floors: object) -> Tensor:
    """Return the local Lipschitz constant of the loss for each class.

        mu_y = alpha_y * beta~ * (1 - p_y),    beta~ = sqrt(sum_y beta_y^2)     Eq. 20, Lemma 4

    p_y is the smallest probability softmax(beta * f(x) + delta)_y over the samples x of class y;
    the lemma (lem:Lip_of_vs) writes it as softmax(beta_y B_y(f) + delta_y). Floors measured under
    these very terms hold p_y itself. Under others, a lower bound of p_y is made of B_y(f) and the
    largest rival logit U_y = max f(x)_j, j != y, so that the result is still a Lipschitz constant,
    only a larger one. A class without samples gets the largest one, with p_y = 0.

    Args:
        terms: of the loss. Margins are not covered by the lemma.
        floors: a ``classwise.ClassFloors`` or what its ``compute()`` returned.

    Returns:
        (C,) in float64.

    >>> import torch, classwise as cw
    >>> t = cw.terms.ce([3, 1])
    >>> floors = cw.ClassFloors(2, terms=t)
    >>> floors.update(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0]))
    >>> cw.theory.lipschitz(t, floors).round(decimals=4).tolist()
    [0.7071, 1.4142]
    """
    state = _floor_state(floors, checked_terms(terms))
    if terms.has_margin:
        raise ArgumentError(
            "terms with margins (LDAM, ALA) are outside the lemma: margin must be 0."
        )
    terms = terms.to(device=state.logit.device, dtype=state.logit.dtype)
    measured_here = torch.allclose(state.beta, terms.beta, rtol=1e-6, atol=0) and torch.allclose(
        state.delta, terms.delta, rtol=1e-6, atol=1e-6
    )
    wrong = -torch.expm1(state.log_prob) if measured_here else _largest_error(terms, state)
    wrong = torch.where(state.seen, wrong, 1.0)
    return terms.alpha * terms.beta.square().sum().sqrt() * wrong


def _floor_state(floors: object, terms: Terms) -> FloorState:
    compute = getattr(floors, "compute", None)
    state = floors if compute is None else compute()
    if not isinstance(state, FloorState):
        raise ArgumentError(
            f"floors must be ClassFloors or their compute(), got {type(floors).__name__}."
        )
    if state.logit.numel() != terms.num_classes:
        raise ArgumentError(
            f"floors are of {state.logit.numel()} classes, the terms of {terms.num_classes}."
        )
    if not bool(state.seen.any()):
        raise StateError("floors have seen no sample; update them with logits and targets first.")
    return state


def _largest_error(terms: Terms, state: FloorState) -> Tensor:
    """Return an upper bound of 1 - p_y from B_y and U_y: every rival at its worst at once."""
    own = terms.beta * state.logit + terms.delta
    rival, parts = -state.rival, []
    for first in range(0, terms.num_classes, _CHUNK):
        part = slice(first, first + _CHUNK)
        logits = rival[part, None] * terms.beta + terms.delta
        rows = torch.arange(len(logits), device=logits.device)
        logits[rows, rows + first] = -torch.inf
        parts.append(torch.sigmoid(logits.logsumexp(1) - own[part]))
    return torch.cat(parts)


@dataclass(frozen=True, eq=False)
class Bound:
    """The class-dependent part of the generalization bound.

    Args:
        per_class: the summand of each class, (C,); what is large holds the bound back.
        total: their sum.
    """

    per_class: Tensor
    total: Tensor


def bound(terms: Terms, floors: object, class_counts: ClassCounts) -> Bound:
    """Return the class-dependent part of the data-dependent bound for the VS loss.

        beta~ / (C pi_C) * sum_y alpha_y * sqrt(pi_y) * (1 - p_y)         Eq. 21, Proposition 5

    (prop:vs_generalization), without the complexity of the function class, which is the same for
    all losses. Compare it between losses on the same data; scale alpha alike (mean 1) first.

    Args:
        terms: of the loss, as for ``lipschitz``.
        floors: as for ``lipschitz``.
        class_counts: training counts, (C,), all positive.

    >>> import torch, classwise as cw
    >>> floors = cw.ClassFloors(2)
    >>> floors.update(torch.zeros(2, 2), torch.tensor([0, 1]))
    >>> cw.theory.bound(cw.terms.ce([3, 1]), floors, [3, 1]).per_class.round(decimals=3).tolist()
    [1.225, 0.707]
    """
    counts = class_counts_tensor(class_counts)
    mu = lipschitz(terms, floors)
    if counts.numel() != mu.numel():
        raise ArgumentError(f"class_counts has {counts.numel()} classes, the terms {mu.numel()}.")
    prior = (counts.double() / counts.sum()).to(dtype=mu.dtype).to(device=mu.device)
    per_class = mu * prior.sqrt() / (mu.numel() * prior.min())
    return Bound(per_class=per_class, total=per_class.sum())


@dataclass(frozen=True)
class Verdict:
    """Whether terms are Fisher consistent under one assumption, and why.

    Args:
        assumption: ``"global"``, ``"confidence"`` or ``"logit"``.
        proposition: where the paper proves it.
        holds: the answer.
        reason: which terms make or break it.
    """

    assumption: str
    proposition: str
    holds: bool
    reason: str


@dataclass(frozen=True)
class Consistency:
    """The verdicts under all assumptions; true if one that applies holds.

    Without slopes the global assumption applies. With slopes the two local ones do.
    """

    verdicts: tuple[Verdict, ...]
    applies: tuple[str, ...]

    def __bool__(self) -> bool:
        return any(v.holds for v in self.verdicts if v.assumption in self.applies)

    def under(self, assumption: str) -> Verdict:
        """Return the verdict under one assumption."""
        for verdict in self.verdicts:
            if verdict.assumption == assumption:
                return verdict
        known = ", ".join(v.assumption for v in self.verdicts)
        raise ArgumentError(f"assumption={assumption!r} is unknown. Known: {known}.")

    def __str__(self) -> str:
        lines = [f"{'consistent' if self else 'not consistent'} under {' or '.join(self.applies)}"]
        for v in self.verdicts:
            lines.append(
                f"  {v.assumption} ({v.proposition}): {'yes' if v.holds else 'no'}, {v.reason}"
            )
        return "\n".join(lines)


def consistent(
    terms: Terms, class_counts: ClassCounts, slopes: object = None, *, rtol: float = 1e-6
) -> Consistency:
    """Say whether minimising a loss also minimises the balanced error, and if not, why.

    For some positive delta_y, up to one factor for all of alpha (and one summand for all of Delta
    in the first two):

    - ``"global"``, Proposition 1 (prop:la_fisher), P[y|x] ~ softmax(f)_y:
      alpha_y = delta_y / pi_y, beta constant, Delta_y = log delta_y.
    - ``"confidence"``, Proposition 2 (prop:local_linear_loss), P[y|x] ~ kappa_y softmax(f)_y:
      alpha_y = delta_y / pi_y, beta constant, Delta_y = log(delta_y / kappa_y).
    - ``"logit"``, Proposition 3 (prop:local_nonlinear_loss), P[y|x] ~ kappa_y f_y:
      alpha_y = delta_y / pi_y, beta_y = delta_y / kappa_y, Delta = 0.

    The scores of the assumptions are those that the cross-entropy sees. Proposition 2 prints
    log(delta_y) / kappa_y; its proof needs what stands here. Margins are not covered by any of
    them, so that terms with margins get a no that means "not shown".

    Args:
        terms: of the loss.
        class_counts: training counts, (C,), all positive.
        slopes: kappa, (C,): the loss is then judged under the two local assumptions with these
            slopes. None judges it under the global one (and shows the others with slopes of 1).
        rtol: rounding to forgive; terms in less than float64 are forgiven theirs as well.

    >>> import classwise as cw
    >>> bool(cw.theory.consistent(cw.terms.la([90, 10]), [90, 10]))
    True
    >>> cdt = cw.terms.cdt([90, 10], gamma=0.2)
    >>> print(cw.theory.consistent(cdt, [90, 10]).under("global").reason)
    beta differs between classes; alpha * pi / exp(delta) differs between classes
    """
    rtol = number("rtol", rtol, low=0)
    log_pi = log_prior(class_counts)
    # A delta of -17 in float32 is known to 1e-6 only.
    terms = checked_terms(terms)
    largest = float(terms.delta.abs().max()) + float(terms.beta.log().abs().max()) + 1
    rtol += 8 * torch.finfo(terms.delta.dtype).eps * largest
    terms = terms.to(device="cpu", dtype=torch.float64)
    if terms.num_classes != log_pi.numel():
        raise ArgumentError(
            f"class_counts has {log_pi.numel()} classes, the terms {terms.num_classes}."
        )
    kappa = torch.ones_like(log_pi)
    if slopes is not None:
        kappa = class_vector("slopes", slopes, log_pi.numel()).double().cpu()
        if bool((kappa <= 0).any()):
            raise ArgumentError(f"slopes must be > 0, the smallest is {float(kappa.min())}.")
    weight = terms.alpha.log() + log_pi
    verdicts = (
        _additive("global", "Proposition 1", terms, weight, torch.zeros_like(log_pi), rtol),
        _additive("confidence", "Proposition 2", terms, weight, kappa.log(), rtol),
        _multiplicative(terms, weight, kappa.log(), rtol),
    )
    applies = ("global",) if slopes is None else ("confidence", "logit")
    return Consistency(verdicts, applies)


def _additive(
    assumption: str, proposition: str, terms: Terms, weight: Tensor, log_kappa: Tensor, rtol: float
) -> Verdict:
    what = (
        "alpha * pi / exp(delta)" if assumption == "global" else "alpha * pi / (kappa * exp(delta))"
    )
    broken = _broken_by_margin(terms)
    if not _constant(terms.beta.log(), rtol):
        broken.append("beta differs between classes")
    if not _constant(weight - terms.delta - log_kappa, rtol):
        broken.append(f"{what} differs between classes")
    reason = "; ".join(broken) or f"beta and {what} are the same for all classes"
    return Verdict(assumption, proposition, not broken, reason)


def _multiplicative(terms: Terms, weight: Tensor, log_kappa: Tensor, rtol: float) -> Verdict:
    broken = _broken_by_margin(terms)
    if terms.shifts:
        broken.append("delta is not 0")
    if not _constant(weight - terms.beta.log() - log_kappa, rtol):
        broken.append("alpha * pi / (kappa * beta) differs between classes")
    reason = "; ".join(broken) or (
        "delta is 0 and alpha * pi / (kappa * beta) is the same for all classes"
    )
    return Verdict("logit", "Proposition 3", not broken, reason)


def _broken_by_margin(terms: Terms) -> list[str]:
    return ["a margin on the true class only is not covered"] if terms.has_margin else []


def _constant(logs: Tensor, rtol: float) -> bool:
    return bool(torch.isfinite(logs).all()) and float(logs.max() - logs.min()) <= rtol
