"""Learning rates by name: pure functions of (epoch, epochs, base rate), one value for each epoch.

Published trainings last 200 or 400 epochs; here every schedule is defined for any number of them:

- Warm-up lasts W = min(5, epochs // 10 + 1) epochs, which is 5 from 40 epochs on. Epoch 1 (counted
  from 1) has base / W, epoch W the base rate.
- Drops come after 80 % of training, rounded down as T0 is, and after 90 %, rounded up. So both
  phases begin together, and a training too short for a drop does without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from classwise._checks import known_name, number, whole_number

__all__ = ["SCHEDULES", "ScheduleSpec", "lr_at"]

Schedule: TypeAlias = Callable[..., float]

_WARMUP = 5
_CODE_EPOCHS = 200  # what the published code counts training in


@dataclass(frozen=True)
class ScheduleSpec:
    """One schedule of the registry.

    Args:
        name: to ask for it.
        title: what it does.
        source: where it was published.
        function: (0-based epoch, epochs, base rate) -> learning rate.
        moves: whether it drops at T0, which ``function`` then takes as well.
    """

    name: str
    title: str
    source: str
    function: Schedule
    moves: bool = False


def _warmup_epochs(epochs: int) -> int:
    return min(_WARMUP, epochs // 10 + 1)


def _drops(epoch: int, epochs: int) -> int:
    """Return how many drops an epoch has behind it: at 80 % and at 90 % of training."""
    return (epoch >= max(1, epochs * 8 // 10)) + (epoch >= -(-epochs * 9 // 10))


def _warm(epoch: int, epochs: int, base_lr: float, drops: int, climb: int = 1) -> float:
    """Warm up for ``climb`` times W epochs at the same pace, then divide by 100 at each drop."""
    warmup = _warmup_epochs(epochs)
    if epoch < warmup * climb:
        return base_lr * (epoch + 1) / warmup
    return base_lr * 0.01**drops


def _released(epoch: int, epochs: int, base_lr: float) -> float:
    return _warm(epoch, epochs, base_lr, _drops(epoch, epochs))


def _released_moved(epoch: int, epochs: int, base_lr: float, defer_epoch: int) -> float:
    halfway = max(1, -(-(defer_epoch + epochs) // 2))
    return _warm(epoch, epochs, base_lr, (epoch >= max(1, defer_epoch)) + (epoch >= halfway))


def _released_400(epoch: int, epochs: int, base_lr: float) -> float:
    # The published code stretches the warm-up by this factor but not what it divides by.
    climb = max(1, epochs // _CODE_EPOCHS)
    return _warm(epoch, epochs, base_lr, _drops(epoch, epochs), climb)


def _printed(epoch: int, epochs: int, base_lr: float) -> float:
    return base_lr * 0.1 ** _drops(epoch, epochs)


def _cosine(epoch: int, epochs: int, base_lr: float, floor: float = 1e-3) -> float:
    share = (1 + math.cos(math.pi * epoch / epochs)) / 2
    return base_lr * (floor + (1 - floor) * share)


def _cosine_zero(epoch: int, epochs: int, base_lr: float) -> float:
    return _cosine(epoch, epochs, base_lr, floor=0.0)


def _constant(epoch: int, epochs: int, base_lr: float) -> float:
    return base_lr


SCHEDULES: dict[str, ScheduleSpec] = {
    spec.name: spec
    for spec in (
        ScheduleSpec(
            "released",
            "warm-up of 5 epochs, divided by 100 after 80 % and again after 90 %",
            "published code of LDAM-DRW (Cao et al. 2019) and its descendants, also the paper's",
            _released,
        ),
        ScheduleSpec(
            "printed",
            "divided by 10 after 80 % and again after 90 %, no warm-up",
            "paper Sec. 6.1, protocols (a) and (b): /10 at epochs 160 and 180 of 200",
            _printed,
        ),
        ScheduleSpec(
            "released-moved",
            "as released, divided by 100 at T0 and again halfway from there to the end",
            "the paper's study of T0, whose rate drops at the moved T0; the second drop is ours",
            _released_moved,
            moves=True,
        ),
        ScheduleSpec(
            "released-400",
            "as released, but from 400 epochs on the warm-up overshoots: 10 epochs up to twice the "
            "base rate at 400",
            "published code of the paper's conference version, scripts for 400 epochs",
            _released_400,
        ),
        ScheduleSpec(
            "cosine",
            "half a cosine from the base rate to a thousandth of it",
            "paper Sec. 6.1, protocol (c): 0.1 to 1e-4 over 400 epochs",
            _cosine,
        ),
        ScheduleSpec(
            "cosine-zero",
            "half a cosine from the base rate to zero",
            "published code of Rangwani et al. 2022, ImageNet-LT and iNaturalist",
            _cosine_zero,
        ),
        ScheduleSpec("constant", "the base rate throughout", "", _constant),
    )
}
"""The registry: schedules by name."""


def lr_at(
    name: str, epoch: int, epochs: int, base_lr: float, defer_epoch: int | None = None
) -> float:
    """Return the learning rate of one epoch.

    Args:
        name: of the schedule, one of ``SCHEDULES``.
        epoch: 0-based, less than ``epochs``.
        epochs: of the whole training.
        base_lr: learning rate that the schedule starts from.
        defer_epoch: T0, for schedules that drop there; None is 80 % of training.

    >>> [round(lr_at("released", e - 1, 200, 0.1), 6) for e in (1, 5, 160, 161, 181)]
    [0.02, 0.1, 0.1, 0.001, 1e-05]
    """
    spec = SCHEDULES[known_name("schedule", name, SCHEDULES)]
    epochs = whole_number("epochs", epochs, low=1)
    epoch = whole_number("epoch", epoch, low=0, high=epochs - 1)
    base_lr = number("base_lr", base_lr, low=0)
    if not spec.moves:
        return spec.function(epoch, epochs, base_lr)
    defer_epoch = epochs * 8 // 10 if defer_epoch is None else defer_epoch
    return spec.function(
        epoch, epochs, base_lr, whole_number("defer_epoch", defer_epoch, low=0, high=epochs)
    )
