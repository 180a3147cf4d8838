"""``list:FILE@ROOT``: the lists of ImageNet-LT, Places-LT, iNaturalist: ``path label`` a line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from classwise.data._text import numbered_lines, whole
from classwise.data.dataset import DataSet
from classwise.data.findings import Findings, shown
from classwise.data.sources._address import Address
from classwise.data.sources._assemble import assemble
from classwise.data.sources._files import file_split, pixel_size, siblings
from classwise.errors import DataError

__all__ = ["read", "read_list"]

Samples = list[tuple[str, int]]

_LINE = re.compile(r"(?P<path>\S|\S.*\S)[ \t]+(?P<label>\S+)")


def read(address: Address, findings: Findings) -> DataSet:
    """Read a list, and those of validation and test beside it: X_train.txt, X_val.txt, X_test.txt.

    Without ``@ROOT``, paths are relative to the folder of the list. Class names are those of the
    folders that images lie in, where each class has its own.
    """
    address.required_place("list:FILE@ROOT")
    path, root = _file_and_root(address.place)
    size = pixel_size(address)
    if not root.is_dir():
        raise DataError(f"{shown(path)}: there is no folder {shown(root)} to find its images in.")
    lists = {"train": path, **siblings(path)}
    samples = {role: read_list(where, findings) for role, where in lists.items()}
    num_classes = _num_classes(path, samples["train"], findings)
    samples["train"] = [sample for sample in samples["train"] if sample[1] < num_classes]
    for role, where in lists.items():
        known = [sample for sample in samples[role] if sample[1] < num_classes]
        for name, label in samples[role]:
            if label >= num_classes:
                findings.add("label that is not in train", where.name, f"{name} {label}")
        samples[role] = known
    names, notes = _class_names(samples["train"], num_classes)
    splits = {
        role: file_split(root, samples[role], lists[role].name, findings, size) for role in lists
    }
    return assemble(
        path.stem, names, splits["train"], splits.get("val"), splits.get("test"), notes=notes
    )


def _file_and_root(place: str) -> tuple[Path, Path]:
    """Divide FILE@ROOT; where there are several @, at the last one that leaves a file."""
    pieces = place.split("@")
    for last in range(len(pieces) - 1, 0, -1):
        path = Path("@".join(pieces[:last])).expanduser()
        if path.is_file():
            return path, Path("@".join(pieces[last:])).expanduser()
    path = Path(place).expanduser()
    if not path.is_file():
        listed = shown(pieces[0] if len(pieces) > 1 else place)
        raise DataError(f"there is no file {listed}; a list is written list:FILE@ROOT.")
    return path, path.parent


def read_list(path: Path, findings: Findings) -> Samples:
    """Return path and label of each line; a path may have spaces in it.

    Lines that are something else are told to ``findings``.
    """
    samples, labels = [], {}
    for number, line in numbered_lines(path):
        found = _LINE.fullmatch(line)
        label = whole(found["label"]) if found else None
        if found is None or label is None or "\0" in line:
            findings.add("bad line", path.name, f"line {number}: {shown(line)[:60]!r}")
            continue
        name = found["path"]
        before = labels.get(name)
        if before is not None and before != label:
            findings.add("file with two labels", path.name, f"{name}: {before} and {label}")
            continue
        if before == label:
            findings.add("file that is listed twice", path.name, name, fatal=False)
        labels[name] = label
        samples.append((name, label))
    if not samples:
        findings.check(str(path))
    return samples


def _num_classes(path: Path, train: Samples, findings: Findings) -> int:
    """Return C, and tell about labels without samples before it."""
    # A label beyond the number of samples leaves classes empty, and may be anything.
    labels = {label for _, label in train if label < len(train)}
    for name, label in train:
        if label >= len(train):
            findings.add("label out of range", path.name, f"{name} {label}")
    if not labels:
        findings.check(str(path))
    return max(labels) + 1


def _class_names(train: Samples, num_classes: int) -> tuple[Sequence[str], Sequence[str]]:
    """Return the names of the images' folders if they and the labels are one to one."""
    pairs = {(label, PurePosixPath(path).parent.name) for path, label in train}
    names = dict(pairs)
    if len(pairs) == len(names) == len(set(names.values())) == num_classes and all(names.values()):
        return [names[label] for label in range(num_classes)], ()
    note = "classes have no folders of their own: they are called by their numbers."
    return [str(label) for label in range(num_classes)], (note,)
