"""Losses: the VS family (dense and with a linear head), and what is not class terms beside it.

Each loss is a function and a module that holds its constants. ``LOSSES`` lists them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from classwise.losses._scores import Scores, Target
from classwise.losses.ala import ALALoss, ala_loss, per_sample_ala
from classwise.losses.focal import FocalLoss, focal_loss, per_sample_focal
from classwise.losses.influence import (
    InfluenceBalancedLoss,
    influence_balanced_loss,
    per_sample_influence,
)
from classwise.losses.lade import LADELoss, lade_loss, lade_regularizer
from classwise.losses.linear import linear_vs_loss
from classwise.losses.vs import VSLoss, adjust, fold, per_sample_vs, vs_loss
from classwise.terms import Terms

__all__ = [
    "LOSSES",
    "ALALoss",
    "FocalLoss",
    "InfluenceBalancedLoss",
    "LADELoss",
    "LossSpec",
    "VSLoss",
    "adjust",
    "ala_loss",
    "focal_loss",
    "fold",
    "influence_balanced_loss",
    "lade_loss",
    "linear_vs_loss",
    "vs_loss",
]


@dataclass(frozen=True)
class LossSpec:
    """One loss: its function, its module, and what ``classwise.Criterion`` calls.

    Args:
        name: of the loss in a ``classwise.Phase``.
        function: the public function.
        module: the public module.
        source: where it comes from.
        per_sample: (scores, target, terms, features, **hyper) -> weighted loss per sample.
        hyper: names of its hyper-parameters.
        normalize: what its published code divides a mean by, and a criterion that is not told.
        takes_margin: whether terms with margins mean anything to it.
        needs_features: whether it wants what the last layer sees.
        batch_part: (scores, target, log_prior, **hyper) -> a scalar to add to the mean, for a loss
            that couples the samples of a batch.
    """

    name: str
    function: Callable[..., Tensor]
    module: type[nn.Module]
    source: str
    per_sample: Callable[..., Tensor]
    hyper: tuple[str, ...] = ()
    normalize: str = "weights"
    takes_margin: bool = False
    needs_features: bool = False
    batch_part: Callable[..., Tensor] | None = None


def _vs(scores: Scores, target: Target, terms: Terms, features: Tensor | None) -> Tensor:
    return per_sample_vs(scores, target, terms)


def _focal(
    scores: Scores, target: Target, terms: Terms, features: Tensor | None, *, gamma: float
) -> Tensor:
    return per_sample_focal(scores, target, terms.alpha, gamma=gamma)


def _influence(
    scores: Scores, target: Target, terms: Terms, features: Tensor | None, *, strength: float
) -> Tensor:
    return per_sample_influence(scores, target, terms.alpha, features=features, strength=strength)


def _lade(
    scores: Scores,
    target: Target,
    terms: Terms,
    features: Tensor | None,
    *,
    weight: float,
    remine: float,
) -> Tensor:
    return per_sample_vs(scores, target, terms)


def _lade_batch(
    scores: Scores, target: Target, log_prior: Tensor, *, weight: float, remine: float
) -> Tensor:
    return weight * lade_regularizer(scores.logits, target, log_prior, remine=remine)


def _ala(scores: Scores, target: Target, terms: Terms, features: Tensor | None) -> Tensor:
    return per_sample_ala(scores, target, terms)


LOSSES: dict[str, LossSpec] = {
    spec.name: spec
    for spec in (
        LossSpec(
            "vs",
            vs_loss,
            VSLoss,
            "Kini et al., NeurIPS 2021; paper Eq. 6",
            _vs,
            takes_margin=True,
        ),
        LossSpec(
            "focal",
            focal_loss,
            FocalLoss,
            "Lin et al., ICCV 2017",
            _focal,
            ("gamma",),
            normalize="batch",
        ),
        LossSpec(
            "influence",
            influence_balanced_loss,
            InfluenceBalancedLoss,
            "Park et al., ICCV 2021",
            _influence,
            ("strength",),
            normalize="batch",
            needs_features=True,
        ),
        LossSpec(
            "lade",
            lade_loss,
            LADELoss,
            "Hong et al., CVPR 2021",
            _lade,
            ("weight", "remine"),
            takes_margin=True,
            batch_part=_lade_batch,
        ),
        LossSpec(
            "ala",
            ala_loss,
            ALALoss,
            "Zhao et al., AAAI 2022",
            _ala,
            normalize="batch",
            takes_margin=True,
        ),
    )
}
