"""Run ``make demo`` and keep what it found in results/demo.json, for README.

python docs/demo.py
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import platform
import tempfile
from pathlib import Path

import torch

from classwise.cli import main as classwise

ROOT = Path(__file__).parent.parent


def command() -> str:
    """Return the command of the Makefile's target."""
    lines = (ROOT / "Makefile").read_text(encoding="utf-8").split("\ndemo:")[1].splitlines()
    return next(line.strip().removeprefix("$(BIN)/") for line in lines if "$(BIN)/" in line)


def main() -> None:
    """Train in a folder that is thrown away, and keep the numbers."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        words = [*command().split()[1:], "--json", "--store", f"{folder}/store", "--out", folder]
        if classwise(words) != 0:
            raise SystemExit(1)
    found = json.loads(said.getvalue())
    made_on = {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "date": datetime.date.today().isoformat(),
    }
    kept = {"command": command(), "made_on": made_on, "methods": found["methods"]}
    path = ROOT / "results/demo.json"
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
