"""Every format that is read gives the pixels, labels and names that were written."""

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sample_data import (
    CIFAR10_NAMES,
    encoded,
    images,
    needs_cifar,
    old_pickle,
    write_cifar10,
    write_csv,
    write_folder,
    write_idx,
    write_list,
)
from torch import Tensor

from classwise.data import DataSet, Files, list_sources, load
from classwise.data.sources import SOURCES
from classwise.data.sources._unpickle import unpickle
from classwise.errors import DataError


def tensor(dataset: DataSet, role: str = "train") -> Tensor:
    inputs = dataset.splits[role].inputs
    assert isinstance(inputs, Tensor)
    return inputs


def files(dataset: DataSet, role: str = "train") -> tuple[str, ...]:
    inputs = dataset.splits[role].inputs
    assert isinstance(inputs, Files)
    return inputs.paths


# The registry


def test_the_registry_lists_every_scheme_with_its_form():
    rows = list_sources()
    assert [row.scheme for row in rows] == list(SOURCES)
    assert set(SOURCES) == {
        "digits", "fashion-mnist", "cifar10", "cifar100", "npz", "folder", "list", "csv"
    }  # fmt: skip
    for row in rows:
        assert row.form.startswith(row.scheme)
        assert row.summary
        assert all(option in row.form for option in row.options)


# Digits


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits  # noqa: PLC0415

    dataset = load("digits")
    bundle = load_digits()
    every = torch.cat([tensor(dataset), tensor(dataset, "test")]).squeeze(1).double()
    ours = {(image * 16 / 255).round().flatten().byte().numpy().tobytes() for image in every}
    pixels: np.ndarray = bundle.images  # type: ignore[attr-defined]
    theirs = {image.astype(np.uint8).tobytes() for image in pixels}
    assert ours == theirs
    assert every.max() == 255
    assert len(dataset.train) + len(dataset.splits["test"]) == 1797
    assert dataset.notes == (
        "no test split: 359 of 1797 samples (20% of each class) were held out as one.",
    )
    assert (dataset.kind, dataset.input_shape, dataset.num_classes) == ("images", (1, 8, 8), 10)


def test_normalisation_is_measured_on_what_remains_in_training():
    dataset = load("digits")
    values = tensor(dataset).double() / 255
    assert dataset.mean == pytest.approx([float(values.mean())])
    assert dataset.std == pytest.approx([float(values.std(correction=0))])


# IDX


@pytest.mark.parametrize("compress", [False, True])
def test_idx_files_compressed_or_not(tmp_path: Path, compress: bool):
    write_idx(tmp_path, compress=compress)
    dataset = load(f"fashion-mnist:{tmp_path}")
    assert torch.equal(tensor(dataset)[:, 0], torch.from_numpy(images(40, channels=1)[..., 0]))
    assert torch.equal(
        tensor(dataset, "test")[:, 0], torch.from_numpy(images(20, channels=1)[..., 0])
    )
    assert dataset.train.labels.tolist() == [n % 10 for n in range(40)]
    assert dataset.class_names[-1] == "Ankle boot"
    assert dataset.notes == ()


def test_real_fashion_mnist():
    folder = Path("/usr/share/datasets/fashion-mnist")
    if not folder.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    dataset = load(f"fashion-mnist:{folder}")
    assert dataset.class_counts.tolist() == [6000] * 10
    assert len(dataset.splits["test"]) == 10_000
    # The published mean and deviation of its pixels.
    assert dataset.mean == pytest.approx([0.2860], abs=5e-5)
    assert dataset.std == pytest.approx([0.3530], abs=5e-5)


# CIFAR


def test_toronto_pickles_of_python_2(tmp_path: Path):
    pixels = write_cifar10(tmp_path)
    dataset = load(f"cifar10:{tmp_path}")
    assert torch.equal(tensor(dataset), torch.from_numpy(pixels))
    assert dataset.train.labels.tolist() == [n % 10 for n in range(20)] * 5
    assert len(dataset.splits["test"]) == 20
    assert list(dataset.class_names) == CIFAR10_NAMES
    assert dataset.mean == (0.4914, 0.4822, 0.4465)
    inner = load(f"cifar10:{tmp_path / 'cifar-10-batches-py'}")
    assert inner.fingerprint == dataset.fingerprint


def test_the_folder_of_data_sets_is_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_cifar10(tmp_path / "cifar10")
    monkeypatch.setenv("CLASSWISE_DATA", str(tmp_path))
    assert len(load("cifar10").train) == 100
    with pytest.raises(DataError, match="has no folder cifar100"):
        load("cifar100")
    monkeypatch.delenv("CLASSWISE_DATA")
    with pytest.raises(DataError, match="set CLASSWISE_DATA to a folder that has cifar10/ in it"):
        load("cifar10")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
def test_pickles_of_every_protocol_and_order(protocol: int, order: str):
    data = np.arange(24, dtype=np.uint8).reshape(4, 6).copy(order)  # type: ignore[arg-type]
    content = pickle.dumps({b"data": data, "labels": [1, 2]}, protocol=protocol)
    read = unpickle(content)
    assert np.array_equal(read["data"], data)
    assert read["labels"] == [1, 2]


class Payload:
    """What an attacker writes: unpickling it runs a command."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_pickle_runs_nothing(tmp_path: Path):
    marker = tmp_path / "marker"
    for content in (
        {"data": Payload(marker)},
        {"data": np.array([Payload(marker)], dtype=object)},
        {"labels": [print]},
        {"data": np.zeros(3)},
        {"data": np.datetime64("2001-01-01")},
        {"data": Path},
        [1, 2],
    ):
        with pytest.raises(DataError, match="pickle"):
            unpickle(pickle.dumps(content))
    for attack in (b"cos\nsystem\n(S'touch x'\ntR.", b"cbuiltins\neval\n(S'1'\ntR.", b"\x80\x04]."):
        with pytest.raises(DataError, match="pickle"):
            unpickle(attack)
    assert not marker.exists()
    pickle.loads(pickle.dumps({"data": Payload(marker)}))
    assert marker.exists()  # it would have


def test_a_damaged_pickle_is_a_data_error():
    sound = old_pickle(images(2, 32, 32).reshape(2, 3072), [0, 1])
    unpickle(sound)
    for cut in (0, 1, 5, 50, 150, 300, len(sound) - 1):
        with pytest.raises(DataError, match="not a readable pickle"):
            unpickle(sound[:cut])


def write_parquet(path: Path, pixels: np.ndarray, labels: list[int], **info: object) -> None:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    cells = [{"bytes": encoded(image), "path": None} for image in pixels]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"img": pa.array(cells, kind), "label": pa.array(labels, pa.int64())})
    features = {"label": {"names": CIFAR10_NAMES, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}, **info})}
    pq.write_table(table.replace_schema_metadata(metadata), path)


def test_parquet_shards_in_order(tmp_path: Path):
    pytest.importorskip("pyarrow")
    pixels = images(30, 32, 32)
    labels = [n % 10 for n in range(30)]
    write_parquet(tmp_path / "train-00001-of-00002.parquet", pixels[20:], labels[20:])
    write_parquet(tmp_path / "train-00000-of-00002.parquet", pixels[:20], labels[:20])
    write_parquet(tmp_path / "test-00000-of-00001.parquet", pixels[:10], labels[:10])
    dataset = load(f"cifar10:{tmp_path}")
    assert torch.equal(tensor(dataset), torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert dataset.train.labels.tolist() == labels
    assert list(dataset.class_names) == CIFAR10_NAMES


def test_without_a_network_a_download_fails_in_one_line(tmp_path: Path, monkeypatch):
    from torchvision.datasets import utils  # noqa: PLC0415

    asked = []

    def refuse(url: str, root: str, **settings: str) -> None:
        asked.append(url)
        raise OSError("no network")

    monkeypatch.setattr(utils, "download_and_extract_archive", refuse)
    place = tmp_path / "new"
    with pytest.raises(DataError, match=r"downloading into it failed: no network. Put cifar-100"):
        load(f"cifar100:{place}")
    assert asked[0].endswith("cifar-100-python.tar.gz")
    assert not place.exists()


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_real_cifar(name: str, classes: int):
    uri = needs_cifar(name)
    started = time.process_time()
    dataset = load(uri)
    seconds = time.process_time() - started
    assert dataset.num_classes == classes
    assert len(dataset.splits["test"]) == 10_000
    test = torch.bincount(dataset.splits["test"].labels)
    assert test.tolist() == [10_000 // classes] * classes
    assert seconds < 10
    # Published statistics of the pixels, which hold for the test split as well.
    values = tensor(dataset, "test").double().div(255)
    expected = {"cifar10": (0.494, 0.485, 0.450), "cifar100": (0.509, 0.487, 0.442)}[name]
    assert values.mean(dim=(0, 2, 3)).tolist() == pytest.approx(expected, abs=2e-3)


# Arrays


@pytest.mark.parametrize("channels", [1, 3])
def test_npz_in_the_layout_of_medmnist(tmp_path: Path, channels: int):
    pixels = images(36, channels=channels)
    stored = pixels[..., 0] if channels == 1 else pixels
    labels = (np.arange(36) % 3).astype(np.uint8)[:, None]
    path = tmp_path / "bloodmnist.npz"
    parts = {"train": slice(0, 18), "val": slice(18, 27), "test": slice(27, 36)}
    arrays = {f"{role}_images": stored[part] for role, part in parts.items()}
    arrays |= {f"{role}_labels": labels[part] for role, part in parts.items()}
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    dataset = load(f"npz:{path}")
    assert dataset.name == "bloodmnist"
    assert {role: len(split) for role, split in dataset.splits.items()} == {
        "train": 18, "val": 9, "test": 9
    }  # fmt: skip
    for role, part in parts.items():
        expected = torch.from_numpy(pixels[part]).permute(0, 3, 1, 2)
        assert torch.equal(tensor(dataset, role), expected)
    assert dataset.class_names == ("0", "1", "2")
    assert "called by their numbers" in dataset.notes[0]
    names = np.array(["<b>", "naïve", "血"])
    np.savez(path, **arrays, class_names=names)  # type: ignore[arg-type]
    assert load(f"npz:{path}").class_names == ("<b>", "naïve", "血")


# Folders


def test_a_folder_for_each_class(tmp_path: Path):
    write_folder(tmp_path, {"dog": 5, "cat": 10})
    (tmp_path / "cat" / "deeper").mkdir()
    Image.fromarray(images(1)[0]).save(tmp_path / "cat" / "deeper" / "x.JPG")
    (tmp_path / "cat" / "notes.txt").write_text("x")
    (tmp_path / "cat" / ".hidden.png").write_text("x")
    dataset = load(f"folder:{tmp_path}")
    assert dataset.class_names == ("cat", "dog")
    assert (dataset.kind, dataset.input_shape) == ("files", (3, 224, 224))
    assert dataset.name == tmp_path.name
    every = files(dataset) + files(dataset, "test")
    assert len(every) == len(set(every)) == 16
    assert "cat/deeper/x.JPG" in every
    for role in ("train", "test"):
        labels = dataset.splits[role].labels.tolist()
        assert [path.startswith("dog/") for path in files(dataset, role)] == [
            b == 1 for b in labels
        ]
    assert dataset.splits["test"].labels.bincount().tolist() == [2, 1]
    assert dataset.notes == (
        "files that are no images were left out: 1 (.txt).",
        "no test split: 3 of 16 samples (20% of each class) were held out as one.",
    )


def test_folders_for_train_val_and_test(tmp_path: Path):
    for role, count in (("train", 4), ("valid", 2), ("test", 3)):
        write_folder(tmp_path / role, {"a": count, "b": 1})
    dataset = load(f"folder:{tmp_path}")
    sizes = {role: len(split) for role, split in dataset.splits.items()}
    assert sizes == {"train": 5, "val": 3, "test": 4}
    assert files(dataset, "val")[0] == "valid/a/0.png"
    assert dataset.notes == ()


def test_one_held_out_split_serves_as_the_test_split(tmp_path: Path):
    write_folder(tmp_path / "train", {"a": 4, "b": 3})
    write_folder(tmp_path / "val", {"a": 2, "b": 1})
    dataset = load(f"folder:{tmp_path}")
    assert {role: len(split) for role, split in dataset.splits.items()} == {"train": 7, "test": 3}
    assert dataset.notes == ("no test split: the validation split serves as the test split.",)


def test_a_class_may_be_called_train(tmp_path: Path):
    write_folder(tmp_path, {"train": 5, "tram": 5})
    assert load(f"folder:{tmp_path}").class_names == ("train", "tram")


def test_images_brought_to_a_size_are_read_at_once(tmp_path: Path):
    write_folder(tmp_path / "train", {"a": 3, "b": 2}, size=12)
    write_folder(tmp_path / "test", {"a": 1, "b": 1}, size=6)
    dataset = load(f"folder:{tmp_path}#size=12")
    assert (dataset.kind, dataset.input_shape) == ("images", (3, 12, 12))
    with Image.open(tmp_path / "train" / "a" / "0.png") as image:
        expected = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    assert torch.equal(tensor(dataset)[0], expected)
    assert tensor(dataset, "test").shape == (2, 3, 12, 12)


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1", "I;16"])
def test_images_of_every_mode_become_rgb(tmp_path: Path, mode: str):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(3):
            image = Image.fromarray(images(3)[index][..., 0])
            image = image.convert("I").convert("I;16") if mode == "I;16" else image.convert(mode)
            suffix = {"CMYK": "jpg"}.get(mode, "png")
            image.save(tmp_path / name / f"{index}.{suffix}")
    assert load(f"folder:{tmp_path}#size=8").input_shape == (3, 8, 8)


def test_names_from_data_may_be_anything(tmp_path: Path):
    names = {"<img src=x onerror=alert(1)>": 3, "naïve 猫\n": 3, " a'b\"c": 3}
    write_folder(tmp_path, names)
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\xfe")
    Image.fromarray(images(1)[0]).save(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe/0.png"))
    dataset = load(f"folder:{tmp_path}")
    assert set(names) < set(dataset.class_names)
    assert "\\udcff\\udcfe" in dataset.class_names
    for name in dataset.class_names:
        name.encode("utf-8")
    assert len(dataset.fingerprint) == 64


# Lists


def test_lists_and_what_lies_beside_them(tmp_path: Path):
    write_folder(tmp_path / "images", {"n01 x": 6, "n02": 3})
    for role, indices in (("train", (0, 1)), ("val", (2,)), ("test", (2,))):
        samples = [
            (f"{name}/{i}.png", c) for c, name in enumerate(("n01 x", "n02")) for i in indices
        ]
        write_list(tmp_path / f"Animals_LT_{role}.txt", samples)
    dataset = load(f"list:{tmp_path}/Animals_LT_train.txt@{tmp_path}/images")
    assert dataset.class_names == ("n01 x", "n02")
    assert files(dataset) == ("n01 x/0.png", "n01 x/1.png", "n02/0.png", "n02/1.png")
    assert files(dataset, "test") == ("n01 x/2.png", "n02/2.png")
    assert set(dataset.splits) == {"train", "val", "test"}
    (tmp_path / "Animals_LT_test.txt").unlink()
    dataset = load(f"list:{tmp_path}/Animals_LT_train.txt@{tmp_path}/images#size=4")
    assert set(dataset.splits) == {"train", "test"}
    assert dataset.input_shape == (3, 4, 4)


def test_a_list_alone(tmp_path: Path):
    folder = tmp_path / "me@home"
    write_folder(folder, {"all": 6})
    samples = [(f"all/{i}.png", i % 2) for i in range(6)]
    path = write_list(folder / "every@thing.txt", samples)
    content = path.read_text().replace("\n", "\r\n").replace(" ", "\t")
    path.write_bytes(b"\xef\xbb\xbf" + content.encode() + b"\r\n")
    for uri in (f"list:{path}", f"list:{path}@{folder}"):
        dataset = load(uri)
        assert dataset.class_names == ("0", "1")
        assert sorted(files(dataset) + files(dataset, "test")) == [f"all/{i}.png" for i in range(6)]
        assert "called by their numbers" in dataset.notes[0]


# Tables


def table(rows: int) -> list[list[object]]:
    words = ["red", "green", "blue, dark"]
    made: list[list[object]] = [["age", "colour", "id", "when", "answer"]]
    for n in range(rows):
        made.append([n / 3, words[n % 3], f"row{n}", 1.6e9 + n, "yes" if n % 4 else "no"])
    return made


def test_tables_are_standardised_and_coded(tmp_path: Path):
    path = write_csv(tmp_path / "people.csv", table(80))
    dataset = load(f"csv:{path}#target=answer&drop=id")
    assert dataset.class_names == ("no", "yes")
    assert (dataset.kind, dataset.input_shape) == ("table", (5,))
    train = tensor(dataset)
    numbers = train[:, [0, 4]].double()
    assert numbers.mean(0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert numbers.std(0, correction=0).tolist() == pytest.approx([1, 1], abs=1e-5)
    assert torch.equal(train[:, 1:4].sum(1), torch.ones(len(train)))
    # Every row of the file is there once, with its own label: seconds since 1970 tell which.
    seconds = np.array([row[3] for row in table(80)[1:]], dtype=np.float64)
    step = float((train[:, 4].double().sort().values.diff()).min())
    order = (tensor(dataset)[:, 4].double() - tensor(dataset)[:, 4].min()) / step
    assert len(set(order.round().long().tolist())) == len(train) == 64
    assert len(seconds) == len(train) + len(dataset.splits["test"])
    assert dataset.notes[0].startswith("no test split: 16 of 80 samples")
    assert dataset.mean == (0.0,) * 5


def test_tables_against_a_slow_encoding(tmp_path: Path):
    rows = table(60)
    for role, part in (("train", rows[1:41]), ("test", rows[41:])):
        write_csv(tmp_path / f"x_{role}.csv", [rows[0], *part])
    dataset = load(f"csv:{tmp_path}/x_train.csv#target=answer&drop=id")
    ages = np.array([row[0] for row in rows[1:]], dtype=np.float64)
    whens = np.array([row[3] for row in rows[1:]], dtype=np.float64)
    levels = ["blue, dark", "green", "red"]
    expected = np.zeros((60, 5))
    expected[:, 0] = (ages - ages[:40].mean()) / ages[:40].std()
    expected[:, 4] = (whens - whens[:40].mean()) / whens[:40].std()
    for n, row in enumerate(rows[1:]):
        expected[n, 1 + levels.index(str(row[1]))] = 1
    both = torch.cat([tensor(dataset), tensor(dataset, "test")])
    assert np.allclose(both.numpy(), expected, atol=1e-6)
    labels = [["no", "yes"].index(str(row[4])) for row in rows[1:]]
    assert dataset.train.labels.tolist() == labels[:40]
    assert dataset.splits["test"].labels.tolist() == labels[40:]
    assert dataset.notes == ()


def test_words_that_no_training_row_has_are_zeros_and_announced(tmp_path: Path):
    head = ["x", "word", "y"]
    train = [[n, "ab"[n % 2], n % 2] for n in range(8)]
    write_csv(tmp_path / "t_train.csv", [head, *train])
    write_csv(tmp_path / "t_test.csv", [head, [0, "c", 0], [1, "a", 1]])
    dataset = load(f"csv:{tmp_path}/t_train.csv#target=y")
    assert tensor(dataset, "test")[:, 1:].tolist() == [[0, 0], [1, 0]]
    assert dataset.notes == (
        "1 rows of the test split have a value of 'word' that no training row has: "
        "zeros stand for it.",
    )


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_other_delimiters_and_classes_that_are_numbers(tmp_path: Path, delimiter: str):
    lines = [delimiter.join(("x", "y"))] + [f"{n}{delimiter}{n % 11}" for n in range(44)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines))
    dataset = load(f"csv:{path}#target=y")
    assert dataset.class_names == tuple(str(n) for n in range(11))


def test_columns_of_one_value_are_zeros(tmp_path: Path):
    rows = [["x", "one", "y"], *([n, 0.1, n % 2] for n in range(30))]
    dataset = load(f"csv:{write_csv(tmp_path / 't.csv', rows)}#target=y")
    assert bool((tensor(dataset)[:, 1].abs() < 1e-6).all())


# What it costs


def test_importing_the_package_loads_no_reader_of_files():
    code = "import classwise.data, sys; print([m for m in "
    code += "('PIL', 'pyarrow', 'sklearn', 'torchvision', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
