"""Running: claim a folder, start the processes, return what they left behind.

A whole training is ``run(config, folder)``; the laboratory trains phases, each of which continues
its parent's folder.
"""

from __future__ import annotations

import json
import logging
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from classwise.errors import ArgumentError, CheckpointError
from classwise.train import record
from classwise.train.checkpoint import make_folder
from classwise.train.config import RunConfig, differences, to_dict
from classwise.train.defaults import torch_device
from classwise.train.observe import Observer, Silent
from classwise.train.session import Session
from classwise.train.setup import Setup, setup
from classwise.train.stopping import Interrupted, forget_requests, stop_requests

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["by_torchrun", "run", "speaks"]

_SMALL, _FEW = ("small-cnn", "mlp"), 256
"""Models, and numbers in a sample, whose steps are shorter than it takes to wake a thread."""

_ANYWHERE = ("device", "devices", "threads")
"""Settings that a run may change when it goes on: they say where, not what."""


def by_torchrun() -> bool:
    """Whether torchrun started this process, and others beside it."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def speaks() -> bool:
    """Whether this process is the one that reports to the user: the first that torchrun started."""
    return not by_torchrun() or os.environ["RANK"] == "0"


def run(
    config: RunConfig,
    folder: Path | str,
    *,
    first: int = 0,
    stop: int | None = None,
    parent: Path | None = None,
    identity: dict[str, Any] | None = None,
    resume: bool = True,
    observer: Observer | None = None,
) -> record.RunRecord:
    """Train the epochs ``first`` to ``stop - 1`` of a configuration into a folder.

    A folder that holds an unfinished run of the same configuration is continued; a finished one is
    returned as it is.

    Args:
        config: what to train; what it leaves open is chosen for the data.
        folder: made if it is not there.
        first: epoch to begin with; beyond 0 it needs ``parent``.
        stop: epoch to end before; None is the end of training.
        parent: folder of the run whose end this one continues.
        identity: what the folder is recognised by, for phases that several configurations share;
            None is the configuration and its data.
        resume: False refuses a folder that already holds something.
        observer: told how it goes.

    Raises:
        Interrupted: after SIGINT or SIGTERM, with the state saved.
        CheckpointError: if the folder holds something else.
    """
    _check_devices(config)
    ready = setup(config)
    folder, stop = Path(folder), ready.epochs if stop is None else stop
    _claim(folder, ready, identity, resume=resume)
    if not (folder / record.DONE).exists():
        forget_requests(folder)
        _launch(_Job(config, folder, first, stop, parent, identity, observer or Silent()))
        if not (folder / record.DONE).exists():
            raise Interrupted(
                f"stopped; the state is saved in {folder} and the run can be resumed."
            )
    return record.read_run(folder)


def _check_devices(config: RunConfig) -> None:
    """Raise for more processes than the machine can serve: each loads torch and the data."""
    kind = torch_device(config.device).type
    there = torch.cuda.device_count() if kind == "cuda" else 1
    there = max(2, os.cpu_count() or 1) if kind == "cpu" else there
    if config.devices > there:
        raise ArgumentError(f"devices={config.devices}: at most {there} on {kind} here.")


def _claim(folder: Path, ready: Setup, identity: dict[str, Any] | None, *, resume: bool) -> None:
    """Make the folder, or make sure that what it holds is of this configuration."""
    make_folder(folder)
    if not (folder / record.CONFIG).exists():
        if any(not p.name.startswith(".") for p in folder.iterdir()):
            raise CheckpointError(f"{folder} is not empty and holds no run; name another folder.")
        return
    if not resume:
        raise CheckpointError(
            f"{folder} already holds a run: resume it (--resume), or name another folder."
        )
    head = record.read_json(folder / record.CONFIG)
    if identity is not None:
        different = differences(head.get("identity") or {}, identity)
        if different:
            raise CheckpointError(f"{folder} holds another phase. {'; '.join(different)}.")
        return
    saved, mine = head.get("config", {}), json.loads(json.dumps(to_dict(ready.config)))
    for name in _ANYWHERE:
        saved.pop(name, None)
        mine.pop(name, None)
    different = differences(saved, mine)
    checksum = head.get("provenance", {}).get("data_checksum")
    if checksum != ready.prepared.checksum:
        different.append(f"data: saved checksum {checksum!r}, here {ready.prepared.checksum!r}")
    if different:
        raise CheckpointError(
            f"{folder} holds a run of another configuration. {'; '.join(different)}."
        )


@dataclass
class _Job:
    """What every process of a run does."""

    config: RunConfig
    folder: Path
    first: int
    stop: int
    parent: Path | None
    identity: dict[str, Any] | None
    observer: Observer

    def __call__(self, fabric: Fabric) -> None:
        ready = setup(self.config)
        logging.getLogger("lightning.fabric").setLevel(logging.ERROR)  # it comments on settings
        if fabric.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.benchmark = True
        threads = self.config.threads
        few = math.prod(ready.prepared.dataset.input_shape) <= _FEW
        if threads is None and few and ready.config.model.model in _SMALL:
            threads = 1
        if threads is not None:
            torch.set_num_threads(threads)
        with stop_requests(self.folder if fabric.world_size > 1 else None) as asked:
            session = Session(fabric, ready, self.folder, self.identity, asked)
            observer = self.observer if fabric.is_global_zero else Silent()
            session.train(self.first, self.stop, self.parent, observer)


def _launch(job: _Job) -> None:
    from lightning_fabric import Fabric  # noqa: PLC0415  (takes seconds, which --help need not wait)

    config = job.config
    device = torch_device(config.device)
    devices, nodes, strategy = config.devices, 1, "auto" if config.devices == 1 else "ddp_spawn"
    if by_torchrun():
        devices, strategy = int(os.environ["LOCAL_WORLD_SIZE"]), "ddp"
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    precision: Any = config.precision or "32-true"
    accelerator = device.type if device.type in ("cuda", "mps") else "cpu"
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy=strategy,
        precision=precision,
    )
    if strategy == "ddp_spawn":
        # The children load the data again: a file is quicker than a pipe.
        with stop_requests(job.folder):
            fabric.launch(job)
    else:
        fabric.launch()
        job(fabric)
