"""Batch normalisation over the batches of all ranks, on any device.

torch's own ``SyncBatchNorm`` runs on GPUs only; without it the same run would differ between one
process and two.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["SyncedBatchNorm2d", "synced"]


class _Sum(torch.autograd.Function):
    """A sum over ranks whose gradient is summed over ranks too."""

    @staticmethod
    def forward(ctx: object, tensor: Tensor) -> Tensor:
        total = tensor.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        total = grads[0].clone()
        dist.all_reduce(total)
        return total


class SyncedBatchNorm2d(nn.BatchNorm2d):
    """``nn.BatchNorm2d`` with mean and variance over the batches of all ranks.

    Ranks may hold different numbers of samples.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (the name that torch gives it)
        """Normalise (N, C, H, W)."""
        if not self.training:
            return super().forward(input)
        x = input.float()
        dims = [0, 2, 3]
        own = x.new_full((1,), x.numel() / x.shape[1])
        summed = _Sum.apply(torch.cat([x.sum(dims), own]))
        count = summed[-1].detach()
        mean = summed[:-1] / count
        centred = x - mean[:, None, None]
        # Two passes: E[x^2] - E[x]^2 loses the digits that the comparison with one process needs.
        variance = _Sum.apply(centred.square().sum(dims)) / count
        with torch.no_grad():
            self._track(mean.detach(), variance.detach() * count / (count - 1))
        scale = torch.rsqrt(variance + self.eps) * self.weight
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(input.dtype)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 0.1 if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance, momentum)


def synced(model: nn.Module) -> nn.Module:
    """Return the model with every ``nn.BatchNorm2d`` synchronised, in place; keys stay."""
    for module in model.modules():
        if type(module) is nn.BatchNorm2d and module.affine and module.track_running_stats:
            module.__class__ = SyncedBatchNorm2d
    return model
