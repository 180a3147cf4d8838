"""Flags of the commands, generated from the dataclasses that a run is saved with."""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from classwise._checks import known_name
from classwise.errors import ArgumentError, DataError
from classwise.lab.execute import ENGINES, Resources
from classwise.train import protocols
from classwise.train.config import (
    DataConfig,
    RunConfig,
    check,
    flat,
    from_dict,
    to_dict,
    with_values,
)

__all__ = [
    "DataFlags",
    "Output",
    "RunFlags",
    "Settings",
    "Work",
    "defaults",
    "given",
    "run_config",
]


@dataclasses.dataclass(frozen=True)
class DataFlags(DataConfig):  # noqa: D101  (below)
    __doc__ = DataConfig.__doc__

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")] = "digits"


@dataclasses.dataclass(frozen=True)
class RunFlags(RunConfig):  # noqa: D101  (below)
    __doc__ = RunConfig.__doc__

    data: DataFlags = dataclasses.field(default_factory=DataFlags)


Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Where settings come from: a protocol, then a file, then flags, then --set.

    Args:
        protocol: named settings of an experiment, such as "a"; see classwise list protocols.
        config: TOML file of settings.
        set: settings by dotted name, such as optim.epochs=60.
    """

    protocol: str | None = None
    config: Path | None = None
    set: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Output:
    """What is printed.

    Args:
        quiet: the result only.
        json: the result as JSON, and nothing else.
    """

    quiet: Switch = False
    json: Switch = False


@dataclasses.dataclass(frozen=True)
class Work:
    """Who trains the phases.

    Args:
        engine: local, one phase after the other, or ray, as tasks of a cluster (RAY_ADDRESS, or one
            that is started here).
        task_cpus: cores that a task of Ray occupies; fractions share one.
        task_gpus: GPUs that a task of Ray occupies; auto is as many as the run has devices, if the
            cluster has any.
    """

    engine: str = "local"
    task_cpus: float = 1.0
    task_gpus: float | None = None

    @property
    def how(self) -> dict[str, Any]:
        """What ``classwise.lab.execute`` takes."""
        resources = Resources(cpus=self.task_cpus, gpus=self.task_gpus)
        return {"engine": known_name("engine", self.engine, ENGINES), "resources": resources}


def defaults(words: Sequence[str]) -> RunFlags:
    """Return the configuration that flags override: what protocol and file make of the defaults."""
    peek = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    peek.add_argument("--protocol")
    peek.add_argument("--config", type=Path)
    try:
        found, _ = peek.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise ArgumentError(f"{error.argument_name}: {error.message}.") from error
    config, file = RunConfig(), {}
    if found.protocol is not None:
        config = protocols.apply(config, found.protocol)
    if found.config is not None:
        file = _read(found.config)
        config = from_dict(file, config)
    parts = {f.name: getattr(config, f.name) for f in dataclasses.fields(RunConfig)}
    data = {f.name: getattr(config.data, f.name) for f in dataclasses.fields(DataConfig)}
    if not {"source", "data.source"} & flat(file).keys():
        data["source"] = tyro.MISSING
    parts["data"] = DataFlags(**data)
    return RunFlags(**parts)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"there is no settings file {path}.") from None
    except OSError as error:
        raise DataError(f"settings file {path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path} is no TOML file: {error}") from error


def run_config(flags: RunConfig, settings: Settings) -> RunConfig:
    """Return the configuration that flags and ``--set`` make together."""
    # Through the converter once: a flag may say "auto" for what is chosen for the data.
    config = with_values(from_dict(to_dict(flags)), given(settings))
    check(config)
    return config


def given(settings: Settings) -> dict[str, str]:
    """Return what ``--set`` says, by name."""
    found: dict[str, str] = {}
    for pair in settings.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ArgumentError(f"--set {pair!r} must be NAME=VALUE, such as optim.epochs=60.")
        found[name.strip()] = value.strip()
    return found
