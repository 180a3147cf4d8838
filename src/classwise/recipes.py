"""Methods as data: a recipe is a few phases, and a name like ``"cvs+adrw"`` is parsed into one.

    BASE[+tla][+drw|+adrw]

``+tla`` drops beta at T0 (truncated logit adjustment), ``+drw`` gives the classes effective-number
weights from T0 on, ``+adrw`` weights pi^-nu. ``BASES`` is the registry: one entry, one method.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from classwise._checks import known_name, nearest
from classwise._hyper import ALIASES, CRITERION_KEYWORDS, DEFAULTS, checked
from classwise.errors import RecipeError, UnknownNameError
from classwise.phases import DEFER, Part, Phase, epoch_of

__all__ = ["BASES", "SUFFIXES", "Base", "MethodRow", "Part", "Phase", "Recipe", "list_methods"]


@dataclass(frozen=True)
class Recipe:
    """A method: phases in the order in which they begin.

    Args:
        phases: the first starts at 0.
        name: to recognise it by.

    >>> print(Recipe.parse("cvs+adrw", nu=0.25))
    cvs+adrw: mla(gamma=0.01) | from defer: cla(tau=0.9), weights power(nu=0.25)
    >>> mine = Recipe([Phase("ce"), Phase(Part("la", tau=1.0), start=0.5)], name="late la")
    >>> print(mine)
    late la: ce() | from 0.5: la(tau=1)
    """

    phases: Sequence[Phase]
    name: str = "custom"

    def __post_init__(self) -> None:
        if not isinstance(self.phases, Sequence):
            raise RecipeError(
                f"phases must be a list of Phase, got {type(self.phases).__name__}; "
                "Recipe.parse makes them from a method's name."
            )
        object.__setattr__(self, "phases", tuple(self.phases))
        if not self.phases or not all(isinstance(phase, Phase) for phase in self.phases):
            raise RecipeError("a recipe needs at least one Phase, and nothing but phases.")
        if self.phases[0].start != 0:
            raise RecipeError(f"the first phase must start at 0, not at {self.phases[0].start!r}.")

    @property
    def needs_features(self) -> bool:
        """Whether any phase wants what the last layer sees, as ``features`` beside the logits.

        >>> Recipe.parse("ib").needs_features
        True
        """
        return any(phase.spec.needs_features for phase in self.phases)

    @property
    def needs_cosine_head(self) -> bool:
        """Whether any phase wants cosines: a head with normalised features and weights, no bias.

        >>> Recipe.parse("ldam+drw").needs_cosine_head
        True
        """
        return any(phase.needs_cosine_head for phase in self.phases)

    @property
    def leans_on_slopes(self) -> bool:
        """Whether any phase uses measured slopes; others train the same with ``slopes=None``.

        >>> Recipe.parse("cvs").leans_on_slopes, Recipe.parse("vs").leans_on_slopes
        (True, False)
        """
        return any(phase.slope is not None for phase in self.phases)

    def starts(self, epochs: int, defer_at: int | float) -> list[int]:
        """Return the first epoch of each phase."""
        first = [
            epoch_of("start", defer_at if phase.start == DEFER else phase.start, epochs)  # type: ignore[arg-type]
            for phase in self.phases
        ]
        if first != sorted(first):
            raise RecipeError(
                f"the phases of {self.name!r} start at {first}, which is not in order."
            )
        return first

    @classmethod
    def parse(cls, method: str, **hyper: float) -> Recipe:
        """Return the recipe of a method's name, BASE[+tla][+drw|+adrw].

        Args:
            method: such as ``"ldam+drw"``; see ``list_methods``.
            hyper: hyper-parameters other than their defaults.
        """
        base, suffixes = _split(method)
        values = _hyper_values(base, suffixes, hyper)
        phases = list(base.phases(values))
        if "tla" in suffixes:
            assert base.truncated is not None
            phases.append(Phase(base.truncated(values), start=DEFER))
        weights = None
        if "drw" in suffixes:
            weights = Part("effective_number", p=values["p"])
        elif "adrw" in suffixes:
            weights = Part("power", nu=values["nu"])
        if weights is not None:
            last = phases.pop() if phases[-1].start == DEFER else phases[-1]
            phases.append(dataclasses.replace(last, start=DEFER, weights=weights))
        return cls(phases, name="+".join([base.name, *suffixes]))

    def __str__(self) -> str:
        return f"{self.name}: {' | '.join(map(str, self.phases))}"


_Values: TypeAlias = dict[str, float]

_NO_BETA = "it has no multiplicative term that could be dropped at T0"
_WEIGHTED = "it already weighs the classes from the first epoch on"


@dataclass(frozen=True)
class Base:
    """One method of the registry.

    Args:
        name: in the grammar.
        title: what it is called.
        source: who proposed it.
        phases: from hyper-parameters to phases, without any suffix.
        hyper: names of its hyper-parameters; defaults are in ``classwise._hyper.DEFAULTS``.
        truncated: its terms without beta, for ``+tla``.
        refuses: suffixes that mean nothing for it, and why.
    """

    name: str
    title: str
    source: str
    phases: Callable[[_Values], Sequence[Phase]]
    hyper: tuple[str, ...] = ()
    truncated: Callable[[_Values], Part] | None = None
    refuses: Mapping[str, str] = field(default_factory=dict)


BASES: dict[str, Base] = {
    base.name: base
    for base in (
        Base(
            "ce",
            "Cross-entropy",
            "",
            lambda h: [Phase("ce")],
            refuses={"tla": _NO_BETA},
        ),
        Base(
            "balanced",
            "Inverse-frequency weights",
            "Morik et al., ICML 1999",
            lambda h: [Phase("balanced")],
            refuses={"tla": _NO_BETA, "drw": _WEIGHTED, "adrw": _WEIGHTED},
        ),
        Base(
            "cb",
            "Class-balanced loss (effective number of samples)",
            "Cui et al., CVPR 2019",
            lambda h: [Phase(Part("class_balanced", p=h["p"]))],
            hyper=("p",),
            refuses={"tla": _NO_BETA, "drw": _WEIGHTED, "adrw": _WEIGHTED},
        ),
        Base(
            "focal",
            "Focal loss",
            "Lin et al., ICCV 2017",
            lambda h: [Phase("ce", loss=Part("focal", gamma=h["gamma"]))],
            hyper=("gamma",),
            refuses={"tla": _NO_BETA},
        ),
        Base(
            "la",
            "Logit adjustment (balanced softmax)",
            "Menon et al., ICLR 2021",
            lambda h: [Phase(Part("la", tau=h["tau"]))],
            hyper=("tau",),
            refuses={"tla": _NO_BETA},
        ),
        Base(
            "cdt",
            "Class-dependent temperatures",
            "Ye et al., 2020",
            lambda h: [Phase(Part("cdt", gamma=h["gamma"]))],
            hyper=("gamma",),
            truncated=lambda h: Part("ce"),
        ),
        Base(
            "vs",
            "Vector scaling",
            "Kini et al., NeurIPS 2021",
            lambda h: [Phase(Part("vs", tau=h["tau"], gamma=h["gamma"]))],
            hyper=("tau", "gamma"),
            truncated=lambda h: Part("la", tau=h.get("deferred_tau", h["tau"])),
        ),
        Base(
            "ldam",
            "Label-distribution-aware margins",
            "Cao et al., NeurIPS 2019",
            lambda h: [Phase(Part("ldam", max_margin=h["max_margin"], scale=h["scale"]))],
            hyper=("max_margin", "scale"),
            refuses={"tla": "its beta is the scale of cosine logits, not an adjustment"},
        ),
        Base(
            "ala",
            "Adaptive logit adjustment",
            "Zhao et al., AAAI 2022",
            lambda h: [Phase(Part("ala", scale=h["scale"]), loss="ala")],
            hyper=("scale",),
            refuses={"tla": "its beta is the scale of cosine logits, not an adjustment"},
        ),
        Base(
            "ib",
            "Influence-balanced loss",
            "Park et al., ICCV 2021",
            lambda h: [
                Phase("ce"),
                Phase(
                    "ce",
                    start=float(h["start"]),
                    weights=Part("power", nu=1.0),
                    loss=Part("influence", strength=h["strength"]),
                ),
            ],
            hyper=("strength", "start"),
            refuses={
                "tla": _NO_BETA,
                "drw": "it brings its own class weights from its own start on",
                "adrw": "it brings its own class weights from its own start on",
            },
        ),
        Base(
            "lade",
            "Label distribution disentangling",
            "Hong et al., CVPR 2021",
            lambda h: [
                Phase(
                    Part("la", tau=1.0),
                    loss=Part("lade", weight=h["weight"], remine=h["remine"]),
                )
            ],
            hyper=("weight", "remine"),
            refuses={
                "tla": _NO_BETA,
                "drw": "its regulariser is over the batch, which class weights do not reach",
                "adrw": "its regulariser is over the batch, which class weights do not reach",
            },
        ),
        Base(
            "mla",
            "Multiplicative logit adjustment, with slopes",
            "paper Eq. 11",
            lambda h: [Phase(Part("mla", gamma=h["gamma"]))],
            hyper=("gamma",),
            refuses={"tla": "nothing would be left of it; 'cvs' is MLA followed by CLA"},
        ),
        Base(
            "cla",
            "Calibrated (additive) logit adjustment, with slopes",
            "paper Eq. 10",
            lambda h: [Phase(Part("cla", tau=h["tau"]))],
            hyper=("tau",),
            refuses={"tla": _NO_BETA},
        ),
        Base(
            "cvs",
            "Consistent vector scaling: MLA, then CLA",
            "paper Eq. 12, Algorithm 1",
            lambda h: [
                Phase(Part("mla", gamma=h["gamma"])),
                Phase(Part("cla", tau=h["tau"]), start=DEFER),
            ],
            hyper=("gamma", "tau"),
            refuses={"tla": "it already drops beta at T0"},
        ),
    )
}

SUFFIXES: dict[str, tuple[str, ...]] = {"tla": (), "drw": ("p",), "adrw": ("nu",)}


def _split(method: str) -> tuple[Base, list[str]]:
    """Return the base and the suffixes of a method's name, or say why there is no such method."""
    if not isinstance(method, str):
        raise RecipeError(f"method must be a name or a Recipe, got {type(method).__name__}.")
    name, *suffixes = method.strip().lower().split("+")
    base = BASES[known_name("method", name, BASES)]
    for suffix in suffixes:
        known_name(f"the suffix of method {method!r}", suffix, SUFFIXES)
        if suffix in base.refuses:
            raise RecipeError(f"{name}+{suffix} is no method: {base.refuses[suffix]}.")
    if "drw" in suffixes and "adrw" in suffixes:
        raise RecipeError(
            f"method {method!r}: drw and adrw both set the weights from T0 on; take one."
        )
    ordered = [s for s in SUFFIXES if s in suffixes]
    if ordered != suffixes:
        raise RecipeError(
            f"method {method!r} is written {'+'.join([name, *ordered])!r}: "
            "BASE[+tla][+drw|+adrw], each at most once."
        )
    return base, suffixes


def _hyper_values(base: Base, suffixes: Sequence[str], given: Mapping[str, float]) -> _Values:
    """Return all hyper-parameters of a method: those given, checked, and defaults."""
    sources = dict.fromkeys(base.hyper, base.name)
    sources.update({name: suffix for suffix in suffixes for name in SUFFIXES[suffix]})
    # The truncated phase may have a tau of its own; without one it keeps the base's.
    optional = ("deferred_tau",) if "tla" in suffixes and "tau" in base.hyper else ()
    takes = (*sources, *optional)
    for name in given:
        if name in takes:
            continue
        method = "+".join([base.name, *suffixes])
        listed = ", ".join(takes) or "no hyper-parameters"
        hint = nearest(name, (*takes, *CRITERION_KEYWORDS))
        if ALIASES.get(name) in (*takes, *CRITERION_KEYWORDS):
            hint = f"; here it is called {ALIASES[name]!r}."
        raise UnknownNameError(f"{method!r} takes {listed}, not {name!r}{hint}")
    values = {name: DEFAULTS[source, name].value for name, source in sources.items()}
    return {**values, **{name: checked(name, value) for name, value in given.items()}}


@dataclass(frozen=True)
class MethodRow:
    """What ``list_methods`` says of a method.

    Args:
        name: in the grammar.
        title: what it is called.
        suffixes: those that it can carry.
        recipe: its phases with default hyper-parameters.
        defaults: hyper-parameters, (value, source of the value).
        needs: what it wants beside plain logits, or an empty string.
        source: who proposed it.
    """

    name: str
    title: str
    suffixes: tuple[str, ...]
    recipe: str
    defaults: dict[str, tuple[float, str]]
    needs: str
    source: str


def list_methods() -> list[MethodRow]:
    """Return one row for each base method, from the registry.

    >>> [row.name for row in list_methods()][:4]
    ['ce', 'balanced', 'cb', 'focal']
    """
    return [_row(base, Recipe.parse(base.name)) for base in BASES.values()]


def _row(base: Base, recipe: Recipe) -> MethodRow:
    needs = {
        "cosine logits": recipe.needs_cosine_head,
        "features of the last layer": recipe.needs_features,
    }
    return MethodRow(
        name=base.name,
        title=base.title,
        suffixes=tuple(s for s in SUFFIXES if s not in base.refuses),
        recipe=str(recipe),
        defaults={
            name: (DEFAULTS[base.name, name].value, DEFAULTS[base.name, name].source)
            for name in base.hyper
        },
        needs=", ".join(what for what, wanted in needs.items() if wanted),
        source=base.source,
    )
