"""Statistics per class: pure functions over plain tensors, and their torchmetrics shells.

The shells (``classwise.stats.metrics``) are not imported here: torchmetrics is loaded when one
of them is first asked for.
"""

from __future__ import annotations

from classwise.stats.bins import BinState, BinTable
from classwise.stats.floors import FloorState
from classwise.stats.measure import Measurement, measure
from classwise.stats.shots import shots

__all__ = ["BinState", "BinTable", "FloorState", "Measurement", "measure", "shots"]
