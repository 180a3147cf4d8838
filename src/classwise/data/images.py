"""Image files and encoded images: reading them, and telling whether they can be read."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from classwise.data._optional import needed
from classwise.errors import DataError

__all__ = ["checked", "decode", "stacked", "trouble"]

_Found = TypeVar("_Found")

# Pillow would try its formats one by one, which takes longer than decoding a small image.
_HINTS = {b"RIFF": ("WEBP",), b"\x89PNG": ("PNG",)}


def decode(source: bytes | Path, size: int | None = None) -> np.ndarray:
    """Return an image as uint8 (height, width, 3), resized to a square of ``size`` if given.

    Raises:
        DataError: whatever a damaged file makes of the decoder.
    """
    pil = needed("PIL.Image", "Pillow", "reading images")
    try:
        stream, hint = source, None
        if isinstance(source, bytes):
            stream, hint = io.BytesIO(source), _HINTS.get(source[:4])
        with pil.open(stream, formats=hint) as opened:
            image = opened.convert("RGB")
            if size is not None and image.size != (size, size):
                image = image.resize((size, size), pil.Resampling.BILINEAR, reducing_gap=2.0)
            return np.asarray(image)
    except Exception as error:  # decoders raise a dozen types, among them SyntaxError
        raise DataError(f"cannot be decoded: {error}") from error


def stacked(images: list[np.ndarray]) -> Tensor:
    """Return images of one size as one tensor, uint8 (N, channels, height, width)."""
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


# How files of each format begin, and what the last bytes of a complete one contain.
_FORMATS = (
    (b"\xff\xd8\xff", b"\xff\xd9"),
    (b"\x89PNG\r\n\x1a\n", b"IEND"),
    (b"GIF8", b";"),
)
_TAIL = 32


def trouble(path: Path) -> tuple[str, str] | None:
    """Return what is wrong with an image file, as (what, detail), reading little of it.

    JPEG, PNG and GIF files are believed if they begin and end as they should: that finds files that
    are cut short or are something else. All others, and those that do not, are decoded, so that
    none is accused wrongly. Damage in the middle of a file takes ``decode`` to find.
    """
    try:
        with path.open("rb") as file:
            head = file.read(8)
            if not head:
                return "empty file", ""
            file.seek(0, io.SEEK_END)
            file.seek(-min(file.tell(), _TAIL), io.SEEK_END)
            tail = file.read()
    except FileNotFoundError:
        return "missing file", ""
    except (OSError, ValueError) as error:
        return "unreadable file", str(getattr(error, "strerror", None) or error)
    if any(head.startswith(begin) and end in tail for begin, end in _FORMATS):
        return None
    try:
        decode(path)
    except DataError as error:
        return "corrupt image", str(error)
    return None


def checked(
    paths: Sequence[Path], look: Callable[[Path], _Found], *, threads: int = 8
) -> list[_Found]:
    """Return what ``look`` finds for each path; several at once, since disks take their time."""
    chunks = [paths[start : start + 64] for start in range(0, len(paths), 64)]
    with ThreadPoolExecutor(threads) as pool:
        return list(chain.from_iterable(pool.map(lambda c: [look(path) for path in c], chunks)))
