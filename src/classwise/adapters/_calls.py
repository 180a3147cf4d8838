"""Seeing the calls of a criterion that somebody else makes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from classwise.criterion import Criterion

__all__ = ["Handle", "argument", "before_calls"]

Before: TypeAlias = Callable[[Any, dict[str, Any]], dict[str, Any]]


class Handle(Protocol):
    """What undoes something."""

    def remove(self) -> None:
        """Undo it."""


class _Replaced:
    """An attribute of an object that is another one until ``remove``."""

    def __init__(self, owner: object, name: str, value: object) -> None:
        self._owner, self._name = owner, name
        vars(owner)[name] = value

    def remove(self) -> None:
        vars(self._owner).pop(self._name, None)


def before_calls(criterion: Criterion, before: Before) -> list[Handle]:
    """Have ``before`` see the target and the keywords of every call, and change the keywords.

    Calls are those of the criterion and of its ``linear``, for which torch has no hooks. A compiler
    does not look into ``before``, whose state is another in every step.
    """
    unseen: Any = torch.compiler.disable(before)

    def forward(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args, unseen(argument(1, "target", args, kwargs), kwargs)

    def linear(of: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        return of(*args, **unseen(argument(3, "target", args, kwargs), kwargs))

    return [
        criterion.register_forward_pre_hook(forward, with_kwargs=True),
        _Replaced(criterion, "linear", functools.partial(linear, criterion.linear)),
    ]


def argument(place: int, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return an argument of a call, by its place or by its name; None if it was not given."""
    return args[place] if len(args) > place else kwargs.get(name)
