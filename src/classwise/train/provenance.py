"""Which code, data, machine and libraries made a result."""

from __future__ import annotations

import datetime
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import classwise
from classwise.train.setup import Setup

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["device_name", "revision", "stamp"]

_LIBRARIES = ("torch", "torchvision", "timm", "lightning-fabric", "numpy")


def stamp(fabric: Fabric, ready: Setup) -> dict[str, Any]:
    """Return where a run comes from."""
    found = ready.prepared
    return {
        "classwise": classwise.__version__,
        "revision": revision(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "device": device_name(fabric.device),
        "processes": fabric.world_size,
        "threads": torch.get_num_threads(),
        "precision": ready.config.precision,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "data": found.dataset.name,
        "data_checksum": found.checksum,
    }


def revision() -> str | None:
    """Return the commit of the source tree that runs, "-dirty" if changed; None if installed."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "src")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}-dirty" if changed else commit


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def device_name(device: torch.device) -> str:
    """Return what a device is called in results: a GPU's model, or the processor's kind."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()})"
