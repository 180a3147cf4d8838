"""Real processes for the tests: run a function on every rank of a gloo group, collect results.

A module of its own, because a spawned process must be able to import the function it runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import classwise as cw

COUNTS = [500, 120, 60, 19, 5]
EPOCHS = 5


def run_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return what ``function(rank, *arguments)`` returns on each rank."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_worker, args=(world, folder, function, arguments), nprocs=world)  # type: ignore[no-untyped-call]
        return [torch.load(Path(folder, f"{rank}.pt")) for rank in range(world)]


def _worker(
    rank: int, world: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world
    )
    try:
        torch.save(function(rank, *arguments), Path(folder, f"{rank}.pt"))
        dist.barrier()  # a rank that leaves first can abort one that is still talking to it
    finally:
        dist.destroy_process_group()


def whole_batch(step: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return a batch and the rows of each of two ranks: uneven, class 4 missing on rank 1.

    In every fourth batch nothing on rank 1 counts.
    """
    generator = torch.Generator().manual_seed(100 + step)
    inputs = torch.randn(30, 6, generator=generator)
    target = torch.randint(5, (30,), generator=generator)
    target[0] = 4
    rows = torch.arange(30)
    first = (target == 4) | (rows < 12)
    if step % 4 == 3:
        target[~first] = -100
    return inputs, target, [rows[first], rows[~first]]


def train(rank: int | None, method: str, normalize: str | None) -> dict[str, Any]:
    """Train a linear model; ``rank`` None is one process on whole batches."""
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(6, 5).double()
    if rank is not None:
        model = DistributedDataParallel(model)
    criterion = cw.Criterion(
        method, COUNTS, epochs=EPOCHS, defer_at=3, warmup=1, slopes="paper", normalize=normalize
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for epoch in range(EPOCHS):
        criterion.start_epoch(epoch)
        for step in range(4):
            inputs, target, rows = whole_batch(4 * epoch + step)
            mine = slice(None) if rank is None else rows[rank]
            # With "batch" no collective makes the divisor global, so it is said.
            counted = int((target >= 0).sum())
            size = counted / (1 if rank is None else 2) if normalize == "batch" else None
            loss = criterion(
                model(inputs[mine].double()), target[mine], features=inputs[mine], normalizer=size
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    return {
        "parameters": [p.detach() for p in model.parameters()],
        "losses": torch.stack(losses),
        "kappa": torch.stack([criterion.kappa_star, criterion.kappa_plus]),
        "count": criterion.table().count,
    }


class WithLoss(nn.Module):
    """A model that holds its criterion, as a LightningModule does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 5)
        self.criterion = cw.Criterion("cvs", COUNTS, epochs=3, warmup=0, slopes="paper")

    def forward(self, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        return self.criterion(self.net(inputs), target)


def train_with_loss(rank: int | None) -> dict[str, Tensor]:
    """Train a model that holds its criterion; DDP then wraps the criterion too."""
    torch.manual_seed(0)
    module = WithLoss()
    wrapped: nn.Module = module if rank is None else DistributedDataParallel(module)
    module.criterion.start_epoch(0)
    for step in range(4):
        inputs, target, rows = whole_batch(step)
        mine = slice(None) if rank is None else rows[rank]
        wrapped(inputs[mine], target[mine]).backward()
    count = module.criterion.table().count
    module.criterion.start_epoch(1)
    return {"count": count, "kappa": module.criterion.kappa_plus}


def stream(
    rank: int | None, batches: tuple[int, ...], normalize: str
) -> tuple[Tensor, list[Tensor]]:
    """Stream different numbers of batches on each rank.

    Returns:
        The slopes after the epoch, and the loss of each batch that this rank saw.
    """
    criterion = cw.Criterion("cvs", COUNTS, epochs=3, warmup=0, slopes="paper", normalize=normalize)
    criterion.start_epoch(0)
    losses = []
    for step in range(sum(batches)):
        inputs, target, _ = whole_batch(step)
        owner = 0 if step < batches[0] else 1
        if rank is None or rank == owner:
            losses.append(criterion((3 * inputs[:, :5]).requires_grad_(), target).detach())
    if rank == 0:  # evaluation on one rank only: no collective hides in it
        with torch.no_grad():
            criterion.eval()(torch.randn(4, 5), torch.zeros(4).long())
            criterion.train()
    criterion.start_epoch(1)
    return torch.stack([criterion.kappa_star, criterion.kappa_plus]), losses


def save_and_resume(rank: int) -> dict[str, Any]:
    """Save rank 0's state in the middle of an epoch, load it everywhere, go on."""

    def fresh() -> cw.Criterion:
        return cw.Criterion("cvs", COUNTS, epochs=3, warmup=0, slopes="paper", normalize="batch")

    def feed(criterion: cw.Criterion, steps: range) -> None:
        for step in steps:
            inputs, target, rows = whole_batch(step)
            mine = rows[rank]
            criterion((3 * inputs[mine, :5]).requires_grad_(), target[mine])

    first = fresh()
    first.start_epoch(0)
    feed(first, range(5))
    first.sync()
    saved = [first.state_dict() if rank == 0 else None]
    total = first.table().count.sum()
    dist.broadcast_object_list(saved, src=0)
    assert saved[0] is not None
    resumed = fresh()
    resumed.load_state_dict(saved[0])
    after_loading = resumed.table().count.sum()
    for criterion in (first, resumed):
        criterion.start_epoch(0)
        feed(criterion, range(5, 9))
        criterion.start_epoch(1)
    return {
        "synced": total,
        "loaded": after_loading,
        "first": torch.stack([first.kappa_star, first.kappa_plus]),
        "resumed": torch.stack([resumed.kappa_star, resumed.kappa_plus]),
    }


def all_scenarios(rank: int) -> dict[str, Any]:
    """Run everything in one pair of processes: importing torch costs more than the tests do."""
    return {
        "train": {
            (method, normalize): train(rank, method, normalize) for method, normalize in TRAININGS
        },
        "with_loss": train_with_loss(rank),
        "stream": {how: stream(rank, (5, 2), how) for how in ("weights", "batch")},
        "resume": save_and_resume(rank),
    }


TRAININGS = (
    ("ce", None),
    ("cb", None),
    ("cvs+adrw", "weights"),
    ("ldam+drw", None),
    ("focal+adrw", "weights"),
    ("focal+adrw", "batch"),
    ("ib", "batch"),
)
