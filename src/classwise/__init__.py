"""classwise: classifiers that learn from class-imbalanced data.

    criterion = classwise.Criterion("cvs+adrw", class_counts, epochs=200)

Names are loaded when they are first asked for: ``classwise --help`` does not wait for torch, and
the losses load torch, numpy and nothing heavier. The torchmetrics shells ``ClassBins``,
``ClassFloors`` and ``ClassAccuracy`` load torchmetrics.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from classwise import terms, theory
    from classwise.calibration import (
        CalibrationError,
        Curve,
        calibration_error,
        reliability,
        slopes,
    )
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
    from classwise.stats.metrics import ClassAccuracy, ClassBins, ClassFloors
    from classwise.terms import Terms

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

# Where each name lives. A test holds this against ``__all__`` and the imports above.
_HOMES = {
    "calibration": "CalibrationError Curve calibration_error reliability slopes",
    "criterion": "Criterion",
    "data": "longtail_counts select",
    "errors": "ArgumentError CheckpointError ClasswiseError ClasswiseWarning DataError RecipeError "
    "StateError UnknownNameError",
    "estimation": "SlopeConfig",
    "losses": "ALALoss FocalLoss InfluenceBalancedLoss LADELoss VSLoss adjust ala_loss focal_loss "
    "fold influence_balanced_loss lade_loss linear_vs_loss vs_loss",
    "recipes": "Part Phase Recipe list_methods",
    "stats": "BinTable Measurement measure shots",
    "stats.metrics": "ClassAccuracy ClassBins ClassFloors",
    "terms": "Terms",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = ("terms", "theory")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"classwise.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'classwise' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"classwise.{_HOME_OF[name]}"), name)
    globals()[name] = value  # found at once the next time
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
