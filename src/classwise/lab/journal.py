"""Optuna studies in a journal that survives ``kill -9`` in the middle of a write.

Optuna's own journal is lost when its last record is cut short: the next one is glued to it, and
from then on the file cannot be read. Trials whose process died stay "running" for ever, and the
lock outlives who held it. All three are mended here.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from classwise._checks import known_name
from classwise.errors import DataError, StateError

__all__ = ["Search", "journal_in", "repair"]

_SAMPLERS = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
}


class _NoLock:
    """Instead of Optuna's lock: a journal is opened by one process at a time."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        """Do nothing."""


def repair(path: Path) -> int:
    """Cut a torn last record off a journal; return how many bytes went.

    Raises:
        DataError: a record before the last one cannot be read, which no kill explains.
    """
    with path.open("r+b") as file:
        text = file.read()
        keep = text.rfind(b"\n") + 1
        for number, line in enumerate(text[:keep].splitlines(), start=1):
            try:
                json.loads(line)
            except ValueError as error:
                raise DataError(
                    f"{path}, line {number} cannot be read: {error}. Move the file away to search "
                    "anew; phases that were trained stay in the store."
                ) from error
        if keep < len(text):
            file.truncate(keep)
            file.flush()
            os.fsync(file.fileno())
    return len(text) - keep


@contextlib.contextmanager
def journal_in(path: Path | None) -> Iterator[BaseStorage | None]:
    """Open a journal for the time of a ``with`` block, mended.

    Args:
        path: of the file, made if it is not there; None is a journal in memory.

    Raises:
        StateError: another process has it open; two would take each other's trials for lost ones.
    """
    if path is None:
        yield None
        return
    import fcntl  # noqa: PLC0415  (not on every system)

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases it at the end
        except BlockingIOError:
            raise StateError(
                f"another process searches with {path}; wait for it, or name another folder."
            ) from None
        repair(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            lock: Any = _NoLock()
            yield JournalStorage(JournalFileBackend(str(path), lock_obj=lock))


class Search:
    """A study of Optuna that goes on where it stopped.

    The draws depend on the seed and on what was scored before, and not on how often the search was
    interrupted.

    Args:
        storage: of ``journal_in``; None keeps the study in memory.
        name: of the study.
        sampler: ``"tpe"`` or ``"random"``.
        seed: of the sampler.
        grid: values of each hyper-parameter; points are drawn between the smallest and largest.
    """

    def __init__(
        self,
        storage: BaseStorage | None,
        name: str,
        *,
        sampler: str,
        seed: int,
        grid: Mapping[str, Sequence[float]],
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        known_name("sampler", sampler, _SAMPLERS)
        self._sampler, self._seed, self._grid = sampler, seed, grid
        self._study = optuna.create_study(
            storage=storage, study_name=name, direction="maximize", load_if_exists=True
        )
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            # Its process died. The same point is drawn again, and its phases lie in the store.
            self._study.tell(trial.number, state=TrialState.FAIL)

    @property
    def scored(self) -> list[tuple[dict[str, float], float]]:
        """The points that were scored, and their scores, in this order."""
        trials = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return [(dict(trial.params), float(trial.values[0])) for trial in trials]

    def ask(self) -> tuple[optuna.trial.Trial, dict[str, float]]:
        """Return a trial and its point."""
        seed = self._seed * 1_000_003 + len(self.scored)
        self._study.sampler = _SAMPLERS[self._sampler](seed=seed % 2**32)
        trial = self._study.ask()
        point = {n: trial.suggest_float(n, min(v), max(v)) for n, v in self._grid.items()}
        return trial, point

    def tell(self, trial: optuna.trial.Trial, score: float) -> None:
        """Record the score of a trial."""
        self._study.tell(trial, score)
