"""Samples that are the same, or show nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from torch import Tensor

from classwise.data.dataset import DataSet, Files, Split
from classwise.data.findings import Findings, shown
from classwise.data.images import checked, decode
from classwise.errors import DataError

__all__ = ["find_twins", "look_at"]


def look_at(split: Split, role: str, findings: Findings) -> list[bytes | None]:
    """Return a hash of each image's pixels; None where there are none to compare.

    Images that cannot be decoded are problems; images of one colour are warned of.
    """
    if split.kind == "table":
        return []
    inputs = split.inputs
    if isinstance(inputs, Tensor):
        seen = [_seen(image) for image in inputs.numpy()]
    else:
        seen = checked([inputs.path(i) for i in range(len(inputs))], _decoded)
    hashes: list[bytes | None] = []
    for index, found in enumerate(seen):
        if isinstance(found, str):
            findings.add("corrupt image", role, f"{_name(split, index)}: {found}")
            hashes.append(None)
            continue
        digest, constant = found
        if constant:
            findings.add("image of one colour", role, _name(split, index), fatal=False)
        hashes.append(None if constant else digest)
    return hashes


def _decoded(path: Path) -> tuple[bytes, bool] | str:
    try:
        return _seen(decode(path).transpose(2, 0, 1))
    except DataError as error:
        return str(error)


def _seen(image: np.ndarray) -> tuple[bytes, bool]:
    """Return a hash of (channels, height, width), and whether all pixels are the same."""
    digest = hashlib.blake2b(str(image.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    return digest.digest(), bool((image == image[:, :1, :1]).all())


def _name(split: Split, index: int) -> str:
    return split.inputs.paths[index] if isinstance(split.inputs, Files) else f"image {index}"


def find_twins(
    hashes: Mapping[str, list[bytes | None]], dataset: DataSet, findings: Findings
) -> None:
    """Warn of samples that another one, before them, equals in every pixel."""
    first: dict[bytes, tuple[str, int]] = {}
    for role, split in dataset.splits.items():
        for index, digest in enumerate(hashes[role]):
            if digest is None:
                continue
            other, where = first.setdefault(digest, (role, index))
            if (other, where) == (role, index):
                continue
            kind = f"exact copy of an image in {other}" if other != role else "exact copy"
            original = dataset.splits[other]
            pair = f"{_name(split, index)} = {_name(original, where)}"
            labels = int(split.labels[index]), int(original.labels[where])
            if labels[0] != labels[1]:
                kind += " that has another label"
                pair += ", " + " and ".join(shown(dataset.class_names[c]) for c in labels)
            findings.add(kind, role, pair, fatal=False)
