"""Phases: what holds from one epoch on, as data."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from classwise import terms as terms_module
from classwise._checks import known_name, nearest, number, whole_number
from classwise._hyper import checked
from classwise.errors import ArgumentError, RecipeError, UnknownNameError
from classwise.losses import LOSSES, LossSpec
from classwise.losses.ala import ala_terms
from classwise.terms import Terms

__all__ = ["DEFER", "TERMS", "WEIGHTS", "Part", "Phase", "TermsSpec", "epoch_of"]

DEFER = "defer"
"""The start of a phase that begins at T0, the criterion's ``defer_at``."""


@dataclass(frozen=True, init=False)
class Part:
    """A name with its hyper-parameters, such as ``Part("cla", tau=0.9)``."""

    name: str
    hyper: tuple[tuple[str, float], ...]

    def __init__(self, name: str, **hyper: float) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "hyper", tuple(sorted(hyper.items())))

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v:.12g}' for k, v in self.hyper)})"

    def fit(self, kind: str, known: Mapping[str, tuple[str, ...]]) -> Part:
        """Return the part with its hyper-parameters checked against those that its name takes."""
        known_name(kind, self.name, known)
        given, wanted = dict(self.hyper), known[self.name]
        for name in given:
            if name not in wanted:
                takes = ", ".join(wanted) or "no hyper-parameters"
                raise UnknownNameError(
                    f"{kind} {self.name!r} takes {takes}, not {name!r}{nearest(name, wanted)}"
                )
        missing = [name for name in wanted if name not in given]
        if missing:
            raise RecipeError(f"{kind} {self.name!r} needs {', '.join(missing)}.")
        return Part(self.name, **{name: checked(name, value) for name, value in given.items()})


@dataclass(frozen=True)
class TermsSpec:
    """Named terms.

    Args:
        build: (class_counts, **hyper) -> terms.
        hyper: names of its hyper-parameters.
        slope: which measured slope ``build`` takes as ``slopes``: ``"star"``, ``"plus"`` or None.
        scale: for terms of cosine logits (a head with normalised features and weights), the
            hyper-parameter that scales them; else None.
    """

    build: Callable[..., Terms]
    hyper: tuple[str, ...] = ()
    slope: str | None = None
    scale: str | None = None


TERMS: dict[str, TermsSpec] = {
    "ce": TermsSpec(terms_module.ce),
    "balanced": TermsSpec(terms_module.balanced),
    "class_balanced": TermsSpec(terms_module.class_balanced, ("p",)),
    "la": TermsSpec(terms_module.la, ("tau",)),
    "cdt": TermsSpec(terms_module.cdt, ("gamma",)),
    "vs": TermsSpec(terms_module.vs, ("tau", "gamma")),
    "ldam": TermsSpec(terms_module.ldam, ("max_margin", "scale"), scale="scale"),
    "ala": TermsSpec(ala_terms, ("scale",), scale="scale"),
    "mla": TermsSpec(terms_module.mla, ("gamma",), slope="star"),
    "cla": TermsSpec(terms_module.cla, ("tau",), slope="plus"),
}

WEIGHTS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "power": (terms_module.power_weights, ("nu",)),
    "effective_number": (terms_module.effective_number, ("p",)),
}

TermsOf: TypeAlias = str | Part | Terms | Callable[..., Terms]


@dataclass(frozen=True)
class Phase:
    """What holds from one epoch on.

    Args:
        terms: a name without hyper-parameters (``"ce"``), a ``Part``
            (``Part("cla", tau=0.9)``), ready ``Terms``, or a function of class_counts.
        start: first epoch: an int is an epoch, a float in [0, 1) a fraction of training, and
            ``"defer"`` the criterion's ``defer_at``.
        weights: alpha instead of the terms' own, ``Part("power", nu=0.2)`` or
            ``Part("effective_number", p=0.9999)``.
        loss: ``"vs"``, or another of ``classwise.losses.LOSSES`` with its hyper-parameters.
        leans_on: for a function that wants slopes as its second argument: ``"star"`` (kappa*) or
            ``"plus"`` (kappa+). Named terms know it themselves.

    >>> print(Phase(Part("cla", tau=0.9), start=0.8, weights=Part("power", nu=0.2)))
    from 0.8: cla(tau=0.9), weights power(nu=0.2)
    """

    terms: TermsOf = "ce"
    start: int | float | str = 0
    weights: Part | None = None
    loss: str | Part = "vs"
    leans_on: str | None = None

    def __post_init__(self) -> None:
        if self.leans_on is not None:
            known_name("leans_on", self.leans_on, ("star", "plus"))
            if isinstance(self.terms, (str, Part, Terms)):
                raise RecipeError("leans_on is for a function of class_counts and slopes.")
        object.__setattr__(self, "terms", _checked_terms(self.terms))
        object.__setattr__(
            self, "loss", _as_part(self.loss, "loss").fit("loss", _hyper_of_losses())
        )
        if self.weights is not None:
            known = {name: hyper for name, (_, hyper) in WEIGHTS.items()}
            part = _as_part(self.weights, "weights").fit("weights", known)
            object.__setattr__(self, "weights", part)
        if self.start != DEFER:
            _check_epoch("start", self.start)

    @property
    def slope(self) -> str | None:
        """Which measured slope the terms lean on: ``"star"``, ``"plus"`` or None."""
        return TERMS[self.terms.name].slope if isinstance(self.terms, Part) else self.leans_on

    @property
    def spec(self) -> LossSpec:
        """The entry of ``classwise.losses.LOSSES`` for this phase's loss."""
        assert isinstance(self.loss, Part)
        return LOSSES[self.loss.name]

    @property
    def loss_hyper(self) -> dict[str, float]:
        """The hyper-parameters of this phase's loss."""
        assert isinstance(self.loss, Part)
        return dict(self.loss.hyper)

    @property
    def needs_cosine_head(self) -> bool:
        """Whether the terms are for cosines, so far as it can be known without class counts.

        Named terms know it. Ready ``Terms`` are where ``logit_scale`` differs from 1. A function
        of class_counts is taken to want plain logits.
        """
        if isinstance(self.terms, Part):
            return TERMS[self.terms.name].scale is not None
        return isinstance(self.terms, Terms) and self.logit_scale(self.terms) != 1

    def logit_scale(self, built: Terms) -> float:
        """Return the factor that makes softmax logits of what the model returns.

        It is the scale of a cosine head, or 1. Terms that are not named are for cosines where they
        have margins beside one beta for all classes, which is then the scale.

        Args:
            built: what ``build`` returned.
        """
        if isinstance(self.terms, Part):
            scale = TERMS[self.terms.name].scale
            return 1.0 if scale is None else dict(self.terms.hyper)[scale]
        uniform = bool((built.beta == built.beta[0]).all())
        return float(built.beta[0]) if built.has_margin and uniform else 1.0

    def build(
        self, class_counts: Tensor, slopes: Tensor | None = None, *, allow_empty: bool = False
    ) -> Terms:
        """Return the terms of this phase for the given counts and slopes."""
        if isinstance(self.terms, Terms):
            built = self.terms
        elif isinstance(self.terms, Part):
            spec, hyper = TERMS[self.terms.name], dict(self.terms.hyper)
            leaning = {"slopes": slopes} if spec.slope else {}
            built = spec.build(class_counts, **hyper, **leaning, allow_empty=allow_empty)
        else:
            assert callable(self.terms)
            counts = (class_counts.clamp(min=1) if allow_empty else class_counts).cpu()
            ones = torch.ones(counts.numel(), dtype=torch.float64)
            leaning = (ones if slopes is None else slopes.cpu(),) if self.leans_on else ()
            built = self.terms(counts, *leaning)
            if not isinstance(built, Terms):
                raise RecipeError(f"{self.terms!r} must return Terms, got {type(built).__name__}.")
        if built.num_classes != class_counts.numel():
            raise RecipeError(
                f"the terms of {self} have {built.num_classes} classes, class_counts "
                f"{class_counts.numel()}."
            )
        if built.has_margin and not self.spec.takes_margin:
            raise RecipeError(f"loss {self.spec.name!r} knows no margins, and the terms have some.")
        if self.weights is None:
            return built
        weigh, _ = WEIGHTS[self.weights.name]
        alpha = weigh(class_counts, **dict(self.weights.hyper), allow_empty=allow_empty)
        return built.replace(alpha=alpha)

    def __str__(self) -> str:
        shown = _shown(self.terms)
        text = shown if self.start == 0 else f"from {self.start}: {shown}"
        if self.weights is not None:
            text += f", weights {self.weights}"
        if isinstance(self.loss, Part) and self.loss.name != "vs":
            text += f", loss {self.loss}"
        return text


def _as_part(value: object, kind: str) -> Part:
    if isinstance(value, Part):
        return value
    if isinstance(value, str):
        return Part(value)
    raise RecipeError(f"{kind} must be a name or a Part, got {type(value).__name__}.")


def _hyper_of_losses() -> dict[str, tuple[str, ...]]:
    return {name: spec.hyper for name, spec in LOSSES.items()}


def _checked_terms(value: TermsOf) -> TermsOf:
    if isinstance(value, (str, Part)):
        known = {name: spec.hyper for name, spec in TERMS.items()}
        return _as_part(value, "terms").fit("terms", known)
    if isinstance(value, Terms) or callable(value):
        return value
    raise RecipeError(
        f"terms must be a name, a Part, Terms or a function of class_counts, "
        f"got {type(value).__name__}."
    )


def _shown(terms: TermsOf) -> str:
    if isinstance(terms, Terms):
        digest = hashlib.sha256()
        for f in dataclasses.fields(terms):
            digest.update(getattr(terms, f.name).double().cpu().numpy().tobytes())
        return f"{terms!r} #{digest.hexdigest()[:12]}"
    if isinstance(terms, (str, Part)):
        return str(terms)
    return f"{getattr(terms, '__module__', '?')}.{getattr(terms, '__qualname__', repr(terms))}"


def _check_epoch(name: str, value: object) -> None:
    if isinstance(value, (float, np.floating)):
        number(name, value, low=0, high=1, high_open=True)
    elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        whole_number(name, value, low=0)
    else:
        raise ArgumentError(
            f"{name}={value!r} must be a whole number of epochs or a fraction in [0, 1)."
        )


def epoch_of(name: str, value: int | float, epochs: int) -> int:
    """Return the epoch that an int (epochs) or a float (fraction of training) means.

    >>> epoch_of("defer_at", 0.8, 200), epoch_of("defer_at", 160, 200)
    (160, 160)
    """
    _check_epoch(name, value)
    if isinstance(value, (float, np.floating)):
        # Rounded down, so that a phase that starts late has an epoch however short the training.
        return math.floor(value * epochs + 1e-9)
    if value >= epochs:
        raise ArgumentError(
            f"{name}={value} lies beyond the training of epochs={epochs}; "
            f"legal are 0 to {epochs - 1}, or a fraction in [0, 1)."
        )
    return int(value)
