"""Rows of results and finished runs, made up."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

import classwise as cw
from classwise.paper import Cell, expand
from classwise.paper.results import Result
from classwise.stats.bins import bin_table, empty_bins, update_bins
from classwise.train.config import to_dict
from classwise.train.record import RunRecord

ROW = Result(
    key="0123456789abcdef",
    table="table-3",
    cell="a/ce/cifar100-exp-100",
    method="ce",
    hyper="augment=crop-flip;batch_size=128;lr=0.1;schedule=released;weight_decay=0.0002",
    seed=0,
    epochs=200,
    last=38.12,
    best=38.9,
    best_epoch=187,
    selected_on="test",
    many=66.0,
    medium=35.5,
    few=8.25,
    best_many=66.5,
    best_medium=36.0,
    best_few=8.5,
    val=None,
    ece=31.0,
    ece_many=12.5,
    ece_medium=33.0,
    ece_few=55.0,
    seconds=1234.5,
    images_per_second=1757.0,
    device="cpu (x86_64)",
    precision="bf16-mixed",
    revision="0123456789ab",
    versions="classwise=0.2.0;python=3.11.7;torch=2.10",
    data_checksum="feed",
    date="2026-01-02T03:04:05+00:00",
)


def row(**changes: Any) -> Result:
    """Return a row that differs in some values."""
    return dataclasses.replace(ROW, **changes)


def record_of(cell: Cell, *, seed: int = 0, skill: float = 0.5, finished: bool = True) -> RunRecord:
    """Return a run of a cell as if it had been trained: 100 classes, exponential, 20 epochs."""
    config = expand(cell, seed)
    counts = cw.longtail_counts(500, 100, 100)
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(100).repeat(20)
    accuracy = (skill + 0.25 * (counts[label].double() / 50).log10()).clamp(0.02, 0.98)
    right = torch.rand(len(label), generator=generator) < accuracy
    confidence = (accuracy + 0.2 + 0.2 * torch.randn(len(label), generator=generator)).clamp(
        0.05, 0.99
    )
    predicted = torch.where(right, label, (label + 1) % 100)
    logits = torch.full((len(label), 100), -1e9, dtype=torch.float64)
    logits[torch.arange(len(label)), (predicted + 1) % 100] = (1 - confidence).log()
    logits[torch.arange(len(label)), predicted] = confidence.log()
    bins = empty_bins(100)
    update_bins(bins, logits, label, group_by="target")
    table = bin_table(bins)
    epochs = [
        {
            "epoch": epoch,
            "train": {
                "loss": 1.0,
                "accuracy": 0.5,
                "many": 1 - 0.9 ** (epoch + 1),
                "few": (0.3 if epoch < 16 else 0.9) * (1 - 0.8 ** (epoch + 1)),
            },
            "test": {"balanced": 0.3, "ece": 0.2 + epoch / 100, "ece_few": 0.4, "ece_many": 0.1},
            "kappa_star": [1 + (c - 50) * epoch / 2000 for c in range(100)],
            "kappa_plus": [1 + c / 500 for c in range(100)],
        }
        for epoch in range(20)
    ]
    numbers = {"balanced": skill - 0.1, "micro": 0.4, "many": 0.6, "medium": 0.4, "few": 0.1}
    numbers |= {"ece": 0.3, "ece_many": 0.1, "ece_medium": 0.3, "ece_few": 0.5}
    best = {**numbers, "balanced": skill - 0.09, "epoch": 18}
    best |= {"selected_on": "test", "measured_on": "test"}
    return RunRecord(
        folder=Path("somewhere") / cell.name,
        config=to_dict(config),
        provenance={
            "classwise": "0.2.0",
            "revision": "0123456789ab",
            "python": "3.11.7",
            "libraries": {"torch": "2.10.0", "lightning-fabric": "2.6", "timm": None},
            "device": "cpu (x86_64)",
            "precision": "bf16-mixed",
            "started": "2026-01-02T03:04:05+00:00",
            "data_checksum": "feed",
        },
        class_names=tuple(map(str, range(100))),
        class_counts=counts,
        recipe="",
        phase_starts=(0, 16),
        epochs=epochs,
        tensors={
            **{f"test.{f.name}": getattr(table, f.name) for f in dataclasses.fields(table)},
            "bound.per_class": (1.2 - skill) * counts.double().sqrt() / 10,
        },
        result={
            "split": "test",
            "epoch": 19,
            "epochs": 20,
            "last": numbers,
            "val": {},
            "best": best,
            "seconds": 123.456,
            "images_per_second": 1000.04,
        },
        finished=finished,
    )
