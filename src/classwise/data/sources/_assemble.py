"""From samples to a data set: the splits completed, the normalisation measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from classwise.data.dataset import DataSet, Files, Split
from classwise.data.splits import completed

__all__ = ["IMAGENET", "Statistics", "assemble"]

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation, of each channel or column."""

# As in every published recipe for ImageNet-LT; pretrained backbones expect them.
IMAGENET: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def assemble(
    name: str,
    class_names: Sequence[str],
    train: Split,
    val: Split | None = None,
    test: Split | None = None,
    *,
    statistics: Statistics | None = None,
    notes: Iterable[str] = (),
) -> DataSet:
    """Make a data set; ``statistics`` None measures them on what remains in training."""
    train, val, test, more = completed(name, train, val, test)
    if statistics is None:
        inputs = train.inputs
        statistics = IMAGENET if isinstance(inputs, Files) else _measured(inputs)
    mean, std = statistics
    clean = tuple(_printable(class_name) for class_name in class_names)
    return DataSet(name, clean, train, val, test, mean, std, (*notes, *more))


def _measured(images: Tensor) -> Statistics:
    """Mean and deviation of each channel, from exact counts of the 256 values."""
    values = torch.arange(256, dtype=torch.float64) / 255
    means, stds = [], []
    for channel in images.unbind(1):
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (share * values).sum()
        means.append(float(mean))
        stds.append(float((share * (values - mean).square()).sum().sqrt()) or 1.0)
    return tuple(means), tuple(stds)


def _printable(name: str) -> str:
    """Replace what is no text: file systems allow bytes that no encoding writes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
