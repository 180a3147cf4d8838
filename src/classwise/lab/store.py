"""The store: a folder for each phase, trusted only when it is whole.

STORE/<key>/            a run folder (see ``classwise.train.record``), ``done`` when finished
STORE/<key>.lock        who is training it, touched while he lives
STORE/<key>.damaged-N   what was found broken and put aside
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classwise.errors import ArgumentError, ClasswiseWarning, DataError
from classwise.lab.locks import Busy, Lock
from classwise.lab.plan import key_of
from classwise.train import record
from classwise.train.checkpoint import verify_done

__all__ = ["Entry", "Store"]

_EXPIRES = 60.0
_KEY = re.compile(r"[0-9a-f]{16}(\.damaged-\d+)?")
_NEEDED = (record.CONFIG, record.METRICS, record.MODEL)


@dataclass(frozen=True)
class Entry:
    """A phase in the store.

    Args:
        key: its name.
        state: "done", "unfinished", "busy", or "damaged".
        label: method, data and seed in words.
        epochs: [first, stop).
        size: of its files, in bytes.
        seconds: of training, as far as it came.
        wrong: what is wrong with it, if that was looked for.
    """

    key: str
    state: str
    label: str
    epochs: tuple[int, int]
    size: int
    seconds: float
    wrong: str = ""


class Store:
    """A folder of phases.

    Args:
        root: made if it is not there.
        expires: seconds after which a lock that nobody touches is void.
    """

    def __init__(self, root: Path | str, *, expires: float = _EXPIRES) -> None:
        self.root, self.expires = Path(root), expires
        if self.root.exists() and not self.root.is_dir():
            raise ArgumentError(f"the store {self.root} is not a folder.")
        self.root.mkdir(parents=True, exist_ok=True)

    def path(self, key: str) -> Path:
        """Return the folder of a phase."""
        return self.root / key

    def lock(self, key: str) -> AbstractContextManager[Lock]:
        """Hold a phase for the time of a ``with`` block.

        Raises:
            Busy: if a living process holds it.
        """
        return self._lock(key).held()

    def _lock(self, key: str) -> Lock:
        return Lock(self.root / f"{key}.lock", expires=self.expires)

    # What can be trusted

    def finished(self, key: str, *, with_state: bool = False) -> bool:
        """Whether a phase is there, finished and whole.

        Args:
            key: of the phase.
            with_state: whether it is to be continued, for which its checkpoint must be there.
        """
        return self.wrong(key, with_state=with_state) == ""

    def wrong(self, key: str, *, with_state: bool = False) -> str | None:
        """Return what is wrong with a phase that says it is finished; None if it does not say so.

        Its files are as they were written, it is the phase that its key says, and it has every
        epoch once.
        """
        folder = self.path(key)
        if not (folder / record.DONE).exists():
            return None
        wrong = verify_done(folder) or _incomplete(folder) or self.unfit(key)
        if not wrong and with_state and not (folder / record.STATE).exists():
            wrong = f"{record.STATE} was deleted, and a phase is to continue it"
        return wrong

    def unfit(self, key: str) -> str:
        """Return why what lies in the folder of a phase cannot be of it; empty if all is well."""
        folder = self.path(key)
        if not folder.exists():
            return ""
        try:
            head = record.read_json(folder / record.CONFIG)
            found = [row["epoch"] for row in record.read_lines(folder / record.METRICS)]
            if key_of(head["identity"]) != key:
                return f"{record.CONFIG} is of another phase, {key_of(head['identity'])}"
            first, stop = head["identity"]["epochs"]
            done = (folder / record.DONE).exists()
        except DataError as error:
            return str(error)
        except (KeyError, TypeError, ValueError) as error:
            return f"{record.CONFIG} or {record.METRICS} is not of a phase: {error!r}"
        if found != [*range(first, stop)][: None if done else len(found)]:
            return f"{record.METRICS} has epochs {_ranges(found)} of {first} to {stop - 1}"
        return ""

    def put_aside(self, key: str, reason: str) -> Path:
        """Rename a damaged folder, so that the phase is trained again and nothing is lost.

        Only who holds the lock may do this.
        """
        number = 1
        while (aside := self.root / f"{key}.damaged-{number}").exists():
            number += 1
        self.path(key).rename(aside)
        (aside / "reason").write_text(reason + "\n", encoding="utf-8")
        message = f"phase {key} cannot be used and is trained again: {reason}. It lies in {aside}."
        warnings.warn(ClasswiseWarning(message), stacklevel=2)
        return aside

    def sweep(self, key: str) -> None:
        """Delete what a killed process left: torn files, and the note that it was asked to stop."""
        for path in self._litter(self.path(key)):
            path.unlink(missing_ok=True)

    @staticmethod
    def _litter(folder: Path) -> list[Path]:
        if not folder.is_dir():
            return []
        return [p for p in folder.iterdir() if p.name.endswith(".part") or p.name == ".stop"]

    # Housekeeping

    def entries(self, *, verify: bool = False) -> list[Entry]:
        """Return what is in the store, sorted by key; folders of something else are left out.

        Args:
            verify: read every file, and say what is damaged.
        """
        folders = (p for p in self.root.iterdir() if _KEY.fullmatch(p.name) and p.is_dir())
        return [self._entry(folder, verify) for folder in sorted(folders)]

    def _entry(self, folder: Path, verify: bool) -> Entry:
        key, wrong = folder.name, ""
        size = sum(p.stat().st_size for p in folder.iterdir() if p.is_file())
        state = "done" if (folder / record.DONE).exists() else "unfinished"
        try:
            head = record.read_json(folder / record.CONFIG)
            rows = record.read_lines(folder / record.METRICS)
            label, (first, stop) = head["label"], head["identity"]["epochs"]
            seconds = sum(row.get("seconds", 0.0) for row in rows)
        except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
            label, first, stop, seconds, wrong = "", 0, 0, 0.0, str(error)
        if ".damaged-" in key:
            why = folder / "reason"
            wrong = why.read_text(encoding="utf-8").strip() if why.exists() else "put aside"
        elif state == "unfinished" and not self._lock(key).is_void:
            state, wrong = "busy", ""
        elif verify and not wrong:
            wrong = (self.wrong(key) if state == "done" else self.unfit(key)) or ""
        state = "damaged" if wrong else state
        return Entry(key, state, label, (first, stop), size, seconds, wrong)

    def find(self, prefix: str) -> str:
        """Return the only key that begins like this, or that is this."""
        keys = [p.name for p in self.root.iterdir() if _KEY.fullmatch(p.name) and p.is_dir()]
        found = [key for key in keys if key == prefix] or [k for k in keys if k.startswith(prefix)]
        if len(found) != 1:
            what = "no phase begins" if not found else f"{len(found)} phases begin"
            raise ArgumentError(f"{what} with {prefix!r} in {self.root}; lab ls lists them.")
        return found[0]

    def show(self, prefix: str) -> dict[str, Any]:
        """Return what is written at the head of a phase, and whether it is whole."""
        key = self.find(prefix)
        entry = dataclasses.asdict(self._entry(self.path(key), verify=True))
        try:
            return {**entry, **record.read_json(self.path(key) / record.CONFIG)}
        except DataError:
            return entry  # says what is wrong

    def gc(self, *, states: bool = False, unfinished: bool = False, dry_run: bool = False) -> int:
        """Delete what nothing needs, and return how many bytes that frees.

        Damaged folders, void locks and torn files always go; what is being trained stays.

        Args:
            states: checkpoints of finished phases too; nothing can fork from these any more.
            unfinished: phases that were begun and not finished, too.
            dry_run: only count.
        """
        freed = 0
        for entry in self.entries(verify=True):
            try:
                with self.lock(entry.key):
                    freed += self._tidy(entry, states, unfinished, dry_run)
            except Busy:
                continue
        for path in self.root.glob("*.lock"):
            if not dry_run:
                Lock(path, expires=self.expires).clear()
        return freed

    def _tidy(self, entry: Entry, states: bool, unfinished: bool, dry_run: bool) -> int:
        folder = self.path(entry.key)
        if not folder.exists():
            return 0
        if entry.state == "damaged" or (unfinished and entry.state == "unfinished"):
            if not dry_run:
                shutil.rmtree(folder)
            return entry.size
        goes = self._litter(folder)
        if states and entry.state == "done":
            goes.append(folder / record.STATE)
        freed = sum(path.stat().st_size for path in goes if path.exists())
        if not dry_run:
            for path in goes:
                path.unlink(missing_ok=True)
        return freed


def _incomplete(folder: Path) -> str:
    """Return which file that every finished phase has ``done`` does not speak of."""
    said = json.loads((folder / record.DONE).read_text(encoding="utf-8"))
    missing = [name for name in _NEEDED if name not in said]
    return f"{record.DONE} says nothing of {', '.join(missing)}" if missing else ""


def _ranges(epochs: list[int]) -> str:
    shown = ", ".join(map(str, epochs[:8])) + (", ..." if len(epochs) > 8 else "")
    return shown or "none"
