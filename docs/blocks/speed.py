"""What the benchmarks measured, from the file that ``make bench`` writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blocks.markdown import table

ROOT = Path(__file__).parent.parent.parent


def _results(part: str) -> Any:
    text = (ROOT / "benchmarks/results.json").read_text(encoding="utf-8")
    return json.loads(text)[part]


def targets() -> str:
    """Return every claim, its limit and what was measured."""
    rows = [
        [
            row["what"],
            row["against"],
            f"{'≥' if row['at_least'] else '≤'} {row['limit']:g} {row['unit']}",
            f"{_short(row['value'])} {row['unit']}" + ("" if row["met"] else " (missed)"),
        ]
        for row in _results("targets")
    ]
    return table(["what", "beside", "limit", "measured"], rows) + "\n" + machine()


def machine() -> str:
    """Return what measured."""
    made = _results("machine")
    return "Measured on: " + ", ".join(f"{name} {value}" for name, value in made.items()) + ".\n"


def statistics() -> str:
    """Return what the statistics of a batch and an estimation of slopes cost."""
    found = _results("statistics")
    batches = [
        [
            *_size(row),
            _ms(row["ms"]["bins"]),
            *(_times(row["ratio"][name]) for name in ("by prediction", "by score")),
            *(_times(row["ratio"][name]) for name in ("bank", "bank, present")),
            f"{1 / row['ratio']['one pass'][1]:.1f}",
            f"{row['state_mb']:.1f} / {row['bank_mb']:,.0f} MB",
        ]
        for row in found["batch"]
    ]
    header = ["classes", "batch", "bins by true class", "by prediction", "by score", "bank",
              "bank, classes of the batch only", "bins / one pass over the logits",
              "state / full bank"]  # fmt: skip
    ends = [
        [
            f"{row['classes']:,}",
            f"{row['samples']:,}",
            _ms(row["ms"]["bins"]),
            _times(row["ratio"]["stable"]),
            _times(row["ratio"]["bank"]),
            f"{row['largest_difference']:.0e}",
        ]
        for row in found["estimation"]
    ]
    at_end = ["classes", "samples", "`released`", "`stable`", "bank", "slopes differ by"]
    huge = found["huge"]
    more = (
        f"With {huge['classes']:,} classes and batch {huge['batch']} a batch takes "
        f"{_ms(huge['ms']['bins'])}, {huge['ratio']['bins'][1]:.1f} times one pass, and the state "
        f"{huge['state_mb']:.0f} MB."
    )
    then = "An estimation of all slopes:"
    return f"{table(header, batches)}\n{more}\n\n{then}\n\n{table(at_end, ends)}"


def criterion() -> str:
    """Return forward and backward of the criterion beside cross-entropy."""
    found = _results("criterion")
    compiled = {row["classes"]: row for row in found["compiled"]}
    names = ("no statistics", "mla", "cla", "prediction", "score")
    rows = [
        [
            *_size(row),
            _ms(row["ms"]["cross_entropy"]),
            *(_times(row["ratio"][name]) for name in names),
            _times(compiled[row["classes"]]["ratio"]["criterion"]),
        ]
        for row in found["eager"]
    ]
    header = ["classes", "batch", "`F.cross_entropy`", "criterion, no statistics",
              "first phase", "second phase", "bins by prediction", "bins by score",
              "compiled, beside it compiled"]  # fmt: skip
    return table(header, rows)


def linear() -> str:
    """Return time and memory of a linear head's loss."""
    names = ("dense", "linear", "linear, statistics")
    rows = [
        [
            f"{row['classes']:,}",
            *(f"{row['ms'][name]:,.0f} ms" for name in names),
            *(f"{row['mb'][name]:,.0f} MB" for name in names),
            *(_short(row["memory_ratio"][name]) for name in names[1:]),
        ]
        for row in _results("linear")["rows"]
    ]
    header = ["classes", "dense", "`linear_vs_loss`", "with statistics", "dense, memory",
              "`linear_vs_loss`, memory", "with statistics, memory", "ratio",
              "ratio with statistics"]  # fmt: skip
    return table(header, rows)


def training() -> str:
    """Return the parts of a training step, and other ways that were tried."""
    found = _results("training")
    ms = found["ms"]
    named = {
        "model, forward and backward": "model",
        "data": "data",
        "criterion with statistics": "criterion",
        "optimiser": "optimiser",
        "what is logged": "sums",
    }
    rows = [[name, _ms(ms[key]), _percent(ms[key] / ms["step"])] for name, key in named.items()]
    rows.insert(0, ["whole step", _ms(ms["step"]), ""])
    share = found["tflops"] / found["peak_tflops"]
    operators = ", ".join(f"{kind} {_percent(part)}" for kind, part in found["operators"].items())
    variants = found["variants"]
    tried = [[name, _times(ratio)] for name, ratio in variants["ratio"].items()]
    return "\n".join(
        [
            table(["part", "time", "share of the step"], rows),
            f"{found['images_per_second']:,.0f} images/s of {found['model']}, batch 128: "
            f"{found['tflops']:.2f} of the {found['peak_tflops']:.2f} TFLOP/s that a large "
            f"bfloat16 matrix product reaches here, {_percent(share)}. "
            f"Of the processor's time: {operators}.\n",
            "Other ways, and how many times as long a step takes with them:\n",
            table(["tried", "time"], tried),
        ]
    )


def pipeline() -> str:
    """Return images per second beside the published style of pipeline."""
    found = _results("pipeline")
    rows = [
        [
            row["augment"],
            row["with"],
            f"{row['published']:,}/s",
            f"{row['ours']:,}/s",
            _times(row["ratio"]),
        ]
        for row in found["throughput"]
    ]
    header = ["augmentation", "measured", "published style", "ours", "ratio"]
    cost = [[name, f"{spent:.2f} ms"] for name, spent in found["cost"]["data_ms"].items()]
    orders = ", ".join(f"{kind} {s:.2f} s" for kind, s in found["sampler_seconds"].items())
    return "\n".join(
        [
            table(header, rows),
            f"Images: {found['data']}. A batch of 128 costs, beside a step of "
            f"{found['cost']['step_ms']:.0f} ms:\n",
            table(["augmentation", "time"], cost),
            f"The order of an epoch of 437,513 samples of 8,142 classes: {orders}.\n",
        ]
    )


def ends() -> str:
    """Return what happens once in an epoch or in a run, at iNaturalist's size."""
    found = _results("ends")
    evaluation, end = found["evaluation"], found["epoch_end"]
    checkpoint, report = found["checkpoint"], found["report"]
    rows = [
        [
            f"evaluation of {evaluation['samples']:,} samples",
            f"{evaluation['ms']['evaluation'] / 1e3:.1f} s, "
            f"{evaluation['ratio']['evaluation'][1]:.1f} times one pass over the logits",
        ],
        *(
            [f"end of an epoch of {end['samples']:,} samples, `{name}`", f"{1e3 * spent:.0f} ms"]
            for name, spent in end["seconds"].items()
        ),
        [
            "checkpoint of the criterion",
            f"written in {1e3 * checkpoint['save_s']:.0f} ms, read in "
            f"{1e3 * checkpoint['load_s']:.0f} ms, {checkpoint['mb']:.1f} MB",
        ],
        [
            f"report on {report['runs']} runs of {report['epochs']} epochs",
            f"{report['seconds']:.1f} s, {report['mb']:.1f} MB",
        ],
    ]
    return table([f"{end['classes']:,} classes", "cost"], rows)


def starting() -> str:
    """Return what starting costs."""
    found = _results("starting")
    rows = [[f"`{name}`", f"{spent:.2f} s"] for name, spent in found["seconds"].items()]
    return table(["processor time of", ""], rows)


def _size(row: Any) -> list[str]:
    return [f"{row['classes']:,}", str(row["batch"])]


def _ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:,.0f} ms"


def _times(quartiles: Sequence[float]) -> str:
    low, middle, high = quartiles
    return f"{_short(middle)} ({_short(low)} to {_short(high)})"


def _short(value: float) -> str:
    if abs(value) >= 10:
        return f"{value:,.0f}"
    return f"{value:.2f}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
