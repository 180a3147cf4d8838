"""In which order samples are seen: shuffled, class-aware, square-root, progressively balanced.

The order of an epoch is a pure function of (seed, kind, epoch) and of the labels. There is no state
that moves from one epoch to the next: a run that is resumed or forked at an epoch sees what the
uninterrupted one saw, and every rank knows the order of all ranks without talking to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from classwise._checks import known_name, whole_number
from classwise.data._random import generator_for
from classwise.errors import ArgumentError, CheckpointError

__all__ = ["KINDS", "Batch", "ClassSampler", "SequentialSampler"]

KINDS = {
    "shuffled": "every sample once",
    "class-aware": "classes in turn, a few samples of each: all classes equally often",
    "sqrt": "class c with probability proportional to N_c^(1/2)",
    "progressive": "from instance-balanced to class-balanced: (1 - t/T) pi_c + (t/T) / C",
}
"""How training samples are drawn."""


class Batch(NamedTuple):
    """A batch of all ranks together, and which part of it belongs to this one."""

    number: int
    start: int
    """Position of the first sample in the epoch."""
    indices: Tensor
    """Samples of all ranks, int64 (n,)."""
    rows: slice
    """This rank's rows of ``indices``."""


class _Sampler:
    """Cuts an order into global batches, and these into contiguous chunks, one for each rank."""

    def __init__(self, length: int, batch_size: int, rank: int, world: int) -> None:
        self.batch_size = whole_number("batch_size", batch_size, low=1)
        self.world = whole_number("world", world, low=1)
        self.rank = whole_number("rank", rank, low=0, high=self.world - 1)
        self.epoch = 0
        if self.batch_size < self.world:
            raise ArgumentError(
                f"batch_size={batch_size} is the size over all ranks and leaves some of the "
                f"world={world} without samples; it must be at least {world}."
            )
        if length < self.world:
            raise ArgumentError(f"{length} sample(s) cannot be divided over world={world} ranks.")
        self.length = length

    def __len__(self) -> int:
        return len(self._ends())

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self.batches():
            yield batch.indices[batch.rows]

    def batches(self, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of the current epoch.

        Args:
            first: number of the batch to begin with.
        """
        order, start = self.order(), 0
        for number, end in enumerate(self._ends()):
            if number >= first:
                yield Batch(number, start, order[start:end], self._rows(end - start))
            start = end

    def order(self) -> Tensor:
        """Return the samples of the current epoch on all ranks, int64."""
        raise NotImplementedError

    def _ends(self) -> list[int]:
        """Return where each batch ends.

        A tail of a single sample, or of fewer than there are ranks, joins the batch before:
        each rank gets something to do, and batch normalisation has more than one sample.
        """
        ends = [*range(self.batch_size, self.length, self.batch_size), self.length]
        tail = self.length - ends[-2] if len(ends) > 1 else self.batch_size
        if tail < min(max(self.world, 2), self.batch_size):
            del ends[-2]
        return ends

    def _rows(self, length: int) -> slice:
        share, extra = divmod(length, self.world)
        start = self.rank * share + min(self.rank, extra)
        return slice(start, start + share + (self.rank < extra))


class SequentialSampler(_Sampler):
    """Every sample once, in the order of the data: for evaluation.

    Args:
        length: number of samples.
        batch_size: of all ranks together, >= ``world``; may exceed ``length``.
        rank: this process.
        world: number of processes.

    >>> [indices.tolist() for indices in SequentialSampler(5, batch_size=2)]
    [[0, 1], [2, 3, 4]]
    """

    def __init__(self, length: int, *, batch_size: int, rank: int = 0, world: int = 1) -> None:
        super().__init__(whole_number("length", length, low=1), batch_size, rank, world)

    def set_epoch(self, epoch: int) -> None:
        """Do nothing: all epochs are equal."""
        self.epoch = whole_number("epoch", epoch, low=0)

    def order(self) -> Tensor:
        """Return 0, 1, 2, ..."""
        return torch.arange(self.length)


class ClassSampler(_Sampler):
    """Batches of indices for training, on one rank or on several.

    An epoch has as many samples as the data, whatever the kind:

    - ``"shuffled"``: every sample once.
    - ``"class-aware"``: the classes in random order, over and over, ``samples_per_class``
      consecutive samples of each (Shen et al. 2016; 4 as in the published code of Kang et al.
      2020).
    - ``"sqrt"``: classes drawn with probability proportional to N_c^(1/2).
    - ``"progressive"``: classes drawn with probability (1 - t/T) pi_c + (t/T) / C in epoch t of T
      (Kang et al. 2020).

    Where classes are drawn, the samples of a class are taken from its shuffled cycle: none is seen
    again before all others of its class were. Classes without samples are never drawn.

    Each global batch is cut into contiguous chunks that differ by at most one sample; put together
    in the order of the ranks they are the batch that one process sees. A last batch of one sample,
    or of fewer than ``world``, joins the batch before.

    Args:
        labels: class of each sample, int64 (N,).
        num_classes: C.
        batch_size: of all ranks together, between ``world`` and N.
        kind: one of the above.
        seed: the only source of randomness, with the epoch.
        epochs: T, needed by ``"progressive"``.
        rank: this process.
        world: number of processes.
        samples_per_class: of ``"class-aware"``.

    >>> sampler = ClassSampler(torch.tensor([0, 0, 0, 0, 1, 1]), 2, batch_size=4, seed=0)
    >>> sampler.set_epoch(3)
    >>> torch.cat(list(sampler)).sort().values.tolist(), len(sampler)
    ([0, 1, 2, 3, 4, 5], 2)
    """

    def __init__(
        self,
        labels: Tensor,
        num_classes: int,
        *,
        batch_size: int,
        kind: str = "shuffled",
        seed: int = 0,
        epochs: int | None = None,
        rank: int = 0,
        world: int = 1,
        samples_per_class: int = 4,
    ) -> None:
        self.kind = known_name("kind", kind, KINDS)
        self.seed = whole_number("seed", seed, low=0)
        self.epochs = None if epochs is None else whole_number("epochs", epochs, low=1)
        self.num_classes = whole_number("num_classes", num_classes, low=1)
        self.samples_per_class = whole_number("samples_per_class", samples_per_class, low=1)
        if kind == "progressive" and epochs is None:
            raise ArgumentError("kind='progressive' needs epochs, the length of training.")
        self._labels = _class_labels(labels, self.num_classes)
        self._counts = torch.bincount(self._labels, minlength=self.num_classes)
        super().__init__(self._labels.numel(), batch_size, rank, world)
        if self.batch_size > self._labels.numel():
            raise ArgumentError(
                f"batch_size={batch_size} is larger than the {self._labels.numel()} training "
                f"samples; legal is {self.world} to {self._labels.numel()}."
            )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration has.

        Args:
            epoch: counted from 0, below ``epochs`` where that is given.
        """
        self.epoch = self._legal_epoch(epoch)

    def order(self) -> Tensor:
        """Return the samples of the current epoch on all ranks, int64 (N,)."""
        generator = generator_for(self.kind, self.seed, self.epoch)
        if self.kind == "shuffled":
            return torch.randperm(self.length, generator=generator)
        if self.kind == "class-aware":
            classes = self._classes_in_turn(generator)
        else:
            weights = self.class_probabilities()
            classes = torch.multinomial(weights, self.length, replacement=True, generator=generator)
        return _from_cycles(classes, self._labels, self._counts, generator)

    def class_probabilities(self) -> Tensor:
        """Return the expected share of each class in the current epoch, float64 (C,)."""
        prior = self._counts.double() / self.length
        balanced = (self._counts > 0).double()
        balanced /= balanced.sum()
        if self.kind == "shuffled":
            return prior
        if self.kind == "class-aware":
            return balanced
        if self.kind == "sqrt":
            return prior.sqrt() / prior.sqrt().sum()
        assert self.epochs is not None  # checked by __init__
        passed = self.epoch / self.epochs
        return (1 - passed) * prior + passed * balanced

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, and what the order depends on."""
        return {"epoch": self.epoch, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved epoch; a state of another order is refused.

        The number of ranks may differ from what it was.
        """
        own = self._identity()
        missing = [name for name in ("epoch", *own) if name not in state]
        if missing:
            raise CheckpointError(f"the state of the sampler lacks {', '.join(missing)}.")
        differing = [
            f"{name} is {state[name]!r} there and {value!r} here"
            for name, value in own.items()
            if state[name] != value
        ]
        if differing:
            raise CheckpointError(f"the state is of another sampler: {'; '.join(differing)}.")
        self.epoch = self._legal_epoch(state["epoch"])

    def _legal_epoch(self, epoch: object) -> int:
        last = None if self.epochs is None else self.epochs - 1
        return whole_number("epoch", epoch, low=0, high=last)

    def _identity(self) -> dict[str, Any]:
        identity: dict[str, Any] = {
            "kind": self.kind,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "labels": hashlib.blake2b(self._labels.numpy().tobytes(), digest_size=8).hexdigest(),
        }
        if self.kind == "class-aware":
            identity["samples_per_class"] = self.samples_per_class
        if self.kind == "progressive":
            identity["epochs"] = self.epochs
        return identity

    def _classes_in_turn(self, generator: torch.Generator) -> Tensor:
        present = self._counts.nonzero().flatten()
        rounds = -(-self.length // (present.numel() * self.samples_per_class))
        # One shuffled list of all classes after another.
        keys = torch.rand(rounds, present.numel(), generator=generator)
        blocks = present[keys.argsort(dim=1)].flatten()
        return blocks.repeat_interleave(self.samples_per_class)[: self.length]


def _class_labels(labels: object, num_classes: int) -> Tensor:
    if not isinstance(labels, Tensor):
        raise ArgumentError(f"labels must be a torch.Tensor, got {type(labels).__name__}.")
    if labels.ndim != 1 or labels.dtype != torch.int64:
        raise ArgumentError(
            f"labels must be int64 of shape (N,), got {labels.dtype} {tuple(labels.shape)}."
        )
    if labels.numel() == 0:
        raise ArgumentError("labels are empty: there is nothing to sample.")
    labels = labels.cpu()
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise ArgumentError(
            f"labels go from {low} to {high}, legal are 0 to num_classes - 1 = {num_classes - 1}."
        )
    return labels


def _from_cycles(
    classes: Tensor, labels: Tensor, counts: Tensor, generator: torch.Generator
) -> Tensor:
    """Replace each drawn class by its next sample; a class that ran out is shuffled again."""
    num_classes = counts.numel()
    wanted = torch.bincount(classes, minlength=num_classes)
    cycles = -(-wanted // counts.clamp(min=1))
    # Slots: for each class, `cycles` copies of all its samples, in random order within each copy.
    copies = cycles[labels]
    members = torch.arange(labels.numel()).repeat_interleave(copies)
    copy_of = torch.arange(members.numel()) - (copies.cumsum(0) - copies)[members]
    first_copy = cycles.cumsum(0) - cycles
    shuffled = torch.randperm(members.numel(), generator=generator)
    group = (first_copy[labels[members]] + copy_of)[shuffled]
    slots = members[shuffled[group.argsort(stable=True)]]
    # The r-th draw of a class takes its r-th slot.
    by_class = classes.argsort(stable=True)
    start = wanted.cumsum(0) - wanted
    draw = torch.arange(classes.numel()) - start[classes[by_class]]
    slot_start = (cycles * counts).cumsum(0) - cycles * counts
    samples = torch.empty_like(classes)
    samples[by_class] = slots[slot_start[classes[by_class]] + draw]
    return samples
