"""Train cross-entropy, logit adjustment and CVS+ADRW on long-tailed handwritten digits.

The data is scikit-learn's bundled ``digits`` (8 x 8 images): 50 images of each class are the test
set, and the rest is cut so that the largest class has 50 times the samples of the smallest. The
training loop is an ordinary one; the two lines that classwise asks for are marked.
"""

from __future__ import annotations

import statistics
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import classwise as cw

METHODS = ("ce", "la", "cvs+adrw")
SEEDS = (0, 1, 2)
EPOCHS = 60
BATCH = 64


def long_tailed_digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return training inputs and labels, test inputs and labels, and the training counts."""
    bunch = load_digits()  # type: ignore[no-untyped-call]
    inputs = torch.tensor(bunch["data"], dtype=torch.float32) / 16
    labels = torch.tensor(bunch["target"], dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    test = cw.select(labels, [50] * 10, generator)
    rest = torch.ones(len(labels), dtype=torch.bool).index_fill(0, test, False)
    inputs_left, labels_left = inputs[rest], labels[rest]
    counts = cw.longtail_counts(120, 10, imbalance_ratio=50)
    train = cw.select(labels_left, counts, generator)
    return inputs_left[train], labels_left[train], inputs[test], labels[test], counts


def train(method: str, seed: int) -> cw.Measurement:
    """Train a small network with one method and measure it on the balanced test set."""
    x, y, test_x, test_y, class_counts = long_tailed_digits(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    criterion = cw.Criterion(method, class_counts, epochs=EPOCHS)  # <- instead of CrossEntropyLoss
    for epoch in range(EPOCHS):
        criterion.start_epoch(epoch)  # <- the second line
        for batch in torch.randperm(len(x)).split(BATCH):
            loss = criterion(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return cw.measure(model, [(test_x, test_y)], class_counts, many=60, few=15)


def main() -> None:
    """Train all methods over all seeds and print what they do to many, medium and few."""
    columns = ("balanced", "many", "medium", "few")
    print(
        f"digits, imbalance ratio 50, {EPOCHS} epochs, {len(SEEDS)} seeds: test accuracy in percent"
    )
    print(f"{'':<10}" + "".join(f"{name:>16}" for name in columns) + f"{'ECE':>8}{'seconds':>9}")
    for method in METHODS:
        started = time.perf_counter()
        runs = [train(method, seed) for seed in SEEDS]
        row = f"{method:<10}"
        for name in columns:
            values = [100 * float(run.accuracy[name]) for run in runs]
            row += f"{statistics.mean(values):>10.1f} ±{statistics.stdev(values):>4.1f}"
        ece = [100 * float(cw.calibration_error(run.table).ece) for run in runs]
        print(row + f"{statistics.mean(ece):>8.1f}{time.perf_counter() - started:>9.1f}")


if __name__ == "__main__":
    main()
