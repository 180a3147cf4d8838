"""Loaders: what a batch holds, on which rank, after a resume, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms

from classwise.data.dataset import Files, Split
from classwise.data.loading import Loader, make_loader
from classwise.data.sampling import ClassSampler, SequentialSampler
from classwise.errors import ArgumentError, DataError, UnknownNameError

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
CLASSES, SAMPLES = 4, 50


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


LABELS = torch.randint(0, CLASSES, (SAMPLES,), generator=generator())
IMAGES = Split(
    torch.randint(0, 256, (SAMPLES, 3, 20, 20), generator=generator()).to(torch.uint8), LABELS
)
TABLE = Split(torch.randn(SAMPLES, 3, generator=generator()) * 5 + 2, LABELS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Split:
    root = tmp_path_factory.mktemp("images")
    numbers = np.random.default_rng(0)
    names = []
    for i in range(SAMPLES):
        coarse = numbers.integers(0, 256, (5, 5, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((60 + i, 48), Image.Resampling.BICUBIC)
        names.append(f"{i}.png")
        image.save(root / names[-1])
    return Split(Files(root, tuple(names)), LABELS)


def loader(split: Split = IMAGES, *, rank: int = 0, world: int = 1, **settings: Any) -> Loader:
    sampler = ClassSampler(
        split.labels,
        CLASSES,
        batch_size=16,
        kind=settings.pop("kind", "class-aware"),
        seed=1,
        rank=rank,
        world=world,
    )
    settings = {"num_classes": CLASSES, "mean": MEAN, "std": STD, "seed": 1, **settings}
    return make_loader(split, sampler, **settings)


def evaluation(split: Split, **settings: Any) -> Loader:
    settings = {"num_classes": CLASSES, "mean": MEAN, "std": STD, "train": False, **settings}
    return make_loader(split, SequentialSampler(len(split), batch_size=16), **settings)


def shown(made: Loader, epoch: int = 0) -> list[tuple[Tensor, Tensor]]:
    made.set_epoch(epoch)
    return list(made)


def assert_same(left: list[tuple[Tensor, Tensor]], right: list[tuple[Tensor, Tensor]]) -> None:
    for one, other in zip(left, right, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])


def differ(left: list[tuple[Tensor, Tensor]], right: list[tuple[Tensor, Tensor]]) -> bool:
    return any(not torch.equal(a[0], b[0]) for a, b in zip(left, right, strict=True))


# What a batch holds


def test_images_are_normalised_as_torchvision_does() -> None:
    oracle: Any = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    assert isinstance(IMAGES.inputs, Tensor)
    expected = torch.stack([oracle(i.permute(1, 2, 0).numpy()) for i in IMAGES.inputs])
    batches = shown(evaluation(IMAGES))
    inputs = torch.cat([inputs for inputs, _ in batches])
    torch.testing.assert_close(inputs, expected, atol=2e-6, rtol=0)
    assert torch.equal(torch.cat([target for _, target in batches]), LABELS)
    for batch, target in batches:
        assert batch.dtype == torch.float32
        assert target.dtype == torch.int64
        assert batch.is_contiguous(memory_format=torch.channels_last)


def test_tables_are_standardised() -> None:
    mean, std = (2.0, 1.0, 3.0), (5.0, 0.5, 2.0)
    inputs = torch.cat([x for x, _ in shown(evaluation(TABLE, mean=mean, std=std))])
    assert isinstance(TABLE.inputs, Tensor)
    torch.testing.assert_close(inputs, (TABLE.inputs - torch.tensor(mean)) / torch.tensor(std))
    assert inputs.dtype == torch.float32


def test_inputs_belong_to_their_labels() -> None:
    assert isinstance(IMAGES.inputs, Tensor)
    marked = IMAGES.inputs.clone()
    marked[:] = (LABELS * 50).to(torch.uint8)[:, None, None, None]
    split = Split(marked, LABELS)
    zero, one = (0.0,) * 3, (1 / 255,) * 3
    for kind in ("shuffled", "class-aware"):
        for inputs, target in loader(split, mean=zero, std=one, augment="crop-flip", kind=kind):
            assert torch.equal(inputs.amax((1, 2, 3)).round().long(), target * 50)


def test_the_batch_of_a_loader_is_the_stages_by_hand() -> None:
    assert isinstance(IMAGES.inputs, Tensor)
    made = loader(augment="crop-flip", kind="shuffled", mean=(0.0,) * 3, std=(1 / 255,) * 3)
    first = next(iter(made))[0]
    indices = next(iter(made.sampler))
    padded = torch.nn.functional.pad(IMAGES.inputs[indices], (4, 4, 4, 4))
    found = 0
    for image, crop in zip(padded, first, strict=True):
        crops = image.unfold(1, 20, 1).unfold(2, 20, 1).permute(1, 2, 0, 3, 4).flatten(0, 1)
        both = torch.cat([crops, crops.flip(3)])
        found += int((both == crop.round().to(torch.uint8)).flatten(1).all(1).any())
    assert found == len(indices)


def test_augmentation_changes_from_epoch_to_epoch_and_batch_to_batch() -> None:
    made = loader(augment="crop-flip")
    assert differ(shown(made, 0), shown(made, 1))
    assert isinstance(IMAGES.inputs, Tensor)
    equal = Split(IMAGES.inputs[:1].expand(SAMPLES, -1, -1, -1), LABELS)
    first, second = (inputs for inputs, _ in shown(loader(equal, augment="crop-flip"))[:2])
    assert not torch.equal(first, second)
    other = loader(augment="crop-flip", seed=2)
    assert differ(shown(made, 0), shown(other, 0))


@pytest.mark.parametrize("mixing", ["mixup:1.0", "unimix:-0.1"])
@pytest.mark.parametrize("split", [IMAGES, TABLE], ids=["images", "table"])
def test_mixed_batches_have_soft_targets(split: Split, mixing: str) -> None:
    mixed = False
    for inputs, target in loader(split, mixing=mixing):
        assert target.shape == (len(inputs), CLASSES)
        torch.testing.assert_close(target.sum(1), torch.ones(len(inputs)))
        mixed |= bool(((target > 0) & (target < 1)).any())
        if split is IMAGES:
            assert inputs.is_contiguous(memory_format=torch.channels_last)
    assert mixed


def test_evaluation_is_in_order_and_complete() -> None:
    batches = shown(evaluation(IMAGES))
    assert [len(target) for _, target in batches] == [16, 16, 16, 2]
    assert len(evaluation(IMAGES)) == 4


# On which rank, and after a resume


CASES = [
    ("images", "none", "none"),
    ("images", "crop-flip", "none"),
    ("images", "autoaugment", "unimix:-0.5"),
    ("images", "randaugment", "none"),
    ("images", "crop-flip", "mixup:1.0"),
    ("table", "none", "mixup:0.4"),
    ("files", "crop-flip", "none"),
    ("files", "randaugment", "none"),
]


@pytest.fixture
def splits(files: Split) -> dict[str, Split]:
    return {"images": IMAGES, "table": TABLE, "files": files}


def settings_of(kind: str, augment: str, mixing: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"augment": augment, "mixing": mixing}
    return {**settings, "image_size": 32} if kind == "files" else settings


@pytest.mark.parametrize(("kind", "augment", "mixing"), CASES)
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_together_are_one_process(
    splits: dict[str, Split], kind: str, augment: str, mixing: str, world: int
) -> None:
    settings = settings_of(kind, augment, mixing)
    alone = shown(loader(splits[kind], **settings), 2)
    ranks = [
        shown(loader(splits[kind], rank=rank, world=world, **settings), 2) for rank in range(world)
    ]
    if world == 3:  # 50 = 3 * 16 + 2, too small a tail for three
        alone, ranks = alone[:2], [batches[:2] for batches in ranks]
    parts = zip(*ranks, strict=True)
    together = [tuple(torch.cat(both) for both in zip(*part, strict=True)) for part in parts]
    assert_same(alone, together)


@pytest.mark.parametrize(("kind", "augment", "mixing"), CASES)
def test_a_resumed_epoch_is_the_uninterrupted_one(
    splits: dict[str, Split], kind: str, augment: str, mixing: str
) -> None:
    settings = settings_of(kind, augment, mixing)
    straight = loader(splits[kind], **settings)
    epochs = [shown(straight, epoch) for epoch in range(3)]
    torch.manual_seed(77)
    before = torch.get_rng_state()
    resumed = loader(splits[kind], **settings)
    assert_same(epochs[2], shown(resumed, 2))
    assert_same(epochs[1], shown(resumed, 1))
    assert_same(epochs[1][2:], list(resumed.batches(2)))  # and from the middle of an epoch
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_can_be_left_in_the_middle() -> None:
    made = loader(augment="crop-flip")
    expected = shown(made)
    for _ in made:
        break
    assert_same(expected, list(made))


# Elsewhere


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("kind", "augment", "mixing"), CASES)
def test_a_gpu_sees_what_the_cpu_sees_without_waiting(
    splits: dict[str, Split], kind: str, augment: str, mixing: str
) -> None:
    settings = settings_of(kind, augment, mixing)
    here = shown(loader(splits[kind], **settings), 1)
    made = loader(splits[kind], device="cuda", **settings)
    made.set_epoch(1)
    torch.cuda.set_sync_debug_mode("error" if kind != "files" else "default")
    try:
        there = list(made)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for (inputs, target), (on_gpu, target_on_gpu) in zip(here, there, strict=True):
        # Cubic interpolation may differ by one level of 255.
        torch.testing.assert_close(on_gpu.cpu(), inputs, atol=0.025, rtol=0)
        torch.testing.assert_close(target_on_gpu.cpu(), target)
        assert inputs.ndim == 2 or on_gpu.is_contiguous(memory_format=torch.channels_last)


# Files


def test_workers_do_not_change_what_is_read(files: Split) -> None:
    settings: dict[str, Any] = {"augment": "randaugment", "image_size": 32}
    here = loader(files, **settings)
    there = loader(files, workers=2, **settings)
    assert_same(shown(here, 1), shown(there, 1))
    assert_same(shown(here, 4), shown(there, 4))  # the same processes, another epoch
    assert_same(shown(here, 4)[1:], list(there.batches(1)))


def test_files_are_resized_and_cropped_for_evaluation(files: Split) -> None:
    oracle: Any = transforms.Compose(
        [
            transforms.Resize(64),
            transforms.CenterCrop(56),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    assert isinstance(files.inputs, Files)
    expected = torch.stack([oracle(Image.open(files.inputs.path(i))) for i in range(SAMPLES)])
    batches = shown(evaluation(files, image_size=56))
    inputs = torch.cat([inputs for inputs, _ in batches])
    torch.testing.assert_close(inputs, expected, atol=2e-6, rtol=0)
    assert all(b.is_contiguous(memory_format=torch.channels_last) for b, _ in batches)


def test_a_file_drawn_twice_in_an_epoch_is_augmented_in_two_ways(files: Split) -> None:
    one = files.take(torch.zeros(20, dtype=torch.int64))
    split = Split(one.inputs, torch.zeros(20, dtype=torch.int64))
    inputs = next(iter(loader(split, augment="crop-flip", image_size=32)))[0]
    assert len({image.numpy().tobytes() for image in inputs}) == len(inputs)


def test_files_are_mixed_within_a_rank(files: Split) -> None:
    settings: dict[str, Any] = {"augment": "none", "mixing": "unimix:-0.1", "image_size": 32}
    assert_same(shown(loader(files, **settings), 1), shown(loader(files, **settings), 1))
    for rank in (0, 1):
        made = loader(files, rank=rank, world=2, **settings)
        for (_, target), indices in zip(made, made.sampler, strict=True):
            present = torch.zeros(CLASSES).index_fill_(0, LABELS[indices], 1)
            assert (target * (1 - present)).sum() == 0
            torch.testing.assert_close(target.sum(1), torch.ones(len(indices)))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("damage", ["truncated", "text", "empty", "missing"])
def test_an_unreadable_file_is_named(tmp_path: Path, damage: str, workers: int) -> None:
    for i in range(8):
        Image.fromarray(np.full((40, 40, 3), i, np.uint8)).save(tmp_path / f"{i}.png")
    bad = tmp_path / "5.png"
    content = bad.read_bytes()
    if damage == "missing":
        bad.unlink()
    else:
        bad.write_bytes({"truncated": content[:60], "text": b"hello", "empty": b""}[damage])
    split = Split(Files(tmp_path, tuple(f"{i}.png" for i in range(8))), torch.arange(8) % 2)
    sampler = SequentialSampler(8, batch_size=4)
    made = make_loader(
        split, sampler, num_classes=2, mean=MEAN, std=STD, image_size=32, workers=workers
    )
    with pytest.raises(DataError, match=r"5\.png") as raised:
        list(made)
    assert "\n" not in str(raised.value)


# Bad inputs


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: loader(augment="autoaugment", split=IMAGES.take(torch.arange(9))),
            "batch_size=16",
        ),
        (
            lambda: loader(TABLE, augment="crop-flip"),
            "is for images; for a table it must be 'none'",
        ),
        (lambda: loader(augment="crop-flip-jitter"), "is for image files"),
        (lambda: loader(train=False, mixing="mixup"), "must be 'none' with train=False"),
        (lambda: loader(train=False, augment="crop-flip"), "must be 'none' with train=False"),
        (lambda: loader(mean=(0.5,)), "mean has 1 entries where there are 3 channels"),
        (lambda: loader(TABLE, std=(1.0, 1.0)), "std has 2 entries where there are 3 columns"),
        (lambda: loader(std=(1.0, 0.0, 1.0)), r"std\[1\]=0.0 must be > 0"),
        (lambda: loader(mean=("a",)), "mean must be numbers"),
        (lambda: loader(num_classes=3), "labels go up to 3, num_classes=3 is too few"),
        (lambda: loader(workers=-1), "workers=-1 must be at least 0"),
        (lambda: loader(seed=-1), "seed=-1 must be at least 0"),
        (lambda: loader(device="gpu"), "device='gpu' is not a device of torch"),
        (lambda: loader(mixing="mixup:0"), "alpha of mixup=0.0 is out of range"),
        (
            lambda: make_loader(
                IMAGES, SequentialSampler(9, batch_size=2), num_classes=4, mean=MEAN, std=STD
            ),
            "the sampler is for 9 samples, the split has 50",
        ),
        (
            lambda: make_loader(IMAGES, [[0, 1]], num_classes=4, mean=MEAN, std=STD),  # type: ignore[arg-type]
            "must be a ClassSampler or a SequentialSampler, got list",
        ),
    ],
)
def test_bad_inputs(call: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_bad_inputs_of_files(files: Split) -> None:
    with pytest.raises(ArgumentError, match="augment='autoaugment' is for images in memory"):
        loader(files, augment="autoaugment")
    with pytest.raises(ArgumentError, match="image_size=0 must be at least 1"):
        loader(files, image_size=0)


@pytest.mark.parametrize("split", [IMAGES, TABLE], ids=["images", "table"])
def test_unknown_names(split: Split) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'crop-flip'"):
        loader(split, augment="crop_flip")
    with pytest.raises(UnknownNameError, match="did you mean 'unimix'"):
        loader(split, mixing="uni-mix:1")
