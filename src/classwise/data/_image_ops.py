"""Operations of AutoAugment and RandAugment on batches of pixels, as Pillow computes them.

Pillow rounds in its own ways (fixed-point coordinates, truncated blends, a cubic kernel with
a = -1). They are followed, because published results came through them; the tests compare each
operation with Pillow. Every sample has its own operation and argument. Operations that differ
little are one function: on a batch, what costs time is the number of calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["OPERATIONS", "either", "on_device", "operate"]

FILL = 128
"""Grey where a geometric operation looks outside of the image."""


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a small tensor without making the host wait."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def either(condition: Tensor, there: Tensor | int, elsewhere: Tensor) -> Tensor:
    """Return ``torch.where`` for uint8, by bits: several times as fast on a CPU."""
    mask = condition.to(torch.uint8).neg_()
    return elsewhere ^ ((elsewhere ^ there) & mask)


# Each takes uint8 pixels (n, H, W, ch), an argument for each sample in float64, and which of its
# operations each sample has, int64 (n,), all on one device; and returns new pixels.


def identity(pixels: Tensor, argument: Tensor, which: Tensor) -> Tensor:
    """Return what came in."""
    del argument, which
    return pixels


# Geometry


def move(pixels: Tensor, argument: Tensor, which: Tensor) -> Tensor:
    """Translate by a fraction of width (0) or height (1), or rotate by degrees (2), to the nearest.

    A translation looks further right or down, a rotation is counter-clockwise around the centre.
    """
    _, height, width, _ = pixels.shape
    by = torch.stack([width * argument, height * argument, torch.deg2rad(-argument)])
    x, y, angle = torch.where(which == torch.arange(3, device=pixels.device)[:, None], by, 0)
    cos, sin = angle.cos(), angle.sin()
    # Corners of pixels, then the middle of the image, which a rotation leaves where it is.
    x = x + (width - cos * width - sin * height) / 2
    y = y + (height + sin * width - cos * height) / 2
    return _nearest(pixels, torch.stack([cos, sin, x, -sin, cos, y], dim=1).view(-1, 2, 3))


def _nearest(pixels: Tensor, affine: Tensor) -> Tensor:
    """Take the pixel in which ``affine @ (x, y, 1)`` lies, for the centre (x, y) of each pixel."""
    count, height, width, channels = pixels.shape
    device = pixels.device
    # Coordinates in units of 2^-16, as Pillow has them: exact on every device.
    affine[..., 2] += affine[..., :2].sum(-1) / 2  # from the corner of a pixel to its centre
    across, down, start = (affine * 65536 + 0.5).floor().long()[..., None, None].unbind(2)
    columns = torch.arange(width, device=device)
    rows = torch.arange(height, device=device)[:, None]
    x, y = (across * columns + down * rows + start >> 16).unbind(1)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    total = count * height * width
    first = torch.arange(0, total, height * width, device=device)[:, None, None]
    index = torch.where(inside, first + y * width + x, total).flatten()
    grey = pixels.new_full((1, channels), FILL)
    source = torch.cat([pixels.reshape(-1, channels), grey])
    return source.index_select(0, index).view(count, height, width, channels)


def shear_x(pixels: Tensor, factor: Tensor, which: Tensor) -> Tensor:
    """Look ``factor * y`` further right in line y, cubic interpolation."""
    del which
    count, height, width, channels = pixels.shape
    device = pixels.device
    shift = factor[:, None] * torch.arange(0.5, height, dtype=torch.float64, device=device)
    whole = shift.floor()
    # Every line once, shifted by whole pixels and wide enough for all four taps.
    columns = torch.arange(-1, width + 2, device=device)
    first = torch.arange(0, count * height * width, width, device=device).view(count, height, 1)
    index = (columns + whole.long()[..., None]).clamp_(0, width - 1).add_(first)
    lines = pixels.reshape(-1, channels).index_select(0, index.flatten())
    taps = lines.float().view(count, height, width + 3, channels).unfold(2, width, 1).unbind(2)
    weights = _cubic(shift - whole).float()[..., None, None]
    sheared = taps[0].transpose(2, 3) * weights[0]
    for tap, weight in zip(taps[1:], weights[1:], strict=True):
        sheared.addcmul_(tap.transpose(2, 3), weight)
    source = columns[1:-2] + (shift + 0.5).floor()[..., None]
    outside = ((source < 0) | (source >= width))[..., None]
    return either(outside, FILL, sheared.clamp_(0, 255).to(torch.uint8))


def shear_y(pixels: Tensor, factor: Tensor, which: Tensor) -> Tensor:
    """Look ``factor * x`` further down in column x, cubic interpolation."""
    return shear_x(pixels.transpose(1, 2), factor, which).transpose(1, 2)


def _cubic(d: Tensor) -> Tensor:
    """Return the weights of the pixels at -1, 0, 1 and 2, for a place at ``d`` in [0, 1)."""
    square = d * d
    cube = square * d
    return torch.stack(
        [2 * square - d - cube, 1 - 2 * square + cube, d + square - cube, cube - square]
    )


# Blends with something duller; a factor above 1 leads away from it


def enhance(pixels: Tensor, factor: Tensor, which: Tensor) -> Tensor:
    """Blend with black (0), with the mean grey (1) or with the grey image (2)."""
    grey = _grey(pixels)
    mean = grey.mean((1, 2, 3), keepdim=True).add_(0.5).floor_()
    which = which[:, None, None, None]
    dull = torch.where(which == 2, grey, mean).masked_fill_(which == 0, 0)
    return _blend(dull, pixels, factor)


def sharpness(pixels: Tensor, factor: Tensor, which: Tensor) -> Tensor:
    """Blend with the image smoothed by (1 1 1, 1 5 1, 1 1 1) / 13; its borders stay."""
    del which
    exact = pixels.float()
    lines = exact[:, :-2] + exact[:, 1:-1] + exact[:, 2:]
    box = lines[:, :, :-2] + lines[:, :, 1:-1] + lines[:, :, 2:]
    smooth = exact.clone()
    smooth[:, 1:-1, 1:-1] = box.add_(exact[:, 1:-1, 1:-1], alpha=4).div_(13).add_(0.5).floor_()
    return _blend(smooth, exact, factor)


def _grey(pixels: Tensor) -> Tensor:
    """Return ITU-R 601-2 luma in Pillow's integers, float32 (n, H, W, 1)."""
    if pixels.shape[3] == 1:
        return pixels.float()
    red, green, blue = pixels.to(torch.int32).split(1, dim=3)
    return (19595 * red + 38470 * green + 7471 * blue + 32768 >> 16).float()


def _blend(dull: Tensor, pixels: Tensor, factor: Tensor) -> Tensor:
    factor = factor.float()[:, None, None, None]
    return (pixels - dull).mul_(factor).add_(dull).clamp_(0, 255).to(torch.uint8)


# Maps from old levels to new ones


def posterize(pixels: Tensor, bits: Tensor, which: Tensor) -> Tensor:
    """Keep the highest ``bits``."""
    del which
    return pixels & (256 - 2 ** (8 - bits)).to(torch.uint8)[:, None, None, None]


def solarize(pixels: Tensor, threshold: Tensor, which: Tensor) -> Tensor:
    """Invert levels from ``threshold`` on; 0 inverts all."""
    del which
    return either(pixels < threshold.float()[:, None, None, None], pixels, 255 - pixels)


def autocontrast(pixels: Tensor, argument: Tensor, which: Tensor) -> Tensor:
    """Stretch each channel to all levels. Pillow rounds some levels down to one less."""
    del argument, which
    low = pixels.amin((1, 2), keepdim=True).float()
    span = pixels.amax((1, 2), keepdim=True).float() - low
    # Whole numbers and one division, so that float32 is exact.
    stretched = (pixels - low).mul_(255).div_(span.clamp(min=1)).to(torch.uint8)
    return either(span > 0, stretched, pixels)


def equalize(pixels: Tensor, argument: Tensor, which: Tensor) -> Tensor:
    """Spread each channel so that all levels are about equally frequent."""
    del argument, which
    count, height, width, channels = pixels.shape
    levels = pixels.permute(0, 3, 1, 2).reshape(count, channels, height * width).long()
    ones = torch.ones((), dtype=torch.int64, device=pixels.device).expand_as(levels)
    counts = levels.new_zeros(count, channels, 256).scatter_add_(2, levels, ones)
    highest = levels.amax(2, keepdim=True)
    step = (height * width - counts.gather(2, highest)) // 255
    below = counts.cumsum(2) - counts
    spread = (step // 2 + below) // step.clamp(min=1)
    table = torch.where(step > 0, spread.clamp_(max=255), torch.arange(256, device=pixels.device))
    mapped = table.gather(2, levels).to(torch.uint8)
    return mapped.view(count, channels, height, width).permute(0, 2, 3, 1)


class _Family(NamedTuple):
    """A function and the names of the operations that it knows, in the order of ``which``."""

    function: Callable[[Tensor, Tensor, Tensor], Tensor]
    names: tuple[str, ...]


_FAMILIES = (
    _Family(identity, ("identity",)),
    _Family(shear_x, ("shear-x",)),
    _Family(shear_y, ("shear-y",)),
    _Family(move, ("translate-x", "translate-y", "rotate")),
    _Family(enhance, ("brightness", "contrast", "color")),
    _Family(sharpness, ("sharpness",)),
    _Family(posterize, ("posterize",)),
    _Family(solarize, ("solarize", "invert")),
    _Family(autocontrast, ("autocontrast",)),
    _Family(equalize, ("equalize",)),
)
OPERATIONS = tuple(name for family in _FAMILIES for name in family.names)
"""Operations; their place here is their code, and the identity's is 0."""

_PLACES = torch.tensor(
    [(f, which) for f, family in enumerate(_FAMILIES) for which in range(len(family.names))]
)


def operate(pixels: Tensor, codes: Tensor, arguments: Tensor) -> Tensor:
    """Apply to each sample its own operation.

    Args:
        pixels: uint8 (n, H, W, ch), ch 1 or 3, on any device that knows float64.
        codes: places in ``OPERATIONS``, int64 (n,) on the CPU.
        arguments: of the operations, float64 (n,) on the CPU.

    Returns:
        New pixels.
    """
    family, which = _PLACES[codes].unbind(1)
    order = family.argsort(stable=True)
    sizes = torch.bincount(family, minlength=len(_FAMILIES)).tolist()
    there, back, of_family = on_device(
        torch.stack([order, order.argsort(), which[order]]), pixels.device
    )
    groups = zip(
        _FAMILIES,
        pixels.index_select(0, there).split(sizes),
        on_device(arguments[order], pixels.device).split(sizes),
        of_family.split(sizes),
        strict=True,
    )
    done = [known.function(group, *how) for known, group, *how in groups if len(group)]
    return torch.cat(done).index_select(0, back)
