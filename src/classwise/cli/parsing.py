"""From words to dataclasses: tyro, with a short help and errors of one line."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import io
import itertools
import re
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from classwise._checks import nearest
from classwise.errors import ArgumentError

__all__ = ["HELP_ALL", "parse"]

HELP_ALL = "--help-all"

OFTEN = {
    *("source", "imbalance", "val", "model", "method"),
    *("epochs", "batch_size", "lr", "seed", "device", "devices"),
}
"""Settings of a run that the short help shows."""

T = TypeVar("T")


def parse(kind: type[T], words: Sequence[str], *, prog: str, default: T | None = None) -> T:
    """Return the flags of a command.

    Args:
        kind: dataclass of the flags.
        words: of the command line.
        prog: the command.
        default: what the flags override.

    Raises:
        ArgumentError: for wrong usage, in one line.
        SystemExit: after printing the help.
    """
    _check_names(kind, words)
    hides = HELP_ALL not in words and bool({"-h", "--help"} & set(words)) and _hides(kind)
    shown = _shown(kind, not hides)
    about = inspect.cleandoc(kind.__doc__ or "").partition("Args:")[0].strip()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                shown,
                prog=f"classwise {prog}",
                description=about + (f"\n\n{HELP_ALL} shows every setting." if hides else ""),
                args=["--help" if word == HELP_ALL else word for word in words],
                default=None if default is None else _like(shown, default),
                config=(tyro.conf.OmitArgPrefixes,),
                registry=_REGISTRY,
            )
    except SystemExit as stop:
        if not stop.code:
            raise
    raise ArgumentError(f"{_sentence(said.getvalue(), prog)} (classwise {prog} --help)")


_REGISTRY = ConstructorRegistry()


@_REGISTRY.primitive_rule
def _auto(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[None] | None:
    """Call None "auto", as a run's settings do."""
    if info.type is not types.NoneType:
        return None

    def read(words: list[str]) -> None:
        if words != ["auto"]:
            raise ValueError("not auto")

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="auto",
        instance_from_str=read,
        is_instance=lambda value: value is None,
        str_from_instance=lambda value: ["auto"],
    )


# The short help


def _hides(kind: type) -> bool:
    """Whether a command has the settings of a run, most of which are rare."""
    return dataclasses.is_dataclass(typing.get_type_hints(kind).get("run"))


@functools.cache
def _shown(kind: Any, everything: bool, often: frozenset[str] | None = None) -> Any:
    """Return a subclass whose rare settings, unless all are wanted, are left out of the help.

    Args:
        kind: a dataclass of flags.
        everything: whether all are wanted.
        often: those that are not rare; None is all of this class's own.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    # A command with --methods has no use for --method.
    inside = frozenset(OFTEN - {"method"} if "methods" in hints else OFTEN)
    fields = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        copy = dataclasses.field(default=field.default, default_factory=field.default_factory)
        if dataclasses.is_dataclass(hint):
            own = often is None and field.name in ("settings", "output")
            title = "" if field.name == "run" else field.name
            part = _shown(hint, everything, None if own else often or inside)
            hint = Annotated[part, tyro.conf.arg(name=title)]
            copy = dataclasses.field(default_factory=functools.partial(_made, part, field))
        elif not (everything or often is None or field.name in often):
            hint = Annotated[hint, tyro.conf.Suppress]
        if field.default == () or tyro.conf.FlagCreatePairsOff in typing.get_args(hint):
            hint = Annotated[hint, tyro.conf.arg(help_behavior_hint="")]
        fields.append((field.name, hint, copy))
    made = dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True)
    made.__doc__ = kind.__doc__
    return made


def _made(kind: Any, field: Any) -> Any:
    """Return the default of a part of the flags."""
    return _like(kind, field.default_factory())


def _like(kind: Any, value: Any) -> Any:
    """Return ``value`` as an instance of the subclass that ``_shown`` made of its class."""
    hints = typing.get_type_hints(kind)
    parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(kind)}
    for name, part in parts.items():
        if dataclasses.is_dataclass(part):
            parts[name] = _like(hints[name], part)
    return kind(**parts)


# Errors


def _names(kind: Any) -> list[str]:
    """Return all flags of a command."""
    found = []
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            found += _names(hints[field.name])
        else:
            name = field.name.replace("_", "-")
            # What can only be switched on is annotated so, and then no plain bool.
            found += [f"--{name}"] + [f"--no-{name}"] * (hints[field.name] is bool)
    return found


def _check_names(kind: type, words: Sequence[str]) -> None:
    known = ["--help", HELP_ALL, *_names(kind)]
    for word in itertools.takewhile(lambda word: word != "--", words):
        name = word.partition("=")[0].replace("_", "-")
        if name.startswith("--") and name not in known:
            raise ArgumentError(
                f"there is no flag {name}{nearest(name, known)} {HELP_ALL} shows every one."
            )


def _sentence(box: str, prog: str) -> str:
    """Return what tyro printed in a box as a sentence."""
    lines = [line.strip(" │|") for line in box.splitlines()]
    # Rules of a box: its top with the title, between its parts, its bottom.
    rules = [n for n, line in enumerate(lines) if re.search("[─-]{8}$|^[╭+]", line)]
    first = " ".join(" ".join(lines[rules[0] + 1 : rules[1]]).split()) if len(rules) > 1 else box
    if found := re.match(r"Error parsing (\S+): no type matching (\S+) could .*?\[(.*?)\]", first):
        flag, wanted, got = found.groups()
        return f"{flag} {got} must be {wanted.replace('|', ' or ')}."
    if found := re.match(r"Error parsing (\S+): invalid literal for int.*?: (.*)", first):
        return f"{found[1]} {found[2]} must be INT."
    if found := re.match(r"Error parsing (\S+): (.*)", first):
        return f"{found[1]}: {found[2]}"
    if found := re.match(r"Unrecognized(?: or misplaced)? options: (.*)", first):
        return f"{found[1]}: there is no place for this."
    if found := re.match(r"Missing from classwise \S+: (.*)", first):
        name, _, what = found[1].replace(" (required)", "").partition(" ")
        return f"{prog} needs {name}: {what}"
    return " ".join(first.split())
