"""The criterion inside the loops that people already have.

- ``classwise.adapters.lightning``: a callback for PyTorch Lightning;
- ``classwise.adapters.transformers``: a loss and callback for Hugging Face's ``Trainer``;
- ``classwise.adapters.sklearn``: an estimator for scikit-learn, on skorch.

Each imports its framework only when it is imported itself; ``pip install "classwise[adapters]"``
brings all three.
"""

from __future__ import annotations

from classwise.errors import ClasswiseError

__all__ = ["MissingExtraError", "missing"]


class MissingExtraError(ClasswiseError, ImportError):
    """An adapter was imported without the framework that it adapts to."""


def missing(adapter: str, package: str, error: ImportError) -> ImportError:
    """Return what to raise for a failed import: the error itself unless the package is missing.

    Args:
        adapter: module that was being imported.
        package: that it cannot do without.
        error: what importing it raised.
    """
    if (error.name or "").partition(".")[0] != package:
        return error  # the package is there and broken: its own words say more
    return MissingExtraError(
        f'{adapter} needs {package}, which is not installed: pip install "classwise[adapters]".'
    )
