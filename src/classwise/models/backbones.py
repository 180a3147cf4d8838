"""Any backbone of timm, by name. timm is imported when one is asked for, not before."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from classwise._checks import nearest
from classwise.errors import ArgumentError, DataError, StateError, UnknownNameError
from classwise.models.weights import State, load_backbone, read_state

__all__ = ["timm_backbone"]


def timm_backbone(
    name: str,
    *,
    input_shape: Sequence[int],
    pretrained: str | Path | bool | None = None,
    also_known: Sequence[str] = (),
) -> tuple[nn.Module, int]:
    """Return a backbone of timm without its classifier, and how many features it yields.

    Args:
        name: as timm knows it, ``"resnet50"`` or with a tag ``"resnet50.a1_in1k"``.
        input_shape: (channels, H, W); a network with a fixed input size is built for it.
        pretrained: a file of weights, or True to download those of the name.
        also_known: names to suggest beside timm's.
    """
    timm = _timm(name, also_known)
    if not timm.is_model(name):
        known = [*also_known, *timm.list_models()]
        raise UnknownNameError(
            f"model={name!r} is unknown{nearest(name, known)} Known: "
            f"{', '.join(map(repr, also_known))}, and the {len(timm.list_models())} names of "
            "timm.list_models()."
        )
    if len(input_shape) != 3:
        raise ArgumentError(
            f"model={name!r} takes images (channels, H, W), got input_shape={tuple(input_shape)}."
        )
    download = pretrained is True
    backbone = _create(timm, name, input_shape, download=download)
    if pretrained is not None and not isinstance(pretrained, bool):
        _load(timm, backbone, pretrained, channels=input_shape[0])
    return backbone, _feature_dim(backbone, name, input_shape)


def _timm(name: str, also_known: Sequence[str]) -> ModuleType:
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as error:
        raise StateError(
            f"model={name!r} is none of {', '.join(map(repr, also_known))}, and names of timm need "
            'timm: pip install "classwise[vision]".'
        ) from error


def _create(
    timm: ModuleType, name: str, input_shape: Sequence[int], *, download: bool
) -> nn.Module:
    channels, *size = input_shape
    options: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    try:
        config = timm.models.get_pretrained_cfg(name)
    except RuntimeError as error:
        tagged = timm.list_pretrained(f"{name.partition('.')[0]}.*")
        raise UnknownNameError(
            f"model={name!r}: timm has no such weights{nearest(name, tagged)} "
            f"Known: {', '.join(map(repr, tagged)) or 'none'}."
        ) from error
    if config.fixed_input_size and tuple(config.input_size[1:]) != tuple(size):
        options["img_size"] = tuple(size)
    if not download:
        try:
            return timm.create_model(name, pretrained=False, **options)
        except (AssertionError, RuntimeError, TypeError, ValueError) as error:
            raise ArgumentError(
                f"model={name!r} cannot be built for inputs {tuple(input_shape)}: {error}."
            ) from error
    try:
        return timm.create_model(name, pretrained=True, **options)
    except Exception as error:  # the hub, the network and the file system each raise their own
        raise StateError(
            f"the weights of {name!r} could not be downloaded ({type(error).__name__}: "
            f"{str(error).strip().partition(chr(10))[0]}); pass pretrained=FILE instead."
        ) from error


def _load(timm: ModuleType, backbone: nn.Module, path: str | Path, *, channels: int) -> None:
    config: dict[str, Any] = getattr(backbone, "pretrained_cfg", {})
    classifier = config.get("classifier") or ()
    load_backbone(
        backbone,
        read_state(path),
        origin=str(path),
        classifier=(classifier,) if isinstance(classifier, str) else classifier,
        adapt=_adapter(timm, backbone, config, channels, origin=str(path)),
    )


def _adapter(
    timm: ModuleType, backbone: nn.Module, config: dict[str, Any], channels: int, *, origin: str
) -> Callable[[State], State]:
    """Return what timm does to weights made for another size, other channels or older names."""
    rewrite = getattr(sys.modules[type(backbone).__module__], "checkpoint_filter_fn", None)
    first = config.get("first_conv") or ()
    stems = [f"{stem}.weight" for stem in ((first,) if isinstance(first, str) else first)]

    def adapt(state: State) -> State:
        wanted = backbone.state_dict()
        try:
            state = dict(rewrite(state, backbone)) if rewrite is not None else dict(state)
            for stem in stems:
                if stem in state and state[stem].shape != wanted[stem].shape:
                    state[stem] = timm.models.adapt_input_conv(channels, state[stem])
        except Exception as error:  # foreign code over a foreign file
            raise DataError(f"{origin} does not fit the model: {error!r}.") from error
        return state

    return adapt


@torch.no_grad()
def _feature_dim(backbone: nn.Module, name: str, input_shape: Sequence[int]) -> int:
    """Return F as one forward pass shows it: attributes differ between architectures."""
    try:
        features = backbone.eval()(torch.zeros(1, *input_shape))
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ArgumentError(
            f"model={name!r} cannot take inputs {tuple(input_shape)}: "
            f"{str(error).partition(chr(10))[0]}"
        ) from error
    backbone.train()
    if features.ndim != 2:
        raise ArgumentError(
            f"model={name!r} yields features of shape {tuple(features.shape)} for one image, "
            "a vector (1, F) is needed."
        )
    return features.shape[1]
