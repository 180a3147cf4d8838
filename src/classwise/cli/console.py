"""What a person sees while training: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from classwise.train.setup import Setup, label

__all__ = ["Watcher", "console", "percent", "print_json", "table"]

_LINE_EVERY = 10.0


def console(*, stderr: bool = False) -> Console:
    """Return where to print; plain text where there is no terminal."""
    return Console(stderr=stderr, highlight=False, soft_wrap=not sys.stdout.isatty())


def percent(value: object, digits: int = 1) -> str:
    """Return a fraction in percent; "n/a" for what is not there.

    >>> percent(0.4567), percent(None), percent(float("nan"))
    ('45.7', 'n/a', 'n/a')
    """
    if not isinstance(value, (int, float)) or math.isnan(value):
        return "n/a"
    return f"{100 * value:.{digits}f}"


def print_json(value: Any) -> None:
    """Print plain data as JSON."""
    print(json.dumps(value, indent=1, ensure_ascii=False, default=str))


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table; columns but the first are to the right."""
    made = Table(title=escape(title), title_justify="left", header_style="bold")
    for number, name in enumerate(header):
        made.add_column(escape(name), justify="left" if number == 0 else "right")
    for row in rows:
        made.add_row(*(escape(str(cell)) for cell in row))
    return made


@dataclass
class Watcher:
    """Shows how training goes, on standard error.

    Args:
        quiet: show nothing.
        title: of what is trained; None names method, data and seed.
    """

    quiet: bool = False
    title: str | None = None
    _live: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what lives in one process."""
        return {"quiet": self.quiet, "title": self.title, "_live": {}}

    def begin(self, setup: Setup, first: int, stop: int) -> None:
        """Show what will be trained."""
        if self.quiet:
            return
        screen = console(stderr=True)
        title = self.title or label(setup.config)
        self._live = {"screen": screen, "stop": stop, "title": title, "line": 0.0}
        if not screen.is_terminal:
            screen.print(
                f"{escape(title)}: epochs {first + 1} to {stop}, {setup.config.model.model}"
            )
            return
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=screen,
            transient=True,
        )
        task = progress.add_task(escape(title), total=None, shown="")
        progress.start()
        self._live |= {"progress": progress, "task": task, "first": first, "shown": ""}

    def step(self, epoch: int, done: int, of: int) -> None:
        """Move the bar, a few times in a second."""
        live = self._live
        if "progress" not in live:
            return
        now = time.monotonic()
        if now - live.get("moved", 0.0) < 0.2 and done < of:
            return
        live["moved"] = now
        live["progress"].update(
            live["task"],
            total=(live["stop"] - live["first"]) * of,
            completed=(epoch - live["first"]) * of + done,
            shown=f"epoch {epoch + 1}/{live['stop']}{live['shown']}",
        )

    def writing(self) -> None:
        """Let it write."""

    def epoch(self, row: dict[str, Any]) -> None:
        """Show what an epoch brought."""
        live = self._live
        if not live:
            return
        text = _line(row)
        if "progress" in live:
            live["shown"] = f"  {text}"
            return
        last = row["epoch"] + 1 == live["stop"]
        if last or time.monotonic() - live["line"] > _LINE_EVERY:
            live["line"] = time.monotonic()
            live["screen"].print(f"  epoch {row['epoch'] + 1}/{live['stop']}  {text}")

    def end(self, finished: bool) -> None:
        """Clear the bar away."""
        progress = self._live.get("progress")
        if progress is not None:
            progress.stop()


def _line(row: Mapping[str, Any]) -> str:
    parts = [f"loss {row['train']['loss']:.3f}", f"train {percent(row['train']['accuracy'])}"]
    for split in ("val", "test"):
        if split in row:
            parts.append(f"{split} {percent(row[split].get('balanced'))}")
    parts.append(f"{row['images_per_second']:,.0f}/s")
    return "  ".join(parts)
