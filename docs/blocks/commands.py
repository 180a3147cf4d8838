"""The command line, from the dataclasses that its flags are made of."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

import tyro

from blocks.markdown import arguments, paragraphs, table
from classwise.cli import COMMANDS, looking, research, training
from classwise.train.protocols import PROTOCOLS
from classwise.train.schedules import SCHEDULES

FLAGS: dict[str, type] = {
    "train": training.TrainFlags,
    "compare": training.CompareFlags,
    "inspect": looking.InspectFlags,
    "evaluate": looking.EvaluateFlags,
    "report": looking.ReportFlags,
    "list": looking.ListFlags,
    "tune": research.TuneFlags,
    "paper": research.PaperFlags,
    "lab": research.LabFlags,
}

# Parts of a configuration, in words; those of a run are the same for train, compare and tune.
_RUN = {
    "data": "Data",
    "model": "Model",
    "method": "Method",
    "optim": "Optimisation",
    "run": "The rest",
}
_SHARED = ("settings", "output")
_POSITIONAL = typing.get_args(tyro.conf.Positional[int])[1]


class Flag(NamedTuple):
    """One flag, or one argument by position.

    Args:
        part: of the configuration that it belongs to, or an empty string.
        name: as it is written.
        value: what follows it.
        default: in words.
        help: what it does.
    """

    part: str
    name: str
    value: str
    default: str
    help: str


def flags_of(kind: type, part: str = "") -> Iterator[Flag]:
    """Yield the flags of a command's dataclass, nested ones under the name of their part."""
    hints, said = typing.get_type_hints(kind, include_extras=True), arguments(kind)
    for field in dataclasses.fields(kind):
        hint, marks = _unpacked(hints[field.name])
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from flags_of(hint, field.name)
            continue
        positional = any(mark is _POSITIONAL for mark in marks)
        flag = "--" + field.name.replace("_", "-")
        if positional:
            name = "DATA" if field.name == "source" else field.name.upper()
        else:
            name = f"{flag}, --no-{flag[2:]}" if hint is bool and not marks else flag
        yield Flag(
            part,
            name,
            "" if positional or hint is bool else _value(hint),
            "" if positional else _default(field),
            said[field.name],
        )


def _unpacked(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a type without what it is annotated with, and that."""
    if typing.get_origin(hint) is typing.Annotated:
        bare, *marks = typing.get_args(hint)
        return bare, tuple(marks)
    return hint, ()


def _value(hint: Any) -> str:
    """Return what follows a flag: ``INT or FLOAT``."""
    union = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kinds = [kind for kind in union if kind is not types.NoneType]
    if typing.get_origin(kinds[0]) is tuple:
        return f"{_value(typing.get_args(kinds[0])[0])} ..."
    return " or ".join("TEXT" if kind is str else str(kind.__name__).upper() for kind in kinds)


def _default(field: dataclasses.Field[Any]) -> str:
    """Return a default in words; nothing for what is off or empty."""
    value = field.default
    if value is True:
        return "on"
    if value is None:
        return "`auto`"
    if value is False or value in ("", ()):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _rows(flags: list[Flag]) -> str:
    rows = [[f"`{' '.join(filter(None, (f.name, f.value)))}`", f.default, f.help] for f in flags]
    return table(["flag", "default", "what it is"], rows)


def usage() -> str:
    """Return the commands, a line each."""
    rows = [
        [f"[`{name}`](#classwise-{name})", f"`{c.usage}`", c.help] for name, c in COMMANDS.items()
    ]
    return table(["`classwise ...`", "takes", "what it does"], rows)


def run_settings() -> str:
    """Return the settings of a run, which train, compare and tune take as flags."""
    flags = [f for f in flags_of(training.TrainFlags) if f.part in _RUN and f.name != "DATA"]
    tables = (
        f"### {title}\n\n{_rows([f for f in flags if f.part == part])}"
        for part, title in _RUN.items()
    )
    return "\n".join(tables)


def shared_flags() -> str:
    """Return what settings and output take in every command that has them."""
    return _rows([f for f in flags_of(training.TrainFlags) if f.part in _SHARED])


def commands() -> str:
    """Return a section for each command, without what several commands share."""
    parts = []
    for name, command in COMMANDS.items():
        kind = FLAGS[name]
        said = " ".join(" ".join(paragraph.split()) for paragraph in paragraphs(kind))
        flags = list(flags_of(kind))
        own = [f for f in flags if f.name.startswith("--") and f.part not in {*_RUN, *_SHARED}]
        given = [f for f in flags if not f.name.startswith("--")]
        parts += [f"## `classwise {name}`\n", f"{said}\n"]
        parts += [f"```text\nclasswise {name} {command.usage}\n```\n"]
        parts += ["".join(f"- `{f.name}`: {f.help}\n" for f in given)]
        if any(f.part in _RUN for f in flags):
            parts += ["All [settings of a run](#settings-of-a-run) are flags of it. Its own:\n"]
        if own:
            parts += [_rows(own)]
    return "\n".join(parts)


def protocols() -> str:
    """Return the protocols with their settings."""
    rows = [
        [f"`{p.name}`", p.title, ", ".join(f"`{k}={v}`" for k, v in p.values.items()), p.source]
        for p in PROTOCOLS.values()
    ]
    return table(["protocol", "what it is", "settings", "source"], rows)


def schedules() -> str:
    """Return the schedules of the learning rate."""
    rows = [[f"`{name}`", spec.title, spec.source] for name, spec in SCHEDULES.items()]
    return table(["schedule", "what it does", "source"], rows)
