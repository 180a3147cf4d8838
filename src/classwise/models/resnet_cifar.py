"""The residual networks for 32 x 32 images of He et al. (CVPR 2016), section 4.2.

Depth 6 n + 2: a 3 x 3 convolution with 16 channels, three stages of n basic blocks with 16, 32 and
64 channels, global average pooling. Shortcuts that change the shape have no parameters ("option
A"): every second row and column, and zeros for the channels that are new. All published long-tail
results on CIFAR use depth 32.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from classwise._checks import whole_number
from classwise.errors import ArgumentError

__all__ = ["CifarResNet"]


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with batch normalisation, added to what came in.

    Args:
        in_channels: channels of the input.
        channels: of the output, ``in_channels`` or more.
        stride: of the first convolution.
    """

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.new_channels = channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(x' + F(x)), where x' is x, subsampled and padded if need be."""
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        if self.stride > 1:
            # The mean of one pixel is the pixel: x[:, :, ::stride, ::stride], whose gradient would
            # fill and copy two zero tensors, which is 6 % of a training step of ResNet-32.
            x = F.avg_pool2d(x, 1, self.stride)
        if self.new_channels:
            before = self.new_channels // 2
            x = F.pad(x, (0, 0, 0, 0, before, self.new_channels - before))
        return F.relu(out.add_(x), inplace=True)


class CifarResNet(nn.Module):
    """The backbone: images (N, channels, H, W) to features (N, 64).

    Convolutions start Kaiming normal (fan-in), batch normalisation as the identity. Names of
    parameters are those of the widespread implementations (``conv1``, ``bn1``, ``layer1.0.conv1``).

    Args:
        depth: 6 n + 2, for instance 20, 32, 44, 56 or 110.
        in_channels: of the images.

    >>> sum(p.numel() for p in CifarResNet(32).parameters())
    463504
    """

    feature_dim = 64

    def __init__(self, depth: int, in_channels: int = 3) -> None:
        super().__init__()
        depth = whole_number("depth", depth, low=8)
        if depth % 6 != 2:
            raise ArgumentError(f"depth={depth} must be 6 n + 2: 8, 14, 20, 26, 32, ...")
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(in_channels, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (N, 64)."""
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = self.layer3(self.layer2(self.layer1(x)))
        return x.mean((2, 3))


def _stage(in_channels: int, channels: int, blocks: int, *, stride: int) -> nn.Sequential:
    first = BasicBlock(in_channels, channels, stride)
    return nn.Sequential(first, *(BasicBlock(channels, channels, 1) for _ in range(blocks - 1)))
