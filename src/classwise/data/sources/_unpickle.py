"""Pickles of plain data and numpy arrays, read without running anything that they name.

A pickle is a program that may call any function. The Toronto files need three: those that rebuild
an array. Stand-ins of our own take their places, so that not even numpy's are called; every other
name is refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from classwise.data.findings import shown
from classwise.errors import DataError

__all__ = ["unpickle"]


class _DType:
    """What a pickle says of a data type: only its code, such as ``u1``."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like: bytes have none."""

    def bytes_only(self) -> None:
        if self.code not in ("u1", "|u1", "uint8", "B"):
            raise pickle.UnpicklingError(f"an array of {self.code!r} where uint8 is expected")


class _Array:
    """What a pickle says of an array."""

    value: np.ndarray

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, is_fortran, raw = state
        self.value = _array(raw, dtype, shape, "F" if is_fortran else "C")


def _array(raw: object, dtype: object, shape: object, order: object = "C") -> np.ndarray:
    if not isinstance(dtype, _DType) or not isinstance(raw, (bytes, bytearray)):
        raise pickle.UnpicklingError("an array that is not made of bytes")
    dtype.bytes_only()
    fortran = order == "F"
    sizes = tuple(int(n) for n in shape)  # type: ignore[attr-defined]  # whatever comes is caught
    return np.frombuffer(raw, np.uint8).reshape(sizes, order="F" if fortran else "C")


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _from_buffer(raw: object, dtype: object, shape: object, order: object) -> _Array:
    made = _Array()
    made.value = _array(raw, dtype, shape, order)
    return made


def _encode(text: object, encoding: object) -> bytes:
    """How Python 3 writes bytes in the protocols of Python 2."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("_codecs.encode of something else than latin1 text")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _encode,
    ("numpy", "dtype"): _DType,
    ("numpy", "ndarray"): _Array,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): _reconstruct for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): _from_buffer for core in ("core", "_core")},
}


class _Reader(pickle._Unpickler):  # in Python: the one in C trusts sizes that a file claims
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}, which is refused")
        return _ALLOWED[module, name]


def unpickle(content: bytes) -> dict[str, Any]:
    """Return the dictionary in a pickle, its keys as text, its arrays uint8.

    Raises:
        DataError: it is damaged, holds something else, or names a function.

    >>> unpickle(pickle.dumps({"labels": [3, 1], "data": np.zeros((2, 3), np.uint8)}))["labels"]
    [3, 1]
    >>> unpickle(pickle.dumps({"labels": print}))
    Traceback (most recent call last):
    classwise.errors.DataError: not a readable pickle: it wants to call builtins.print, which ...
    """
    try:
        value = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged program fails in any way
        raise DataError(f"not a readable pickle: {shown(error) or type(error).__name__}") from error
    if not isinstance(value, dict):
        raise DataError(f"a pickle of {type(value).__name__} where a dictionary is expected")
    return {_text(key): _plain(entry) for key, entry in value.items()}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _plain(value: object) -> object:
    if isinstance(value, _Array):
        if not hasattr(value, "value"):
            raise DataError("not a readable pickle: an array without content")
        return value.value
    return value
