"""Where a criterion keeps what it streams, and how it tells a foreign state from its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from classwise.errors import CheckpointError
from classwise.losses._module import TermsModule, moved
from classwise.stats.bins import BinState
from classwise.terms import Terms

__all__ = ["NOT_STARTED", "STATE_VERSION", "StreamsBins", "refuse_foreign_state"]

STATE_VERSION = 1
NOT_STARTED = -1


class StreamsBins(TermsModule):
    """A module with streamed bins, which are in its ``state_dict`` but are no buffers.

    ``DistributedDataParallel`` copies the buffers of rank 0 to all ranks in every forward. A
    criterion that is part of the wrapped model would so lose what the other ranks have seen.
    """

    def __init__(self, terms: Terms, bins: BinState | None) -> None:
        super().__init__(terms)
        self._bins = bins

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if self._bins is not None:
            self._bins = self._bins.map(lambda tensor: moved(tensor, fn))
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._bins is not None:
            for name, tensor in self._bins.tensors():
                destination[f"{prefix}bin_{name}"] = tensor

    def _check_saved(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        """Raise if what is about to be loaded is not of this module."""

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        self._check_saved(state_dict, prefix)
        if self._bins is not None:
            for name, tensor in self._bins.tensors():
                key = f"{prefix}bin_{name}"
                if key in state_dict:
                    _copy(key, state_dict[key], tensor)
                elif strict:
                    missing_keys.append(key)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if self._bins is not None:
            mine = {f"{prefix}bin_{name}" for name, _ in self._bins.tensors()}
            unexpected_keys[:] = [key for key in unexpected_keys if key not in mine]


@torch.no_grad()
def _copy(key: str, saved: Tensor, into: Tensor) -> None:
    if saved.shape != into.shape:
        raise CheckpointError(
            f"{key} was saved with shape {tuple(saved.shape)}, here it has {tuple(into.shape)}; "
            "the statistics need the same num_bins."
        )
    into.copy_(saved)


def refuse_foreign_state(
    extra: Any,
    saved_counts: Tensor | None,
    *,
    class_counts: Tensor,
    epochs: int,
    settings: Mapping[str, str] | None,
) -> None:
    """Raise ``CheckpointError`` with the reason if a saved state is of another criterion.

    Args:
        extra: what the saved criterion's ``get_extra_state`` returned.
        saved_counts: its class counts.
        class_counts: of the criterion that loads.
        epochs: of the criterion that loads.
        settings: of the criterion that loads; None does not compare them.
    """
    if not isinstance(extra, dict) or not {"version", "epoch", "synced", "settings"} <= set(extra):
        raise CheckpointError("the state_dict holds no state of a classwise Criterion.")
    if extra["version"] != STATE_VERSION:
        raise CheckpointError(
            f"the saved criterion has state version {extra['version']!r}, this is {STATE_VERSION}."
        )
    if not NOT_STARTED <= int(extra["epoch"]) < epochs:
        raise CheckpointError(
            f"the saved criterion is in epoch {extra['epoch']}, here epochs={epochs}."
        )
    mine = class_counts.cpu()
    saved = mine.new_zeros(0) if saved_counts is None else saved_counts.cpu()
    if not torch.equal(saved, mine):
        raise CheckpointError(
            f"the saved criterion is of other class counts: {saved.numel()} classes and "
            f"{int(saved.sum())} samples, here {mine.numel()} classes and {int(mine.sum())} "
            "samples."
        )
    different = [
        f"{name}: saved {extra['settings'].get(name)!r}, here {value!r}"
        for name, value in (settings or {}).items()
        if extra["settings"].get(name) != value
    ]
    if different:
        raise CheckpointError(
            "the saved criterion has other settings; load with strict=False to fork from it. "
            + "; ".join(different)
        )
