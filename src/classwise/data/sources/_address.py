"""Where data lies: ``scheme:place#option=value&option=value``."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from classwise._checks import known_name
from classwise.data.findings import shown
from classwise.errors import ArgumentError, DataError

__all__ = ["ROOT_VARIABLE", "Address"]

ROOT_VARIABLE = "CLASSWISE_DATA"

_OPTIONS = re.compile(r"#(?P<options>[a-z]+=[^#]*)$", re.DOTALL)


@dataclass(frozen=True)
class Address:
    """A parsed URI.

    >>> Address.parse("csv:people.csv#target=income")
    Address(scheme='csv', place='people.csv', options={'target': 'income'})
    """

    scheme: str
    place: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, uri: object) -> Address:
        """Read a URI; which schemes and options exist is not known here."""
        if not isinstance(uri, str) or not uri.strip():
            raise ArgumentError(f"data={uri!r} must be text such as 'digits' or 'folder:photos'.")
        found = _OPTIONS.search(uri)
        scheme, _, place = (uri[: found.start()] if found else uri).partition(":")
        options: dict[str, str] = {}
        if found:
            for part in found["options"].split("&"):
                name, equals, value = part.partition("=")
                if not equals or name in options:
                    raise ArgumentError(
                        f"data={shown(uri)!r}: {shown(part)!r} must be option=value, each once."
                    )
                options[name] = value
        return cls(scheme, place, options)

    def __str__(self) -> str:
        text = self.scheme + (f":{self.place}" if self.place else "")
        joined = "&".join(f"{name}={value}" for name, value in self.options.items())
        return text + (f"#{joined}" if joined else "")

    def check_options(self, known: Collection[str]) -> None:
        """Refuse options that the scheme does not have."""
        for name in self.options:
            if not known:
                raise ArgumentError(f"{self.scheme} takes no options, got #{shown(name)}=.")
            known_name(f"option of {self.scheme}", name, known)

    def required_place(self, form: str) -> Path:
        """Return the place, which this scheme cannot do without."""
        if not self.place:
            raise ArgumentError(f"{self.scheme} needs a place: {form}.")
        if "\0" in self.place:
            raise ArgumentError(f"data={shown(self)!r}: a path has no NUL in it.")
        return Path(self.place).expanduser()

    def place_or_default(self) -> Path:
        """Return the place, or the folder of this name in the one named by CLASSWISE_DATA."""
        if self.place:
            return self.required_place("")
        root = os.environ.get(ROOT_VARIABLE)
        if not root:
            raise DataError(
                f"{self.scheme}: which folder? Write {self.scheme}:DIR, or set {ROOT_VARIABLE} to "
                f"a folder that has {self.scheme}/ in it."
            )
        place = Path(root).expanduser() / self.scheme
        if not place.is_dir():
            raise DataError(
                f"{self.scheme}: {ROOT_VARIABLE} is {shown(root)!r}, which has no folder "
                f"{self.scheme}. Put the data there, or write {self.scheme}:DIR."
            )
        return place
