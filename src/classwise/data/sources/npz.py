"""``npz:FILE`` in the layout of MedMNIST: ``train_images``, ``train_labels``, ``val_...``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classwise.data.dataset import DataSet, Split
from classwise.data.findings import Findings, shown
from classwise.data.sources._address import Address
from classwise.data.sources._assemble import assemble
from classwise.errors import DataError

__all__ = ["read"]

_ROLES = ("train", "val", "test")
_NAMES = "class_names"


def read(address: Address, findings: Findings) -> DataSet:
    """Read the arrays; ``class_names``, which MedMNIST does not have, may be one of them."""
    path = address.required_place("npz:FILE")
    arrays = _arrays(path)
    found = {role: _split(path, arrays, role, findings) for role in _ROLES}
    train = found["train"]
    if train is None:
        raise DataError(f"{shown(path)} has no train_images and train_labels.")
    labels = [split.labels for split in found.values() if split is not None]
    num_classes = int(torch.cat(labels).max()) + 1
    names, notes = _class_names(path, arrays, num_classes)
    return assemble(path.stem, names, train, found["val"], found["test"], notes=notes)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    wanted = [f"{role}_{what}" for role in _ROLES for what in ("images", "labels")]
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = [name for name in (*wanted, _NAMES) if name in archive.files]
            return {name: archive[name] for name in names}
    except OSError as error:
        raise DataError(f"{shown(path)} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # zip, zlib and numpy each have their own
        raise DataError(f"{shown(path)} is not a sound .npz file: {error}.") from error


def _split(path: Path, arrays: dict[str, Any], role: str, findings: Findings) -> Split | None:
    images, labels = arrays.get(f"{role}_images"), arrays.get(f"{role}_labels")
    if images is None and labels is None:
        return None
    if images is None or labels is None:
        lacking = "images" if images is None else "labels"
        raise DataError(f"{shown(path)} has no {role}_{lacking}.")
    pixels, marks = _pixels(path, role, images), _marks(path, role, labels)
    if len(pixels) != len(marks):
        raise DataError(f"{shown(path)}: {len(pixels)} {role} images but {len(marks)} labels.")
    # A label beyond the number of samples leaves classes empty, and may be anything.
    good = (marks >= 0) & (marks < len(marks))
    for index in torch.nonzero(~good).flatten().tolist():
        findings.add("label out of range", role, f"sample {index}: {int(marks[index])}")
    if not bool(good.any()):
        findings.check(str(path))
        raise DataError(f"{shown(path)}: the {role} split has no samples.")
    return Split(pixels[good], marks[good])


def _pixels(path: Path, role: str, images: np.ndarray) -> Tensor:
    if images.dtype == np.uint8 and images.ndim == 3:
        return torch.from_numpy(images).unsqueeze(1)
    if images.dtype == np.uint8 and images.ndim == 4 and images.shape[-1] in (1, 3):
        return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    raise DataError(
        f"{shown(path)}: {role}_images must be uint8 of shape (N, height, width) or "
        f"(N, height, width, 1 or 3), got {images.dtype} of shape {images.shape}."
    )


def _marks(path: Path, role: str, labels: np.ndarray) -> Tensor:
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise DataError(
            f"{shown(path)}: {role}_labels has shape {labels.shape}: several labels for one image "
            "are not supported, only one of several classes."
        )
    if labels.dtype.kind not in "iu" or labels.ndim not in (1, 2):
        raise DataError(
            f"{shown(path)}: {role}_labels must be whole numbers of shape (N,) or (N, 1), got "
            f"{labels.dtype} of shape {labels.shape}."
        )
    return torch.from_numpy(labels.reshape(-1).astype(np.int64))


def _class_names(
    path: Path, arrays: dict[str, np.ndarray], num_classes: int
) -> tuple[list[str], tuple[str, ...]]:
    names = arrays.get(_NAMES)
    if names is None:
        note = f"{path.name} has no {_NAMES}: classes are called by their numbers."
        return [str(label) for label in range(num_classes)], (note,)
    if names.dtype.kind != "U" or names.ndim != 1 or len(names) < num_classes:
        raise DataError(
            f"{shown(path)}: {_NAMES} must be text of shape ({num_classes},), got {names.dtype} of "
            f"shape {names.shape}."
        )
    return [str(name) for name in names], ()
