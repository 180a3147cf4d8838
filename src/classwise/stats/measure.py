"""A clean pass over data: the model in eval mode, no gradients, nothing left changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from classwise._checks import ClassCounts, tensor_of_logits
from classwise.errors import ArgumentError, StateError
from classwise.losses._scores import Scores
from classwise.stats.accuracy import accuracy_table, empty_accuracy, update_accuracy
from classwise.stats.bins import BinTable, bin_table, empty_bins, update_bins
from classwise.stats.floors import FloorState, empty_floors, update_floors
from classwise.stats.shots import shots
from classwise.terms import Terms

__all__ = ["Measurement", "measure"]


@dataclass(frozen=True, eq=False)
class Measurement:
    """What a clean pass found.

    Args:
        table: reliability bins, for slopes, calibration errors and curves.
        accuracy: as ``classwise.ClassAccuracy.compute``.
        floors: as ``classwise.ClassFloors.compute``.
        shots: the groups that ``accuracy`` used; empty without ``class_counts``.
        samples: how many samples counted.
        skipped: how many of them have no place in ``table``, their logits not being finite.
    """

    table: BinTable
    accuracy: dict[str, Tensor]
    floors: FloorState
    shots: dict[str, Tensor]
    samples: int
    skipped: int


def measure(
    model: nn.Module,
    loader: Iterable[Any],
    class_counts: ClassCounts | None = None,
    *,
    terms: Terms | None = None,
    adjusted: bool = False,
    num_bins: int = 20,
    group_by: str = "target",
    many: int = 100,
    few: int = 20,
    ignore_index: int = -100,
    device: torch.device | str | None = None,
    allow_empty: bool = False,
) -> Measurement:
    """Measure a model on a pass over ``loader``.

    The model is put into eval mode for the pass, and every module back into the mode it was in.

    Args:
        model: called with the first element of each batch, returns logits (N, C, ...).
        loader: yields (inputs, target) or longer; only the first two are used.
        class_counts: *training* counts, (C,), for many / medium / few; None leaves these out.
        terms: class terms under which the floors' probabilities are measured.
        adjusted: measure the bins on the logits adjusted by ``terms`` instead of on raw ones.
        num_bins: reliability bins.
        group_by: see ``classwise.ClassBins``.
        many: a class of more training samples has many.
        few: a class of fewer training samples has few.
        ignore_index: target value that does not count.
        device: where inputs go; None is where the model's first parameter is.
        allow_empty: accept classes without training samples.

    >>> import torch, classwise as cw
    >>> data = torch.utils.data.TensorDataset(torch.randn(8, 4), torch.arange(8) % 2)
    >>> loader = torch.utils.data.DataLoader(data, batch_size=4)
    >>> cw.measure(torch.nn.Linear(4, 2), loader, [300, 30]).samples
    8
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be an nn.Module, got {type(model).__name__}.")
    if not (hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")):
        raise ArgumentError(f"loader must yield batches, got {type(loader).__name__}.")
    if adjusted and terms is None:
        raise ArgumentError("adjusted=True needs the terms to adjust the logits by.")
    groups: dict[str, Tensor] = {}
    if class_counts is not None:
        groups = shots(class_counts, many=many, few=few, allow_empty=allow_empty)
    if device is None:
        first = next(model.parameters(), None)
        device = torch.device("cpu") if first is None else first.device
    correct = floors = bins = None
    with torch.no_grad(), _eval_mode(model):
        for batch in loader:
            inputs, target = _pair(batch, device)
            logits = model(inputs)
            if correct is None or floors is None or bins is None:
                classes = len(groups["few"]) if groups else tensor_of_logits(logits).shape[1]
                correct = empty_accuracy(classes, device)
                floors = empty_floors(classes, terms=terms, device=device)
                bins = empty_bins(classes, num_bins, device)
            update_accuracy(correct, logits, target, ignore_index=ignore_index)
            update_floors(floors, logits, target, ignore_index=ignore_index)
            seen = Scores(logits, terms).adjusted if adjusted else logits
            update_bins(bins, seen, target, group_by=group_by, ignore_index=ignore_index)
    if correct is None or floors is None or bins is None or not int(correct.count.sum()):
        raise StateError("the loader yielded no sample that counts.")
    return Measurement(
        table=bin_table(bins),
        accuracy=accuracy_table(correct, groups or None),
        floors=floors,
        shots=groups,
        samples=int(correct.count.sum()),
        skipped=int(bins.skipped),
    )


@contextlib.contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _pair(batch: Any, device: torch.device | str) -> tuple[Any, Tensor]:
    if not isinstance(batch, (list, tuple)) or len(batch) < 2:
        raise ArgumentError(
            f"the loader must yield (inputs, target), got {type(batch).__name__}; "
            "wrap it in a generator that does."
        )
    inputs, target = batch[0], batch[1]
    inputs = inputs.to(device) if isinstance(inputs, Tensor) else inputs
    return inputs, torch.as_tensor(target).to(device)
