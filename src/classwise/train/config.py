"""What a run is: frozen dataclasses, saved with it, and the source of the command line's flags.

Field names are unique over all parts, so that a flag is the bare name (``--epochs``) and a dotted
one (``--set optim.epochs=60``) says where it lives. ``None`` (in text: auto) means "chosen for the
data", see ``classwise.train.defaults``; a run is saved with everything chosen.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from classwise._checks import known_name, nearest
from classwise.data.sampling import KINDS
from classwise.errors import ArgumentError, UnknownNameError
from classwise.train.schedules import SCHEDULES

__all__ = [
    "PRECISIONS",
    "DataConfig",
    "MethodConfig",
    "ModelConfig",
    "OptimConfig",
    "RunConfig",
    "check",
    "differences",
    "flat",
    "from_dict",
    "to_dict",
    "with_values",
]

_SEEDS = 2**32
"""As NumPy has it; torch and Python take more."""

_MOST_THREADS = 1024
"""Beyond what any machine has; OpenMP ends the process where it cannot start as many."""

PRECISIONS = ("32-true", "bf16-mixed")
"""Precisions of training."""


@dataclass(frozen=True)
class DataConfig:
    """What is learned from.

    Args:
        source: data set, as a URI: digits, cifar100, folder:DIR, csv:FILE#target=COLUMN ...
        imbalance: as-is, exp:RATIO, step:RATIO[:FRACTION], uniform or counts:FILE.
        subset_seed: of the samples that the imbalance keeps and of the splits; not of the run.
        val: held out of the training split to choose by: a fraction of every class, or as many of
            each (a whole number), drawn before the imbalance so that they are balanced.
        sampler: shuffled, class-aware, sqrt or progressive.
        augment: none, crop-flip, randaugment; autoaugment for images in memory, crop-flip-jitter
            for files.
        mixing: none, mixup:ALPHA or unimix:POWER.
        workers: processes that read image files.
        image_size: side that image files are cropped to.
    """

    source: str = "digits"
    imbalance: str = "as-is"
    subset_seed: int = 0
    val: int | float = 0.0
    sampler: str = "shuffled"
    augment: str | None = None
    mixing: str = "none"
    workers: int = 2
    image_size: int = 224


@dataclass(frozen=True)
class ModelConfig:
    """What is trained.

    Args:
        model: resnet32, small-cnn, mlp, or any name that timm knows.
        head: linear or cosine.
        pretrained: file of weights to start from, or "download" for timm's own.
        compile: compile the model with torch.compile.
    """

    model: str | None = None
    head: str | None = None
    pretrained: str | None = None
    compile: bool = False


@dataclass(frozen=True)
class MethodConfig:
    """How classes are treated; see ``classwise list methods``.

    Args:
        method: BASE[+tla][+drw|+adrw].
        defer_at: T0, the first epoch of the deferred phase; epochs, or a fraction of training.
        warmup: epochs before measured slopes are used, likewise.
        slopes: stable, paper, released or none; parts of an estimator may follow, as in
            "stable,group_by=score,shrink=0".
        label_smoothing: in [0, 1].
        tau: strength of the additive adjustment.
        deferred_tau: tau from T0 on, with +tla.
        gamma: exponent of the multiplicative adjustment; for focal, of 1 - p.
        nu: exponent of the ADRW weights.
        p: of the effective number of samples.
        max_margin: of the smallest class, for ldam.
        scale: of cosine logits, for ldam and ala.
        strength: of ib's influence factor.
        start: fraction of training after which ib's factor begins.
        weight: of lade's regulariser.
        remine: of the squared term in lade's regulariser.
    """

    method: str = "cvs+adrw"
    defer_at: int | float = 0.8
    warmup: int | float = 0.05
    slopes: str = "stable"
    label_smoothing: float = 0.0
    tau: float | None = None
    deferred_tau: float | None = None
    gamma: float | None = None
    nu: float | None = None
    p: float | None = None
    max_margin: float | None = None
    scale: float | None = None
    strength: float | None = None
    start: float | None = None
    weight: float | None = None
    remine: float | None = None

    @property
    def hyper(self) -> dict[str, float]:
        """The hyper-parameters that were given."""
        names = [f.name for f in dataclasses.fields(self)][5:]
        return {n: getattr(self, n) for n in names if getattr(self, n) is not None}


@dataclass(frozen=True)
class OptimConfig:
    """How it is trained.

    Args:
        epochs: of the whole training.
        batch_size: samples in a step, over all processes and micro-batches together.
        accumulate: micro-batches that a step is cut into.
        optimizer: sgd or adamw.
        lr: learning rate that the schedule starts from.
        schedule: of the learning rate: cosine, cosine-zero, released, printed, constant ...
        momentum: of sgd.
        nesterov: of sgd.
        weight_decay: on all parameters.
        deferred_weight_decay: from T0 on; auto keeps it.
        sam: rho of sharpness-aware minimisation; 0 is off.
        deferred_sam: rho from T0 on; auto keeps it.
        clip: largest norm of the gradient; 0 is off.
    """

    epochs: int | None = None
    batch_size: int | None = None
    accumulate: int = 1
    optimizer: str = "sgd"
    lr: float | None = None
    schedule: str = "cosine"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 2e-4
    deferred_weight_decay: float | None = None
    sam: float = 0.0
    deferred_sam: float | None = None
    clip: float = 0.0


@dataclass(frozen=True)
class RunConfig:
    """A run, whole.

    Args:
        data: what is learned from.
        model: what is trained.
        method: how classes are treated.
        optim: how it is trained.
        seed: of weights, order and augmentation.
        select: what the best epoch is chosen on: "val" needs a validation split; "test" is what the
            papers' tables do, and every number so chosen is labelled.
        eval_every: epochs between evaluations; the last epoch is always evaluated.
        device: cpu, cuda, mps or auto.
        devices: processes to train with.
        threads: CPU threads of torch; auto is one for small models of small samples, whose steps
            are shorter than it takes to wake another, and torch's own choice for the others.
        precision: 32-true or bf16-mixed; auto is bf16-mixed on a GPU that has it.
        track_bound: measure the class-dependent bound every twentieth of training, and not only at
            its end.
        tte: average the predictions for flipped test images too.
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    seed: int = 0
    select: str | None = None
    eval_every: int | None = None
    device: str = "auto"
    devices: int = 1
    threads: int | None = None
    precision: str | None = None
    track_bound: bool = False
    tte: bool = False


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Return the configuration as nested plain data."""
    return dataclasses.asdict(config)


def from_dict(values: Mapping[str, Any], base: RunConfig | None = None) -> RunConfig:
    """Return a configuration from nested plain data, such as a TOML file's.

    Args:
        values: ``{"optim": {"epochs": 60}, "seed": 1}``; unknown keys raise with the nearest one.
        base: what the rest comes from; None is the defaults.
    """
    return with_values(base or RunConfig(), flat(values))


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested plain data by dotted names.

    >>> flat({"optim": {"epochs": 60}, "seed": 1})
    {'optim.epochs': 60, 'seed': 1}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found.update({f"{key}.{inner}": v for inner, v in value.items()})
        else:
            found[key] = value
    return found


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return a configuration with some fields exchanged.

    Args:
        config: what the rest comes from.
        values: dotted or bare names: ``{"optim.epochs": 60, "gamma": 0.01, "seed": "3"}``. Text
            is read as the field's type; "auto" is what is chosen for the data.
    """
    places = _places()
    parts: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        place = places.get(name)
        if place is None:
            known = sorted({p for p in places if "." in p} | {"seed", "device", "devices"})
            raise UnknownNameError(f"there is no setting {name!r}{nearest(name, list(places))} "
                                   f"Known: {', '.join(known)}.")  # fmt: skip
        part, key, kind = place
        parts.setdefault(part, {})[key] = _converted(name, value, kind)
    changed = {
        part: dataclasses.replace(getattr(config, part), **fields)
        for part, fields in parts.items()
        if part
    }
    return dataclasses.replace(config, **changed, **parts.get("", {}))


def _places() -> dict[str, tuple[str, str, Any]]:
    """Map each legal name to (part, field, type)."""
    places: dict[str, tuple[str, str, Any]] = {}
    hints = typing.get_type_hints(RunConfig)
    for outer in dataclasses.fields(RunConfig):
        kind = hints[outer.name]
        if not dataclasses.is_dataclass(kind):
            places[outer.name] = ("", outer.name, kind)
            continue
        inner_hints = typing.get_type_hints(kind)
        for inner in dataclasses.fields(kind):
            place = (outer.name, inner.name, inner_hints[inner.name])
            places[f"{outer.name}.{inner.name}"] = place
            # "model" and "method" are also names of parts; as values they mean the field.
            places[inner.name] = place
    return places


def _converted(name: str, value: Any, kind: Any) -> Any:
    """Return ``value`` as the type of its field, or say what would be legal."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if types.NoneType in options and (value is None or value == "auto"):
        return None
    for option in options:
        if option is types.NoneType:
            continue
        done, result = _as(option, value)
        if done:
            return result
    legal = " or ".join(_KINDS[o] for o in options if o is not types.NoneType)
    raise ArgumentError(f"{name}={value!r} must be {legal}.")


_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _as(kind: type, value: Any) -> tuple[bool, Any]:
    """Return whether ``value`` can be read as ``kind``, and what it then is."""
    if kind in (bool, str) or isinstance(value, bool):
        if kind is bool and isinstance(value, str):
            value = _TRUTH.get(value.lower(), value)
        return isinstance(value, kind), value
    # A fraction that is given for a whole number is no whole number.
    if not isinstance(value, str) and not isinstance(value, (int, kind)):
        return False, None
    try:
        return True, kind(value)
    except ValueError:
        return False, None


_TRUTH = {"true": True, "yes": True, "false": False, "no": False}


def differences(saved: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    """Return "part.field: saved X, here Y" for each field in which two configurations differ."""
    found = []
    for key in sorted({*saved, *mine}):
        a, b = saved.get(key), mine.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += [f"{key}.{line}" for line in differences(a, b)]
        elif a != b:
            found.append(f"{key}: saved {a!r}, here {b!r}")
    return found


def check(config: RunConfig) -> None:
    """Raise for what no data can make legal."""
    for name, value in (("seed", config.seed), ("subset_seed", config.data.subset_seed)):
        if not 0 <= value < _SEEDS:
            raise ArgumentError(f"{name}={value} must be in [0, 2**32).")
    _check_names(config)
    _check_ranges(config)


def _check_names(config: RunConfig) -> None:
    known_name("optimizer", config.optim.optimizer, ("sgd", "adamw"))
    known_name("sampler", config.data.sampler, KINDS)
    known_name("schedule", config.optim.schedule, SCHEDULES)
    if config.precision is not None:
        known_name("precision", config.precision, PRECISIONS)
    if config.select is not None:
        known_name("select", config.select, ("val", "test"))
    if config.model.head is not None:
        known_name("head", config.model.head, ("linear", "cosine"))


def _check_ranges(config: RunConfig) -> None:
    positive = {
        "epochs": config.optim.epochs,
        "batch_size": config.optim.batch_size,
        "accumulate": config.optim.accumulate,
        "devices": config.devices,
        "threads": config.threads,
        "eval_every": config.eval_every,
        "image_size": config.data.image_size,
    }
    for name, value in positive.items():
        if value is not None and value < 1:
            raise ArgumentError(f"{name}={value} must be at least 1.")
    not_negative = {
        "lr": config.optim.lr,
        "momentum": config.optim.momentum,
        "weight_decay": config.optim.weight_decay,
        "deferred_weight_decay": config.optim.deferred_weight_decay,
        "sam": config.optim.sam,
        "deferred_sam": config.optim.deferred_sam,
        "clip": config.optim.clip,
        "workers": config.data.workers,
    }
    for name, value in not_negative.items():
        if value is not None and not 0 <= value < float("inf"):
            raise ArgumentError(f"{name}={value} must be finite and not negative.")
    if config.optim.momentum >= 1:
        raise ArgumentError(f"momentum={config.optim.momentum} must be below 1.")
    if config.optim.nesterov and config.optim.optimizer == "sgd" and not config.optim.momentum:
        raise ArgumentError("nesterov=True needs a momentum above 0.")
    if config.threads is not None and config.threads > _MOST_THREADS:
        raise ArgumentError(f"threads={config.threads} must be at most {_MOST_THREADS:,}.")
    val = config.data.val
    if not (0 <= val < 1 or (isinstance(val, int) and val >= 1)):
        raise ArgumentError(f"val={val} must be a fraction in [0, 1) or a whole number of samples.")
