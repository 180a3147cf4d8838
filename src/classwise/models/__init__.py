"""Models by name: CIFAR residual networks, small networks, and every backbone of timm.

``MODELS`` lists those that live here. ``build`` joins a backbone and a head into a ``Classifier``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from classwise._checks import known_name, whole_number
from classwise.errors import ArgumentError
from classwise.models.backbones import timm_backbone
from classwise.models.classifier import Classifier
from classwise.models.heads import HEADS, CosineLinear, make_head
from classwise.models.resnet_cifar import CifarResNet
from classwise.models.small import Mlp, SmallCnn
from classwise.models.weights import load_backbone, read_state

__all__ = [
    "MODELS",
    "CifarResNet",
    "Classifier",
    "CosineLinear",
    "Mlp",
    "ModelRow",
    "ModelSpec",
    "SmallCnn",
    "build",
    "list_models",
    "resolve",
]

Backbone: TypeAlias = CifarResNet | SmallCnn | Mlp

_TIMM = "timm:"
# What other code calls the classifier of such networks.
_CLASSIFIERS = ("head", "linear", "fc", "classifier")
_LARGEST_SMALL = 64  # rows or columns of an image that small-cnn is meant for


@dataclass(frozen=True)
class ModelSpec:
    """One model of the registry.

    Args:
        name: to build it by.
        title: what it is called.
        source: who proposed it.
        make: from an input shape to a backbone that knows its ``feature_dim``.
        dims: how many dimensions an input has, or None for any.
    """

    name: str
    title: str
    source: str
    make: Callable[[tuple[int, ...]], Backbone]
    dims: int | None = 3


def _cifar_resnet(input_shape: tuple[int, ...], *, depth: int) -> Backbone:
    return CifarResNet(depth, in_channels=input_shape[0])


MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        *(
            ModelSpec(
                f"resnet{depth}",
                f"CIFAR ResNet-{depth}, shortcuts without parameters",
                "He et al., CVPR 2016, section 4.2",
                partial(_cifar_resnet, depth=depth),
            )
            for depth in (20, 32, 44, 56, 110)
        ),
        ModelSpec("small-cnn", "Convolutions for images from 8 x 8 to 64 x 64", "", SmallCnn),
        ModelSpec("mlp", "Hidden layers of 256 and 128, or mlp:WIDTHS", "", Mlp, dims=None),
    )
}
"""The registry: models that live here, by name."""


def build(
    name: str,
    *,
    num_classes: int,
    input_shape: Sequence[int],
    head: str = "linear",
    pretrained: str | Path | bool | None = None,
) -> Classifier:
    """Return a new classifier; its weights are drawn from torch's global generator.

    Args:
        name: one of ``MODELS``; ``"mlp:512,256"`` has other widths; ``"timm:resnet50"``, or
            ``"resnet50"`` for short, is of timm.
        num_classes: C.
        input_shape: of one sample: (channels, H, W), or (D,) for a table.
        head: ``"linear"`` (with bias) or ``"cosine"``.
        pretrained: a ``.safetensors`` or torch file with weights for the backbone, from a model
            with or without a classifier, or from a run of classwise; True downloads those that
            timm has. The head is new in any case.

    >>> model = build("resnet32", num_classes=10, input_shape=(3, 32, 32))
    >>> sum(p.numel() for p in model.parameters())
    464154
    """
    num_classes = whole_number("num_classes", num_classes, low=2)
    shape = _checked_shape(input_shape)
    if pretrained is not None and not isinstance(pretrained, (str, Path, bool)):
        raise ArgumentError(f"pretrained={pretrained!r} must be the path of a file, or True.")
    known_name("head", head, HEADS)
    spec = _spec(name)
    if spec is not None:
        backbone = _own(spec, shape, pretrained)
        feature_dim = backbone.feature_dim
    else:
        backbone, feature_dim = timm_backbone(
            name.removeprefix(_TIMM),
            input_shape=shape,
            pretrained=pretrained,
            also_known=tuple(MODELS),
        )
    return Classifier(
        backbone,
        make_head(head, feature_dim, num_classes),
        feature_dim=feature_dim,
        num_classes=num_classes,
    )


def _checked_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(input_shape, Sequence) or len(input_shape) not in (1, 3):
        raise ArgumentError(
            f"input_shape={input_shape!r} must be (channels, H, W) of an image or (D,) of a table."
        )
    return tuple(whole_number("input_shape", size, low=1) for size in input_shape)


def _spec(name: str) -> ModelSpec | None:
    """Return the entry of a name, None for one that may be timm's."""
    if not isinstance(name, str):
        known_name("model", name, MODELS)
    base, _, widths = name.partition(":")
    if base != "mlp" or not widths:
        return MODELS.get(name)
    if not all(width.isdecimal() and int(width) for width in widths.split(",")):
        raise ArgumentError(f"model={name!r}: widths are whole numbers, as in 'mlp:512,256'.")
    hidden = tuple(map(int, widths.split(",")))
    return dataclasses.replace(MODELS[base], make=partial(Mlp, hidden=hidden))


def _own(
    spec: ModelSpec, input_shape: tuple[int, ...], pretrained: str | Path | bool | None
) -> Backbone:
    if spec.dims is not None and len(input_shape) != spec.dims:
        raise ArgumentError(
            f"model={spec.name!r} takes images (channels, H, W), got input_shape={input_shape}; "
            "'mlp' takes any shape."
        )
    if pretrained is True:
        raise ArgumentError(
            f"pretrained=True: there are no weights of {spec.name!r} to download; name a file."
        )
    backbone = spec.make(input_shape)
    if pretrained is not None and not isinstance(pretrained, bool):
        load_backbone(
            backbone, read_state(pretrained), origin=str(pretrained), classifier=_CLASSIFIERS
        )
    return backbone


def resolve(name: str, input_shape: Sequence[int], kind: str) -> str:
    """Return the model that ``"auto"`` stands for; any other name is returned as it is.

    Args:
        name: ``"auto"`` or the name of a model.
        input_shape: of one sample.
        kind: of the data, ``"images"`` (in memory), ``"table"`` or ``"files"``.

    >>> resolve("auto", (3, 32, 32), "images"), resolve("auto", (1, 8, 8), "images")
    ('resnet32', 'small-cnn')
    """
    if name != "auto":
        return name
    known_name("kind", kind, ("images", "table", "files"))
    if kind == "table":
        return "mlp"
    if kind == "files" or max(input_shape[1:]) > _LARGEST_SMALL:
        return "resnet50"
    return "resnet32" if tuple(input_shape[1:]) == (32, 32) else "small-cnn"


@dataclass(frozen=True)
class ModelRow:
    """What ``list_models`` says of a model.

    Args:
        name: to build it by.
        title: what it is.
        inputs: what it takes.
        source: who proposed it, or an empty string.
    """

    name: str
    title: str
    inputs: str
    source: str


def list_models() -> list[ModelRow]:
    """Return one row for each model of the registry, and one for timm's.

    >>> [row.name for row in list_models()][-3:]
    ['small-cnn', 'mlp', 'timm:NAME']
    """
    rows = [
        ModelRow(
            spec.name,
            spec.title,
            "any shape" if spec.dims is None else "(channels, H, W)",
            spec.source,
        )
        for spec in MODELS.values()
    ]
    timm = ModelRow(
        f"{_TIMM}NAME",
        "Any backbone of timm; NAME alone will do",
        "(channels, H, W)",
        "Wightman, PyTorch Image Models",
    )
    return [*rows, timm]
