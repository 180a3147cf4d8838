"""For which test set? A plain and a balanced model, each moved to the other's class frequencies.

    python examples/which_prior.py [--quick] [--json FILE]

Long-tailed digits under noise. Each model is measured for a test set with the class frequencies of
the training data, and for one where all classes are equally frequent. Cross-entropy learns the
first, logit adjustment the second, and ``adjust`` moves either to the other without training.
The logarithmic loss says how good the probabilities are, not only the decisions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import classwise as cw
from classwise.data import load, prepare


def logits_of(method: str, data: Any, epochs: int, seed: int) -> tuple[Tensor, Tensor]:
    """Train; return logits and targets of the test set."""
    torch.manual_seed(seed)
    train, test = (
        pixels.flatten(1) / 255 + 0.4 * torch.randn(len(pixels), pixels[0].numel())
        for pixels in (data.train.inputs, data.test.inputs)
    )
    model = nn.Linear(train.shape[1], len(data.class_counts))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    criterion = cw.Criterion(method, data.class_counts, epochs=epochs)
    for epoch in range(epochs):
        criterion.start_epoch(epoch)
        for batch in torch.randperm(len(train)).split(64):
            optimizer.zero_grad()
            criterion(model(train[batch]), data.train.labels[batch]).backward()
            optimizer.step()
    return model(test).detach(), data.test.labels


def expected(logits: Tensor, target: Tensor, prior: Tensor) -> tuple[float, float]:
    """Return accuracy and logarithmic loss where classes are as frequent as ``prior`` says."""
    weight = (prior / prior.sum() / target.bincount(minlength=len(prior)))[target]
    right = (logits.argmax(1) == target).double()
    loss = nn.functional.cross_entropy(logits.double(), target, reduction="none")
    return float((weight * right).sum()), float((weight * loss).sum())


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Train with both methods, move both models, and print a table; return its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 epochs and 1 seed, not 60 and 5")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    options = parser.parse_args(arguments)
    epochs, seeds = (3, 1) if options.quick else (60, 5)
    data: Any = prepare(load("digits"), imbalance="exp:50")  # tensors, not files
    counts = data.class_counts
    even = torch.ones_like(counts)
    found: dict[str, list[tuple[float, ...]]] = {}
    for seed in range(seeds):
        plain, target = logits_of("ce", data, epochs, seed)
        balanced, _ = logits_of("la", data, epochs, seed)
        models = {
            "ce": plain,
            "ce, adjusted": cw.adjust(plain, counts),  # <- to equal frequencies
            "la": balanced,
            "la, adjusted": cw.adjust(balanced, even, target_prior=counts),  # <- and back
        }
        for name, logits in models.items():
            both = (*expected(logits, target, counts), *expected(logits, target, even))
            found.setdefault(name, []).append(both)
    columns = ("accuracy as trained", "loss as trained", "accuracy balanced", "loss balanced")
    rows: list[dict[str, Any]] = [
        {"model": name, **dict(zip(columns, map(list, zip(*runs, strict=True)), strict=True))}
        for name, runs in found.items()
    ]
    for row in rows:
        cells = (f"{key} {sum(row[key]) / seeds:.3f}" for key in columns)
        print(f"{row['model']:<14}" + "   ".join(cells))
    if options.json is not None:
        made_by = {"epochs": epochs, "seeds": seeds, "torch": str(torch.__version__)}
        options.json.write_text(json.dumps({"made_by": made_by, "rows": rows}, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
