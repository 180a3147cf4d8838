"""A clean pass over a split: accuracy by class and by shots, calibration, confusion."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from classwise._distributed import sum_in_place
from classwise.calibration import calibration_error
from classwise.stats.accuracy import accuracy_table, empty_accuracy, update_accuracy
from classwise.stats.bins import BinTable, bin_table, empty_bins, update_bins
from classwise.stats.shots import Shots

__all__ = ["MAX_CONFUSION", "VIEWS", "Evaluation", "evaluate"]

MAX_CONFUSION = 1000
"""More classes than this have no confusion matrix: it would be larger than all the rest."""

VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "flip": lambda images: images.flip(-1),
}
"""Views of the inputs whose logits test-time ensembling averages with those of the inputs."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a clean pass found.

    Args:
        numbers: balanced and overall accuracy, accuracy by shots, ECE and MCE, as fractions; what
            has no samples is absent.
        class_accuracy: (C,), NaN for a class without samples.
        class_count: samples of each class, (C,).
        table: reliability bins on raw logits, grouped by true class.
        confusion: samples by (true, predicted) class, int64 (C, C); None beyond ``MAX_CONFUSION``.
    """

    numbers: dict[str, float]
    class_accuracy: Tensor
    class_count: Tensor
    table: BinTable
    confusion: Tensor | None

    def tensors(self, split: str) -> dict[str, Tensor]:
        """Return all that is a tensor, by name, for ``final.safetensors``."""
        named = {f.name: getattr(self.table, f.name) for f in fields(BinTable)}
        named |= {"class_accuracy": self.class_accuracy, "class_count": self.class_count}
        if self.confusion is not None:
            named["confusion"] = self.confusion
        return {f"{split}.{name}": value.cpu().contiguous() for name, value in named.items()}


@torch.no_grad()
def evaluate(
    predict: Callable[[Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
    groups: Shots,
    *,
    device: torch.device | str,
    scale: float = 1.0,
    views: Iterable[Callable[[Tensor], Tensor]] = (),
    num_bins: int = 20,
) -> Evaluation:
    """Evaluate a model; under ``torch.distributed`` the ranks' shares are summed.

    Args:
        predict: inputs -> logits (N, C); in eval mode already.
        batches: (inputs, int64 targets) of this rank.
        groups: many, medium and few, see ``classwise.shots``.
        device: where batches and sums are.
        scale: what makes logits of the model's output, see ``classwise.Criterion.logit_scale``.
        views: transforms of the inputs over whose logits, and those of the inputs, is averaged.
        num_bins: reliability bins.
    """
    classes = len(groups["few"])
    correct, bins = empty_accuracy(classes, device), empty_bins(classes, num_bins, device)
    confusion = None
    if classes <= MAX_CONFUSION:
        confusion = torch.zeros(classes * classes, dtype=torch.int64, device=device)
    views = list(views)
    for inputs, target in batches:
        logits = predict(inputs).float()
        for view in views:
            logits = logits + predict(view(inputs)).float()
        logits = logits * (scale / (1 + len(views)))
        update_accuracy(correct, logits, target)
        update_bins(bins, logits, target, group_by="target")
        if confusion is not None:
            cell = target * classes + logits.argmax(1)
            confusion.index_add_(0, cell, torch.ones_like(cell))
    shared = [tensor for state in (correct, bins) for _, tensor in state.tensors()]
    sum_in_place(shared if confusion is None else [*shared, confusion], None)
    accuracy = accuracy_table(correct, groups)
    table = bin_table(bins)
    numbers = {name: float(value) for name, value in accuracy.items() if name != "per_class"}
    return Evaluation(
        numbers={**numbers, **_calibration(table, groups)},
        class_accuracy=accuracy["per_class"],
        class_count=correct.count,
        table=table,
        confusion=None if confusion is None else confusion.view(classes, classes),
    )


def _calibration(table: BinTable, groups: Shots) -> dict[str, float]:
    on = table.count.device
    error = calibration_error(table, {name: mask.to(on) for name, mask in groups.items()})
    numbers = {"ece": float(error.ece), "mce": float(error.mce)}
    numbers |= {f"ece_{name}": float(value) for name, value in error.group_ece.items()}
    return numbers | {f"mce_{name}": float(value) for name, value in error.group_mce.items()}
