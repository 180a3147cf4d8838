"""Reading TOML strictly: every key is known and of the right type, or the file is refused."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any, TypeAlias

from classwise._checks import nearest
from classwise.errors import DataError

__all__ = ["FILES", "Reader", "Scalar", "read_toml"]

Scalar: TypeAlias = str | int | float | bool

FILES: Traversable = resources.files(__package__ or "classwise.paper")
"""The folder of the paper's files, wherever the package is installed."""

_REQUIRED: Any = object()


def read_toml(file: Traversable) -> Reader:
    """Return the content of a TOML file, to be read key by key."""
    try:
        return Reader(tomllib.loads(file.read_text(encoding="utf-8")), file.name)
    except FileNotFoundError:
        raise DataError(f"there is no file {file}.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{file.name} cannot be read: {error}") from error


class Reader:
    """A TOML table of which every key must be asked for.

    Args:
        values: the table.
        where: the file and the place in it, for messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where
        self.asked: set[str] = set()

    def error(self, message: str) -> DataError:
        """Return an error that begins with the place."""
        return DataError(f"{self.where}: {message}")

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return text."""
        return self._get(key, (str,), "text", default)

    def whole(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return a whole number."""
        return self._get(key, (int,), "a whole number", default)

    def truth(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return a truth value."""
        return self._get(key, (bool,), "true or false", default)

    def number(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return a number as a float."""
        value = self._get(key, (int, float), "a number", default)
        return float(value) if isinstance(value, int) else value

    def scalars(self, key: str, default: Any = _REQUIRED) -> dict[str, Scalar]:
        """Return a table of text, numbers and truth values."""
        table = self._get(key, (dict,), "a table", default)
        for name, value in table.items():
            if not isinstance(value, (str, int, float, bool)):
                raise self.error(f"{key}.{name}={value!r} must be text, a number or a truth value.")
        return dict(table)

    def texts(self, key: str, default: Any = _REQUIRED) -> tuple[str, ...]:
        """Return a list of text."""
        return tuple(self._list(key, (str,), "text", default))

    def numbers(self, key: str, default: Any = _REQUIRED) -> tuple[float | None, ...]:
        """Return a list of numbers; "-" stands for one that is not there and becomes None."""
        values = self._list(key, (int, float, str), 'numbers or "-"', default)
        for value in values:
            if isinstance(value, str) and value != "-":
                raise self.error(f'{key} must hold numbers or "-", got {value!r}.')
        return tuple(None if value == "-" else float(value) for value in values)

    def lists(self, key: str) -> dict[str, tuple[Scalar, ...]]:
        """Return a table of lists; a single value is a list of one."""
        table = self._get(key, (dict,), "a table", {})
        lists = {name: v if isinstance(v, list) else [v] for name, v in table.items()}
        for name, values in lists.items():
            if not values or not all(isinstance(v, (str, int, float)) for v in values):
                raise self.error(f"{key}.{name}={values!r} must be text or numbers, at least one.")
        return {name: tuple(values) for name, values in lists.items()}

    def tables(self, key: str, default: Any = _REQUIRED) -> Iterator[Reader]:
        """Yield readers of a list of tables."""
        for number, table in enumerate(self._list(key, (dict,), "tables", default)):
            yield Reader(table, f"{self.where}: {key}[{number}]")

    def named(self) -> Iterator[tuple[str, Reader]]:
        """Yield name and reader of each value, all of which must be tables."""
        for name in self.values:
            yield name, Reader(self._get(name, (dict,), "a table", _REQUIRED), self._at(name))

    def choice(self, key: str, known: Collection[str], default: Any = _REQUIRED) -> Any:
        """Return one of some known words."""
        value = self.text(key, default)
        return value if value is default else self.known(key, value, known)

    def known(self, what: str, word: str, known: Collection[str]) -> str:
        """Return a word that was read if it is one of some known ones."""
        if word not in known:
            listed = ", ".join(repr(legal) for legal in known)
            raise self.error(f"{what}={word!r} is unknown{nearest(word, known)} Known: {listed}.")
        return word

    def done(self) -> None:
        """Refuse keys that nothing asked for."""
        for key in self.values:
            if key not in self.asked:
                raise self.error(
                    f"{key!r} is unknown{nearest(key, self.asked)} "
                    f"Known: {', '.join(sorted(self.asked))}."
                )

    def _at(self, key: str) -> str:
        return f"{self.where}: {key}"

    def _get(self, key: str, kinds: tuple[type, ...], legal: str, default: Any) -> Any:
        self.asked.add(key)
        if key not in self.values:
            if default is _REQUIRED:
                raise self.error(f"{key!r} is missing; it must be {legal}.")
            return default
        value = self.values[key]
        # A truth value is an int to Python, and never meant as one here.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.error(f"{key}={value!r} must be {legal}, got {type(value).__name__}.")
        return value

    def _list(self, key: str, kinds: tuple[type, ...], legal: str, default: Any) -> list[Any]:
        values = self._get(key, (list,), f"a list of {legal}", default)
        for value in values:
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                raise self.error(f"{key} must be a list of {legal}, it holds {value!r}.")
        return list(values)
