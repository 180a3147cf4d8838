"""Class terms: the three numbers per class that make a loss of the VS family, and a margin.

Every loss of the family (paper Eq. 6 ``eq:vs``) is

    L(z, y) = alpha_y * CE(beta * z + delta - margin_y * onehot(y), y)

so a loss is data: four vectors of length C in one ``Terms``. The functions below make the
terms of the named losses from training counts. N_y is the count of class y, N_1 the largest,
pi_y = N_y / N the prior. Equations are numbered as printed in the paper, with their LaTeX labels.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from classwise._checks import (
    ClassCounts,
    class_counts_tensor,
    class_vector,
    log_prior,
    nearest,
    number,
)
from classwise.errors import ArgumentError, UnknownNameError

__all__ = [
    "Terms",
    "balanced",
    "cdt",
    "ce",
    "cla",
    "class_balanced",
    "effective_number",
    "la",
    "ldam",
    "mla",
    "power_weights",
    "vs",
]


Vector: TypeAlias = Tensor | np.ndarray | Sequence[float]


@dataclass(frozen=True, eq=False, repr=False)
class Terms:
    """The class terms of one loss.

        L(z, y) = alpha_y * CE(beta * z + delta - margin_y * onehot(y), y)        Eq. 6 (eq:vs)

    Args:
        alpha: weight of each class, (C,), >= 0.
        beta: factor on each logit, (C,), > 0.
        delta: summand on each logit, (C,).
        margin: taken off the logit of the true class only, (C,); LDAM needs it, and it is what
            keeps LDAM outside the VS family proper.

    Lists become float64 tensors; floating tensors keep their dtype and device.

    >>> t = Terms(alpha=[1, 1], beta=[1, 1], delta=[0, -2.5], margin=[0, 0])
    >>> t
    Terms(2 classes, alpha=1, beta=1, delta=-2.5..0, margin=0)
    >>> t.replace(alpha=[0.5, 1.5]).alpha.tolist()
    [0.5, 1.5]
    """

    alpha: Tensor
    beta: Tensor
    delta: Tensor
    margin: Tensor

    if TYPE_CHECKING:  # what it takes, and not only what it holds

        def __init__(self, alpha: Vector, beta: Vector, delta: Vector, margin: Vector) -> None: ...

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            vector = class_vector(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, vector)
        lengths = {f.name: getattr(self, f.name).numel() for f in dataclasses.fields(self)}
        if len(set(lengths.values())) > 1:
            raise ArgumentError(f"the terms differ in length: {lengths}.")
        if self.num_classes < 2:
            raise ArgumentError(f"terms need at least 2 classes, got {self.num_classes}.")
        if bool((self.alpha < 0).any()):
            wrong = int(self.alpha.argmin())
            raise ArgumentError(f"alpha[{wrong}]={float(self.alpha[wrong])} must be >= 0.")
        if bool((self.beta <= 0).any()):
            wrong = int(self.beta.argmin())
            raise ArgumentError(f"beta[{wrong}]={float(self.beta[wrong])} must be > 0.")
        # Known once on the host, so that a neutral term costs nothing in every step.
        object.__setattr__(self, "_scales", not bool((self.beta == 1).all()))
        object.__setattr__(self, "_shifts", bool((self.delta != 0).any()))
        object.__setattr__(self, "_has_margin", bool((self.margin != 0).any()))
        object.__setattr__(self, "_weighs", not bool((self.alpha == 1).all()))

    @property
    def num_classes(self) -> int:
        """The number of classes C."""
        return self.alpha.numel()

    @property
    def scales(self) -> bool:
        """Whether any beta differs from 1."""
        return self._scales  # type: ignore[attr-defined]

    @property
    def shifts(self) -> bool:
        """Whether any delta differs from 0."""
        return self._shifts  # type: ignore[attr-defined]

    @property
    def has_margin(self) -> bool:
        """Whether any margin differs from 0."""
        return self._has_margin  # type: ignore[attr-defined]

    @property
    def weighs(self) -> bool:
        """Whether any alpha differs from 1."""
        return self._weighs  # type: ignore[attr-defined]

    def replace(self, **fields: Any) -> Terms:
        """Return these terms with some fields exchanged, tensors or lists of length C."""
        known = [f.name for f in dataclasses.fields(self)]
        for name, value in fields.items():
            if name not in known:
                raise UnknownNameError(
                    f"Terms has no field {name!r}{nearest(name, known)} Known: {', '.join(known)}."
                )
            class_vector(name, value, self.num_classes)
        return dataclasses.replace(self, **fields)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Terms:
        """Return the terms on another device or in another floating dtype."""
        if dtype is not None and not dtype.is_floating_point:
            raise ArgumentError(f"terms are floating point, dtype={dtype} is not.")
        # dtype before device: float64 terms must be able to reach devices without float64.
        moved = self.map(lambda vector: vector.to(dtype=dtype).to(device=device))
        # A narrower dtype may overflow.
        return moved if dtype is None else dataclasses.replace(moved)

    def map(self, fn: Callable[[Tensor], Tensor]) -> Terms:
        """Return the terms moved by ``fn``, which must not change their values.

        They are not validated again, which would wait for the device they moved to.
        """
        twin = copy.copy(self)
        for field in dataclasses.fields(self):
            object.__setattr__(twin, field.name, fn(getattr(self, field.name)))
        return twin

    def isclose(self, other: Terms, rtol: float = 1e-6) -> bool:
        """Whether two terms are equal up to rounding."""
        if self.num_classes != other.num_classes:
            return False
        return all(
            torch.allclose(
                getattr(self, f.name).double().cpu(),
                getattr(other, f.name).double().cpu(),
                rtol=rtol,
                atol=rtol,
            )
            for f in dataclasses.fields(self)
        )

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{f.name}={_span(getattr(self, f.name))}" for f in dataclasses.fields(self)
        )
        return f"Terms({self.num_classes} classes, {shown})"


def checked_terms(terms: object) -> Terms:
    """Return ``terms`` if they are some."""
    if isinstance(terms, Terms):
        return terms
    raise ArgumentError(
        f"terms must be a classwise Terms, got {type(terms).__name__}; "
        "see classwise.terms for the named ones."
    )


def _span(vector: Tensor) -> str:
    low, high = float(vector.min()) + 0.0, float(vector.max()) + 0.0  # no -0
    return f"{low:.4g}" if low == high else f"{low:.4g}..{high:.4g}"


def _terms(class_counts: Tensor, **fields: Tensor) -> Terms:
    """Neutral terms (plain cross-entropy) with some fields exchanged."""
    ones = torch.ones(class_counts.numel(), dtype=torch.float64)
    neutral = {"alpha": ones, "beta": ones, "delta": 0 * ones, "margin": 0 * ones}
    return Terms(**{**neutral, **fields})


def _slopes(slopes: object, num_classes: int) -> Tensor:
    """Slopes as a positive float64 vector; None is 1 for every class."""
    if slopes is None:
        return torch.ones(num_classes, dtype=torch.float64)
    kappa = class_vector("slopes", slopes, num_classes).double().cpu()
    if bool((kappa <= 0).any()):
        wrong = int(kappa.argmin())
        raise ArgumentError(f"slopes[{wrong}]={float(kappa[wrong])} must be > 0.")
    return kappa


def power_weights(class_counts: ClassCounts, nu: float, *, allow_empty: bool = False) -> Tensor:
    """Return weights alpha_y proportional to pi_y^-nu, with mean 1 (ADRW, Alg. 1 line 8).

    Args:
        class_counts: training counts, (C,).
        nu: strength, >= 0; 0 gives ones, 1 the inverse frequency.
        allow_empty: treat a class without samples as a class of one.

    >>> power_weights([400, 100], nu=0.5).round(decimals=4).tolist()
    [0.6667, 1.3333]
    """
    nu = number("nu", nu, low=0)
    log_weights = -nu * log_prior(class_counts, allow_empty=allow_empty)
    # A softmax is the same ratio, and survives strengths at which pi^-nu overflows.
    return log_weights.softmax(0) * log_weights.numel()


def effective_number(class_counts: ClassCounts, p: float, *, allow_empty: bool = False) -> Tensor:
    """Return weights alpha_y proportional to (1 - p) / (1 - p^N_y), with mean 1.

    The effective number of samples (Cui et al. 2019), as DRW uses it (paper Sec. 3).

    Args:
        class_counts: training counts, (C,).
        p: in [0, 1); 0 gives ones, towards 1 the inverse frequency.
        allow_empty: treat a class without samples as a class of one.

    >>> effective_number([1000, 10], p=0.999).round(decimals=4).tolist()
    [0.031, 1.969]
    """
    p = number("p", p, low=0, high=1, high_open=True)
    counts = class_counts_tensor(class_counts, allow_empty=allow_empty).clamp(min=1).double()
    if p == 0:
        return torch.ones_like(counts)
    # expm1 keeps the digits that 1 - p^N loses where p is next to 1.
    weights = 1 / -torch.expm1(counts * torch.log(torch.tensor(p, dtype=torch.float64)))
    return weights / weights.mean()


def ce(class_counts: ClassCounts, *, allow_empty: bool = False) -> Terms:
    """Return the neutral terms: plain cross-entropy.

    >>> ce([90, 10])
    Terms(2 classes, alpha=1, beta=1, delta=0, margin=0)
    """
    return _terms(class_counts_tensor(class_counts, allow_empty=allow_empty))


def balanced(class_counts: ClassCounts, *, allow_empty: bool = False) -> Terms:
    """Return alpha_y = 1 / pi_y, the balanced loss (Sec. 3; consistent by Prop. 1).

    >>> balanced([75, 25]).alpha.round(decimals=4).tolist()
    [1.3333, 4.0]
    """
    log_pi = log_prior(class_counts, allow_empty=allow_empty)
    return _terms(log_pi, alpha=(-log_pi).exp())


def class_balanced(
    class_counts: ClassCounts, *, p: float = 0.9999, allow_empty: bool = False
) -> Terms:
    """Return alpha_y = (1 - p) / (1 - p^N_y) scaled to mean 1, the class-balanced loss (Sec. 3)."""
    weights = effective_number(class_counts, p, allow_empty=allow_empty)
    return _terms(weights, alpha=weights)


def la(class_counts: ClassCounts, *, tau: float = 1.0, allow_empty: bool = False) -> Terms:
    """Return delta_y = tau * log(pi_y), logit adjustment (Menon et al. 2021; Sec. 3).

    Args:
        class_counts: training counts, (C,).
        tau: >= 0; 1 is Fisher consistent (Prop. 1), 0 is cross-entropy.
        allow_empty: treat a class without samples as a class of one.

    >>> la([75, 25]).delta.round(decimals=4).tolist()
    [-0.2877, -1.3863]
    """
    tau = number("tau", tau, low=0)
    log_pi = log_prior(class_counts, allow_empty=allow_empty)
    return _terms(log_pi, delta=tau * log_pi)


def cdt(class_counts: ClassCounts, *, gamma: float, allow_empty: bool = False) -> Terms:
    """Return beta_y = (N_y / N_1)^gamma, class-dependent temperature (Ye et al. 2020; Sec. 3).

    >>> cdt([100, 25], gamma=0.5).beta.round(decimals=4).tolist()
    [1.0, 0.5]
    """
    gamma = number("gamma", gamma, low=0)
    log_pi = log_prior(class_counts, allow_empty=allow_empty)
    return _terms(log_pi, beta=(gamma * (log_pi - log_pi.max())).exp())


def vs(class_counts: ClassCounts, *, tau: float, gamma: float, allow_empty: bool = False) -> Terms:
    """Return beta_y = (N_y / N_1)^gamma, delta_y = tau * log(pi_y): vector scaling (Eq. 6).

    >>> vs([100, 25], tau=1.0, gamma=0.5)
    Terms(2 classes, alpha=1, beta=0.5..1, delta=-1.609..-0.2231, margin=0)
    """
    additive = la(class_counts, tau=tau, allow_empty=allow_empty)
    return additive.replace(beta=cdt(class_counts, gamma=gamma, allow_empty=allow_empty).beta)


def ldam(
    class_counts: ClassCounts,
    *,
    max_margin: float = 0.5,
    scale: float = 30.0,
    allow_empty: bool = False,
) -> Terms:
    """Return beta = scale, margin_y = scale * max_margin * (N_y / N_C)^(-1/4) (Cao et al. 2019).

    For *cosine* logits: a head with normalised features and weights, no bias, not yet scaled.
    N_C is the smallest count, whose class gets ``max_margin``. The paper lists LDAM as
    delta_y ~ -N_y^(-1/4) (Sec. 4); its code subtracts the margin from the true class only, and so
    does this.

    >>> (ldam([500, 5]).margin / 30).round(decimals=3).tolist()
    [0.158, 0.5]
    """
    max_margin = number("max_margin", max_margin, low=0)
    scale = number("scale", scale, low=0, low_open=True)
    log_pi = log_prior(class_counts, allow_empty=allow_empty)
    relative = (-0.25 * (log_pi - log_pi.min())).exp()
    return _terms(log_pi, beta=torch.full_like(log_pi, scale), margin=scale * max_margin * relative)


def mla(
    class_counts: ClassCounts, *, gamma: float, slopes: object = None, allow_empty: bool = False
) -> Terms:
    """Return beta_y = pi_y^gamma / kappa*_y, multiplicative logit adjustment (Eq. 11 eq:mla).

    Args:
        class_counts: training counts, (C,).
        gamma: >= 0; note pi_y and not N_y / N_1 as in ``cdt``, a global temperature apart.
        slopes: kappa*, the slope of accuracy on the logit of each class, (C,); None is 1.
        allow_empty: treat a class without samples as a class of one.

    >>> mla([75, 25], gamma=1.0, slopes=[1.5, 0.5]).beta.round(decimals=4).tolist()
    [0.5, 0.5]
    """
    gamma = number("gamma", gamma, low=0)
    log_pi = log_prior(class_counts, allow_empty=allow_empty)
    return _terms(log_pi, beta=(gamma * log_pi).exp() / _slopes(slopes, log_pi.numel()))


def cla(
    class_counts: ClassCounts, *, tau: float, slopes: object = None, allow_empty: bool = False
) -> Terms:
    """Return delta_y = tau * log(pi_y / kappa+_y), calibrated logit adjustment (Eq. 10 eq:cla).

    Prop. 2 prints log(delta_y) / kappa+_y; its proof and Eq. 10 need the logarithm of the quotient.

    Args:
        class_counts: training counts, (C,).
        tau: >= 0; 1 is Fisher consistent under local calibration (Prop. 2).
        slopes: kappa+, the slope of accuracy on the confidence of each class, (C,); None is 1.
        allow_empty: treat a class without samples as a class of one.

    >>> cla([75, 25], tau=1.0, slopes=[1.0, 1/3]).delta.round(decimals=4).tolist()
    [-0.2877, -0.2877]
    """
    tau = number("tau", tau, low=0)
    log_pi = log_prior(class_counts, allow_empty=allow_empty)
    return _terms(log_pi, delta=tau * (log_pi - _slopes(slopes, log_pi.numel()).log()))
