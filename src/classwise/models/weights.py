"""Weights from a file into a backbone: every key is accounted for, or it is an error."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from classwise.errors import DataError

__all__ = ["load_backbone", "read_state"]

State: TypeAlias = dict[str, Tensor]

_WRAPPERS = ("module.", "_orig_mod.")  # what DistributedDataParallel and torch.compile put in front
_NESTED = ("state_dict", "model", "model_state_dict")
_SHOWN = 4


def read_state(path: str | Path) -> State:
    """Return the tensors of a ``.safetensors`` or a torch file, without unpickling anything else.

    A torch file holds a ``state_dict``, or one under the key ``"state_dict"`` or ``"model"``.
    Prefixes of wrapped modules are removed.

    Args:
        path: of the file.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"pretrained={str(path)!r} is not a file.")
    state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    while state and (prefix := _common_wrapper(state)):
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def _common_wrapper(state: State) -> str:
    return next((p for p in _WRAPPERS if all(key.startswith(p) for key in state)), "")


def _read_safetensors(path: Path) -> State:
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read as safetensors: {error}.") from error


def _read_torch(path: Path) -> State:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        first = str(error).strip().partition("\n")[0]
        if isinstance(error, pickle.UnpicklingError):  # torch advises to load it all the same
            first = "it is none, or holds something else."
        raise DataError(
            f"{path} cannot be read as a torch file that holds tensors only: {first}"
        ) from error
    for key in _NESTED:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if (
        not isinstance(state, Mapping)
        or not state
        or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in state.items())
    ):
        raise DataError(
            f"{path} holds no state_dict: a mapping from names to tensors is needed, "
            f"at the top or under one of {', '.join(map(repr, _NESTED))}."
        )
    return dict(state)


def load_backbone(
    backbone: nn.Module,
    state: State,
    *,
    origin: str,
    classifier: Collection[str] = (),
    adapt: Callable[[State], State] | None = None,
) -> None:
    """Load ``state`` into a backbone; the classifier's keys are left out, all others must fit.

    A state whose keys begin with ``backbone.`` is one of a ``Classifier``: its head is left out.

    Args:
        backbone: changed in place.
        state: as from ``read_state``.
        origin: what errors call the state.
        classifier: prefixes of keys that belong to the classifier of the file.
        adapt: rewrites a state that does not fit as it is, once.
    """
    if any(key.startswith("backbone.") for key in state):
        state = {k.removeprefix("backbone."): v for k, v in state.items() if k[:5] != "head."}
    wanted = backbone.state_dict()
    state = _without(state, classifier, wanted)
    if adapt is not None and _misfits(state, wanted):
        state = _without(adapt(state), classifier, wanted)
    misfits = _misfits(state, wanted)
    if misfits:
        raise DataError(f"{origin} does not fit the model: {'; '.join(misfits)}.")
    backbone.load_state_dict(state)


def _without(state: State, classifier: Collection[str], wanted: Collection[str]) -> State:
    prefixes = tuple(f"{name}." for name in classifier)
    return {k: v for k, v in state.items() if k in wanted or not k.startswith(prefixes)}


def _misfits(state: State, wanted: State) -> list[str]:
    missing = [key for key in wanted if key not in state]
    unexpected = [key for key in state if key not in wanted]
    shapes = [
        f"{key} {tuple(state[key].shape)} instead of {tuple(value.shape)}"
        for key, value in wanted.items()
        if key in state and state[key].shape != value.shape
    ]
    found = (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
    return [f"{len(keys)} keys are {what} ({_some(keys)})" for what, keys in found if keys]


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:_SHOWN]) + (", ..." if len(keys) > _SHOWN else "")
