"""A quick subset of the benchmarks: what is claimed holds with a factor 2 to spare."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SLACK, ATTEMPTS = 2, 3


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def part(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("name", ["statistics", "criterion", "growth", "starting"])
def test_what_is_claimed_holds_at_small_sizes(name: str):
    targets = [target for target in part("targets").TARGETS if target.part == name]
    assert targets
    missed: dict[str, float] = {}
    for _ in range(ATTEMPTS):  # a busy machine makes things slower, never faster
        found = part(name).measure(quick=True)
        values = {target: target.value(found) for target in targets}
        missed = {t.what: value for t, value in values.items() if not t.met(value, SLACK)}
        if not missed:
            return
    pytest.fail(f"missed by more than a factor {SLACK}: {missed}")


def test_the_baseline_estimates_what_the_library_does():
    found = part("statistics").per_estimation(30, 3_000, 0.0)
    assert found["largest_difference"] < 1e-5


def test_a_target_is_missed_beyond_its_limit_and_slack():
    Target = part("targets").Target
    most = Target("x", "", "", 2.0, float)
    assert [most.met(value, slack) for value, slack in ((2, 1), (2.1, 1), (4, 2), (4.1, 2))] == [
        True, False, True, False,
    ]  # fmt: skip
    least = Target("x", "", "", 50, float, at_least=True)
    assert [least.met(value, slack) for value, slack in ((50, 1), (49, 1), (25, 2), (24, 2))] == [
        True, False, True, False,
    ]  # fmt: skip


def test_ratios_are_of_the_same_turn(monkeypatch: pytest.MonkeyPatch):
    timing = part("timing")
    # A machine that slows down tenfold in the middle: times differ, ratios do not.
    clock = {"now": 0.0, "turn": 0}

    def call(seconds: float) -> None:
        clock["turn"] += 1
        clock["now"] += seconds * (10 if clock["turn"] > 40 else 1)

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock["now"])
    found = timing.interleaved({"a": lambda: call(1.0), "b": lambda: call(3.0)}, budget=900.0)
    assert found["ratio"]["b"] == pytest.approx([3.0, 3.0, 3.0])
    assert found["turns"] >= 5


def test_the_results_that_the_documents_show_are_whole():
    results = json.loads((ROOT / "benchmarks/results.json").read_text())
    main = part("__main__")
    assert set(main.PARTS) <= set(results)
    assert {row["what"] for row in results["targets"]} == {t.what for t in part("targets").TARGETS}
    for row in results["targets"]:
        within = row["value"] >= row["limit"] if row["at_least"] else row["value"] <= row["limit"]
        assert row["met"] == within
    assert {"processor", "threads", "torch", "date"} <= set(results["machine"])


def test_plots_are_the_same_for_the_same_numbers(tmp_path: Path):
    rows = [{"classes": c, "batch": 4, "cross_entropy": c / 9, "criterion": c / 5,
             "statistics": c / 7} for c in (10, 100)]  # fmt: skip
    growth = {
        "classes": rows,
        "planning": [{"runs": n, "seconds": n / 10} for n in (1, 9)],
        "listing": [{"phases": n, "seconds": n / 10} for n in (1, 9)],
    }
    plots = part("plots")
    first = plots.draw({"growth": growth}, tmp_path / "a")
    again = plots.draw({"growth": growth}, tmp_path / "b")
    assert len(first) == 4
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]
    assert all(b"<svg" in p.read_bytes() for p in first)


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: Any):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "statistic"])
    with pytest.raises(SystemExit) as stop:
        part("__main__").main()
    assert stop.value.code == 2
    assert "there is no part 'statistic'" in capsys.readouterr().err
