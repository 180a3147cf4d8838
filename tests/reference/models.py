"""Slow oracles of the models: written from the publication, in loops and plain functions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


def option_a(x: Tensor, channels: int) -> Tensor:
    """Every second row and column; the new channels are zero, half of them before the old ones."""
    samples, old, height, width = x.shape
    out = torch.zeros(samples, channels, math.ceil(height / 2), math.ceil(width / 2), dtype=x.dtype)
    first = (channels - old) // 2
    for n in range(samples):
        for c in range(old):
            for i in range(out.shape[2]):
                for j in range(out.shape[3]):
                    out[n, first + c, i, j] = x[n, c, 2 * i, 2 * j]
    return out


def convolution(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """A 3 x 3 convolution with a border of zeros, as one matrix product over patches."""
    samples, channels, height, width = x.shape
    padded = torch.zeros(samples, channels, height + 2, width + 2, dtype=x.dtype)
    padded[:, :, 1:-1, 1:-1] = x
    patches = padded.unfold(2, 3, stride).unfold(3, 3, stride)  # (N, C, H', W', 3, 3)
    return torch.einsum("nchwij,ocij->nohw", patches, weight)


def batch_norm(x: Tensor, state: Mapping[str, Tensor], name: str, *, train: bool) -> Tensor:
    """Normalise each channel by the batch (biased variance) or by the running statistics."""
    if train:
        mean = x.mean((0, 2, 3))
        variance = ((x - mean[:, None, None]) ** 2).mean((0, 2, 3))
    else:
        mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    scaled = (x - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
    return scaled * state[f"{name}.weight"][:, None, None] + state[f"{name}.bias"][:, None, None]


def cifar_resnet(x: Tensor, state: Mapping[str, Tensor], depth: int, *, train: bool) -> Tensor:
    """Logits of the network of He et al., section 4.2, from a flat mapping of its parameters."""

    def norm(y: Tensor, name: str) -> Tensor:
        return batch_norm(y, state, name, train=train)

    def positive(y: Tensor) -> Tensor:
        return torch.where(y > 0, y, torch.zeros((), dtype=y.dtype))

    x = positive(norm(convolution(x, state["backbone.conv1.weight"], 1), "backbone.bn1"))
    for stage in (1, 2, 3):
        for block in range((depth - 2) // 6):
            at = f"backbone.layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            y = positive(norm(convolution(x, state[f"{at}.conv1.weight"], stride), f"{at}.bn1"))
            y = norm(convolution(y, state[f"{at}.conv2.weight"], 1), f"{at}.bn2")
            x = positive(y + (option_a(x, y.shape[1]) if stride == 2 else x))
    features = x.flatten(2).sum(2) / (x.shape[2] * x.shape[3])
    return features @ state["head.weight"].T + state["head.bias"]


def cosines(features: Tensor, weight: Tensor) -> Tensor:
    """<x, w> / (|x| |w|), one pair at a time."""
    out = torch.zeros(len(features), len(weight), dtype=features.dtype)
    for n, x in enumerate(features):
        for c, w in enumerate(weight):
            out[n, c] = sum(x * w) / (math.sqrt(sum(x * x)) * math.sqrt(sum(w * w)))
    return out
