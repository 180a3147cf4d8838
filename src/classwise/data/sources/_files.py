"""What folders and lists have in common: files with labels, checked and brought into a split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from classwise.data.dataset import Files, Split
from classwise.data.findings import Findings, shown
from classwise.data.images import checked, decode, stacked, trouble
from classwise.data.sources._address import Address
from classwise.errors import ArgumentError, DataError

__all__ = ["IMAGE_OPTIONS", "file_split", "pixel_size", "siblings"]

IMAGE_OPTIONS = ("size",)

_LARGEST_SIZE = 512


def pixel_size(address: Address) -> int | None:
    """Return the option ``size``: images are read at once, as squares of so many pixels."""
    text = address.options.get("size")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= _LARGEST_SIZE):
        raise ArgumentError(
            f"size={shown(text)} must be a whole number of pixels from 1 to {_LARGEST_SIZE}."
        )
    return int(text)


def file_split(
    root: Path,
    samples: Sequence[tuple[str, int]],
    where: str,
    findings: Findings,
    size: int | None,
) -> Split:
    """Return (path, label) pairs as a split, without the files that cannot be read.

    ``size`` None leaves files to be read in training, at full resolution.
    """
    paths = [root / path for path, _ in samples]
    found = checked(paths, trouble if size is None else lambda path: _pixels(path, size))
    good = []
    for index, outcome in enumerate(found):
        if isinstance(outcome, tuple):
            what, detail = outcome
            path = samples[index][0]
            findings.add(what, where, f"{path}: {detail}" if detail else path)
        else:
            good.append(index)
    if not good:
        findings.check(str(root))
        raise DataError(f"{shown(root)}: {where} has no images.")
    labels = torch.tensor([samples[index][1] for index in good])
    if size is None:
        return Split(Files(root, tuple(samples[index][0] for index in good)), labels)
    return Split(stacked([found[index] for index in good]), labels)


def _pixels(path: Path, size: int):
    """Return the pixels of an image, or what is wrong with it."""
    try:
        return decode(path, size)
    except DataError as error:
        return trouble(path) or ("corrupt image", str(error))


def siblings(path: Path) -> dict[str, Path]:
    """Return what lies beside ``X_train.txt``: ``X_val.txt`` and ``X_test.txt``."""
    if not path.stem.endswith("train"):
        return {}
    stem = path.stem.removesuffix("train")
    beside = {role: path.with_name(f"{stem}{role}{path.suffix}") for role in ("val", "test")}
    return {role: other for role, other in beside.items() if other.is_file()}
