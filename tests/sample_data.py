"""Data sets in every format that classwise reads, written by other means than classwise's."""

import csv
import gzip
import io
import os
import pickle
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

RNG = np.random.default_rng(0)


def images(count: int, height: int = 8, width: int = 8, channels: int = 3) -> np.ndarray:
    """Random pixels, (count, height, width, channels)."""
    return np.random.default_rng(count).integers(
        256, size=(count, height, width, channels), dtype=np.uint8
    )


def write_folder(
    root: Path, counts: Mapping[str, int], suffix: str = ".png", size: int = 8, seed: int = 0
) -> None:
    """One folder for each class."""
    random = np.random.default_rng(seed)
    for name, count in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            pixels = random.integers(256, size=(size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{index}{suffix}")


def write_list(path: Path, samples: Sequence[tuple[str, object]]) -> Path:
    path.write_text("".join(f"{name} {label}\n" for name, label in samples))
    return path


def write_csv(path: Path, rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def idx(array: np.ndarray, code: int = 8) -> bytes:
    return (
        struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()
    )


def write_idx(folder: Path, train: int = 40, test: int = 20, compress: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("t10k", test)):
        pixels = images(count, channels=1)[..., 0]
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            raw = idx(array)
            if compress:
                (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(raw))
            else:
                (folder / f"{part}-{name}-ubyte").write_bytes(raw)


def old_pickle(data: np.ndarray, labels: Sequence[int], key: bytes = b"labels") -> bytes:
    """A batch as Python 2 wrote it, opcode by opcode: what really lies in the Toronto archives."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    rebuild = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
    empty = b"(" + number(0) + b"t" + short(b"b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n(" + short(b"u1") + number(0) + number(1) + b"tR"
    dtype += b"(" + number(3) + short(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    shape = b"(" + b"".join(number(n) for n in data.shape) + b"t"
    raw = b"T" + struct.pack("<I", data.size) + data.tobytes()
    array = rebuild + empty + b"(" + number(1) + shape + dtype + b"\x89" + raw + b"tb"
    marks = b"](" + b"".join(number(label) for label in labels) + b"e"
    pairs = short(b"data") + array + short(key) + marks
    return b"\x80\x02}(" + pairs + b"u."


CIFAR10_NAMES = ["airplane", "automobile", "bird", "cat", "deer"]
CIFAR10_NAMES += ["dog", "frog", "horse", "ship", "truck"]


def write_cifar10(root: Path, each: int = 20) -> np.ndarray:
    """The Toronto layout with ``each`` images a file; returns the pixels of the training files."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    pixels = RNG.integers(256, size=(6, each, 3072), dtype=np.uint8)
    labels = [index % 10 for index in range(each)]
    for number in range(5):
        (folder / f"data_batch_{number + 1}").write_bytes(old_pickle(pixels[number], labels))
    (folder / "test_batch").write_bytes(old_pickle(pixels[5], labels))
    names = {b"label_names": [name.encode() for name in CIFAR10_NAMES]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))
    return pixels[:5].reshape(-1, 3, 32, 32)


def encoded(pixels: np.ndarray, kind: str = "PNG", **settings: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **settings)
    return buffer.getvalue()


def needs_cifar(name: str) -> str:
    """The URI of real CIFAR data, or a skipped test."""
    root = os.environ.get("CLASSWISE_DATA")
    if not root:
        pytest.skip("CLASSWISE_DATA names no folder of data sets")
    if not (Path(root) / name).is_dir():
        pytest.skip(f"CLASSWISE_DATA has no {name}")
    return name
