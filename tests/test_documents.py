"""The documents are true: their code runs, their tables are current, their version is ours."""

import contextlib
import importlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import classwise as cw

ROOT = Path(__file__).parent.parent


def python_blocks(name: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_examples_of_the_readme_run():
    names: dict[str, object] = {}
    blocks = python_blocks("README.md")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
    assert len(blocks) == 2
    assert "balanced" in printed.getvalue()
    assert isinstance(names["criterion"], cw.Criterion)
    assert names["criterion"].recipe.name == "late adjustment"


def test_the_example_of_the_readme_is_short():
    lines = [line for line in python_blocks("README.md")[0].splitlines() if line.strip()]
    assert len(lines) <= 16


def test_generated_tables_are_current():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/generate.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_changelog_knows_the_version():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(cw.__version__)}\b", changes, re.MULTILINE)


def test_the_quick_start_shows_the_gain_on_the_tail(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    ce, _, cvs = importlib.import_module("quickstart").compare()
    assert cvs["balanced"][0] > ce["balanced"][0] + 2
    assert cvs["few"][0] > ce["few"][0] + 5
    assert cvs["many"][0] > ce["many"][0] - 6
