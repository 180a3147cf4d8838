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

_SMALLEST = 4  # rows or columns at which the convolutional net stops halving


class SmallCnn(nn.Module):
    """Convolutions with group normalisation that halve the image until it is about 4 x 4.

    Each stage is two 3 x 3 convolutions and a 2 x 2 maximum; widths 32, 64, 128, 128, ... The
    last map is averaged to 4 x 4 or what is left and flattened through one linear layer, since
    where a stroke lies matters in images this small.

    Args:
        input_shape: (channels, H, W), H and W at least 4.
        feature_dim: F.
    """

    def __init__(self, input_shape: Sequence[int], feature_dim: int = 128) -> None:
        super().__init__()
        channels, height, width = (whole_number("input_shape", n, low=1) for n in input_shape)
        if min(height, width) < _SMALLEST:
            raise ArgumentError(
                f"input_shape={tuple(input_shape)} is too small for small-cnn, which needs at "
                f"least {_SMALLEST} rows and columns; use mlp."
            )
        self.feature_dim = whole_number("feature_dim", feature_dim, low=1)
        halvings = int(math.log2(min(height, width) / _SMALLEST))
        widths = [min(32 << i, 128) for i in range(max(halvings, 1))]
        stages = []
        for out in widths:
            pool = nn.MaxPool2d(2) if halvings else nn.Identity()
            stages += [*_convolution(channels, out), *_convolution(out, out), pool]
            channels = out
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(_SMALLEST)
        self.project = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * _SMALLEST**2, feature_dim), nn.ReLU()
        )
        _kaiming(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N, F)."""
        return self.project(self.pool(self.stages(x)))


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
