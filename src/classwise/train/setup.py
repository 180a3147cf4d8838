"""From a configuration to what it means: data, model, criterion, optimiser."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
from dataclasses import dataclass
from typing import Any

import torch

from classwise import data, models
from classwise._checks import known_name
from classwise.criterion import Criterion
from classwise.data.dataset import DataSet
from classwise.data.prepare import Prepared
from classwise.errors import ArgumentError
from classwise.estimation import PRESETS, SlopeConfig
from classwise.models import Classifier
from classwise.phases import epoch_of
from classwise.train.config import RunConfig
from classwise.train.defaults import recipe_of, resolved

__all__ = [
    "Setup",
    "label",
    "make_criterion",
    "make_model",
    "make_optimizer",
    "prepared",
    "setup",
    "slope_setting",
]


@dataclass(frozen=True, eq=False)
class Setup:
    """A configuration with nothing left open, and the data that it means."""

    config: RunConfig
    prepared: Prepared
    defer_epoch: int

    @property
    def epochs(self) -> int:
        """Of the whole training."""
        assert self.config.optim.epochs is not None
        return self.config.optim.epochs


_LOADED: dict[tuple[Any, ...], Prepared] = {}
_READ: dict[tuple[Any, ...], DataSet] = {}


def prepared(config: RunConfig) -> Prepared:
    """Return the data of a configuration.

    The last selection and the last data set are kept, for runs that share them.
    """
    part = config.data
    key = (
        part.source,
        part.imbalance,
        part.val,
        part.subset_seed,
        os.environ.get("CLASSWISE_DATA"),
    )
    if key not in _LOADED:
        place = (part.source, os.environ.get("CLASSWISE_DATA"))
        if place not in _READ:
            _READ.clear()
            _LOADED.clear()
            _READ[place] = data.load(part.source)
        made = data.prepare(
            _READ[place],
            imbalance=part.imbalance,
            val_fraction=part.val if part.val < 1 else 0.0,
            val_per_class=int(part.val) if part.val >= 1 else 0,
            seed=part.subset_seed,
        )
        _LOADED.clear()
        _LOADED[key] = made
    return _LOADED[key]


def setup(config: RunConfig) -> Setup:
    """Return a configuration with everything chosen, and its data; raise for what cannot be."""
    found = prepared(config)
    full = resolved(config, found.dataset, len(found.train), has_val=found.val is not None)
    assert full.optim.epochs is not None
    make_criterion(full, found)  # so that a wrong method is refused before training
    return Setup(full, found, epoch_of("defer_at", full.method.defer_at, full.optim.epochs))


def label(config: RunConfig) -> str:
    """Return what a run is called: method, data, seed."""
    return f"{config.method.method} {config.data.source} {config.data.imbalance} seed {config.seed}"


def slope_setting(text: str) -> SlopeConfig | None:
    """Return the estimator that a setting means: a preset, and parts that differ from it.

    >>> changed = slope_setting("stable,group_by=score,bound=(0.5,2)")
    >>> changed.group_by, changed.bound
    ('score', (0.5, 2.0))
    """
    name, *parts = re.split(r",(?![^()]*\))", text)  # not inside "bound=(0.5,2)"
    if name == "none" and not parts:
        return None
    base = PRESETS[known_name("slopes", name, (*PRESETS, "none"))]
    changed: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        known_name("the part of slopes", key, [f.name for f in dataclasses.fields(base)])
        if not equals:
            raise ArgumentError(f"slopes: {part!r} must be PART=VALUE.")
        try:
            changed[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            changed[key] = value
    return base.replace(**changed)


def make_criterion(config: RunConfig, found: Prepared) -> Criterion:
    """Return the criterion of a configuration."""
    method, recipe = config.method, recipe_of(config)
    assert config.optim.epochs is not None
    # Slopes that nothing leans on are not measured: CE with and without DRW share their trunk.
    slopes = slope_setting(method.slopes) if recipe.leans_on_slopes else None
    return Criterion(
        recipe,
        found.class_counts,
        epochs=config.optim.epochs,
        defer_at=method.defer_at,
        warmup=method.warmup,
        slopes=slopes,
        label_smoothing=method.label_smoothing,
        allow_empty=bool((found.class_counts == 0).any()),
    )


def make_model(ready: Setup) -> Classifier:
    """Return the model of a configuration, with fresh or pretrained weights."""
    config, dataset = ready.config.model, ready.prepared.dataset
    assert config.model is not None
    assert config.head is not None
    shape, size = dataset.input_shape, ready.config.data.image_size
    if dataset.kind == "files":
        shape = (shape[0], size, size)
    model = models.build(
        config.model,
        num_classes=dataset.num_classes,
        input_shape=shape,
        head=config.head,
        pretrained=True if config.pretrained == "download" else config.pretrained,
    )
    if len(shape) == 3:
        model = model.to(memory_format=torch.channels_last)
    return model


def make_optimizer(config: RunConfig, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser of a configuration; every parameter decays, as published."""
    optim = config.optim
    assert optim.lr is not None
    parameters = [p for p in model.parameters() if p.requires_grad]
    if optim.optimizer == "adamw":
        return torch.optim.AdamW(parameters, optim.lr, weight_decay=optim.weight_decay)
    return torch.optim.SGD(
        parameters,
        optim.lr,
        momentum=optim.momentum,
        nesterov=optim.nesterov,
        weight_decay=optim.weight_decay,
    )
