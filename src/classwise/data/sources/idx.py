"""``fashion-mnist``: the four IDX files of Xiao et al. 2017, compressed or not."""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from classwise.data.dataset import DataSet
from classwise.data.findings import Findings, shown
from classwise.data.sources._address import Address
from classwise.data.sources._assemble import assemble, labelled
from classwise.errors import DataError

__all__ = ["read", "read_idx"]

_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_PARTS = {"train": "train", "test": "t10k"}
_LARGEST = 2**32  # bytes; what a damaged header claims is not allocated
_CHUNK = 2**20


def read(address: Address, findings: Findings) -> DataSet:
    """Read the four files in the folder."""
    folder = address.place_or_default()
    if not folder.is_dir():
        raise DataError(f"fashion-mnist: there is no folder {shown(folder)}.")
    splits = {}
    for role, part in _PARTS.items():
        images = read_idx(_find(folder, f"{part}-images", 3), dimensions=3)
        labels = read_idx(_find(folder, f"{part}-labels", 1), dimensions=1)
        if len(images) != len(labels):
            raise DataError(
                f"fashion-mnist: {len(images)} {role} images but {len(labels)} labels in "
                f"{shown(folder)}."
            )
        pixels = torch.from_numpy(images).unsqueeze(1)
        marks = torch.from_numpy(labels.astype(np.int64))
        splits[role] = labelled(pixels, marks, len(_CLASSES), role, findings)
    return assemble("fashion-mnist", _CLASSES, splits["train"], None, splits["test"])


def _find(folder: Path, stem: str, dimensions: int) -> Path:
    name = f"{stem}-idx{dimensions}-ubyte"
    for candidate in (name, f"{name}.gz", f"{stem}.idx{dimensions}-ubyte"):
        if (folder / candidate).is_file():
            return folder / candidate
    raise DataError(f"fashion-mnist: {shown(folder)} has neither {name} nor {name}.gz.")


def read_idx(path: Path, *, dimensions: int) -> np.ndarray:
    """Return the array of bytes in an IDX file, .gz or not.

    Raises:
        DataError: it is none, is cut short or too long, or does not hold bytes.
    """
    opening: Callable[[Path], BinaryIO] = gzip.open if path.suffix == ".gz" else _open  # type: ignore[assignment]
    try:
        with opening(path) as file:
            return _parse(file, dimensions)
    except (OSError, EOFError, DataError) as error:
        raise DataError(f"{shown(path)}: {error}.") from error
    except Exception as error:  # zlib.error, which shares no base with the others
        raise DataError(f"{shown(path)} is damaged: {error}.") from error


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _parse(file: BinaryIO, dimensions: int) -> np.ndarray:
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0":
        raise DataError("is no IDX file, which begins with two zero bytes")
    if head[2] != 0x08:
        raise DataError(f"holds values of type {head[2]:#04x}, only bytes (0x08) are read")
    if head[3] != dimensions:
        raise DataError(f"has {head[3]} dimensions where {dimensions} are expected")
    raw = file.read(4 * dimensions)
    if len(raw) < 4 * dimensions:
        raise DataError("is cut short within its header")
    shape = struct.unpack(f">{dimensions}I", raw)
    size = math.prod(shape)
    if not 0 < size <= _LARGEST:
        raise DataError(f"claims the shape {shape}")
    content = bytearray()
    while len(content) <= size and (chunk := file.read(min(_CHUNK, size + 1 - len(content)))):
        content += chunk
    if len(content) != size:
        many = "more" if len(content) > size else f"only {len(content)}"
        raise DataError(f"claims {size} values of shape {shape} but has {many}")
    return np.frombuffer(content, np.uint8).reshape(shape)
