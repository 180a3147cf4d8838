"""Which image operations are applied, how often and how strongly: AutoAugment and RandAugment."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from classwise.data._image_ops import OPERATIONS, operate

__all__ = ["Operation", "Policy", "autoaugment", "randaugment"]

_CODES = {name: code for code, name in enumerate(OPERATIONS)}
_SIGNED = ("shear-x", "shear-y", "translate-x", "translate-y")
_ENHANCE = ("brightness", "color", "contrast", "sharpness")
_FIXED = ("identity", "autocontrast", "equalize", "invert")


class Operation(NamedTuple):
    """An operation with argument ``base`` plus or minus ``span``, done with a probability."""

    name: str
    probability: float
    base: float
    span: float = 0.0


def _operation(name: str, probability: float, strength: float) -> Operation:
    """Return an operation of a strength in [0, 1], with the ranges of AutoAugment."""
    if name in _FIXED:
        return Operation(name, probability, 0)
    if name in _ENHANCE:
        return Operation(name, probability, 1, 0.9 * strength)
    if name in _SIGNED:
        largest = 0.3 if name.startswith("shear") else 150 / 331
        return Operation(name, probability, 0, largest * strength)
    base = {
        "rotate": 30 * strength,
        "posterize": round(8 - 4 * strength),
        "solarize": 256 * (1 - strength),
    }
    return Operation(name, probability, base[name])


# The policy for CIFAR-10 of Cubuk et al. 2019, table 7: two operations with probability and one of
# ten levels each.
_CIFAR10 = """
invert 0.1 7        contrast 0.2 6
rotate 0.7 2        translate-x 0.3 9
sharpness 0.8 1     sharpness 0.9 3
shear-y 0.5 8       translate-y 0.7 9
autocontrast 0.5 8  equalize 0.9 2
shear-y 0.2 7       posterize 0.3 7
color 0.4 3         brightness 0.6 7
sharpness 0.3 9     brightness 0.7 9
equalize 0.6 5      equalize 0.5 1
contrast 0.6 7      sharpness 0.6 5
color 0.7 7         translate-x 0.5 8
equalize 0.3 7      autocontrast 0.4 8
translate-y 0.4 3   sharpness 0.2 6
brightness 0.9 6    color 0.2 8
solarize 0.5 2      invert 0.0 3
equalize 0.2 0      autocontrast 0.6 0
equalize 0.2 8      equalize 0.6 4
color 0.9 9         equalize 0.6 6
autocontrast 0.8 4  solarize 0.2 8
brightness 0.1 3    color 0.7 0
solarize 0.4 5      autocontrast 0.9 3
translate-y 0.9 9   translate-y 0.7 9
autocontrast 0.9 2  solarize 0.8 3
equalize 0.8 8      invert 0.1 3
translate-y 0.7 9   autocontrast 0.9 1
"""


def autoaugment() -> tuple[tuple[Operation, ...], ...]:
    """Return AutoAugment's policy for CIFAR-10 as the long-tailed code bases apply it.

    They differ from torchvision: rotation is always counter-clockwise, shearing is cubic, what
    comes from outside is grey, translation goes up to 150/331 of the size, and levels go from 256
    to 0 for solarize and from 8 to 4 bits for posterize. On CIFAR-100 they use the same policy.

    >>> len(autoaugment()), autoaugment()[1][0]
    (25, Operation(name='rotate', probability=0.7, base=6.666..., span=0.0))
    """
    policies = []
    for line in _CIFAR10.split("\n")[1:-1]:
        words = line.split()
        pairs = (words[:3], words[3:])
        policies.append(tuple(_operation(n, float(p), int(level) / 9) for n, p, level in pairs))
    return tuple(policies)


def randaugment(magnitude: int) -> tuple[tuple[Operation, ...], ...]:
    """Return the 14 operations of RandAugment (Cubuk et al. 2020), each on its own.

    Args:
        magnitude: in [0, 30], torchvision's scale. Other than in AutoAugment, rotation has either
            sign.

    >>> randaugment(10)[5]
    (Operation(name='rotate', probability=1.0, base=0.0, span=10.0),)
    """
    strength = magnitude / 30
    operations = (_operation(name, 1.0, strength) for name in OPERATIONS if name != "invert")
    return tuple(
        (op._replace(base=0.0, span=op.base) if op.name == "rotate" else op,) for op in operations
    )


@dataclass(frozen=True)
class Policy:
    """Draws a sequence of operations for each sample, and applies them.

    Args:
        sequences: what is drawn from, uniformly; all of one length.
        repeats: how many sequences are drawn for each sample.
    """

    sequences: tuple[tuple[Operation, ...], ...]
    repeats: int = 1

    @cached_property
    def _table(self) -> Tensor:
        """Code, probability, base and span: float64 (sequences, length, 4)."""
        rows = [[(_CODES[op.name], *op[1:]) for op in sequence] for sequence in self.sequences]
        return torch.tensor(rows, dtype=torch.float64)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the code and the argument of each operation, float64 (count, steps, 2)."""
        which = torch.randint(len(self.sequences), (count, self.repeats), generator=generator)
        code, probability, base, span = self._table[which].flatten(1, 2).unbind(-1)
        done = torch.rand(code.shape, generator=generator, dtype=torch.float64) < probability
        sign = 2 * torch.randint(2, code.shape, generator=generator) - 1
        return torch.stack([code * done, base + sign * span], dim=-1)  # code 0 is the identity

    def __call__(self, pixels: Tensor, draws: Tensor) -> Tensor:
        """Apply one step after the other."""
        for step in draws.unbind(1):
            pixels = operate(pixels, step[:, 0].long(), step[:, 1])
        return pixels
