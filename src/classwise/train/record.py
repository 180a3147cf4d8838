"""What a run left behind: reading a run folder.

config.json         configuration, provenance, class names and counts
metrics.jsonl       a line for each epoch
final.safetensors   reliability tables, accuracies, confusion, bound of the last epoch
result.json         the final numbers
state.pt            the checkpoint, loadable with ``weights_only``
model.safetensors   the weights of the last epoch
done                there when the run is finished
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from classwise.errors import DataError

__all__ = [
    "CONFIG",
    "DONE",
    "FINAL",
    "METRICS",
    "MODEL",
    "RESULT",
    "STATE",
    "RunRecord",
    "read_run",
]

CONFIG = "config.json"
METRICS = "metrics.jsonl"
FINAL = "final.safetensors"
RESULT = "result.json"
STATE = "state.pt"
MODEL = "model.safetensors"
DONE = "done"

FORMAT = 1
"""Version of the folder's layout, in config.json."""


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run folder, read.

    Args:
        folder: where it lies.
        config: of the run, nested plain data (see ``classwise.train.config``).
        provenance: which code, data, machine and libraries made it.
        class_names: of all classes.
        class_counts: training counts, int64 (C,).
        recipe: phases of the method, in words.
        phase_starts: first epoch of each phase.
        epochs: what was measured in each epoch, oldest first, those of parents included; accuracies
            and calibration errors are fractions.
        tensors: measured at the end, by name; empty while unfinished.
        result: final numbers; empty while unfinished.
        finished: whether the run is done.
    """

    folder: Path
    config: dict[str, Any]
    provenance: dict[str, Any]
    class_names: tuple[str, ...]
    class_counts: Tensor
    recipe: str
    phase_starts: tuple[int, ...]
    epochs: list[dict[str, Any]]
    tensors: dict[str, Tensor]
    result: dict[str, Any]
    finished: bool

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.config["method"]["method"]

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.config["seed"]


def read_run(folder: Path | str) -> RunRecord:
    """Return what a run left behind, finished or not.

    A phase that continues another (see ``classwise.lab``) names its parent's folder; the epochs
    of the parent come first.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"there is no run folder {folder}.")
    head = read_json(folder / CONFIG)
    try:
        epochs = read_lines(folder / METRICS)
        parent = head.get("parent")
        if parent is not None:
            epochs = read_run(folder.parent / parent).epochs + epochs
        return RunRecord(
            folder=folder,
            config=head["config"],
            provenance=head["provenance"],
            class_names=tuple(head["class_names"]),
            class_counts=torch.tensor(head["class_counts"], dtype=torch.int64),
            recipe=head["recipe"],
            phase_starts=tuple(head["phase_starts"]),
            epochs=epochs,
            tensors=_read_tensors(folder / FINAL),
            result=read_json(folder / RESULT) if (folder / RESULT).exists() else {},
            finished=(folder / DONE).exists(),
        )
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{folder / CONFIG} is not of a run: {error!r} is missing or wrong."
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or say why there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is missing; {path.parent} is no run folder.") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} must hold an object, got {type(value).__name__}.")
    return value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file; a torn last line is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"{path}, line {number} cannot be read: {error}") from error
    return rows


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.exists():
        return {}
    from safetensors import SafetensorError  # noqa: PLC0415  (only needed where runs are read)
    from safetensors.torch import load_file  # noqa: PLC0415

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
