"""Operations of AutoAugment and RandAugment on batches of pixels, as Pillow computes them.

Each takes uint8 pixels (n, H, W, ch) on any device, ch 1 or 3, and one argument for each sample on
the CPU in float64, and returns new pixels. Pillow rounds in its own ways (fixed-point coordinates,
truncated blends, a cubic kernel with a = -1); they are followed, because published results came
through them. The tests compare each operation with Pillow.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["OPERATIONS", "on_device"]

FILL = 128
"""Grey where a geometric operation looks outside of the image."""


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a small tensor without making the host wait."""
    if device.type == "cuda" and not tensor.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def identity(pixels: Tensor, argument: Tensor) -> Tensor:
    """Return what came in."""
    del argument
    return pixels


# Geometry


def rotate(pixels: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counter-clockwise around the centre, nearest neighbour."""
    _, height, width, _ = pixels.shape
    angle = torch.deg2rad(-degrees)
    cos, sin = angle.cos(), angle.sin()
    x, y = width / 2, height / 2
    across = torch.stack([cos, sin, x - cos * x - sin * y], dim=1)
    down = torch.stack([-sin, cos, y + sin * x - cos * y], dim=1)
    return _nearest(pixels, across, down)


def translate_x(pixels: Tensor, fraction: Tensor) -> Tensor:
    """Look ``fraction`` of the width further right, nearest neighbour."""
    zero, one = torch.zeros_like(fraction), torch.ones_like(fraction)
    across = torch.stack([one, zero, fraction * pixels.shape[2]], dim=1)
    return _nearest(pixels, across, torch.stack([zero, one, zero], dim=1))


def translate_y(pixels: Tensor, fraction: Tensor) -> Tensor:
    """Look ``fraction`` of the height further down, nearest neighbour."""
    return translate_x(pixels.transpose(1, 2), fraction).transpose(1, 2)


def _nearest(pixels: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Take pixel (floor(across . (x, y, 1)), floor(down . (x, y, 1))) of pixel centres (x, y)."""
    count, height, width, channels = pixels.shape
    device = pixels.device
    # Coordinates in units of 2^-16, as Pillow has them: exact on every device.
    affine = torch.stack([across, down], dim=1)
    affine[..., 2] += affine[..., :2].sum(-1) / 2  # from the corner of a pixel to its centre
    fixed = on_device((affine * 65536 + 0.5).floor().long(), device)[..., None, None]
    columns = torch.arange(width, device=device)
    rows = torch.arange(height, device=device)[:, None]
    source = (fixed[:, :, 0] * columns + fixed[:, :, 1] * rows + fixed[:, :, 2]) >> 16
    x, y = source.unbind(1)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    first = torch.arange(0, count * height * width, height * width, device=device)[:, None, None]
    index = torch.where(inside, first + y * width + x, 0).flatten()
    taken = pixels.reshape(-1, channels).index_select(0, index).view(count, height, width, channels)
    return taken.masked_fill_(~inside[..., None], FILL)


def shear_x(pixels: Tensor, factor: Tensor) -> Tensor:
    """Look ``factor * y`` further right in line y, cubic interpolation."""
    count, height, width, channels = pixels.shape
    device = pixels.device
    shift = factor[:, None] * (torch.arange(height, dtype=torch.float64) + 0.5)
    whole = shift.floor()
    moved = torch.stack([whole, (shift + 0.5).floor()]).long()
    whole_shift, nearest_shift = on_device(moved, device)[..., None]
    weights = on_device(_cubic(shift - whole).float(), device)[..., None, None]
    # Every line once, shifted by whole pixels and wide enough for all four taps.
    columns = torch.arange(-1, width + 2, device=device)
    first = torch.arange(0, count * height * width, width, device=device).view(count, height, 1)
    index = (columns + whole_shift).clamp_(0, width - 1).add_(first)
    lines = pixels.reshape(-1, channels).index_select(0, index.flatten())
    taps = lines.float().view(count, height, width + 3, channels).unfold(2, width, 1).unbind(2)
    sheared = taps[0].transpose(2, 3) * weights[0]
    for tap, weight in zip(taps[1:], weights[1:], strict=True):
        sheared.addcmul_(tap.transpose(2, 3), weight)
    source = columns[1:-2] + nearest_shift
    outside = ((source < 0) | (source >= width))[..., None]
    return sheared.clamp_(0, 255).to(torch.uint8).masked_fill_(outside, FILL)


def _cubic(d: Tensor) -> Tensor:
    """Return the weights of the pixels at -1, 0, 1 and 2, for a place at ``d`` in [0, 1)."""
    square, cube = d**2, d**3
    return torch.stack(
        [2 * square - d - cube, 1 - 2 * square + cube, d + square - cube, cube - square]
    )


def shear_y(pixels: Tensor, factor: Tensor) -> Tensor:
    """Look ``factor * x`` further down in column x, cubic interpolation."""
    return shear_x(pixels.transpose(1, 2), factor).transpose(1, 2)


# Blends with something duller; a factor above 1 leads away from it


def brightness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend with black."""
    return _blend(torch.zeros((), device=pixels.device), pixels, factor)


def color(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image."""
    return _blend(_grey(pixels), pixels, factor)


def contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean grey."""
    grey = _grey(pixels)
    mean = grey.mean((1, 2, 3), keepdim=True).add_(0.5).floor_()
    return _blend(mean, pixels, factor)


def sharpness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Blend with the image smoothed by (1 1 1, 1 5 1, 1 1 1) / 13; its borders stay."""
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
    factor = on_device(factor.float(), pixels.device)[:, None, None, None]
    return (pixels - dull).mul_(factor).add_(dull).clamp_(0, 255).to(torch.uint8)


# Maps from old levels to new ones


def posterize(pixels: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest ``bits``."""
    masks = 256 - 2 ** (8 - bits.long())
    return pixels & on_device(masks.to(torch.uint8), pixels.device)[:, None, None, None]


def solarize(pixels: Tensor, threshold: Tensor) -> Tensor:
    """Invert levels from ``threshold`` on."""
    limit = on_device(threshold.float(), pixels.device)[:, None, None, None]
    return torch.where(pixels < limit, pixels, 255 - pixels)


def invert(pixels: Tensor, argument: Tensor) -> Tensor:
    """Return the negative."""
    del argument
    return 255 - pixels


def autocontrast(pixels: Tensor, argument: Tensor) -> Tensor:
    """Stretch each channel to all levels. Pillow rounds some levels down to one less."""
    del argument
    low = pixels.amin((1, 2), keepdim=True).float()
    span = pixels.amax((1, 2), keepdim=True).float() - low
    # Whole numbers and one division, so that float32 is exact.
    stretched = (pixels - low).mul_(255).div_(span.clamp(min=1)).to(torch.uint8)
    return torch.where(span > 0, stretched, pixels)


def equalize(pixels: Tensor, argument: Tensor) -> Tensor:
    """Spread each channel so that all levels are about equally frequent."""
    del argument
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


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": identity,
    "shear-x": shear_x,
    "shear-y": shear_y,
    "translate-x": translate_x,
    "translate-y": translate_y,
    "rotate": rotate,
    "brightness": brightness,
    "color": color,
    "contrast": contrast,
    "sharpness": sharpness,
    "posterize": posterize,
    "solarize": solarize,
    "autocontrast": autocontrast,
    "equalize": equalize,
    "invert": invert,
}
