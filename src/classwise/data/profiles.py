"""Long-tailed versions of balanced data: counts per class, and which samples make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from classwise._checks import (
    ClassCounts,
    class_counts_tensor,
    known_name,
    nearest,
    number,
    whole_number,
)
from classwise.data._counts import Counts, read_counts
from classwise.data.findings import shown
from classwise.errors import ArgumentError, DataError

__all__ = ["FORMS", "PROFILES", "Profile", "longtail_counts", "parse_profile", "select"]

PROFILES = ("exp", "step", "uniform")

FORMS = ("exp:R", "step:R[:fraction]", "uniform", "counts:FILE", "as-is")
"""How an imbalance is written."""

_KINDS = ("exp", "step", "uniform", "counts", "as-is")
_UNEVEN = 0.1  # how much smaller than another a class may be where a profile wants equal ones


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


@dataclass(frozen=True)
class Profile:
    """How many samples of each class to take from what there is; ``parse_profile`` makes it.

    Args:
        kind: ``"exp"``, ``"step"``, ``"uniform"``, ``"counts"`` or ``"as-is"``.
        ratio: N_max / N_min, for exp and step.
        fraction: of the classes that are small, for step.
        given: name and number for each class, for counts; names are None where the file has none.
    """

    kind: str
    ratio: float = 1.0
    fraction: float = 0.5
    given: Counts = ()

    def counts(
        self, labels: Tensor, num_classes: int, *, class_names: Sequence[str] = ()
    ) -> Tensor:
        """Return the training counts that this profile makes of what there is.

        Classes come in the order of their labels, as in all published long-tailed data sets. N_max
        is what the classes that the profile wants largest have: the first for exp, the first half
        for step, all for uniform. Where these are meant to be equal but differ, by up to 10 %, it
        is the smallest of them.

        Args:
            labels: class of each sample, int64 (N,).
            num_classes: C.
            class_names: needed for a file of counts with names.

        Returns:
            int64 (C,), nowhere more than there is.

        >>> parse_profile("step:10").counts(torch.arange(4).repeat(50), 4).tolist()
        [50, 50, 5, 5]
        """
        have = torch.bincount(labels, minlength=num_classes)
        if self.kind == "as-is":
            return have
        wanted = self._wanted(have, class_names)
        if bool((have < wanted).any()):
            short = int(torch.nonzero(have < wanted)[0])
            raise ArgumentError(
                f"imbalance={str(self)!r} wants {int(wanted[short])} samples of class "
                f"{_class(short, class_names)}, which has {int(have[short])}. Take a larger ratio, "
                "or write the counts that you want into a file: counts:FILE."
            )
        return wanted

    def _wanted(self, have: Tensor, class_names: Sequence[str]) -> Tensor:
        if self.kind == "counts":
            return _given_counts(self.given, len(have), class_names)
        largest = {"exp": 1, "step": len(have) - int(len(have) * self.fraction)}
        head = have[: largest.get(self.kind, len(have))]
        low, high = int(head.argmin()), int(head.argmax())
        if int(head[low]) < (1 - _UNEVEN) * int(head[high]):
            raise ArgumentError(
                f"imbalance={str(self)!r} wants equally many samples of {len(head)} classes, but "
                f"{_class(low, class_names)} has {int(head[low])} and {_class(high, class_names)} "
                f"has {int(head[high])}. Take as-is, or exp:R, or counts:FILE."
            )
        if not int(head[low]):
            raise DataError(f"class {_class(low, class_names)} has no training samples.")
        return longtail_counts(
            int(head[low]), len(have), self.ratio, profile=self.kind, fraction=self.fraction
        )

    def __str__(self) -> str:
        if self.kind == "exp":
            return f"exp:{self.ratio:.15g}"
        if self.kind == "step":
            return f"step:{self.ratio:.15g}" + (
                f":{self.fraction:g}" if self.fraction != 0.5 else ""
            )
        return self.kind


def parse_profile(text: object) -> Profile:
    """Read how imbalanced the training data shall be.

    - ``exp:R`` and ``step:R[:fraction]``: as ``longtail_counts``, with ratio R
    - ``uniform``: the same number of each class
    - ``counts:FILE``: JSON, CSV or text, name and count or one count for each class
    - ``as-is``: all samples

    >>> parse_profile("step:100:0.3")
    Profile(kind='step', ratio=100.0, fraction=0.3, given=())
    """
    if not isinstance(text, str):
        raise ArgumentError(f"imbalance={text!r} must be one of {', '.join(FORMS)}.")
    kind, colon, rest = text.partition(":")
    known_name("imbalance", kind, _KINDS)
    if kind == "counts":
        if not rest:
            raise ArgumentError("imbalance='counts' needs a file: counts:FILE.")
        return Profile(kind, given=read_counts(Path(rest).expanduser()))
    parts = rest.split(":") if colon else []
    legal = {"exp": (1, 1), "step": (1, 2)}.get(kind, (0, 0))
    if not legal[0] <= len(parts) <= legal[1]:
        form = FORMS[_KINDS.index(kind)]
        raise ArgumentError(f"imbalance={text!r} must be written {form}, R being N_max / N_min.")
    try:
        ratio, fraction = (*map(float, parts), *(1.0, 0.5)[len(parts) :])
    except ValueError as error:
        raise ArgumentError(f"imbalance={text!r}: {rest!r} must be numbers.") from error
    ratio = number(f"imbalance={text!r}: the ratio", ratio, low=1)
    fraction = number(f"imbalance={text!r}: the fraction", fraction, low=0, high=1)
    return Profile(kind, ratio, fraction)


def _class(index: int, class_names: Sequence[str]) -> str:
    return f"{index} ({shown(class_names[index])!r})" if class_names else str(index)


def _given_counts(given: Counts, num_classes: int, class_names: Sequence[str]) -> Tensor:
    if len(given) != num_classes:
        raise DataError(f"the file has {len(given)} counts where there are {num_classes} classes.")
    if given[0][0] is None:
        return torch.tensor([count for _, count in given])
    counts = {str(name): count for name, count in given}
    for name in counts:
        if name not in class_names:
            raise DataError(
                f"the file counts {shown(name)!r}, which is no class{nearest(name, class_names)}"
            )
    return torch.tensor([counts[name] for name in class_names])
