"""Heads: from features (N, F) to logits (N, C)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classwise._checks import known_name

__all__ = ["HEADS", "CosineLinear", "make_head"]


class CosineLinear(nn.Module):
    """Cosines between features and one vector for each class: <x / |x|, w_c / |w_c|>, in [-1, 1].

    The head of LDAM (Cao et al., NeurIPS 2019). It has neither bias nor scale: the scale is part
    of the terms of the loss, and whoever turns these outputs into probabilities has to apply it.
    Weights start uniform in (-1, 1), each row then brought to length 1. Cosines are computed in
    single precision at least, even under autocast: a scale of 30 would make the rounding of
    bfloat16 near 1 an error of 0.1 in a logit.

    Args:
        in_features: F.
        out_features: C.

    >>> head = CosineLinear(8, 3)
    >>> bool((head(torch.randn(5, 8)).abs() <= 1 + 1e-6).all())
    True
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        self.weight.uniform_(-1, 1)
        self.weight.copy_(F.normalize(self.weight, dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return cosines (N, C)."""
        with torch.autocast(x.device.type, enabled=False):
            dtype = torch.promote_types(x.dtype, torch.float32)
            weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
            return F.linear(F.normalize(x.to(dtype), dim=1), F.normalize(weight, dim=1))

    def extra_repr(self) -> str:
        """Return what ``print`` shows of the module."""
        return f"in_features={self.in_features}, out_features={self.out_features}"


def _linear(feature_dim: int, num_classes: int) -> nn.Module:
    """Return a linear layer as the published CIFAR code begins: Kaiming normal, torch's bias."""
    head = nn.Linear(feature_dim, num_classes)
    nn.init.kaiming_normal_(head.weight)
    return head


HEADS: dict[str, Callable[[int, int], nn.Module]] = {"linear": _linear, "cosine": CosineLinear}


def make_head(head: str, feature_dim: int, num_classes: int) -> nn.Module:
    """Return a head by name, ``"linear"`` or ``"cosine"``."""
    return HEADS[known_name("head", head, HEADS)](feature_dim, num_classes)
