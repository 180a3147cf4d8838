"""Numbers over seeds: mean, spread, difference, and how they are written."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["NOTHING", "Difference", "Spread", "difference", "percent", "points", "spread_of"]

NOTHING = "n/a"
"""What is written where there is no number; a number that is not there is not 0."""


@dataclass(frozen=True)
class Spread:
    """One number of several runs.

    Args:
        values: the finite ones.
        runs: how many runs there were, those without a finite value included.
    """

    values: tuple[float, ...]
    runs: int

    @property
    def mean(self) -> float:
        """Their mean; NaN without values."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def deviation(self) -> float:
        """Their sample standard deviation; NaN with fewer than two values."""
        return statistics.stdev(self.values) if len(self.values) > 1 else math.nan

    @property
    def missing(self) -> int:
        """Runs without a finite value."""
        return self.runs - len(self.values)


def spread_of(values: Iterable[object]) -> Spread:
    """Return the spread of what is finite among ``values``.

    >>> s = spread_of([0.4, 0.6, float("nan"), None])
    >>> round(s.mean, 2), s.missing
    (0.5, 2)
    """
    listed = list(values)
    numbers = (float(v) for v in listed if isinstance(v, (int, float)) and not isinstance(v, bool))
    return Spread(tuple(v for v in numbers if math.isfinite(v)), len(listed))


@dataclass(frozen=True)
class Difference:
    """A difference of means and its spread.

    Args:
        mean: NaN where one of the two is missing.
        spread: sqrt(s_a^2 + s_b^2) of the two standard deviations; NaN where one is unknown.
    """

    mean: float
    spread: float

    @property
    def exists(self) -> bool:
        """Whether there is a number at all."""
        return math.isfinite(self.mean)

    @property
    def within(self) -> bool:
        """Whether seeds alone could make it; False where the spread is unknown."""
        return abs(self.mean) <= self.spread


def difference(a: Spread, b: Spread) -> Difference:
    """Return ``a`` minus ``b``.

    Runs are not paired by seed: with the two or three seeds that are usual, the deviation of
    paired differences is small by luck too often.
    """
    return Difference(a.mean - b.mean, math.hypot(a.deviation, b.deviation))


def percent(value: float, digits: int = 1) -> str:
    """Write a fraction in percent, without the sign.

    >>> percent(0.4567), percent(float("nan"))
    ('45.7', 'n/a')
    """
    return f"{100 * value:.{digits}f}" if math.isfinite(value) else NOTHING


def points(value: float, digits: int = 1) -> str:
    """Write a difference of fractions in percentage points, with its sign.

    >>> points(0.123), points(-1e-9)
    ('+12.3', '0.0')
    """
    if not math.isfinite(value):
        return NOTHING
    text = f"{abs(100 * value):.{digits}f}"
    if float(text) == 0:
        return text
    return ("+" if value > 0 else "\N{MINUS SIGN}") + text
