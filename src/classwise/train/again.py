"""Measuring a trained model again: its own data, or other data of the same classes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from classwise import data
from classwise._checks import known_name
from classwise.data.dataset import DataSet, Split
from classwise.data.loading import make_loader
from classwise.data.sampling import SequentialSampler
from classwise.errors import ArgumentError, CheckpointError, DataError
from classwise.models import Classifier
from classwise.train.config import from_dict
from classwise.train.defaults import torch_device
from classwise.train.evaluate import VIEWS, Evaluation, evaluate
from classwise.train.record import MODEL, RunRecord, read_run
from classwise.train.setup import Setup, make_criterion, make_model, prepared, setup

__all__ = ["evaluate_run", "trained_model"]


def evaluate_run(
    folder: Path | str,
    source: str | None = None,
    *,
    split: str = "test",
    device: str = "auto",
    tte: bool = False,
    batch_size: int = 500,
) -> Evaluation:
    """Evaluate the model of a finished run.

    Args:
        folder: of the run.
        source: data set to measure on, as a URI; None is the run's own.
        split: ``"train"``, ``"val"`` or ``"test"``.
        device: cpu, cuda, mps or auto.
        tte: average the predictions for flipped images too.
        batch_size: samples at a time.
    """
    known_name("split", split, ("train", "val", "test"))
    record = read_run(folder)
    ready = setup(from_dict(record.config))
    own = ready.prepared
    if source is None:
        part = {"train": own.train, "val": own.val, "test": own.test}[split]
        dataset = own.dataset
    else:
        dataset = data.load(source)
        _same_classes(record, dataset)
        part = getattr(dataset, split)
    if part is None:
        raise DataError(f"{source or dataset.name} has no {split} split.")
    if tte and part.kind == "table":
        raise ArgumentError("tte=True averages over flipped images; a table has none.")
    place = torch_device(device)
    model = trained_model(record, ready).to(place).eval()
    criterion = make_criterion(ready.config, own)
    criterion.start_epoch(ready.epochs - 1, jump=True)
    return evaluate(
        model,
        make_loader(
            _fitting(part, own.dataset),
            SequentialSampler(len(part), batch_size=batch_size),
            num_classes=dataset.num_classes,
            mean=own.dataset.mean,
            std=own.dataset.std,
            device=place,
            workers=ready.config.data.workers,
            image_size=ready.config.data.image_size,
            train=False,
        ),
        criterion.shots,
        device=place,
        scale=criterion.logit_scale,
        views=VIEWS.values() if tte else (),
    )


def trained_model(record: RunRecord, ready: Setup | None = None) -> Classifier:
    """Return the model of a run with its last weights."""
    if ready is None:
        config = from_dict(record.config)
        ready = Setup(config, prepared(config), 0)
    plain = dataclasses.replace(ready.config.model, pretrained=None)
    ready = dataclasses.replace(ready, config=dataclasses.replace(ready.config, model=plain))
    path = record.folder / MODEL
    if not path.exists():
        raise CheckpointError(f"{path} is missing: the run is not finished; resume it first.")
    model = make_model(ready)
    try:
        model.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"{path} is damaged or of another model: {error}") from error
    return model


def _same_classes(record: RunRecord, dataset: DataSet) -> None:
    if record.class_names != dataset.class_names:
        raise DataError(
            f"{dataset.name} has other classes than the run: {len(dataset.class_names)} "
            f"({', '.join(dataset.class_names[:3])}, ...), the run {len(record.class_names)} "
            f"({', '.join(record.class_names[:3])}, ...)."
        )


def _fitting(split: Split, trained_on: DataSet) -> Split:
    if split.kind != trained_on.kind or split.input_shape != trained_on.input_shape:
        raise DataError(
            f"the run was trained on {trained_on.kind} of shape {trained_on.input_shape}, "
            f"these are {split.kind} of shape {split.input_shape}."
        )
    return split
