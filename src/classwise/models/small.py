"""Small networks for small data: a compact convolutional net, and a multi-layer perceptron.

Neither has batch normalisation: the rarest classes come in batches of any composition, and without
it a sample's output does not depend on its neighbours, nor on how a batch is spread over processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from classwise._checks import whole_number
from classwise.errors import ArgumentError

__all__ = ["Mlp", "SmallCnn"]

_LARGEST_MAP = 4  # rows or columns at which the convolutional net stops halving


class SmallCnn(nn.Module):
    """Convolutions with group normalisation that halve the image until it is 4 x 4 or less.

    Each stage is two 3 x 3 convolutions and a 2 x 2 maximum; widths 32, 64, 128, 128, ... What is
    left goes through one linear layer, not through an average, since where a stroke lies matters
    in images this small.

    Args:
        input_shape: (channels, H, W).
        feature_dim: F.

    >>> SmallCnn((1, 8, 8)).project[1].in_features  # 32 channels, 4 x 4
    512
    """

    def __init__(self, input_shape: Sequence[int], feature_dim: int = 128) -> None:
        super().__init__()
        channels, height, width = (whole_number("input_shape", n, low=1) for n in input_shape)
        self.feature_dim = whole_number("feature_dim", feature_dim, low=1)
        halvings = 0
        while max(height, width) > _LARGEST_MAP:
            height, width, halvings = -(-height // 2), -(-width // 2), halvings + 1
        stages: list[nn.Module] = []
        for i in range(max(halvings, 1)):
            out = min(32 << i, 128)
            stages += [*_convolution(channels, out), *_convolution(out, out)]
            if halvings:
                stages.append(nn.MaxPool2d(2, ceil_mode=True))
            channels = out
        self.stages = nn.Sequential(*stages)
        self.project = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * height * width, feature_dim), nn.ReLU()
        )
        _kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N, F)."""
        return self.project(self.stages(x))


class Mlp(nn.Module):
    """Linear layers with ReLU, over tables or flattened images.

    Args:
        input_shape: (D,) or any other shape, which is flattened.
        hidden: widths of the hidden layers; the last one is F.

    >>> Mlp((10,), hidden=(32, 16)).feature_dim
    16
    """

    def __init__(self, input_shape: Sequence[int], hidden: Sequence[int] = (256, 128)) -> None:
        super().__init__()
        if not hidden:
            raise ArgumentError("hidden=() must name the width of at least one layer.")
        width = math.prod(whole_number("input_shape", n, low=1) for n in input_shape)
        layers: list[nn.Module] = [nn.Flatten()]
        for out in hidden:
            layers += [nn.Linear(width, whole_number("hidden", out, low=1)), nn.ReLU()]
            width = out
        self.feature_dim = width
        self.layers = nn.Sequential(*layers)
        _kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N, F)."""
        return self.layers(x)


def _convolution(in_channels: int, channels: int) -> list[nn.Module]:
    convolution = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
    return [convolution, nn.GroupNorm(8, channels), nn.ReLU()]


def _kaiming(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
