"""Image files and encoded images: reading them, and telling whether they can be read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from classwise.data._optional import needed
from classwise.errors import DataError

__all__ = ["decode", "stacked"]


def decode(source: bytes | Path, size: int | None = None) -> np.ndarray:
    """Return an image as uint8 (height, width, 3), resized to a square of ``size`` if given.

    Raises:
        DataError: whatever a damaged file makes of the decoder.
    """
    pil = needed("PIL.Image", "Pillow", "reading images")
    try:
        with pil.open(io.BytesIO(source) if isinstance(source, bytes) else source) as opened:
            image = opened.convert("RGB")
            if size is not None and image.size != (size, size):
                image = image.resize((size, size), pil.Resampling.BILINEAR, reducing_gap=2.0)
            return np.asarray(image)
    except Exception as error:  # decoders raise a dozen types, among them SyntaxError
        raise DataError(f"cannot be decoded: {error}") from error


def stacked(images: list[np.ndarray]) -> Tensor:
    """Return images of one size as one tensor, uint8 (N, channels, height, width)."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
