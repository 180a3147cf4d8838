"""Where sums are kept."""

from __future__ import annotations

import torch

__all__ = ["sum_dtype"]


def sum_dtype(device: torch.device | str | None) -> torch.dtype:
    """Return the widest floating dtype of a device: float64, or float32 on MPS."""
    return torch.float32 if torch.device(device or "cpu").type == "mps" else torch.float64
