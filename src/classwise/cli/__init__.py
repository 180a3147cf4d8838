"""The command line: ``classwise COMMAND ...``.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted with the state saved. What goes wrong
is said in one line; ``--debug`` shows where.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from classwise.errors import ArgumentError, ClasswiseError

__all__ = ["COMMANDS", "main"]

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
_FRONT = ("-h", "--help", "help", "-V", "--version")


class Command(NamedTuple):
    """Where a command lives, and its line in the help."""

    home: str
    usage: str
    help: str


COMMANDS = {
    "train": Command("training:train", "DATA", "train one method, write a report"),
    "compare": Command("training:compare", "DATA --methods A,B,...", "methods side by side"),
    "inspect": Command("looking:inspect", "DATA", "counts, problems, a suggested command"),
    "evaluate": Command("looking:evaluate", "RUN [DATA]", "measure a trained model again"),
    "report": Command("looking:report", "RUN...", "one page about one run or several"),
    "list": Command("looking:list_names", "WHAT", "methods, sources, models, protocols, tables"),
    "tune": Command("research:tune", "DATA", "two-stage search on a validation split"),
    "paper": Command("research:paper", "list|run|show|figure", "the paper's tables and figures"),
    "lab": Command("research:lab", "ls|show|gc", "what the store of phases holds"),
}

_EXTRA = {"tyro", "rich", "lightning_fabric", "safetensors", "matplotlib", "jinja2", "optuna"}


def usage() -> str:
    """Return what ``classwise --help`` prints."""
    lines = [
        "usage: classwise COMMAND ...",
        "",
        "Train and compare classifiers on class-imbalanced data.",
        "",
    ]
    width = max(len(f"{name} {c.usage}") for name, c in COMMANDS.items())
    for name, command in COMMANDS.items():
        lines.append(f"  {f'{name} {command.usage}':<{width}}   {command.help}")
    lines += [
        "",
        "  --version   --debug (show where an error came from)",
        "",
        "classwise COMMAND --help tells more. To begin:",
        "  classwise compare digits --imbalance exp:50 --methods ce,la,cvs+adrw --seeds 3",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        code = _run(words[0], words[1:]) if words and words[0] not in _FRONT else _front(words)
        sys.stdout.flush()  # here, where a reader that has left can be told from a failure
        return code
    except BrokenPipeError:  # whoever read the output has left: `| head`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (nothing is to flush into the pipe)
        return FAILED
    except SystemExit as stop:  # from the parser of flags
        return stop.code if isinstance(stop.code, int) else WRONG_USAGE
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        message, code = _explained(error)
        print(f"classwise: {' '.join(message.split())}", file=sys.stderr)
        return code


def _front(words: list[str]) -> int:
    if words and words[0] in ("-V", "--version"):
        from classwise import __version__  # noqa: PLC0415

        print(f"classwise {__version__}")
        return DONE
    print(usage())
    return DONE if words else WRONG_USAGE


def _run(name: str, words: list[str]) -> int:
    if name not in COMMANDS:
        from classwise._checks import nearest  # noqa: PLC0415

        raise ArgumentError(
            f"there is no command {name!r}{nearest(name, list(COMMANDS))} "
            f"Commands: {', '.join(COMMANDS)}."
        )
    module, function = COMMANDS[name].home.split(":")
    command = getattr(importlib.import_module(f"classwise.cli.{module}"), function)
    return command(words) or DONE


def _explained(error: BaseException) -> tuple[str, int]:
    """Return what to say of an error, and the exit code."""
    first = (str(error).strip() or "no message").splitlines()[0]
    if isinstance(error, KeyboardInterrupt):
        said = ("interrupted", INTERRUPTED)
    elif type(error).__name__ == "Interrupted":
        said = (str(error), INTERRUPTED)
    elif isinstance(error, ArgumentError):
        said = (str(error), WRONG_USAGE)
    elif isinstance(error, ModuleNotFoundError) and error.name in _EXTRA:
        said = (f'{error.name} is not installed; pip install "classwise[lab]".', FAILED)
    elif isinstance(error, ClasswiseError):
        said = (str(error), FAILED)
    elif isinstance(error, OSError) and error.filename is not None:
        said = (f"{error.filename}: {error.strerror}.", FAILED)
    else:
        said = (f"{type(error).__name__}: {first} (--debug shows where)", FAILED)
    return said
