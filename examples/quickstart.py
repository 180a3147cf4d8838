"""Train cross-entropy, logit adjustment and CVS+ADRW on long-tailed handwritten digits.

The data is scikit-learn's bundled ``digits`` (8 x 8 images): 50 images of each class are the test
set, and the rest is cut so that the largest class has 50 times the samples of the smallest. The
training loop is an ordinary one; the two lines that classwise asks for are marked.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import classwise as cw

METHODS = ("ce", "la", "cvs+adrw")
SEEDS = (0, 1, 2)
EPOCHS = 60
BATCH = 64
COLUMNS = ("balanced", "many", "medium", "few")


def long_tailed_digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return training inputs and labels, test inputs and labels, and the training counts."""
    pixels, digits = load_digits(return_X_y=True)
    inputs = torch.tensor(pixels, dtype=torch.float32) / 16
    labels = torch.tensor(digits, dtype=torch.int64)
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


def compare() -> list[dict[str, Any]]:
    """Train all methods over all seeds: mean and spread of test accuracy, in percent."""
    rows = []
    for method in METHODS:
        started = time.perf_counter()
        runs = [train(method, seed) for seed in SEEDS]
        row: dict[str, Any] = {"method": method}
        for name in COLUMNS:
            values = [100 * run.accuracy[name].item() for run in runs]
            row[name] = [statistics.mean(values), statistics.stdev(values)]
        errors = [100 * cw.calibration_error(run.table).ece.item() for run in runs]
        row["ece"] = [statistics.mean(errors), statistics.stdev(errors)]
        row["seconds"] = time.perf_counter() - started
        rows.append(row)
    return rows


def main() -> None:
    """Print what each method does to many, medium and few; ``--json FILE`` keeps it as well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to FILE")
    file = parser.parse_args().json
    rows = compare()
    print(
        f"digits, imbalance ratio 50, {EPOCHS} epochs, {len(SEEDS)} seeds; percent on the test set"
    )
    print(f"{'':<10}" + "".join(f"{name:>16}" for name in (*COLUMNS, "ece")))
    for row in rows:
        cells = (f"{row[name][0]:>10.1f} ±{row[name][1]:>4.1f}" for name in (*COLUMNS, "ece"))
        print(f"{row['method']:<10}" + "".join(cells))
    if file is not None:
        made_by = {"epochs": EPOCHS, "seeds": len(SEEDS), "torch": str(torch.__version__)}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"made_by": made_by, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
