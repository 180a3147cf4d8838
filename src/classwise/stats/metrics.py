"""The statistics as ``torchmetrics.Metric``s: shells around the pure functions beside them.

Loaded when first asked for, because importing torchmetrics costs half as much as importing torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torchmetrics import Metric

from classwise._checks import ClassCounts, class_counts_tensor, known_name
from classwise.errors import ArgumentError
from classwise.losses._module import moved
from classwise.stats.accuracy import (
    AccuracyState,
    accuracy_table,
    empty_accuracy,
    update_accuracy,
)
from classwise.stats.bins import (
    GROUPINGS,
    BinState,
    BinTable,
    bin_table,
    empty_bins,
    update_bins,
)
from classwise.stats.floors import FloorState, empty_floors, update_floors
from classwise.stats.shots import shots
from classwise.terms import Terms

__all__ = ["ClassAccuracy", "ClassBins", "ClassFloors"]


class _Shell(Metric):
    """A metric whose states are the tensors of a pure state, merged by one reduction.

    It moves between devices but is not cast: sums inside a model that goes to bfloat16 would stop
    growing at 256.
    """

    full_state_update = False
    is_differentiable = False

    def _adopt(self, tensors: Iterator[tuple[str, Tensor]], reduction: str, kind: str) -> None:
        # A MetricCollection updates metrics together whose states look alike after one batch. The
        # kind in the names keeps those apart that only happen to.
        self._names: dict[str, str] = {}
        for name, tensor in tensors:
            self._names[name] = f"{kind}_{name}"
            self.add_state(self._names[name], tensor, dist_reduce_fx=reduction, persistent=True)

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Self:
        super()._apply(lambda tensor: moved(tensor, fn), exclude_state)
        return self

    def _tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, state) for name, state in self._names.items()}


class ClassBins(_Shell):
    """Reliability bins of each class, in O(C * bins) memory.

    ``compute()`` returns a ``classwise.BinTable`` with count, accuracy, confidence
    and logit of each (class, bin); ``classwise.slopes``, ``classwise.calibration_error``
    and ``classwise.reliability`` read it.

    Args:
        num_classes: C.
        num_bins: equal bins on (0, 1], right-closed.
        group_by: ``"target"``, ``"prediction"`` or ``"score"``, see ``classwise.stats.bins``.
        ignore_index: target value that does not count.
        kwargs: for ``torchmetrics.Metric``.

    >>> import torch, classwise as cw
    >>> bins = cw.ClassBins(num_classes=2, num_bins=10)
    >>> bins.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> bins.compute().count.sum(1).tolist()
    [2, 0]
    """

    higher_is_better = None

    def __init__(
        self,
        num_classes: int,
        num_bins: int = 20,
        group_by: str = "target",
        *,
        ignore_index: int = -100,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.group_by = known_name("group_by", group_by, GROUPINGS)
        self.ignore_index = ignore_index
        self._adopt(empty_bins(num_classes, num_bins).tensors(), "sum", f"by_{group_by}")

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add a batch."""
        update_bins(
            self.state(), logits, target, group_by=self.group_by, ignore_index=self.ignore_index
        )

    def state(self) -> BinState:
        """Return the sums themselves."""
        return BinState(**self._tensors())

    def compute(self) -> BinTable:
        """Return means per (class, bin)."""
        return bin_table(self.state())


class ClassFloors(_Shell):
    """Per class: B_y, the minimal margin and the minimal adjusted probability of the true class.

    Args:
        num_classes: C.
        terms: how logits are adjusted for the probability (None: not at all). Give the terms of
            the loss for the exact constants of ``classwise.theory.lipschitz``.
        ignore_index: target value that does not count.
        kwargs: for ``torchmetrics.Metric``.

    >>> import torch, classwise as cw
    >>> floors = cw.ClassFloors(2)
    >>> floors.update(torch.tensor([[2.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 0]))
    >>> floors.compute().logit.tolist()
    [0.5, inf]
    """

    higher_is_better = True
    beta: Tensor
    delta: Tensor

    def __init__(
        self,
        num_classes: int,
        terms: Terms | None = None,
        *,
        ignore_index: int = -100,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        empty = empty_floors(num_classes, terms=terms)
        self.register_buffer("beta", empty.beta)
        self.register_buffer("delta", empty.delta)
        self.ignore_index = ignore_index
        self._adopt(empty.extremes(), "min", "floor")

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add a batch."""
        update_floors(self.state(), logits, target, ignore_index=self.ignore_index)

    def state(self) -> FloorState:
        """Return the extremes themselves."""
        return FloorState(**self._tensors(), beta=self.beta, delta=self.delta)

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Take in the floors of another metric, which must be measured under the same terms."""
        if isinstance(incoming_state, ClassFloors) and not (
            torch.equal(incoming_state.beta, self.beta)
            and torch.equal(incoming_state.delta, self.delta)
        ):
            raise ArgumentError("floors measured under different terms cannot be merged.")
        super().merge_state(incoming_state)

    def compute(self) -> FloorState:
        """Return the extremes; inf where a class had no sample."""
        return self.state()


class ClassAccuracy(_Shell):
    """Accuracy per class, balanced, and by many / medium / few training samples.

    ``compute()`` returns a dict: see ``classwise.stats.accuracy.accuracy_table``. A class
    without test samples is NaN in ``"per_class"`` and skipped in the means; a group without any is
    absent from the dict.

    Args:
        class_counts: *training* counts, (C,), which make the groups.
        many: a class of more samples has many.
        few: a class of fewer samples has few.
        ignore_index: target value that does not count.
        allow_empty: accept classes without training samples; they are few.
        kwargs: for ``torchmetrics.Metric``.

    >>> import torch, classwise as cw
    >>> accuracy = cw.ClassAccuracy([500, 50, 5])
    >>> accuracy.update(torch.eye(3), torch.tensor([0, 0, 2]))
    >>> {k: v.tolist() for k, v in accuracy.compute().items()}["few"]
    1.0
    """

    higher_is_better = True

    def __init__(
        self,
        class_counts: ClassCounts,
        *,
        many: int = 100,
        few: int = 20,
        ignore_index: int = -100,
        allow_empty: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        counts = class_counts_tensor(class_counts, allow_empty=allow_empty)
        self.shots = shots(counts, many=many, few=few, allow_empty=allow_empty)
        self.ignore_index = ignore_index
        self._adopt(empty_accuracy(counts.numel()).tensors(), "sum", "accuracy")

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Add a batch."""
        update_accuracy(self.state(), logits, target, ignore_index=self.ignore_index)

    def state(self) -> AccuracyState:
        """Return the counts themselves."""
        return AccuracyState(**self._tensors())

    def compute(self) -> dict[str, Tensor]:
        """Return accuracies in [0, 1]."""
        return accuracy_table(self.state(), self.shots)
