"""Statistics per class, slopes, calibration errors and constants of the theory, in plain loops.

Everything is a Python float, list or dict, computed sample by sample from the paper's equations.
The package is never imported; tensors only carry data in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

Table = dict[str, list[list[float]]]
"""Sums of each (class, bin): ``count``, ``correct``, ``confidence``, ``logit``."""

Groups = dict[str, list[int]]
"""Names of groups and the classes in each."""

SUMS = ("count", "correct", "confidence", "logit")


def softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    powers = [math.exp(z - top) for z in logits]
    total = math.fsum(powers)
    return [p / total for p in powers]


def samples(
    logits: Tensor, target: Tensor, ignore_index: int = -100
) -> Iterator[tuple[list[float], list[float]]]:
    """Yield logits and class probabilities of each sample that counts, of (N, C, d1, ...)."""
    classes = logits.shape[1]
    rows = logits.detach().double().movedim(1, -1).reshape(-1, classes).tolist()
    if target.is_floating_point():
        yield from zip(
            rows, target.double().movedim(1, -1).reshape(-1, classes).tolist(), strict=True
        )
        return
    for row, label in zip(rows, target.flatten().tolist(), strict=True):
        if label != ignore_index:
            yield row, [float(c == label) for c in range(classes)]


def first_largest(values: Sequence[float]) -> int:
    return max(range(len(values)), key=lambda c: (values[c], -c))


def is_usable(logits: Sequence[float]) -> bool:
    if any(math.isnan(z) or z == math.inf for z in logits):
        return False
    return any(z > -math.inf for z in logits)


# Reliability bins


def bin_of(confidence: float, num_bins: int) -> int:
    """The bin ((b - 1) / M, b / M] that holds a confidence, counted from 0."""
    for b in range(num_bins):
        if confidence <= (b + 1) / num_bins:
            return b
    return num_bins - 1


def bins(
    logits: Tensor,
    target: Tensor,
    *,
    num_bins: int = 20,
    group_by: str = "target",
    ignore_index: int = -100,
) -> tuple[Table, list[int], int]:
    """Return sums of each (class, bin), samples of each true class, and skipped samples."""
    classes = logits.shape[1]
    table: Table = {name: [[0.0] * num_bins for _ in range(classes)] for name in SUMS}
    seen, skipped = [0] * classes, 0

    def add(c: int, confidence: float, correct: float, logit: float) -> None:
        b = bin_of(confidence, num_bins)
        for name, value in zip(SUMS, (1, correct, confidence, logit), strict=True):
            table[name][c][b] += value

    for z, q in samples(logits, target, ignore_index):
        if not is_usable(z):
            skipped += 1
            continue
        p, true = softmax(z), first_largest(q)
        predicted = first_largest(p)
        seen[true] += 1
        if group_by == "score":
            for c in range(classes):
                if z[c] > -math.inf:  # a masked class does not see the sample
                    add(c, p[c], q[c], z[c])
        else:
            group = {"target": true, "prediction": predicted}[group_by]
            add(group, p[predicted], q[predicted], z[predicted])
    return table, seen, skipped


def pooled(table: Table, classes: Sequence[int]) -> list[list[float]]:
    """Return, for each bin, the sums over some classes in the order of ``SUMS``."""
    width = len(table["count"][0])
    return [[math.fsum(table[name][c][b] for c in classes) for name in SUMS] for b in range(width)]


# Slopes


def points(table: Table, classes: Sequence[int], on: str) -> list[tuple[float, float, float]]:
    """Return (samples, accuracy, regressor) of the filled bins of some classes together."""
    at = SUMS.index(on)
    rows = [row for row in pooled(table, classes) if row[0] > 0]
    return [(row[0], row[1] / row[0], row[at] / row[0]) for row in rows]


def least_squares(rows: Sequence[tuple[float, float, float]]) -> float:
    """argmin_k sum n (a - k r)^2."""
    below = math.fsum(n * r * r for n, _, r in rows)
    return math.fsum(n * a * r for n, a, r in rows) / below if below > 0 else math.nan


def huber(rows: Sequence[tuple[float, float, float]], threshold: float = 0.1) -> float:
    """argmin_k sum n h(a - k r), where h is quadratic up to the threshold and linear beyond.

    The objective is convex, and its minimum lies between the smallest and the largest a / r.
    Bisection on the sign of its derivative, which a search on values would know to half the digits.
    """
    ratios = [a / r for _, a, r in rows if r != 0]
    if not ratios:
        return math.nan

    def derivative(k: float) -> float:
        return -math.fsum(n * r * max(-threshold, min(threshold, a - k * r)) for n, a, r in rows)

    low, high = min(ratios), max(ratios)
    for _ in range(100):
        middle = (low + high) / 2
        if derivative(middle) > 0:
            high = middle
        else:
            low = middle
    return (low + high) / 2


FITS: dict[str, Callable[[Sequence[tuple[float, float, float]]], float]] = {
    "lstsq": least_squares,
    "huber": huber,
}


def believed(rows: Sequence[tuple[float, float, float]], method: str, min_count: int) -> float:
    """Return the slope, or NaN with too few samples or bins or a slope that is not positive."""
    if sum(n for n, _, _ in rows) < min_count or len(rows) < 2:
        return math.nan
    slope = FITS[method](rows)
    return slope if slope > 0 else math.nan


def slopes(
    table: Table,
    *,
    groups: Groups,
    on: str = "confidence",
    method: str = "lstsq",
    pool: str | None = None,
    fallback: str = "all",
    min_count: int = 10,
) -> list[float]:
    """Return the slope of each class, of its fallback where it has too little data, at last 1."""
    classes = len(table["count"])
    everyone = list(range(classes))
    result = []
    for c in everyone:
        mine = next(members for members in groups.values() if c in members)
        shared = {
            None: [c],
            "few": groups["few"] if c in groups["few"] else [c],
            "shots": mine,
            "all": everyone,
        }[pool]
        chain = [shared, *{"shots": [mine, everyone], "all": [everyone], "one": []}[fallback]]
        found = [believed(points(table, members, on), method, min_count) for members in chain]
        result.append(next((slope for slope in found if not math.isnan(slope)), 1.0))
    return result


def released_slopes(
    logits: Tensor, target: Tensor, low: float, high: float, min_count: int = 10
) -> list[float]:
    """One epoch of the published estimator (methods.md 2.14, E3), before its running mean.

    By predicted class, 20 bins of the largest softmax score, a count-weighted line through the
    origin, its reciprocal, clamped; 1, outside the clamp, with too few predictions or bins.
    """
    table, _, _ = bins(logits, target, group_by="prediction")
    result = []
    for c in range(logits.shape[1]):
        rows = points(table, [c], "confidence")
        if sum(n for n, _, _ in rows) < min_count or len(rows) < 2:
            result.append(1.0)
        else:
            result.append(min(max(1 / (least_squares(rows) + 1e-6), low), high))
    return result


def running_mean(epochs: Sequence[Sequence[float]], momentum: float = 0.9) -> list[float]:
    """Return the exponential running mean over epochs that starts from 1."""
    mean = [1.0] * len(epochs[0])
    for values in epochs:
        mean = [momentum * m + (1 - momentum) * v for m, v in zip(mean, values, strict=True)]
    return mean


# Calibration


def calibration(table: Table, classes: Sequence[int]) -> tuple[float, float]:
    """Return ECE and MCE of some classes together (Eq. 9); NaN without samples."""
    rows = points(table, classes, "confidence")
    total = sum(n for n, _, _ in rows)
    if not total:
        return math.nan, math.nan
    gaps = [(n, abs(a - r)) for n, a, r in rows]
    return math.fsum(n * gap for n, gap in gaps) / total, max(gap for _, gap in gaps)


# Floors and accuracy


def floors(
    logits: Tensor,
    target: Tensor,
    beta: Sequence[float],
    delta: Sequence[float],
    ignore_index: int = -100,
) -> dict[str, list[float]]:
    """Return min f_y, min margin, min softmax(beta f + delta)_y and max rival of each class.

    Infinite where a class has no sample, -infinite the rival.
    """
    classes = logits.shape[1]
    result = {
        "logit": [math.inf] * classes,
        "margin": [math.inf] * classes,
        "probability": [math.inf] * classes,
        "rival": [-math.inf] * classes,
    }
    for z, q in samples(logits, target, ignore_index):
        if not is_usable(z):
            continue
        y = first_largest(q)
        rival = max(z[c] for c in range(classes) if c != y)
        p = softmax([b * s + d for b, s, d in zip(beta, z, delta, strict=True)])
        result["logit"][y] = min(result["logit"][y], z[y])
        result["margin"][y] = min(result["margin"][y], z[y] - rival)
        result["probability"][y] = min(result["probability"][y], p[y])
        result["rival"][y] = max(result["rival"][y], rival)
    return result


def accuracy(
    logits: Tensor, target: Tensor, groups: Groups, ignore_index: int = -100
) -> tuple[list[float], dict[str, float]]:
    """Return the accuracy of each class (NaN if absent), and means: overall, balanced, by group."""
    classes = logits.shape[1]
    right, count = [0] * classes, [0] * classes
    for z, q in samples(logits, target, ignore_index):
        y = first_largest(q)
        count[y] += 1
        right[y] += not any(math.isnan(s) for s in z) and first_largest(z) == y
    per_class = [r / n if n else math.nan for r, n in zip(right, count, strict=True)]
    means = {"overall": sum(right) / sum(count)} if sum(count) else {}
    for name, members in {"balanced": list(range(classes)), **groups}.items():
        present = [per_class[c] for c in members if count[c]]
        if present:
            means[name] = math.fsum(present) / len(present)
    return per_class, means


# Theory


def lipschitz(
    alpha: Sequence[float], beta: Sequence[float], probability: Sequence[float]
) -> list[float]:
    """mu_y = alpha_y beta~ (1 - p_y) with beta~ = sqrt(sum_y beta_y^2), p_y the floor (Eq. 20)."""
    norm = math.sqrt(math.fsum(b * b for b in beta))
    return [a * norm * (1 - p) for a, p in zip(alpha, probability, strict=True)]


def bound(mu: Sequence[float], class_counts: Sequence[int]) -> tuple[list[float], float]:
    """1 / (C pi_C) sum_y mu_y sqrt(pi_y), pi_C the smallest prior (Eq. 19, 21)."""
    total = sum(class_counts)
    smallest = min(class_counts) / total
    summands = [
        m * math.sqrt(n / total) / (len(mu) * smallest)
        for m, n in zip(mu, class_counts, strict=True)
    ]
    return summands, math.fsum(summands)
