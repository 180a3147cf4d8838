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
from classwise.data.loading import Loader, Normalise, Plan, Sampler
from classwise.errors import DataError

__all__ = ["FileLoader"]

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


class _Requests:
    """What the workers are asked for in the sampler's current epoch.

    The seed belongs to the place in the epoch, not to the sample: a sample that is drawn twice in
    an epoch is augmented in two ways.
    """

    def __init__(self, sampler: Sampler, seed: int) -> None:
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


class FileLoader(Loader):
    """Files, decoded and augmented in workers; normalised and mixed on the device.

    Args:
        plan: what every loader is made of.
        files: what is read.
        transform: from a PIL image to uint8 (3, H, W); draws from torch's own generator.
        normalise: applied on the device.
        workers: processes that read; 0 reads in this one.
        persistent: whether the processes stay for the next epoch.
    """

    def __init__(
        self,
        plan: Plan,
        files: Files,
        transform: Callable[[Image.Image], Tensor],
        normalise: Normalise,
        *,
        workers: int,
        persistent: bool,
    ) -> None:
        super().__init__(plan)
        self._images = _Images(files, transform)
        self._requests = _Requests(plan.sampler, plan.seed)
        self._normalise = normalise
        self._workers = workers
        self._persistent = persistent and workers > 0
        self._reader: DataLoader[Tensor | str] | None = None

    def batches(self, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of the current epoch, from number ``first`` on."""
        epoch = self.sampler.epoch
        self._requests.first = first
        reading = iter(self._opened())
        try:
            for batch in self.sampler.batches(first):
                read = next(reading)
                if isinstance(read, str):
                    self.close()
                    raise DataError(read)
                images = read.to(self.device, non_blocking=True)
                inputs = self._normalise(images.contiguous(memory_format=torch.channels_last))
                indices = batch.indices[batch.rows]
                yield self._mixed(inputs, indices, epoch, batch.number, self.sampler.rank)
        finally:
            del reading  # a traceback would keep the workers

    def close(self) -> None:
        """End the workers; the next iteration starts new ones."""
        self._reader = None

    def _opened(self) -> DataLoader[Tensor | str]:
        if self._reader is None:
            self._reader = DataLoader(
                self._images,
                batch_sampler=self._requests,
                num_workers=self._workers,
                persistent_workers=self._persistent,
                collate_fn=_stacked,
                pin_memory=self.device.type == "cuda",
                generator=torch.Generator(),  # leaves torch's own state alone
            )
        return self._reader
