"""PyTorch Lightning: a callback that plays the criterion, keeps it in checkpoints and measures.

    trainer = Trainer(callbacks=[ImbalanceCallback(cw.Criterion("cvs+adrw", counts, epochs=50))])

Works with the ``lightning`` package and with ``pytorch_lightning``.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from classwise._checks import known_name
from classwise.adapters import missing
from classwise.adapters._calls import Handle, argument, before_calls
from classwise.adapters._meter import ShotMeter, logit_scale
from classwise.adapters._samplers import loaders_of, refuse_replaced_samplers
from classwise.adapters._window import Window
from classwise.criterion import Criterion
from classwise.errors import ArgumentError, CheckpointError, ClasswiseWarning, StateError

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback, LightningModule, Trainer
    except ImportError as error:
        try:
            from pytorch_lightning import Callback, LightningModule, Trainer
        except ImportError:
            raise missing("classwise.adapters.lightning", "lightning", error) from None

__all__ = ["ImbalanceCallback"]

_KEY = "classwise"
_ACCUMULATION = ("exact", "mean")


class ImbalanceCallback(Callback):
    """Play a ``classwise.Criterion`` in a Lightning training.

    It tells the criterion when an epoch starts, puts it into checkpoints and takes it up from them
    with ``fit(ckpt_path=...)``, and logs, for validation and test, accuracy and ECE over all
    samples and for many / medium / few: ``val/acc``, ``val/acc_balanced``, ``val/acc_many``,
    ``val/acc_medium``, ``val/acc_few``, ``val/ece``, ``val/ece_many`` and so on. It sees logits and
    targets where the module calls the criterion, so ``validation_step`` has to call it, or
    ``update``.

    With ``accumulate_grad_batches`` Lightning averages the micro-batches' gradients, which is not
    the gradient of the large batch where the micro-batches weigh differently: under class weights,
    ignored targets, or a last batch that is smaller. ``accumulation="exact"`` divides each by one
    constant of the window and scales the gradients before they are clipped, so that their sum is
    the gradient of one batch of all micro-batches and ranks. This is exact for what comes from the
    criterion; another term of the same loss is scaled by the same factor, which is 1 where all
    micro-batches weigh the same. A loss that couples the samples of a batch (LADE) couples those of
    a micro-batch. Not for manual optimisation, where ``normalizer`` is yours to pass, nor for
    DeepSpeed.

    Args:
        criterion: put on the module as ``attribute``, in place of what is there, and kept beside
            the module's state in checkpoints. None finds the one that the module holds.
        attribute: name on the module.
        metrics: measure validation and test.
        many: a class of more training samples has many.
        few: a class of fewer training samples has few.
        num_bins: of the ECE.
        accumulation: ``"exact"``, or ``"mean"`` for what Lightning does.
    """

    def __init__(
        self,
        criterion: Criterion | None = None,
        *,
        attribute: str = "criterion",
        metrics: bool = True,
        many: int = 100,
        few: int = 20,
        num_bins: int = 20,
        accumulation: str = "exact",
    ) -> None:
        if criterion is not None and not isinstance(criterion, Criterion):
            raise ArgumentError(
                f"criterion must be a classwise.Criterion or None, got {type(criterion).__name__}."
            )
        if not isinstance(attribute, str) or not attribute:
            raise ArgumentError(f"attribute={attribute!r} must be a name on the module.")
        self.attribute = attribute
        self.metrics = metrics
        self.accumulation = known_name("accumulation", accumulation, _ACCUMULATION)
        self._given = criterion
        self._found: tuple[str, Criterion] | None = None
        self._meter_settings: dict[str, int] = {"many": many, "few": few, "num_bins": num_bins}
        ShotMeter(
            [1, 1], many=many, few=few, num_bins=num_bins
        )  # refused here, not after the first epoch
        self._meters: list[ShotMeter] = []
        self._loader = 0
        self._called = False  # whether a training_step has
        self._hooks: list[Handle] = []  # handles, to let go of the criterion with
        self._window = Window()

    @property
    def state_key(self) -> str:
        """Name of this callback's state in a checkpoint."""
        return f"{type(self).__qualname__}[{self.attribute}]"

    @property
    def criterion(self) -> Criterion:
        """The criterion that is played."""
        if self._given is not None:
            return self._given
        if self._found is None:
            raise StateError("the callback has no criterion yet: it looks for it in trainer.fit().")
        return self._found[1]

    # Where the criterion is

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the criterion in the module, or put it there."""
        if sum(callback.attribute == self.attribute for callback in _of_this_kind(trainer)) > 1:
            raise StateError(
                f"two ImbalanceCallbacks play self.{self.attribute}; pass one of them, or give "
                "each an attribute of its own."
            )
        if self._given is None:
            self._found = _the_criterion_of(pl_module, self.attribute)
        else:
            # Beside the registered modules: the module's own state_dict stays as it was, and
            # loads without this callback.
            object.__setattr__(
                pl_module, self.attribute, self._given.to(trainer.strategy.root_device)
            )
        self._hooks.append(pl_module.register_load_state_dict_pre_hook(self._before_loading))
        # From the start and not for an evaluation: a compiled step would not see it come.
        after: Any = torch.compiler.disable(self._after_criterion)
        self._hooks.append(self.criterion.register_forward_hook(after, with_kwargs=True))
        if stage == "fit" and self.criterion.epoch < 0:
            # Lightning's tuner trains without callbacks, and takes back what it has done.
            self.criterion.start_epoch(0)

    def _before_loading(
        self,
        module: Any,
        state: Mapping[str, Any],
        prefix: str,
        metadata: Any,
        strict: bool,
        *_: Any,
    ) -> None:
        """Name the criterion where torch would list the keys of its state."""
        found = self._found is not None
        name = self._found[0] if self._found is not None else self.attribute
        holds = f"{prefix}{name}._extra_state" in state
        if not strict or found == holds:
            return
        if found:
            raise CheckpointError(
                f"the checkpoint holds no state of the criterion self.{name}: the module that was "
                "saved did not hold one. Start anew, or load the weights alone."
            )
        raise CheckpointError(
            f"the checkpoint was saved by a module that holds its criterion as self.{name}; go on "
            "with such a module and ImbalanceCallback()."
        )

    def _to_device(self, pl_module: LightningModule) -> None:
        if self._given is not None:
            self._given.to(pl_module.device)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Move a given criterion to the module's device and compare lengths of training."""
        self._to_device(pl_module)
        planned = trainer.max_epochs
        if planned in (None, -1) or getattr(trainer, "fast_dev_run", False):
            return
        if planned != self.criterion.epochs:
            raise StateError(
                f"the criterion plays over epochs={self.criterion.epochs}, "
                f"Trainer(max_epochs={planned}) trains another number; make them the same."
            )

    # Training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the samplers, and take up the epoch: a resumed one may not start again."""
        refuse_replaced_samplers(trainer)
        criterion = self.criterion
        if trainer.current_epoch == 0 < criterion.epoch:
            raise StateError(
                f"the criterion has been trained with up to epoch {criterion.epoch}; make another "
                "for a new training, or go on with fit(ckpt_path=...)."
            )
        self.on_train_epoch_start(trainer, pl_module)
        self._called = False
        before = functools.partial(self._with_normalizer, trainer)
        self._hooks += before_calls(criterion, before)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the epoch of the criterion, and of batch samplers, which Lightning forgets."""
        if trainer.current_epoch >= self.criterion.epochs:
            raise StateError(
                f"epoch {trainer.current_epoch} begins, and the criterion plays over "
                f"epochs={self.criterion.epochs}; give both the same number."
            )
        self.criterion.start_epoch(trainer.current_epoch)
        for loader in loaders_of(trainer.train_dataloader):
            set_epoch = getattr(getattr(loader, "batch_sampler", None), "set_epoch", None)
            if callable(set_epoch):
                set_epoch(trainer.current_epoch)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Notice early if it is not this criterion that is trained with."""
        if batch_idx == 0 and outputs is not None and not self._called:
            warnings.warn(ClasswiseWarning(self._not_called("the first batch")), stacklevel=2)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Notice at the latest now if it is not this criterion that is trained with."""
        if not self._called:
            raise StateError(self._not_called("an epoch"))

    def _not_called(self, where: str) -> str:
        name = self.attribute if self._found is None else self._found[0]
        return (
            f"training_step did not call the criterion in {where}: it is self.{name}, "
            "ImbalanceCallback(criterion, attribute=...) gives it another name."
        )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let go of the criterion."""
        self._unhook()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Let go of the criterion."""
        self._unhook()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let go of the criterion."""
        self._unhook()

    def _unhook(self) -> None:
        for handle in self._hooks:
            handle.remove()
        self._hooks.clear()
        self._window = Window()

    # Accumulation

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Begin a micro-batch."""
        self._window.calls = 0

    def _with_normalizer(
        self, trainer: Trainer, target: Any, kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Have the criterion divide by a constant of the window, and note what the batch weighs."""
        criterion = self.criterion
        if not (criterion.training and torch.is_grad_enabled()):
            return kwargs
        self._called = True
        exact = self.accumulation == "exact" and trainer.lightning_module.automatic_optimization
        if not exact or trainer.accumulate_grad_batches == 1 or criterion.reduction != "mean":
            return kwargs
        if kwargs.get("normalizer") is not None:
            return kwargs  # the module has its own idea
        if type(trainer.strategy).__name__ == "DeepSpeedStrategy":
            raise StateError(
                "DeepSpeed keeps gradients where they cannot be scaled; "
                "pass ImbalanceCallback(accumulation='mean')."
            )
        if len(_of_this_kind(trainer)) > 1:
            raise StateError(
                "two criteria cannot both scale the gradients of their sum; "
                "pass ImbalanceCallback(accumulation='mean') to each."
            )
        normalizer = self._window.add(criterion, criterion.mass(target))
        return {**kwargs, "normalizer": normalizer}

    @torch.no_grad()
    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Scale the accumulated gradients to those of one batch; they are clipped after this."""
        factor = self._window.factor(self.criterion)
        if factor is None:
            return
        self._window = Window()
        # Lightning has divided by the number of micro-batches of a whole window, even if the last
        # one of an epoch holds fewer.
        factor = factor * trainer.accumulate_grad_batches
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor.to(parameter.grad))

    # Checkpoints

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put the criterion into the checkpoint, with the statistics of all ranks."""
        self.criterion.sync()  # a collective: Lightning calls this on every rank
        if self._found is None:
            state = self.criterion.state_dict()
            checkpoint.setdefault(_KEY, {})[self.state_key] = _copied(state)
            return
        # The module's state was taken before the ranks were added up.
        fresh = _copied(self.criterion.state_dict(prefix=f"{self._found[0]}."))
        kept = checkpoint["state_dict"]
        kept.update({name: value for name, value in fresh.items() if name in kept})

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take up the criterion from a checkpoint."""
        if self._given is None:
            return  # it was loaded with the module
        saved = checkpoint.get(_KEY, {}).get(self.state_key)
        if saved is not None:
            self._given.load_state_dict(saved)
        elif trainer.state.fn == "fit":
            raise CheckpointError(
                "the checkpoint holds no state of the criterion: it was saved without "
                f"{self.state_key}. Start anew, or load the weights alone."
            )

    # Measuring

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Measure a batch, in a ``validation_step`` that does not call the criterion."""
        if self._meters:
            self._meters[self._loader].update(logits * logit_scale(self.criterion), target)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to measure."""
        if not trainer.sanity_checking:
            self._begin(pl_module, len(trainer.num_val_batches))

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to measure."""
        self._begin(pl_module, len(trainer.num_test_batches))

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Note which loader a batch is from."""
        self._loader = dataloader_idx

    def on_test_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Note which loader a batch is from."""
        self._loader = dataloader_idx

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what was measured."""
        self._end(pl_module, "val")

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log what was measured."""
        self._end(pl_module, "test")

    def _begin(self, pl_module: LightningModule, loaders: int) -> None:
        if not self.metrics:
            return
        self._to_device(pl_module)
        criterion = self.criterion
        self._meters = [
            ShotMeter(
                criterion.class_counts,
                **self._meter_settings,
                ignore_index=criterion.ignore_index,
                device=pl_module.device,
            )
            for _ in range(loaders)
        ]

    def _after_criterion(
        self, criterion: Criterion, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Tensor
    ) -> None:
        logits = argument(0, "logits", args, kwargs)
        self.update(logits, argument(1, "target", args, kwargs))

    def _end(self, pl_module: LightningModule, stage: str) -> None:
        if not self._meters:
            return
        meters, self._meters = self._meters, []
        for number, meter in enumerate(meters):
            meter.sum_over_ranks(self.criterion.process_group)
            if not meter.samples:
                raise StateError(
                    f"{stage}: nothing was measured, because the criterion was not called. Call it "
                    "in the step, or callback.update(logits, target), or pass "
                    "ImbalanceCallback(metrics=False)."
                )
            suffix = f"/dataloader_idx_{number}" if len(meters) > 1 else ""
            values = {f"{stage}/{name}{suffix}": v for name, v in meter.compute().items()}
            # The same on all ranks; averaging them changes nothing and tells Lightning so.
            pl_module.log_dict(values, sync_dist=True, add_dataloader_idx=False)


def _the_criterion_of(pl_module: LightningModule, attribute: str) -> tuple[str, Criterion]:
    found = [(name, m) for name, m in pl_module.named_modules() if isinstance(m, Criterion)]
    if len(found) > 1:
        found = [(name, m) for name, m in found if name == attribute] or found
    if len(found) == 1:
        return found[0]
    module = type(pl_module).__name__
    if not found:
        raise ArgumentError(
            f"{module} holds no classwise.Criterion: assign one in its __init__, or pass "
            "ImbalanceCallback(criterion)."
        )
    names = ", ".join(name for name, _ in found)
    raise ArgumentError(
        f"{module} holds several criteria: {names}. Give each an ImbalanceCallback(attribute=...)."
    )


def _of_this_kind(trainer: Trainer) -> list[ImbalanceCallback]:
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, ImbalanceCallback)]


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}
