"""Each image operation against Pillow, on smooth, noisy, flat and two-level images."""

from collections.abc import Callable

import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from classwise.data._image_ops import OPERATIONS, operate

GREY = (128, 128, 128)


def pictures(channels: int, height: int = 32, width: int = 32) -> Tensor:
    """Return uint8 (n, H, W, ch): what photographs have in them, and what they do not."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (4, height, width, channels), generator=generator)
    coarse = torch.rand(6, channels, 5, 5, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    smooth = smooth.clamp(0, 1).mul(255).permute(0, 2, 3, 1).long()
    dark = smooth // 4 + 10
    flat = torch.full_like(noise[:1], 77)
    two = torch.where(noise[:1] < 100, 3, 250)
    few = (noise[:1] // 100) * 100
    spike = flat.clone()
    spike[0, 0, 0] = 255
    return torch.cat([noise, smooth, dark, flat, two, few, spike]).to(torch.uint8)


def to_pil(image: Tensor) -> Image.Image:
    array = image.numpy()
    return Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)


def from_pil(image: Image.Image) -> Tensor:
    values = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return values.view(image.height, image.width, -1)


def affine(image: Image.Image, matrix: tuple[float, ...], resample: int) -> Image.Image:
    fill = GREY if image.mode == "RGB" else 128
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample, fillcolor=fill)


def rotated(image: Image.Image, degrees: float) -> Image.Image:
    """Rotate with the outside in grey, by way of an alpha channel, as the published code does."""
    turned = image.convert("RGBA").rotate(degrees)
    filled = Image.composite(turned, Image.new("RGBA", turned.size, (128,) * 4), turned)
    return filled.convert(image.mode)


NEAREST, BICUBIC = Image.Resampling.NEAREST, Image.Resampling.BICUBIC
# operation -> (what Pillow does, arguments, largest difference in levels)
Row = tuple[Callable[[Image.Image, float], Image.Image], tuple[float, ...], int]
ROWS: dict[str, Row] = {
    "identity": (lambda i, a: i, (0.0,), 0),
    "shear-x": (lambda i, a: affine(i, (1, a, 0, 0, 1, 0), BICUBIC), (0.0, 0.1, -0.3, 0.2667), 1),
    "shear-y": (lambda i, a: affine(i, (1, 0, 0, a, 1, 0), BICUBIC), (0.0, 0.1, -0.3, 0.2667), 1),
    "translate-x": (
        lambda i, a: affine(i, (1, 0, a * i.width, 0, 1, 0), NEAREST),
        (0.0, 150 / 331, -150 / 331, 0.1007, -0.2517),
        0,
    ),
    "translate-y": (
        lambda i, a: affine(i, (1, 0, 0, 0, 1, a * i.height), NEAREST),
        (0.0, 150 / 331, -150 / 331, 0.1007, -0.2517),
        0,
    ),
    "rotate": (rotated, (0.0, 20 / 3, 30.0, -10.0, 17.5), 0),
    "brightness": (lambda i, a: ImageEnhance.Brightness(i).enhance(a), (0.1, 0.7, 1.0, 1.9), 0),
    "color": (lambda i, a: ImageEnhance.Color(i).enhance(a), (0.1, 0.7, 1.0, 1.9), 0),
    "contrast": (lambda i, a: ImageEnhance.Contrast(i).enhance(a), (0.1, 0.7, 1.0, 1.9), 0),
    "sharpness": (lambda i, a: ImageEnhance.Sharpness(i).enhance(a), (0.1, 0.7, 1.0, 1.9), 0),
    "posterize": (lambda i, a: ImageOps.posterize(i, int(a)), (4.0, 5.0, 7.0, 8.0), 0),
    "solarize": (ImageOps.solarize, (0.0, 28.44, 170.67, 256.0), 0),  # type: ignore[dict-item]
    "autocontrast": (lambda i, a: ImageOps.autocontrast(i), (0.0,), 1),
    "equalize": (lambda i, a: ImageOps.equalize(i), (0.0,), 0),
    "invert": (lambda i, a: ImageOps.invert(i), (0.0,), 0),
}


def test_every_operation_is_compared() -> None:
    assert sorted(ROWS) == sorted(OPERATIONS)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 20, 33)])
@pytest.mark.parametrize("name", ROWS)
def test_as_pillow(name: str, shape: tuple[int, int, int]) -> None:
    oracle, arguments, tolerance = ROWS[name]
    images = pictures(*shape)
    repeated = images.repeat(len(arguments), 1, 1, 1)
    argument = torch.tensor(arguments, dtype=torch.float64).repeat_interleave(len(images))
    before = repeated.clone()
    code = torch.tensor(OPERATIONS.index(name))
    ours = operate(repeated, code.expand(len(repeated)), argument)
    assert ours.dtype == torch.uint8
    assert torch.equal(repeated, before), "the input must not change"
    theirs = torch.stack(
        [
            from_pil(oracle(to_pil(image), float(a)))
            for image, a in zip(repeated, argument, strict=True)
        ]
    )
    difference = (ours.int() - theirs.int()).abs()
    assert int(difference.max()) <= tolerance
    if tolerance:
        assert float((difference > 0).float().mean()) < 0.02 or name == "autocontrast"
