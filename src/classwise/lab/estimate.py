"""How long a plan will take, from the speed at which phases like it were trained."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classwise.errors import ClasswiseError, DataError
from classwise.lab.plan import Node, Plan
from classwise.train import record
from classwise.train.config import from_dict, to_dict
from classwise.train.defaults import torch_device
from classwise.train.provenance import device_name

__all__ = ["Estimate", "Kind", "Speed", "estimate", "left", "speeds"]


@dataclass(frozen=True)
class Kind:
    """All that the speed of training depends on most; ``sam`` takes two passes."""

    model: str
    device: str
    precision: str
    devices: int
    compile: bool
    sam: bool
    batch_size: int
    augment: str
    mixing: str
    data: str

    @classmethod
    def of(cls, config: Mapping[str, Any], device: str, rho: float) -> Kind:
        """Return the kind of a phase.

        Args:
            config: of a run, nested plain data, with nothing left open.
            device: as ``device_name`` calls it.
            rho: of SAM.
        """
        data, model = config["data"], config["model"]
        return cls(
            model["model"],
            device,
            config["precision"],
            config["devices"],
            bool(model["compile"]),
            rho > 0,
            config["optim"]["batch_size"],
            data["augment"],
            data["mixing"],
            data["source"].partition(":")[0],
        )

    def __str__(self) -> str:
        sam = ", SAM" if self.sam else ""
        return f"{self.model} ({self.data}, {self.precision}{sam}) on {self.device}"


@dataclass(frozen=True)
class Speed:
    """A measured speed.

    Args:
        kind: what was trained on what.
        images_per_second: samples trained in a second.
        epochs: that it was measured on.
    """

    kind: Kind
    images_per_second: float
    epochs: int = 1


@dataclass(frozen=True)
class Estimate:
    """How long a plan will take.

    Args:
        seconds: of training what is known, one phase after the other, without evaluation.
        epochs: that these seconds are for.
        unknown: epochs of phases whose like was never trained here.
        basis: what the speeds were measured on, in words.
    """

    seconds: float
    epochs: int
    unknown: int
    basis: tuple[str, ...]

    def __str__(self) -> str:
        if not self.epochs:
            return "time: unknown; nothing like it was trained here yet."
        text = f"time: about {_shown(self.seconds)} for {self.epochs:,} epochs of training, "
        text += f"without evaluation, from {'; '.join(self.basis)}"
        return text + (f". Unknown for {self.unknown:,} epochs." if self.unknown else ".")


def speeds(root: Path) -> list[Speed]:
    """Return the speed of every phase that a store holds."""
    found = []
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        try:
            head = record.read_json(folder / record.CONFIG)
            rates = [row["images_per_second"] for row in record.read_lines(folder / record.METRICS)]
            # Through the dataclass, for settings that were not there yet when it was trained.
            config = to_dict(from_dict(head["config"]))
            rho = head["identity"]["optim"]["sam"]
            kind = Kind.of(config, head["provenance"]["device"], rho)
        except (ClasswiseError, KeyError, TypeError, OSError):
            continue
        if rates:
            found.append(Speed(kind, statistics.median(rates), len(rates)))
    return found


def left(plan: Plan, root: Path) -> dict[str, int]:
    """Return how many epochs of each phase a store lacks, as far as it looks without reading all.

    >>> left(Plan(), Path("nowhere"))
    {}
    """
    return {key: _left(node, root / key) for key, node in plan.nodes.items()}


def _left(node: Node, folder: Path) -> int:
    if (folder / record.DONE).exists():
        return 0
    try:
        begun = len(record.read_lines(folder / record.METRICS))
    except DataError:
        begun = 0
    return max(0, node.epochs - begun)


def estimate(plan: Plan, missing: Mapping[str, int], known: Iterable[Speed]) -> Estimate:
    """Return how long it takes to train what is missing of a plan.

    Args:
        plan: the phases.
        missing: epochs of each that are to be trained; see ``left``.
        known: speeds; see ``speeds``.
    """
    by_kind: dict[Kind, list[Speed]] = {}
    for speed in known:
        by_kind.setdefault(speed.kind, []).append(speed)
    seconds, epochs, unknown = 0.0, 0, 0
    used: dict[Kind, float] = {}
    for key, count in missing.items():
        node = plan.nodes[key]
        kind = Kind.of(to_dict(node.config), _device_of(node), node.identity["optim"]["sam"])
        if kind not in by_kind or not node.samples:
            unknown += count
            continue
        used[kind] = _typical(by_kind[kind])
        seconds += count * node.samples / used[kind]
        epochs += count
    return Estimate(
        seconds, epochs, unknown, tuple(_words(k, r, by_kind[k]) for k, r in used.items())
    )


def _typical(measured: list[Speed]) -> float:
    """Return the median over epochs."""
    return statistics.median([s.images_per_second for s in measured for _ in range(s.epochs)])


def _words(kind: Kind, rate: float, measured: list[Speed]) -> str:
    epochs = sum(speed.epochs for speed in measured)
    return f"{rate:,.0f} images/s of {kind}, the median of {epochs:,} epochs"


def _device_of(node: Node) -> str:
    try:
        return device_name(torch_device(node.config.device))
    except ClasswiseError:  # a device that is not here
        return f"{node.config.device} ({platform.machine()})"


def _shown(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
