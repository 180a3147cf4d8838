"""Splits drawn here: stratified, reproducible, each from a generator of its own."""

from __future__ import annotations

import dataclasses
import hashlib

import torch
from torch import Tensor

from classwise._checks import number, whole_number
from classwise.data.dataset import DataSet, Split
from classwise.errors import DataError

__all__ = ["TEST_FRACTION", "completed", "generator_for", "stratified", "with_test"]

TEST_FRACTION = 0.2


def generator_for(purpose: str, seed: int) -> torch.Generator:
    """Return a generator that depends on ``purpose`` and ``seed`` and nothing else."""
    seed = whole_number("seed", seed, low=0)
    digest = hashlib.sha256(f"{purpose}:{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def stratified(
    labels: Tensor, fraction: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Divide samples into those that stay and those that are held out, class by class.

    Of a class with n >= 2 samples, ``round(n * fraction)`` are held out, at least one and at most
    n - 1; a class of one sample stays whole.

    Args:
        labels: class of each sample, int64 (N,).
        fraction: to hold out, in [0, 1).
        generator: the only source of randomness, on the CPU.

    Returns:
        Two sorted tensors of indices that make up all samples.

    >>> kept, held = stratified(torch.tensor([0] * 10 + [1, 1, 2]), 0.2, torch.Generator())
    >>> torch.tensor([0] * 10 + [1, 1, 2])[held].tolist()
    [0, 0, 1]
    """
    fraction = number("fraction", fraction, low=0, high=1, high_open=True)
    if fraction == 0:
        return torch.arange(len(labels)), torch.arange(0)
    have = torch.bincount(labels)
    wanted = (have.double() * fraction).round().long().clamp(min=1)
    wanted = torch.where(have < 2, 0, torch.minimum(wanted, have - 1))
    # Shuffled, then ordered by class with ties in shuffled order: each class is a random run.
    order = torch.randperm(len(labels), generator=generator)
    order = order[labels[order].argsort(stable=True)]
    starts = have.cumsum(0) - have
    rank = torch.arange(len(labels)) - starts[labels[order]]
    held = rank < wanted[labels[order]]
    return order[~held].sort().values, order[held].sort().values


def completed(
    name: str, train: Split, val: Split | None, test: Split | None
) -> tuple[Split, Split | None, Split, tuple[str, ...]]:
    """Return the three splits with a test split among them, and what to say about it.

    Where there is none, the one held-out split that is published and called validation serves as
    it, as is usual for ImageNet and iNaturalist; without that, 20 % of each class are held out. The
    draw depends on nothing but the labels, so that it is the same in every run.
    """
    if test is not None:
        return train, val, test, ()
    if val is not None:
        return train, None, val, ("no test split: the validation split serves as the test split.",)
    kept, held = stratified(train.labels, TEST_FRACTION, generator_for("test split", 0))
    if not len(held):
        raise DataError(f"{name}: no class has two samples, so none could be held out for a test.")
    note = (
        f"no test split: {len(held)} of {len(train)} samples ({TEST_FRACTION:.0%} of each class) "
        "were held out as one."
    )
    return train.take(kept), None, train.take(held), (note,)


def with_test(dataset: DataSet) -> DataSet:
    """Return the data set with a test split, made as ``completed`` says and announced in notes."""
    train, val, test, notes = completed(dataset.name, dataset.train, dataset.val, dataset.test)
    return dataclasses.replace(
        dataset, train=train, val=val, test=test, notes=(*dataset.notes, *notes)
    )
