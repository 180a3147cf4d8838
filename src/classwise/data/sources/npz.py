"""``npz:FILE`` in the layout of MedMNIST: ``train_images``, ``train_labels``, ``val_...``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classwise.data.dataset import DataSet
from classwise.data.findings import Findings, shown
from classwise.data.sources._address import Address
from classwise.data.sources._assemble import assemble, labelled
from classwise.errors import DataError

__all__ = ["read"]

_ROLES = ("train", "val", "test")
_NAMES = "class_names"


def read(address: Address, findings: Findings) -> DataSet:
    """Read the arrays; ``class_names``, which MedMNIST does not have, may be one of them."""
    path = address.required_place("npz:FILE")
    arrays = _arrays(path)
    found = {role: _pair(path, arrays, role) for role in _ROLES}
    train = found["train"]
    if train is None:
        raise DataError(f"{shown(path)} has no train_images and train_labels.")
    names, notes = _class_names(path, arrays, train[1])
    splits = {
        role: labelled(*pair, len(names), role, findings) for role, pair in found.items() if pair
    }
    return assemble(
        path.stem, names, splits["train"], splits.get("val"), splits.get("test"), notes=notes
    )


def _arrays(path: Path) -> dict[str, np.ndarray]:
    wanted = [f"{role}_{what}" for role in _ROLES for what in ("images", "labels")]
    try:
        # Opened here: numpy leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names = [name for name in (*wanted, _NAMES) if name in archive.files]
            return {name: archive[name] for name in names}
    except OSError as error:
        raise DataError(f"{shown(path)} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # zip, zlib and numpy each have their own
        raise DataError(f"{shown(path)} is not a sound .npz file: {error}.") from error


def _pair(path: Path, arrays: dict[str, Any], role: str) -> tuple[Tensor, Tensor] | None:
    images, labels = arrays.get(f"{role}_images"), arrays.get(f"{role}_labels")
    if images is None and labels is None:
        return None
    if images is None or labels is None:
        lacking = "images" if images is None else "labels"
        raise DataError(f"{shown(path)} has no {role}_{lacking}.")
    pixels, marks = _pixels(path, role, images), _marks(path, role, labels)
    if len(pixels) != len(marks):
        raise DataError(f"{shown(path)}: {len(pixels)} {role} images but {len(marks)} labels.")
    return pixels, marks


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
    path: Path, arrays: dict[str, np.ndarray], train: Tensor
) -> tuple[list[str], tuple[str, ...]]:
    names = arrays.get(_NAMES)
    if names is None:
        # A label beyond the number of samples leaves classes empty, and may be anything.
        possible = train[(train >= 0) & (train < len(train))]
        num_classes = int(possible.max()) + 1 if len(possible) else 0
        note = f"{path.name} has no {_NAMES}: classes are called by their numbers."
        return [str(label) for label in range(num_classes)], (note,)
    if names.dtype.kind != "U" or names.ndim != 1:
        raise DataError(
            f"{shown(path)}: {_NAMES} must be text of shape (C,), got {names.dtype} of shape "
            f"{names.shape}."
        )
    return [str(name) for name in names], ()
