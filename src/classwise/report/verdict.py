"""The verdict: one sentence on what a method gained on the tail and what it cost the head."""

from __future__ import annotations

import math
from collections.abc import Sequence

from classwise.report.comparison import GROUPS, Comparison, Method, compare, unfinished
from classwise.report.numbers import Difference, difference, percent, points
from classwise.train.record import RunRecord

__all__ = ["sentence", "verdict"]


def verdict(records: Sequence[RunRecord]) -> str:
    """Return one sentence on runs of one data set.

    With cross-entropy among them it says what the best other method gained on the smallest
    classes and what it cost the largest ones, in percentage points at the last epoch. A difference
    that is not larger than the seeds' spread is called that, and an unknown spread as well.

    Args:
        records: from ``classwise.train.record.read_run``.
    """
    return sentence(compare(records))


def sentence(comparison: Comparison) -> str:
    """Return the verdict on runs that stand side by side already."""
    c = comparison
    compared = [m for m in (c.headline, c.baseline) if m is not None]
    if not c.headline.number("balanced", c.split).values:
        text = _nothing_measured(c)
    elif c.baseline is None or c.baseline is c.headline:
        text = _alone(c)
    elif not c.baseline.number("balanced", c.split).values:
        text = f"{_alone(c)}, and {c.baseline.label} has no finite result to compare with"
    else:
        text = _against(c, c.baseline)
    runs = [run for method in compared for run in method.runs]
    going = sum(unfinished(run) for run in runs)
    if going:
        which = "an unfinished run" if len(runs) == 1 else f"{going} of {len(runs)} runs unfinished"
        return f"So far ({which}), {text}."
    return text[0].upper() + text[1:] + "." if text.startswith(_OPENINGS) else f"{text}."


_NAMED = 3  # of more methods than this, only the number is told
_OPENINGS = ("against ", "no ")  # words of ours; a label keeps its case


def _nothing_measured(c: Comparison) -> str:
    if c.split is None:
        return "no held-out split was measured, so nothing can be said about accuracy"
    return f"no balanced accuracy of {c.headline.label} is finite{_where(c)}"


def _against(c: Comparison, baseline: Method) -> str:
    pair = (c.headline, baseline)
    head, tail = _ends(c, pair)
    clauses = []
    if tail and head != tail:
        clauses.append(_clause(_change(c, tail, baseline), f"the {tail}-shot classes", "loses"))
        clauses.append(_clause(_change(c, head, baseline), f"the {head}-shot ones", "costs"))
        text = f"against {baseline.label}, {c.headline.label} {' and '.join(clauses)}; "
        text += "balanced accuracy "
    else:
        text = f"against {baseline.label}, balanced accuracy of {c.headline.label} "
    return text + _balanced(c, baseline) + _where(c) + _seeds(pair) + _near(c)


def _clause(d: Difference, where: str, worse: str) -> str:
    spread = f" ± {percent(d.spread)}" if math.isfinite(d.spread) else ""
    if points(d.mean) == points(0.0) and spread in ("", " ± 0.0"):
        return f"changes nothing on {where}"
    if d.within:
        changed = f"{points(d.mean)}{spread} points"
        return f"shows no change beyond the spread over seeds on {where} ({changed})"
    verb = "gains" if d.mean > 0 else worse
    return f"{verb} {percent(abs(d.mean))}{spread} points on {where}"


def _balanced(c: Comparison, baseline: Method) -> str:
    before, after = (m.number("balanced", c.split) for m in (baseline, c.headline))
    d = difference(after, before)
    values = f"{percent(before.mean)} to {percent(after.mean)} %"
    if d.within:
        return f"goes from {values}, which is within the spread"
    if points(d.mean) == points(0.0):
        return f"stays at {percent(after.mean)} %"
    return f"{'rises' if d.mean > 0 else 'falls'} from {values}"


def _alone(c: Comparison) -> str:
    reached = c.headline.number("balanced", c.split)
    spread = f" ± {percent(reached.deviation)}" if math.isfinite(reached.deviation) else ""
    text = f"{c.headline.label} reaches {percent(reached.mean)}{spread} % balanced accuracy"
    head, tail = _ends(c, (c.headline,))
    if head != tail:
        shares = [percent(c.headline.number(str(g), c.split).mean) for g in (head, tail)]
        text += f", {shares[0]} % on the {head}-shot and {shares[1]} % on the {tail}-shot classes"
    text += _where(c) + _seeds((c.headline,)) + _near(c)
    if c.baseline is None:
        text += "; without a ce run beside it, what it gained or cost is not known"
    return text


def _ends(c: Comparison, methods: Sequence[Method]) -> tuple[str | None, str | None]:
    """Return the largest and the smallest group that all of the methods have numbers for."""
    present = [g for g in GROUPS if all(m.number(g, c.split).values for m in methods)]
    return (present[0], present[-1]) if present else (None, None)


def _change(c: Comparison, group: str | None, baseline: Method) -> Difference:
    name = str(group)
    return difference(c.headline.number(name, c.split), baseline.number(name, c.split))


def _seeds(methods: Sequence[Method]) -> str:
    numbers = [len(m.runs) for m in methods]
    if min(numbers) == 1:
        return " (one seed, so the spread is unknown)"
    each = " each" if len(numbers) > 1 else ""
    if len(set(numbers)) == 1:
        return f" ({numbers[0]} seeds{each})"
    return f" ({numbers[0]} and {numbers[1]} seeds)"


def _near(c: Comparison) -> str:
    """Name the other methods that the headline is not better than beyond the spread."""
    best = c.headline.number("balanced", c.split)
    near = [m.label for m in c.rivals[1:] if difference(best, m.number("balanced", c.split)).within]
    if not near or c.headline is c.baseline:
        return ""
    listed = f"{', '.join(near[:-1])} and {near[-1]}" if len(near) > 1 else near[0]
    if len(near) > _NAMED:
        listed = f"{len(near)} other methods"
    return f"; {listed} {'is' if len(near) == 1 else 'are'} within the spread over seeds of it"


def _where(c: Comparison) -> str:
    return " on the validation split" if c.split == "val" else ""
