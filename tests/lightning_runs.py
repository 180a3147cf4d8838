"""Lightning trainings for the tests, which ranks can import as well."""

from __future__ import annotations

import copy
import os
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import classwise as cw
from classwise.adapters.lightning import ImbalanceCallback

COUNTS = [120, 40, 8]
EPOCHS = 5
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 1,
}


def data(seed: int = 0, size: int = 44) -> TensorDataset:
    """Return 44 samples of 6 numbers, the class frequencies as skewed as ``COUNTS``."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.multinomial(torch.tensor(COUNTS) / 1.0, size, True, generator=generator)
    inputs = torch.randn(size, 6, generator=generator) + target[:, None]
    return TensorDataset(inputs.double(), target)


def new_criterion(method: str = "cvs+adrw", **settings: Any) -> cw.Criterion:
    """Return the criterion of all tests: every part of it matters within five epochs."""
    settings = {"epochs": EPOCHS, "defer_at": 3, "warmup": 1, "slopes": "paper", **settings}
    return cw.Criterion(method, COUNTS, **settings)


class Net(pl.LightningModule):
    """A module as its user had it, with a plain loss."""

    def __init__(self, criterion: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Linear(6, 3).double()
        self.criterion = criterion or nn.CrossEntropyLoss()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs, target = batch
        return self.criterion(self(inputs), target)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        inputs, target = batch
        self.criterion(self(inputs), target)

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3)


def loader(dataset: TensorDataset | None = None, batch: int = 8, **kw: Any) -> DataLoader[Any]:
    """Return batches in the order of the data."""
    return DataLoader(dataset or data(), batch_size=batch, **kw)


def fit(
    module: pl.LightningModule,
    callback: pl.Callback,
    train: Any = None,
    ckpt: Path | str | None = None,
    **settings: Any,
) -> pl.Trainer:
    """Train a module, quietly."""
    settings = {"max_epochs": EPOCHS, "enable_checkpointing": False, **QUIET, **settings}
    callbacks = [callback, *settings.pop("callbacks", [])]
    trainer = pl.Trainer(callbacks=callbacks, **settings)
    trainer.fit(module, loader() if train is None else train, loader(data(9)), ckpt_path=ckpt)
    return trainer


def by_hand(
    criterion: cw.Criterion, batch: int = 8, dataset: TensorDataset | None = None
) -> tuple[nn.Linear, cw.Criterion]:
    """Train what ``fit`` trains in a plain loop."""
    net, criterion = copy.deepcopy(Net().net), copy.deepcopy(criterion)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
    for epoch in range(EPOCHS):
        criterion.start_epoch(epoch)
        for inputs, target in loader(dataset, batch):
            optimizer.zero_grad()
            criterion(net(inputs), target).backward()
            optimizer.step()
    return net, criterion


def rank_environment(rank: int, world: int) -> None:
    """Say to Lightning and accelerate what ``torchrun`` says."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    values = (rank, rank, world, world, 0)
    os.environ.update({name: str(value) for name, value in zip(names, values, strict=True)})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"})
    # What TorchElasticEnvironment.detect() asks torch.distributed.
    os.environ.update({"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_RESTART_COUNT": "0"})


class RankSampler(torch.utils.data.Sampler[int]):
    """The even samples for rank 0, the odd ones for rank 1."""

    def __init__(self, rank: int, size: int) -> None:
        self.indices = range(rank, size, 2)

    def __iter__(self) -> Any:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


def on_a_rank(rank: int, folder: str) -> dict[str, Any]:
    """Train on one of two ranks: accumulation, class weights, ignored targets; save and resume."""
    rank_environment(rank, 2)
    warnings.simplefilter("ignore")
    settings: dict[str, Any] = {
        "devices": 2,
        "strategy": "ddp",
        "use_distributed_sampler": False,
        "accumulate_grad_batches": 2,
    }
    found = {}
    for method in ("cvs+adrw", "focal+adrw"):
        train = loader(ignoring(), batch=4, sampler=RankSampler(rank, 44))
        module, callback = Net(), ImbalanceCallback(new_criterion(method))
        trainer = fit(module, callback, train, **settings)
        found[method] = {
            "weight": module.net.weight.detach(),
            "kappa": callback.criterion.kappa_plus,
            "acc_few": trainer.callback_metrics["val/acc_few"],
        }
    module = Net(new_criterion())
    train = loader(ignoring(), batch=4, sampler=RankSampler(rank, 44))
    trainer = fit(module, ImbalanceCallback(), train, max_epochs=EPOCHS, **settings)
    trainer.save_checkpoint(f"{folder}/two.ckpt")
    # Each rank validates half of the data.
    half = loader(data(), batch=4, sampler=RankSampler(rank, 44))
    (validated,) = trainer.validate(module, half, verbose=False)
    inputs, found["target"] = data().tensors
    found["logits"] = module(inputs).detach()
    found["validated"] = validated["val/acc"]
    try:
        sampler = torch.utils.data.WeightedRandomSampler([1.0] * 44, 44)
        fit(
            Net(),
            ImbalanceCallback(new_criterion()),
            loader(data(), sampler=sampler),
            **{**settings, "use_distributed_sampler": True},
        )
        found["refused"] = "nothing"
    except cw.StateError as error:
        found["refused"] = str(error)
    return found


def ignoring() -> TensorDataset:
    """Return the data with some targets ignored, unevenly over ranks and micro-batches."""
    inputs, target = data().tensors
    target = target.clone()
    target[[0, 2, 4, 6, 9, 40, 42]] = -100
    return TensorDataset(inputs, target)
