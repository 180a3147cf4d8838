"""Everything that classwise raises.

ClasswiseError
├── ArgumentError (ValueError)       an argument that cannot be right
│   ├── UnknownNameError             a name that does not exist; says which one is near
│   └── RecipeError                  a combination of methods that means nothing
├── DataError (ValueError)           files that are missing, corrupt or not what they say
└── StateError (RuntimeError)        the right call at the wrong time
    └── CheckpointError              a state that belongs to something else

ClasswiseWarning (UserWarning)       something was left out; says what and how much
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "CheckpointError",
    "ClasswiseError",
    "ClasswiseWarning",
    "DataError",
    "RecipeError",
    "StateError",
    "UnknownNameError",
]


class ClasswiseError(Exception):
    """The root of all errors that classwise raises on purpose."""


class ArgumentError(ClasswiseError, ValueError):
    """An argument has a wrong value, type, shape or length."""


class UnknownNameError(ArgumentError):
    """A name is not one of those that exist."""


class RecipeError(ArgumentError):
    """Parts of a recipe do not go together."""


class DataError(ClasswiseError, ValueError):
    """A data set is missing, corrupt, empty or not in the format that it claims."""


class StateError(ClasswiseError, RuntimeError):
    """A call came at a time when it cannot be answered."""


class CheckpointError(StateError):
    """A saved state belongs to other counts, another method or another version."""


class ClasswiseWarning(UserWarning):
    """Data was left out of a statistic; training goes on."""
