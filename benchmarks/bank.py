"""The published approach to slopes, as a baseline: a memory bank of logits per class.

Written from its description (the released code of the paper is not copied): each true class keeps
the latest min(1000, N_c) rows of logits on the host, updated in a Python loop over classes; at an
epoch's end a Python loop over classes, and in it one over 20 bins of confidence, refits the slope
of each predicted class by least squares through the origin, turns it into a reciprocal and clamps
it. It is written plainly, as such code is; nothing is slowed down on purpose.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

__all__ = ["Bank", "bank_bytes", "refit"]

CAP, BINS, LEAST, LOW, HIGH = 1000, 20, 10, 0.05, 0.2


class Bank:
    """Rows of logits for each true class, first in, first out.

    Args:
        class_counts: training counts.
        present_only: loop over the classes of the batch instead of all; kinder than described.
    """

    def __init__(self, class_counts: list[int], *, present_only: bool = False) -> None:
        self.caps = [min(CAP, count) for count in class_counts]
        self.rows: list[Tensor | None] = [None] * len(class_counts)
        self.present_only = present_only

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add a batch."""
        logits, target = logits.detach().cpu(), target.cpu()
        classes = target.unique().tolist() if self.present_only else range(len(self.caps))
        for c in classes:
            mask = target == c
            if not mask.any():
                continue
            new, old = logits[mask], self.rows[c]
            rows = new if old is None else torch.cat([old, new])
            self.rows[c] = rows[-self.caps[c] :]

    def slopes(self) -> list[float]:
        """Return the clamped reciprocal slope of each class."""
        confidences, predictions, hits = [], [], []
        for c, rows in enumerate(self.rows):
            if rows is None:
                continue
            confidence, predicted = rows.softmax(1).max(1)
            confidences.append(confidence)
            predictions.append(predicted)
            hits.append((predicted == c).float())
        return refit(
            torch.cat(confidences), torch.cat(predictions), torch.cat(hits), len(self.rows)
        )


def refit(confidence: Tensor, predicted: Tensor, hit: Tensor, classes: int) -> list[float]:
    """Return the clamped reciprocal slope of each predicted class, class by class, bin by bin."""
    edges = torch.linspace(0, 1, BINS + 1).tolist()
    kappas = []
    for c in range(classes):
        mine = predicted == c
        conf, acc = confidence[mine], hit[mine]
        if len(conf) < LEAST:
            kappas.append(1.0)
            continue
        products, squares, filled = 0.0, 0.0, 0
        for low, high in itertools.pairwise(edges):
            inside = (conf > low) & (conf <= high)
            count = int(inside.sum())
            if count == 0:
                continue
            mean_conf, mean_acc = float(conf[inside].mean()), float(acc[inside].mean())
            products += count * mean_acc * mean_conf
            squares += count * mean_conf * mean_conf
            filled += 1
        if filled < 2:
            kappas.append(1.0)
            continue
        kappas.append(min(max(1 / (products / squares + 1e-6), LOW), HIGH))
    return kappas


def bank_bytes(class_counts: list[int]) -> int:
    """Return what a full bank of float32 logits holds."""
    return sum(min(CAP, count) for count in class_counts) * len(class_counts) * 4
