"""Where data comes from: one module for each format, one entry for each scheme of a URI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from classwise._checks import known_name
from classwise.data.dataset import DataSet
from classwise.data.findings import Findings
from classwise.data.sources import cifar, digits
from classwise.data.sources._address import Address

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


SOURCES: dict[str, Source] = {
    source.scheme: source
    for source in (
        Source(
            "digits",
            "digits",
            "1,797 handwritten digits, 8 x 8, bundled with scikit-learn",
            digits.read,
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
    )
}


def list_sources() -> list[Source]:
    """Return the schemes, from the registry.

    >>> [source.scheme for source in list_sources()][0]
    'digits'
    """
    return list(SOURCES.values())


def read(uri: str, findings: Findings) -> DataSet:
    """Return what can be read of a data set, and tell ``findings`` about the rest."""
    address = Address.parse(uri)
    source = SOURCES[known_name("data", address.scheme, SOURCES)]
    address.check_options(source.options)
    return source.read(address, findings)


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
    dataset = read(uri, findings)
    findings.check(uri)
    return dataset
