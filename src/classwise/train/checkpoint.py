"""Files that are whole or not there: atomic writes, and checkpoints that load without pickle."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from classwise.errors import ArgumentError, CheckpointError, StateError

__all__ = [
    "load_state",
    "make_folder",
    "save_state",
    "verify_done",
    "write_atomic",
    "write_done",
    "write_json",
]

FORMAT = 1


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, or say why it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{folder} cannot be made: {error.strerror}.") from error


def write_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file so that it is there whole or not at all, and an older one stays until then.

    Args:
        path: where the file will be.
        write: writes it to the path that it is given.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        # torch and safetensors wrap a full disk in errors of their own.
        _forget(part)
        kept = " The one before is untouched." if path.exists() else ""
        reason = getattr(error, "strerror", None) or error
        raise StateError(f"{path} could not be written: {reason}.{kept}") from error
    except BaseException:
        _forget(part)
        raise


def _forget(part: Path) -> None:
    with contextlib.suppress(OSError):
        part.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON, atomically."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=True) + "\n"
    write_atomic(path, lambda part: _write_text(part, text))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def write_done(folder: Path, done: str) -> None:
    """Write the file that says that a folder is finished: size and sha256 of every other file."""
    files = {
        path.name: {"size": path.stat().st_size, "sha256": _digest(path)}
        for path in sorted(folder.iterdir())
        if path.is_file() and not path.name.startswith(".") and path.name != done
    }
    write_json(folder / done, files)


def verify_done(folder: Path, done: str = "done") -> str:
    """Return what is wrong with a folder that says it is finished; nothing if all is well.

    A checkpoint that was deleted on purpose (``state.pt``) is no damage.
    """
    try:
        files = json.loads((folder / done).read_text(encoding="utf-8"))
        for name, said in files.items():
            path = folder / name
            if not path.exists():
                if name == "state.pt":
                    continue
                return f"{name} is missing"
            if path.stat().st_size != said["size"]:
                return f"{name} has {path.stat().st_size} bytes instead of {said['size']}"
            if _digest(path) != said["sha256"]:
                return f"{name} was changed after it was written"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return f"{done} cannot be read: {error}"
    return ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint of tensors and plain data, atomically."""
    write_atomic(path, lambda part: torch.save({"format": FORMAT, **state}, part))


def load_state(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return a checkpoint, or say why it is none. Nothing but tensors and plain data is loaded."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}.") from None
    except (OSError, EOFError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        if isinstance(error, pickle.UnpicklingError):  # torch advises to load it all the same
            reason = "it is not of tensors and plain data"
        raise CheckpointError(
            f"{path} is damaged or no checkpoint of classwise ({reason}). "
            "Delete it to start again from the beginning."
        ) from error
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is no checkpoint of this version of classwise. "
            "Delete it to start again from the beginning."
        )
    return state
