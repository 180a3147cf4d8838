"""What a table of reliability bins says: slopes, calibration errors, reliability curves.

Pure functions of a ``classwise.BinTable``, vectorised over classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from classwise._checks import known_name, whole_number
from classwise.errors import ArgumentError
from classwise.stats.bins import BinTable
from classwise.stats.shots import Shots, group_index
from classwise.stats.shots import shots as shots_of

__all__ = [
    "FALLBACKS",
    "METHODS",
    "POOLS",
    "REGRESSORS",
    "CalibrationError",
    "Curve",
    "calibration_error",
    "fit",
    "reliability",
    "slopes",
]

REGRESSORS = ("confidence", "logit")
METHODS = ("lstsq", "huber")
POOLS = ("few", "shots", "all")
FALLBACKS = ("shots", "all", "one")

_HUBER_DELTA = 0.1
_HUBER_STEPS = 64


@dataclass(frozen=True, eq=False)
class Fit:
    """Slopes of some groups, and which of them have the data to be believed; (G,) both."""

    slope: Tensor
    usable: Tensor


def slopes(
    table: BinTable,
    *,
    on: str = "confidence",
    method: str = "lstsq",
    pool: str | None = None,
    shots: Shots | None = None,
    fallback: str = "all",
    min_count: int = 10,
) -> Tensor:
    """Return the slope of accuracy on confidence (kappa+) or on the logit (kappa*) of each class.

        kappa_c = argmin_k sum_b n_cb * (accuracy_cb - k * regressor_cb)^2

    a line through the origin, bins weighted by their samples. A kappa+ below 1 is over-confidence.
    Assumption 2 (asm:local_linear) is about kappa+, Assumption 3 (asm:local_nonlinear) kappa*.

    A class has too little data with fewer than ``min_count`` samples, fewer than two filled bins or
    a slope that is not positive. It then takes the slope of its fallback, and 1 if that fails too.

    Args:
        table: from ``classwise.ClassBins.compute``.
        on: the regressor, ``"confidence"`` or ``"logit"``.
        method: ``"lstsq"``, or ``"huber"`` for bins that are outliers (off by more than 0.1).
        pool: classes that share one slope: those with ``"few"`` samples, each group of ``"shots"``,
            or ``"all"``; None gives every class its own.
        shots: the groups that ``pool`` and ``fallback`` mean, see ``classwise.shots``; None
            makes them from the samples that the table has seen of each class.
        fallback: ``"shots"`` (the class's group, then all classes), ``"all"`` or ``"one"``.
        min_count: samples below which a slope is not believed.

    Returns:
        (C,) in the table's dtype, positive and finite.

    >>> import torch, classwise as cw
    >>> bins = cw.ClassBins(2)
    >>> p = torch.full((100, 1), 0.8)
    >>> bins.update(torch.cat([p, 1 - p], 1).log(), (torch.arange(100) % 5 == 0).long())
    >>> cw.slopes(bins.compute(), pool="all").round(decimals=2).tolist()
    [1.0, 1.0]
    """
    known_name("on", on, REGRESSORS)
    known_name("method", method, METHODS)
    known_name("fallback", fallback, FALLBACKS)
    if pool is not None:
        known_name("pool", pool, POOLS)
    min_count = whole_number("min_count", min_count, low=1)
    chain = levels(_checked(table), pool, fallback, shots)
    slope = chained_slopes(table, on, chain, method=method, min_count=min_count)
    return slope.nan_to_num(nan=1.0)


def _checked(table: object) -> BinTable:
    if isinstance(table, BinTable):
        return table
    raise ArgumentError(
        f"table must be a BinTable, got {type(table).__name__}; call compute() on ClassBins."
    )


def levels(table: BinTable, pool: str | None, fallback: str, shots: Shots | None) -> list[Tensor]:
    """Return, from the finest down, the group that each class belongs to, int64 (C,) each."""
    device, classes = table.count.device, table.num_classes
    everyone = torch.zeros(classes, dtype=torch.int64, device=device)
    own = torch.arange(classes, device=device)
    if pool in ("few", "shots") or fallback == "shots":
        if shots is None:
            shots = shots_of(table.seen.clamp(min=1).cpu())
        by_shots = group_index(shots, classes).to(device)
    else:
        by_shots = everyone
    if pool == "few":
        if shots is None or "few" not in shots:
            raise ArgumentError(f"pool='few' needs a group 'few', got {', '.join(shots or ())}.")
        few = shots["few"].to(device)
        # The few share the row of the first of them.
        own = torch.where(few, few.to(torch.int64).argmax(), own)
    finest = {None: own, "few": own, "shots": by_shots, "all": everyone}[pool]
    coarser = {"shots": [by_shots, everyone], "all": [everyone], "one": []}[fallback]
    return [finest, *coarser]


def chained_slopes(
    table: BinTable,
    on: str,
    chain: list[Tensor],
    *,
    method: str = "lstsq",
    min_count: int = 10,
    allow_zero: bool = False,
) -> Tensor:
    """Return each class's slope at the finest level where its group has enough data, else NaN."""
    slope = torch.full_like(table.accuracy[:, 0], torch.nan)
    for rows in reversed(chain):
        fitted = fit(table.merged(rows), on, method, min_count, allow_zero=allow_zero)
        slope = torch.where(fitted.usable[rows], fitted.slope[rows], slope)
    return slope


def fit(table: BinTable, on: str, method: str, min_count: int, *, allow_zero: bool = False) -> Fit:
    """Fit one line through the origin per row of the table, without any fallback."""
    regressor = getattr(table, on)
    weight = table.count.to(regressor.dtype)
    slope = (_huber if method == "huber" else _lstsq)(weight, table.accuracy, regressor)
    usable = (
        (table.count.sum(1) >= min_count)
        & ((table.count > 0).sum(1) >= 2)
        & torch.isfinite(slope)
        & ((slope >= 0) if allow_zero else (slope > 0))
    )
    return Fit(slope=slope, usable=usable)


def _lstsq(weight: Tensor, accuracy: Tensor, regressor: Tensor) -> Tensor:
    return (weight * accuracy * regressor).sum(1) / (weight * regressor.square()).sum(1)


def _huber(weight: Tensor, accuracy: Tensor, regressor: Tensor) -> Tensor:
    """Minimise the summed Huber loss of accuracy - k * regressor, all rows at once.

    It is convex in k and its minimum lies between the smallest and the largest ratio of the filled
    bins, so the sign of its derivative is bisected. NaN for a row without filled bins.
    """
    ratio = torch.where((weight > 0) & (regressor != 0), accuracy / regressor, torch.nan)
    low = ratio.nan_to_num(nan=torch.inf).amin(1)
    high = ratio.nan_to_num(nan=-torch.inf).amax(1)
    for _ in range(_HUBER_STEPS):
        middle = (low + high) / 2
        pull = (accuracy - middle[:, None] * regressor).clamp(-_HUBER_DELTA, _HUBER_DELTA)
        rises = (weight * regressor * pull).sum(1) > 0
        low, high = torch.where(rises, middle, low), torch.where(rises, high, middle)
    return (low + high) / 2


@dataclass(frozen=True, eq=False)
class CalibrationError:
    """Expected and maximum calibration error (Eq. 9).

    Args:
        ece: over all samples, a scalar; NaN without samples.
        mce: over all samples, a scalar; NaN without samples.
        class_ece: of each class, (C,); NaN for a class without samples.
        class_mce: of each class, (C,); NaN for a class without samples.
        group_ece: of each group of classes that has samples, by name.
        group_mce: of each group of classes that has samples, by name.
    """

    ece: Tensor
    mce: Tensor
    class_ece: Tensor
    class_mce: Tensor
    group_ece: dict[str, Tensor]
    group_mce: dict[str, Tensor]


def calibration_error(table: BinTable, shots: Shots | None = None) -> CalibrationError:
    """Return ECE and MCE over all samples, per class and per group of classes.

        ECE = sum_b n_b / N * |Acc(B_b) - Conf(B_b)|,    MCE = max_b |Acc(B_b) - Conf(B_b)|    Eq. 9

    The samples of a group are binned together before the differences are taken, as the paper's
    figures do. Group by target on raw test logits to reproduce them; with ``group_by="score"`` the
    errors are class-wise ones.

    Args:
        table: from ``classwise.ClassBins.compute``.
        shots: groups of classes, each class in exactly one; see ``classwise.shots``.

    >>> import torch, classwise as cw
    >>> bins = cw.ClassBins(2)
    >>> bins.update(torch.tensor([[0.9, 0.1], [0.9, 0.1]]).log(), torch.tensor([0, 1]))
    >>> round(float(cw.calibration_error(bins.compute()).ece), 3)
    0.4
    """
    table = _checked(table)
    everyone = torch.zeros(table.num_classes, dtype=torch.int64, device=table.count.device)
    (ece,), (mce,) = _errors(table.merged(everyone))
    class_ece, class_mce = _errors(table)
    group_ece: dict[str, Tensor] = {}
    group_mce: dict[str, Tensor] = {}
    for name, row in _merged_groups(table, shots):
        if bool(row.count.any()):
            (group_ece[name],), (group_mce[name],) = _errors(row)
    return CalibrationError(ece, mce, class_ece, class_mce, group_ece, group_mce)


def _errors(table: BinTable) -> tuple[Tensor, Tensor]:
    gap = (table.accuracy - table.confidence).abs()  # 0 in an empty bin
    samples = table.count.sum(1)
    expected = (table.count * gap).sum(1) / samples
    return expected, torch.where(samples > 0, gap.amax(1), torch.nan)


@dataclass(frozen=True, eq=False)
class Curve:
    """One reliability curve: samples, accuracy and mean confidence of each bin, (B,) each.

    Empty bins have count 0 and are NaN in the others, so that a plot leaves them out.
    """

    count: Tensor
    accuracy: Tensor
    confidence: Tensor


def reliability(table: BinTable, shots: Shots | None = None) -> dict[str, Curve]:
    """Return the reliability curves of all samples (``"all"``) and of each group of classes.

    These are the panels of the paper's Figure 1. A group without samples is absent.

    Args:
        table: from ``classwise.ClassBins.compute``.
        shots: groups of classes, each class in exactly one; see ``classwise.shots``.

    >>> import torch, classwise as cw
    >>> bins = cw.ClassBins(2, num_bins=10)
    >>> bins.update(torch.tensor([[0.9, 0.1], [0.9, 0.1]]).log(), torch.tensor([0, 1]))
    >>> cw.reliability(bins.compute())["all"].accuracy[8].item()
    0.5
    """
    table = _checked(table)
    everyone = torch.zeros(table.num_classes, dtype=torch.int64, device=table.count.device)
    curves = {"all": _curve(table.merged(everyone))}
    for name, row in _merged_groups(table, shots):
        if bool(row.count.any()):
            curves[name] = _curve(row)
    return curves


def _curve(row: BinTable) -> Curve:
    count = row.count[0]
    return Curve(
        count=count,
        accuracy=torch.where(count > 0, row.accuracy[0], torch.nan),
        confidence=torch.where(count > 0, row.confidence[0], torch.nan),
    )


def _merged_groups(table: BinTable, groups: Shots | None) -> Iterator[tuple[str, BinTable]]:
    if groups is None:
        return
    rows = group_index(groups, table.num_classes).to(table.count.device)
    merged = table.merged(rows, height=len(groups))
    columns = (getattr(merged, f.name) for f in fields(BinTable))
    for name, *row in zip(groups, *columns, strict=True):
        yield name, BinTable(*(part[None] for part in row))
