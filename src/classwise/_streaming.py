"""Where a criterion keeps what it streams, and how it tells a foreign state from its own."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor

from classwise._distributed import Group, join, rank, sum_in_place, world_size
from classwise.errors import CheckpointError, ClasswiseWarning, StateError
from classwise.losses._module import TermsModule, moved
from classwise.stats.bins import BinState, BinTable, bin_table
from classwise.terms import Terms

__all__ = ["NOT_STARTED", "Resumes", "StreamsBins", "decoded", "encoded"]

STATE_VERSION = 1
NOT_STARTED = -1


class StreamsBins(TermsModule):
    """A module with streamed bins, which are in its ``state_dict`` but are no buffers.

    ``DistributedDataParallel`` copies the buffers of rank 0 to all ranks in every forward. A
    criterion that is part of the wrapped model would so lose what the other ranks have seen.

    Args:
        terms: class terms.
        bins: the state to stream into, or None.
        group: the processes whose sums belong together.
    """

    def __init__(self, terms: Terms, bins: BinState | None, group: Group = None) -> None:
        super().__init__(terms)
        self.process_group = group
        self._bins = bins
        self._synced = False

    def statistics(self) -> BinState:
        """Return the sums of the running epoch, of this process; shared, not copied."""
        if self._bins is None:
            raise StateError("slopes=None streams no statistics; give a preset or a SlopeConfig.")
        return self._bins

    def table(self) -> BinTable:
        """Return the reliability bins of the running epoch, of this process."""
        return bin_table(self.statistics())

    @torch.no_grad()
    def sync(self) -> None:
        """Gather the statistics of all ranks in rank 0, so that its ``state_dict`` is complete.

        A collective, for use before rank 0 saves. Nothing is counted twice: the other ranks go on
        from zero, as they do when they load such a state.
        """
        join(self.terms.alpha.device, self.process_group)
        if self._bins is None:
            return
        self._sum_over_ranks()
        self._synced = True
        self._keep_on_rank_zero()

    def _sum_over_ranks(self) -> None:
        sum_in_place([tensor for _, tensor in self.statistics().tensors()], self.process_group)

    def _keep_on_rank_zero(self) -> None:
        if rank(self.process_group) > 0:
            self.statistics().zero_()

    def _process(self) -> list[int]:
        return [rank(self.process_group), world_size(self.process_group)]

    def _keep_what_is_mine(self, extra: Mapping[str, Any]) -> None:
        """Drop loaded statistics that another rank has too, or that are one rank's of several."""
        self._synced = bool(extra["synced"])
        if self._bins is None:
            return
        if self._synced:
            self._keep_on_rank_zero()
        elif extra["process"] != self._process():
            self._bins.zero_()
            warnings.warn(
                ClasswiseWarning(
                    "the statistics of epoch {epoch} were saved by rank {process[0]} of "
                    "{process[1]} without sync() and are left out; slopes and epoch are "
                    "kept.".format(**extra)
                ),
                stacklevel=2,
            )

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


class Resumes(StreamsBins):
    """A module with streamed bins whose ``state_dict`` is all that it needs to go on exactly.

    Args:
        terms: class terms.
        bins: the state to stream into, or None.
        class_counts: int64 (C,); kept in the ``state_dict``, and compared with a saved one.
        epochs: of the whole training.
        group: the processes whose sums belong together.
    """

    class_counts: Tensor

    def __init__(
        self,
        terms: Terms,
        bins: BinState | None,
        class_counts: Tensor,
        *,
        epochs: int,
        group: Group = None,
    ) -> None:
        super().__init__(terms, bins, group)
        self.register_buffer("class_counts", class_counts)
        self.epochs = epochs
        self._epoch = NOT_STARTED
        self._loaded = False
        self._forks = False

    def _settings(self) -> dict[str, str]:
        """Return what a saved state must agree with."""
        raise NotImplementedError

    def _make_terms(self) -> None:
        """Make the terms of the epoch."""
        raise NotImplementedError

    def get_extra_state(self) -> Tensor:
        """Return the rest of the state, as bytes: some tools expect tensors and nothing else."""
        process = self._process()
        return encoded(
            {
                "version": STATE_VERSION,
                "epoch": self._epoch,
                "synced": self._synced or process == [0, 1],
                "process": process,
                "settings": self._settings(),
            }
        )

    def set_extra_state(self, state: Tensor) -> None:
        """Take up the epoch of a saved state; buffers and statistics are loaded before."""
        extra = decoded(state)
        self._epoch = int(extra["epoch"])
        self._loaded = True
        self._keep_what_is_mine(extra)
        self._make_terms()

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Take up a saved state.

        Args:
            state_dict: of a criterion of the same class counts.
            strict: require the same method and settings too. False forks: this method goes on from
                the statistics of another. A criterion inside a model that loads is always strict;
                to fork it, call this on the criterion itself.
            assign: as for any module.
        """
        if "_extra_state" not in state_dict:
            raise CheckpointError("the state_dict holds no state of a classwise Criterion.")
        self._forks = not strict
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        finally:
            self._forks = False

    def _check_saved(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        saved = state_dict.get(f"{prefix}_extra_state")
        if saved is None:
            return  # a model's state from before it had a criterion; torch names what is missing
        _refuse_foreign_state(
            decoded(saved),
            state_dict.get(f"{prefix}class_counts"),
            class_counts=self.class_counts,
            epochs=self.epochs,
            settings=None if self._forks else self._settings(),
        )


@torch.no_grad()
def _copy(key: str, saved: Tensor, into: Tensor) -> None:
    if saved.shape != into.shape:
        raise CheckpointError(
            f"{key} was saved with shape {tuple(saved.shape)}, here it has {tuple(into.shape)}; "
            "the statistics need the same num_bins."
        )
    into.copy_(saved)


def encoded(extra: Mapping[str, Any]) -> Tensor:
    """Return plain data as a tensor of bytes."""
    return torch.tensor(list(json.dumps(extra).encode()), dtype=torch.uint8)


def decoded(state: Any) -> dict[str, Any]:
    """Return the plain data of a tensor of bytes, or say that it is not what is expected."""
    try:
        extra = json.loads(bytes(state.cpu().tolist()))
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError("the state_dict holds no state of a classwise Criterion.") from error
    wanted = {"version", "epoch", "synced", "process", "settings"}
    if not isinstance(extra, dict) or not wanted <= set(extra):
        raise CheckpointError("the state_dict holds no state of a classwise Criterion.")
    return extra


def _refuse_foreign_state(
    extra: Mapping[str, Any],
    saved_counts: Tensor | None,
    *,
    class_counts: Tensor,
    epochs: int,
    settings: Mapping[str, str] | None,
) -> None:
    """Raise ``CheckpointError`` with the reason if a saved state is of another criterion.

    Args:
        extra: the decoded extra state of the saved criterion.
        saved_counts: its class counts.
        class_counts: of the criterion that loads.
        epochs: of the criterion that loads.
        settings: of the criterion that loads; None does not compare them.
    """
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
            "the saved criterion has other settings; "
            "criterion.load_state_dict(..., strict=False) forks from it. " + "; ".join(different)
        )
