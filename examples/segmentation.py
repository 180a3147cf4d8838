"""Dense prediction: a rare class of pixels, an ignored border, and what class terms do there.

    python examples/segmentation.py [--quick] [--json FILE]

Each image has a noisy background, one large disc and, in some, a small bright spot, which is one
labelled pixel of 280. One pixel around each spot is not labelled (255), as is usual where
annotators disagree. Terms that aim at the balanced error find nearly all of the spot, at the price
of false pixels, which intersection over union (IoU) counts and recall does not.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import classwise as cw

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "ce": ("ce", {}),
    "balanced": ("balanced", {}),
    "la, tau = 1": ("la", {"tau": 1.0}),
    "la, tau = 0.5": ("la", {"tau": 0.5}),
    "cvs": ("cvs", {}),
}
IGNORED = 255
SIZE = 32
CLASSES = ("background", "disc", "spot")


def images(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images (N, 1, H, W) and labels (N, H, W)."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(number, 1, 1, generator=generator)

    row, column = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")

    def disc(radius: Tensor) -> tuple[Tensor, Tensor]:
        y, x = uniform(4, SIZE - 4), uniform(4, SIZE - 4)
        distance = ((row - y) ** 2 + (column - x) ** 2).sqrt()
        return distance <= radius, distance <= radius + 1

    large, _ = disc(uniform(5, 9))
    small, around = disc(torch.where(uniform(0, 1) < 0.6, uniform(0.8, 1.8), torch.tensor(-9.0)))
    label = torch.zeros(number, SIZE, SIZE, dtype=torch.int64)
    label[large] = 1
    label[around] = IGNORED
    label[small] = 2
    shade = 0.6 * large + 1.2 * small
    return (shade + 0.45 * torch.randn(shade.shape, generator=generator)).unsqueeze(1), label


def train(method: str, epochs: int, seed: int, **hyper: Any) -> nn.Module:
    """Train a small convolutional network."""
    inputs, label = images(200, 0)
    counts = label[label != IGNORED].bincount(minlength=len(CLASSES))  # pixels, not images
    torch.manual_seed(seed)
    widths, layers = (1, 16, 16, 16), []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(16, len(CLASSES), 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    criterion = cw.Criterion(method, counts, epochs=epochs, ignore_index=IGNORED, **hyper)  # <-
    for epoch in range(epochs):
        criterion.start_epoch(epoch)  # <-
        for batch in torch.randperm(len(inputs)).split(10):
            loss = criterion(model(inputs[batch]), label[batch])  # (N, C, H, W) and (N, H, W)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model


@torch.no_grad()
def measure(model: nn.Module) -> dict[str, float]:
    """Return IoU, recall and precision of the spot, and the mean IoU, on new images."""
    inputs, label = images(200, 1)
    counted = label != IGNORED
    found = model.eval()(inputs).argmax(1)[counted]
    truth = F.one_hot(label[counted], len(CLASSES))
    guess = F.one_hot(found, len(CLASSES))
    both, true, guessed = (truth * guess).sum(0), truth.sum(0), guess.sum(0)
    iou = both / (true + guessed - both).clamp(min=1)
    return {
        "IoU": float(iou[2]),
        "recall": float(both[2] / true[2]),
        "precision": float(both[2] / guessed[2].clamp(min=1)),
        "mean IoU": float(iou.mean()),
    }


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Train with each method and print a table; return its rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1 epoch and 1 seed, not 15 and 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    options = parser.parse_args(arguments)
    epochs, seeds = (1, 1) if options.quick else (15, 3)
    rows: list[dict[str, Any]] = []
    for name, (method, hyper) in METHODS.items():
        runs = [measure(train(method, epochs, seed, **hyper)) for seed in range(seeds)]
        row = {key: [run[key] for run in runs] for key in runs[0]}
        rows.append({"method": name, **row})
        cells = (f"{key} {sum(v) / seeds:>6.1%}" for key, v in row.items())
        print(f"{name:<14}" + "   ".join(cells))
    if options.json is not None:
        made_by = {"epochs": epochs, "seeds": seeds, "torch": str(torch.__version__)}
        options.json.write_text(json.dumps({"made_by": made_by, "rows": rows}, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
