"""The report: what it says, what it shows, and what it does with odd runs."""

import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from run_folders import exponential, groups_of, measure, simulate, summarise, write_run
from torch import Tensor

import classwise as cw
from classwise.report import verdict, write_report
from classwise.report.comparison import compare
from classwise.report.confusion import flow, worst_classes
from classwise.report.names import clean, short
from classwise.report.numbers import Spread, difference, percent, points
from classwise.report.ranked import _binned, _smooth
from classwise.report.tables import bound_shares, top_of_bound
from classwise.train.record import RunRecord, read_run

COUNTS = exponential(10, 500, 100)


def record(
    method: str,
    seed: int = 0,
    *,
    split: str | None = "test",
    finished: bool = True,
    counts: Sequence[int] = COUNTS,
    settings: Mapping[str, Any] = MappingProxyType({}),
    **numbers: float,
) -> RunRecord:
    """Return a run that measured ``numbers``."""
    result = {"split": split, "epoch": 9, "last": numbers} if finished else {}
    rows = [{"epoch": e, **({split: numbers} if split else {})} for e in range(4)]
    return RunRecord(
        folder=Path(f"{method}-{seed}"),
        config={"method": {"method": method}, "optim": {"epochs": 10}, "seed": seed}
        | dict(settings),
        provenance={},
        class_names=tuple(f"c{i}" for i in range(len(counts))),
        class_counts=torch.tensor(counts),
        recipe=method,
        phase_starts=(0,),
        epochs=rows,
        tensors={},
        result=result,
        finished=finished,
    )


def seeds(method: str, **values: list[float]) -> list[RunRecord]:
    rows: list[Any] = [
        dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)
    ]
    return [record(method, seed, **row) for seed, row in enumerate(rows)]


# The verdict

CE = {"balanced": [0.40, 0.42], "many": [0.70, 0.72], "few": [0.10, 0.10]}
BETTER = {"balanced": [0.50, 0.50], "many": [0.61, 0.61], "few": [0.30, 0.32]}


def test_the_verdict_says_what_was_gained_and_what_it_cost():
    said = verdict([*seeds("ce", **CE), *seeds("cvs+adrw", **BETTER)])
    assert said == (
        "Against ce, cvs+adrw gains 21.0 ± 1.4 points on the few-shot classes and costs "
        "10.0 ± 1.4 points on the many-shot ones; balanced accuracy rises from 41.0 to 50.0 % "
        "(2 seeds each)."
    )


def test_the_verdict_does_not_call_a_difference_within_the_spread_a_gain():
    noisy = {"balanced": [0.38, 0.46], "many": [0.71, 0.72], "few": [0.05, 0.17]}
    said = verdict([*seeds("ce", **CE), *seeds("la", **noisy)])
    assert said == (
        "Against ce, la shows no change beyond the spread over seeds on the few-shot classes "
        "(+1.0 ± 8.5 points) and shows no change beyond the spread over seeds on the many-shot "
        "ones (+0.5 ± 1.6 points); balanced accuracy goes from 41.0 to 42.0 %, which is within "
        "the spread (2 seeds each)."
    )


def test_the_verdict_on_one_seed_says_that_the_spread_is_unknown():
    said = verdict(
        [
            record("ce", balanced=0.4, many=0.7, few=0.1),
            record("la", balanced=0.38, many=0.7, few=0.05),
        ]
    )
    assert said == (
        "Against ce, la loses 5.0 points on the few-shot classes and changes nothing on the "
        "many-shot ones; balanced accuracy falls from 40.0 to 38.0 % (one seed, so the spread is "
        "unknown)."
    )


def test_the_verdict_calls_nothing_a_change_that_is_none():
    same = {"balanced": [0.5, 0.52], "many": [1.0, 1.0], "few": [0.3, 0.3]}
    ce = {"balanced": [0.4, 0.42], "many": [1.0, 1.0], "few": [0.1, 0.1]}
    said = verdict([*seeds("ce", **ce), *seeds("la", **same)])
    assert "gains 20.0 ± 0.0 points" in said
    assert "and changes nothing on the many-shot ones;" in said


def test_the_verdict_is_on_the_best_method_and_names_those_that_are_no_worse():
    close = {"balanced": [0.49, 0.50], "many": [0.6, 0.6], "few": [0.3, 0.3]}
    worse = {"balanced": [0.43, 0.43], "many": [0.6, 0.6], "few": [0.2, 0.2]}
    runs = [*seeds("ce", **CE), *seeds("la", **close), *seeds("vs", **worse)]
    said = verdict([*runs, *seeds("cvs", **BETTER)])
    assert said.startswith("Against ce, cvs gains 21.0")
    assert said.endswith("; la is within the spread over seeds of it.")


def test_the_verdict_without_cross_entropy_does_not_pretend_to_know_a_gain():
    assert verdict([record("la", balanced=0.5, many=0.6, few=0.3)]) == (
        "la reaches 50.0 % balanced accuracy, 60.0 % on the many-shot and 30.0 % on the few-shot "
        "classes (one seed, so the spread is unknown); without a ce run beside it, what it gained "
        "or cost is not known."
    )
    assert "not known" not in verdict(seeds("ce", **CE))
    assert verdict(seeds("ce", **CE)).startswith("ce reaches 41.0 ± 1.4 % balanced accuracy, 71.0")


@pytest.mark.parametrize(
    ("runs", "wanted"),
    [
        ([record("la", split=None)], "No held-out split was measured, so nothing can be said"),
        ([record("la", balanced=math.nan)], "No balanced accuracy of la is finite."),
        (
            [record("ce", balanced=math.nan), record("la", balanced=0.5)],
            "balanced accuracy (one seed, so the spread is unknown), and ce has no finite result",
        ),
        (
            [record("ce", balanced=0.4), record("la", balanced=0.5)],
            "Against ce, balanced accuracy of la rises from 40.0 to 50.0 % (one seed",
        ),
        (
            [
                record("ce", balanced=0.4, many=0.5, medium=0.3),
                record("la", balanced=0.4, many=0.4, medium=0.4),
            ],
            "gains 10.0 points on the medium-shot classes and costs 10.0 points on the many-shot",
        ),
        (
            [record("ce", balanced=0.4), record("la", balanced=0.5, finished=False)],
            "So far (1 of 2 runs unfinished), against ce, balanced accuracy of la rises",
        ),
        ([record("la", balanced=0.5, finished=False)], "So far (an unfinished run), la reaches"),
        ([record("la", split="val", balanced=0.5)], "accuracy on the validation split (one seed"),
    ],
)
def test_the_verdict_is_honest_about_what_is_missing(runs: list[RunRecord], wanted: str):
    assert wanted in verdict(runs)


def test_spreads_are_sample_deviations_of_what_is_finite():
    a, b = Spread((0.1, 0.2, 0.4), 4), Spread((0.5, 0.9), 2)
    assert a.mean == pytest.approx(0.7 / 3)
    assert a.deviation == pytest.approx(statistics.stdev([0.1, 0.2, 0.4]))
    assert a.missing == 1
    d = difference(a, b)
    assert d.mean == pytest.approx(0.7 / 3 - 0.7)
    assert d.spread == pytest.approx(math.sqrt(a.deviation**2 + b.deviation**2))
    assert not d.within
    assert not difference(a, Spread((0.2,), 1)).within
    assert difference(a, Spread((0.3, 0.31), 2)).within
    assert not difference(a, Spread((), 2)).exists


def test_numbers_are_written_with_a_true_minus_and_nothing_as_nothing():
    assert points(-0.031) == "\N{MINUS SIGN}3.1"
    assert percent(math.nan) == points(math.nan) == "n/a"
    assert percent(0.0) == "0.0"


# Runs side by side


def test_seeds_are_grouped_and_namesakes_told_apart():
    def run(gamma: float, seed: int) -> RunRecord:
        settings = {"method": {"method": "vs", "gamma": gamma, "tau": None}}
        return record("vs", seed, balanced=0.5, settings=settings)

    c = compare([run(0.05, 0), run(0.1, 0), run(0.05, 1), record("ce", balanced=0.1)])
    assert [m.label for m in c.methods] == ["vs (gamma=0.05)", "vs (gamma=0.1)", "ce"]
    assert [len(m.runs) for m in c.methods] == [2, 1, 1]
    assert c.baseline is c.methods[2]


def test_the_baseline_is_the_one_trained_like_the_headline():
    def run(method: str, epochs: int) -> RunRecord:
        return record(method, balanced=0.5, settings={"optim": {"epochs": epochs}})

    c = compare([run("ce", 100), run("ce", 200), run("la", 200)])
    assert c.baseline is c.methods[1]
    assert c.confounders() == ["optim.epochs"]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"counts": COUNTS[:9]}, "ce-0 has 10 classes and la-0 9"),
        ({"counts": [*COUNTS[:9], 6]}, r"class 9 has 5 training samples .* 6 in la-0 \(1 classes"),
    ],
)
def test_runs_on_other_data_are_refused(other: dict[str, Any], message: str):
    with pytest.raises(cw.ArgumentError, match=message):
        compare([record("ce"), record("la", **other)])


def test_the_same_seed_twice_is_refused():
    with pytest.raises(cw.ArgumentError, match=r"same method with the same seed 3.* Leave one out"):
        compare([record("ce", 3), record("la", 3), record("ce", 3)])


def test_the_test_split_is_reported_where_all_runs_have_it():
    both = record("ce", balanced=0.1)
    only_val = record("la", split="val", balanced=0.2)
    both.epochs[-1]["val"] = {"balanced": 0.3}
    assert compare([both]).split == "test"
    assert compare([both, only_val]).split == "val"
    assert compare([both, only_val]).methods[0].number("balanced", "val").mean == 0.3


@pytest.mark.parametrize(
    ("runs", "out", "error", "message"),
    [
        ([], "r.html", cw.ArgumentError, "runs is empty"),
        ("run", "r.html", cw.ArgumentError, r"must be a sequence of runs.*write \['run'\]"),
        ([3], "r.html", cw.ArgumentError, "runs holds 3; it must hold run folders"),
        (["nowhere"], "r.html", cw.DataError, "no run folder nowhere"),
        ([record("ce")], ".", cw.ArgumentError, r"out='\.' is a folder; name the file"),
        ([record("ce")], "/dev/null/r.html", cw.StateError, "r.html could not be written"),
    ],
)
def test_bad_calls_are_refused(runs: Any, out: str, error: type, message: str):
    with pytest.raises(error, match=message):
        write_report(runs, out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensors": {"test.count": torch.zeros(9, 20)}}, r"test.count has shape \(9, 20\)"),
        ({"config": {"seed": 0}}, "no method or no seed"),
        ({"class_counts": torch.tensor([1, 2])}, "names 10 classes but counts 2"),
        ({"epochs": [[1]]}, "metrics.jsonl is not an object"),
        ({"epochs": [{"kappa_plus": [1.0] * 9}]}, "kappa_plus of epoch 0 must list one slope"),
    ],
)
def test_a_damaged_run_is_named(tmp_path: Path, change: dict[str, Any], message: str):
    whole = record("ce")
    damaged = RunRecord(**{**vars(whole), **change})
    with pytest.raises(cw.DataError, match=message):
        write_report([damaged], tmp_path / "r.html")


# The page


class Page(HTMLParser):
    """A page, parsed; fails where elements are not closed in the order in which they opened."""

    VOID = ("meta", "link", "br", "hr", "img", "use", "path", "rect")

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.source = file.read_text(encoding="utf-8")
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(self.source)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def section(self, name: str) -> str:
        """Return the source of a section."""
        return self.source.partition(f'<section id="{name}">')[2].partition("</section>")[0]

    def rows(self, section: str, table: int = 0) -> list[list[str]]:
        """Return the cells of a table of a section, as text."""
        body = re.findall(r"<table.*?</table>", self.section(section), re.DOTALL)[table]
        rows = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
        cells = [re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL) for row in rows]
        return [[_plain(cell) for cell in row] for row in cells]


def _plain(markup: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", markup))).strip()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("runs")
    return [
        write_run(base / f"{method}-{seed}", COUNTS, method=method, seed=seed)
        for method in ("ce", "cvs+adrw")
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def page(folders: list[Path]) -> Page:
    return Page(write_report(folders, folders[0].parent / "new" / "report.html"))


def oracle(method: str, seed: int) -> dict[str, float]:
    tested = torch.full((10,), 50)
    return summarise(measure(simulate(COUNTS, method, seed, tested), 10, "test"), COUNTS, "test")


def test_the_page_needs_nothing_from_elsewhere(page: Page):
    tags = {tag for tag, _ in page.elements}
    assert not tags & {"script", "img", "iframe", "object", "embed", "base", "image"}
    links = [attrs["href"] for tag, attrs in page.elements if tag in ("link", "a", "use")]
    assert all(link and (link.startswith("#") or link == "data:,") for link in links)
    assert not re.search(r"https?:|//[a-z]|@import|url\((?!#)", page.source)
    policy = [a for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert "default-src 'none'" in str(policy[0]["content"])
    assert len(page.source) < 1_000_000


def test_what_figures_refer_to_is_there_once(page: Page):
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    used = re.findall(r"url\(#([^)]+)\)|href=\"#([^\"]+)\"", page.source)
    assert {a or b for a, b in used} <= set(ids)
    assert not re.search(r"#fe[0-9a-f]{2}fd", page.source)  # all stand-ins became variables


def test_every_colour_of_the_figures_is_defined_for_light_and_dark(page: Page):
    used = set(re.findall(r"var\(--([a-z0-9]+)\)", page.source))
    roots = re.findall(r":root \{(.*?)\}", page.source, re.DOTALL)
    assert len(roots) == 3
    for root in roots[:2]:
        assert used - {"sans", "serif", "share"} <= set(re.findall(r"--([a-z0-9]+):", root))


def test_figures_and_tables_can_be_heard(page: Page):
    figures = [attrs for tag, attrs in page.elements if tag == "svg"]
    assert len(figures) > 10
    assert all(f["role"] == "img" and f["aria-label"] for f in figures)
    heads = [attrs for tag, attrs in page.elements if tag == "th"]
    assert all(h.get("scope") in ("row", "col") for h in heads)
    assert page.source.startswith('<!DOCTYPE html>\n<html lang="en">')


def test_the_table_by_shots_holds_mean_and_deviation_of_the_runs(page: Page):
    rows = {row[0].split()[0]: row for row in page.rows("methods")[1:]}
    assert rows.keys() == {"ce", "cvs+adrw"}
    for method, row in rows.items():
        runs = [oracle(method, seed) for seed in (0, 1)]
        columns = ("balanced", "many", "medium", "few", "overall", "ece", "ece_few")
        for cell, name in zip(row[1:], columns, strict=False):
            values = [100 * run[name] for run in runs]
            mean, deviation = statistics.fmean(values), statistics.stdev(values)
            assert cell == f"{mean:.1f} ± {deviation:.1f}", (method, name)


def test_the_best_epoch_is_said_to_be_chosen_on_test(page: Page):
    head = page.rows("methods")[0][-1]
    assert head == "best epoch balanced, chosen on test, optimistic"
    assert page.text.count("18, chosen on test") == 4  # in the table of runs


def test_reliability_diagrams_print_the_mean_error_of_the_seeds(page: Page):
    printed = re.findall(r"<b>(\w+)</b> <span>ECE ([\d.]+)", page.section("reliability"))
    wanted = [
        (name, f"{100 * statistics.fmean(oracle(method, seed)[key] for seed in (0, 1)):.1f}")
        for method in ("ce", "cvs+adrw")
        for name, key in (
            ("all", "ece"),
            ("many", "ece_many"),
            ("medium", "ece_medium"),
            ("few", "ece_few"),
        )
    ]
    assert printed == wanted


def test_reliability_diagrams_hold_the_samples_of_all_seeds(page: Page):
    runs = [simulate(COUNTS, "cvs+adrw", seed, torch.full((10,), 50)) for seed in (0, 1)]
    right = torch.cat([r["label"] == r["predicted"] for r in runs]).double()
    confidence = torch.cat([r["confidence"] for r in runs])
    few = groups_of(COUNTS)["few"][torch.cat([r["label"] for r in runs])]
    bins = (confidence * 20).ceil().clamp(min=1)
    for group, mask in (("all", torch.ones_like(few)), ("few", few)):
        gaps = [
            float((confidence - right)[mask & (bins == b)].mean())
            for b in range(1, 21)
            if bool((mask & (bins == b)).any())
        ]
        over = sum(gap > 0 for gap in gaps)
        words = rf"cvs\+adrw, {group}: ECE [\d.]+ percent, over-confident in {over} of {len(gaps)} "
        assert re.search(words, page.source)


def test_gains_are_differences_of_means(page: Page):
    label = re.search(r'aria-label="(Accuracy in points against ce[^"]*)"', page.source)
    assert label is not None
    for name in ("many", "medium", "few", "balanced"):
        ce, mine = (
            statistics.fmean(oracle(m, s)[name] for s in (0, 1)) for m in ("ce", "cvs+adrw")
        )
        assert f"{name} {points(mine - ce)}" in label[1]


def test_every_class_is_listed_the_most_frequent_first(page: Page):
    rows = page.rows("classes", 1)[1:]
    assert [row[1] for row in rows] == [f"class-{i}" for i in range(10)]
    assert [int(row[2]) for row in rows] == COUNTS
    samples = [simulate(COUNTS, "cvs+adrw", seed, torch.full((10,), 50)) for seed in (0, 1)]
    for i, row in enumerate(rows):
        right = [(s["predicted"] == s["label"])[s["label"] == i].double().mean() for s in samples]
        assert row[-1] == f"{50 * float(right[0] + right[1]):.1f}"


def test_learning_curves_mark_where_the_phase_begins(page: Page):
    assert page.section("curves").count(">T0</text>") == 3
    assert "training loss over epochs: ce ends at" in page.section("curves")


def test_slopes_are_of_the_method_that_measured_them(page: Page):
    labels = re.findall(r'aria-label="([^"]*)"', page.section("slopes"))
    assert len(labels) == 2
    assert all("cvs+adrw by shots" in label for label in labels)
    rows = [read_run(f).epochs[-1] for f in page_folders(page)]
    few = groups_of(COUNTS)["few"].numpy()
    values = np.array([row["kappa_plus"] for row in rows])[:, few]
    assert f"few {np.median(values):.2f}" in labels[1]


def test_slopes_say_whose_they_are_where_there_are_several_methods(tmp_path: Path):
    runs = [write_run(tmp_path / m, COUNTS, method=m) for m in ("ce", "cvs+adrw")]
    assert "<h3>cvs+adrw</h3>" in Page(write_report(runs, tmp_path / "p.html")).section("slopes")
    alone = Page(write_report(runs[1:], tmp_path / "alone.html"))
    assert "<h3>" not in alone.section("slopes")


def page_folders(page: Page) -> list[Path]:
    found = re.findall(r"<bdi>([^<]*/cvs\+adrw-\d)</bdi>", page.source)
    return [Path(f) for f in found]


def test_configuration_and_provenance_are_there(page: Page):
    for words in ("optim.schedule", "released", "data_checksum", "00c0ffee", "libraries.numpy"):
        assert words in page.text
    assert "cvs+adrw: mla(gamma=0.01) | from defer: cla(tau=0.9)" in page.text


def test_the_same_runs_make_the_same_page(folders: list[Path], tmp_path: Path, page: Page):
    assert Page(write_report(folders, tmp_path / "again.html")).source == page.source


def test_one_run_makes_a_page_of_its_own(folders: list[Path], tmp_path: Path):
    alone = Page(write_report([read_run(folders[2])], str(tmp_path / "one.html"), title="Mine"))
    assert "cvs+adrw reaches" in alone.text
    assert "Points gained" not in alone.text
    assert "<title>Mine · classwise</title>" in alone.source


# Odd runs

EVIL = [
    "<script>alert(1)</script>",
    "\u00dcn\u00efc\u00f6d\u00e9 \u82b1 \U0001f98a",
    "\u0634\u062c\u0631\u0629",
    "long-" * 60,
    "",
    "tab\tnew\nline\x00\x1b",
    "\u202egnp.exe",
    "$x^2$ \\frac{",
    "half \ud83d",
    "\"quoted\" & 'single' {{ 7 * 7 }}",
]


def test_names_are_shown_as_they_are_and_never_run(tmp_path: Path):
    run = write_run(
        tmp_path / "a<b>&", COUNTS, names=EVIL, settings={"data.source": "folder:<i>x</i>"}
    )
    page = Page(write_report([run], tmp_path / "evil.html", title="<u>T</u> \udc80"))
    assert not {tag for tag, _ in page.elements} & {"script", "i>", "u"}
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.source
    shown = page.rows("classes", 1)
    assert [row[1] for row in shown[1:]][:3] == EVIL[:3]
    assert shown[4][1] == "long-" * 60  # whole in the table of all classes
    assert page.rows("classes")[4][0] == short("long-" * 60)
    assert shown[5][1] == "class 4"
    assert shown[6][1] == "tab new line\ufffd\ufffd"
    assert shown[8][1] == "$x^2$ \\frac{"
    assert shown[9][1] == "half \ufffd"
    assert shown[10][1] == EVIL[9]
    assert page.source.count("<bdi") == page.source.count("</bdi>") > 30
    assert "\x00" not in page.source


def test_cleaning_keeps_what_is_fit():
    assert clean("\u0634\u062c\u0631\u0629 \U0001f98a") == "\u0634\u062c\u0631\u0629 \U0001f98a"
    assert short("x" * 48) == "x" * 48
    assert len(short("x" * 49)) == 48


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "no held-out split": ({"split": None, "bound": False}, "No accuracies by class were kept"),
    "no slopes": ({"kappa": False}, "No method here leans on measured slopes"),
    "no bound": ({"bound": False}, "No bound was kept"),
    "unfinished": ({"done": 7}, "cvs+adrw, seed 0: unfinished, 7 of 20 epochs"),
    "not begun": ({"done": 0}, "No epoch is finished yet"),
    "one epoch": ({"epochs": 1}, "cvs+adrw reaches"),
    "no best epoch": ({"best_on": None}, "cvs+adrw reaches"),
    "validation": ({"split": "val", "best_on": "val"}, "all numbers are of the validation split"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_not_there_is_said(case: str, tmp_path: Path):
    options, words = ODD[case]
    run = write_run(tmp_path / "run", COUNTS, method="cvs+adrw", **options)
    page = Page(write_report([run], tmp_path / "page.html"))
    assert words in page.text
    assert ("best epoch balanced" in page.text) == (
        case not in ("no held-out split", "unfinished", "not begun", "no best epoch")
    )


def test_epochs_are_whole_numbers_even_if_there_is_one(tmp_path: Path):
    run = write_run(tmp_path / "run", COUNTS, method="ce", epochs=1)
    page = Page(write_report([run], tmp_path / "page.html"))
    labels = re.findall(r">([\d.]+)</text>", page.section("curves"))
    assert labels.count("1") == 3
    assert not {"0.975", "1.000", "1.025"} & set(labels)


def test_numbers_that_are_not_finite_are_not_numbers(tmp_path: Path):
    nan = {"balanced": math.nan, "few": math.nan, "ece": math.nan}
    runs = [
        write_run(tmp_path / "a", COUNTS, numbers=nan),
        write_run(tmp_path / "b", COUNTS, seed=1),
        write_run(tmp_path / "c", COUNTS, method="la", numbers=nan),
    ]
    page = Page(write_report(runs, tmp_path / "page.html"))
    assert "Without a finite balanced accuracy: ce (1 of 2), la (1 of 1)." in page.text
    ce, la = page.rows("methods")[1:]
    assert ce[1].endswith("1 of 2 n/a")
    assert la[1] == la[4] == la[6] == "n/a"
    assert not re.search(r"\bnan\b", page.text, re.IGNORECASE)


def test_a_group_without_samples_is_absent_and_not_zero(tmp_path: Path):
    tested = torch.tensor([30] * 7 + [0] * 3)
    run = write_run(tmp_path / "run", COUNTS, tested=tested)
    page = Page(write_report([run], tmp_path / "page.html"))
    row = page.rows("methods")[1]
    assert row[4] == row[7] == "n/a"
    assert [cells[-1] for cells in page.rows("classes", 1)[-3:]] == ["n/a"] * 3
    assert re.search(r"<b>few</b> <span>n/a, no samples", page.source)
    assert "50.0 % on the few-shot" not in page.text


def test_two_classes_make_a_page(tmp_path: Path):
    runs = [write_run(tmp_path / m, [900, 9], method=m) for m in ("ce", "cvs+adrw")]
    page = Page(write_report(runs, tmp_path / "page.html"))
    assert page.rows("methods")[1][3] == "n/a"  # there is no medium class
    assert "class-1" in page.text


def test_a_hundred_classes_are_drawn_over_their_ranks(tmp_path: Path):
    counts = exponential(100, 500, 100)
    runs = [write_run(tmp_path / m, counts, method=m, tested=10) for m in ("ce", "la")]
    page = Page(write_report(runs, tmp_path / "page.html"))
    sizes = re.findall(r'<svg class="fig (wide|narrow)"', page.section("classes"))
    assert sizes == ["wide", "narrow"]
    assert len(page.rows("classes")) == 101


def test_more_methods_than_colours_are_in_the_table_only(tmp_path: Path):
    runs = [
        write_run(tmp_path / str(g), COUNTS, method="vs", epochs=2, settings={"method.gamma": g})
        for g in range(8)
    ]
    page = Page(write_report(runs, tmp_path / "page.html"))
    assert len(page.rows("methods")) == 9
    assert "3 more in the table" in page.text
    assert "one of 8" in page.text


# Pure pieces, against loops


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("small") / "run"
    return read_run(write_run(folder, COUNTS, method="la", epochs=2))


def test_the_flow_between_groups_is_that_of_the_samples(small: RunRecord):
    samples = simulate(COUNTS, "la", 0, torch.full((10,), 50))
    group = ["many" if n > 100 else "few" if n < 20 else "medium" for n in COUNTS]
    found = flow(compare([small]), compare([small]).headline)
    assert found is not None
    pairs = list(zip(samples["label"].tolist(), samples["predicted"].tolist(), strict=True))
    for a, row in found.items():
        mine = [p for p in pairs if group[p[0]] == a]
        for b, share in row.items():
            assert share == pytest.approx(sum(group[p[1]] == b for p in mine) / len(mine))


def test_the_worst_classes_come_with_what_they_are_taken_for(small: RunRecord):
    samples = simulate(COUNTS, "la", 0, torch.full((10,), 50))
    c = compare([small])
    worst = worst_classes(c, c.headline, number=4, top=2)
    accuracy = [
        float((samples["predicted"] == i)[samples["label"] == i].double().mean()) for i in range(10)
    ]
    assert [w.index for w in worst] == sorted(range(10), key=lambda i: accuracy[i])[:4]
    for w in worst:
        predicted = samples["predicted"][samples["label"] == w.index].tolist()
        others = sorted((predicted.count(i) for i in range(10) if i != w.index), reverse=True)
        assert [e.share for e in w.eaten_by] == [n / 50 for n in others[:2]]
        assert all(predicted.count(e.index) / 50 == e.share for e in w.eaten_by)


def test_classes_that_are_always_right_are_not_among_the_worst():
    whole = record("la", balanced=0.5)
    accuracy = torch.tensor([1.0, 0.5, math.nan] + [1.0] * 6 + [0.0], dtype=torch.float64)
    c = compare([RunRecord(**{**vars(whole), "tensors": {"test.class_accuracy": accuracy}})])
    assert [w.index for w in worst_classes(c, c.headline)] == [9, 1]


def test_shares_of_the_bound_are_shares(small: RunRecord):
    c = compare([small])
    terms = small.tensors["bound.per_class"]
    shares = bound_shares(c, c.headline)
    assert shares is not None
    assert sum(map(float, shares.values())) == pytest.approx(100, abs=0.2)
    top = top_of_bound(c.headline, number=3)
    assert [t.index for t in top] == terms.argsort(descending=True)[:3].tolist()
    assert top[0].share == pytest.approx(float(terms.max() / terms.sum()))
    assert top[0].lipschitz == pytest.approx(float(small.tensors["bound.lipschitz"][top[0].index]))


def _mean(values: list[float]) -> float:
    finite = [v for v in values if not math.isnan(v)]
    return sum(finite) / len(finite) if finite else math.nan


def test_running_and_binned_means_equal_loops():
    values = np.random.default_rng(0).random(97)
    values[[3, 4, 5, 60]] = np.nan
    half = 97 // 20
    running = [_mean(values[max(0, i - half) : i + half + 1].tolist()) for i in range(97)]
    np.testing.assert_allclose(_smooth(values), running)
    rank, mean, low, high = _binned(values, 10)
    edges = [round(i * 9.7) for i in range(11)]
    for i in range(10):
        part = values[edges[i] : edges[i + 1]]
        assert mean[i] == pytest.approx(_mean(part.tolist()))
        assert rank[i] == (edges[i] + edges[i + 1] - 1) / 2
        assert low[i] <= np.nanmedian(part) <= high[i]
    assert np.isnan(_binned(np.full(50, np.nan), 5)[1]).all()


@pytest.mark.slow
def test_inaturalist_fits_a_page_in_time(tmp_path: Path):
    classes, samples = 8142, 437_513
    tested: Tensor = torch.full((classes,), samples // classes)
    tested[: samples - int(tested.sum())] += 1
    assert int(tested.sum()) == samples
    counts = exponential(classes, 1000, 500)
    runs = [
        write_run(tmp_path / method, counts, method=method, tested=tested, epochs=90)
        for method in ("ce", "cvs+adrw")
    ]
    began = time.perf_counter()
    page = Page(write_report(runs, tmp_path / "page.html"))
    assert time.perf_counter() - began < 20
    assert len(page.source.encode()) < 5_000_000
    assert "8,142" in page.text
