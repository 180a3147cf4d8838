"""classwise: classifiers that learn from class-imbalanced data.

    criterion = classwise.Criterion("cvs+adrw", class_counts, epochs=200)

Importing this loads torch, numpy and nothing heavier; the torchmetrics shells ``ClassBins``,
``ClassFloors`` and ``ClassAccuracy`` are loaded when first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from classwise import terms, theory
from classwise.calibration import CalibrationError, Curve, calibration_error, reliability, slopes
from classwise.criterion import Criterion
from classwise.data import longtail_counts, select
from classwise.errors import (
    ArgumentError,
    CheckpointError,
    ClasswiseError,
    ClasswiseWarning,
    DataError,
    RecipeError,
    StateError,
    UnknownNameError,
)
from classwise.estimation import SlopeConfig
from classwise.losses import (
    ALALoss,
    FocalLoss,
    InfluenceBalancedLoss,
    LADELoss,
    VSLoss,
    adjust,
    ala_loss,
    focal_loss,
    fold,
    influence_balanced_loss,
    lade_loss,
    linear_vs_loss,
    vs_loss,
)
from classwise.recipes import Part, Phase, Recipe, list_methods
from classwise.stats import BinTable, Measurement, measure, shots
from classwise.terms import Terms

if TYPE_CHECKING:
    from classwise.stats.metrics import ClassAccuracy, ClassBins, ClassFloors

__version__ = "0.1.0"

__all__ = [
    "ALALoss",
    "ArgumentError",
    "BinTable",
    "CalibrationError",
    "CheckpointError",
    "ClassAccuracy",
    "ClassBins",
    "ClassFloors",
    "ClasswiseError",
    "ClasswiseWarning",
    "Criterion",
    "Curve",
    "DataError",
    "FocalLoss",
    "InfluenceBalancedLoss",
    "LADELoss",
    "Measurement",
    "Part",
    "Phase",
    "Recipe",
    "RecipeError",
    "SlopeConfig",
    "StateError",
    "Terms",
    "UnknownNameError",
    "VSLoss",
    "adjust",
    "ala_loss",
    "calibration_error",
    "focal_loss",
    "fold",
    "influence_balanced_loss",
    "lade_loss",
    "linear_vs_loss",
    "list_methods",
    "longtail_counts",
    "measure",
    "reliability",
    "select",
    "shots",
    "slopes",
    "terms",
    "theory",
    "vs_loss",
]

_SHELLS = ("ClassAccuracy", "ClassBins", "ClassFloors")


def __getattr__(name: str) -> Any:
    if name in _SHELLS:
        return getattr(importlib.import_module("classwise.stats.metrics"), name)
    raise AttributeError(f"module 'classwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
