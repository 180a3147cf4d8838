"""Long-tailed digits in PyTorch Lightning: the module is as it was, the callback does the rest.

python examples/lightning_loop.py [--quick]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import classwise as cw
from classwise.adapters.lightning import ImbalanceCallback
from classwise.data import load, prepare


class Digits(pl.LightningModule):
    """A classifier with a plain loss; the callback puts its own in the place of ``criterion``."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits."""
        return self.net(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        inputs, target = batch
        return self.criterion(self(inputs), target)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log the loss of a batch; what the criterion sees is measured."""
        inputs, target = batch
        self.log("val/loss", self.criterion(self(inputs), target))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimiser."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train and print what was logged at the end; return it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 epochs instead of 60")
    epochs = 3 if parser.parse_args(arguments).quick else 60
    pl.seed_everything(0, verbose=False)
    data: Any = prepare(load("digits"), imbalance="exp:50")  # tensors, not files
    train = TensorDataset(data.train.inputs / 255, data.train.labels)
    test = TensorDataset(data.test.inputs / 255, data.test.labels)

    criterion = cw.Criterion("cvs+adrw", data.class_counts, epochs=epochs)  # <-
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[ImbalanceCallback(criterion)],  # <-
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Digits(),
        DataLoader(train, batch_size=64, shuffle=True),
        DataLoader(test, batch_size=256),
    )
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    for name, value in logged.items():
        print(f"{name:<18}{value:>8.3f}")
    return logged


if __name__ == "__main__":
    main()
