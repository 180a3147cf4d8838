"""What starting costs: importing, and the command line's help, each in a process of its own.

Time of the processor and not of the clock: other jobs on the machine do not add to it.
"""

from __future__ import annotations

import os
import statistics as numbers
import subprocess
import sys
from typing import Any

__all__ = ["measure"]

EVERYTHING = """
import classwise
for name in set(classwise.__all__) - {"ClassAccuracy", "ClassBins", "ClassFloors"}:
    getattr(classwise, name)
"""
PROGRAMS = {
    "python": "pass",
    "torch": "import torch",
    "classwise": EVERYTHING,
    "help": "from classwise.cli import main; main(['--help'])",
    "train --help": "from classwise.cli import main; main(['train', '--help'])",
}


def processor_seconds(program: str) -> float:
    """Return the processor time of a Python process."""
    before = os.times()
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    )


def measure(*, quick: bool) -> dict[str, Any]:
    """Start each program in turns."""
    spent: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for turn in range(2 if quick else 4):
        for name, program in PROGRAMS.items():
            took = processor_seconds(program)
            if turn:  # the first reads files from the disk
                spent[name].append(took)
    return {
        "seconds": {name: numbers.median(times) for name, times in spent.items()},
        "beyond_torch": numbers.median(
            a - b for a, b in zip(spent["classwise"], spent["torch"], strict=True)
        ),
        "help_beyond_python": numbers.median(
            a - b for a, b in zip(spent["help"], spent["python"], strict=True)
        ),
    }
