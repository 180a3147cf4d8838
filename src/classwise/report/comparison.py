"""Runs put side by side: which belong together, which is the baseline, what they measured."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from classwise.errors import ArgumentError, DataError
from classwise.report.names import clean
from classwise.report.numbers import Spread, spread_of
from classwise.stats.bins import BinTable
from classwise.stats.shots import Shots, shots
from classwise.train.record import RunRecord, read_run

__all__ = [
    "BASELINE",
    "COLORS",
    "GROUPS",
    "Comparison",
    "Method",
    "compare",
    "flat",
    "last_numbers",
    "read_all",
    "unfinished",
    "written",
]

GROUPS = ("many", "medium", "few")
BASELINE = "ce"
COLORS = 6
"""More methods than colours are in the tables only."""

# Two runs that differ in nothing else are seeds of one method.
_SEEDS = ("seed", "data.subset_seed")
_ELSEWHERE = ("device", "devices", "threads", "data.workers", "model.compile", "track_bound")


@dataclass(frozen=True, eq=False)
class Method:
    """Runs of one method, which differ in their seeds.

    Args:
        label: its name, with the settings that tell it from others of that name.
        name: its name alone.
        runs: at least one.
    """

    label: str
    name: str
    runs: tuple[RunRecord, ...]

    def number(self, name: str, split: str | None) -> Spread:
        """Return one number of the last epoch over the runs; not finite where it is absent."""
        return spread_of(last_numbers(run, split)[0].get(name) for run in self.runs)

    def tensors(self, name: str) -> list[Tensor]:
        """Return one tensor of each run that has it."""
        return [run.tensors[name] for run in self.runs if name in run.tensors]

    def class_mean(self, name: str) -> Tensor | None:
        """Return the mean over the runs of a tensor (C,); NaN where no run has a number."""
        found = self.tensors(name)
        return torch.stack([t.double() for t in found]).nanmean(0) if found else None

    def total(self, name: str) -> Tensor | None:
        """Return the sum over the runs of a tensor of counts."""
        found = self.tensors(name)
        return torch.stack(found).sum(0) if found else None

    def tables(self, split: str | None) -> list[BinTable]:
        """Return the reliability bins of each run that has them."""
        keys = [f"{split}.{f.name}" for f in fields(BinTable)]
        found = [run for run in self.runs if all(key in run.tensors for key in keys)]
        tables = [BinTable(*(run.tensors[key] for key in keys)) for run in found]
        if len({table.num_bins for table in tables}) > 1:
            raise DataError(
                f"{found[0].folder} and other seeds of {self.label} have different numbers of "
                f"reliability bins: {', '.join(str(table.num_bins) for table in tables)}."
            )
        return tables


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs on one data set.

    Args:
        methods: in the order in which they were given.
        baseline: cross-entropy, where it is among them.
        headline: the method that the report is about: the best in balanced accuracy that is not
            the baseline, or the baseline where there is nothing else.
        split: on which was measured, ``"test"`` or ``"val"``; None where nothing was.
        class_names: of all classes.
        class_counts: training counts, int64 (C,).
        groups: classes by shots.
    """

    methods: tuple[Method, ...]
    baseline: Method | None
    headline: Method
    split: str | None
    class_names: tuple[str, ...]
    class_counts: Tensor
    groups: Shots

    @property
    def runs(self) -> Iterator[RunRecord]:
        """All runs, method by method."""
        return (run for method in self.methods for run in method.runs)

    @property
    def rivals(self) -> tuple[Method, ...]:
        """The methods but the baseline, the headline first."""
        others = [m for m in self.methods if m not in (self.headline, self.baseline)]
        return (self.headline, *others) if self.headline is not self.baseline else tuple(others)

    @property
    def drawn(self) -> tuple[Method, ...]:
        """All methods in the order of their colours: the baseline, the headline, the others."""
        return ((self.baseline,) if self.baseline else ()) + self.rivals

    @property
    def colored(self) -> Iterator[tuple[int, Method]]:
        """The methods of the figures, each with the number of its colour; 0 is the baseline's."""
        first = 0 if self.baseline is not None else 1
        return enumerate(self.drawn[: COLORS - first], start=first)

    @property
    def order(self) -> Tensor:
        """Classes by training count, the largest first, int64 (C,)."""
        return self.class_counts.argsort(descending=True, stable=True)

    def confounders(self) -> list[str]:
        """Return the settings outside the method in which methods differ, by dotted name."""
        first = [_settings(method.runs[0]) for method in self.methods]
        return [k for k in _differing(first) if not k.startswith("method.")]


def read_all(runs: Sequence[Path | str | RunRecord]) -> list[RunRecord]:
    """Return the records of run folders; what is a record already stays."""
    if isinstance(runs, (str, os.PathLike, RunRecord)):
        raise ArgumentError(f"runs must be a sequence of runs, got {runs!r}; write [{runs!r}].")
    if not runs:
        raise ArgumentError("runs is empty; a report needs at least one run folder.")
    return [_read(run) for run in runs]


def _read(run: object) -> RunRecord:
    if isinstance(run, RunRecord):
        return run
    if isinstance(run, (str, os.PathLike)):
        return read_run(Path(run))
    raise ArgumentError(f"runs holds {run!r}; it must hold run folders or records of them.")


def compare(records: Sequence[RunRecord]) -> Comparison:
    """Group runs into methods, or say why they cannot stand side by side.

    Args:
        records: of one data set with the same training counts.
    """
    first = records[0]
    for record in records:
        _check_record(record)
        _check_same_data(first, record)
    methods = _methods(records)
    split = _split(records)
    baselines = [m for m in methods if m.name == BASELINE]
    rivals = [m for m in methods if m.name != BASELINE] or baselines
    headline = _best(rivals, split)
    return Comparison(
        methods=methods,
        baseline=_nearest(baselines, headline),
        headline=headline,
        split=split,
        class_names=tuple(first.class_names),
        class_counts=first.class_counts,
        groups=shots(first.class_counts, allow_empty=True),
    )


def unfinished(record: RunRecord) -> bool:
    """Say whether epochs are left to train; a finished phase of a longer run has no result."""
    return not (record.finished and record.result)


def last_numbers(record: RunRecord, split: str | None) -> tuple[Mapping[str, Any], int | None]:
    """Return the numbers of the last epoch that was measured on a split, and that epoch."""
    result = record.result
    if split is None:
        return {}, None
    if result.get("split") == split and result.get("last"):
        return result["last"], result.get("epoch")
    for row in reversed(record.epochs):
        if row.get(split):
            return row[split], row.get("epoch")
    return {}, None


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted name.

    >>> flat({"optim": {"lr": 0.1}, "seed": 3})
    {'optim.lr': 0.1, 'seed': 3}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[f"{prefix}{key}"] = value
    return found


def _check_record(record: RunRecord) -> None:
    """Refuse what would otherwise fail far from its cause."""
    classes = len(record.class_names)
    if record.class_counts.shape != (classes,):
        raise DataError(
            f"{record.folder} names {classes} classes but counts {record.class_counts.numel()}."
        )
    try:
        named = isinstance(record.method, str) and isinstance(record.seed, int)
    except (KeyError, TypeError):
        named = False
    if not named:
        raise DataError(f"{record.folder}: config.json has no method or no seed.")
    if not all(isinstance(row, dict) for row in record.epochs):
        raise DataError(f"{record.folder}: a line of metrics.jsonl is not an object.")
    for name, tensor in record.tensors.items():
        if name.partition(".")[0] in ("test", "val", "bound") and (
            tensor.ndim == 0 or tensor.shape[0] != classes
        ):
            raise DataError(
                f"{record.folder}: {name} has shape {tuple(tensor.shape)}, "
                f"its first length must be the {classes} classes."
            )


def _check_same_data(a: RunRecord, b: RunRecord) -> None:
    advice = "Runs on different training data need a report each."
    if len(a.class_names) != len(b.class_names):
        raise ArgumentError(
            f"{a.folder} has {len(a.class_names)} classes and {b.folder} {len(b.class_names)}. "
            + advice
        )
    different = torch.nonzero(a.class_counts != b.class_counts).flatten().tolist()
    if different:
        c = different[0]
        raise ArgumentError(
            f"class {c} has {int(a.class_counts[c])} training samples in {a.folder} and "
            f"{int(b.class_counts[c])} in {b.folder} ({len(different)} classes differ). {advice}"
        )
    if tuple(a.class_names) != tuple(b.class_names):
        raise ArgumentError(f"{a.folder} and {b.folder} name their classes differently. {advice}")


def _methods(records: Sequence[RunRecord]) -> tuple[Method, ...]:
    together: dict[str, list[RunRecord]] = {}
    for record in records:
        together.setdefault(repr(sorted(_settings(record).items())), []).append(record)
    groups = list(together.values())
    for runs in groups:
        _check_seeds(runs)
    return tuple(
        Method(label=_label(runs[0], groups), name=str(runs[0].method), runs=tuple(runs))
        for runs in groups
    )


def _check_seeds(runs: Sequence[RunRecord]) -> None:
    seen: dict[tuple[Any, ...], RunRecord] = {}
    for run in runs:
        config = flat(run.config)
        key = tuple(config.get(name) for name in _SEEDS)
        if key in seen:
            raise ArgumentError(
                f"{seen[key].folder} and {run.folder} are the same method with the same seed "
                f"{run.seed}; the spread over seeds needs different ones. Leave one out."
            )
        seen[key] = run


def _settings(record: RunRecord) -> dict[str, Any]:
    """Return what makes a run another method."""
    return {k: v for k, v in flat(record.config).items() if k not in _SEEDS + _ELSEWHERE}


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = sorted({key for one in settings for key in one})
    return [k for k in keys if len({repr(one.get(k)) for one in settings}) > 1]


def _label(record: RunRecord, groups: Sequence[Sequence[RunRecord]]) -> str:
    name, mine = str(record.method), _settings(record)
    namesakes = [_settings(runs[0]) for runs in groups if str(runs[0].method) == name]
    told = [f"{key.rpartition('.')[2]}={written(mine.get(key))}" for key in _differing(namesakes)]
    return clean(f"{name} ({', '.join(told)})" if told else name)


def written(value: object) -> str:
    """Write a setting as the command line takes it."""
    if isinstance(value, float):
        return f"{value:g}"
    return "auto" if value is None else str(value)


def _split(records: Sequence[RunRecord]) -> str | None:
    measured = {
        split: [bool(last_numbers(record, split)[0]) for record in records]
        for split in ("test", "val")
    }
    for wanted in (all, any):
        for split, has in measured.items():
            if wanted(has):
                return split
    return None


def _best(methods: Sequence[Method], split: str | None) -> Method:
    def balanced(method: Method) -> float:
        spread = method.number("balanced", split)
        return spread.mean if spread.values else -1.0

    return max(methods, key=balanced)


def _nearest(baselines: Sequence[Method], headline: Method) -> Method | None:
    """Return the baseline whose other settings are most like the headline's."""
    wanted = _settings(headline.runs[0])

    def differences(method: Method) -> int:
        pair = (wanted, _settings(method.runs[0]))
        return sum(not key.startswith("method.") for key in _differing(pair))

    return min(baselines, key=differences) if baselines else None
