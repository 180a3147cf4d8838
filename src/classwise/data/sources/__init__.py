"""Where data comes from: one module for each format, one entry for each scheme of a URI."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from classwise._checks import known_name
from classwise.data.dataset import DataSet
from classwise.data.findings import Findings, FoundError, shown
from classwise.data.sources import cifar, digits, folder, idx, lists, npz, table
from classwise.data.sources._address import Address
from classwise.data.sources._files import IMAGE_OPTIONS
from classwise.errors import DataError, UnknownNameError

__all__ = ["SOURCES", "Source", "list_sources", "load", "read"]


@dataclass(frozen=True)
class Source:
    """One scheme.

    Args:
        scheme: the word before the colon.
        form: how its URI is written.
        summary: what it reads.
        read: reads it; what is wrong goes into the findings, and where nothing is left to return,
            into a DataError.
        options: what may follow ``#``.
    """

    scheme: str
    form: str
    summary: str
    read: Callable[[Address, Findings], DataSet]
    options: Sequence[str] = ()


_ALL = (
    Source("digits", "digits", "handwritten digits, 8 x 8, bundled with scikit-learn", digits.read),
    Source(
        "fashion-mnist",
        "fashion-mnist[:DIR]",
        "Fashion-MNIST: the four IDX files, .gz or not",
        idx.read,
    ),
    Source(
        "cifar10",
        "cifar10[:DIR]",
        "CIFAR-10: Toronto pickles or Hugging Face parquet",
        cifar.CIFAR10.read,
    ),
    Source(
        "cifar100",
        "cifar100[:DIR]",
        "CIFAR-100: Toronto pickles or Hugging Face parquet",
        cifar.CIFAR100.read,
    ),
    Source(
        "npz",
        "npz:FILE",
        "arrays as in MedMNIST: train_images, train_labels, val_..., test_...",
        npz.read,
    ),
    Source(
        "folder",
        "folder:DIR[#size=PIXELS]",
        "images in a folder for each class, or train/, val/, test/ of these",
        folder.read,
        IMAGE_OPTIONS,
    ),
    Source(
        "list",
        "list:FILE@ROOT[#size=PIXELS]",
        "lines of `path label`; X_val and X_test beside X_train are read too",
        lists.read,
        IMAGE_OPTIONS,
    ),
    Source(
        "csv",
        "csv:FILE#target=COLUMN[&drop=COLUMN,...]",
        "a table with a header; X_val and X_test beside X_train are read too",
        table.read,
        table.OPTIONS,
    ),
)
SOURCES: dict[str, Source] = {source.scheme: source for source in _ALL}


def list_sources() -> list[Source]:
    """Return the schemes, from the registry.

    >>> [source.scheme for source in list_sources()][0]
    'digits'
    """
    return list(SOURCES.values())


def read(uri: str, findings: Findings) -> DataSet:
    """Return what can be read of a data set, and tell ``findings`` about the rest."""
    address = Address.parse(uri)
    if address.scheme not in SOURCES and os.path.exists(uri):
        raise UnknownNameError(
            f"data={shown(uri)!r} is a place; say what is there: {_guess(Path(uri))}."
        )
    source = SOURCES[known_name("data", address.scheme, SOURCES)]
    address.check_options(source.options)
    try:
        dataset = source.read(address, findings)
    except OSError as error:
        place = error.filename or address.place
        raise DataError(f"{shown(place)} cannot be read: {error.strerror or error}.") from error
    for label in torch.nonzero(dataset.class_counts == 0).flatten().tolist():
        findings.add("class without training samples", "train", dataset.class_names[label])
    return dataset


def _guess(path: Path) -> str:
    if path.is_dir():
        return f"folder:{shown(path)}"
    scheme = {".csv": "csv", ".tsv": "csv", ".npz": "npz", ".txt": "list"}.get(path.suffix.lower())
    known = [SOURCES[scheme]] if scheme else _ALL
    return ", ".join(source.form for source in known)


def load(uri: str) -> DataSet:
    """Return a data set, complete and sound, with a test split.

    Args:
        uri: ``scheme:place``, see ``list_sources()``.

    Raises:
        UnknownNameError: there is no such scheme.
        DataError: files are missing, corrupt, empty or mislabelled; says what, where, how many.

    >>> dataset = load("digits")
    >>> dataset.num_classes, dataset.input_shape, len(dataset.train)
    (10, (1, 8, 8), 1438)
    """
    findings = Findings()
    try:
        dataset = read(uri, findings)
    except FoundError:
        raise
    except DataError as error:
        if any(finding.fatal for finding in findings):  # then they may be why
            findings.add("unreadable source", uri, str(error).removesuffix("."))
            findings.check(uri)
        raise
    findings.check(uri)
    return dataset
