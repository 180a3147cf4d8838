"""Slope statistics: a batch and an epoch's end, beside the published memory bank.

The statistics of a batch are timed as they run in training, where the log-softmax of the loss is
at hand. The limit is one pass over the logits: their largest value in each row.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import classwise as cw
from benchmarks.bank import Bank, bank_bytes, refit
from benchmarks.timing import interleaved
from classwise.estimation import PRESETS, SlopeConfig, estimate
from classwise.stats.bins import BinState, bin_table, empty_bins, update_bins

__all__ = ["inaturalist_counts", "measure"]

INATURALIST = (8_142, 437_513)
"""Classes and training samples of iNaturalist 2018, the largest set of the paper."""
RELEASED = PRESETS["released"]


def inaturalist_counts() -> list[int]:
    """Return long-tailed counts with as many classes and samples, from 1,000 down to 2."""
    classes, samples = INATURALIST
    steps = torch.arange(classes, dtype=torch.float64) / (classes - 1)

    def profile(exponent: float) -> Tensor:
        return (1000 * 0.002 ** (steps ** (1 / exponent))).clamp(min=2).long()

    low, high = 0.1, 10.0  # of the exponent; bisected for the number of samples
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if int(profile(middle).sum()) > samples else (low, middle)
    return profile(low).tolist()


def batch_of(classes: int, batch: int) -> tuple[Tensor, Tensor]:
    """Return logits that are often right, and targets."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(classes, (batch,), generator=generator)
    logits = torch.randn(batch, classes, generator=generator)
    logits[torch.arange(batch), target] += 4
    return logits, target


def per_batch(classes: int, batch: int, counts: list[int], budget: float) -> dict[str, Any]:
    """Time the statistics of one batch."""
    logits, target = batch_of(classes, batch)
    log_probs = F.log_softmax(logits, dim=1)
    state, config = empty_bins(classes), SlopeConfig()
    bank, present = Bank(counts), Bank(counts, present_only=True)
    calls = {
        "bins": lambda: update_bins(state, logits, target, log_probs=log_probs),
        "by prediction": lambda: update_bins(
            state, logits, target, group_by="prediction", log_probs=log_probs
        ),
        "by score": lambda: update_bins(
            state, logits, target, group_by="score", log_probs=log_probs
        ),
        "one pass": lambda: logits.amax(1),
        "bank": lambda: bank.update(logits, target),
        "bank, present": lambda: present.update(logits, target),
    }
    assert config.num_bins == state.count.shape[1]
    found = interleaved(calls, budget=budget, least=3, warm=1)
    return {
        "classes": classes,
        "batch": batch,
        **found,
        "state_mb": megabytes(state),
        "bank_mb": bank_bytes(counts) / 1e6,
    }


def huge(classes: int, batch: int, budget: float) -> dict[str, Any]:
    """Time the statistics of a batch of so many classes that a bank is out of the question."""
    logits, target = batch_of(classes, batch)
    log_probs, state = F.log_softmax(logits, dim=1), empty_bins(classes)
    calls = {
        "one pass": lambda: log_probs.amax(1),
        "bins": lambda: update_bins(state, logits, target, log_probs=log_probs),
    }
    found = interleaved(calls, budget=budget, least=3, warm=1)
    return {"classes": classes, "batch": batch, **found, "state_mb": megabytes(state)}


def megabytes(state: BinState) -> float:
    """Return what the sums hold."""
    return sum(t.numel() * t.element_size() for _, t in state.tensors()) / 1e6


def per_estimation(classes: int, samples: int, budget: float, *, least: int = 1) -> dict[str, Any]:
    """Time one estimation of all slopes from as many samples.

    The bank's softmax over all stored logits is left out, and so flatters it: at full size they
    would not fit into the memory of most machines.
    """
    generator = torch.Generator().manual_seed(0)
    predicted = torch.randint(classes, (samples,), generator=generator)
    confidence = torch.rand(samples, generator=generator).clamp(min=1e-3)
    hit = (torch.rand(samples, generator=generator) < 0.8 * confidence).float()
    state = filled(confidence, predicted, hit, classes)
    counts = torch.bincount(predicted, minlength=classes).clamp(min=1)
    shots = cw.shots(counts)

    def ours(config: SlopeConfig) -> Tensor:
        return estimate(bin_table(state), config, shots, star=False)

    agreed = torch.tensor(refit(confidence, predicted, hit, classes), dtype=torch.float64)
    apart = float((ours(RELEASED) - agreed).abs().max())
    calls = {
        "bins": lambda: ours(RELEASED),
        "stable": lambda: ours(PRESETS["stable"]),
        "bank": lambda: refit(confidence, predicted, hit, classes),
    }
    found = interleaved(calls, budget=budget, least=least, warm=0)
    return {"classes": classes, "samples": samples, **found, "largest_difference": apart}


def filled(confidence: Tensor, predicted: Tensor, hit: Tensor, classes: int) -> BinState:
    """Return the sums of samples that are given by confidence, prediction and hit."""
    state = empty_bins(classes)
    edges = torch.linspace(0, 1, state.count.shape[1] + 1)[1:-1]
    flat = predicted * state.count.shape[1] + torch.bucketize(confidence, edges)
    state.count.view(-1).index_add_(0, flat, torch.ones_like(flat))
    for sums, values in (
        (state.correct, hit),
        (state.confidence, confidence),
        (state.logit, 8 * confidence),
    ):
        sums.view(-1).index_add_(0, flat, values.double())
    state.seen.index_add_(0, predicted, torch.ones_like(predicted))
    return state


def measure(*, quick: bool) -> dict[str, Any]:
    """Measure statistics and estimation at the sizes of CIFAR-100-LT and iNaturalist."""
    small = cw.longtail_counts(500, 100, 100).tolist()
    large = inaturalist_counts()
    batches = [per_batch(8_142, 256, large, 0.5 if quick else 8.0)]
    if quick:
        return {"batch": batches, "estimation": [per_estimation(500, 20_000, 1.0, least=3)]}
    batches.insert(0, per_batch(100, 128, small, 5.0))
    ends = [per_estimation(100, 10_847, 1.0, least=3), per_estimation(8_142, 437_513, 1.0)]
    return {"batch": batches, "huge": huge(100_000, 256, 2.0), "estimation": ends}
