"""Image files through worker processes: decoded and augmented there, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from classwise.data._random import seed_for
from classwise.data.dataset import Files
from classwise.data.images import decode
from classwise.data.sampling import ClassSampler, SequentialSampler
from classwise.errors import DataError

__all__ = ["Requests", "file_batches"]

Request: TypeAlias = tuple[int, int]
"""A sample, and the seed of its augmentation."""


class _Images(Dataset[Tensor | str]):
    """Decodes and transforms one file; an unreadable one becomes a message instead of an image.

    An exception would reach the user wrapped into the worker's traceback.
    """

    def __init__(self, files: Files, transform: Callable[[Image.Image], Tensor]) -> None:
        self.files = files
        self.transform = transform

    def __getitem__(self, request: Request) -> Tensor | str:
        index, seed = request
        path = self.files.path(index)
        try:
            image = Image.fromarray(decode(path))
        except DataError as error:
            return f"{str(path)!r} {error}"
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach for the GPU
            return self.transform(image)


class Requests:
    """What the workers are asked for in the sampler's current epoch.

    The seed belongs to the place in the epoch, not to the sample: a sample that is drawn twice in
    an epoch is augmented in two ways.
    """

    def __init__(self, sampler: ClassSampler | SequentialSampler, seed: int) -> None:
        self.sampler = sampler
        self.seed = seed
        self.first = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[list[Request]]:
        epoch = self.sampler.epoch
        for batch in self.sampler.batches(self.first):
            yield [
                (index, seed_for("file", self.seed, epoch, place))
                for place, index in enumerate(
                    batch.indices[batch.rows].tolist(), batch.start + batch.rows.start
                )
            ]


def _stacked(images: list[Tensor | str]) -> Tensor | str:
    unreadable = next((image for image in images if isinstance(image, str)), None)
    if unreadable is not None:
        return unreadable
    return torch.stack([image for image in images if isinstance(image, Tensor)])


def file_batches(
    files: Files,
    transform: Callable[[Image.Image], Tensor],
    requests: Requests,
    *,
    workers: int,
    persistent: bool,
    pin_memory: bool,
) -> DataLoader[Tensor | str]:
    """Return a loader of uint8 images (n, 3, H, W), or of the message of an unreadable file."""
    return DataLoader(
        _Images(files, transform),
        batch_sampler=requests,
        num_workers=workers,
        persistent_workers=persistent and workers > 0,
        collate_fn=_stacked,
        pin_memory=pin_memory,
        generator=torch.Generator(),  # leaves torch's own state alone
    )
