"""What an evaluation pass says of many, medium and few: one meter for all frameworks."""

from __future__ import annotations

import torch
from torch import Tensor

from classwise._checks import ClassCounts
from classwise._distributed import Group, sum_in_place
from classwise.calibration import calibration_error
from classwise.criterion import Criterion
from classwise.stats.accuracy import accuracy_table, empty_accuracy, update_accuracy
from classwise.stats.bins import bin_table, empty_bins, update_bins
from classwise.stats.shots import shots

__all__ = ["ShotMeter", "shot_metrics"]

_NAMES = {"overall": "acc", "balanced": "acc_balanced"}


class ShotMeter:
    """Accuracy and ECE, over all samples and for many / medium / few, from batches of logits.

    Args:
        class_counts: training counts, (C,).
        many: a class of more training samples has many.
        few: a class of fewer training samples has few.
        num_bins: of the ECE.
        ignore_index: target value that does not count.
        device: where the sums are.
    """

    def __init__(
        self,
        class_counts: ClassCounts,
        *,
        many: int = 100,
        few: int = 20,
        num_bins: int = 20,
        ignore_index: int = -100,
        device: torch.device | str | None = None,
    ) -> None:
        self.shots = shots(class_counts, many=many, few=few, allow_empty=True)
        classes = self.shots["few"].numel()
        self.ignore_index = ignore_index
        self._accuracy = empty_accuracy(classes, device)
        self._bins = empty_bins(classes, num_bins, device)

    @torch.no_grad()
    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add a batch; logits (N, C) or (N, C, d1, ...), raw and not adjusted."""
        update_accuracy(self._accuracy, logits, target, ignore_index=self.ignore_index)
        update_bins(self._bins, logits, target, ignore_index=self.ignore_index)

    def sum_over_ranks(self, group: Group = None) -> None:
        """Add up what all processes have seen. A collective."""
        sums = [*self._accuracy.tensors(), *self._bins.tensors()]
        sum_in_place([tensor for _, tensor in sums], group)

    @property
    def samples(self) -> int:
        """How many samples counted."""
        return int(self._accuracy.count.sum())

    def compute(self) -> dict[str, float]:
        """Return ``acc``, ``acc_balanced``, ``acc_many`` ..., ``ece``, ``ece_many`` ...

        A group without samples is absent.
        """
        accuracy = accuracy_table(self._accuracy, self.shots)
        error = calibration_error(bin_table(self._bins), self.shots)
        found = {
            _NAMES.get(name, f"acc_{name}"): float(value)
            for name, value in accuracy.items()
            if name != "per_class"
        }
        found["ece"] = float(error.ece)
        found.update({f"ece_{name}": float(value) for name, value in error.group_ece.items()})
        return found


def shot_metrics(
    criterion: Criterion, logits: Tensor, target: Tensor, *, many: int, few: int
) -> dict[str, float]:
    """Return what a meter says of one batch that is the whole evaluation set."""
    meter = ShotMeter(
        criterion.class_counts, many=many, few=few, ignore_index=criterion.ignore_index
    )
    meter.update(logits * logit_scale(criterion), target)
    return meter.compute() if meter.samples else {}


def logit_scale(criterion: Criterion) -> float:
    """Return the factor that makes logits of a model's output: that of a cosine head, else 1."""
    return criterion.phase.logit_scale(criterion.terms)
