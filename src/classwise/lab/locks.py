"""Locks of phases: a file that names its holder, touched while he lives, void when he does not.

Locks work between processes, between machines that see one folder, and outlast no one: that of a
process that died on this machine is void at once, any other when nobody touches it for a while.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from classwise.errors import StateError

__all__ = ["Busy", "Holder", "Lock", "Lost"]

_BEAT = 5.0


class Busy(StateError):  # noqa: N818  (a state, and not a mistake)
    """Another process is training this phase."""


class Lost(Busy):
    """The lock was taken over, because this process stood still for too long."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock; ``token`` tells two locks of one process apart."""

    host: str
    pid: int
    token: str

    @classmethod
    def me(cls) -> Holder:
        """Return this process, with a new token."""
        return cls(socket.gethostname(), os.getpid(), uuid.uuid4().hex)

    @classmethod
    def read(cls, path: Path) -> Holder | None:
        """Return who is written in a lock file; None if that cannot be read."""
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_dead(self) -> bool:
        """Whether it is a process of this machine that is gone; others cannot be seen from here."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


class Lock:
    """A lock file; not yet taken.

    Args:
        path: of the file. Beside it lies ``.mutex``, held for the moment of taking or releasing.
        expires: seconds after which it is void unless it is touched.
    """

    def __init__(self, path: Path, *, expires: float) -> None:
        self.path, self.expires = path, expires
        self._me: Holder | None = None

    @contextlib.contextmanager
    def held(self) -> Iterator[Lock]:
        """Hold the lock for the time of a ``with`` block.

        Raises:
            Busy: another process holds it.
        """
        self._take()
        over = threading.Event()
        beat = threading.Thread(target=self._keep_alive, args=(over,), daemon=True)
        beat.start()
        try:
            yield self
        finally:
            over.set()
            beat.join()
            with self._alone():
                if self.is_mine:
                    self.path.unlink(missing_ok=True)

    @property
    def is_mine(self) -> bool:
        """Whether this process still holds it."""
        return self._me is not None and Holder.read(self.path) == self._me

    def check(self) -> None:
        """Raise ``Lost`` if another process has taken it over."""
        if not self.is_mine:
            raise Lost(
                f"{self.path.stem} is now trained by {Holder.read(self.path)}: this process stood "
                f"still for more than {self.expires:g} s."
            )

    @property
    def is_void(self) -> bool:
        """Whether it could be taken now: nobody holds it, or only somebody who is gone."""
        return self._void(time.time())

    def clear(self) -> None:
        """Delete the file if it is void."""
        with self._alone() as now:
            if self._void(now):
                self.path.unlink(missing_ok=True)

    def _void(self, now: float) -> bool:
        try:
            age = now - self.path.stat().st_mtime
        except FileNotFoundError:
            return True
        holder = Holder.read(self.path)
        return age > self.expires or (holder is not None and holder.is_dead)

    def _take(self) -> None:
        me = Holder.me()
        part = self.path.with_name(f".{self.path.name}.{me.token}.part")
        with self._alone() as now:
            if not self._void(now):
                raise Busy(
                    f"{self.path.stem} is being trained by {Holder.read(self.path)}; wait for it, "
                    f"or delete {self.path} if that process is gone."
                )
            try:
                part.write_text(json.dumps(dataclasses.asdict(me)), encoding="utf-8")
                part.replace(self.path)
            except OSError as error:
                with contextlib.suppress(OSError):
                    part.unlink(missing_ok=True)
                raise StateError(f"{self.path} could not be written: {error}.") from error
        self._me = me

    @contextlib.contextmanager
    def _alone(self) -> Iterator[float]:
        """Have the folder's locks to oneself for a moment; yields the time.

        It is the file system's time: the clocks of machines that share a folder may differ.
        """
        mutex = self.path.with_name(".mutex")
        try:
            handle = os.open(mutex, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise StateError(f"{mutex} cannot be opened: {error}.") from error
        try:
            with contextlib.suppress(ImportError, OSError):  # not on every system
                import fcntl  # noqa: PLC0415

                fcntl.flock(handle, fcntl.LOCK_EX)
            os.utime(handle)
            yield os.fstat(handle).st_mtime
        finally:
            os.close(handle)

    def _keep_alive(self, over: threading.Event) -> None:
        while not over.wait(min(_BEAT, self.expires / 4)):
            if not self.is_mine:
                return
            with contextlib.suppress(OSError):
                os.utime(self.path)
