"""Splits drawn here: stratified, reproducible, each from a generator of its own."""

from __future__ import annotations

import dataclasses
import hashlib

import torch
from torch import Tensor

from classwise._checks import number, whole_number
from classwise.data.dataset import DataSet
from classwise.errors import DataError

__all__ = ["TEST_FRACTION", "VAL_AS_TEST", "generator_for", "held_out", "stratified", "with_test"]

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


def held_out(name: str, labels: Tensor) -> tuple[Tensor, Tensor, str]:
    """Return which samples stay for training, which are for testing, and what to say about it.

    The draw depends on nothing but the labels, so that it is the same in every run.
    """
    kept, held = stratified(labels, TEST_FRACTION, generator_for("test split", 0))
    if not len(held):
        raise DataError(f"{name}: no class has two samples, so none could be held out for a test.")
    note = (
        f"no test split: {len(held)} of {len(labels)} samples ({TEST_FRACTION:.0%} of each class) "
        "were held out as one."
    )
    return kept, held, note


VAL_AS_TEST = "no test split: the validation split serves as the test split."


def with_test(dataset: DataSet) -> DataSet:
    """Return the data set with a test split, announced in its notes where it is made here.

    Where there is none, the one held-out split that is published and called validation serves as
    it, as is usual for ImageNet and iNaturalist; without that, 20 % of each class are held out.
    """
    train, val, test = dataset.train, dataset.val, dataset.test
    if test is not None:
        return dataset
    if val is not None:
        note, val, test = VAL_AS_TEST, None, val
    else:
        kept, held, note = held_out(dataset.name, train.labels)
        train, test = train.take(kept), train.take(held)
    return dataclasses.replace(
        dataset, train=train, val=val, test=test, notes=(*dataset.notes, note)
    )
