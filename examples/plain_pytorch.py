"""A plain PyTorch loop on long-tailed digits that can be interrupted and resumed.

    python examples/plain_pytorch.py [--quick]

The two lines that classwise asks for are marked; what is saved beside the model is marked, too.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import classwise as cw
from classwise.data import load, prepare

BATCH = 64


def train(
    state: Path, epochs: int, *, until: int | None = None
) -> tuple[nn.Module, Any, list[int]]:
    """Train up to epoch ``until``, from where ``state`` says; return model, test data, counts."""
    data: Any = prepare(load("digits"), imbalance="exp:50")  # tensors, not files
    x, y = data.train.inputs / 255, data.train.labels
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)
    counts = data.class_counts.tolist()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    criterion = cw.Criterion("cvs+adrw", counts, epochs=epochs)  # <- instead of CrossEntropyLoss
    start = 0
    if state.exists():
        saved = torch.load(state, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        criterion.load_state_dict(saved["criterion"])  # <- what was measured so far
        torch.set_rng_state(saved["random"])
        start = criterion.epoch + 1

    for epoch in range(start, epochs if until is None else until):
        criterion.start_epoch(epoch)  # <- the second line
        for inputs, target in loader:
            loss = criterion(model(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        saved = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "criterion": criterion.state_dict(),  # <-
            "random": torch.get_rng_state(),
        }
        torch.save(saved, state)
    return model, [(data.test.inputs / 255, data.test.labels)], counts


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train half of the epochs, resume, and print what was learnt; return the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 epochs instead of 60")
    epochs = 4 if parser.parse_args(arguments).quick else 60
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder, "state.pt")
        train(state, epochs, until=epochs // 2)  # ... and here the machine is switched off
        model, test, counts = train(state, epochs)
    measured = cw.measure(model, test, counts)
    errors = cw.calibration_error(measured.table, measured.shots)
    accuracy = {name: float(v) for name, v in measured.accuracy.items() if name != "per_class"}
    print(f"{'':<10}{'accuracy':>10}{'ECE':>8}")
    for name, value in accuracy.items():
        ece = errors.group_ece.get(name)
        print(f"{name:<10}{value:>10.1%}" + ("" if ece is None else f"{float(ece):>8.1%}"))
    return accuracy


if __name__ == "__main__":
    main()
