"""The samplers of a Lightning training, which Lightning may have replaced by others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import BatchSampler

from classwise.errors import StateError

__all__ = ["loaders_of", "refuse_replaced_samplers"]


def loaders_of(data: object) -> Iterator[Any]:
    """Yield the loaders of a collection, however it is nested."""
    if isinstance(data, Mapping):
        data = list(data.values())
    if isinstance(data, Sequence):
        for part in data:
            yield from loaders_of(part)
    else:
        yield data


def refuse_replaced_samplers(trainer: Any) -> None:
    """Raise where Lightning has put a sampler of its own around or in place of the user's."""
    if trainer.world_size == 1:
        return
    injects = trainer._accelerator_connector.use_distributed_sampler
    for loader in loaders_of(trainer.train_dataloader):
        samplers = [getattr(loader, "sampler", None)]
        batches = getattr(loader, "batch_sampler", None)
        samplers.append(getattr(batches, "sampler", None))
        wrapped = [s for s in samplers if type(s).__name__ == "DistributedSamplerWrapper"]
        if wrapped:
            replaced = type(wrapped[0].dataset._sampler).__name__  # type: ignore[union-attr]
        elif injects and batches is not None and type(batches) is not BatchSampler:
            replaced = type(batches).__name__
        else:
            continue
        raise StateError(
            f"Lightning has put its distributed sampler around {replaced}, which shuffles and "
            "shards what it draws: classes are no longer seen as often as it says. Pass "
            "Trainer(use_distributed_sampler=False) and a sampler that knows its rank, such as "
            "classwise.data.ClassSampler."
        )
