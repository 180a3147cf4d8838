"""Stopping a run from outside without losing anything."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from classwise.errors import StateError

__all__ = ["Interrupted", "forget_requests", "stop_requests"]


_NOTE = ".stop"

_listening: list[threading.Event] = []
"""Of this process, from the outermost on: who trains a phase of a plan listens with the plan."""


class Interrupted(StateError):  # noqa: N818  (what happened, as in KeyboardInterrupt)
    """Training was stopped from outside; its state is saved."""


@contextlib.contextmanager
def stop_requests(folder: Path | None) -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM into a request that the loop looks for.

    Args:
        folder: where a note tells the other processes of the run; None if there are none. A note
            is for whoever trains in that folder, which after a takeover is somebody else.
    """
    flag = threading.Event()
    note = None if folder is None else folder / _NOTE
    in_main = threading.current_thread() is threading.main_thread()

    def ask(number: int, frame: object) -> None:
        if flag.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt  # the second time it is meant
        for event in _listening:
            event.set()
        if note is not None:
            with contextlib.suppress(OSError):
                note.touch()

    before = {}
    if in_main:
        _listening.append(flag)
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    try:
        yield lambda: flag.is_set() or (note is not None and note.exists())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if in_main:
            _listening.remove(flag)
        if note is not None:
            note.unlink(missing_ok=True)


def forget_requests(folder: Path) -> None:
    """Remove the note of a request that was not served: its run was killed before it could be."""
    (folder / _NOTE).unlink(missing_ok=True)
