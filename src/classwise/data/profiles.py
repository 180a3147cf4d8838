"""Long-tailed versions of balanced data: counts per class, and which samples make them."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise._checks import ClassCounts, class_counts_tensor, known_name, number, whole_number
from classwise.errors import ArgumentError

__all__ = ["PROFILES", "longtail_counts", "select"]

PROFILES = ("exp", "step", "uniform")


def longtail_counts(
    max_count: int,
    num_classes: int,
    imbalance_ratio: float,
    *,
    profile: str = "exp",
    fraction: float = 0.5,
) -> Tensor:
    """Return training counts of a long-tailed data set, largest class first.

    - ``"exp"``: N_c = int(N_max * ratio^(-c / (C - 1)))
    - ``"step"``: N_max for the first classes, int(N_max / ratio) for the last ``fraction`` of them
    - ``"uniform"``: N_max for all

    Truncation, not rounding: it is what every published CIFAR-LT number was trained on.

    Args:
        max_count: samples of the largest class.
        num_classes: C.
        imbalance_ratio: N_max / N_min, >= 1.
        profile: one of the above.
        fraction: of the classes that are small, for ``"step"``.

    Returns:
        int64 (C,).

    >>> int(longtail_counts(500, 100, 100).sum()), int(longtail_counts(5000, 10, 100).sum())
    (10847, 12406)
    """
    max_count = whole_number("max_count", max_count, low=1)
    num_classes = whole_number("num_classes", num_classes, low=2)
    ratio = number("imbalance_ratio", imbalance_ratio, low=1)
    known_name("profile", profile, PROFILES)
    fraction = number("fraction", fraction, low=0, high=1)
    if profile == "exp":
        counts = [
            _truncated(max_count * ratio ** (-c / (num_classes - 1))) for c in range(num_classes)
        ]
    elif profile == "step":
        small = int(num_classes * fraction)
        counts = [max_count] * (num_classes - small) + [_truncated(max_count / ratio)] * small
    else:
        counts = [max_count] * num_classes
    if min(counts) < 1:
        raise ArgumentError(
            f"imbalance_ratio={imbalance_ratio:g} leaves {counts.count(0)} class(es) without "
            f"samples; with max_count={max_count} at most {max_count} is possible."
        )
    return torch.tensor(counts, dtype=torch.int64)


def _truncated(count: float) -> int:
    return int(count * (1 + 1e-12))  # 98 * 49**-1 is 1.9999999999999998


def select(labels: object, counts: ClassCounts, generator: torch.Generator) -> Tensor:
    """Return the indices of a random subset with ``counts[c]`` samples of each class c.

    Args:
        labels: class of each sample, int64 (N,).
        counts: how many of each class to take, (C,); 0 takes none.
        generator: the only source of randomness, on the CPU.

    Returns:
        Sorted indices, int64.

    >>> select([0, 0, 1, 1, 1], [1, 2], torch.Generator().manual_seed(0)).numel()
    3
    """
    wanted = class_counts_tensor(counts, allow_empty=True)
    labels = torch.as_tensor(labels)
    if labels.ndim != 1 or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ArgumentError(
            f"labels must be whole numbers of shape (N,), got {labels.dtype} {tuple(labels.shape)}."
        )
    labels = labels.long().cpu()
    if labels.numel() and (int(labels.min()) < 0 or int(labels.max()) >= wanted.numel()):
        raise ArgumentError(
            f"labels go from {int(labels.min())} to {int(labels.max())}, "
            f"counts name {wanted.numel()} classes."
        )
    have = torch.bincount(labels, minlength=wanted.numel())
    if bool((have < wanted).any()):
        short = int(torch.nonzero(have < wanted)[0])
        raise ArgumentError(
            f"class {short} has {int(have[short])} samples, {int(wanted[short])} are wanted."
        )
    # Shuffled, then ordered by class with ties in shuffled order: each class is a random run.
    order = torch.randperm(labels.numel(), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    starts = have.cumsum(0) - have
    rank = torch.arange(labels.numel()) - starts[labels[order]]
    return order[rank < wanted[labels[order]]].sort().values
