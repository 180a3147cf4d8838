"""Phases: what holds from one epoch on, as data."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from classwise import terms as terms_module
from classwise._checks import known_name, nearest, number, whole_number
from classwise._hyper import checked
from classwise.errors import ArgumentError, RecipeError, UnknownNameError
from classwise.losses import LOSSES
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
    """Named terms: what builds them, from which hyper-parameters and which slope."""

    build: Callable[..., Terms]
    hyper: tuple[str, ...] = ()
    slope: str | None = None


TERMS: dict[str, TermsSpec] = {
    "ce": TermsSpec(terms_module.ce),
    "balanced": TermsSpec(terms_module.balanced),
    "class_balanced": TermsSpec(terms_module.class_balanced, ("p",)),
    "la": TermsSpec(terms_module.la, ("tau",)),
    "cdt": TermsSpec(terms_module.cdt, ("gamma",)),
    "vs": TermsSpec(terms_module.vs, ("tau", "gamma")),
    "ldam": TermsSpec(terms_module.ldam, ("max_margin", "scale")),
    "ala": TermsSpec(ala_terms, ("scale",)),
    "mla": TermsSpec(terms_module.mla, ("gamma",), slope="star"),
    "cla": TermsSpec(terms_module.cla, ("tau",), slope="plus"),
}

WEIGHTS: dict[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "power": (terms_module.power_weights, ("nu",)),
    "effective_number": (terms_module.effective_number, ("p",)),
}

TermsOf: TypeAlias = str | Part | Terms | Callable[[Tensor], Terms]


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

    >>> print(Phase(Part("cla", tau=0.9), start=0.8, weights=Part("power", nu=0.2)))
    from 0.8: cla(tau=0.9), weights power(nu=0.2)
    """

    terms: TermsOf = "ce"
    start: int | float | str = 0
    weights: Part | None = None
    loss: str | Part = "vs"

    def __post_init__(self) -> None:
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
        return TERMS[self.terms.name].slope if isinstance(self.terms, Part) else None

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
            built = self.terms(class_counts)
            if not isinstance(built, Terms):
                raise RecipeError(f"{self.terms!r} must return Terms, got {type(built).__name__}.")
        if built.num_classes != class_counts.numel():
            raise RecipeError(
                f"the terms of {self} have {built.num_classes} classes, class_counts "
                f"{class_counts.numel()}."
            )
        if self.weights is None:
            return built
        weigh, _ = WEIGHTS[self.weights.name]
        alpha = weigh(class_counts, **dict(self.weights.hyper), allow_empty=allow_empty)
        return built.replace(alpha=alpha)

    @property
    def scale(self) -> float:
        """The factor that makes logits of the model's output: that of a cosine head, else 1."""
        return dict(self.terms.hyper).get("scale", 1.0) if isinstance(self.terms, Part) else 1.0

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
    if isinstance(value, float):
        number(name, value, low=0, high=1, high_open=True)
    else:
        whole_number(name, value, low=0)


def epoch_of(name: str, value: int | float, epochs: int) -> int:
    """Return the epoch that an int (epochs) or a float (fraction of training) means.

    >>> epoch_of("defer_at", 0.8, 200), epoch_of("defer_at", 160, 200)
    (160, 160)
    """
    _check_epoch(name, value)
    if isinstance(value, float):
        # Rounded down, so that a phase that starts late has an epoch however short the training.
        return math.floor(value * epochs + 1e-9)
    if value >= epochs:
        raise ArgumentError(
            f"{name}={value} lies beyond the training of epochs={epochs}; "
            f"legal are 0 to {epochs - 1}, or a fraction in [0, 1)."
        )
    return int(value)
