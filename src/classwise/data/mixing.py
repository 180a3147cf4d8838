"""Pairs of samples mixed into one: mixup and UniMix, with soft targets.

Both are described by a partner and a weight for each sample, drawn on the CPU with an explicit
generator:

    x_i <- w_i x_i + (1 - w_i) x_j        target_i <- w_i onehot(y_i) + (1 - w_i) onehot(y_j)

where j is the partner of i. A loss of such a target is w_i L(y_i) + (1 - w_i) L(y_j).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from classwise._checks import known_name, number
from classwise.errors import ArgumentError

__all__ = ["MIXINGS", "Mix", "Mixing", "Mixup", "UniMix", "mix", "parse_mixing"]


class Mix(NamedTuple):
    """With which other sample of the batch each one is mixed, and what remains of itself."""

    partner: Tensor
    """int64 (n,)."""
    weight: Tensor
    """float32 (n,) in [0, 1]."""


class Mixing(Protocol):
    """Draws how a batch is mixed."""

    def draw(self, labels: Tensor, class_counts: Tensor, generator: torch.Generator) -> Mix:
        """Draw partners and weights.

        Args:
            labels: of the batch, int64 (n,) on the CPU.
            class_counts: of the training data, int64 (C,).
            generator: the only source of randomness.
        """
        ...


@dataclass(frozen=True)
class Mixup:
    """One weight ~ Beta(alpha, alpha) for the batch, partners by a permutation of it.

    Zhang et al. 2018. Published long-tailed results use alpha = 1 on CIFAR and 0.2 on ImageNet-LT
    and iNaturalist (Zhong et al. 2021).
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        number("alpha of mixup", self.alpha, low=0, low_open=True)

    def draw(self, labels: Tensor, class_counts: Tensor, generator: torch.Generator) -> Mix:
        """Draw partners and weights."""
        del class_counts
        weight = _beta(self.alpha, 1, generator).repeat(labels.numel())
        return Mix(torch.randperm(labels.numel(), generator=generator), weight)


@dataclass(frozen=True)
class UniMix:
    """Partners from the tail, and weights that lean towards them.

    Xu et al. 2021. Partner j is drawn with replacement and probability ~ N_{y_j}^power, and

        w_i = (N_{y_j} / (N_{y_i} + N_{y_j}) + Beta(alpha, alpha)) mod 1

    so that a head image mostly keeps little of itself beside a tail partner. The published code
    has power -0.5 on CIFAR-10-LT and -0.1 on CIFAR-100-LT, alpha 0.8 and batches of 64.
    """

    power: float = -0.1
    alpha: float = 0.8

    def __post_init__(self) -> None:
        number("power of unimix", self.power)
        number("alpha of unimix", self.alpha, low=0, low_open=True)

    def draw(self, labels: Tensor, class_counts: Tensor, generator: torch.Generator) -> Mix:
        """Draw partners and weights."""
        counts = class_counts[labels].double()
        logits = self.power * counts.log()
        chances = (logits - logits.max()).exp()  # the largest is 1, whatever the power
        partner = torch.multinomial(chances, counts.numel(), replacement=True, generator=generator)
        share = counts[partner] / (counts + counts[partner])
        weight = (share + _beta(self.alpha, counts.numel(), generator)) % 1
        return Mix(partner, weight.float())


def _beta(alpha: float, count: int, generator: torch.Generator) -> Tensor:
    """Draw from Beta(alpha, alpha): torch has no such draw with a generator, numpy has."""
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.from_numpy(np.random.default_rng(seed).beta(alpha, alpha, count)).float()


def mix(inputs: Tensor, labels: Tensor, drawn: Mix, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return mixed inputs and soft targets.

    Args:
        inputs: floating point (n, ...).
        labels: int64 (n,).
        drawn: partners and weights, on the device of ``inputs``.
        num_classes: C.

    Returns:
        Inputs of the same shape, and float32 targets (n, C) whose rows sum to 1.

    >>> x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([0, 2])
    >>> mix(x, y, Mix(torch.tensor([1, 0]), torch.tensor([0.75, 1.0])), 3)
    (tensor([[0.2500],
            [1.0000]]), tensor([[0.7500, 0.0000, 0.2500],
            [0.0000, 0.0000, 1.0000]]))
    """
    partner, weight = drawn
    other = 1 - weight
    shape = (-1,) + (1,) * (inputs.ndim - 1)
    mixed = inputs * weight.view(shape)
    mixed.addcmul_(inputs.index_select(0, partner), other.view(shape))
    target = inputs.new_zeros((labels.numel(), num_classes), dtype=torch.float32)
    target.scatter_(1, labels[:, None], weight[:, None])
    target.scatter_add_(1, labels.index_select(0, partner)[:, None], other[:, None])
    return mixed, target


MIXINGS: dict[str, type[Mixup] | type[UniMix] | None] = {
    "none": None,
    "mixup": Mixup,
    "unimix": UniMix,
}
"""How samples can be mixed, by name."""


def parse_mixing(text: str) -> Mixing | None:
    """Return what a text such as ``"mixup:1.0"`` or ``"unimix:-0.1"`` names.

    Args:
        text: ``"none"``, ``"mixup[:ALPHA]"`` or ``"unimix[:POWER[:ALPHA]]"``.

    >>> parse_mixing("unimix:-0.5")
    UniMix(power=-0.5, alpha=0.8)
    >>> parse_mixing("none") is None
    True
    """
    if not isinstance(text, str):
        raise ArgumentError(f"mixing={text!r} must be text, such as 'mixup:1.0' or 'none'.")
    name, *settings = text.split(":")
    made = MIXINGS[known_name("mixing", name, MIXINGS)]
    if made is None:
        if settings:
            raise ArgumentError(f"mixing={text!r}: 'none' takes no number.")
        return None
    fields = list(made.__dataclass_fields__)
    if len(settings) > len(fields):
        form = name + "".join(f"[:{field.upper()}]" for field in fields)
        raise ArgumentError(f"mixing={text!r} has too many numbers, legal is {form}.")
    return made(*(_parsed(text, setting) for setting in settings))


def _parsed(text: str, setting: str) -> float:
    try:
        value = float(setting)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ArgumentError(f"mixing={text!r}: {setting!r} must be a number.")
    return value
