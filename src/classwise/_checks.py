"""Argument checks: each either returns the value in its canonical form or says what is legal."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from classwise.errors import ArgumentError, UnknownNameError

__all__ = [
    "ClassCounts",
    "check_ignore_index",
    "check_length",
    "class_counts_tensor",
    "class_vector",
    "class_weight",
    "known_name",
    "log_prior",
    "nearest",
    "number",
    "tensor_of_logits",
    "tensor_of_target",
    "whole_number",
]

ClassCounts: TypeAlias = Tensor | np.ndarray | Sequence[int]


def nearest(name: str, known: Collection[str]) -> str:
    """End a sentence with ``", did you mean 'x'?"`` where a known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else "."


def known_name(argument: str, name: object, known: Collection[str]) -> str:
    """Return ``name`` if it is one of ``known``."""
    if isinstance(name, str) and name in known:
        return name
    hint = nearest(name, known) if isinstance(name, str) else "."
    listed = ", ".join(repr(k) for k in known)
    raise UnknownNameError(f"{argument}={name!r} is unknown{hint} Known: {listed}.")


def number(
    argument: str,
    value: object,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    low_open: bool = False,
    high_open: bool = False,
) -> float:
    """Return ``value`` as a float inside the interval."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise ArgumentError(f"{argument}={value!r} must be a number, got {type(value).__name__}.")
    as_float = float(value)
    above = as_float > low if low_open else as_float >= low
    below = as_float < high if high_open else as_float <= high
    if not (above and below and -math.inf < as_float < math.inf):  # isfinite does not compile
        left = ("(" if low_open else "[") + f"{low:g}"
        right = f"{high:g}" + (")" if high_open or high == math.inf else "]")
        raise ArgumentError(f"{argument}={value!r} is out of range, legal is {left}, {right}.")
    return as_float


def whole_number(argument: str, value: object, *, low: int, high: int | None = None) -> int:
    """Return ``value`` as an int inside [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise ArgumentError(
            f"{argument}={value!r} must be a whole number, got {type(value).__name__}."
        )
    if value < low or (high is not None and value > high):
        upper = "" if high is None else f" and at most {high}"
        raise ArgumentError(f"{argument}={value!r} must be at least {low}{upper}.")
    return int(value)


def class_counts_tensor(class_counts: ClassCounts, *, allow_empty: bool | None = None) -> Tensor:
    """Return training counts as an int64 tensor of shape (C,) on the CPU.

    ``allow_empty`` None is False where the caller has no such argument to advise.
    """
    wrong_kind = ArgumentError(
        "class_counts must be a one-dimensional sequence of whole numbers, one for each class, "
        f"got {_describe(class_counts)}."
    )
    try:
        counts = _own_tensor(class_counts).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise wrong_kind from error
    if counts.ndim != 1:
        raise wrong_kind
    if counts.numel() < 2:
        raise ArgumentError(f"class_counts must name at least 2 classes, got {counts.numel()}.")
    if counts.is_floating_point() or counts.is_complex() or counts.dtype == torch.bool:
        raise ArgumentError(
            f"class_counts must be whole numbers, got {_describe(class_counts)}; "
            "pass the number of training samples of each class, not its frequency."
        )
    counts = counts.to(torch.int64)
    if int(counts.min()) < 0:
        wrong = int(counts.argmin())
        raise ArgumentError(f"class_counts[{wrong}]={int(counts[wrong])} is negative.")
    if not allow_empty and int(counts.min()) == 0:
        empty = torch.nonzero(counts == 0).flatten().tolist()
        shown = ", ".join(map(str, empty[:5])) + (", ..." if len(empty) > 5 else "")
        advice = "Remove them from the label set" + (
            "."
            if allow_empty is None
            else ", or pass allow_empty=True to treat each as a class of one sample."
        )
        raise ArgumentError(
            f"class_counts has {len(empty)} class(es) without samples (index {shown}). {advice}"
        )
    if int(counts.max()) == 0:
        raise ArgumentError("class_counts has no sample in any class.")
    return counts


def log_prior(class_counts: ClassCounts, *, allow_empty: bool | None = None) -> Tensor:
    """Return log(N_y / N) in float64; an empty class counts as one sample where allowed."""
    counts = class_counts_tensor(class_counts, allow_empty=allow_empty).clamp(min=1).double()
    return counts.log() - counts.sum().log()


def class_vector(argument: str, value: object, num_classes: int | None = None) -> Tensor:
    """Return ``value`` as a finite floating tensor of shape (C,)."""
    try:
        vector = _own_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"{argument} must be numbers, one for each class, got {_describe(value)}."
        ) from error
    if vector.is_complex() or vector.dtype == torch.bool:
        raise ArgumentError(f"{argument} must be real numbers, got dtype {vector.dtype}.")
    if vector.ndim != 1:
        raise ArgumentError(f"{argument} must have shape (C,), got {tuple(vector.shape)}.")
    if num_classes is not None:
        check_length(argument, vector, num_classes)
    if not vector.is_floating_point():
        vector = vector.double()
    if not bool(torch.isfinite(vector).all()):
        wrong = int(torch.nonzero(~torch.isfinite(vector))[0])
        raise ArgumentError(f"{argument}[{wrong}]={float(vector[wrong])} is not finite.")
    return vector


def check_length(argument: str, vector: Tensor | None, num_classes: int) -> None:
    """Raise unless a class vector has an entry for each class; None is fine."""
    if vector is not None and len(vector) != num_classes:
        raise ArgumentError(
            f"{argument} has {len(vector)} entries where there are {num_classes} classes."
        )


def class_weight(weight: object) -> Tensor | None:
    """Return class weights as a vector of finite numbers >= 0; None stays None."""
    if weight is None or (isinstance(weight, Tensor) and torch.compiler.is_compiling()):
        return weight  # a compiled graph cannot look at values
    vector = class_vector("weight", weight)
    if bool((vector < 0).any()):
        wrong = int(vector.argmin())
        raise ArgumentError(f"weight[{wrong}]={float(vector[wrong])} must be >= 0.")
    return vector


def tensor_of_logits(logits: object, num_classes: int | None = None) -> Tensor:
    """Return ``logits`` if they are a floating tensor (N, C) or (N, C, d1, ...)."""
    if not isinstance(logits, Tensor):
        raise ArgumentError(f"logits must be a torch.Tensor, got {_describe(logits)}.")
    if not logits.is_floating_point():
        raise ArgumentError(
            f"logits must be floating point, got dtype {logits.dtype}; "
            "pass the raw output of the model, not predicted labels."
        )
    if logits.ndim < 2:
        raise ArgumentError(
            f"logits must have shape (N, C) or (N, C, d1, ...), got {tuple(logits.shape)}."
        )
    if num_classes is not None and logits.shape[1] != num_classes:
        raise ArgumentError(
            f"logits have {logits.shape[1]} classes (shape {tuple(logits.shape)}) where "
            f"{num_classes} are expected."
        )
    return logits


def tensor_of_target(target: object, logits: Tensor, ignore_index: int) -> Tensor:
    """Return ``target`` if it holds class indices or class probabilities that fit ``logits``.

    Indices are checked for range on the CPU only: elsewhere the check would make the host wait
    for the device, and the kernels of torch assert there.
    """
    check_ignore_index(ignore_index)
    if not isinstance(target, Tensor):
        raise ArgumentError(f"target must be a torch.Tensor, got {_describe(target)}.")
    shape, classes = tuple(logits.shape), logits.shape[1]
    expected = (shape[0], *shape[2:])
    if target.is_floating_point():
        if tuple(target.shape) != shape:
            raise ArgumentError(
                f"a floating-point target holds class probabilities and must have the shape of "
                f"the logits {shape}, got {tuple(target.shape)}; class indices must be int64."
            )
    elif target.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise ArgumentError(f"target must be int64 indices or probabilities, got {target.dtype}.")
    elif tuple(target.shape) != expected:
        one_hot = tuple(target.shape) == shape
        hint = "; cast a one-hot target to floating point" if one_hot else ""
        raise ArgumentError(
            f"target must have shape {expected} for logits of shape {shape}, "
            f"got {tuple(target.shape)}{hint}."
        )
    if target.device != logits.device:
        raise ArgumentError(f"target is on {target.device} but logits are on {logits.device}.")
    if target.is_floating_point():
        return target
    target = target.long()  # before comparisons: a uint8 target cannot be compared with -100
    if target.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_range(target, classes, ignore_index)
    return target


def check_ignore_index(ignore_index: object) -> None:
    """Raise unless ``ignore_index`` is a whole number; any is legal."""
    if not torch.compiler.is_compiling():
        whole_number("ignore_index", ignore_index, low=torch.iinfo(torch.int64).min)


def _own_tensor(value: object) -> Tensor:
    """Return a copy, so that changing what was passed changes nothing here.

    Lists go through numpy, which keeps Python's floats in double precision.
    """
    if isinstance(value, Tensor):
        return value.detach().clone()
    return torch.from_numpy(np.array(value))


def _check_range(target: Tensor, classes: int, ignore_index: int) -> None:
    if target.numel():
        low, high = target.aminmax()  # one pass where all is well, which is nearly always
        if int(low) >= 0 and int(high) < classes:
            return
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if bool(wrong.any()):
        first = int(target[wrong][0])
        raise ArgumentError(
            f"target holds {first}, legal are 0 to {classes - 1} and ignore_index={ignore_index} "
            f"({int(wrong.sum())} of {target.numel()} are out of range)."
        )


def _describe(value: object) -> str:
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{type(value).__name__} of shape {tuple(value.shape)} and dtype {value.dtype}"
    text = " ".join(repr(value).split())  # one line, also of a tensor in a tuple
    return f"{type(value).__name__} {text if len(text) < 60 else text[:57] + '...'}"
