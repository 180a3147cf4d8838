"""Files that describe tables, figures and hyper-parameters: what is wrong in them is said."""

from pathlib import Path

import pytest

from classwise.errors import DataError
from classwise.paper.hyper import rules_from
from classwise.paper.load import figure_from, table_from

TABLE = """
number = 9
label = "tab:mine"
title = "Mine"
seeds = 1
[[columns]]
name = "c10"
dataset = "cifar10"
imbalance = "exp"
ratio = 100
metrics = ["balanced", "few"]
[[blocks]]
name = "a"
title = "Block"
protocol = "a"
[[blocks.rows]]
title = "CE"
method = "ce"
mean = [71.5, "-"]
spread = [0.4, "-"]
"""

FIGURE = """
number = 9
label = "fig:mine"
title = "Mine"
kind = "lines"
reported = "none"
[[panels]]
name = "a"
title = "Panel"
dataset = "cifar10"
imbalance = "exp"
ratio = 100
protocol = "a"
x = "nu"
y = "balanced"
[[panels.series]]
title = "CE+ADRW"
method = "ce+adrw"
sweep = { nu = [0.5, 1.0] }
source = "paper"
"""

RULE = """
[[rules]]
where = { method = ["vs", "vs+drw"], setting = "cifar10-exp-100" }
set = { tau = 1.0 }
source = "paper"
"""


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_the_files_that_are_broken_below_are_sound(tmp_path: Path):
    (cell,) = table_from(written(tmp_path, "table-9.toml", TABLE)).cells
    assert (cell.name, list(cell.reported)) == ("a/ce/c10", ["balanced"])
    figure = figure_from(written(tmp_path, "figure-9.toml", FIGURE))
    assert [cell.name for cell in figure.cells] == ["a/ce+adrw/nu=0.5", "a/ce+adrw/nu=1"]
    (rule,) = rules_from(written(tmp_path, "hyper.toml", RULE))
    assert rule.values["tau"].value == 1.0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("number = 9", "number = 8", r"number=8 does not fit the name of the file"),
        ("number = 9", "number = true", r"number=True must be a whole number, got bool"),
        ('label = "tab:mine"\n', "", r"table-9.toml: 'label' is missing; it must be text"),
        ("seeds = 1", "sedes = 1", r"'seeds' is missing"),
        ("seeds = 1", "seeds = 1\nnotes = 'x'", r"'notes' is unknown, did you mean 'note'"),
        ('"cifar10"', '"cifar"', r"columns\[0\]: dataset='cifar' is unknown, did you mean 'cifar1"),
        ('imbalance = "exp"', 'imbalance = "as-is"', r"'as-is', or 'exp' or 'step' with a ratio"),
        ("ratio = 100", "ratio = 1", r"ratio=1 must be more than 1"),
        ('"few"]', '"fwe"]', r"columns\[0\]: metric='fwe' is unknown, did you mean 'few'"),
        ("metrics", "groups = [5, 5]\nmetrics", r"groups must be three numbers of classes"),
        ('protocol = "a"', 'protocol = "d"', r"blocks\[0\]: protocol='d' is unknown"),
        ("[71.5,", "[171.5,", r"blocks\[0\]: rows\[0\]: balanced=171.5 must be in \[0, 100\]"),
        ("[71.5,", "[-1.5,", r"balanced=-1.5 must be in \[0, 100\]"),
        ("[71.5,", '["71.5",', r"mean must hold numbers or \"-\", got '71.5'"),
        ('[71.5, "-"]', "[71.5]", r"mean and spread must have 2 entries each, got 1 and 2"),
        ('[71.5, "-"]', '["-", "-"]', r"balanced has a spread but no mean"),
        ('method = "ce"', 'method = "ce"\nneeds = ["gpu"]', r"needs='gpu' is unknown"),
        ('title = "CE"', "title = 7", r"title=7 must be text, got int"),
        ("[[columns]]", "[columns]", r"columns=.* must be a list of tables, got dict"),
        ("[[blocks]]", "[[blocks", r"table-9.toml cannot be read: .*line"),
    ],
)
def test_a_table_with_a_mistake(tmp_path: Path, old: str, new: str, message: str):
    assert old in TABLE
    with pytest.raises(DataError, match=message):
        table_from(written(tmp_path, "table-9.toml", TABLE.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ('[[blocks.rows]]\ntitle = "ce"\nmean = [1.0, 1.0]', r"there are two cells 'a/ce/c10'"),
        (
            '[[exceptions]]\ncode = "P3"\nkind = "group-mean"\nwhat = "x"\ncells = ["a/ce/c100"]',
            r"cell='a/ce/c100' is unknown, did you mean 'a/ce/c10'",
        ),
        (
            '[[exceptions]]\ncode = "P5"\nkind = "split"\nwhat = "x"\ncells = ["a/ce/c10"]',
            r"exceptions\[0\]: a 'split', and nothing else, has groups",
        ),
        (
            '[[exceptions]]\ncode = "P5"\nkind = "other"\nwhat = "x"\ncells = []',
            r"kind='other' is unknown",
        ),
    ],
)
def test_a_table_with_something_wrong_added(tmp_path: Path, more: str, message: str):
    with pytest.raises(DataError, match=message):
        table_from(written(tmp_path, "table-9.toml", f"{TABLE}\n{more}\n"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "lines"', 'kind = "pie"', r"kind='pie' is unknown"),
        ('reported = "none"', 'reported = "text"', r"'text' exactly where something is quoted"),
        ('y = "balanced"', 'y = "accurracy"', r"panels\[0\]: y=.* did you mean 'accuracy'"),
        ('x = "nu"', 'x = "tau"', r"series 'CE\+ADRW' varies what is on no axis"),
        ('source = "paper"', "", r"source must say where settings and sweep come from"),
        ('source = "paper"', 'source = "me"', r"source='me' is unknown"),
        ("nu = [0.5, 1.0]", "nu = []", r"sweep.nu=\[\] must be text or numbers, at least one"),
        ("nu = [0.5, 1.0]", "nu = [0.5, 0.5]", r"there are two cells 'a/ce\+adrw/nu=0.5'"),
        ("number = 9", "number = 10", r"number=10 does not fit"),
    ],
)
def test_a_figure_with_a_mistake(tmp_path: Path, old: str, new: str, message: str):
    assert old in FIGURE
    with pytest.raises(DataError, match=message):
        figure_from(written(tmp_path, "figure-9.toml", FIGURE.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("method =", "methods =", r"rules\[0\]: where='methods' is unknown, did you mean 'method'"),
        ('"vs"', '"vss"', r"method='vss' is unknown, did you mean 'vs'"),
        ("tau = 1.0", "nu = 1.0", r"set='nu' is unknown"),
        ("tau = 1.0", "p = 0.9", r"set='p' is unknown"),
        ("tau = 1.0", 'tau = "much"', r"tau='much' must be a number"),
        ("tau = 1.0", "tau = -1.0", r"tau=-1.0 is out of range"),
        ("tau = 1.0", "sam = true", r"sam=True must be a number"),
        ('"paper"', '"hearsay"', r"source='hearsay' is unknown"),
        ('"paper"', '"unknown: tune"', r"'unknown: tune' has a grid for all that is set"),
        ('"paper"', '"paper"\ngrid = { tau = [1.0] }', r"has a grid for all that is set, other"),
        ('"paper"', '"unknown: tune"\ngrid = { tau = [-1.0] }', r"tau=-1.0 is out of range"),
        ('setting = "cifar10-exp-100"', 'protocol = "z"', r"protocol='z' is unknown"),
    ],
)
def test_a_rule_with_a_mistake(tmp_path: Path, old: str, new: str, message: str):
    assert old in RULE
    with pytest.raises(DataError, match=message):
        rules_from(written(tmp_path, "hyper.toml", RULE.replace(old, new, 1)))


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(DataError, match=r"there is no file .*table-1\.toml"):
        table_from(tmp_path / "table-1.toml")


def test_a_file_that_is_no_text(tmp_path: Path):
    (tmp_path / "table-9.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"table-9\.toml cannot be read"):
        table_from(tmp_path / "table-9.toml")
