"""From a finished run to a row of results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from classwise._checks import known_name
from classwise._hyper import DEFAULTS
from classwise.errors import DataError, StateError
from classwise.paper.expand import expand
from classwise.paper.hyper import hyper_names
from classwise.paper.load import item_names, load
from classwise.paper.results import Result, canonical, validate
from classwise.recipes import Recipe
from classwise.train.config import MethodConfig, to_dict
from classwise.train.record import RunRecord

__all__ = ["result_of", "settings_of"]


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run's method was trained with: all that may differ between runs of one cell.

    Hyper-parameters that were left open are those that the library then chose.

    Args:
        config: of the run, nested plain data.

    >>> from classwise.train.config import RunConfig, to_dict, with_values
    >>> vs = with_values(RunConfig(), {"method.method": "vs", "tau": 0.75})
    >>> {k: v for k, v in settings_of(to_dict(vs)).items() if k in ("tau", "gamma", "slopes")}
    {'tau': 0.75, 'gamma': 0.05}
    """
    method, optim, data = config["method"], config["optim"], config["data"]
    names = hyper_names(method["method"])
    recipe = Recipe.parse(method["method"], **MethodConfig(**method).hyper)
    parts = method["method"].split("+")
    found: dict[str, Any] = {}
    for name in names:
        default = next((DEFAULTS[p, name].value for p in parts if (p, name) in DEFAULTS), None)
        found[name] = method[name] if method[name] is not None else default
    if len(recipe.phases) > 1:
        found["defer_at"] = method["defer_at"]
    if recipe.leans_on_slopes:
        found |= {name: method[name] for name in ("slopes", "warmup")}
    if method["label_smoothing"]:
        found["label_smoothing"] = method["label_smoothing"]
    for name in ("schedule", "lr", "batch_size", "weight_decay", "deferred_weight_decay"):
        found[name] = optim[name]
    if optim["sam"] or optim["deferred_sam"]:
        found |= {name: optim[name] for name in ("sam", "deferred_sam")}
    found["augment"] = data["augment"]
    if data["mixing"] != "none":
        found["mixing"] = data["mixing"]
    if data["val"]:
        found["val"] = data["val"]
    return {name: value for name, value in found.items() if value is not None}


def result_of(record: RunRecord, *, table: str, cell: str, key: str) -> Result:
    """Return the row that a finished run makes.

    Args:
        record: see ``classwise.train.record.read_run``.
        table: the table or figure that the run answers.
        cell: the cell of it.
        key: of the run, as the store calls it.

    Raises:
        StateError: the run is not finished.
        DataError: the run lacks something that a row must say, or is of another method, model or
            data than the cell.
    """
    if not record.finished:
        raise StateError(f"{record.folder} is not finished; its numbers are no result yet.")
    _check_answers(record, table, cell)
    result, made = record.result, record.provenance
    try:
        if result["split"] != "test":
            raise DataError(f"{record.folder} was evaluated on {result['split']!r}, not on test.")
        last, best = result["last"], result.get("best", {})
        on_test = best.get("measured_on") == "test"
        versions = {"python": made["python"], "classwise": made["classwise"], **made["libraries"]}
        row = Result(
            key=key,
            table=table,
            cell=cell,
            method=record.method,
            hyper=canonical(settings_of(record.config)),
            seed=record.seed,
            epochs=result["epochs"],
            last=_rounded(last["balanced"]),
            best=_percent(best.get("balanced")) if on_test else None,
            best_epoch=best.get("epoch"),
            selected_on=best.get("selected_on", ""),
            **{name: _percent(last.get(name)) for name in ("many", "medium", "few")},
            **{
                f"best_{name}": _percent(best.get(name)) if on_test else None
                for name in ("many", "medium", "few")
            },
            val=_percent(result["val"].get("balanced")),
            **{n: _percent(last.get(n)) for n in ("ece", "ece_many", "ece_medium", "ece_few")},
            seconds=round(result["seconds"], 1),
            images_per_second=round(result["images_per_second"], 1),
            device=made["device"],
            precision=made["precision"],
            revision=made["revision"] or f"classwise-{made['classwise']}",
            versions=canonical({_word(k): v for k, v in versions.items() if v is not None}),
            data_checksum=made["data_checksum"],
            date=made["started"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{record.folder} lacks what a result needs: {error!r}.") from error
    validate(row)
    return row


def _check_answers(record: RunRecord, table: str, name: str) -> None:
    """Raise if a run is none of the cell; what ``settings_of`` says may differ, and is shown."""
    if table not in item_names():
        return
    cells = {cell.name: cell for cell in load(table).cells}
    cell = cells[known_name(f"cell of {table}", name, cells)]
    if not cell.expands:
        return
    wanted, have = to_dict(expand(cell)), record.config
    pairs = {
        "method": (wanted["method"]["method"], have["method"]["method"]),
        "model": (wanted["model"]["model"], have["model"]["model"]),
        "imbalance": (wanted["data"]["imbalance"], have["data"]["imbalance"]),
        "source": tuple(part["data"]["source"].partition(":")[0] for part in (wanted, have)),
    }
    wrong = [f"{key} is {b}, not {a}" for key, (a, b) in pairs.items() if a != b]
    if wrong:
        raise DataError(f"{record.folder} is no run of {table} {name}: {'; '.join(wrong)}.")


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else _rounded(fraction)


def _rounded(fraction: float) -> float:
    return round(100 * fraction, 4)


def _word(name: str) -> str:
    return re.sub(r"\W", "-", name)
