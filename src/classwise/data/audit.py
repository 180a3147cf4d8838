"""What is in a data set and what is wrong with it, in one pass."""

from __future__ import annotations

import dataclasses
import re
import shlex
import unicodedata
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from classwise.data._twins import find_twins, look_at
from classwise.data.dataset import DataSet
from classwise.data.findings import Finding, Findings, FoundError, shown
from classwise.data.profiles import Profile
from classwise.data.sources import read
from classwise.errors import ArgumentError, DataError
from classwise.stats.shots import shots

__all__ = ["Audit", "audit"]

_BALANCED = 2.0  # up to this ratio there is nothing to correct
_RATIOS = (100, 50, 20, 10, 5)
_FEWEST = 5  # samples that a suggested profile leaves the smallest class


@dataclass(frozen=True)
class Audit:
    """What ``audit`` found; everything in it can be written as JSON.

    Args:
        uri: what was looked at.
        kind: ``"images"``, ``"table"`` or ``"files"``; None where nothing could be read.
        input_shape: of one sample.
        sizes: samples in each split.
        class_names: in the order of the labels.
        class_counts: training samples of each class.
        imbalance_ratio: N_max / N_min of the classes that have samples.
        shots: how many classes have many, medium and few training samples.
        problems: what forbids training.
        warnings: what does not, but may surprise.
        notes: what was decided while reading.
        suggestion: a command to begin with, and why; None where there are problems.
    """

    uri: str
    kind: str | None = None
    input_shape: tuple[int, ...] = ()
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    class_counts: tuple[int, ...] = ()
    imbalance_ratio: float | None = None
    shots: Mapping[str, int] = dataclasses.field(default_factory=dict)
    problems: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    suggestion: tuple[str, str] | None = None

    @property
    def sound(self) -> bool:
        """Whether one can train on it."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as what JSON knows."""
        return {**dataclasses.asdict(self), "sound": self.sound}


def audit(uri: str) -> Audit:
    """Look at a data set: what is in it, everything that is wrong, and what to try.

    ``load`` refuses what is listed here as a problem; what takes looking at every pixel is found
    only here: images damaged in the middle, exact copies across classes and splits, images of one
    colour.

    Args:
        uri: ``scheme:place``, see ``list_sources()``.

    Raises:
        ArgumentError: there is no such scheme or option. Trouble with the data is returned.

    >>> found = audit("digits")
    >>> found.sound, found.sizes, found.shots
    (True, {'train': 1438, 'test': 359}, {'many': 10, 'medium': 0, 'few': 0})
    >>> found.suggestion[0]
    'classwise train digits --imbalance exp:20 --method cvs+adrw'
    """
    findings = Findings()
    try:
        dataset = read(uri, findings)
    except DataError as error:
        if not isinstance(error, FoundError):
            findings.add("unreadable source", uri, error)
        return Audit(uri, problems=_problems(findings), warnings=_warnings(findings))
    _look_at_names(dataset, findings)
    _look_at_classes(dataset, findings)
    _look_at_samples(dataset, findings)
    counts = dataset.class_counts
    some = counts[counts > 0]
    ratio = float(some.max()) / float(some.min())
    groups = shots(counts, allow_empty=True)
    return Audit(
        uri=uri,
        kind=dataset.kind,
        input_shape=dataset.input_shape,
        sizes={role: len(split) for role, split in dataset.splits.items()},
        class_names=dataset.class_names,
        class_counts=tuple(counts.tolist()),
        imbalance_ratio=ratio,
        shots={name: int(mask.sum()) for name, mask in groups.items()},
        problems=_problems(findings),
        warnings=_warnings(findings),
        notes=dataset.notes,
        suggestion=None if _problems(findings) else _suggestion(uri, dataset, ratio),
    )


def _problems(findings: Findings) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.fatal)


def _warnings(findings: Findings) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if not finding.fatal)


def _look_at_names(dataset: DataSet, findings: Findings) -> None:
    """Warn of names that a person would take for the same."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in dataset.class_names:
        plain = unicodedata.normalize("NFKC", name).casefold()
        alike["".join(re.split(r"[\s_-]+", plain)) or plain].append(name)
    for names in alike.values():
        if len(names) > 1:
            pair = ", ".join(repr(shown(name)) for name in names)
            findings.add("group of class names that look alike", "train", pair, fatal=False)


def _look_at_classes(dataset: DataSet, findings: Findings) -> None:
    for role, split in dataset.splits.items():
        have = torch.bincount(split.labels, minlength=dataset.num_classes)
        for label in torch.nonzero((have == 0) & (dataset.class_counts > 0)).flatten().tolist():
            findings.add("class without samples", role, dataset.class_names[label], fatal=False)


def _look_at_samples(dataset: DataSet, findings: Findings) -> None:
    seen = {role: look_at(split, role, findings) for role, split in dataset.splits.items()}
    if dataset.kind != "table":  # where equal rows are ordinary
        find_twins(seen, dataset, findings)


def _suggestion(uri: str, dataset: DataSet, ratio: float) -> tuple[str, str]:
    command = f"classwise train {shlex.quote(uri)}"
    if ratio > _BALANCED:
        why = f"the largest class has {ratio:.3g} times as many samples as the smallest"
        return f"{command} --method cvs+adrw", why
    for candidate in _RATIOS:
        try:
            counts = Profile("exp", candidate).counts(dataset.train.labels, dataset.num_classes)
        except ArgumentError:
            continue
        if int(counts.min()) >= _FEWEST:
            why = "the classes are balanced; a long-tailed selection gives methods work to do"
            return f"{command} --imbalance exp:{candidate} --method cvs+adrw", why
    return f"{command} --method ce", "the classes are balanced: there is nothing to correct"
