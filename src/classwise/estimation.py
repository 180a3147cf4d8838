"""How a criterion turns the statistics of an epoch into slopes: named parts and three presets.

The paper leaves the estimator open and its published code does something else, so every choice is
a field of ``SlopeConfig``, and a preset is a set of choices.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from classwise._checks import known_name, number, whole_number
from classwise.calibration import FALLBACKS, METHODS, POOLS, REGRESSORS, chained_slopes, levels
from classwise.errors import ArgumentError
from classwise.stats.bins import GROUPINGS, BinTable
from classwise.stats.shots import Shots

__all__ = ["PRESETS", "SlopeConfig", "SlopeSetting", "estimate", "extreme", "slope_config"]

_EPS = 1e-6  # of the published reciprocal, 1 / (slope + 1e-6)
# The published clamp reaches a factor 20; what a hundredfold logit does to training is another
# thing altogether.
_EXTREME = 100.0


@dataclass(frozen=True)
class SlopeConfig:
    """The parts of a slope estimator.

    Args:
        group_by: which class a sample informs: ``"target"``, ``"prediction"`` or ``"score"``, see
            ``classwise.stats.bins``.
        logits: what is binned: ``"raw"`` logits, or ``"adjusted"`` ones, which the cross-entropy
            sees and the proofs of Propositions 2 and 3 speak of.
        star_on: regressor of kappa*, ``"logit"`` as in the paper or ``"confidence"``.
        method: ``"lstsq"`` or ``"huber"``.
        pool: classes that share a slope, see ``classwise.slopes``.
        fallback: what a class with too little data takes, see ``classwise.slopes``.
        min_count: samples below which a slope is not believed.
        num_bins: equal bins on (0, 1].
        reciprocal: kappa is 1 / slope.
        shrink: pseudo-samples n0 that pull log kappa towards the fallback's by n0 / (n + n0), n
            being the samples in the class's own bins (all samples for ``"score"``, where it does
            next to nothing); 0 does not pull.
        center: divide kappa* by its geometric mean: a common factor of beta is a temperature.
        bound: (low, high) that kappa is kept in, or None. A class for which no level has enough
            data gets 1 whatever the bound, as published.
        momentum: of the running mean over epochs, in [0, 1); 0 keeps the last epoch only.
        across_phases: whether the first epoch of a phase may use what the phase before measured.
    """

    group_by: str = "target"
    logits: str = "raw"
    star_on: str = "logit"
    method: str = "lstsq"
    pool: str | None = None
    fallback: str = "all"
    min_count: int = 10
    num_bins: int = 20
    reciprocal: bool = False
    shrink: float = 0.0
    center: bool = False
    bound: tuple[float, float] | None = None
    momentum: float = 0.0
    across_phases: bool = True

    def __post_init__(self) -> None:
        known_name("group_by", self.group_by, GROUPINGS)
        known_name("logits", self.logits, ("raw", "adjusted"))
        known_name("star_on", self.star_on, REGRESSORS)
        known_name("method", self.method, METHODS)
        if self.pool is not None:
            known_name("pool", self.pool, POOLS)
        known_name("fallback", self.fallback, FALLBACKS)
        whole_number("min_count", self.min_count, low=1)
        whole_number("num_bins", self.num_bins, low=2)
        for name in ("reciprocal", "center", "across_phases"):
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(f"{name}={getattr(self, name)!r} must be True or False.")
        number("shrink", self.shrink, low=0)
        number("momentum", self.momentum, low=0, high=1, high_open=True)
        if self.bound is not None:
            if not isinstance(self.bound, (tuple, list)) or len(self.bound) != 2:
                raise ArgumentError(f"bound={self.bound!r} must be (low, high) or None.")
            low = number("bound[0]", self.bound[0], low=0, low_open=True)
            high = number("bound[1]", self.bound[1], low=low)
            object.__setattr__(self, "bound", (low, high))

    def replace(self, **parts: object) -> SlopeConfig:
        """Return the estimator with some parts exchanged."""
        known = [f.name for f in dataclasses.fields(self)]
        for name in parts:
            known_name("the name of a part", name, known)
        return dataclasses.replace(self, **parts)


PRESETS: dict[str, SlopeConfig] = {
    # The text, read literally (paper Sec. 5).
    "paper": SlopeConfig(),
    # The published code, its CIFAR-100-LT script: reciprocal of the slope, predicted class,
    # confidence for both slopes, clamped, running mean. Its memory of at most min(1000, N_c) latest
    # samples per true class is approximated by all samples of the last epoch, which is the same
    # where no class has more than 1000.
    "released": SlopeConfig(
        group_by="prediction",
        star_on="confidence",
        fallback="one",
        reciprocal=True,
        bound=(0.05, 0.2),
        momentum=0.9,
        across_phases=False,
    ),
    # What the assumptions say, tamed: slopes of what the cross-entropy sees.
    "stable": SlopeConfig(
        group_by="prediction",
        logits="adjusted",
        fallback="shots",
        shrink=50.0,
        center=True,
        bound=(1 / 1.5, 1.5),
        momentum=0.9,
    ),
}

SlopeSetting: TypeAlias = str | SlopeConfig | None
"""A preset's name, an estimator, or None: no slopes, no statistics."""


def slope_config(setting: SlopeSetting) -> SlopeConfig | None:
    """Return the estimator that a setting means."""
    if setting is None or isinstance(setting, SlopeConfig):
        return setting
    return PRESETS[known_name("slopes", setting, PRESETS)]


def estimate(table: BinTable, config: SlopeConfig, shots: Shots, *, star: bool) -> Tensor:
    """Return kappa* (``star``) or kappa+ of each class from one epoch's table, (C,), positive.

    Args:
        table: of the epoch.
        config: the estimator; its momentum is the caller's.
        shots: groups of classes by training counts.
        star: kappa*, or else kappa+.
    """
    on = config.star_on if star else "confidence"
    chain = levels(table, config.pool, config.fallback, shots)

    def slopes(levels_used: list[Tensor]) -> Tensor:
        return chained_slopes(
            table,
            on,
            levels_used,
            method=config.method,
            min_count=config.min_count,
            # The reciprocal of a slope of 0 is large and then clamped, as published.
            allow_zero=config.reciprocal,
        )

    kappa = slopes(chain)
    unknown = torch.isnan(kappa)
    kappa = torch.where(unknown, 1.0, kappa)
    if config.shrink:
        samples = table.count.sum(1).to(kappa.dtype)
        own = samples / (samples + config.shrink)
        towards = slopes(chain[1:]).nan_to_num(nan=1.0)
        kappa = (own * kappa.log() + (1 - own) * towards.log()).exp()
    if config.reciprocal:
        kappa = 1 / (kappa + _EPS)
    if config.center and star:
        kappa = (kappa.log() - kappa.log()[~unknown].mean()).exp()
    if config.bound is not None:
        kappa = kappa.clamp(*config.bound)
    return torch.where(unknown, 1.0, kappa)


def extreme(kappa_star: Tensor) -> str:
    """Say which classes have a kappa* that makes logits explode or vanish; "" where none has.

    beta is divided by kappa*, so a kappa* of 1/100 multiplies the logits of its class by 100.

    >>> extreme(torch.tensor([1.0, 0.3, 0.002]))[:66]
    'kappa* of class 2 is 0.002, so its logits are multiplied by 500; 1'
    >>> extreme(torch.tensor([1.0, 0.3]))
    ''
    """
    off = kappa_star.log().abs()
    worst = int(off.argmax())
    if float(off[worst]) <= math.log(_EXTREME):
        return ""
    beyond = int((off > math.log(_EXTREME)).sum())
    kappa = float(kappa_star[worst])
    return (
        f"kappa* of class {worst} is {kappa:.3g}, so its logits are multiplied by {1 / kappa:.3g}; "
        f"{beyond} of {len(kappa_star)} classes are off by more than {_EXTREME:g}. Training may "
        "diverge or stand still. Use slopes='stable', which keeps kappa* near 1, or a SlopeConfig "
        "with a bound=(low, high)."
    )
