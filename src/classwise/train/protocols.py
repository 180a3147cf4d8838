"""Protocols: named settings of whole experiments, each with its source.

A protocol only fills in a ``RunConfig``; flags and files override it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from classwise._checks import known_name
from classwise.train.config import RunConfig, with_values

__all__ = ["PROTOCOLS", "Protocol", "apply"]


@dataclass(frozen=True)
class Protocol:
    """Named settings.

    Args:
        name: for ``--protocol``.
        title: what it is.
        source: who published it.
        values: dotted settings.
    """

    name: str
    title: str
    source: str
    values: Mapping[str, Any]


_CIFAR = {
    "model.model": "resnet32",
    "optim.batch_size": 128,
    "optim.optimizer": "sgd",
    "optim.lr": 0.1,
    "optim.momentum": 0.9,
    "optim.weight_decay": 2e-4,
    "method.defer_at": 0.8,
    "select": "test",
    "track_bound": True,
}

# ImageNet-LT and iNaturalist, ResNet-50; the learning rates differ.
_LARGE = {
    "model.model": "timm:resnet50",
    "optim.epochs": 90,
    "optim.batch_size": 256,
    "optim.optimizer": "sgd",
    "optim.momentum": 0.9,
    "optim.schedule": "cosine-zero",
    "method.defer_at": 60,
    "optim.sam": 0.1,
    "select": "test",
}

PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        Protocol(
            "paper",
            "best epoch on the test split, as the papers' tables have it; nothing else",
            "the CIFAR-LT code bases since Cao et al. 2019",
            {"select": "test"},
        ),
        Protocol(
            "small",
            "the defaults for the data, the best epoch on the test split beside the last",
            "as classwise train without a protocol",
            {"optim.epochs": 60, "method.defer_at": 0.8, "select": "test"},
        ),
        Protocol(
            "a",
            "CIFAR-LT, ResNet-32, 200 epochs, as every published number was trained",
            "paper Sec. 6.1; schedule of the published code",
            {
                **_CIFAR,
                "optim.epochs": 200,
                "optim.schedule": "released",
                "data.augment": "crop-flip",
            },
        ),
        Protocol(
            "a-printed",
            "protocol a with the learning rates that the paper prints (/10 and /10)",
            "paper Sec. 6.1",
            {
                **_CIFAR,
                "optim.epochs": 200,
                "optim.schedule": "printed",
                "data.augment": "crop-flip",
            },
        ),
        Protocol(
            "a-60",
            "protocol a in 60 epochs: T0 at 48, the rate divided by 100 at 48 and at 54",
            "to choose by: the same shape in less than a third of the time",
            {
                **_CIFAR,
                "optim.epochs": 60,
                "optim.schedule": "released",
                "data.augment": "crop-flip",
            },
        ),
        Protocol(
            "b",
            "protocol a with a tuned weight decay, 2e-4 to 1e-3",
            "paper Sec. 6.1; 5e-4 is the middle of its range",
            {
                **_CIFAR,
                "optim.epochs": 200,
                "optim.schedule": "released",
                "optim.weight_decay": 5e-4,
                "data.augment": "crop-flip",
            },
        ),
        Protocol(
            "c",
            "CIFAR-LT, 400 epochs, cosine, AutoAugment with Cutout, SAM",
            "paper Sec. 6.1; augmentation and rho of the published scripts",
            {
                **_CIFAR,
                "optim.epochs": 400,
                "optim.schedule": "cosine",
                "optim.weight_decay": 2e-4,
                "optim.sam": 0.2,
                "optim.deferred_sam": 0.4,
                "data.augment": "autoaugment",
            },
        ),
        Protocol(
            "imagenet-lt",
            "ImageNet-LT, ResNet-50, 90 epochs, SAM",
            "paper Sec. 6.1, after Rangwani et al. 2022",
            {**_LARGE, "optim.lr": 0.2, "optim.weight_decay": 2e-4},
        ),
        Protocol(
            "inaturalist",
            "iNaturalist 2018, ResNet-50, 90 epochs, SAM",
            "paper Sec. 6.1, after Rangwani et al. 2022",
            {**_LARGE, "optim.lr": 0.1, "optim.weight_decay": 2e-4},
        ),
    )
}
"""The registry: protocols by name."""


def apply(config: RunConfig, name: str) -> RunConfig:
    """Return the configuration under a protocol."""
    return with_values(config, PROTOCOLS[known_name("protocol", name, PROTOCOLS)].values)
