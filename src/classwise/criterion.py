"""The drop-in criterion: a recipe played over the epochs, with slopes streamed while training."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from classwise._checks import (
    ClassCounts,
    check_ignore_index,
    class_counts_tensor,
    log_prior,
    number,
    tensor_of_logits,
    tensor_of_target,
    whole_number,
)
from classwise._distributed import Group, join, mean_over_ranks, rank
from classwise._streaming import NOT_STARTED, Resumes
from classwise.errors import (
    ArgumentError,
    ClasswiseWarning,
    RecipeError,
    StateError,
)
from classwise.estimation import SlopeSetting, estimate, extreme, slope_config
from classwise.losses._head import head_losses, logits_like
from classwise.losses._reduce import check_reduction, mass, mean_divisor, reduce
from classwise.losses._scores import Scores, Target
from classwise.losses.linear import checked_head, weighted
from classwise.phases import Phase, epoch_of
from classwise.recipes import Recipe
from classwise.stats.bins import (
    BinTable,
    add_checked,
    bin_table,
    empty_bins,
    update_bins_with_predictions,
)
from classwise.stats.shots import shots

__all__ = ["Criterion"]


class Criterion(Resumes):
    """A loss that changes with the epoch and measures what it needs while it is used.

    Two lines in a training loop: the criterion is made once, and told when an epoch starts. Every
    training forward adds the batch to per-class statistics; ``start_epoch`` turns those of the
    epoch before into slopes (paper Sec. 5), picks the phase of the recipe and makes its terms.

    Args:
        method: a name such as ``"cvs+adrw"`` (see ``classwise.list_methods``) or a
            ``classwise.Recipe``.
        class_counts: training counts, (C,).
        epochs: of the whole training.
        defer_at: T0, the first epoch of the deferred phase; an int is epochs, a float in [0, 1) a
            fraction of training.
        warmup: epochs before slopes are used, likewise.
        slopes: ``"stable"``, ``"paper"``, ``"released"`` or a ``classwise.SlopeConfig``. None
            uses slopes of 1 and streams nothing. ``"paper"`` has no bound; where kappa* leaves
            [1/100, 100], ``start_epoch`` warns once and ``slope_warning`` says what to do.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        normalize: what a mean divides by: the summed ``"weights"`` of the targets or the
            ``"batch"`` size; None is what the method's publication does.
        ignore_index: target value that does not count.
        label_smoothing: in [0, 1].
        process_group: of ``torch.distributed``; None is the default one.
        allow_empty: treat a class without samples as a class of one.
        hyper: hyper-parameters of the method other than their defaults.

    The ``state_dict`` holds everything streamed: statistics, slopes, epoch. Saved at any moment and
    loaded into a criterion of the same settings, training goes on exactly. Statistics are left
    alone in ``eval()`` and under ``torch.no_grad()``.

    With ``torch.distributed`` the statistics of all ranks are summed in ``start_epoch``, which
    is then a collective; call ``sync`` on all ranks before rank 0 saves. With
    ``normalize="weights"`` every training forward sums the normaliser over the ranks, so that the
    averaged gradient is that of one process on the whole batch. A rank that has run out of batches
    waits in ``start_epoch`` and adds nothing. With ``"batch"`` nothing is summed: ranks whose
    batches differ in size pass ``normalizer``, the size of the whole batch over the number of
    ranks.

    >>> import torch, classwise as cw
    >>> criterion = cw.Criterion("cvs+adrw", [900, 90, 10], epochs=10)
    >>> model = torch.nn.Linear(4, 3)
    >>> for epoch in range(10):
    ...     criterion.start_epoch(epoch)
    ...     loss = criterion(model(torch.randn(8, 4)), torch.randint(3, (8,)))
    >>> print(criterion.phase)
    from defer: cla(tau=0.9), weights power(nu=0.2)
    """

    _log_prior: Tensor
    kappa_star: Tensor
    kappa_plus: Tensor

    def __init__(
        self,
        method: str | Recipe,
        class_counts: ClassCounts,
        *,
        epochs: int,
        defer_at: int | float = 0.8,
        warmup: int | float = 0.05,
        slopes: SlopeSetting = "stable",
        reduction: str = "mean",
        normalize: str | None = None,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        process_group: Group = None,
        allow_empty: bool = False,
        **hyper: float,
    ) -> None:
        if isinstance(method, Recipe) and hyper:
            raise RecipeError(
                f"a Recipe carries its hyper-parameters: set {', '.join(hyper)} in its parts."
            )
        counts = class_counts_tensor(class_counts, allow_empty=allow_empty)
        recipe = method if isinstance(method, Recipe) else Recipe.parse(method, **hyper)
        epochs = whole_number("epochs", epochs, low=1)
        check_reduction(reduction, "weights" if normalize is None else normalize)
        check_ignore_index(ignore_index)
        defer_epoch = epoch_of("defer_at", defer_at, epochs)
        config = slope_config(slopes)
        super().__init__(
            recipe.phases[0].build(counts, allow_empty=allow_empty),
            None if config is None else empty_bins(counts.numel(), config.num_bins),
            counts,
            epochs=epochs,
            group=process_group,
        )
        self.recipe = recipe
        self.warmup_epochs = epoch_of("warmup", warmup, epochs)
        self.phase_starts = recipe.starts(epochs, defer_epoch)
        self.slope_config = config
        self.reduction = reduction
        self.normalize = normalize
        self.ignore_index = ignore_index
        self.label_smoothing = number("label_smoothing", label_smoothing, low=0, high=1)
        self.allow_empty = allow_empty
        self.shots = shots(counts, allow_empty=allow_empty)
        # What forward reads instead of the epoch: a compiled forward is then compiled once for a
        # phase and not once for an epoch.
        self._phase = recipe.phases[0]
        self._started = False
        self._logit_scale = recipe.phases[0].logit_scale(self.terms)
        self._needs_features = recipe.needs_features
        self._warned = False
        self._check_phases(counts)
        prior = log_prior(counts, allow_empty=allow_empty)
        self.register_buffer("_log_prior", prior, persistent=False)
        ones = torch.ones(counts.numel(), dtype=torch.float64)
        self.register_buffer("kappa_star", ones)
        self.register_buffer("kappa_plus", ones.clone())

    def _check_phases(self, counts: Tensor) -> None:
        """Find out now, not at T0, what a later phase cannot do."""
        for phase in self.recipe.phases:
            phase.build(counts, allow_empty=self.allow_empty)
            if phase.spec.batch_part is not None and self.reduction != "mean":
                raise RecipeError(
                    f"loss {phase.spec.name!r} couples the samples of a batch and has no "
                    f"reduction={self.reduction!r}, only 'mean'."
                )

    # What holds now

    @property
    def epoch(self) -> int:
        """The running epoch; -1 before the first."""
        return self._epoch

    @property
    def phase(self) -> Phase:
        """The running phase of the recipe; before the first epoch, its first."""
        return self._phase

    @property
    def logit_scale(self) -> float:
        """The factor that makes softmax logits of what the model returns, in the running phase.

        The scale of the cosine head that LDAM and ALA want, and 1 for all other methods. Multiply
        by it before a softmax: the accuracy does not change, confidence and calibration do.

        >>> import classwise as cw
        >>> cw.Criterion("ldam", [90, 10], epochs=1).logit_scale
        30.0
        """
        return self._logit_scale

    @property
    def slope_warning(self) -> str:
        """What is wrong with the slopes in use, should they make logits explode; else empty.

        Only ``mla`` and ``cvs`` divide by slopes, and only estimators without a bound
        (``"paper"``) get there. Add it to the message when a loss is not finite.
        """
        in_use = self._phase.slope == "star" and self._epoch >= self.warmup_epochs
        return extreme(self.kappa_star) if in_use else ""

    # Epochs

    def start_epoch(self, epoch: int, *, jump: bool = False) -> None:
        """Begin an epoch: slopes from the statistics of the last, then the phase and its terms.

        Epochs follow each other. Starting the running epoch again changes nothing. Going back or
        skipping needs ``jump=True``, or a ``load_state_dict`` just before. Under
        ``torch.distributed`` all ranks must call it.

        Args:
            epoch: from 0 to ``epochs - 1``.
            jump: allow an epoch that does not follow the running one.
        """
        epoch = whole_number("epoch", epoch, low=0, high=self.epochs - 1)
        if epoch != self._epoch:
            self._check_order(epoch, jump)
            if self._epoch != NOT_STARTED:
                join(self.class_counts.device, self.process_group)
                if self.slope_config is not None:
                    self._finish_epoch(estimates=epoch > self._epoch)
            self._epoch = epoch
        self._loaded = False
        self._make_terms()
        if self.slope_warning and not self._warned and rank(self.process_group) == 0:
            self._warned = True  # once, and not in every epoch that follows
            warnings.warn(ClasswiseWarning(f"epoch {epoch}: {self.slope_warning}"), stacklevel=2)

    def _check_order(self, epoch: int, jump: bool) -> None:
        if epoch == self._epoch + 1 or jump or self._loaded:
            return
        now = "no epoch has started" if self._epoch < 0 else f"epoch {self._epoch} is running"
        raise StateError(
            f"start_epoch({epoch}): {now}, so {self._epoch + 1} is next. To resume, load the "
            f"criterion's state_dict first; to jump on purpose, start_epoch({epoch}, jump=True)."
        )

    @torch.no_grad()
    def _finish_epoch(self, *, estimates: bool) -> None:
        state = self.statistics()
        self._sum_over_ranks()
        if int(state.skipped):
            warnings.warn(
                ClasswiseWarning(
                    f"epoch {self._epoch}: {int(state.skipped)} sample(s) had logits that are not "
                    f"finite and were left out of the statistics. {self.slope_warning}".rstrip()
                ),
                stacklevel=4,  # the caller of start_epoch: no_grad is a frame of its own
            )
        if estimates and bool(state.count.any()):
            self._update_slopes(bin_table(state))
        state.zero_()
        self._synced = False

    def _update_slopes(self, table: BinTable) -> None:
        assert self.slope_config is not None
        config, leans_on = self.slope_config, self.phase.slope
        for kind, kappa in (("star", self.kappa_star), ("plus", self.kappa_plus)):
            if config.across_phases or leans_on == kind:
                new = estimate(table, config, self.shots, star=kind == "star")
                kappa.mul_(config.momentum).add_(new, alpha=1 - config.momentum)

    def _make_terms(self) -> None:
        self._started = self._epoch != NOT_STARTED
        begun = sum(start <= max(self._epoch, 0) for start in self.phase_starts)
        self._phase, kappa = self.recipe.phases[begun - 1], None
        phase = self._phase
        if phase.slope and self._epoch >= self.warmup_epochs:
            kappa = self.kappa_star if phase.slope == "star" else self.kappa_plus
        built = phase.build(self.class_counts, kappa, allow_empty=self.allow_empty)
        self._use_terms(built.to(device=self.kappa_star.device, dtype=self.kappa_star.dtype))
        self._logit_scale = phase.logit_scale(built)

    # The loss

    def forward(
        self,
        logits: Tensor,
        target: Tensor,
        *,
        features: Tensor | None = None,
        normalizer: Tensor | float | None = None,
        track: bool = True,
    ) -> Tensor:
        """Return the loss of a batch, and add the batch to the statistics while training.

        Args:
            logits: raw output of the model, (N, C) or (N, C, d1, ...).
            target: int64 class indices, or class probabilities of the logits' shape.
            features: what the last layer sees, (N, D), for the influence-balanced loss.
            normalizer: divide by this instead of the batch's own mass. For gradient accumulation:
                ``mass`` of the targets of all micro-batches together, of this rank.
            track: False leaves the statistics alone, as for the second pass of SAM.
        """
        logits = tensor_of_logits(logits, self.terms.num_classes)
        target = tensor_of_target(target, logits, self.ignore_index)
        training = self._trains()
        if training and self._needs_features and features is None:
            raise ArgumentError(
                f"{self.recipe.name!r} needs the features that the last layer sees: "
                "criterion(logits, target, features=...)."
            )
        spec, hyper = self.phase.spec, self.phase.loss_hyper
        scores = Scores(logits, self.terms)
        goal = Target(target, self.ignore_index, scores.logits.dtype)
        smooth = goal.smoothed(self.label_smoothing, scores.logits)
        losses = spec.per_sample(scores, smooth, self.terms, features, **hyper)
        if training and track:
            self._track(scores, target)
        divisor = self._divisor(goal, scores.logits, normalizer, training)
        loss = reduce(losses, self.reduction, divisor)
        if spec.batch_part is not None:
            # This batch's share of what the mean is over: of the micro-batches, of the ranks.
            own = mass(goal, self.terms.alpha, self.normalize or spec.normalize, scores.logits)
            part = spec.batch_part(scores, goal, self._log_prior, **hyper)
            loss = loss + reduce(own * part, "mean", divisor)
        return loss

    def linear(
        self,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        *,
        normalizer: Tensor | float | None = None,
        track: bool = True,
    ) -> Tensor:
        """Return the loss of a linear head without making its (N, C) logits, and track them.

        It equals ``criterion(F.linear(features, weight, bias), target)`` where memory does not
        allow that, see ``classwise.linear_vs_loss``. The running phase must be one of class terms.

        Args:
            features: input of the head, (N, D).
            weight: (C, D).
            bias: (C,) or None.
            target: int64 class indices, (N,).
            normalizer: as for a dense batch.
            track: as for a dense batch.
        """
        checked_head(features, weight, bias, self.terms)
        like = logits_like(features, weight)
        target = tensor_of_target(target, like, self.ignore_index)
        goal, training = Target(target, self.ignore_index, like.dtype), self._trains()
        if self.phase.spec.name != "vs" or self.label_smoothing or goal.index is None:
            raise ArgumentError(
                f"criterion.linear needs a loss of class terms, class indices and no label "
                f"smoothing; got {self.phase.spec.name!r}, target of {target.dtype}, "
                f"label_smoothing={self.label_smoothing:g}. Use criterion(logits, target)."
            )
        config = self.slope_config if training and track else None
        view = None if config is None else config.logits
        losses, seen = head_losses(
            features, weight, bias, goal.index, self.terms, view=view, scale=self._logit_scale
        )
        if training and track:
            self._changed()
        if config is not None and seen is not None:
            update_bins_with_predictions(
                self.statistics(),
                target,
                **seen._asdict(),
                group_by=config.group_by,
                ignore_index=self.ignore_index,
            )
        divisor = self._divisor(goal, like, normalizer, training)
        return reduce(weighted(losses, goal, self.terms), self.reduction, divisor)

    def _trains(self) -> bool:
        training = self.training and torch.is_grad_enabled()
        if training and not self._started:
            raise StateError("call start_epoch(0) before the first training step.")
        return training

    def _divisor(
        self, goal: Target, like: Tensor, normalizer: Tensor | float | None, training: bool
    ) -> Tensor | None:
        if self.reduction != "mean":
            return None
        normalize = self.normalize or self.phase.spec.normalize
        divisor = mean_divisor(goal, self.terms.alpha, normalize, like, normalizer)
        # Gradients are averaged over the ranks later; this makes them those of a sum over the whole
        # batch.
        over_ranks = training and normalize == "weights"
        return mean_over_ranks(divisor, self.process_group) if over_ranks else divisor

    def mass(self, target: Tensor) -> Tensor:
        """Return what a mean over these targets divides by: to be passed as ``normalizer``.

        >>> import torch, classwise as cw
        >>> criterion = cw.Criterion("balanced", [75, 25], epochs=1)
        >>> float(criterion.mass(torch.tensor([0, 1, 1, -100])))  # 4/3 + 4 + 4
        9.333...
        """
        like = self.terms.alpha.new_zeros(())
        if isinstance(target, Tensor):  # only the shape of the logits is needed
            target = target.to(like.device)
            rest = target.shape[2:] if target.is_floating_point() else target.shape[1:]
            like = like.expand(*target.shape[:1], self.terms.num_classes, *rest)
        goal = tensor_of_target(target, like, self.ignore_index)
        normalize = self.normalize or self.phase.spec.normalize
        return mass(Target(goal, self.ignore_index, like.dtype), self.terms.alpha, normalize, like)

    def _changed(self) -> None:
        # Written only where they change: a compiled forward guards on them.
        if self._synced:
            self._synced = False
        if self._loaded:
            self._loaded = False

    @torch.no_grad()
    def _track(self, scores: Scores, target: Tensor) -> None:
        self._changed()
        if self.slope_config is None:
            return
        if self.slope_config.logits == "adjusted":
            logits, log_probs = scores.adjusted.detach(), scores.log_probs.detach()
        else:
            # A cosine head's output is logits only once it is scaled.
            logits = scores.logits.detach() * self._logit_scale
            log_probs = F.log_softmax(logits, dim=1)
        add_checked(
            self.statistics(),
            logits,
            target,
            log_probs,
            group_by=self.slope_config.group_by,
            ignore_index=self.ignore_index,
        )

    def _settings(self) -> dict[str, str]:
        return {
            "method": str(self.recipe),
            "epochs": str(self.epochs),
            "phase_starts": str(self.phase_starts),
            "warmup": str(self.warmup_epochs),
            "slopes": str(self.slope_config),
        }

    def extra_repr(self) -> str:
        """Describe the settings."""
        return f"{self.recipe}, epochs={self.epochs}, epoch={self._epoch}"
