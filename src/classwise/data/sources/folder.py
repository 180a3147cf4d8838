"""``folder:DIR``: images sorted into one folder for each class."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from classwise.data.dataset import DataSet, Split
from classwise.data.findings import Findings, shown
from classwise.data.sources._address import Address
from classwise.data.sources._assemble import assemble
from classwise.data.sources._files import file_split, pixel_size
from classwise.errors import DataError

__all__ = ["EXTENSIONS", "read"]

EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)
_ROLES = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


def read(address: Address, findings: Findings) -> DataSet:
    """Read ``DIR/class/image.jpg``, or ``DIR/train/class/image.jpg`` with val and test beside.

    Classes are those of the training split, in the order of their names.
    """
    root = address.required_place("folder:DIR")
    size = pixel_size(address)
    places = _places(root)
    class_names = _folders(root / places["train"])
    _check_classes(root / places["train"], class_names)
    others: Counter[str] = Counter()
    splits: dict[str, Split] = {}
    for role, place in places.items():
        where = shown(place) if place != "." else "train"
        samples = _samples(root, place, class_names, where, findings, others)
        splits[role] = file_split(root, samples, where, findings, size)
    return assemble(
        root.resolve().name or "folder",
        class_names,
        splits["train"],
        splits.get("val"),
        splits.get("test"),
        notes=[_left_out(others)] if others else [],
    )


def _places(root: Path) -> dict[str, str]:
    """Return the folder of each split, relative to the root."""
    if not root.is_dir():
        raise DataError(f"there is no folder {shown(root)}.")
    # A class may be called "train" as well: then there are images in it, not folders.
    if not ((root / "train").is_dir() and _folders(root / "train")):
        return {"train": "."}
    return {
        role: name for role, names in _ROLES.items() for name in names if (root / name).is_dir()
    }


def _folders(place: Path) -> list[str]:
    with os.scandir(place) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _check_classes(place: Path, class_names: list[str]) -> None:
    if len(class_names) < 2:
        raise DataError(
            f"{shown(place)} has {len(class_names)} folder(s) in it; there must be one for each of "
            "at least 2 classes: DIR/class/image.jpg."
        )


def _samples(
    root: Path,
    place: str,
    class_names: list[str],
    where: str,
    findings: Findings,
    others: Counter[str],
) -> list[tuple[str, int]]:
    known = {name: label for label, name in enumerate(class_names)}
    samples = []
    for name in _folders(root / place):
        folder = name if place == "." else f"{place}/{name}"
        images = sorted(_images(root, folder, others))
        if name not in known:
            findings.add("class that is not in train", where, name)
        elif images:
            samples += [(image, known[name]) for image in images]
        else:
            findings.add("empty class", where, name, fatal=where == "train")
    return samples


def _images(root: Path, folder: str, others: Counter[str]) -> Iterator[str]:
    """Yield image files at any depth, relative to the root; links are followed, but not twice."""
    seen = set()
    for place, folders, files in os.walk(root / folder, followlinks=True, onerror=_fail):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        for name in files:
            extension = os.path.splitext(name)[1].lower()
            if extension in EXTENSIONS and not name.startswith("."):
                yield os.path.relpath(os.path.join(place, name), root).replace(os.sep, "/")
            elif not name.startswith("."):
                others[extension or name] += 1


def _fail(error: OSError) -> None:
    raise error


def _left_out(others: Counter[str]) -> str:
    kinds = ", ".join(shown(kind) for kind, _ in others.most_common(3))
    return f"files that are no images were left out: {others.total()} ({kinds})."
