"""What we hold ourselves to, and where in the results it is found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["TARGETS", "Target"]

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """A claim that is measured.

    Args:
        part: of the suite that measures it.
        what: is measured.
        against: what it is compared with.
        limit: what it must not exceed, or with ``at_least`` not fall below.
        value: the measured number, of the part's results.
        unit: written behind the numbers.
        at_least: whether more is better.
    """

    part: str
    what: str
    against: str
    limit: float
    value: Callable[[Any], float]
    unit: str = "x"
    at_least: bool = False

    def met(self, value: float, slack: float = 1.0) -> bool:
        """Whether a number is within the limit, or so many times off."""
        if self.at_least:
            return value >= self.limit / slack
        return value <= self.limit * slack


def _last(part: Any, list_name: str) -> Any:
    """Return the row of the largest size, C = 8,142 in a whole run."""
    return part[list_name][-1]


def _sized(rows: list[Any], classes: int) -> Any:
    return next(row for row in rows if row["classes"] == classes)


def _worst_phase(part: Any, classes: int) -> float:
    ratio = _sized(part["eager"], classes)["ratio"]
    return max(ratio["mla"][1], ratio["cla"][1])


def _trained(part: Any) -> float:
    rows = [row for row in part["throughput"] if row["with"] == "training step"]
    return min(row["ratio"][1] for row in rows)


TARGETS = (
    Target(
        "statistics",
        "slope statistics of a batch, C = 8,142, batch 256",
        "the published memory bank",
        50,
        lambda part: _last(part, "batch")["ratio"]["bank"][1],
        at_least=True,
    ),
    Target(
        "statistics",
        "their state",
        "a full bank",
        8,
        lambda part: _last(part, "batch")["state_mb"],
        unit="MB",
    ),
    Target(
        "statistics",
        "slope estimation at an epoch's end",
        "the published loop over classes and bins",
        50,
        lambda part: _last(part, "estimation")["ratio"]["bank"][1],
        at_least=True,
    ),
    Target(
        "criterion",
        "`criterion(logits, y)` with statistics, C = 8,142",
        "`F.cross_entropy`",
        2,
        lambda part: _worst_phase(part, 8_142),
    ),
    Target(
        "training",
        "the same at C = 100, forward and backward",
        "a training step of ResNet-32",
        1,
        lambda part: 100 * part["ms"]["criterion"] / part["ms"]["step"],
        unit="%",
    ),
    Target(
        "training",
        "data, criterion, optimiser and logging together",
        "a training step of ResNet-32",
        5,
        lambda part: 100 * part["share_beside_model"],
        unit="%",
    ),
    Target(
        "pipeline",
        "ResNet-32 on CIFAR, CPU, images/s",
        "the published pipeline",
        2,
        _trained,
        at_least=True,
    ),
    Target(
        "growth",
        "a column of Table 3, epochs trained",
        "separate runs",
        0.52,
        lambda part: part["shared"]["table-3"]["ratio"],
    ),
    Target(
        "growth",
        "the paper's grid of 175 runs, epochs trained",
        "separate runs",
        0.07,
        lambda part: part["shared"]["grid"]["ratio"],
    ),
    Target(
        "linear",
        "`linear_vs_loss`, C = 100,000, peak memory beyond the gradients",
        "`vs_loss` of dense logits",
        0.25,
        lambda part: _sized(part["rows"], 100_000)["memory_ratio"]["linear"],
    ),
    Target(
        "linear",
        "the same with slope statistics",
        "`vs_loss` of dense logits",
        0.25,
        lambda part: _sized(part["rows"], 100_000)["memory_ratio"]["linear, statistics"],
    ),
    Target(
        "ends",
        "an epoch's end, C = 8,142",
        "the clock",
        1,
        lambda part: max(part["epoch_end"]["seconds"].values()),
        unit="s",
    ),
    Target(
        "ends",
        "the report on three runs, C = 8,142",
        "the clock",
        20,
        lambda part: part["report"]["seconds"],
        unit="s",
    ),
    Target("ends", "its page", "the disk", 5, lambda part: part["report"]["mb"], unit="MB"),
    Target(
        "starting",
        "`import classwise` and all its names",
        "`import torch`",
        0.2,
        lambda part: part["beyond_torch"],
        unit="s more",
    ),
    Target(
        "starting",
        "`classwise --help`",
        "an empty Python",
        0.5,
        lambda part: part["help_beyond_python"],
        unit="s more",
    ),
)
