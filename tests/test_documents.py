"""The documents are true: their code runs, their commands exist, their tables are current."""

import contextlib
import importlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from paper_rows import row

import classwise as cw
from classwise.cli import COMMANDS, main
from classwise.data import list_sources
from classwise.paper import results

ROOT = Path(__file__).parent.parent
PAGES = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))
DOCUMENTS = ["README.md", "CONTRIBUTING.md", *PAGES]
PUBLIC = ["theory", "data", "models", "train.config", "train.protocols", "train.schedules"]
PUBLIC += ["lab", "lab.tune", "paper", "report"]
PUBLIC += ["adapters.lightning", "adapters.transformers", "adapters.sklearn"]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    """Return the blocks of a language; those after ``<!-- not run: REASON -->`` are left out."""
    text = re.sub(r"<!-- not run: .+? -->\n+```.*?\n```", "", read(name), flags=re.DOTALL)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run(code: list[str], name: str) -> tuple[dict[str, Any], str]:
    """Run blocks one after the other; return their names and what they printed."""
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in code:
            exec(compile(block, name, "exec"), names)
    return names, printed.getvalue()


@pytest.fixture(scope="module")
def generator() -> Any:
    """Return what writes the generated parts."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module("generate")
    finally:
        sys.path.remove(str(ROOT / "docs"))


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if blocks(name, "python")])
def test_code_in_documents_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    run(blocks(name, "python"), name)


def test_the_readme_shows_what_it_promises():
    names, printed = run(blocks("README.md", "python"), "README.md")
    assert "balanced" in printed
    assert isinstance(names["criterion"], cw.Criterion)
    assert names["criterion"].recipe.name == "late adjustment"


def test_the_example_of_the_readme_is_short():
    lines = [line for line in blocks("README.md", "python")[0].splitlines() if line.strip()]
    assert len(lines) <= 16


def test_generated_parts_are_current(generator: Any, capsys: pytest.CaptureFixture[str]):
    assert generator.main(["--check"]) == 0, capsys.readouterr().err


def test_a_part_that_is_changed_by_hand_is_found(generator: Any):
    text = read("docs/methods.md")
    assert generator.written(text) == text
    assert generator.written(text.replace("| 0.9999 |", "| 0.999 |")) == text


def shell_lines(name: str) -> list[str]:
    return [
        line.partition(" #")[0].strip()
        for block in blocks(name, "bash")
        for line in block.splitlines()
        if line.startswith("classwise ")
    ]


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if shell_lines(name)])
def test_commands_in_documents_exist(name: str, generator: Any):
    for line in shell_lines(name):
        _, command, *words = line.split()
        assert command in COMMANDS, line
        flags = generator.commands.flags_of(generator.commands.FLAGS[command])
        known = {word for flag in flags for word in flag.name.split(", ")}
        unknown = {word for word in words if word.startswith("--")} - known
        assert not unknown, line


@pytest.mark.parametrize("command", COMMANDS)
def test_the_documents_know_every_flag_of_the_help(
    command: str, generator: Any, capsys: pytest.CaptureFixture[str]
):
    every = "--help-all" if command in ("train", "compare", "tune") else "--help"
    assert main([command, every]) == 0
    shown = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", capsys.readouterr().out))
    flags = list(generator.commands.flags_of(generator.commands.FLAGS[command]))
    written = {word for flag in flags for word in flag.name.split(", ") if word.startswith("--")}
    assert written == shown - {"--help", "--help-all"}
    assert all(flag.help for flag in flags)


def test_the_table_of_make_demo_is_its_own(generator: Any):
    found = json.loads(read("results/demo.json"))
    assert f"$(BIN)/{found['command']}\n" in read("Makefile")
    assert f"`{found['command']}`" in read("README.md")
    ce, ours = (next(r for r in found["methods"] if r["method"] == m) for m in ("ce", "cvs+adrw"))
    spread = max(ce["balanced"]["spread"], ours["balanced"]["spread"])
    assert ours["balanced"]["mean"] > ce["balanced"]["mean"] + spread


def _is_module(name: str) -> bool:
    return (ROOT / "src/classwise" / name.replace(".", "/")).with_suffix(".py").exists()


def test_every_public_name_is_in_the_reference():
    pages = "".join(read(name) for name in PAGES if Path(name).name.startswith("api"))
    shown = set(re.findall(r"^::: classwise\.([\w.]+)$", pages, re.MULTILINE))
    errors = set(importlib.import_module("classwise.errors").__all__)
    assert set(cw.__all__) - shown == errors
    assert "errors" in shown
    assert set(PUBLIC) <= shown
    for name in PUBLIC:
        package = importlib.import_module(f"classwise.{name}")
        # A function that is called like its module has to be asked for by its full name.
        hidden = [f"{name}.{n}.{n}" for n in package.__all__ if _is_module(f"{name}.{n}")]
        assert set(hidden) <= shown


def test_results_stand_beside_the_papers(generator: Any, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(generator.measured, "RESULTS", tmp_path)
    assert "Not trained yet" in generator.PARTS["results-cifar100"]()
    results.append(tmp_path / "table-3.csv", [row(), row(key="f" * 16, seed=1, best=39.9)])
    for part in ("results-cifar100", "results-paper"):
        ours = [line for line in generator.PARTS[part]().splitlines() if "CE |" in line]
        assert len(ours) == 1
        assert "| 38.3 ± 0.4 |" in ours[0]  # the paper's
        assert "| 39.4 ± 0.7 |" in ours[0]  # mean and spread of 38.9 and 39.9
    assert "Table 3" in generator.PARTS["results-paper"]()


def test_every_source_of_data_has_a_section():
    titles = "".join(re.findall(r"^### .*$", read("docs/data.md"), re.MULTILINE))
    for source in list_sources():
        assert f"`{source.scheme}" in titles, source.scheme


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str):
    folder = (ROOT / name).parent
    text = re.sub(r"```.*?```", "", read(name), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        assert target.startswith("https://") or (folder / target).exists(), target


def test_the_changelog_begins_with_this_version():
    versions = re.findall(r"^## (\S+)", read("CHANGELOG.md"), re.MULTILINE)
    assert versions[0].rstrip(",") == cw.__version__


def test_the_map_of_folders_is_true():
    mapped = re.findall(r"^  ([\w./]+) ", blocks("CONTRIBUTING.md", "text")[0], re.MULTILINE)
    package = ROOT / "src/classwise"
    assert all((package / name).exists() for name in mapped)
    folders = {p.name + "/" for p in package.iterdir() if (p / "__init__.py").exists()}
    assert folders <= set(mapped)


@pytest.mark.slow
def test_the_site_needs_no_network(tmp_path: Path):
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= len(PAGES)
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(?:https?:)?//', html)
        assert "arithmatex" not in html
    styles = "".join(p.read_text(encoding="utf-8") for p in tmp_path.rglob("*.css"))
    assert not re.search(r"url\([\"']?(?:https?:)?//|@import", styles)
    reference = "".join(p.read_text(encoding="utf-8") for p in tmp_path.glob("api*.html"))
    for name in ("", *PUBLIC):
        home = f"classwise.{name}".rstrip(".")
        for public in set(importlib.import_module(home).__all__) - {"terms", "theory"}:
            places = (f"{home}.{public}", f"{home}.{public}.{public}", f"classwise.errors.{public}")
            assert any(f'id="{place}"' in reference for place in places), f"{home}.{public}"
    assert "<math" in (tmp_path / "idea.html").read_text(encoding="utf-8")
