"""``cifar10`` and ``cifar100``: the Toronto pickles or Hugging Face parquet, whichever lies there.

Krizhevsky, *Learning multiple layers of features from tiny images*, 2009.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from classwise.data._optional import needed
from classwise.data.dataset import DataSet
from classwise.data.findings import Findings, shown
from classwise.data.sources._address import Address
from classwise.data.sources._assemble import Statistics, assemble, labelled
from classwise.data.sources._parquet import Columns, Pair, find_shards, read_shards
from classwise.data.sources._unpickle import unpickle
from classwise.errors import DataError

__all__ = ["CIFAR10", "CIFAR100", "Cifar"]

# What every published CIFAR-LT code normalises with, for both data sets.
_STATISTICS: Statistics = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


@dataclass(frozen=True)
class Cifar:
    """How one of the two is laid out."""

    name: str
    folder: str
    train: Sequence[str]
    test: Sequence[str]
    meta: str
    label_key: str
    names_key: str
    parquet_label: str
    torchvision: str

    def read(self, address: Address, findings: Findings) -> DataSet:
        """Read whichever layout lies in the folder; download where there is no such folder."""
        place = address.place_or_default()
        if not place.exists():
            self._download(place)
        for folder in (place, place / self.folder, place / "data", place / self.name):
            if (folder / self.test[0]).is_file():
                return self._from_pickles(folder, findings)
            if find_shards(folder):
                return self._from_parquet(folder, findings)
        raise DataError(
            f"{self.name}: {shown(place)} has neither {self.folder}/{self.test[0]} nor "
            "train-*.parquet and test-*.parquet."
        )

    def _download(self, place: Path) -> None:
        why = f"{self.name}: there is no folder {shown(place)}, and downloading into it"
        source = getattr(needed("torchvision.datasets", "torchvision", why), self.torchvision)
        utils = needed("torchvision.datasets.utils", "torchvision", why)
        made = [folder for folder in (place, *place.parents) if not folder.exists()]
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                utils.download_and_extract_archive(
                    source.url, str(place), filename=source.filename, md5=source.tgz_md5
                )
        except (OSError, RuntimeError, EOFError) as error:
            with contextlib.suppress(OSError):  # what came, if anything, stays
                for folder in made:
                    folder.rmdir()
            raise DataError(
                f"{why} failed: {error}. Put {source.filename} there by hand and unpack it."
            ) from error

    def _from_parquet(self, folder: Path, findings: Findings) -> DataSet:
        shards = find_shards(folder)
        for role in ("train", "test"):
            if role not in shards:
                raise DataError(f"{self.name}: {shown(folder)} has no {role}-*.parquet.")
        columns = Columns(label=(self.parquet_label,))
        train, names = read_shards(shards["train"], columns, findings)
        test, _ = read_shards(shards["test"], columns, findings)
        if names is None:
            raise DataError(f"{self.name}: {shown(shards['train'][0])} names no classes.")
        return self._assembled(names, train, test, findings)

    def _from_pickles(self, folder: Path, findings: Findings) -> DataSet:
        train = self._batches([folder / name for name in self.train], findings)
        test = self._batches([folder / name for name in self.test], findings)
        meta = folder / self.meta
        names = _content(meta).get(self.names_key)
        if not isinstance(names, list) or not all(isinstance(n, (str, bytes)) for n in names):
            raise DataError(f"{shown(meta)}: has no list {self.names_key!r} of class names.")
        texts = [n.decode("utf-8", "replace") if isinstance(n, bytes) else n for n in names]
        return self._assembled(texts, train, test, findings)

    def _assembled(
        self, names: Sequence[str], train: Pair, test: Pair, findings: Findings
    ) -> DataSet:
        return assemble(
            self.name,
            names,
            labelled(*train, len(names), "train", findings),
            test=labelled(*test, len(names), "test", findings),
            statistics=_STATISTICS,
        )

    def _batches(self, paths: Sequence[Path], findings: Findings) -> Pair:
        images, labels = [], []
        for path in paths:
            if not path.is_file():
                findings.add("missing file", path.parent, path.name)
                continue
            pixels, marks = self._batch(path)
            images.append(pixels)
            labels.append(marks)
        if not images:
            findings.check(self.name)
        return torch.cat(images), torch.cat(labels)

    def _batch(self, path: Path) -> Pair:
        content = _content(path)
        data, labels = content.get("data"), content.get(self.label_key)
        if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3072:
            raise DataError(f"{shown(path)}: 'data' must be uint8 of shape (N, 3072).")
        if not isinstance(labels, list) or not all(type(label) is int for label in labels):
            raise DataError(f"{shown(path)}: {self.label_key!r} must be a list of whole numbers.")
        if len(labels) != len(data):
            raise DataError(f"{shown(path)}: {len(data)} images but {len(labels)} labels.")
        images = torch.from_numpy(data.copy()).reshape(-1, 3, 32, 32)
        return images, torch.tensor(labels, dtype=torch.int64)


def _content(path: Path) -> dict[str, Any]:
    try:
        return unpickle(path.read_bytes())
    except OSError as error:
        raise DataError(f"{shown(path)} cannot be read: {error.strerror}.") from error
    except DataError as error:
        raise DataError(f"{shown(path)}: {error}.") from error


CIFAR10 = Cifar(
    name="cifar10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{n}" for n in range(1, 6)),
    test=("test_batch",),
    meta="batches.meta",
    label_key="labels",
    names_key="label_names",
    parquet_label="label",
    torchvision="CIFAR10",
)
CIFAR100 = Cifar(
    name="cifar100",
    folder="cifar-100-python",
    train=("train",),
    test=("test",),
    meta="meta",
    label_key="fine_labels",
    names_key="fine_label_names",
    parquet_label="fine_label",
    torchvision="CIFAR100",
)
