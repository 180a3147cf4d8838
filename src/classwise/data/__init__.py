"""Data: for now, profiles of imbalance and the selection of samples."""

from __future__ import annotations

from classwise.data.profiles import longtail_counts, select

__all__ = ["longtail_counts", "select"]
