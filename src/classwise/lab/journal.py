"""Optuna studies in a journal that survives ``kill -9`` in the middle of a write.

Optuna's own journal is lost when its last record is cut short: the next one is glued to it, and
from then on the file cannot be read. Trials whose process died stay "running" for ever. Both are
mended here before a study is opened.
"""

from __future__ import annotations

import fcntl
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from classwise._checks import known_name

__all__ = ["ask", "repair", "study_in", "tell"]

_SAMPLERS = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
}


def repair(path: Path) -> int:
    """Cut a torn last record off a journal; return how many bytes went."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read()
        keep = text.rfind(b"\n") + 1
        if keep < len(text):
            file.truncate(keep)
            file.flush()
            os.fsync(file.fileno())
    return len(text) - keep


def study_in(path: Path | None, name: str, sampler: str, seed: int) -> optuna.Study:
    """Open or begin a study; trials of dead processes are queued again.

    Args:
        path: of the journal; None keeps the study in memory.
        name: of the study.
        sampler: ``"tpe"`` or ``"random"``.
        seed: of the sampler.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    known_name("sampler", sampler, _SAMPLERS)
    storage = None
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        repair(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = JournalStorage(JournalFileBackend(str(path)))
    study = optuna.create_study(
        storage=storage,
        study_name=name,
        sampler=_SAMPLERS[sampler](seed=seed),
        direction="maximize",
        load_if_exists=True,
    )
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.enqueue_trial(trial.params, user_attrs={"again": trial.number})
        study.tell(trial.number, state=TrialState.FAIL)
    return study


def ask(
    study: optuna.Study, grid: Mapping[str, Sequence[float]]
) -> tuple[optuna.trial.Trial, dict[str, float]]:
    """Return a trial and its point, between the smallest and largest values of the grid."""
    trial = study.ask()
    point = {name: trial.suggest_float(name, min(v), max(v)) for name, v in grid.items()}
    return trial, point


def tell(study: optuna.Study, trial: Any, score: float) -> None:
    """Record the score of a trial."""
    study.tell(trial, score)
