"""Training counts of each class, from a data set's label column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classwise._checks import whole_number
from classwise.errors import ArgumentError, DataError

__all__ = ["class_counts_from"]

_ROWS = 10_000  # of a column that are in memory at a time


def class_counts_from(
    dataset: Any, column: str, *, num_classes: int | None = None, ignore: int = -100
) -> Tensor:
    """Return how many samples, or tokens, of each class a data set has, int64 (C,).

    Count the training split only. No other column is read, so images are not decoded.

    Args:
        dataset: a ``datasets.Dataset``, or anything of a length whose rows are mappings.
        column: of class indices, or of a list of them in each row (tokens).
        num_classes: C; None is what a ``ClassLabel`` column says, or else the largest index + 1.
        ignore: an index that does not count.

    >>> rows = [{"tags": [0, 0, 1, -100]}, {"tags": [0, 2]}]
    >>> class_counts_from(rows, "tags")
    tensor([3, 1, 1])
    """
    if num_classes is None:
        num_classes = _declared_classes(dataset, column)
    else:
        num_classes = whole_number("num_classes", num_classes, low=2)
    counts = np.zeros(num_classes or 0, dtype=np.int64)
    for values in _columns(dataset, column):
        labels = _indices(values, column)
        labels = labels[labels != ignore]
        if labels.size and labels.min() < 0:
            raise DataError(f"column {column!r} holds {labels.min()}, which is no class index.")
        found = np.bincount(labels, minlength=len(counts))
        if num_classes is not None and len(found) > num_classes:
            raise DataError(
                f"column {column!r} holds {len(found) - 1}; with {num_classes} classes legal are "
                f"0 to {num_classes - 1}."
            )
        found[: len(counts)] += counts
        counts = found
    if not counts.any():
        raise DataError(f"column {column!r} holds no label.")
    return torch.from_numpy(counts)


def _declared_classes(dataset: Any, column: str) -> int | None:
    features = getattr(dataset, "features", None)
    feature = features.get(column) if isinstance(features, Mapping) else None
    return getattr(getattr(feature, "feature", feature), "num_classes", None)


def _columns(dataset: Any, column: str) -> Iterator[Sequence[Any]]:
    """Yield the values of a column, some rows at a time."""
    names = getattr(dataset, "column_names", None)
    if isinstance(dataset, Mapping) or isinstance(names, Mapping):
        raise ArgumentError(
            f"dataset is {type(dataset).__name__}, one data set for each split; pass "
            "dataset['train']."
        )
    if not hasattr(dataset, "__len__"):
        raise ArgumentError(
            f"dataset is a {type(dataset).__name__} of unknown length; count its labels yourself."
        )
    if names is not None and column not in names:
        raise DataError(f"there is no column {column!r}, only {', '.join(map(repr, names))}.")
    rows = len(dataset)
    if names is None:
        if rows:
            yield [_value(dataset[row], column) for row in range(rows)]
        return
    # Rows of one column without formats or transforms, whatever the user has set.
    plain = dataset.select_columns(column).with_format(None)
    for start in range(0, rows, _ROWS):
        yield plain[start : start + _ROWS][column]


def _value(row: Any, column: str) -> Any:
    if isinstance(row, Mapping) and column in row:
        return row[column]
    if isinstance(row, Mapping):
        raise DataError(f"a row has no {column!r}, it has the keys {', '.join(map(repr, row))}.")
    raise DataError(f"a row is of type {type(row).__name__}, no mapping that has {column!r}.")


def _indices(values: Sequence[Any], column: str) -> np.ndarray:
    """Return class indices, flat; rows may be lists of different lengths."""
    try:
        if np.ndim(values[0]):
            filled = [np.asarray(value).ravel() for value in values if len(value)]
            labels = np.concatenate(filled) if filled else np.zeros(0, dtype=np.int64)
        else:
            labels = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"column {column!r} does not hold class indices.") from error
    if labels.size == 0:
        return labels.astype(np.int64)
    if labels.dtype.kind not in "iu":
        raise DataError(
            f"column {column!r} holds {labels[:1].tolist()[0]!r}, not class indices; encode it "
            "first (dataset.class_encode_column)."
        )
    return labels.astype(np.int64)
