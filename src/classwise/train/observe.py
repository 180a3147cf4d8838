"""Who is told how a run goes."""

from __future__ import annotations

from typing import Any, Protocol

from classwise.train.setup import Setup

__all__ = ["Observer", "Silent"]


class Observer(Protocol):
    """Told how a run goes, in the process of rank 0. Must survive pickling for several devices."""

    def begin(self, setup: Setup, first: int, stop: int) -> None:
        """Hear what will be trained."""

    def step(self, epoch: int, done: int, of: int) -> None:
        """Hear that a step is done."""

    def writing(self) -> None:
        """Hear that the run's folder is about to be written to; what this raises prevents it."""

    def epoch(self, row: dict[str, Any]) -> None:
        """Hear what an epoch brought."""

    def end(self, finished: bool) -> None:
        """Hear that it is over."""


class Silent:
    """An observer that keeps to itself."""

    def begin(self, setup: Setup, first: int, stop: int) -> None:
        """Hear what will be trained."""

    def step(self, epoch: int, done: int, of: int) -> None:
        """Hear that a step is done."""

    def writing(self) -> None:
        """Hear that the run's folder is about to be written to; what this raises prevents it."""

    def epoch(self, row: dict[str, Any]) -> None:
        """Hear what an epoch brought."""

    def end(self, finished: bool) -> None:
        """Hear that it is over."""
