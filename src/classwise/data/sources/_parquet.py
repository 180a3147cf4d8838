"""Image data sets as Hugging Face lays them out: parquet shards, one for each part of a split."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from classwise.data._optional import needed
from classwise.data.findings import Findings, shown
from classwise.data.images import decode, stacked
from classwise.errors import DataError

__all__ = ["Columns", "Pair", "find_shards", "read_shards"]


Pair: TypeAlias = tuple[Tensor, Tensor]
"""Images, uint8 (N, 3, height, width), and labels."""


@dataclass(frozen=True)
class Columns:
    """Which columns hold what; of the labels, the first that is there."""

    image: Sequence[str] = ("img", "image")
    label: Sequence[str] = ("label",)


def find_shards(folder: Path) -> dict[str, list[Path]]:
    """Return the shards of each split, ``train-00000-of-00001.parquet`` and so on, in order."""
    found = {role: sorted(folder.glob(f"{role}-*.parquet")) for role in ("train", "test")}
    return {role: paths for role, paths in found.items() if paths}


def read_shards(
    paths: Sequence[Path], columns: Columns, findings: Findings
) -> tuple[Pair, tuple[str, ...] | None]:
    """Return images and labels of some shards, and the class names where the metadata has them."""
    images, labels, names = [], [], None
    for path in paths:
        encoded, wanted, names = _table(path, columns)
        for row, (content, label) in enumerate(zip(encoded, wanted, strict=True)):
            try:
                if not isinstance(content, bytes) or not isinstance(label, int):
                    raise DataError("has no image or no label")
                images.append(decode(content))
                labels.append(label)
            except DataError as error:
                findings.add("corrupt image", path.name, f"row {row}: {error}")
    return (_one_size(images, paths[0], findings), torch.tensor(labels)), names


def _one_size(images: list[Any], path: Path, findings: Findings) -> Tensor:
    if not images:
        findings.check(str(path))
        raise DataError(f"{shown(path)}: has no rows.")
    shapes = {image.shape for image in images}
    if len(shapes) > 1:
        raise DataError(f"{shown(path)}: images have {len(shapes)} sizes, one is expected.")
    return stacked(images)


def _table(path: Path, columns: Columns) -> tuple[list[Any], list[Any], tuple[str, ...] | None]:
    parquet = needed("pyarrow.parquet", "pyarrow", "reading parquet")
    try:
        file = parquet.ParquetFile(path)
        schema = file.schema_arrow
        image = _first(schema.names, columns.image)
        label = _first(schema.names, columns.label)
        table = file.read(columns=[image, label])
        cells = table.column(image).to_pylist()
        encoded = [cell.get("bytes") if isinstance(cell, dict) else cell for cell in cells]
        return encoded, table.column(label).to_pylist(), _class_names(schema.metadata, label)
    except (ValueError, TypeError, NotImplementedError, LookupError, OSError) as error:
        raise DataError(f"{shown(path)}: {error}") from error


def _first(names: Sequence[str], wanted: Sequence[str]) -> str:
    for name in wanted:
        if name in names:
            return name
    raise DataError(f"no column {' or '.join(wanted)}, only {', '.join(map(shown, names))}.")


def _class_names(metadata: Any, label: str) -> tuple[str, ...] | None:
    try:
        info = json.loads((metadata or {})[b"huggingface"])["info"]
        return tuple(str(name) for name in info["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return None
