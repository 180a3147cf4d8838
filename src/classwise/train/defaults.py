"""What a configuration leaves open, chosen for the data at hand."""

from __future__ import annotations

import dataclasses

import torch

from classwise._checks import known_name
from classwise.data.dataset import DataSet
from classwise.errors import ArgumentError
from classwise.models import resolve as resolve_model
from classwise.recipes import Recipe
from classwise.train.config import RunConfig, check

__all__ = ["recipe_of", "resolved", "torch_device"]

# Small models have learned their training samples by heart after some 20 epochs: 60 measured no
# better than 30 on samples that were held out.
_EPOCHS = {"small-cnn": 30, "mlp": 30}
_EPOCHS_OF_FILES = 90
_EPOCHS_OF_IMAGES = 200


def recipe_of(config: RunConfig) -> Recipe:
    """Return the recipe that a configuration names, its hyper-parameters checked."""
    return Recipe.parse(config.method.method, **config.method.hyper)


def torch_device(name: str) -> torch.device:
    """Return the device of that name; auto is the best that is there."""
    known_name("device", name.split(":", maxsplit=1)[0], ("auto", "cpu", "cuda", "mps"))
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ArgumentError(f"device={name!r}: torch sees no CUDA device here; use cpu or auto.")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ArgumentError("device='mps': torch sees no Apple GPU here; use cpu or auto.")
    return torch.device(name)


def resolved(config: RunConfig, dataset: DataSet, samples: int, *, has_val: bool) -> RunConfig:
    """Return the configuration with nothing left open.

    Args:
        config: what the user said.
        dataset: what is learned from.
        samples: training samples, after the imbalance.
        has_val: whether there is a validation split.
    """
    check(config)
    shape, kind = dataset.input_shape, dataset.kind
    model = resolve_model("auto" if config.model.model is None else config.model.model, shape, kind)
    optim, data = config.optim, config.data
    epochs = optim.epochs
    if epochs is None:
        epochs = _EPOCHS.get(model, _EPOCHS_OF_FILES if kind == "files" else _EPOCHS_OF_IMAGES)
    batch_size = optim.batch_size
    if batch_size is None:
        # Some sixteen steps in an epoch at least, for the sake of small sets.
        batch_size = next(
            (size for size in (128, 64, 32) if samples >= 16 * size), min(16, samples)
        )
    lr = optim.lr
    if lr is None:
        lr = 1e-3 if optim.optimizer == "adamw" else _sgd_lr(model, batch_size)
    augment = data.augment
    if augment is None:
        colour = kind == "files" or (kind == "images" and shape[0] == 3 and shape[-1] >= 28)
        augment = "crop-flip" if colour else "none"
    select = config.select
    if select is None and has_val:
        select = "val"
    if select == "val" and not has_val:
        raise ArgumentError(
            "select='val' needs a validation split: set val=0.1, or take a source that has one."
        )
    if config.tte and kind == "table":
        raise ArgumentError("tte=True averages over flipped images; a table has none.")
    eval_every = config.eval_every
    if eval_every is None:
        eval_every = 1 if select else max(1, epochs // 20)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(data, augment=augment),
        model=dataclasses.replace(config.model, model=model, head=_head(config)),
        method=dataclasses.replace(config.method, method=recipe_of(config).name),
        optim=dataclasses.replace(optim, epochs=epochs, batch_size=batch_size, lr=lr),
        select=select,
        eval_every=eval_every,
        precision=config.precision or _precision(config.device),
    )


def _sgd_lr(model: str, batch_size: int) -> float:
    """Return a learning rate for SGD with momentum.

    Small models have no batch normalisation: at 0.1 the first steps on Fashion-MNIST leave only
    units that are always 0, and 0.03 is slow to recover. 0.01 learns on it and on digits.
    """
    return 0.01 if model in _EPOCHS else 0.1 * batch_size / 128


def _head(config: RunConfig) -> str:
    needed = recipe_of(config).needs_cosine_head
    head = config.model.head or ("cosine" if needed else "linear")
    if needed and head != "cosine":
        raise ArgumentError(
            f"{config.method.method!r} is for cosine logits: leave head out, or set head='cosine'."
        )
    if head == "cosine" and not needed:
        raise ArgumentError(
            f"head='cosine' gives logits in [-1, 1], which {config.method.method!r} does not "
            "scale; it is for ldam and ala."
        )
    return head


def _precision(device: str) -> str:
    on_gpu = torch_device(device).type == "cuda" and torch.cuda.is_bf16_supported()
    return "bf16-mixed" if on_gpu else "32-true"
