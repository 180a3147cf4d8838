"""Hugging Face transformers: a loss for ``Trainer`` that is also the callback that plays it.

    imbalance = ImbalanceLoss(cw.Criterion("cvs+adrw", counts, epochs=3))
    trainer = Trainer(..., compute_loss_func=imbalance, callbacks=[imbalance])

What ``Trainer`` does with such a function (transformers 5.23, ``Trainer.training_step`` and
``compute_loss``): it takes ``labels`` out of the inputs and calls the function with the model's
outputs, the labels and ``num_items_in_batch``. That is the number of labels other than -100 in all
micro-batches of the optimiser step and, with ``average_tokens_across_devices``, on all processes.
It does not divide by the number of micro-batches, and it multiplies the result by the number of
processes, because DDP averages their gradients. So a sum over ``num_items_in_batch`` is the mean of
one big batch. A mean under class weights needs their sum instead, which ``attach`` finds out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from classwise._distributed import sum_in_place, world_size
from classwise.adapters import missing
from classwise.adapters._counts import class_counts_from
from classwise.adapters._meter import shot_metrics
from classwise.criterion import Criterion
from classwise.errors import ArgumentError, CheckpointError, StateError
from classwise.stats.shots import shots

if TYPE_CHECKING:
    from transformers import Trainer, TrainerCallback
else:
    try:
        from transformers import Trainer, TrainerCallback
    except ImportError as error:
        raise missing("classwise.adapters.transformers", "transformers", error) from None

__all__ = ["FILE", "ImbalanceLoss", "class_counts_from"]

FILE = "classwise.pt"
"""Name of the criterion's state in a checkpoint folder."""


class ImbalanceLoss(TrainerCallback):
    """The loss of a ``Trainer``, and the callback that starts its epochs and keeps its state.

    Pass the same object as ``compute_loss_func`` and in ``callbacks``, or call ``attach(trainer)``,
    which does both. For sequence, image and token classification: logits (N, C) or (N, L, C) with
    int64 labels, -100 where they do not count.

    Gradients are those of one batch of all micro-batches and processes:

    - without class weights, by ``num_items_in_batch``, which is that of all processes unless
      ``average_tokens_across_devices`` is turned off;
    - with class weights that are divided by their sum, without accumulation, or with ``attach``,
      which reads the labels of all micro-batches of a step. Otherwise training is refused.

    A checkpoint folder gets the file ``classwise.pt``, and ``train(resume_from_checkpoint=...)``
    takes it up. ``Trainer`` does not tell callbacks from where it resumes: the folder is looked for
    in ``args.output_dir`` and must agree with the trainer's own state; pass ``resume_from`` for
    another. A training from step 0 starts with the criterion as it was given.

    Args:
        criterion: its ``epochs`` must be those that the trainer trains.
        resume_from: folder of the checkpoint, where it is not in ``args.output_dir``.
        many: a class of more training samples has many; for ``compute_metrics``.
        few: a class of fewer training samples has few; for ``compute_metrics``.
    """

    def __init__(
        self,
        criterion: Criterion,
        *,
        resume_from: str | os.PathLike[str] | None = None,
        many: int = 100,
        few: int = 20,
    ) -> None:
        if not isinstance(criterion, Criterion):
            raise ArgumentError(
                f"criterion must be a classwise.Criterion, got {type(criterion).__name__}."
            )
        if criterion.reduction != "mean":
            raise ArgumentError(
                f"criterion has reduction={criterion.reduction!r}; Trainer wants 'mean'."
            )
        self.criterion = criterion
        self.resume_from = resume_from
        self._groups = {"many": many, "few": few}
        shots(criterion.class_counts, **self._groups, allow_empty=True)  # refused here, not later
        self._args: Any = None
        self._state: Any = None
        self._attached = self._called = False
        self._window: Tensor | None = None
        self._epoch: int | None = None
        self._initial = {name: value.clone() for name, value in criterion.state_dict().items()}

    # The loss

    def __call__(
        self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Return the loss of a micro-batch, scaled as ``Trainer`` expects it.

        Args:
            outputs: of the model; its ``logits``, or the first element of a tuple.
            labels: class indices, or class probabilities of the logits' shape.
            num_items_in_batch: labels that count in the whole step, as ``Trainer`` found them.
        """
        if self._args is None:
            raise StateError(
                "Trainer does not know this object as a callback: pass it in callbacks=[...] too, "
                "or call attach(trainer)."
            )
        if labels is None:
            raise ArgumentError("the batch has no 'labels'; name the label column 'labels'.")
        self._called = True
        logits = _logits_of(outputs, labels)
        training = torch.is_grad_enabled()
        normalizer = self._normalizer(logits, labels, num_items_in_batch) if training else None
        loss = self.criterion(logits, labels, normalizer=normalizer)
        return loss / self._factor_of_trainer(num_items_in_batch)

    def _normalizer(
        self, logits: Tensor, labels: Tensor, items: Tensor | int | None
    ) -> Tensor | None:
        """Return what to divide by so that gradients averaged over processes are the batch's."""
        world = world_size(self.criterion.process_group)
        if self._window is not None:
            return self._window / world
        if items is None or (_by_weights(self.criterion) and self.criterion.terms.weighs):
            return None  # one micro-batch: the criterion knows what it weighs, on all processes
        count = torch.as_tensor(items, device=logits.device).flatten()[0]
        if labels.is_floating_point() and labels.shape == logits.shape:
            count = count / labels.shape[1]  # Trainer has counted every class of every sample
        return count / world if self._args.average_tokens_across_devices else count

    def _factor_of_trainer(self, items: Tensor | int | None) -> int:
        """Return what ``Trainer`` is going to multiply the loss by."""
        if items is None or not self._args.average_tokens_across_devices:
            return 1
        return self._args.n_gpu if self._args.n_gpu > 1 else self._args.world_size

    def attach(self, trainer: Trainer) -> Trainer:
        """Make this the loss and a callback of ``trainer``, and let it see a step's labels.

        The one thing that ``Trainer`` does not pass on is what the labels of all micro-batches of a
        step weigh; ``trainer.get_batch_samples``, which fetches them, is wrapped to find out.

        Returns:
            The trainer.
        """
        if self._attached:
            raise StateError("this loss is attached to a trainer already; make another.")
        if not isinstance(trainer, Trainer):
            raise ArgumentError(
                f"trainer must be a transformers.Trainer, got {type(trainer).__name__}."
            )
        self._attached = True
        trainer.compute_loss_func = self
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        self._use(trainer.args)
        fetch = trainer.get_batch_samples

        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            fetched = fetch(*args, **kwargs)
            self._window = self._mass_of(fetched[0])
            return fetched

        trainer.get_batch_samples = get_batch_samples
        return trainer

    @torch.no_grad()
    def _mass_of(self, batches: Iterable[Mapping[str, Any]]) -> Tensor:
        total = self.criterion.terms.alpha.new_zeros(())
        for batch in batches:
            if batch.get("labels") is not None:
                total = total + self.criterion.mass(batch["labels"])
        sum_in_place([total], self.criterion.process_group)
        return total

    # Epochs

    def _use(self, args: Any) -> None:
        self._args = args
        self.criterion.to(args.device)

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the trainer's arguments."""
        self._use(args)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Check that the trainer and the criterion agree; take up a saved state, or begin anew."""
        if state is self._state:  # it is new for each training
            raise StateError("this object is in the trainer's callbacks twice; pass it once.")
        self._state = state
        self._use(args)
        self._check(args, state, model)
        self._window, self._called = None, False
        resumes = state.global_step > 0
        self.criterion.load_state_dict(self._saved(args, state) if resumes else self._initial)
        self._epoch = int(state.epoch or 0)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the epoch of the criterion."""
        assert self._epoch is not None
        self.criterion.start_epoch(self._epoch)
        self._epoch += 1

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Notice if it is not this loss that is trained with."""
        if not self._called:
            raise StateError(
                "Trainer trains with another loss: pass this object as compute_loss_func too, or "
                "call attach(trainer)."
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Notice if it is not this loss that is trained with."""
        self.on_substep_end(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget the last step's batches."""
        self._window = None

    def _check(self, args: Any, state: Any, model: Any) -> None:
        if state.num_train_epochs != self.criterion.epochs:
            raise StateError(
                f"the criterion plays over epochs={self.criterion.epochs}, Trainer trains "
                f"{state.num_train_epochs}; make them the same."
            )
        if args.label_smoothing_factor:
            raise ArgumentError(
                f"Trainer ignores label_smoothing_factor={args.label_smoothing_factor} where there "
                "is a compute_loss_func; pass Criterion(label_smoothing=...) instead."
            )
        if getattr(args, "parallelism_config", None) is not None:
            raise ArgumentError("a parallelism_config other than plain data parallel is not known.")
        if args.n_gpu > 1 and not args.average_tokens_across_devices:
            raise ArgumentError(
                "with nn.DataParallel, average_tokens_across_devices must be True; better, launch "
                "one process for each GPU with torchrun."
            )
        if getattr(model, "loss_type", None) == "ForCausalLM":
            raise ArgumentError(
                f"{type(model).__name__} predicts the next token: its labels have to be shifted, "
                "which this loss does not do."
            )
        accumulates = args.gradient_accumulation_steps > 1
        if accumulates and not self._attached and _may_weigh(self.criterion):
            raise StateError(
                f"{self.criterion.recipe.name!r} weighs the classes, and Trainer does not tell a "
                "loss what the labels of accumulated batches weigh. Call attach(trainer), or pass "
                "Criterion(normalize='batch')."
            )

    # Checkpoints

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write the criterion's state, with the statistics of all processes, to the checkpoint."""
        if args.save_only_model or state.is_hyper_param_search:
            return  # not to be resumed
        self.criterion.sync()  # a collective: every process saves
        if not args.should_save:
            return
        path = _folder(args, state) / FILE
        saved = {
            "step": state.global_step,
            "log": _digest(state),
            "criterion": self.criterion.state_dict(),
        }
        partial = path.with_suffix(".partial")
        torch.save(saved, partial)
        partial.replace(path)

    def _saved(self, args: Any, state: Any) -> dict[str, Tensor]:
        folder = _folder(args, state) if self.resume_from is None else Path(self.resume_from)
        path = folder / FILE
        advice = "pass ImbalanceLoss(resume_from=FOLDER) with the folder that Trainer resumes from."
        if not path.is_file():
            raise CheckpointError(
                f"Trainer resumes at step {state.global_step}, but {path} is not there; {advice}"
            )
        try:
            saved = torch.load(path, weights_only=True, map_location="cpu")
            found = (saved["step"], saved["log"])
        except Exception as error:  # whatever torch says of a damaged file
            raise CheckpointError(f"{path} cannot be read: {_one_line(error)}") from error
        if found != (state.global_step, _digest(state)):
            raise CheckpointError(
                f"{path} is of another run than the checkpoint that Trainer resumes from; {advice}"
            )
        return saved["criterion"]

    # Measuring

    def compute_metrics(self, prediction: Any) -> dict[str, float]:
        """Return accuracy and ECE, over all and for many / medium / few: ``acc_few``, ``ece`` ...

        For ``Trainer(compute_metrics=imbalance.compute_metrics)``, which puts ``eval_`` before the
        names.

        Args:
            prediction: an ``EvalPrediction``.
        """
        logits = prediction.predictions
        logits = logits[0] if isinstance(logits, tuple) else logits
        labels = torch.as_tensor(prediction.label_ids)
        logits = _logits_of((torch.as_tensor(logits),), labels)
        return shot_metrics(self.criterion, logits.float(), labels, **self._groups)


def _logits_of(outputs: Any, labels: Tensor) -> Tensor:
    """Return logits with classes in the second dimension."""
    logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    tokens = logits.ndim == 3 and labels.ndim == 2
    return logits.movedim(-1, 1) if tokens else logits


def _by_weights(criterion: Criterion) -> bool:
    """Return whether the mean of the running phase divides by the summed class weights."""
    return (criterion.normalize or criterion.phase.spec.normalize) == "weights"


def _may_weigh(criterion: Criterion) -> bool:
    """Return whether any phase divides by the sum of class weights that differ."""
    counts, allow_empty = criterion.class_counts, criterion.allow_empty
    return any(
        (criterion.normalize or phase.spec.normalize) == "weights"
        and phase.build(counts, allow_empty=allow_empty).weighs
        for phase in criterion.recipe.phases
    )


def _folder(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _digest(state: Any) -> str:
    """Return what tells the log of one run from that of another; JSON may have sorted its keys."""
    return hashlib.sha256(json.dumps(state.log_history, sort_keys=True).encode()).hexdigest()


def _one_line(error: Exception) -> str:
    """Return what an error says, in short: torch's own words go on for paragraphs."""
    first = (str(error).splitlines() or [""])[0].partition(". ")[0]
    return f"{type(error).__name__}: {first[:120]}."
