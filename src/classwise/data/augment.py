"""Augmentation of training images: in batches on any device, or file by file in workers.

Small sets are augmented as batches of uint8 pixels, (n, height, width, channels) so that a pixel is
contiguous. A stage first draws what it needs for the whole batch of all ranks, on the CPU and with
an explicit generator, one row for each sample; applying the rows to pixels is then deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from classwise._checks import known_name
from classwise.data._image_ops import either, on_device
from classwise.data._optional import needed
from classwise.data.policies import Policy, autoaugment, randaugment
from classwise.errors import ArgumentError

__all__ = ["AUGMENTS", "Augment", "CropFlip", "Cutout", "Stage", "file_transform", "image_stages"]


class Stage(Protocol):
    """One step of augmentation."""

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw what ``count`` samples need, one row each, on the CPU."""
        ...

    def __call__(self, pixels: Tensor, draws: Tensor) -> Tensor:
        """Return augmented uint8 pixels (n, H, W, ch)."""
        ...


@dataclass(frozen=True)
class CropFlip:
    """A random crop of the image padded with zeros, mirrored half of the time.

    Published for CIFAR: 4 pixels on each side of 32 x 32.
    """

    pad: int = 4

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the top and the left of the crop in [0, 2 pad], and whether it is mirrored."""
        corner = torch.randint(2 * self.pad + 1, (count, 2), generator=generator)
        mirrored = torch.randint(2, (count, 1), generator=generator)
        return torch.cat([corner, mirrored], dim=1)

    def __call__(self, pixels: Tensor, draws: Tensor) -> Tensor:
        """Return crops of the size of the image."""
        count, height, width, channels = pixels.shape
        pad = self.pad
        padded = F.pad(pixels, (0, 0, pad, pad, pad, pad))
        # All crops of all samples as a view; a line of a crop is one run of bytes to copy.
        lines = padded.view(count, height + 2 * pad, (width + 2 * pad) * channels)
        crops = lines.unfold(1, height, 1).unfold(2, width * channels, channels)
        top, left, mirrored = on_device(draws, pixels.device).unbind(1)
        every = torch.arange(count, device=pixels.device)
        cropped = crops[every, top, left].view(pixels.shape)
        return either(mirrored.bool()[:, None, None, None], cropped.flip(2), cropped)


@dataclass(frozen=True)
class Cutout:
    """A black square around a centre drawn from all pixels, clipped at the borders.

    DeVries and Taylor 2017; 16 pixels for CIFAR-10.
    """

    size: int = 16

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the centre as fractions of height and width in [0, 1)."""
        return torch.rand(count, 2, generator=generator, dtype=torch.float64)

    def __call__(self, pixels: Tensor, draws: Tensor) -> Tensor:
        """Return pixels with a hole each."""
        _, height, width, channels = pixels.shape
        extent = torch.tensor([height, width])
        first = on_device((draws * extent).long() - self.size // 2, pixels.device)
        y = torch.arange(height, device=pixels.device) - first[:, :1]
        x = torch.arange(width, device=pixels.device) - first[:, 1:]
        # Bytes of ones where pixels stay: bits of bytes are several times as fast as a mask.
        rows, columns = (
            ((z < 0) | (z >= self.size)).to(torch.uint8).neg_()
            for z in (y, x.repeat_interleave(channels, 1))
        )
        kept = rows[:, :, None] | columns[:, None]
        return (pixels.flatten(2) & kept).view(pixels.shape)


@dataclass(frozen=True)
class Augment:
    """What a name stands for, for images in memory and for files."""

    meaning: str
    stages: Callable[[], tuple[Stage, ...]] | None = None
    """None where it is not for images in memory."""
    files: Callable[[Any, int], list[Any]] | None = None
    """Takes torchvision's ``transforms.v2`` and a size; None where it is not for files."""


def _resized_crop(v2: Any, size: int) -> list[Any]:
    return [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]


AUGMENTS: dict[str, Augment] = {
    "none": Augment(
        "images as they are; files: the middle of the resized image",
        stages=lambda: (),
        files=lambda v2, size: [v2.Resize(round(size * 256 / 224)), v2.CenterCrop(size)],
    ),
    "crop-flip": Augment(
        "crop after padding by 4, mirror; files: random resized crop, mirror",
        stages=lambda: (CropFlip(),),
        files=_resized_crop,
    ),
    "crop-flip-jitter": Augment(
        "as crop-flip, with brightness, contrast and saturation changed by up to 0.4 (files only)",
        files=lambda v2, size: [*_resized_crop(v2, size), v2.ColorJitter(0.4, 0.4, 0.4)],
    ),
    "autoaugment": Augment(
        "as crop-flip, with the AutoAugment policy for CIFAR-10 and Cutout (images in memory only)",
        stages=lambda: (CropFlip(), Policy(autoaugment()), Cutout()),
    ),
    "randaugment": Augment(
        "as crop-flip, with RandAugment: 2 operations of magnitude 10 in [0, 30]",
        stages=lambda: (CropFlip(), Policy(randaugment(magnitude=10), repeats=2)),
        files=lambda v2, size: [
            *_resized_crop(v2, size),
            v2.RandAugment(num_ops=2, magnitude=10, fill=[128, 128, 128]),
        ],
    ),
}
"""The augmentations, by name."""


def image_stages(name: str, input_shape: tuple[int, ...]) -> tuple[Stage, ...]:
    """Return the stages of an augmentation for images in memory.

    Args:
        name: one of ``AUGMENTS``.
        input_shape: (channels, height, width).

    >>> image_stages("crop-flip", (3, 32, 32))
    (CropFlip(pad=4),)
    """
    make = AUGMENTS[known_name("augment", name, AUGMENTS)].stages
    if make is None:
        legal = ", ".join(repr(n) for n, augment in AUGMENTS.items() if augment.stages)
        raise ArgumentError(f"augment={name!r} is for image files; for images in memory: {legal}.")
    stages = make()
    channels, height, width = input_shape
    for stage in stages:
        if isinstance(stage, Policy) and channels not in (1, 3):
            raise ArgumentError(
                f"augment={name!r} needs images of 1 or 3 channels, these have {channels}."
            )
        needed = {CropFlip: "pad", Cutout: "size"}.get(type(stage))
        if needed and min(height, width) <= getattr(stage, needed):
            raise ArgumentError(
                f"augment={name!r} can wipe out images of {height} x {width} "
                f"({type(stage).__name__} of {getattr(stage, needed)} pixels); "
                "both sides must be longer than that."
            )
    return stages


def file_transform(name: str, size: int) -> Callable[[Any], Tensor]:
    """Return a function from a PIL image to uint8 (3, size, size); it draws from torch's own state.

    Args:
        name: one of ``AUGMENTS``.
        size: height and width.
    """
    make = AUGMENTS[known_name("augment", name, AUGMENTS)].files
    if make is None:
        legal = ", ".join(repr(n) for n, augment in AUGMENTS.items() if augment.files)
        raise ArgumentError(f"augment={name!r} is for images in memory; for image files: {legal}.")
    v2 = needed("torchvision.transforms.v2", "torchvision", "augmenting image files")
    return v2.Compose([*make(v2, size), v2.PILToTensor()])
