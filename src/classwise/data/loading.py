"""Batches for training and evaluation, normalised and on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor

from classwise._checks import class_vector, known_name, whole_number
from classwise.data._image_ops import on_device
from classwise.data._random import generator_for
from classwise.data.augment import AUGMENTS, Stage, file_transform, image_stages
from classwise.data.dataset import Files, Split
from classwise.data.mixing import Mix, Mixing, mix, parse_mixing
from classwise.data.sampling import Batch, ClassSampler, SequentialSampler
from classwise.errors import ArgumentError

__all__ = ["Loader", "Sampler", "make_loader"]

Sampler: TypeAlias = ClassSampler | SequentialSampler


@dataclass(frozen=True)
class Plan:
    """What every loader is made of, beside the inputs."""

    sampler: Sampler
    labels: Tensor
    num_classes: int
    mixing: Mixing | None
    device: torch.device
    seed: int


class Loader:
    """Iterates over batches ``(inputs, target)``; made by ``make_loader``.

    ``inputs`` are float32 on the device, normalised; images are in channels-last memory. ``target``
    is int64 (n,), or float32 (n, C) where samples are mixed.

    What a batch holds depends on (seed, epoch, position) alone: the random draws are made for the
    batch of all ranks, of which each keeps its rows. There is no state beside the sampler's epoch.
    """

    def __init__(self, plan: Plan) -> None:
        self.sampler = plan.sampler
        self.device = plan.device
        self._plan = plan
        self._class_counts = torch.bincount(plan.labels, minlength=plan.num_classes)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.batches()

    def batches(self, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of the current epoch.

        Args:
            first: number of the batch to begin with; those before it cost nothing.
        """
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration shows.

        Args:
            epoch: counted from 0.
        """
        self.sampler.set_epoch(epoch)

    def close(self) -> None:
        """End the processes that read files, if there are any; the next iteration starts new ones.

        A loader that nothing refers to any more does it as well.
        """

    def _target(self, indices: Tensor) -> Tensor:
        return on_device(self._plan.labels.index_select(0, indices), self.device)

    def _mixed(self, inputs: Tensor, indices: Tensor, *purpose: str | int) -> tuple[Tensor, Tensor]:
        plan, target = self._plan, self._target(indices)
        if plan.mixing is None:
            return inputs, target
        generator = generator_for("mixing", plan.seed, *purpose)
        drawn = plan.mixing.draw(plan.labels[indices], self._class_counts, generator)
        drawn = Mix(*(on_device(part, self.device) for part in drawn))
        return mix(inputs, target, drawn, plan.num_classes)


class Normalise:
    """uint8 (n, ch, H, W) to (x / 255 - mean) / std in one multiplication and one addition."""

    def __init__(self, mean: Tensor, std: Tensor, device: torch.device) -> None:
        self.scale = (1 / (255 * std)).float().view(1, -1, 1, 1).to(device)
        self.shift = (-mean / std).float().view(1, -1, 1, 1).to(device)

    def __call__(self, images: Tensor) -> Tensor:
        return images.float().mul_(self.scale).add_(self.shift)


class _MemoryLoader(Loader):
    """All samples on the device: images as uint8 pixels, augmented in batches, or a table."""

    def __init__(
        self,
        plan: Plan,
        inputs: Tensor,
        *,
        stages: tuple[Stage, ...] = (),
        normalise: Normalise | None = None,
    ) -> None:
        super().__init__(plan)
        self._inputs = inputs
        self._stages = stages
        self._normalise = normalise

    def batches(self, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        epoch = self.sampler.epoch
        for batch in self.sampler.batches(first):
            if self._plan.mixing is None:
                indices = batch.indices[batch.rows]
                yield self._prepared(batch, batch.rows, epoch), self._target(indices)
                continue
            # Partners may belong to other ranks: prepare the batch of all, keep this one's rows.
            whole = slice(0, len(batch.indices))
            inputs = self._prepared(batch, whole, epoch)
            inputs, target = self._mixed(inputs, batch.indices, epoch, batch.number)
            yield inputs[batch.rows], target[batch.rows]

    def _prepared(self, batch: Batch, rows: slice, epoch: int) -> Tensor:
        inputs = self._inputs.index_select(0, on_device(batch.indices[rows], self.device))
        if self._normalise is None:
            return inputs
        generator = generator_for("augment", self._plan.seed, epoch, batch.number)
        for stage in self._stages:
            inputs = stage(inputs, stage.draw(len(batch.indices), generator)[rows])
        return self._normalise(inputs.permute(0, 3, 1, 2))


def make_loader(
    split: Split,
    sampler: Sampler,
    *,
    num_classes: int,
    mean: Sequence[float],
    std: Sequence[float],
    augment: str = "none",
    mixing: str = "none",
    device: torch.device | str = "cpu",
    seed: int = 0,
    workers: int = 0,
    image_size: int = 224,
    train: bool = True,
) -> Loader:
    """Return a loader of normalised batches on ``device``.

    Images in memory are moved to the device once, as uint8, and augmented there in batches. Tables
    are standardised once. Files are read by ``workers`` processes with torchvision's transforms.

    Several ranks together see exactly what one process would. The exception is mixing of files,
    where a rank draws partners from its own part of the batch: the others' images are elsewhere.

    Args:
        split: samples with labels.
        sampler: which samples make a batch; its size is that of all ranks together.
        num_classes: C.
        mean: of each channel in [0, 1], or of each column of a table.
        std: likewise, > 0.
        augment: one of ``AUGMENTS``; tables know ``"none"`` only.
        mixing: ``"none"``, ``"mixup:ALPHA"`` or ``"unimix:POWER"``.
        device: where batches are wanted.
        seed: of augmentation and mixing.
        workers: processes that read files; 0 reads in this one.
        image_size: height and width that files are brought to.
        train: False for evaluation, which neither augments nor mixes.

    >>> split = Split(torch.zeros(6, 3, 8, 8, dtype=torch.uint8), torch.arange(6) % 2)
    >>> sampler = ClassSampler(split.labels, 2, batch_size=4)
    >>> loader = make_loader(split, sampler, num_classes=2, mean=[0.5] * 3, std=[0.5] * 3)
    >>> [(tuple(inputs.shape), float(inputs.max())) for inputs, target in loader]
    [((4, 3, 8, 8), -1.0), ((2, 3, 8, 8), -1.0)]
    """
    num_classes = whole_number("num_classes", num_classes, low=1)
    _check_fit(split, sampler, num_classes)
    means, stds = _statistics(split, mean, std)
    known_name("augment", augment, AUGMENTS)
    mixer = parse_mixing(mixing)
    if not train and (augment != "none" or mixer is not None):
        raise ArgumentError(
            f"augment={augment!r} and mixing={mixing!r} must be 'none' with train=False."
        )
    place = _checked_device(device)
    seed = whole_number("seed", seed, low=0)
    workers = whole_number("workers", workers, low=0)
    size = whole_number("image_size", image_size, low=1)
    plan = Plan(sampler, split.labels, num_classes, mixer, place, seed)
    if split.kind == "table":
        if augment != "none":
            raise ArgumentError(
                f"augment={augment!r} is for images; for a table it must be 'none'."
            )
        table = (cast("Tensor", split.inputs).double() - means) / stds
        return _MemoryLoader(plan, table.float().to(place))
    normalise = Normalise(means, stds, place)
    if isinstance(split.inputs, Files):
        transform = file_transform(augment, size)  # says so where torchvision is missing
        from classwise.data._files import FileLoader  # noqa: PLC0415  (needs Pillow)

        return FileLoader(
            plan, split.inputs, transform, normalise, workers=workers, persistent=train
        )
    stages = image_stages(augment, split.input_shape)
    pixels = split.inputs.permute(0, 2, 3, 1).contiguous().to(place)
    return _MemoryLoader(plan, pixels, stages=stages, normalise=normalise)


def _checked_device(device: torch.device | str) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(f"device={device!r} is not a device of torch.") from error


def _check_fit(split: Split, sampler: Sampler, num_classes: int) -> None:
    if not isinstance(sampler, ClassSampler | SequentialSampler):
        raise ArgumentError(
            f"sampler must be a ClassSampler or a SequentialSampler, got {type(sampler).__name__}."
        )
    if sampler.length != len(split):
        raise ArgumentError(
            f"the sampler is for {sampler.length} samples, the split has {len(split)}."
        )
    highest = int(split.labels.max())
    if highest >= num_classes:
        raise ArgumentError(f"labels go up to {highest}, num_classes={num_classes} is too few.")


def _statistics(split: Split, mean: Sequence[float], std: Sequence[float]) -> tuple[Tensor, Tensor]:
    width = split.input_shape[0]
    means = class_vector("mean", mean)
    stds = class_vector("std", std)
    for name, values in (("mean", means), ("std", stds)):
        if values.numel() != width:
            raise ArgumentError(
                f"{name} has {values.numel()} entries where there are {width} "
                f"{'columns' if split.kind == 'table' else 'channels'}."
            )
    if bool((stds <= 0).any()):
        wrong = int(stds.argmin())
        raise ArgumentError(f"std[{wrong}]={float(stds[wrong])} must be > 0.")
    return means.double(), stds.double()
