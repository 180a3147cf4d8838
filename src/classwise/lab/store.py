"""The store: a folder for each phase, trusted only when it is whole.

STORE/<key>/            a run folder (see ``classwise.train.record``), ``done`` when finished
STORE/<key>.lock        who is training it, touched while he lives
STORE/<key>.damaged-N   what was found broken and put aside
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import socket
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classwise.errors import ArgumentError, ClasswiseWarning, DataError, StateError
from classwise.train import record
from classwise.train.checkpoint import verify_done

__all__ = ["Busy", "Entry", "Store"]

_BEAT = 5.0
_EXPIRES = 60.0


class Busy(StateError):  # noqa: N818  (a state, and not a mistake)
    """Another process is training this phase."""


@dataclass(frozen=True)
class Entry:
    """A phase in the store.

    Args:
        key: its name.
        state: "done", "unfinished", "busy", or "damaged".
        label: method, data and epochs in words.
        epochs: [first, stop).
        size: of its files, in bytes.
        seconds: of training, as far as it came.
    """

    key: str
    state: str
    label: str
    epochs: tuple[int, int]
    size: int
    seconds: float


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

    def finished(self, key: str, *, with_state: bool = False) -> bool:
        """Whether a phase is there, finished and whole; what is damaged is put aside.

        Args:
            key: of the phase.
            with_state: whether it is to be continued, for which its checkpoint must be there.
        """
        folder = self.path(key)
        if not (folder / record.DONE).exists():
            return False
        wrong = verify_done(folder)
        if not wrong and with_state and not (folder / record.STATE).exists():
            wrong = f"{record.STATE} was deleted, and a phase is to continue it"
        if wrong:
            self.put_aside(key, wrong)
        return not wrong

    def put_aside(self, key: str, reason: str) -> Path:
        """Rename a damaged folder, so that the phase is trained again and nothing is lost."""
        number = 1
        while (aside := self.root / f"{key}.damaged-{number}").exists():
            number += 1
        self.path(key).rename(aside)
        (aside / "reason").write_text(reason + "\n", encoding="utf-8")
        message = f"phase {key} cannot be used and is trained again: {reason}. It lies in {aside}."
        warnings.warn(ClasswiseWarning(message), stacklevel=3)
        return aside

    # Locks

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold a phase for the time of a ``with`` block.

        Raises:
            Busy: if a living process holds it.
        """
        path, me = self.root / f"{key}.lock", _Holder.me()
        self._take(path, me)
        over = threading.Event()
        beat = threading.Thread(target=_keep_alive, args=(path, me, over), daemon=True)
        beat.start()
        try:
            yield
        finally:
            over.set()
            beat.join()
            if _Holder.read(path) == me:
                path.unlink(missing_ok=True)

    def _take(self, path: Path, me: _Holder) -> None:
        for _ in range(100):
            try:
                handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                if not self._void(path):
                    raise Busy(
                        f"{path.stem} is being trained by {_Holder.read(path)}; wait for it, or "
                        f"delete {path} if that process is gone."
                    ) from None
                # Renamed before it is deleted: of two that find it void, one gets it.
                grave = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
                with contextlib.suppress(FileNotFoundError):
                    path.rename(grave)
                    grave.unlink()
                continue
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(dataclasses.asdict(me), file)
            return
        raise Busy(f"{path} could not be taken.")

    def _void(self, path: Path) -> bool:
        try:
            age = time.time() - path.stat().st_mtime
        except FileNotFoundError:
            return True
        holder = _Holder.read(path)
        if holder is not None and holder.host == socket.gethostname() and not _lives(holder.pid):
            return True
        return age > self.expires

    # Housekeeping

    def entries(self) -> list[Entry]:
        """Return what is in the store, sorted by key."""
        return [self._entry(p) for p in sorted(self.root.iterdir()) if p.is_dir()]

    def _entry(self, folder: Path) -> Entry:
        key = folder.name
        files = [p.stat().st_size for p in folder.iterdir() if p.is_file()]
        try:
            head = record.read_json(folder / record.CONFIG)
            rows = record.read_lines(folder / record.METRICS)
            label, epochs = head["label"], tuple(head["identity"]["epochs"])
        except (DataError, KeyError, TypeError):
            return Entry(key, "damaged", "", (0, 0), sum(files), 0.0)
        state = "done" if (folder / record.DONE).exists() else "unfinished"
        if ".damaged-" in key:
            state = "damaged"
        elif state == "unfinished" and not self._void(self.root / f"{key}.lock"):
            state = "busy"
        seconds = sum(row.get("seconds", 0.0) for row in rows)
        return Entry(key, state, label, epochs, sum(files), seconds)

    def find(self, prefix: str) -> str:
        """Return the only key that begins like this."""
        found = [p.name for p in self.root.iterdir() if p.is_dir() and p.name.startswith(prefix)]
        if len(found) != 1:
            what = "no phase" if not found else f"{len(found)} phases"
            raise ArgumentError(f"{what} in {self.root} begin(s) with {prefix!r}.")
        return found[0]

    def show(self, prefix: str) -> dict[str, Any]:
        """Return what is written at the head of a phase."""
        key = self.find(prefix)
        head = record.read_json(self.path(key) / record.CONFIG)
        return {**dataclasses.asdict(self._entry(self.path(key))), **head}

    def gc(self, *, states: bool = False, unfinished: bool = False, dry_run: bool = False) -> int:
        """Delete what nothing needs, and return how many bytes that frees.

        Damaged folders, void locks and torn files always go.

        Args:
            states: checkpoints of finished phases too; nothing can fork from these any more.
            unfinished: phases that were begun and not finished, too.
            dry_run: only count.
        """
        freed = 0
        for entry in self.entries():
            folder = self.path(entry.key)
            goes = [p for p in folder.iterdir() if p.name.endswith(".part")]
            if entry.state == "damaged" or (unfinished and entry.state == "unfinished"):
                freed += entry.size
                if not dry_run:
                    shutil.rmtree(folder)
                continue
            if states and entry.state == "done":
                goes.append(folder / record.STATE)
            freed += sum(p.stat().st_size for p in goes if p.exists())
            if not dry_run:
                for path in goes:
                    path.unlink(missing_ok=True)
        for path in self.root.glob("*.lock*"):
            if not dry_run and self._void(path):
                path.unlink(missing_ok=True)
        return freed


@dataclass(frozen=True)
class _Holder:
    host: str
    pid: int
    token: str

    @classmethod
    def me(cls) -> _Holder:
        return cls(socket.gethostname(), os.getpid(), uuid.uuid4().hex)

    @classmethod
    def read(cls, path: Path) -> _Holder | None:
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _keep_alive(path: Path, me: _Holder, over: threading.Event) -> None:
    while not over.wait(_BEAT):
        if _Holder.read(path) != me:
            return
        with contextlib.suppress(OSError):
            os.utime(path)
