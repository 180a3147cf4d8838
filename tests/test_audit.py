"""The audit finds everything in one pass, and says what to try."""

import json
import os
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sample_data import images, write_csv, write_folder, write_list

import classwise as cw
from classwise.data import Finding, audit, load, parse_profile


def found(findings: tuple[Finding, ...]) -> dict[tuple[str, str], int]:
    return {(finding.kind, finding.where): finding.count for finding in findings}


def test_everything_that_is_wrong_with_a_folder_comes_in_one_pass(tmp_path: Path):
    for role, count in (("train", 8), ("test", 3)):
        write_folder(tmp_path / role, {"cat": count, "dog": count, "Dog ": 4}, seed=count)
    train = tmp_path / "train"
    (train / "cat" / "0.png").write_bytes(b"")
    (train / "cat" / "1.png").write_bytes(b"not an image")
    (train / "dog" / "gone.png").symlink_to(tmp_path / "nowhere")
    (train / "eel").mkdir()
    whole = (train / "dog" / "1.png").read_bytes()
    (train / "dog" / "1.png").write_bytes(whole[:60] + bytes(8) + whole[68:])  # only looking tells
    write_folder(tmp_path / "test", {"owl": 2})
    shutil.copy(train / "cat" / "2.png", train / "dog" / "copy.png")
    shutil.copy(train / "cat" / "3.png", train / "cat" / "copy.png")
    shutil.copy(train / "cat" / "4.png", tmp_path / "test" / "cat" / "copy.png")
    shutil.copy(train / "cat" / "5.png", tmp_path / "test" / "dog" / "copy.png")
    for name in ("black", "white"):
        Image.new("RGB", (8, 8), name).save(train / "dog" / f"{name}.png")
    result = audit(f"folder:{tmp_path}")
    assert found(result.problems) == {
        ("empty file", "train"): 1,
        ("corrupt image", "train"): 2,
        ("missing file", "train"): 1,
        ("empty class", "train"): 1,
        ("class without training samples", "train"): 1,
        ("class that is not in train", "test"): 1,
    }
    assert found(result.warnings) == {
        ("group of class names that look alike", "train"): 1,
        ("image of one colour", "train"): 2,
        ("exact copy that has another label", "train"): 1,
        ("exact copy", "train"): 1,
        ("exact copy of an image in train", "test"): 1,
        ("exact copy of an image in train that has another label", "test"): 1,
    }
    assert not result.sound
    assert result.suggestion is None
    text = " ".join(map(str, (*result.problems, *result.warnings)))
    assert "dog/copy.png = train/cat/2.png, dog and cat" in text
    assert "'Dog ', 'dog'" in text
    # What load refuses is among what the audit lists.
    with pytest.raises(cw.DataError, match="1 x empty file in train"):
        load(f"folder:{tmp_path}")


def test_a_sound_data_set(tmp_path: Path):
    write_folder(tmp_path, {"a": 250, "b": 100, "c": 15}, suffix=".bmp", size=2)
    result = audit(f"folder:{tmp_path}")
    assert result.sound
    assert result.sizes == {"train": 292, "test": 73}
    assert result.class_names == ("a", "b", "c")
    assert result.class_counts == (200, 80, 12)
    assert result.imbalance_ratio == pytest.approx(200 / 12)
    assert result.shots == {"many": 1, "medium": 1, "few": 1}
    assert result.suggestion is not None
    assert result.suggestion[0] == f"classwise train folder:{tmp_path} --method cvs+adrw"
    assert "16.7 times as many" in result.suggestion[1]
    assert result.notes[0].startswith("no test split: 73 of 365")


@pytest.mark.parametrize(
    ("counts", "ratio"),
    [([700, 700], 100), ([320, 310], 50), ([40, 38], 5), ([1000, 300], None), ([20, 20], None)],
)
def test_the_suggested_profile_can_be_drawn(tmp_path: Path, counts: list[int], ratio: int | None):
    rows = [["x", "y"]]
    rows += [[str(n), str(label)] for label, count in enumerate(counts) for n in range(count)]
    uri = f"csv:{write_csv(tmp_path / 'my data.csv', rows)}#target=y"
    result = audit(uri)
    assert result.suggestion is not None
    words = shlex.split(result.suggestion[0])
    assert words[:3] == ["classwise", "train", uri]
    if ratio is None:
        assert "--imbalance" not in words
        assert words[-1] == ("cvs+adrw" if max(counts) > 2 * min(counts) else "ce")
    else:
        profile = words[words.index("--imbalance") + 1]
        assert profile == f"exp:{ratio}"
        labels = load(uri).train.labels
        assert int(parse_profile(profile).counts(labels, 2).min()) >= 5


def test_arrays_are_looked_at_as_well(tmp_path: Path):
    pixels = images(12)
    pixels[4] = pixels[1]
    pixels[7] = 3
    labels = np.arange(12) % 2
    test = images(2)
    test[0] = pixels[0]
    arrays = {"test_images": test, "test_labels": np.array([0, 1])}
    np.savez(tmp_path / "a.npz", train_images=pixels, train_labels=labels, **arrays)  # type: ignore[arg-type]
    result = audit(f"npz:{tmp_path / 'a.npz'}")
    assert result.sound
    assert found(result.warnings) == {
        ("image of one colour", "train"): 1,
        ("exact copy that has another label", "train"): 1,
        ("exact copy of an image in train", "test"): 1,
    }
    assert result.warnings[1].examples == ("image 4 = image 1, 0 and 1",)


def test_classes_that_cannot_be_measured(tmp_path: Path):
    write_folder(tmp_path / "train", {"a": 3, "b": 3})
    write_folder(tmp_path / "test", {"a": 3}, seed=1)
    (tmp_path / "test" / "b").mkdir()
    result = audit(f"folder:{tmp_path}")
    assert result.sound
    assert found(result.warnings)["class without samples", "test"] == 1


@pytest.mark.parametrize(
    "names",
    [["Cat", "cat"], ["big cat", "big  cat"], ["big_cat", "big cat"], ["café", "cafe\u0301"]],
)
def test_names_that_look_alike(tmp_path: Path, names: list[str]):
    write_folder(tmp_path, {**dict.fromkeys(names, 3), "other": 3})
    result = audit(f"folder:{tmp_path}")
    assert found(result.warnings) == {("group of class names that look alike", "train"): 1}


def test_names_that_do_not(tmp_path: Path):
    write_folder(tmp_path, dict.fromkeys(["C", "C++", "C#", "<b>", "-", "_"], 3))
    kinds = [finding.kind for finding in audit(f"folder:{tmp_path}").warnings]
    assert kinds == []


def test_tables_tell_of_columns_that_say_nothing(tmp_path: Path):
    rows = [["x", "same", "y"], *([n, 1, n % 2] for n in range(20))]
    result = audit(f"csv:{write_csv(tmp_path / 't.csv', rows)}#target=y")
    assert found(result.warnings) == {("column with one value", "t.csv"): 1}
    assert result.kind == "table"


def test_files_that_are_listed_twice(tmp_path: Path):
    write_folder(tmp_path, {"a": 3, "b": 3})
    samples = [(f"{name}/{i}.png", label) for label, name in enumerate("ab") for i in range(3)]
    path = write_list(tmp_path / "l.txt", [*samples, samples[0]])
    result = audit(f"list:{path}")
    assert result.sound
    assert found(result.warnings)["file that is listed twice", "l.txt"] == 1


def test_a_source_that_cannot_be_read_at_all_is_a_problem():
    result = audit("folder:none-here")
    assert found(result.problems) == {("unreadable source", "folder:none-here"): 1}
    assert "there is no folder none-here" in str(result.problems[0])
    with pytest.raises(cw.UnknownNameError, match="did you mean 'folder'"):
        audit("foldr:x")


def test_all_of_it_is_json(tmp_path: Path):
    write_folder(tmp_path, {"<b>": 3, "naïve\n": 3})
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    for uri in (f"folder:{tmp_path}", "digits", "folder:none-here"):
        result = audit(uri)
        again = json.loads(json.dumps(result.as_dict()))
        assert again["sound"] == result.sound
        assert again["class_counts"] == list(result.class_counts)
        assert len(again["problems"]) == len(result.problems)
        json.dumps(again, ensure_ascii=False).encode("utf-8")
