"""The loop of timm's training script, with its mixup and cutmix, on long-tailed digits.

    python examples/timm_loop.py [--quick]

Mixed batches have soft targets. The criterion takes them as they are: the loss is the expectation
over the classes, each with its own weight, adjustment and margin.
"""

# timm does not mark what its packages export.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from timm.data import Mixup
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import classwise as cw
from classwise.data import load, prepare


def train_one_epoch(
    epoch: int,
    model: nn.Module,
    loader: Any,
    optimizer: torch.optim.Optimizer,
    loss_fn: cw.Criterion,
    lr_scheduler: Any,
    mixup_fn: Mixup,
    model_ema: ModelEmaV3,
    accum_steps: int,
) -> None:
    """Do what the function of this name in timm's script does, gradient accumulation included."""
    loss_fn.start_epoch(epoch)  # <- the second line
    model.train()
    updates = (len(loader) + accum_steps - 1) // accum_steps
    for update, batches in enumerate(windows(loader, accum_steps)):
        mixed = [mixup_fn(inputs, target) for inputs, target in batches]
        # The micro-batches of an update weigh what their targets weigh; a division by accum_steps
        # would take each for the same.
        normalizer = torch.stack([loss_fn.mass(target) for _, target in mixed]).sum()  # <-
        for inputs, target in mixed:
            loss_fn(model(inputs), target, normalizer=normalizer).backward()
        optimizer.step()
        optimizer.zero_grad()
        model_ema.update(model)
        lr_scheduler.step_update(num_updates=epoch * updates + update + 1)


def windows(loader: Iterable[Any], steps: int) -> Iterable[list[Any]]:
    """Yield as many batches as make an update."""
    window: list[Any] = []
    for batch in loader:
        window.append(batch)
        if len(window) == steps:
            yield window
            window = []
    if window:
        yield window


def enlarged(pixels: Tensor) -> Tensor:
    """Return colour images of 16 x 16 pixels."""
    return F.interpolate(pixels / 255, scale_factor=2).repeat(1, 3, 1, 1)


def main(arguments: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Train, measure the averaged model on the test set and print; return the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1 epoch instead of 20")
    epochs = 1 if parser.parse_args(arguments).quick else 20
    torch.manual_seed(0)
    np.random.seed(0)  # timm's mixup draws from it
    data: Any = prepare(load("digits"), imbalance="exp:50")  # tensors, not files
    train = TensorDataset(enlarged(data.train.inputs), data.train.labels)
    loader = DataLoader(train, batch_size=32, shuffle=True, drop_last=True)

    model = timm.create_model("resnet10t", num_classes=10)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=3e-3, weight_decay=0.02)
    scheduler: Any
    scheduler, _ = create_scheduler_v2(optimizer, sched="cosine", num_epochs=epochs)
    mixup_fn = Mixup(mixup_alpha=0.2, cutmix_alpha=1.0, label_smoothing=0.0, num_classes=10)
    train_loss_fn = cw.Criterion(  # <- instead of SoftTargetCrossEntropy()
        "cvs+adrw", data.class_counts, epochs=epochs, label_smoothing=0.1
    )
    validate_loss_fn = nn.CrossEntropyLoss()
    model_ema = ModelEmaV3(model, decay=0.95)
    test = [(enlarged(data.test.inputs), data.test.labels)]
    for epoch in range(epochs):
        train_one_epoch(
            epoch, model, loader, optimizer, train_loss_fn, scheduler, mixup_fn, model_ema, 2
        )
        model.eval()
        with torch.no_grad():
            loss = validate_loss_fn(model(test[0][0]), test[0][1])
        scheduler.step(epoch + 1, loss)
    measured = cw.measure(model_ema.module, test, data.class_counts)
    for name, value in measured.accuracy.items():
        if name != "per_class":
            print(f"{name:<10}{float(value):>8.1%}")
    return measured.accuracy


if __name__ == "__main__":
    main()
