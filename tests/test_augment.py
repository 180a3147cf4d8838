"""Augmentation of batches: crops, mirrors, holes, and the policies, against loops and Pillow."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor
from torchvision.transforms import AutoAugment, AutoAugmentPolicy, RandAugment

from classwise.data._image_ops import OPERATIONS, operate
from classwise.data.augment import AUGMENTS, CropFlip, Cutout, file_transform, image_stages
from classwise.data.policies import Policy, autoaugment, randaugment
from classwise.errors import ArgumentError, UnknownNameError

# Names of torchvision's operations.
NAMES = {
    "Identity": "identity",
    "ShearX": "shear-x",
    "ShearY": "shear-y",
    "TranslateX": "translate-x",
    "TranslateY": "translate-y",
    "Rotate": "rotate",
    "Brightness": "brightness",
    "Color": "color",
    "Contrast": "contrast",
    "Sharpness": "sharpness",
    "Posterize": "posterize",
    "Solarize": "solarize",
    "AutoContrast": "autocontrast",
    "Equalize": "equalize",
    "Invert": "invert",
}
SIGNED = ("shear-x", "shear-y", "translate-x", "translate-y")
ENHANCE = ("brightness", "color", "contrast", "sharpness")
CODES = {name: code for code, name in enumerate(OPERATIONS)}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photographs(count: int = 40, size: int = 32) -> Tensor:
    """Return pieces of two photographs, uint8 (n, size, size, 3)."""
    pieces = []
    for name in ("china.jpg", "flower.jpg"):
        picture = Image.fromarray(load_sample_image(name)).resize((320, 192))
        array = np.asarray(picture)
        pieces += [
            torch.from_numpy(array[y : y + size, x : x + size].copy())
            for y in range(0, 192, 48)
            for x in range(0, 320, 64)
        ]
    return torch.stack(pieces[:count])


# Crop, mirror, cut


@pytest.mark.parametrize("shape", [(32, 32, 3), (28, 20, 1)])
def test_crops_are_those_of_a_loop(shape: tuple[int, int, int]) -> None:
    pixels = torch.randint(0, 256, (30, *shape), generator=generator()).to(torch.uint8)
    stage = CropFlip(pad=4)
    draws = stage.draw(30, generator())
    result = stage(pixels, draws)
    height, width, _ = shape
    for image, (top, left, mirrored), ours in zip(pixels, draws.tolist(), result, strict=True):
        padded = np.pad(image.numpy(), ((4, 4), (4, 4), (0, 0)))
        crop = padded[top : top + height, left : left + width]
        assert np.array_equal(ours.numpy(), crop[:, ::-1] if mirrored else crop)


def test_crops_and_mirrors_are_uniform() -> None:
    draws = CropFlip(pad=4).draw(90_000, generator())
    for column, levels in ((0, 9), (1, 9), (2, 2)):
        seen = torch.bincount(draws[:, column], minlength=levels).double()
        assert len(seen) == levels
        expected = 90_000 / levels
        assert float(((seen - expected) ** 2 / expected).sum()) < 27  # chi square, 8 degrees, .1 %


def test_cutout_is_that_of_a_loop_and_black() -> None:
    pixels = torch.full((50, 32, 24, 3), 200, dtype=torch.uint8)
    stage = Cutout(16)
    draws = stage.draw(50, generator())
    result = stage(pixels, draws)
    for (row, column), ours in zip(draws.tolist(), result, strict=True):
        y, x = int(row * 32), int(column * 24)
        expected = np.full((32, 24, 3), 200, np.uint8)
        expected[max(y - 8, 0) : y + 8, max(x - 8, 0) : x + 8] = 0
        assert np.array_equal(ours.numpy(), expected)


def test_the_centre_of_cutout_is_uniform_over_all_pixels() -> None:
    pixels = torch.ones(20_000, 24, 24, 1, dtype=torch.uint8)
    stage = Cutout(16)
    kept = stage(pixels, stage.draw(20_000, generator())).double().mean(0)[..., 0]
    # A pixel is cut where the centre is at most 7 before or 8 behind it.
    covers = torch.tensor([min(23, i + 8) - max(0, i - 7) + 1 for i in range(24)]) / 24
    torch.testing.assert_close(1 - kept, torch.outer(covers, covers).double(), atol=0.02, rtol=0)


# Policies


def test_the_policy_for_cifar10_is_the_published_one() -> None:
    published = AutoAugment(AutoAugmentPolicy.CIFAR10).policies
    ours = autoaugment()
    assert len(ours) == len(published) == 25
    for pair, theirs in zip(ours, published, strict=True):
        for operation, (name, probability, level) in zip(pair, theirs, strict=True):
            assert operation.name == NAMES[name]
            assert operation.probability == probability
            if level is not None:
                check_strength(operation.name, operation.base, operation.span, level)


def check_strength(name: str, base: float, span: float, level: int) -> None:
    """Compare with the ranges of the published code, which differ from torchvision's."""
    if name in ENHANCE:
        assert (base, span) == (1, pytest.approx(np.linspace(0, 0.9, 10)[level]))
    elif name in SIGNED:
        largest = 0.3 if name.startswith("shear") else 150 / 331
        assert (base, span) == (0, pytest.approx(np.linspace(0, largest, 10)[level]))
    elif name == "rotate":
        assert (base, span) == (pytest.approx(np.linspace(0, 30, 10)[level]), 0)
    elif name == "posterize":
        assert (base, span) == (np.round(np.linspace(8, 4, 10))[level], 0)
    elif name == "solarize":
        assert (base, span) == (pytest.approx(np.linspace(256, 0, 10)[level]), 0)
    else:
        assert (base, span) == (0, 0)


@pytest.mark.parametrize("magnitude", [0, 10, 30])
def test_randaugment_is_that_of_torchvision(magnitude: int) -> None:
    space = RandAugment(magnitude=magnitude)._augmentation_space(31, (331, 331))
    ours = {sequence[0].name: sequence[0] for sequence in randaugment(magnitude)}
    assert set(ours) == {NAMES[name] for name in space}
    for name, (magnitudes, signed) in space.items():
        operation = ours[NAMES[name]]
        strength = float(magnitudes[magnitude]) if magnitudes.ndim else 0.0
        assert operation.probability == 1
        if signed:
            scale = 331 if name.startswith("Translate") else 1
            base = 1 if operation.name in ENHANCE else 0
            assert (operation.base, operation.span * scale) == (base, pytest.approx(strength))
        elif operation.name == "solarize":
            assert operation.base == pytest.approx(strength * 256 / 255)  # theirs begins at 255
        else:
            assert (operation.base, operation.span) == (strength, 0)


def test_draws_of_autoaugment_follow_the_policy() -> None:
    count = 100_000
    draws = Policy(autoaugment()).draw(count, generator())
    assert draws.shape == (count, 2, 2)
    for step in (0, 1):
        chances = dict.fromkeys(OPERATIONS, 0.0)
        for pair in autoaugment():
            chances[pair[step].name] += pair[step].probability / 25
            chances["identity"] += (1 - pair[step].probability) / 25
        seen = torch.bincount(draws[:, step, 0].long(), minlength=len(OPERATIONS))
        for name, chance in chances.items():
            expected = count * chance
            assert abs(int(seen[CODES[name]]) - expected) <= 4 * (expected + 1) ** 0.5
    codes, arguments = draws.flatten(0, 1).unbind(1)
    assert (arguments[codes == CODES["rotate"]] > 0).all()
    shifts = arguments[codes == CODES["translate-y"]]
    assert float(shifts.sign().mean()) == pytest.approx(0, abs=0.03)
    bright = arguments[codes == CODES["brightness"]] - 1
    assert float(bright.sign().mean()) == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize(
    "policy", [Policy(autoaugment()), Policy(randaugment(10), repeats=2)], ids=["auto", "rand"]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_batch_is_what_each_image_would_be_alone(policy: Policy, channels: int) -> None:
    pixels = photographs()[..., :channels].contiguous()
    before = pixels.clone()
    draws = policy.draw(len(pixels), generator(1))
    together = policy(pixels, draws)
    assert torch.equal(pixels, before)
    for image, steps, ours in zip(pixels, draws, together, strict=True):
        alone = image[None]
        for code, argument in steps.tolist():
            one = torch.tensor([argument], dtype=torch.float64)
            alone = operate(alone, torch.tensor([int(code)]), one)
        assert torch.equal(ours, alone[0])
    reversed_rows = policy(pixels.flip(0), draws.flip(0))
    assert torch.equal(reversed_rows.flip(0), together)


def test_photographs_keep_their_brightness_on_average() -> None:
    pixels = photographs().repeat(20, 1, 1, 1)
    for name in ("autoaugment", "randaugment"):
        stage = image_stages(name, (3, 32, 32))[1]
        changed = stage(pixels, stage.draw(len(pixels), generator()))
        assert not torch.equal(changed, pixels)
        assert abs(float(changed.float().mean() - pixels.float().mean())) < 15


# The registry


@pytest.mark.parametrize("name", [n for n, augment in AUGMENTS.items() if augment.stages])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 40, 24)])
def test_images_keep_their_shape_and_draws_are_reproducible(
    name: str, shape: tuple[int, int, int]
) -> None:
    channels, height, width = shape
    pixels = torch.randint(0, 256, (7, height, width, channels), generator=generator())
    results = []
    for seed in (3, 3, 4):
        source, image = generator(seed), pixels.to(torch.uint8)
        for stage in image_stages(name, shape):
            image = stage(image, stage.draw(7, source))
        assert image.shape == pixels.shape
        assert image.dtype == torch.uint8
        results.append(image)
    assert torch.equal(results[0], results[1])
    assert name == "none" or not torch.equal(results[0], results[2])


@pytest.mark.parametrize("name", [n for n, augment in AUGMENTS.items() if augment.files])
def test_files_become_squares(name: str) -> None:
    picture = Image.fromarray(load_sample_image("china.jpg"))
    torch.manual_seed(0)
    image = file_transform(name, 96)(picture)
    assert image.dtype == torch.uint8
    assert image.shape == (3, 96, 96)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: image_stages("autoaugment", (3, 16, 32)), "wipe out images of 16 x 32"),
        (lambda: image_stages("crop-flip", (1, 4, 4)), r"4 x 4 \(CropFlip of 4 pixels\)"),
        (lambda: image_stages("randaugment", (4, 32, 32)), "1 or 3 channels, these have 4"),
        (lambda: image_stages("crop-flip-jitter", (3, 32, 32)), "is for image files"),
        (lambda: file_transform("autoaugment", 224), "is for images in memory"),
    ],
)
def test_bad_inputs(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize(
    "call", [lambda n: image_stages(n, (3, 32, 32)), lambda n: file_transform(n, 9)]
)
def test_an_unknown_augmentation_is_an_unknown_name(call: Any) -> None:
    with pytest.raises(
        UnknownNameError, match="augment='cropflip' is unknown, did you mean 'crop-"
    ):
        call("cropflip")
