"""Training throughput of ResNet-32 on CIFAR: this package's pipeline beside the published style.

The published style is what the code bases of the field share: an image becomes a PIL image, is
transformed one by one by torchvision in a DataLoader with two workers, and the model computes in
float32. Ours keeps uint8 images on the device, augments them in batches, and computes in bfloat16
on channels-last memory. Both are timed in turns, so that a busy machine slows both; ratios are of
the same turn, and the median turn and the middle half are shown.

Images are CIFAR-100 where ``CLASSWISE_DATA`` names a folder that holds it, and noise otherwise.
"""

from __future__ import annotations

import os
import statistics as numbers
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from classwise.data.dataset import Split
from classwise.data.loading import make_loader
from classwise.data.profiles import longtail_counts, select
from classwise.data.sampling import KINDS, ClassSampler
from classwise.data.sources import load
from classwise.models import build

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
BATCH, CLASSES = 128, 100
COSTS = (
    ("none", "none"),
    ("crop-flip", "none"),
    ("crop-flip", "mixup:1.0"),
    ("crop-flip", "unimix:-0.1"),
    ("randaugment", "none"),
    ("autoaugment", "none"),
)
Batches = Iterator[tuple[Tensor, Tensor]]

__all__ = ["BATCH", "CLASSES", "data", "measure", "ours", "trainer"]


class PilImages(Dataset[tuple[Tensor, int]]):
    """Images as the published data sets hand them out."""

    def __init__(self, split: Split, augment: str) -> None:
        assert isinstance(split.inputs, Tensor)
        self.arrays = split.inputs.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels = split.labels.tolist()
        automatic = transforms.AutoAugment(transforms.AutoAugmentPolicy.CIFAR10)
        self.transform: Callable[[Image.Image], Tensor] = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                *([automatic] if augment == "autoaugment" else []),
                transforms.ToTensor(),
                *([cutout] if augment == "autoaugment" else []),
                transforms.Normalize(MEAN, STD),
            ]
        )

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return one transformed image and its label."""
        return self.transform(Image.fromarray(self.arrays[index])), self.labels[index]


def cutout(image: Tensor) -> Tensor:
    """Return an image with a hole of 16 pixels."""
    y, x = (int(torch.randint(32, ())) for _ in range(2))
    image[:, max(y - 8, 0) : y + 8, max(x - 8, 0) : x + 8] = 0
    return image


def published(split: Split, augment: str, device: torch.device) -> Batches:
    """Yield batches of the published style, for ever."""
    loader = DataLoader(
        PilImages(split, augment),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        persistent_workers=True,
        pin_memory=device.type == "cuda",
    )
    while True:
        for images, labels in loader:
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def ours(split: Split, augment: str, device: torch.device, mixing: str = "none") -> Batches:
    """Yield our batches, for ever."""
    sampler = ClassSampler(split.labels, CLASSES, batch_size=BATCH)
    loader = make_loader(
        split,
        sampler,
        num_classes=CLASSES,
        mean=MEAN,
        std=STD,
        augment=augment,
        mixing=mixing,
        device=device,
    )
    epoch = 0
    while True:
        loader.set_epoch(epoch)
        yield from loader
        epoch += 1


def trainer(device: torch.device, *, modern: bool) -> Callable[[Tensor, Tensor], None]:
    """Return a training step of ResNet-32, in float32 or in our way."""
    torch.manual_seed(0)
    model = build("resnet32", num_classes=CLASSES, input_shape=(3, 32, 32)).to(device).train()
    if modern:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=2e-4)

    def step(inputs: Tensor, target: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=modern):
            loss = F.cross_entropy(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def nothing(inputs: Tensor, target: Tensor) -> None:
    """Take a batch, and do nothing with it."""


def images_per_second(
    batches: Batches, step: Callable[[Tensor, Tensor], None], count: int, device: torch.device
) -> float:
    """Return the throughput over ``count`` batches."""
    seen = 0
    wait(device)
    started = time.perf_counter()
    for _ in range(count):
        inputs, target = next(batches)
        step(inputs, target)
        seen += len(inputs)
    wait(device)
    return seen / (time.perf_counter() - started)


def wait(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def compare(
    split: Split, augment: str, device: torch.device, *, train: bool, turns: int, count: int
) -> dict[str, Any]:
    """Time both pipelines in turns."""
    sides = {
        "published": (
            published(split, augment, device),
            trainer(device, modern=False) if train else nothing,
        ),
        "ours": (
            ours(split, augment, device),
            trainer(device, modern=True) if train else nothing,
        ),
    }
    speed: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(turns + 1):
        for name, (batches, step) in sides.items():
            # What the workers prepared while the other side had its turn does not count.
            images_per_second(batches, step, min(4, count), device)
            measured = images_per_second(batches, step, count, device)
            if turn:  # the first warms up
                speed[name].append(measured)
    for batches, _ in sides.values():
        batches.close()  # type: ignore[attr-defined]
    ratios = [a / b for a, b in zip(speed["ours"], speed["published"], strict=True)]
    return {
        "augment": augment,
        "with": "training step" if train else "data only",
        **{name: round(numbers.median(values)) for name, values in speed.items()},
        "ratio": numbers.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3,
    }


def costs(split: Split, device: torch.device, count: int) -> dict[str, Any]:
    """Return what a batch of ours costs beside the training step, in milliseconds."""
    step = trainer(device, modern=True)
    batches = ours(split, "none", device)
    images_per_second(batches, step, 4, device)
    together = 1e3 * BATCH / images_per_second(batches, step, count, device)
    made = {}
    for augment, mixing in COSTS:
        batches = ours(split, augment, device, mixing)
        images_per_second(batches, nothing, 5, device)
        speeds = [images_per_second(batches, nothing, 10, device) for _ in range(10)]
        made[augment if mixing == "none" else f"{augment} {mixing}"] = (
            1e3 * BATCH / numbers.median(speeds)
        )
    return {"step_ms": together - made["none"], "data_ms": made}


def sampler_seconds() -> dict[str, float]:
    """Return the time to order one epoch of a data set of iNaturalist's size."""
    classes, samples = 8_142, 437_513
    generator = torch.Generator().manual_seed(0)
    weights = torch.arange(1, classes + 1).double() ** -1.0
    drawn = torch.multinomial(weights, samples - classes, replacement=True, generator=generator)
    labels = torch.cat([torch.arange(classes), drawn])
    spent = {}
    for kind in KINDS:
        sampler = ClassSampler(labels, classes, batch_size=256, kind=kind, epochs=90)
        started = time.perf_counter()
        sampler.order()
        spent[kind] = time.perf_counter() - started
    return spent


def data() -> tuple[Split, str]:
    """Return CIFAR-100-LT of ratio 100, or noise of its shape."""
    counts = longtail_counts(500, CLASSES, 100)
    generator = torch.Generator().manual_seed(0)
    if "CLASSWISE_DATA" in os.environ:
        train = load("cifar100").train
        return train.take(select(train.labels, counts, generator)), "CIFAR-100-LT, ratio 100"
    labels = torch.arange(CLASSES).repeat_interleave(counts)
    noise = torch.randint(0, 256, (len(labels), 3, 32, 32), generator=generator)
    return Split(noise.to(torch.uint8), labels), "noise, as large as CIFAR-100-LT, ratio 100"


def measure(*, quick: bool) -> dict[str, Any]:
    """Time both pipelines, what a batch of ours costs, and the order of a large epoch."""
    device = torch.device("cpu")
    split, described = data()
    if quick:
        row = compare(split, "crop-flip", device, train=True, turns=1, count=1)
        return {"data": described, "throughput": [row]}
    rows = [
        compare(split, augment, device, train=train, turns=3, count=8)
        for augment, train in (("crop-flip", True), ("crop-flip", False), ("autoaugment", True))
    ]
    return {
        "data": described,
        "throughput": rows,
        "cost": costs(split, device, 10),
        "sampler_seconds": sampler_seconds(),
    }
