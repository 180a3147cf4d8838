"""``classwise inspect``, ``evaluate``, ``report`` and ``list``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from classwise._checks import known_name
from classwise.cli.console import console, percent, print_json, table
from classwise.cli.flags import Output
from classwise.cli.parsing import parse
from classwise.data.findings import shown
from classwise.errors import ArgumentError

if TYPE_CHECKING:
    from classwise.data.audit import Audit

__all__ = ["evaluate", "inspect", "list_names", "report"]


@dataclass(frozen=True)
class ReportFlags:
    """Write one page about one run or several.

    Args:
        runs: folders of runs.
        out: the page; by default report.html beside the first run.
        output: what is printed.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")]
    out: Path | None = None
    output: Output = field(default_factory=Output)


def report(words: Sequence[str]) -> int:
    """Write a report."""
    from classwise.report import write_report  # noqa: PLC0415  (loads matplotlib)

    flags = parse(ReportFlags, words, prog="report")
    if not flags.runs:
        raise ArgumentError("report needs at least one run folder.")
    out = flags.out or flags.runs[0] / "report.html"
    page = write_report(flags.runs, out)
    if flags.output.json:
        print_json({"report": str(page)})
    else:
        console().print(str(page), markup=False)
    return 0


@dataclass(frozen=True)
class EvaluateFlags:
    """Measure a trained model again, on its own test split or on other data of the same classes.

    Args:
        run: folder of the run.
        data: data set to measure on; by default the run's own.
        split: train, val or test.
        device: cpu, cuda, mps or auto.
        tte: average the predictions for flipped images too.
        output: what is printed.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    data: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA]")] = None
    split: str = "test"
    device: str = "auto"
    tte: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    output: Output = field(default_factory=Output)


def evaluate(words: Sequence[str]) -> int:
    """Measure a trained model."""
    from classwise.train.again import evaluate_run  # noqa: PLC0415  (loads torch)

    flags = parse(EvaluateFlags, words, prog="evaluate")
    found = evaluate_run(
        flags.run, flags.data, split=flags.split, device=flags.device, tte=flags.tte
    )
    if flags.output.json:
        print_json({"run": str(flags.run), "split": flags.split, **found.numbers})
        return 0
    names = ("balanced", "overall", "many", "medium", "few", "ece", "mce")
    cells = [percent(found.numbers.get(name)) for name in names]
    console().print(table(f"{flags.split} split, %", ("", *names), [(flags.run.name, *cells)]))
    return 0


@dataclass(frozen=True)
class InspectFlags:
    """Count a data set, and find everything that is wrong with it in one pass.

    Args:
        data: data set, as a URI: digits, cifar100, folder:DIR, csv:FILE#target=COLUMN ...
        output: what is printed.
    """

    data: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    output: Output = field(default_factory=Output)


def inspect(words: Sequence[str]) -> int:
    """Inspect a data set; 1 if something is wrong with it."""
    from classwise.data.audit import audit  # noqa: PLC0415  (loads torch)

    flags = parse(InspectFlags, words, prog="inspect")
    found = audit(flags.data)
    if flags.output.json:
        print_json(found.as_dict())
    else:
        _print_audit(found)
    return 0 if found.sound else 1


_LISTED = 20


def _print_audit(found: Audit) -> None:
    screen = console()
    counts = sorted(zip(found.class_counts, found.class_names, strict=True), reverse=True)
    if counts:
        sizes = ", ".join(f"{name} {size:,}" for name, size in found.sizes.items())
        groups = ", ".join(f"{count} {name}" for name, count in found.shots.items())
        shape = " x ".join(map(str, found.input_shape))
        lines = [
            f"{found.uri}: {found.kind} of {shape}, {len(counts)} classes",
            f"samples: {sizes}",
            f"training samples of a class: {counts[-1][0]:,} to {counts[0][0]:,}"
            + (f", ratio {found.imbalance_ratio:.1f}" if found.imbalance_ratio else ""),
            f"classes by shots: {groups}",
        ]
        screen.print("\n".join(lines), markup=False)
        ends = counts
        if len(counts) > _LISTED:
            ends = [*counts[: _LISTED // 2], (None, "..."), *counts[-_LISTED // 2 :]]
        rows = [[shown(name), "" if count is None else f"{count:,}"] for count, name in ends]
        screen.print(table("", ("class", "training"), rows))
    for title, lines in (
        ("problem", found.problems),
        ("warning", found.warnings),
        ("note", found.notes),
    ):
        for line in lines:
            screen.print(f"{title}: {line}", markup=False)
    if found.suggestion is not None:
        command, reason = found.suggestion
        screen.print(f"to begin: {command}\n          ({reason})", markup=False)


@dataclass(frozen=True)
class ListFlags:
    """List what there is.

    Args:
        what: methods, sources, models, protocols, schedules or tables.
        output: what is printed.
    """

    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WHAT")]
    output: Output = field(default_factory=Output)


def _methods() -> list[dict[str, Any]]:
    from classwise.recipes import list_methods  # noqa: PLC0415

    return [
        {
            "name": row.name,
            "title": row.title,
            "may carry": " ".join(f"+{s}" for s in row.suffixes),
            "hyper-parameters": " ".join(f"{k}={v:g}" for k, (v, _) in row.defaults.items()),
            "needs": row.needs,
            "source": row.source,
        }
        for row in list_methods()
    ]


def _plain(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in rows]


def _sources() -> list[dict[str, Any]]:
    from classwise.data import list_sources  # noqa: PLC0415

    return [{"uri": row.form, "what": row.summary} for row in list_sources()]


def _models() -> list[dict[str, Any]]:
    from classwise.models import list_models  # noqa: PLC0415

    return _plain(list_models())


def _protocols() -> list[dict[str, Any]]:
    from classwise.train.protocols import PROTOCOLS  # noqa: PLC0415

    return [
        {"name": p.name, "title": p.title, "source": p.source,
         "settings": " ".join(f"{k}={v}" for k, v in p.values.items())}
        for p in PROTOCOLS.values()
    ]  # fmt: skip


def _schedules() -> list[dict[str, Any]]:
    from classwise.train.schedules import SCHEDULES  # noqa: PLC0415

    return [{"name": name, "source": spec.source} for name, spec in SCHEDULES.items()]


def _tables() -> list[dict[str, Any]]:
    from classwise.paper import list_exhibits  # noqa: PLC0415

    return list_exhibits()


LISTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "methods": _methods,
    "sources": _sources,
    "models": _models,
    "protocols": _protocols,
    "schedules": _schedules,
    "tables": _tables,
}


def list_names(words: Sequence[str]) -> int:
    """List names."""
    flags = parse(ListFlags, words, prog="list")
    rows = LISTS[known_name("what", flags.what, LISTS)]()
    if flags.output.json:
        print_json(rows)
        return 0
    header = list(rows[0])
    cells = [[str(row[name]) for name in header] for row in rows]
    made = table(flags.what, header, cells)
    for column in made.columns:
        column.justify, column.overflow = "left", "fold"
    made.columns[0].no_wrap = True  # a name is there to be copied
    console().print(made)
    return 0
