"""From runs to a graph: which phases there are to train, and which runs share them.

Two runs that agree up to an epoch are the same run up to that epoch. A phase is recognised by a
key: a hash of everything that its weights depend on, its parent's key included.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from classwise.errors import ArgumentError, DataError
from classwise.phases import Phase, epoch_of
from classwise.recipes import Recipe
from classwise.train.config import RunConfig, check, to_dict
from classwise.train.defaults import recipe_of
from classwise.train.setup import setup, slope_setting

__all__ = ["TRAINING_VERSION", "Node", "Plan", "Request", "key_of", "make_plan"]

TRAINING_VERSION = 1
"""Raised whenever a change of the code changes what training computes; part of every key."""


@dataclass(frozen=True)
class Request:
    """A run that is wanted.

    Args:
        label: what it is called in tables.
        config: what to train.
    """

    label: str
    config: RunConfig


@dataclass(frozen=True)
class Node:
    """A phase to train: the epochs ``first`` to ``stop - 1`` of a configuration.

    Args:
        key: names it in the store.
        parent: key of the phase that it continues; None at the root.
        config: of one of the runs that need it; they agree in all that matters here.
        first: its first epoch.
        stop: the epoch after its last.
        identity: what the key is a hash of.
        samples: training samples, 0 while the data is not there.
    """

    key: str
    parent: str | None
    config: RunConfig
    first: int
    stop: int
    identity: Mapping[str, Any]
    samples: int = 0

    @property
    def epochs(self) -> int:
        """How many epochs it trains."""
        return self.stop - self.first


@dataclass
class Plan:
    """A graph of phases.

    Args:
        nodes: by key, parents before children.
        leaves: key of the last phase of each requested run, by label and seed as requested.
        missing: why some runs are planned without their data, by source.
    """

    nodes: dict[str, Node] = field(default_factory=dict)
    leaves: list[tuple[Request, str]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def epochs(self) -> int:
        """Epochs to train, each shared phase once."""
        return sum(node.epochs for node in self.nodes.values())

    @property
    def epochs_alone(self) -> int:
        """Epochs that separate runs would train."""
        return sum(self.nodes[key].stop for _, key in self.leaves)

    @property
    def ratio(self) -> float:
        """Epochs to train over those of separate runs."""
        return self.epochs / max(1, self.epochs_alone)

    def chain(self, key: str) -> list[Node]:
        """Return the phases of a run, the first one first."""
        chain: list[Node] = []
        step: str | None = key
        while step is not None:
            chain.append(self.nodes[step])
            step = chain[-1].parent
        return chain[::-1]


def make_plan(requests: Iterable[Request], *, need_data: bool = True) -> Plan:
    """Return the graph of the phases that the runs consist of.

    Args:
        requests: the runs.
        need_data: False plans runs whose data is not here as well, by the name of their source.
    """
    plan, wanted = Plan(), list(requests)
    runs = _outlines([request.config for request in wanted], plan, need_data=need_data)
    for request, run in zip(wanted, runs, strict=True):
        parent: str | None = None
        for first, stop in run.segments():
            identity = run.identity(first, stop, parent)
            key = key_of(identity)
            if key not in plan.nodes:
                plan.nodes[key] = Node(key, parent, run.config, first, stop, identity, run.samples)
            parent = key
        assert parent is not None
        plan.leaves.append((request, parent))
    return plan


def key_of(identity: Mapping[str, Any]) -> str:
    """Return the key of a phase: a hash of what its weights depend on."""
    text = json.dumps(identity, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Run:
    """A configuration, as far as planning needs it."""

    config: RunConfig
    recipe: Recipe
    data: str
    samples: int

    @property
    def epochs(self) -> int:
        assert self.config.optim.epochs is not None
        return self.config.optim.epochs

    @property
    def defer_epoch(self) -> int:
        return epoch_of("defer_at", self.config.method.defer_at, self.epochs)

    def starts(self) -> list[int]:
        return self.recipe.starts(self.epochs, self.config.method.defer_at)

    def segments(self) -> list[tuple[int, int]]:
        # Cut at T0 even where the recipe does not change there: others fork off.
        cuts = sorted({0, *self.starts(), self.defer_epoch, self.epochs})
        return list(itertools.pairwise(cuts))

    def identity(self, first: int, stop: int, parent: str | None) -> dict[str, Any]:
        """Return everything that the weights at the end of a segment depend on."""
        config, optim = self.config, self.config.optim
        plain = to_dict(config)
        deferred = first >= self.defer_epoch
        decay, rho = optim.weight_decay, optim.sam
        if deferred and optim.deferred_weight_decay is not None:
            decay = optim.deferred_weight_decay
        if deferred and optim.deferred_sam is not None:
            rho = optim.deferred_sam
        same_optim = {
            name: value
            for name, value in plain["optim"].items()
            if name not in ("deferred_weight_decay", "deferred_sam")
        }
        elsewhere = ("source", "imbalance", "subset_seed", "val", "workers")
        how = {name: value for name, value in plain["data"].items() if name not in elsewhere}
        return {
            "training_version": TRAINING_VERSION,
            "parent": parent,
            "epochs": [first, stop],
            "data": {"checksum": self.data, **how},
            "model": self._model(),
            "optim": {**same_optim, "weight_decay": decay, "sam": rho},
            "terms": self._terms(first),
            "slopes": self._slopes(),
            "label_smoothing": config.method.label_smoothing,
            "seed": config.seed,
            "precision": config.precision,
            "measured": [config.select, config.eval_every, config.track_bound, config.tte],
        }

    def _model(self) -> dict[str, Any]:
        # Weights to start from are what is in their file, not what the file is called.
        model, file = dataclasses.asdict(self.config.model), self.config.model.pretrained
        if file is not None and Path(file).is_file():
            with Path(file).open("rb") as opened:
                model["pretrained"] = hashlib.file_digest(opened, "sha256").hexdigest()
        return model

    def _terms(self, first: int) -> str:
        begun = [p for p, s in zip(self.recipe.phases, self.starts(), strict=True) if s <= first]
        phase: Phase = begun[-1]
        return str(dataclasses.replace(phase, start=0))

    def _slopes(self) -> list[str] | None:
        method = self.config.method
        estimator = slope_setting(method.slopes)
        if not self.recipe.leans_on_slopes or estimator is None:
            return None
        return [str(estimator), str(epoch_of("warmup", method.warmup, self.epochs))]


def _outlines(configs: list[RunConfig], plan: Plan, *, need_data: bool) -> list[_Run]:
    """Return the runs in their order, each data set loaded once."""
    runs: dict[int, _Run] = {}
    for number in sorted(range(len(configs)), key=lambda n: _place(configs[n])):
        runs[number] = _outline(configs[number], plan, need_data=need_data)
    return [runs[number] for number in range(len(configs))]


def _place(config: RunConfig) -> tuple[str, str, int, float]:
    part = config.data
    return part.source, part.imbalance, part.subset_seed, part.val


def _outline(config: RunConfig, plan: Plan, *, need_data: bool) -> _Run:
    recipe = recipe_of(config)
    try:
        ready = setup(config)
    except DataError as error:
        if need_data:
            raise
        check(config)
        if config.optim.epochs is None:
            raise ArgumentError(
                "without its data, a run is planned only with epochs set."
            ) from error
        plan.missing[config.data.source] = str(error)
        part = config.data
        name = f"not here: {part.source} {part.imbalance} {part.subset_seed} {part.val:g}"
        return _Run(config, recipe, name, 0)
    return _Run(ready.config, recipe, ready.prepared.checksum, len(ready.prepared.train))
