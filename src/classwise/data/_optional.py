"""Packages that only some sources need, imported when they are read."""

from __future__ import annotations

import importlib
from typing import Any

from classwise.errors import DataError

__all__ = ["needed"]


def needed(module: str, package: str, what: str) -> Any:
    """Return ``module``, or say what cannot be done without ``package``."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"{what} needs {package}: pip install {package.lower()}.") from error
