# ruff: noqa: E501
"""Every data set that cannot be trained on ends in one line that says what, where and how many."""

import gzip
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sample_data import (
    encoded,
    idx,
    images,
    old_pickle,
    write_cifar10,
    write_folder,
    write_idx,
)

import classwise as cw
from classwise.data import DataSet, Files, Split, audit, load, parse_profile, prepare

P = Path


def folder(root: P) -> P:
    write_folder(root, {"cat": 4, "dog": 4})
    return root


def spoiled(root: P, name: str, content: bytes | None) -> str:
    folder(root)
    if content is None:
        (root / name).unlink()
    else:
        (root / name).write_bytes(content)
    return f"folder:{root}"


def listed(root: P, lines: str, name: str = "l.txt") -> str:
    folder(root)
    (root / name).write_text(lines)
    return f"list:{root}/{name}@{root}"


GOOD_LIST = "".join(f"cat/{i}.png 0\ndog/{i}.png 1\n" for i in range(4))


def csv_of(root: P, text: str | bytes, options: str = "target=y") -> str:
    raw = text.encode() if isinstance(text, str) else text
    (root / "t.csv").write_bytes(raw)
    return f"csv:{root}/t.csv" + (f"#{options}" if options else "")


GOOD_CSV = "x,w,y\n" + "".join(f"{n},{'ab'[n % 2]},{n % 2}\n" for n in range(20))


def npz(root: P, **arrays: object) -> str:
    good: dict[str, object] = {
        "train_images": images(6)[..., 0],
        "train_labels": np.array([0, 1, 0, 1, 0, 1]),
    }
    kept = {k: v for k, v in {**good, **arrays}.items() if v is not None}
    np.savez(root / "a.npz", **kept)  # type: ignore[arg-type]
    return f"npz:{root}/a.npz"


def fashion(root: P, name: str, content: bytes | None) -> str:
    write_idx(root)
    if content is None:
        (root / name).unlink()
    else:
        (root / name).write_bytes(content)
    return f"fashion-mnist:{root}"


def cifar(root: P, name: str, content: bytes | None) -> str:
    write_cifar10(root)
    place = root / "cifar-10-batches-py" / name
    if content is None:
        place.unlink()
    else:
        place.write_bytes(content)
    return f"cifar10:{root}"


def batch(count: int = 3, width: int = 3072, labels: object = None) -> bytes:
    data = np.zeros((count, width), np.uint8)
    return pickle.dumps({b"data": data, b"labels": [0] * count if labels is None else labels})


def empty_class(root: P) -> str:
    folder(root)
    (root / "eel").mkdir()
    return f"folder:{root}"


def other_class_in_test(root: P) -> str:
    folder(root / "train")
    write_folder(root / "test", {"cat": 1, "cow": 2})
    return f"folder:{root}"


def beside(root: P, train: str, test: str) -> str:
    (root / "t_train.csv").write_text(train)
    (root / "t_test.csv").write_text(test)
    return f"csv:{root}/t_train.csv#target=y"


def parquet(root: P, **changed: object) -> str:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq  # noqa: PLC0415

    cells: list[object] = [{"bytes": encoded(image), "path": None} for image in images(4)]
    columns: dict[str, object] = {"img": cells, "label": [0, 1, 0, 1], **changed}
    info = {"info": {"features": {"label": {"names": ["a", "b"]}}}}
    metadata = {"huggingface": json.dumps(info)} if "metadata" not in columns else {}
    columns.pop("metadata", None)
    table = pa.table({k: v for k, v in columns.items() if v is not None})
    for role in ("train", "test"):
        pq.write_table(table.replace_schema_metadata(metadata), root / f"{role}-0.parquet")
    return f"cifar10:{root}"


def written(path: P, content: bytes) -> P:
    path.write_bytes(content)
    return path


PNG = encoded(images(1)[0])
JPEG = encoded(images(1, 64, 64)[0], "JPEG")

# what happens -> (make it in a folder and return the URI, a part of the message)
# fmt: off
CASES: dict[str, tuple[Callable[[P], str], str]] = {
    # URIs
    "unknown scheme": (lambda r: "cifar1000", r"data='cifar1000' is unknown, did you mean 'cifar100'\?"),
    "no scheme": (lambda r: str(folder(r)), r"is a place; say what is there: folder:"),
    "no scheme, a file": (lambda r: str(written(r / "a.npz", b"")), r"say what is there: npz:FILE"),
    "empty URI": (lambda r: " ", "must be text such as 'digits'"),
    "unknown option": (lambda r: f"csv:{r}#traget=y", "option of csv='traget' is unknown, did you mean 'target'"),
    "option where there is none": (lambda r: "digits#size=3", "digits takes no options"),
    "option twice": (lambda r: f"csv:{r}#target=a&target=b", "must be option=value, each once"),
    "option without value": (lambda r: f"csv:{r}#target=a&drop", "'drop' must be option=value"),
    "digits with a place": (lambda r: "digits:here", "digits has no place"),
    "folder without a place": (lambda r: "folder:", "folder needs a place: folder:DIR"),
    "NUL in a place": (lambda r: "folder:a\0b", "has no NUL"),
    "a place too long": (lambda r: "folder:" + "a" * 5000, "cannot be read: File name too long"),
    "size of zero": (lambda r: f"folder:{r}#size=0", "size=0 must be a whole number of pixels from 1 to 512"),
    "size of text": (lambda r: f"folder:{r}#size=big", "size=big must be"),
    # folders
    "no such folder": (lambda r: f"folder:{r}/none", "there is no folder .*none"),
    "folder of nothing": (lambda r: f"folder:{r}", r"has 0 folder\(s\) in it"),
    "images without classes": (lambda r: f"folder:{folder(r)}/cat", r"has 0 folder\(s\) in it; there must be one for each"),
    "empty file": (lambda r: spoiled(r, "cat/0.png", b""), r"1 x empty file in train \(cat/0.png\)"),
    "not an image": (lambda r: spoiled(r, "cat/0.png", b"hello"), r"1 x corrupt image in train \(cat/0.png: cannot be decoded: cannot identify"),
    "cut PNG": (lambda r: spoiled(r, "dog/1.png", PNG[:-40]), r"1 x corrupt image in train \(dog/1.png: cannot be decoded"),
    "cut JPEG": (lambda r: spoiled(r, "dog/x.jpg", JPEG[:900]), r"1 x corrupt image in train \(dog/x.jpg: .*truncated"),
    "header only": (lambda r: spoiled(r, "dog/1.png", PNG[:20]), "1 x corrupt image in train"),
    "empty class": (empty_class, r"1 x empty class in train \(eel\)"),
    "class only in test": (other_class_in_test, r"1 x class that is not in train in test \(cow\)"),
    "damaged in the middle, with size": (lambda r: spoiled(r, "cat/0.png", PNG[:60] + bytes(8) + PNG[68:]) + "#size=8", "1 x corrupt image"),
    # lists
    "no list": (lambda r: f"list:{r}/l.txt@{r}", "there is no file .*l.txt; a list is written list:FILE@ROOT"),
    "no root": (lambda r: f"list:{written(r / 'l.txt', b'a 0')}@{r}/none", "there is no folder .*none to find its images in"),
    "empty list": (lambda r: listed(r, "\n \n"), "l.txt is empty"),
    "no label": (lambda r: listed(r, GOOD_LIST + "cat/9.png\n"), r"1 x bad line in l.txt \(line 9: 'cat/9.png'\)"),
    "negative label": (lambda r: listed(r, GOOD_LIST + "cat/9.png -1\n"), "line 9: 'cat/9.png -1'"),
    "label with a fraction": (lambda r: listed(r, GOOD_LIST + "cat/9.png 1.0\n"), "1 x bad line"),
    "missing files": (lambda r: listed(r, GOOD_LIST + "cat/9.png 0\ncat/8.png 0\n"), r"2 x missing file in l.txt \(cat/9.png, cat/8.png\)"),
    "huge label": (lambda r: listed(r, GOOD_LIST + "cat/3.png 999999999\n"), "file with two labels"),
    "label out of range": (lambda r: listed(r, GOOD_LIST.replace("dog/3.png 1", "dog/3.png 999999")), r"1 x label out of range in l.txt \(dog/3.png 999999\)"),
    "two labels": (lambda r: listed(r, GOOD_LIST + "cat/3.png 1\n"), r"1 x file with two labels in l.txt \(cat/3.png: 0 and 1\)"),
    "gap in the labels": (lambda r: listed(r, GOOD_LIST.replace(" 1\n", " 2\n")), r"1 x class without training samples in train \(1\)"),
    "binary list": (lambda r: f"list:{written(r / 'l.txt', PNG)}@{r}", "line 1 is not UTF-8 text"),
    "a folder as list": (lambda r: f"list:{r}@{r}", "there is no file"),
    # tables
    "no target": (lambda r: csv_of(r, GOOD_CSV, ""), r"csv needs the column to predict: .*one of x, w, y"),
    "unknown target": (lambda r: csv_of(r, GOOD_CSV, "target=Y"), "target='Y' is unknown"),
    "unknown drop": (lambda r: csv_of(r, GOOD_CSV, "target=y&drop=z"), "drop='z' is unknown"),
    "no table": (lambda r: f"csv:{r}/t.csv#target=y", "t.csv cannot be read: No such file"),
    "missing value": (lambda r: csv_of(r, GOOD_CSV + ",a,1\n7,NA,0\n"), r"1 x missing value in t.csv, column 'x' \(line 22\); 1 x missing value in t.csv, column 'w' \(line 23\)"),
    "NaN": (lambda r: csv_of(r, GOOD_CSV + "nan,a,1\n"), r"missing value in t.csv, column 'x' \(line 22\)"),
    "infinity": (lambda r: csv_of(r, GOOD_CSV + "inf,a,1\n"), r"1 x value that is no finite number in t.csv, column 'x' \(line 22: inf\)"),
    "a word among numbers": (lambda r: csv_of(r, GOOD_CSV + "many,a,1\n"), r"column 'x' \(line 22: many\)"),
    "too large": (lambda r: csv_of(r, GOOD_CSV.replace("\n1,", "\n1e308,").replace("\n2,", "\n-1e308,")), "too large to be standardised"),
    "rows of another length": (lambda r: csv_of(r, GOOD_CSV + "1,2\n1,2,3,4\n"), r"2 x row of another length in t.csv \(line 22: 2 cells, 3 columns, line 23: 4 cells"),
    "column twice": (lambda r: csv_of(r, "x,x,y\n1,2,3\n"), "2 columns are called 'x'"),
    "column without a name": (lambda r: csv_of(r, "x,,y\n1,2,3\n"), "column 2 has no name"),
    "header only ": (lambda r: csv_of(r, "x,w,y\n"), "has a header but no rows"),
    "empty table": (lambda r: csv_of(r, ""), "t.csv is empty"),
    "one class": (lambda r: csv_of(r, "x,y\n1,a\n2,a\n"), "the target 'y' has one value only"),
    "target of numbers": (lambda r: csv_of(r, "x,y\n" + "".join(f"1,{n}.5\n" for n in range(9))), "has 9 values in 9 rows: it names no classes"),
    "a column of names": (lambda r: csv_of(r, "x,n,y\n" + "".join(f"1,a{n},{n % 2}\n" for n in range(300))), "240 different words in 240 rows: names rather than categories. .* with #drop="),
    "target only": (lambda r: csv_of(r, "y\na\nb\n"), "no column beside the target"),
    "unclosed quote": (lambda r: csv_of(r, GOOD_CSV + '"1,a,1\n'), "unexpected end of data"),
    "latin1 table": (lambda r: csv_of(r, GOOD_CSV.encode() + b"\xe9,a,1\n"), "line 22 is not UTF-8 text"),
    "other columns beside": (lambda r: beside(r, GOOD_CSV, "x,y\n1,0\n"), "t_test.csv has other columns than t_train.csv"),
    "another class beside": (lambda r: beside(r, GOOD_CSV, GOOD_CSV + "1,a,7\n"), r"1 x class that is not in train in t_test.csv \(line 22: 7\)"),
    "words beside numbers": (lambda r: beside(r, GOOD_CSV, "x,w,y\n" + "z,a,0\n" * 5 + "1,a,1\n"), "5 x value that is no finite number in t_test.csv, column 'x'"),
    # arrays
    "no npz": (lambda r: f"npz:{r}/a.npz", "a.npz cannot be read: No such file"),
    "not npz": (lambda r: f"npz:{written(r / 'a.npz', b'hello')}", "is not a sound .npz file"),
    "cut npz": (lambda r: f"npz:{written(r / 'b.npz', P(npz(r)[4:]).read_bytes()[:200])}", "is not a sound .npz file"),
    "no train": (lambda r: npz(r, train_images=None, train_labels=None), "has no train_images and train_labels"),
    "no labels": (lambda r: npz(r, train_labels=None), "has no train_labels"),
    "pickled objects": (lambda r: npz(r, train_images=np.array([print] * 6, dtype=object)), "Object arrays cannot be loaded"),
    "float images": (lambda r: npz(r, train_images=np.zeros((6, 8, 8))), "must be uint8 of shape"),
    "volumes": (lambda r: npz(r, train_images=np.zeros((6, 8, 8, 8), np.uint8)), r"got uint8 of shape \(6, 8, 8, 8\)"),
    "several labels": (lambda r: npz(r, train_labels=np.zeros((6, 14), int)), "several labels for one image"),
    "float labels": (lambda r: npz(r, train_labels=np.zeros(6)), "must be whole numbers"),
    "lengths differ": (lambda r: npz(r, train_labels=np.array([0, 1])), "6 train images but 2 labels"),
    "label out of range ": (lambda r: npz(r, train_labels=np.array([0, 1, 0, 1, 0, 77])), r"1 x label out of range in train \(sample 5: 77\)"),
    "negative label ": (lambda r: npz(r, train_labels=np.array([0, 1, 0, 1, 0, -1])), r"sample 5: -1"),
    "test label that train lacks": (lambda r: npz(r, test_images=images(2)[..., 0], test_labels=np.array([0, 2])), r"1 x label out of range in test \(sample 1: 2\)"),
    "two sizes": (lambda r: npz(r, test_images=images(2, 9)[..., 0], test_labels=np.array([0, 1])), r"the test split holds images of shape \(1, 9, 8\)"),
    "one name": (lambda r: npz(r, class_names=np.array(["a"])), "at least 2 classes, 1 class name"),
    "names of bytes": (lambda r: npz(r, class_names=np.array([b"a", b"b"])), "class_names must be text"),
    "names twice": (lambda r: npz(r, class_names=np.array(["a", "a"])), "two classes are called 'a'"),
    "no rows": (lambda r: npz(r, train_images=np.zeros((0, 8, 8), np.uint8), train_labels=np.zeros(0, int)), "has no samples"),
    # IDX
    "no IDX folder": (lambda r: f"fashion-mnist:{r}/none", "there is no folder"),
    "an IDX file is missing": (lambda r: fashion(r, "t10k-labels-idx1-ubyte", None), "has neither t10k-labels-idx1-ubyte nor t10k-labels-idx1-ubyte.gz"),
    "no magic": (lambda r: fashion(r, "train-images-idx3-ubyte", b"hello world"), "is no IDX file"),
    "empty IDX": (lambda r: fashion(r, "train-images-idx3-ubyte", b""), "is no IDX file"),
    "IDX of floats": (lambda r: fashion(r, "train-images-idx3-ubyte", idx(np.zeros((2, 8, 8), np.uint8), code=13)), "holds values of type 0x0d"),
    "IDX of another rank": (lambda r: fashion(r, "train-images-idx3-ubyte", idx(np.zeros(4, np.uint8))), "has 1 dimensions where 3 are expected"),
    "cut header": (lambda r: fashion(r, "train-images-idx3-ubyte", idx(images(4)[..., 0])[:9]), "is cut short within its header"),
    "cut IDX": (lambda r: fashion(r, "train-images-idx3-ubyte", idx(images(4)[..., 0])[:-7]), r"claims 256 values of shape \(4, 8, 8\) but has only 249"),
    "long IDX": (lambda r: fashion(r, "train-images-idx3-ubyte", idx(images(4)[..., 0]) + b"x"), "but has more"),
    "giant IDX": (lambda r: fashion(r, "train-images-idx3-ubyte", b"\0\0\x08\x03" + b"\xff" * 12), "claims the shape"),
    "IDX lengths differ": (lambda r: fashion(r, "train-labels-idx1-ubyte", idx(np.zeros(7, np.uint8))), "40 train images but 7 labels"),
    "IDX label out of range": (lambda r: fashion(r, "train-labels-idx1-ubyte", idx(np.full(40, 10, np.uint8))), r"40 x label out of range in train \(sample 0: 10"),
    # CIFAR
    "empty CIFAR folder": (lambda r: f"cifar10:{r}", "has neither cifar-10-batches-py/test_batch nor"),
    "a batch is missing": (lambda r: cifar(r, "data_batch_3", None), r"1 x missing file in .*cifar-10-batches-py \(data_batch_3\)"),
    "no names": (lambda r: cifar(r, "batches.meta", None), "batches.meta cannot be read"),
    "names are numbers": (lambda r: cifar(r, "batches.meta", pickle.dumps({"label_names": [1]})), "has no list 'label_names' of class names"),
    "harmful pickle": (lambda r: cifar(r, "data_batch_1", b"cos\nsystem\n(S'true'\ntR."), "it wants to call os.system, which is refused"),
    "cut pickle": (lambda r: cifar(r, "data_batch_1", old_pickle(images(3, 32, 32).reshape(3, 3072), [0, 1, 2])[:5000]), "data_batch_1: not a readable pickle"),
    "not a pickle": (lambda r: cifar(r, "test_batch", b"hello"), "test_batch: not a readable pickle"),
    "narrow batch": (lambda r: cifar(r, "data_batch_1", batch(width=3000)), r"'data' must be uint8 of shape \(N, 3072\)"),
    "batch labels": (lambda r: cifar(r, "data_batch_1", batch(labels=[0, 1])), "3 images but 2 labels"),
    "batch labels of text": (lambda r: cifar(r, "data_batch_1", batch(labels=["a"] * 3)), "must be a list of whole numbers"),
    "batch label 10": (lambda r: cifar(r, "data_batch_1", batch(labels=[0, 10, 3])), r"1 x label out of range in train \(sample 1: 10\)"),
    "parquet of nothing": (lambda r: f"cifar10:{written(r / 'train-0.parquet', b'PAR1').parent}", "has no test-"),
    "parquet image": (lambda r: parquet(r, img=[{"bytes": b"hello", "path": None}] * 4), "4 x corrupt image in train-0.parquet"),
    "parquet null": (lambda r: parquet(r, label=[0, None, 1, 1]), r"1 x corrupt image in train-0.parquet \(row 1: has no image or no label\)"),
    "parquet column": (lambda r: parquet(r, img=None), "no column img or image, only label"),
    "parquet label": (lambda r: parquet(r, label=[0, 1, 2, 1]), r"1 x label out of range in train \(sample 2: 2\)"),
    "parquet names": (lambda r: parquet(r, metadata=True), "names no classes"),
}
# fmt: on


@pytest.mark.parametrize("name", CASES)
def test_bad_data_is_one_line_that_says_what_where_and_how_many(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("CLASSWISE_DATA", raising=False)
    make, message = CASES[name]
    uri = make(tmp_path)
    with pytest.raises((cw.DataError, cw.ArgumentError), match=message) as caught:
        load(uri)
    text = str(caught.value)
    assert text.isprintable()
    assert text.endswith((".", "?")), text
    if isinstance(caught.value, cw.DataError):
        found = audit(uri)
        assert not found.sound
        json.dumps(found.as_dict())


def test_a_damaged_gzip_file(tmp_path: Path):
    write_idx(tmp_path, compress=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    sound = path.read_bytes()
    for content in (b"hello", sound[:100], sound[:-3], sound[:60] + b"????" + sound[64:]):
        path.write_bytes(content)
        with pytest.raises(cw.DataError, match=r"train-images-idx3-ubyte.gz"):
            load(f"fashion-mnist:{tmp_path}")
    path.write_bytes(gzip.compress(idx(images(40)[..., 0]) + bytes(10_000_000)))
    with pytest.raises(cw.DataError, match="but has more"):
        load(f"fashion-mnist:{tmp_path}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(tmp_path: Path):
    folder(tmp_path)
    (tmp_path / "cat").chmod(0)
    with pytest.raises(cw.DataError, match="cannot be read: Permission denied"):
        load(f"folder:{tmp_path}")


def test_several_problems_come_together(tmp_path: Path):
    folder(tmp_path)
    (tmp_path / "cat" / "0.png").write_bytes(b"")
    (tmp_path / "cat" / "1.png").write_bytes(b"")
    (tmp_path / "dog" / "0.png").write_bytes(b"hello")
    (tmp_path / "dog" / "gone.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "eel").mkdir()
    with pytest.raises(cw.DataError) as caught:
        load(f"folder:{tmp_path}")
    for part in (
        "2 x empty file in train (cat/0.png, cat/1.png)",
        "1 x corrupt image in train (dog/0.png:",
        "1 x missing file in train (dog/gone.png)",
        "1 x empty class in train (eel)",
    ):
        assert part in str(caught.value)


def test_only_the_first_few_examples_are_shown(tmp_path: Path):
    write_folder(tmp_path, {"a": 9, "b": 1})
    for index in range(9):
        (tmp_path / "a" / f"{index}.png").write_bytes(b"")
    with pytest.raises(cw.DataError, match=r"9 x empty file in train \(.*a/4.png, \.\.\.\)"):
        load(f"folder:{tmp_path}")


def test_names_of_files_cannot_write_on_the_terminal(tmp_path: Path):
    folder(tmp_path)
    (tmp_path / "cat" / "\x1b[31m\n.png").write_bytes(b"")
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    with pytest.raises(cw.DataError) as caught:
        load(f"folder:{tmp_path}")
    assert str(caught.value).isprintable()
    assert r"\x1b[31m\n.png" in str(caught.value)
    str(caught.value).encode("utf-8")


# The objects themselves, profiles, prepare

U8 = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
L = torch.tensor([0, 1, 0, 1])


def dataset(**changed: object) -> DataSet:
    settings: dict = {"train": Split(U8, L), "mean": (0.5,), "std": (1.0,), **changed}
    return DataSet("x", settings.pop("class_names", ("a", "b")), **settings)


def counts_file(text: str, name: str = "c.txt") -> Callable[[P], str]:
    return lambda root: f"counts:{written(root / name, text.encode())}"


# fmt: off
OBJECTS: dict[str, tuple[Callable[[], object], str]] = {
    "labels too few": (lambda: Split(U8, L[:2]), "4 inputs but 2 labels"),
    "labels of another type": (lambda: Split(U8, L.int()), "labels must be int64"),
    "inputs of another type": (lambda: Split(U8.float(), L), "inputs must be uint8 images"),
    "table in double": (lambda: Split(torch.zeros(4, 2).double(), L), "a float32 table"),
    "one class": (lambda: dataset(class_names=("a",)), r"at least 2 classes, 1 class name\(s\) are given"),
    "names twice": (lambda: dataset(class_names=("a", "a")), "two classes are called 'a'"),
    "label beyond": (lambda: dataset(train=Split(U8, L + 1)), "labels of the train split go from 1 to 2, 2 class"),
    "empty split": (lambda: dataset(test=Split(U8[:0], L[:0])), "the test split has no samples"),
    "other shape": (lambda: dataset(test=Split(U8[..., :1], L)), r"the test split holds images of shape \(1, 2, 1\)"),
    "other kind": (lambda: dataset(test=Split(Files(Path(), ("a",) * 4), L)), "the test split holds files"),
    "no mean": (lambda: dataset(mean=()), "mean and std must be 1 numbers"),
    "std of zero": (lambda: dataset(std=(0.0,)), "std > 0"),
    "val_fraction of one": (lambda: prepare(dataset(), val_fraction=1.0), "val_fraction=1.0 is out of range"),
    "val_fraction of text": (lambda: prepare(dataset(), val_fraction="0.1"), "val_fraction='0.1' must be a number"),  # type: ignore[arg-type]
    "negative seed": (lambda: prepare(dataset(), seed=-1), "seed=-1 must be at least 0"),
    "no class has two": (lambda: prepare(dataset(train=Split(U8[:2], L[:2]))), "no class has two samples"),
    "a missing file": (lambda: Split(Files(Path("none"), ("a",)), L[:1]).fingerprint, "none/a cannot be read"),
    "unknown profile": (lambda: parse_profile("expo:10"), "imbalance='expo' is unknown, did you mean 'exp'"),
    "profile of a number": (lambda: parse_profile(100), r"imbalance=100 must be one of exp:R"),
    "no ratio": (lambda: parse_profile("exp"), r"imbalance='exp' must be written exp:R"),
    "empty ratio": (lambda: parse_profile("exp:"), "must be numbers"),
    "ratio of text": (lambda: parse_profile("exp:ten"), "imbalance='exp:ten': 'ten' must be numbers"),
    "ratio below one": (lambda: parse_profile("exp:0.01"), r"the ratio=0.01 is out of range, legal is \[1, inf\)"),
    "ratio of NaN": (lambda: parse_profile("exp:nan"), "the ratio=nan is out of range"),
    "too many parts": (lambda: parse_profile("exp:10:0.5"), "must be written exp:R"),
    "fraction above one": (lambda: parse_profile("step:10:2"), "the fraction=2.0 is out of range"),
    "uniform with a ratio": (lambda: parse_profile("uniform:3"), "must be written uniform"),
    "counts of nothing": (lambda: parse_profile("counts:"), "needs a file"),
    "no such counts": (lambda: parse_profile("counts:none.txt"), "none.txt cannot be read: No such file"),
    "ratio too large": (lambda: prepare(dataset(), imbalance="exp:100"), "leaves 1 class"),
}
COUNTS: dict[str, tuple[Callable[[P], str], str]] = {
    "words": (counts_file("cat\ndog\n"), r"line 1: must be a count, or a class name and a count, got 'cat'"),
    "negative": (counts_file("3\n-1\n"), "line 2: must be a count.*got '-1'"),
    "fraction": (counts_file("3\n1.5\n"), "line 2"),
    "mixed": (counts_file("a 3\n4\n"), "1 of 2 counts have a name"),
    "twice": (counts_file("a 3\na 4\n"), "class 'a' is given twice"),
    "too many": (counts_file("1\n1\n1\n"), "the file has 3 counts where there are 2 classes"),
    "unknown": (counts_file("a 1\nc 1\n"), "the file counts 'c', which is no class"),
    "more than there is": (counts_file("a 1\nb 9\n"), r"wants 9 samples of class 1 \('b'\), which has 2"),
    "none left": (counts_file("a 1\nb 0\n"), r"1 class\(es\) have no training samples: 'b'"),
    "empty": (counts_file(" \n"), "c.txt is empty"),
    "header only": (counts_file("class,count\n", "c.csv"), "c.csv has no counts"),
    "not JSON": (counts_file("{", "c.json"), "c.json is not JSON"),
    "JSON text": (counts_file('"a"', "c.json"), "must be a list of counts or an object"),
    "JSON float": (counts_file("[1, 1.5]", "c.json"), r"\[1\] must be a whole number >= 0, got '1.5'"),
    "JSON bool": (counts_file('{"a": true, "b": 1}', "c.json"), r"\['a'\] must be a whole number"),
    "JSON twice": (counts_file('{"a": 1, "a": 1}', "c.json"), "class 'a' is given twice"),
    "JSON deep": (counts_file("[" * 100_000, "c.json"), "c.json"),
}
# fmt: on


@pytest.mark.parametrize("name", OBJECTS)
def test_what_an_object_or_profile_refuses(name: str):
    call, message = OBJECTS[name]
    with pytest.raises((cw.DataError, cw.ArgumentError), match=message):
        call()


@pytest.mark.parametrize("name", COUNTS)
def test_what_a_file_of_counts_may_not_say(name: str, tmp_path: Path):
    make, message = COUNTS[name]
    sound = Split(U8, L)
    with pytest.raises((cw.DataError, cw.ArgumentError), match=message):
        prepare(dataset(train=sound, test=sound), imbalance=make(tmp_path))
