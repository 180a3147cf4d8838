"""What a data set is: inputs, integer labels and class names, in up to three splits."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from classwise.data.findings import shown
from classwise.errors import ArgumentError, DataError

__all__ = ["FILES_SHAPE", "DataSet", "Files", "Kind", "Split"]

Kind: TypeAlias = Literal["images", "table", "files"]

FILES_SHAPE = (3, 224, 224)
"""What image files are brought to, as every published ImageNet-LT recipe does."""

_ROLES = ("train", "val", "test")


@dataclass(frozen=True)
class Files:
    """Image files, read when they are needed.

    Args:
        root: the folder that ``paths`` are relative to.
        paths: one file for each sample, with forward slashes.
    """

    root: Path
    paths: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def path(self, index: int) -> Path:
        """Return where sample ``index`` lies."""
        return self.root / self.paths[index]

    def take(self, indices: Tensor) -> Files:
        """Return the files of some samples."""
        return Files(self.root, tuple(self.paths[i] for i in indices.tolist()))


@dataclass(frozen=True, eq=False)
class Split:
    """Samples with their labels.

    Args:
        inputs: uint8 images (N, channels, height, width), a float32 table (N, columns), or files.
        labels: int64 (N,) on the CPU.

    >>> split = Split(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1]))
    >>> len(split), split.kind, split.take(torch.tensor([2])).labels.tolist()
    (3, 'images', [1])
    """

    inputs: Tensor | Files
    labels: Tensor

    def __post_init__(self) -> None:
        _ = self.kind
        labels = self.labels
        if labels.dtype != torch.int64 or labels.ndim != 1 or labels.device.type != "cpu":
            raise ArgumentError(
                f"labels must be int64 of shape (N,) on the CPU, got {labels.dtype} of shape "
                f"{tuple(labels.shape)} on {labels.device}."
            )
        if len(self.inputs) != len(labels):
            raise ArgumentError(f"there are {len(self.inputs)} inputs but {len(labels)} labels.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def kind(self) -> Kind:
        """``"images"``, ``"table"`` or ``"files"``."""
        inputs = self.inputs
        if isinstance(inputs, Files):
            return "files"
        if inputs.dtype == torch.uint8 and inputs.ndim == 4:
            return "images"
        if inputs.dtype == torch.float32 and inputs.ndim == 2:
            return "table"
        raise ArgumentError(
            "inputs must be uint8 images (N, channels, height, width), a float32 table "
            f"(N, columns) or Files, got {inputs.dtype} of shape {tuple(inputs.shape)}."
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as a model sees it."""
        return FILES_SHAPE if isinstance(self.inputs, Files) else tuple(self.inputs.shape[1:])

    def take(self, indices: Tensor) -> Split:
        """Return the samples at ``indices``, int64 (n,), in that order."""
        inputs = self.inputs
        taken = inputs.take(indices) if isinstance(inputs, Files) else inputs[indices]
        return Split(taken, self.labels[indices])

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of shape, content and labels; of files, their relative paths and sizes."""
        digest = hashlib.sha256(f"{self.kind} {self.input_shape} {len(self)}".encode())
        if isinstance(self.inputs, Files):
            for index, path in enumerate(self.inputs.paths):
                line = f"{path}\0{_size(self.inputs.path(index))}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))
        else:
            digest.update(self.inputs.contiguous().numpy().data)
        digest.update(self.labels.contiguous().numpy().data)
        return digest.hexdigest()


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise DataError(f"{shown(path)} cannot be read: {error.strerror}.") from error


@dataclass(frozen=True, eq=False)
class DataSet:
    """Inputs, labels and class names.

    Args:
        name: what to call it in a report.
        class_names: one for each label 0 .. C - 1, in that order.
        train: samples to learn from.
        val: samples to choose settings by, where the source publishes some.
        test: samples that nothing is chosen by.
        mean: for normalising: of each channel in [0, 1], or of each column of a table.
        std: likewise.
        notes: what a user should know, such as a split that was drawn here.
    """

    name: str
    class_names: tuple[str, ...]
    train: Split
    val: Split | None = None
    test: Split | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.num_classes < 2:
            raise DataError(f"{self.name}: there must be at least 2 classes, {self._named()}.")
        if len(set(self.class_names)) < self.num_classes:
            twice = next(n for n in self.class_names if self.class_names.count(n) > 1)
            raise DataError(f"{self.name}: two classes are called {twice!r}.")
        for role, split in self.splits.items():
            self._check_split(role, split)
        width = self.input_shape[0]
        if len(self.mean) != width or len(self.std) != width or min(self.std) <= 0:
            raise ArgumentError(
                f"mean and std must be {width} numbers, std > 0, got {self.mean} and {self.std}."
            )

    def _check_split(self, role: str, split: Split) -> None:
        if not len(split):
            raise DataError(f"{self.name}: the {role} split has no samples.")
        low, high = int(split.labels.min()), int(split.labels.max())
        if low < 0 or high >= self.num_classes:
            raise DataError(
                f"{self.name}: labels of the {role} split go from {low} to {high}, {self._named()}."
            )
        if (split.kind, split.input_shape) != (self.kind, self.input_shape):
            raise DataError(
                f"{self.name}: the {role} split holds {split.kind} of shape {split.input_shape}, "
                f"the train split {self.kind} of shape {self.input_shape}."
            )

    def _named(self) -> str:
        return f"{self.num_classes} class name(s) are given"

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that there are, by name."""
        every = {role: getattr(self, role) for role in _ROLES}
        return {role: split for role, split in every.items() if split is not None}

    @property
    def kind(self) -> Kind:
        """``"images"``, ``"table"`` or ``"files"``."""
        return self.train.kind

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample as a model sees it: (channels, height, width) or (columns,)."""
        return self.train.input_shape

    @property
    def class_counts(self) -> Tensor:
        """Samples of each class in the training split, int64 (C,)."""
        return torch.bincount(self.train.labels, minlength=self.num_classes)

    @cached_property
    def fingerprint(self) -> str:
        """Sha256 of class names and all splits: the same data has the same, wherever it lies."""
        digest = hashlib.sha256(repr(self.class_names).encode())
        for role, split in self.splits.items():
            digest.update(f"{role} {split.fingerprint}".encode())
        return digest.hexdigest()
