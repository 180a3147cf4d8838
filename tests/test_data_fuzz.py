"""Whatever a file holds, reading it gives data or an error of ours."""

import gzip
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from sample_data import idx, images, old_pickle, write_csv, write_idx

import classwise as cw
from classwise.data import audit, list_sources, load, parse_profile
from classwise.data._counts import read_counts
from classwise.data.sources._unpickle import unpickle
from classwise.data.sources.idx import read_idx

OURS = (cw.DataError, cw.ArgumentError)
fuzz = settings(max_examples=100, deadline=None)
# Not digits, which has no place; not CIFAR, which would be downloaded into it.
SCHEMES = [s.scheme for s in list_sources() if s.scheme not in ("digits", "cifar10", "cifar100")]


@pytest.fixture(scope="module")
def root():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("a b", "c"):
            (Path(folder) / name).mkdir()
            for index in range(3):
                Image.fromarray(images(3)[index]).save(Path(folder) / name / f"{index}.png")
        yield Path(folder)


@pytest.fixture(scope="module")
def place():
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def tried(call, *arguments: object):
    try:
        return call(*arguments)
    except OURS as error:
        said = str(error)
    assert said.isprintable()
    return None


@fuzz
@given(st.binary(max_size=64), st.booleans())
@example(b"\0\0\x08\x03" + b"\0\0\0\x01" * 3 + b"x", False)
@example(b"\0\0\x08\x03" + b"\xff" * 30, True)
def test_idx_of_any_bytes(place: Path, content: bytes, compress: bool):
    path = place / ("x.gz" if compress else "x")
    path.write_bytes(gzip.compress(content) if compress else content)
    found = tried(lambda: read_idx(path, dimensions=3))
    assert found is None or found.ndim == 3
    path.write_bytes(content)
    tried(lambda: read_idx(path, dimensions=3))


@fuzz
@given(st.data())
def test_idx_with_some_bytes_changed(data: st.DataObject):
    with tempfile.TemporaryDirectory() as folder:
        write_idx(Path(folder), train=6, test=6, compress=data.draw(st.booleans()))
        path = data.draw(st.sampled_from(sorted(Path(folder).iterdir())))
        path.write_bytes(changed(data, path.read_bytes()))
        tried(load, f"fashion-mnist:{folder}")


def changed(data: st.DataObject, content: bytes) -> bytes:
    """Replace, insert or cut some bytes."""
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(len(content), start + 4)))
        content = content[:start] + data.draw(st.binary(max_size=4)) + content[end:]
    return content


@fuzz
@given(st.data())
def test_pickles_with_some_bytes_changed(data: st.DataObject):
    sound = old_pickle(images(1, 2, 2).reshape(1, 12), [3, 200])
    tried(unpickle, changed(data, sound))


LINE = st.one_of(
    st.sampled_from(
        ["a b/0.png 0", "c/1.png 1", "c/2.png\t1", "a b/1.png 0", "c/9.png 1", "\ufeff"]
    ),
    st.text(max_size=12),
    st.tuples(st.text(max_size=8), st.integers(-3, 10**20)).map(
        lambda pair: f"{pair[0]} {pair[1]}"
    ),
)


@fuzz
@given(st.lists(LINE, max_size=8), st.sampled_from(["\n", "\r\n", "\r", "\u2028"]))
@example(["a b/0.png 0", "a b/1.png 0", "c/0.png 1", "c/1.png 1"], "\n")
def test_lists_of_any_lines(root: Path, place: Path, lines: list[str], end: str):
    path = place / "l.txt"
    path.write_text(end.join(lines), encoding="utf-8", errors="surrogatepass", newline="")
    dataset = tried(load, f"list:{path}@{root}")
    if dataset is not None:
        assert len(dataset.train)
    assert tried(audit, f"list:{path}@{root}") is not None


@fuzz
@given(st.binary(max_size=60))
def test_lists_tables_and_counts_of_any_bytes(root: Path, place: Path, content: bytes):
    path = place / "x.txt"
    path.write_bytes(content)
    tried(load, f"list:{path}@{root}")
    tried(load, f"csv:{path}#target=y")
    for suffix in ("txt", "csv", "json"):
        (place / f"c.{suffix}").write_bytes(content)
        tried(read_counts, place / f"c.{suffix}")
    tried(load, f"npz:{path}")


CELL = st.one_of(
    st.sampled_from(["", "1", "2.5", "-0", "1e400", "nan", "inf", "1_0", "a", "b", " ", "٣"]),
    st.floats().map(str),
    st.text(max_size=5),
)


@fuzz
@given(
    st.lists(st.lists(CELL, min_size=3, max_size=3), max_size=12),
    st.sampled_from(["x,w,y", "x,x,y", "x,,y", "y,w,x", "x;w;y"]),
)
def test_tables_of_any_cells(place: Path, rows: list[list[str]], header: str):
    sound = [["1", "a", "p"], ["2", "b", "q"]] * 3
    path = write_csv_text(place / "t.csv", [header.split(","), *sound, *rows])
    dataset = tried(load, f"csv:{path}#target=y")
    if dataset is not None:
        assert all(bool(split.inputs.isfinite().all()) for split in dataset.splits.values())  # type: ignore[union-attr]
    assert tried(audit, f"csv:{path}#target=y") is not None or "y" not in header.split(",")


def write_csv_text(path: Path, rows: list[list[str]]) -> Path:
    clean = [[cell.encode("utf-8", "replace").decode() for cell in row] for row in rows]
    return write_csv(path, clean)


COUNT = st.one_of(
    st.integers(-2, 10**25).map(str),
    st.text(max_size=10),
    st.tuples(st.text(max_size=6), st.sampled_from(" ,;:\t="), st.integers(0, 9)).map(
        lambda parts: f"{parts[0]}{parts[1]}{parts[2]}"
    ),
)


@fuzz
@given(st.lists(COUNT, max_size=5), st.sampled_from(["txt", "csv", "json"]))
@example(["naïve, dark 7", "class 1: 3"], "txt")
@example(['"a, b",7', "c,3"], "csv")
def test_counts_of_any_lines(place: Path, lines: list[str], suffix: str):
    path = place / f"n.{suffix}"
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
    pairs = tried(read_counts, path)
    if pairs is not None:
        assert all(count >= 0 for _, count in pairs)
        assert len({name is None for name, _ in pairs}) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@fuzz
@given(JSON)
def test_counts_of_any_json(place: Path, value: object):
    path = place / "v.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    pairs = tried(read_counts, path)
    if pairs is not None:
        counts = [count for _, count in pairs]
        assert counts == (list(value.values()) if isinstance(value, dict) else value)


@fuzz
@given(st.text(max_size=20), st.sampled_from([*SCHEMES, "x", ""]))
def test_any_uri_and_any_profile(place: Path, text: str, scheme: str):
    tried(load, f"{scheme}:{place}/none{text}")
    tried(parse_profile, f"exp:{text}")
    tried(parse_profile, f"step:{text}")
    tried(parse_profile, f"counts:{place}/none{text}")


@fuzz
@given(st.data())
def test_images_with_some_bytes_changed(root: Path, data: st.DataObject):
    path = root / "c" / "2.png"
    sound = path.read_bytes()
    try:
        path.write_bytes(changed(data, sound))
        tried(load, f"folder:{root}#size=4")
        assert tried(audit, f"folder:{root}") is not None
    finally:
        path.write_bytes(sound)


def test_the_sound_files_that_fuzzing_starts_from_are_read(root: Path, place: Path):
    assert len(load(f"folder:{root}").train) == 4
    assert unpickle(old_pickle(images(1, 2, 2).reshape(1, 12), [3]))["labels"] == [3]
    (place / "sound").write_bytes(idx(images(2)[..., 0]))
    assert read_idx(place / "sound", dimensions=3).shape == (2, 8, 8)
