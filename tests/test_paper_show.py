"""The paper's numbers beside ours."""

import io
import json

import pytest
from paper_rows import row

from classwise.errors import ArgumentError
from classwise.paper import load, show
from classwise.paper.schema import Reported
from classwise.paper.show import Summary, as_dict, as_markdown, as_rich

WHERE = "part=a,dataset=cifar100,imbalance=exp,ratio=100"
TABLE = load("table-3")
SEEDS = [
    row(key="a", seed=0, best=38.0, last=37.0),
    row(key="b", seed=1, best=39.0, last=38.5),
    row(key="c", seed=2, best=40.0, last=38.0),
]

OTHER_RATE = row().hyper.replace("lr=0.1", "lr=0.2")


def test_mean_spread_and_difference():
    line = show(TABLE, SEEDS, WHERE)[0]
    assert line.paper == Reported(38.3, 0.4)
    assert line.best == Summary(39.0, 1.0, 3)
    assert line.last is not None
    assert line.last.mean == pytest.approx(37.8333, abs=1e-4)
    assert line.difference == pytest.approx(0.7)
    assert (line.seeds, line.made_on) == ((0, 1, 2), "cpu (x86_64), bf16-mixed")


def test_a_cell_without_results_has_a_line():
    lines = show(TABLE, SEEDS, WHERE)
    assert [line.cell.title for line in lines[:3]] == ["CE", "CE+DRW", "LDAM"]
    assert (lines[1].best, lines[1].last, lines[1].difference, lines[1].seeds) == (None,) * 3 + (
        (),
    )


@pytest.mark.parametrize(
    "change",
    [
        {"hyper": OTHER_RATE},
        {"epochs": 300},
        {"device": "NVIDIA H200"},
        {"precision": "32-true"},
        {"selected_on": "val"},
    ],
)
def test_a_mean_is_over_seeds_and_nothing_else(change: dict[str, object]):
    other = row(key="other", seed=7, best=50.0, **change)
    first, second = (line for line in show(TABLE, [*SEEDS, other], WHERE) if line.best)
    assert {first.seeds, second.seeds} == {(0, 1, 2), (7,)}
    assert {first.best, second.best} == {Summary(39.0, 1.0, 3), Summary(50.0, None, 1)}


def test_of_two_runs_with_one_seed_the_later_counts():
    again = row(key="later", seed=1, best=45.0, revision="fff", date="2026-02-02T03:04:05+00:00")
    line = show(TABLE, [again, *SEEDS], WHERE)[0]
    assert line.best is not None
    assert (line.best.n, line.best.mean) == (3, 41.0)
    assert line.revisions == ("0123456789ab", "fff")


def test_without_a_best_epoch_the_last_is_compared():
    rows = [row(best=None, best_many=None, best_medium=None, best_few=None, last=40.3)]
    line = show(TABLE, rows, WHERE)[0]
    assert line.best is None
    assert line.difference == pytest.approx(2.0)


def test_rows_of_other_tables_are_left_out():
    assert not any(line.last for line in show(TABLE, [row(table="table-4")], WHERE))
    with pytest.raises(ArgumentError, match="no cell with"):
        show(TABLE, [], "ratio=5")


def test_groups_are_compared_with_groups():
    rows = [row(table="table-4", cell="c/ce/cifar100-exp-100")]
    lines = {
        line.metric: line for line in show(load("table-4"), rows, "part=c,ratio=100,method=ce")
    }
    assert list(lines) == ["many", "medium", "few", "balanced"]
    assert [lines[m].best.mean for m in lines] == [66.5, 36.0, 8.5, 38.9]  # type: ignore[union-attr]
    assert lines["few"].difference == pytest.approx(8.5 - 11.1)


def test_markdown():
    text = as_markdown(show(TABLE, SEEDS, WHERE))
    lines = text.splitlines()
    assert lines[0] == "| Run | Paper | Ours, best epoch | Ours, last epoch | Difference |"
    assert lines[2] == "| a: CE | 38.3 ± 0.4 | 39.0 ± 1.0 | 37.8 ± 0.8 | +0.7 |"
    assert lines[3] == "| a: CE+DRW | 40.8 ± 0.6 | - | - | - |"
    assert "- All: data cifar100-exp-100; classes All; seeds 3; epochs 200; trained on cpu" in text
    assert "- Our best epoch was chosen on the test split." in text


def test_other_hardware_stays_visible():
    other = row(key="o", device="NVIDIA H200", hyper=OTHER_RATE)
    text = as_markdown(show(TABLE, [*SEEDS, other], WHERE))
    ce = [line for line in text.splitlines() if line.startswith("| a: CE |")]
    assert len(ce) == 2
    assert any("cpu (x86_64), bf16-mixed | - |" in line for line in ce)
    assert any("NVIDIA H200, bf16-mixed | lr=0.2 |" in line for line in ce)


def test_settings_that_are_not_the_cells_stay_visible():
    hyper = "augment=none;batch_size=128;label_smoothing=0.1;lr=0.1;schedule=released"
    text = as_markdown(show(TABLE, [row(hyper=hyper)], WHERE))
    assert "| +0.6 | augment=none, label_smoothing=0.1, no weight_decay |" in text


def test_what_does_not_fit_is_marked_and_explained():
    text = as_markdown(show(load("table-4"), [], "part=c,ratio=100"))
    assert "| c: VS+TLA+ADRW | All | 53.2 * | - |" in text
    assert "| c: VS+TLA+ADRW | Few | 37.0 | - |" in text
    assert "66.7 / 56.3 / 37.0 average to 54.15" in text


def test_what_a_run_needs_is_said():
    text = as_markdown(show(load("table-7"), []))
    assert "| peft: CVS (Huber) | cifar100-exp-10 | All | 83.2 | needs clip, peft |" in text
    assert "- peft: parameter-efficient" in text


def test_numbers_are_printed_as_the_paper_prints_them():
    text = as_markdown(show(load("table-6"), []))
    assert "Training, s/epoch | 26.39 |" in text
    assert "Training, memory, MB | 12033.8 |" in text


def test_the_terminal_shows_the_same():
    from rich.console import Console  # noqa: PLC0415

    out = io.StringIO()
    Console(file=out, width=140).print(as_rich(show(TABLE, SEEDS, WHERE), "Table 3"))
    text = " ".join(out.getvalue().split())
    assert "Table 3" in text
    assert "39.0 ± 1.0" in text
    assert "trained on cpu (x86_64), bf16-mixed" in text


def test_plain_data_is_json():
    lines = [*show(TABLE, SEEDS, WHERE), *show(load("table-5"), [])]
    found = json.loads(json.dumps([as_dict(line) for line in lines]))
    assert found[0]["paper"] == {"mean": 38.3, "spread": 0.4}
    assert found[0]["best"] == {"mean": 39.0, "spread": 1.0, "n": 3}
    assert found[1]["best"] is None
    assert any(need.startswith("images of iNaturalist") for need in found[-1]["needs"])
    assert any(line["exceptions"] for line in found)


def test_a_figure_is_shown_point_by_point():
    rows = [row(table="figure-7", cell="a/cvs+adrw/nu=0.2", method="cvs+adrw", best=54.0)]
    lines = show(load("figure-7"), rows)
    assert len(lines) == 19
    (mine,) = (line for line in lines if line.best)
    assert mine.difference == pytest.approx(54.0 - 54.6)
    assert "| a: CVS+ADRW (nu 0.2) | 54.6 | 54.0 |" in as_markdown(lines)


def test_a_summary_is_of_all_seeds_or_none():
    assert Summary.of([1.0, 3.0]) == Summary(2.0, pytest.approx(2**0.5), 2)  # type: ignore[arg-type]
    assert Summary.of([1.0, None]) is None
    assert Summary.of([]) is None
