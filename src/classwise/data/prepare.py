"""From a data set to what a run trains, validates and tests on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from classwise._checks import number, whole_number
from classwise.data.dataset import DataSet, Split
from classwise.data.findings import shown
from classwise.data.profiles import parse_profile, select
from classwise.data.splits import generator_for, stratified, with_test
from classwise.errors import ArgumentError, DataError

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a run trains, validates and tests on; ``prepare`` makes it.

    Args:
        dataset: where it was taken from, test split included.
        train: the samples to learn from.
        val: the samples to choose settings by, if any.
        test: the samples that nothing is chosen by.
        class_counts: of ``train``, int64 (C,).
        train_indices: sorted, into ``dataset.train``.
        checksum: sha256 of the data and of which samples were taken; equal exactly where two runs
            saw the same.
    """

    dataset: DataSet
    train: Split
    val: Split | None
    test: Split
    class_counts: Tensor
    train_indices: Tensor
    checksum: str


def prepare(
    dataset: DataSet,
    *,
    imbalance: str = "as-is",
    val_fraction: float = 0.0,
    val_per_class: int = 0,
    seed: int = 0,
) -> Prepared:
    """Select a long-tailed training set and hold out a validation split of it.

    In this order: a test split, if the data set has none; the selection from the training split;
    the validation split from what was selected, stratified, at least one of each class that has
    two. Each draw has a generator of its own. A validation split that the source publishes is used
    as it is, and nothing is held out.

    Args:
        dataset: from ``load``, or your own.
        imbalance: a profile, see ``parse_profile``.
        val_fraction: of each class, in [0, 1).
        val_per_class: samples of each class that are held out *before* the selection, instead of a
            fraction. A few samples of a small class say little about it; where the training split
            has more of it than the profile keeps, this makes the validation split balanced.
        seed: of the selection; the published long-tailed sets are one fixed selection each, so
            keep it the same while the seed of training varies.

    >>> from classwise.data import load
    >>> prepared = prepare(load("digits"), imbalance="exp:20", val_fraction=0.2)
    >>> prepared.class_counts.tolist()
    [114, 81, 58, 42, 30, 21, 15, 10, 7, 6]
    """
    fraction = number("val_fraction", val_fraction, low=0, high=1, high_open=True)
    dataset = with_test(dataset)
    assert dataset.test is not None
    labels = dataset.train.labels
    profile = parse_profile(imbalance)
    pool, val, val_indices = torch.arange(len(labels)), dataset.val, torch.arange(0)
    if val is None and whole_number("val_per_class", val_per_class, low=0):
        if fraction:
            raise ArgumentError(
                "val_fraction and val_per_class are two ways to hold out; take one."
            )
        each = torch.full((dataset.num_classes,), val_per_class)
        val_indices = select(labels, each, generator_for("validation", seed))
        val = dataset.train.take(val_indices)
        pool = pool[~torch.isin(pool, val_indices)]
    counts = profile.counts(labels[pool], dataset.num_classes, class_names=dataset.class_names)
    indices = pool[select(labels[pool], counts, generator_for("selection", seed))]
    if val is None and fraction > 0:
        kept, held = stratified(labels[indices], fraction, generator_for("validation", seed))
        if not len(held):
            raise ArgumentError(f"val_fraction={fraction:g}: no class has two samples to part.")
        indices, val_indices = indices[kept], indices[held]
        val = dataset.train.take(val_indices)
    class_counts = torch.bincount(labels[indices], minlength=dataset.num_classes)
    _check_not_empty(dataset, class_counts)
    return Prepared(
        dataset,
        dataset.train.take(indices),
        val,
        dataset.test,
        class_counts,
        indices,
        _checksum(dataset, indices, val_indices),
    )


def _check_not_empty(dataset: DataSet, class_counts: Tensor) -> None:
    empty = torch.nonzero(class_counts == 0).flatten().tolist()
    if empty:
        names = ", ".join(repr(shown(dataset.class_names[c])) for c in empty[:5])
        more = ", ..." if len(empty) > 5 else ""
        raise DataError(
            f"{dataset.name}: {len(empty)} class(es) have no training samples: {names}{more}."
        )


def _checksum(dataset: DataSet, indices: Tensor, val_indices: Tensor) -> str:
    digest = hashlib.sha256(dataset.fingerprint.encode())
    for chosen in (indices, val_indices):
        digest.update(f" {len(chosen)} ".encode())
        digest.update(chosen.contiguous().numpy().data)
        digest.update(dataset.train.labels[chosen].contiguous().numpy().data)
    return digest.hexdigest()
