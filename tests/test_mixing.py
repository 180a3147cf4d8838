"""Mixup and UniMix: what is drawn, what becomes of it, and the cases in which they coincide."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import classwise as cw
from classwise.data.mixing import Mix, Mixup, UniMix, mix, parse_mixing
from classwise.errors import ArgumentError, UnknownNameError

COUNTS = torch.tensor([500, 60, 5])
LABELS = torch.arange(3).repeat_interleave(torch.tensor([40, 16, 8]))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(weights: Tensor) -> float:
    """Return the Kolmogorov distance to the uniform distribution on [0, 1)."""
    ordered = weights.double().sort().values
    place = torch.arange(1, len(ordered) + 1, dtype=torch.float64) / len(ordered)
    return float((ordered - place).abs().max())


def test_mixup_has_one_weight_and_a_permutation() -> None:
    weights = []
    for seed in range(2000):
        drawn = Mixup(1.0).draw(LABELS, COUNTS, generator(seed))
        weights.append(drawn.weight[0])
        if seed < 50:
            assert (drawn.weight == drawn.weight[0]).all()
            assert torch.equal(drawn.partner.sort().values, torch.arange(len(LABELS)))
    assert uniform(torch.stack(weights)) < 1.63 / 2000**0.5  # Beta(1, 1), at 1 %


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_weights_have_the_moments_of_beta(alpha: float) -> None:
    drawn = [Mixup(alpha).draw(LABELS[:2], COUNTS, generator(seed)) for seed in range(3000)]
    weights = torch.stack([d.weight[0] for d in drawn]).double()
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(float(weights.mean()) - 0.5) < 4 * (variance / 3000) ** 0.5
    assert float(weights.var()) == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("power", [-1.0, -0.5, 0.0, 1.0])
def test_unimix_draws_partners_by_a_power_of_their_class(power: float) -> None:
    drawn = [UniMix(power).draw(LABELS, COUNTS, generator(seed)) for seed in range(300)]
    partners = torch.cat([LABELS[d.partner] for d in drawn])
    chances = COUNTS[LABELS].double() ** power
    share = torch.zeros(3, dtype=torch.float64).index_add_(0, LABELS, chances) / chances.sum()
    total = len(partners)
    seen = torch.bincount(partners, minlength=3)
    assert ((seen - total * share).abs() <= 4 * (total * share * (1 - share)).sqrt()).all()


def test_unimix_weight_is_the_formula() -> None:
    drawn = UniMix(-0.5, alpha=1e6).draw(LABELS, COUNTS, generator())  # Beta is 1/2, nearly
    own, other = COUNTS[LABELS].double(), COUNTS[LABELS[drawn.partner]].double()
    # modulo 1 a difference of nearly 1 is nearly none
    difference = (drawn.weight.double() - (other / (own + other) + 0.5)) % 1
    assert torch.minimum(difference, 1 - difference).max() < 0.01
    weights = torch.cat(
        [UniMix(-0.5).draw(LABELS, COUNTS, generator(seed)).weight for seed in range(100)]
    )
    assert weights.min() >= 0
    assert weights.max() <= 1
    assert weights.dtype == torch.float32


def test_unimix_without_counts_is_mixup_with_a_weight_each() -> None:
    # alpha 1 and power 0: Beta(1, 1) + constant mod 1 is uniform, for any counts.
    drawn = [UniMix(0.0, alpha=1.0).draw(LABELS, COUNTS, generator(seed)) for seed in range(200)]
    weights = torch.cat([d.weight for d in drawn])
    assert uniform(weights) < 1.63 / len(weights) ** 0.5
    of_head = torch.cat([d.weight[LABELS == 0] for d in drawn])
    assert uniform(of_head) < 1.63 / len(of_head) ** 0.5
    partners = torch.bincount(torch.cat([d.partner for d in drawn]), minlength=len(LABELS))
    assert (partners - 200).abs().max() < 5 * 200**0.5


def test_extreme_powers_and_counts_stay_finite() -> None:
    counts = torch.tensor([10**9, 1, 10])
    for power, legal in ((-300.0, {1}), (300.0, {0, 3})):
        drawn = UniMix(power).draw(torch.tensor([0, 1, 2, 0]), counts, generator())
        assert drawn.weight.isfinite().all()
        assert set(drawn.partner.tolist()) <= legal


def test_targets_are_the_mixture_and_rows_sum_to_one() -> None:
    inputs = torch.randn(64, 3, 4, 4)
    for mixing in (Mixup(), UniMix()):
        drawn = mixing.draw(LABELS, COUNTS, generator())
        mixed, target = mix(inputs, LABELS, drawn, 3)
        for i in range(64):
            j, w = int(drawn.partner[i]), float(drawn.weight[i])
            torch.testing.assert_close(mixed[i], w * inputs[i] + (1 - w) * inputs[j])
            row = torch.zeros(3)
            row[LABELS[i]] += w
            row[LABELS[j]] += 1 - w
            torch.testing.assert_close(target[i], row)
        torch.testing.assert_close(target.sum(1), torch.ones(64))
        assert target.dtype == torch.float32


def test_weight_one_changes_nothing_and_weight_zero_exchanges() -> None:
    inputs, labels = torch.randn(3, 5), torch.tensor([0, 2, 1])
    partner = torch.tensor([1, 2, 0])
    same, target = mix(inputs, labels, Mix(partner, torch.ones(3)), 3)
    assert torch.equal(same, inputs)
    assert torch.equal(target, F.one_hot(labels, 3).float())
    other, target = mix(inputs, labels, Mix(partner, torch.zeros(3)), 3)
    assert torch.equal(other, inputs[partner])
    assert torch.equal(target, F.one_hot(labels[partner], 3).float())


def test_the_loss_of_the_target_is_the_mixture_of_losses() -> None:
    drawn = UniMix().draw(LABELS, COUNTS, generator())
    _, target = mix(torch.zeros(64, 1), LABELS, drawn, 3)
    logits = torch.randn(64, 3)
    terms = cw.terms.la(COUNTS)
    soft = cw.vs_loss(logits, target, terms, reduction="none")
    own = cw.vs_loss(logits, LABELS, terms, reduction="none")
    other = cw.vs_loss(logits, LABELS[drawn.partner], terms, reduction="none")
    torch.testing.assert_close(soft, drawn.weight * own + (1 - drawn.weight) * other)


def test_draws_are_reproducible_and_use_their_generator_alone() -> None:
    before = torch.get_rng_state()
    for mixing in (Mixup(), UniMix()):
        first, again = (mixing.draw(LABELS, COUNTS, generator(5)) for _ in range(2))
        other = mixing.draw(LABELS, COUNTS, generator(6))
        assert torch.equal(first.partner, again.partner)
        assert torch.equal(first.weight, again.weight)
        assert not torch.equal(first.weight, other.weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_names() -> None:
    assert parse_mixing("mixup") == Mixup(1.0)
    assert parse_mixing("mixup:0.2") == Mixup(0.2)
    assert parse_mixing("unimix") == UniMix(-0.1, 0.8)
    assert parse_mixing("unimix:-0.5:1") == UniMix(-0.5, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mixup:0", "alpha of mixup=0.0 is out of range"),
        ("mixup:x", "'x' must be a number"),
        ("mixup:nan", "'nan' must be a number"),
        ("mixup:", "'' must be a number"),
        ("mixup:1:2", r"too many numbers, legal is mixup\[:ALPHA\]"),
        ("unimix:-0.1:-1", "alpha of unimix=-1.0 is out of range"),
        ("none:1", "takes no number"),
        (None, "must be text"),
    ],
)
def test_bad_inputs(text: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        parse_mixing(text)


def test_an_unknown_mixing_is_an_unknown_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'mixup'"):
        parse_mixing("mix-up:1.0")
