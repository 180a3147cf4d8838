"""From samples to a data set: the splits completed, the normalisation measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from classwise.data.dataset import DataSet, Files, Split
from classwise.data.findings import Findings
from classwise.data.splits import with_test
from classwise.errors import DataError

__all__ = ["IMAGENET", "Statistics", "assemble", "labelled"]

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
    clean = tuple(_encodable(class_name) for class_name in class_names)
    width = train.input_shape[0]
    unit = (0.0,) * width, (1.0,) * width
    dataset = DataSet(name, clean, train, val, test, *(statistics or unit), tuple(notes))
    dataset = with_test(dataset)
    if statistics is None:
        inputs = dataset.train.inputs  # without what was held out
        mean, std = IMAGENET if isinstance(inputs, Files) else _measured(inputs)
        dataset = dataclasses.replace(dataset, mean=mean, std=std)
    return dataset


def labelled(
    inputs: Tensor, labels: Tensor, num_classes: int, where: str, findings: Findings
) -> Split:
    """Return samples whose labels are in 0 .. ``num_classes`` - 1; tell about the others."""
    good = (labels >= 0) & (labels < num_classes)
    for index in torch.nonzero(~good).flatten().tolist():
        findings.add("label out of range", where, f"sample {index}: {int(labels[index])}")
    if not bool(good.any()):
        findings.check(where)
        raise DataError(f"the {where} split has no samples.")
    return Split(inputs, labels) if bool(good.all()) else Split(inputs[good], labels[good])


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


def _encodable(name: str) -> str:
    """Replace what is no text: file systems allow bytes that no encoding writes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")
