"""Slopes, calibration errors, reliability curves and the presets of the slope estimator."""

import itertools
import math
import time
from typing import Any

import pytest
import torch
from reference import statistics as ref
from torch import Tensor

import classwise as cw
from classwise.calibration import FALLBACKS, METHODS, POOLS, REGRESSORS
from classwise.estimation import PRESETS, SlopeConfig, estimate, slope_config
from classwise.stats.bins import GROUPINGS, BinTable, bin_table, empty_bins, update_bins

COUNTS = [600, 300, 150, 90, 60, 40, 25, 20, 15, 8, 5, 2]
GROUPS: ref.Groups = {
    "many": [0, 1, 2],
    "medium": [3, 4, 5, 6, 7],
    "few": [8, 9, 10, 11],
}
SHOTS = cw.shots(COUNTS)


def random_table(seed: int = 0, *, classes: int = 12, num_bins: int = 20) -> ref.Table:
    """Sums of random bins: classes without data, of one bin, of nine samples, always wrong."""
    generator = torch.Generator().manual_seed(seed)
    shape = (classes, num_bins)
    count = torch.randint(1, 60, shape, generator=generator).double()
    count *= torch.rand(shape, generator=generator) < 0.6
    count[4] = 0
    count[5, 1:], count[5, 0] = 0, 30
    count[9], count[9, 3], count[9, 12] = 0, 4, 5
    confidence = torch.arange(num_bins) + torch.rand(shape, generator=generator).double()
    accuracy = (confidence / num_bins * 0.8 + 0.3 * torch.rand(shape, generator=generator)).clamp(
        max=1
    )
    accuracy[10] = 0  # always wrong: a slope of 0
    logit = 4 * torch.rand(shape, generator=generator).double() + confidence / 4
    logit[7] -= 8  # and one that is mostly negative
    sums = (count, count * accuracy, count * confidence / num_bins, count * logit)
    return {name: total.tolist() for name, total in zip(ref.SUMS, sums, strict=True)}


def table_of(sums: ref.Table, seen: list[int] | None = None) -> BinTable:
    count, *totals = (torch.tensor(sums[name], dtype=torch.float64) for name in ref.SUMS)
    means = [total / count.clamp(min=1) for total in totals]
    samples = count.sum(1) if seen is None else torch.tensor(seen)
    return BinTable(count.long(), means[0], means[1], means[2], samples.long())


def collect(logits: Tensor, target: Tensor, group_by: str = "target") -> BinTable:
    state = empty_bins(logits.shape[1])
    update_bins(state, logits, target, group_by=group_by)
    return bin_table(state)


def calibrated(samples: int, classes: int, *, truth: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logits that treat classes alike, and labels drawn from their softmax.

    With ``truth`` below 1 the most likely class is right only that often as it claims.
    """
    logits = 2 * torch.randn(samples, classes, dtype=torch.float64)
    p = logits.softmax(1)
    if truth < 1:
        best = p.argmax(1, keepdim=True)
        claimed = truth * p.gather(1, best)
        others = p.scatter(1, best, 0)
        p = (others / others.sum(1, keepdim=True) * (1 - claimed)).scatter(1, best, claimed)
    return logits, torch.multinomial(p, 1).squeeze(1)


# Slopes against loops


@pytest.mark.parametrize("fallback", FALLBACKS)
@pytest.mark.parametrize("pool", [None, *POOLS])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("on", REGRESSORS)
def test_slopes_equal_loops(on: str, method: str, pool: str | None, fallback: str):
    parts: dict[str, Any] = {"on": on, "method": method, "pool": pool, "fallback": fallback}
    for seed in range(2):
        sums = random_table(seed)
        got = cw.slopes(table_of(sums), shots=SHOTS, **parts)
        expected = ref.slopes(sums, groups=GROUPS, **parts)
        assert got.tolist() == pytest.approx(expected, rel=1e-9)
        assert bool((got > 0).all() & got.isfinite().all())


@pytest.mark.parametrize("on", REGRESSORS)
def test_huber_finds_the_minimum_on_scattered_bins(on: str):
    # Bins that follow no line at all: most of them are outliers to any slope.
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        shape = (6, 20)
        count = torch.randint(1, 200, shape, generator=generator)
        accuracy, confidence = torch.rand(2, *shape, generator=generator, dtype=torch.float64)
        logit = 5 + 5 * torch.randn(shape, generator=generator, dtype=torch.float64)
        table = BinTable(count, accuracy, (confidence + torch.arange(20)) / 20, logit, count.sum(1))
        sums = {
            "count": count.tolist(),
            "correct": (count * table.accuracy).tolist(),
            "confidence": (count * table.confidence).tolist(),
            "logit": (count * table.logit).tolist(),
        }
        got = cw.slopes(table, on=on, method="huber", fallback="one").tolist()
        expected = [ref.huber(ref.points(sums, [c], on)) for c in range(6)]
        assert got == pytest.approx([k if k > 0 else 1.0 for k in expected], rel=1e-6)


def test_shots_are_made_of_what_the_table_has_seen():
    sums = random_table(1)
    table = table_of(sums, seen=COUNTS)
    for pool in ("few", "shots"):
        given = cw.slopes(table, pool=pool, shots=SHOTS)
        assert torch.equal(cw.slopes(table, pool=pool), given)


@pytest.mark.parametrize(
    ("count", "believed"),
    [([5, 4], False), ([5, 5], True), ([50, 0], False), ([1, 9], True), ([0, 0], False)],
)
def test_a_slope_needs_ten_samples_in_two_bins(count: list[int], believed: bool):
    confidence = torch.tensor([[0.5, 0.8], [0.5, 0.8]], dtype=torch.float64)
    counts = torch.tensor([count, [40, 40]])
    accuracy = confidence * torch.tensor([[0.5], [0.9]])
    table = BinTable(counts, accuracy, confidence, confidence, counts.sum(1))
    assert float(cw.slopes(table, fallback="one")[0]) == pytest.approx(0.5 if believed else 1.0)
    assert float(cw.slopes(table, fallback="one")[1]) == pytest.approx(0.9)


def test_min_count_can_be_changed():
    table = collect(*calibrated(60, 5))
    most = int(table.count.sum(1).max())
    assert cw.slopes(table, fallback="one", min_count=most + 1).tolist() == [1.0] * 5
    assert cw.slopes(table, fallback="one", min_count=most).ne(1).sum() >= 1


@pytest.mark.parametrize("on", REGRESSORS)
def test_a_class_that_is_always_wrong_falls_back(on: str):
    sums = random_table()
    alone = cw.slopes(table_of(sums), on=on, fallback="one")
    assert float(alone[10]) == 1.0
    together = cw.slopes(table_of(sums), on=on, fallback="all")
    assert float(together[10]) == pytest.approx(
        float(cw.slopes(table_of(sums), on=on, pool="all")[0])
    )


@pytest.mark.parametrize("pool", [None, *POOLS])
def test_a_group_without_data_takes_the_slope_of_all(pool: str | None):
    sums = random_table()
    for total in sums.values():
        for c in GROUPS["few"]:
            total[c] = [0.0] * 20
    got = cw.slopes(table_of(sums), pool=pool, shots=SHOTS, fallback="shots")
    expected = ref.slopes(sums, groups=GROUPS, pool=pool, fallback="shots")
    assert got.tolist() == pytest.approx(expected, rel=1e-9)
    everyone = float(cw.slopes(table_of(sums), pool="all")[0])
    assert got[GROUPS["few"]].tolist() == pytest.approx([everyone] * 4)
    assert abs(everyone - 1) > 0.01


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pool", [None, *POOLS])
def test_an_empty_table_gives_ones(method: str, pool: str | None):
    table = bin_table(empty_bins(12))
    assert cw.slopes(table, method=method, pool=pool, shots=SHOTS).tolist() == [1.0] * 12
    assert cw.slopes(table, method=method, pool=pool).tolist() == [1.0] * 12


def test_huber_resists_an_outlier_bin():
    confidence = torch.linspace(0.05, 1, 20, dtype=torch.float64).repeat(2, 1)
    count = torch.full((2, 20), 30)
    accuracy = 0.7 * confidence
    accuracy[0, 19] = 0.0  # the most confident bin is all wrong
    table = BinTable(count, accuracy, confidence, confidence, count.sum(1))
    plain, robust = cw.slopes(table), cw.slopes(table, method="huber")
    assert float(robust[1]) == pytest.approx(0.7) == float(plain[1])
    assert abs(float(robust[0]) - 0.7) < 0.4 * abs(float(plain[0]) - 0.7)


def test_unknown_parts_are_named():
    table = bin_table(empty_bins(3))
    with pytest.raises(cw.UnknownNameError, match="did you mean 'logit'"):
        cw.slopes(table, on="logits")
    with pytest.raises(cw.UnknownNameError, match="method='ols'"):
        cw.slopes(table, method="ols")
    with pytest.raises(cw.UnknownNameError, match="fallback='none'"):
        cw.slopes(table, fallback="none")
    with pytest.raises(cw.UnknownNameError, match="pool='many'"):
        cw.slopes(table, pool="many")
    with pytest.raises(cw.ArgumentError, match="call compute"):
        cw.slopes(cw.ClassBins(3))  # type: ignore[arg-type]
    with pytest.raises(cw.ArgumentError, match="needs a group 'few'"):
        cw.slopes(table, pool="few", shots={"all": torch.ones(3, dtype=torch.bool)})
    with pytest.raises(cw.ArgumentError, match="class 2 is in 0 groups"):
        cw.slopes(table, pool="shots", shots={"a": torch.tensor([True, True, False])})


# Slopes of streams whose truth is known


@pytest.mark.parametrize("group_by", GROUPINGS)
def test_a_calibrated_stream_has_slope_one(group_by: str):
    table = collect(*calibrated(40_000, 4), group_by)
    slopes = cw.slopes(table, fallback="one")
    assert slopes.tolist() == pytest.approx([1.0] * 4, abs=0.03)
    assert float(cw.slopes(table, pool="all")[0]) == pytest.approx(1.0, abs=0.015)
    assert cw.slopes(table, method="huber").tolist() == pytest.approx([1.0] * 4, abs=0.03)


@pytest.mark.parametrize("group_by", ["target", "prediction"])
def test_twice_the_confidence_has_slope_one_half(group_by: str):
    table = collect(*calibrated(40_000, 4, truth=0.5), group_by)
    assert cw.slopes(table, fallback="one").tolist() == pytest.approx([0.5] * 4, abs=0.03)


@pytest.mark.parametrize("on", REGRESSORS)
@pytest.mark.parametrize("group_by", GROUPINGS)
def test_slopes_do_not_depend_on_the_batches(group_by: str, on: str):
    logits, target = calibrated(240, 6)
    whole = cw.slopes(collect(logits, target, group_by), on=on)
    for size in (1, 7, 128):
        state = empty_bins(6)
        for rows in torch.arange(240).split(size):
            update_bins(state, logits[rows], target[rows], group_by=group_by)
        torch.testing.assert_close(cw.slopes(bin_table(state), on=on), whole, rtol=1e-6, atol=0)


def test_a_class_without_data_takes_its_fallback():
    logits, target = calibrated(3000, 4, truth=0.5)
    keep = target != 2
    table = collect(logits[keep], target[keep])
    assert float(cw.slopes(table, fallback="one")[2]) == 1.0
    pooled = cw.slopes(table, pool="all")
    assert float(cw.slopes(table)[2]) == float(pooled[2])
    few = {"head": torch.tensor([True, True, False, False])}
    few["tail"] = ~few["head"]
    nearest = cw.slopes(table, fallback="shots", shots=few)
    assert float(nearest[2]) == float(cw.slopes(table, pool="shots", shots=few)[3])


@pytest.mark.parametrize(("method", "classes"), [("lstsq", 100_000), ("huber", 20_000)])
def test_many_classes_take_seconds_at_most(method: str, classes: int):
    count = torch.randint(0, 20, (classes, 20))
    accuracy, regressor = torch.rand(2, classes, 20, dtype=torch.float64)
    table = BinTable(count, accuracy, regressor, regressor, count.sum(1))
    start = time.perf_counter()
    slopes = cw.slopes(table, method=method, fallback="shots")
    assert time.perf_counter() - start < 20  # 0.2 each where nothing else runs; loops take minutes
    assert slopes.shape == (classes,)
    assert bool(slopes.isfinite().all())


# Calibration errors


def assert_errors(error: cw.CalibrationError, sums: ref.Table, groups: ref.Groups) -> None:
    classes = range(len(sums["count"]))
    overall = ref.calibration(sums, list(classes))
    assert (float(error.ece), float(error.mce)) == pytest.approx(overall, nan_ok=True)
    per_class = [ref.calibration(sums, [c]) for c in classes]
    assert error.class_ece.tolist() == pytest.approx([e for e, _ in per_class], nan_ok=True)
    assert error.class_mce.tolist() == pytest.approx([m for _, m in per_class], nan_ok=True)
    filled = {
        name: ref.calibration(sums, members)
        for name, members in groups.items()
        if any(any(sums["count"][c]) for c in members)
    }
    assert {n: float(e) for n, e in error.group_ece.items()} == pytest.approx(
        {n: e for n, (e, _) in filled.items()}
    )
    assert {n: float(m) for n, m in error.group_mce.items()} == pytest.approx(
        {n: m for n, (_, m) in filled.items()}
    )


@pytest.mark.parametrize("seed", range(3))
def test_calibration_errors_equal_loops(seed: int):
    sums = random_table(seed)
    assert_errors(cw.calibration_error(table_of(sums), SHOTS), sums, GROUPS)
    assert cw.calibration_error(table_of(sums)).group_ece == {}


@pytest.mark.parametrize("group_by", GROUPINGS)
def test_calibration_errors_of_a_stream_equal_loops(group_by: str):
    logits, target = calibrated(150, 12, truth=0.6)
    sums, _, _ = ref.bins(logits, target, group_by=group_by)
    assert_errors(cw.calibration_error(collect(logits, target, group_by), SHOTS), sums, GROUPS)


@pytest.mark.parametrize("group_by", ["target", "prediction"])
def test_ece_equals_the_formula_over_samples(group_by: str):
    # Without bins of means: sum over bins of |sum of (right - confidence)| / N.
    logits, target = calibrated(2000, 5, truth=0.7)
    confidence, predicted = logits.softmax(1).max(1)
    gap = (predicted == target).double() - confidence
    number = (confidence * 20).ceil().long() - 1
    sums = torch.zeros(20, dtype=torch.float64).index_add_(0, number, gap)
    sizes = torch.bincount(number, minlength=20).clamp(min=1)
    error = cw.calibration_error(collect(logits, target, group_by))
    assert float(error.ece) == pytest.approx(float(sums.abs().sum() / 2000), rel=1e-9)
    assert float(error.mce) == pytest.approx(float((sums.abs() / sizes).max()), rel=1e-9)


def test_a_group_without_samples_has_no_error_and_no_curve():
    logits, target = calibrated(200, 12)
    target = target % 8  # none of the few
    table = collect(logits, target)
    error, curves = cw.calibration_error(table, SHOTS), cw.reliability(table, SHOTS)
    assert set(error.group_ece) == set(error.group_mce) == {"many", "medium"}
    assert set(curves) == {"all", "many", "medium"}
    assert error.class_ece.isnan().tolist() == [False] * 8 + [True] * 4
    assert error.class_mce.isnan().tolist() == [False] * 8 + [True] * 4


def test_nothing_seen_is_nan():
    error = cw.calibration_error(bin_table(empty_bins(12)), SHOTS)
    assert math.isnan(error.ece)
    assert math.isnan(error.mce)
    assert error.group_ece == {}


@pytest.mark.parametrize("seed", range(3))
def test_reliability_curves_equal_loops(seed: int):
    sums = random_table(seed)
    curves = cw.reliability(table_of(sums), SHOTS)
    assert list(curves) == ["all", *GROUPS]
    for name, members in {"all": list(range(12)), **GROUPS}.items():
        rows = ref.pooled(sums, members)
        curve = curves[name]
        assert curve.count.tolist() == [row[0] for row in rows]
        for at, values in ((1, curve.accuracy), (2, curve.confidence)):
            expected = [row[at] / row[0] if row[0] else math.nan for row in rows]
            assert values.tolist() == pytest.approx(expected, nan_ok=True)


# The released preset


def released_stream(epoch: int) -> tuple[Tensor, Tensor]:
    """Seven classes: sharp, flat (large slopes), barely and never predicted ones."""
    generator = torch.Generator().manual_seed(epoch)
    target = torch.randint(7, (900,), generator=generator)
    logits = torch.randn(900, 7, generator=generator, dtype=torch.float64)
    logits.scatter_add_(1, target.unsqueeze(1), torch.full((900, 1), 1.5, dtype=torch.float64))
    logits[:, 5] -= 3.1
    logits[:, 6] -= 20
    return logits * torch.rand(900, 1, generator=generator), target


@pytest.mark.parametrize("bound", [(0.05, 0.2), (0.1, 1.0), (0.3, 0.9)])
@pytest.mark.parametrize("star", [False, True])
def test_released_equals_the_published_estimator(star: bool, bound: tuple[float, float]):
    config = PRESETS["released"].replace(bound=bound)
    for epoch in range(3):
        logits, target = released_stream(epoch)
        expected = ref.released_slopes(logits, target, *bound)
        got = estimate(collect(logits, target, "prediction"), config, cw.shots([9] * 7), star=star)
        assert got.tolist() == pytest.approx(expected, rel=1e-9)
        assert got[6] == 1.0
        assert bool((got[:5] <= bound[1]).all())


def test_released_runs_the_mean_of_the_published_estimator():
    criterion = cw.Criterion("cla", [9] * 7, epochs=6, warmup=0, slopes="released")
    epochs = []
    for epoch in range(5):
        criterion.start_epoch(epoch)
        logits, target = released_stream(epoch)
        for rows in torch.arange(900).split(128):
            criterion(logits[rows].requires_grad_(), target[rows])
        epochs.append(ref.released_slopes(logits, target, 0.05, 0.2))
    criterion.start_epoch(5)
    assert criterion.kappa_plus.tolist() == pytest.approx(ref.running_mean(epochs), rel=1e-9)
    assert criterion.kappa_star.tolist() == [1.0] * 7  # fitted only in the phase that leans on it


def predictions(confidence: list[float], right: list[bool], classes: int) -> tuple[Tensor, Tensor]:
    """Samples predicted as class 0 with these confidences, the rest spread evenly."""
    p = torch.tensor(confidence, dtype=torch.float64)
    rest = ((1 - p) / (classes - 1)).unsqueeze(1).expand(-1, classes - 1)
    target = torch.tensor([0 if r else 1 for r in right])
    return torch.cat([p.unsqueeze(1), rest], 1).log(), target


def kappa_of(preset: str, logits: Tensor, target: Tensor, **parts: Any) -> Tensor:
    config = PRESETS[preset].replace(**parts)
    table = collect(logits, target, config.group_by)
    return estimate(table, config, cw.shots([9] * logits.shape[1]), star=False)


def test_calibrated_bins_have_slope_one_in_every_reading():  # check 7 of methods.md section 10
    confidence = [0.6] * 10 + [0.8] * 10
    right = [i < 6 for i in range(10)] + [i < 8 for i in range(10)]
    logits, target = predictions(confidence, right, 4)
    table = collect(logits, target, "prediction")
    assert float(cw.slopes(table)[0]) == pytest.approx(1.0)
    clamped = kappa_of("released", logits, target, bound=(0.1, 1.0))
    assert float(clamped[0]) == pytest.approx(1, rel=1e-5)
    assert float(kappa_of("released", logits, target, bound=None)[0]) == pytest.approx(1, rel=1e-5)


def test_twice_the_accuracy_has_slope_one_half_or_its_reciprocal():  # check 7
    confidence = [0.6] * 10 + [0.8] * 10
    right = [i < 3 for i in range(10)] + [i < 4 for i in range(10)]
    logits, target = predictions(confidence, right, 4)
    assert float(cw.slopes(collect(logits, target, "prediction"))[0]) == pytest.approx(0.5)
    assert float(kappa_of("released", logits, target, bound=None)[0]) == pytest.approx(2, rel=1e-5)
    assert float(kappa_of("released", logits, target)[0]) == 0.2


def test_fewer_than_ten_predictions_are_not_fitted():  # check 7
    logits, target = predictions([0.6, 0.8] * 4 + [0.6], [True, False, False] * 3, 4)
    table = collect(logits, target, "prediction")
    assert float(cw.slopes(table, fallback="one")[0]) == 1.0
    assert float(kappa_of("released", logits, target)[0]) == 1.0
    logits, target = predictions([0.6, 0.8] * 5, [True, False] * 5, 4)
    assert float(kappa_of("released", logits, target)[0]) == 0.2


def test_the_published_clamp():  # check 8
    # A slope of 5 and less ends on .2, classes that are not fitted on 1, and only all-correct flat
    # softmaxes on .05: two bins, nearly everything below confidence .05.
    for accuracy in (0.0, 0.3, 0.6, 1.0):
        right = [i < 10 * accuracy for i in range(10)] * 2
        logits, target = predictions([0.3] * 10 + [0.5] * 10, right, 4)
        assert kappa_of("released", logits, target).tolist() == [0.2, 1.0, 1.0, 1.0]
    logits, target = predictions([0.02] * 99 + [0.051], [True] * 100, 100)
    assert kappa_of("released", logits, target).tolist() == [0.05] + [1.0] * 99
    one_bin = predictions([0.02] * 100, [True] * 100, 100)
    assert kappa_of("released", *one_bin).tolist() == [1.0] * 100


# The stable preset


STABLE = PRESETS["stable"]


@pytest.mark.parametrize("star", [False, True])
def test_stable_stays_within_its_bound(star: bool):
    assert STABLE.bound is not None
    low, high = STABLE.bound
    for seed in range(10):
        kappa = estimate(table_of(random_table(seed)), STABLE, SHOTS, star=star)
        assert bool(((kappa >= low) & (kappa <= high)).all())


def test_stable_centres_kappa_star_only():
    config = STABLE.replace(bound=None)
    for seed in range(5):
        table = table_of(random_table(seed))
        star = estimate(table, config, SHOTS, star=True)
        assert float(star.log().mean()) == pytest.approx(0, abs=1e-12)
        plus = estimate(table, config, SHOTS, star=False)
        assert abs(float(plus.log().mean())) > 1e-3
        loose = estimate(table, config.replace(center=False), SHOTS, star=True)
        torch.testing.assert_close(star / star[0], loose / loose[0])


def test_centring_leaves_a_geometric_mean_of_one_with_classes_that_are_not_fitted():
    # They get 1 in the end, so the mean that the others are divided by must be the others' own.
    config = SlopeConfig(center=True, fallback="one")
    kappa = estimate(table_of(random_table()), config, SHOTS, star=True)
    assert float(kappa[4]) == float(kappa[5]) == 1.0
    assert float(kappa.log().mean()) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("star", [False, True])
@pytest.mark.parametrize("fallback", FALLBACKS)
def test_shrinkage_is_by_samples_in_log_space(fallback: str, star: bool):
    on = "logit" if star else "confidence"
    config = STABLE.replace(bound=None, center=False, fallback=fallback, shrink=50.0)
    for seed in range(3):
        sums = random_table(seed)
        own = ref.slopes(sums, groups=GROUPS, on=on, fallback=fallback)
        pool = {"shots": "shots", "all": "all", "one": None}[fallback]
        towards = ref.slopes(sums, groups=GROUPS, on=on, pool=pool, fallback="all")
        expected = []
        for c, (k, group) in enumerate(zip(own, towards, strict=True)):
            n = sum(sums["count"][c])
            share = n / (n + 50)
            pull = math.log(group) if pool else 0.0
            expected.append(math.exp(share * math.log(k) + (1 - share) * pull))
        got = estimate(table_of(sums), config, SHOTS, star=star)
        assert got.tolist() == pytest.approx(expected, rel=1e-9)


def test_more_shrinkage_is_nearer_to_the_group():
    table = table_of(random_table(2))
    group = cw.slopes(table, pool="shots", shots=SHOTS, fallback="shots")
    distance = [
        (estimate(table, STABLE.replace(bound=None, shrink=n0), SHOTS, star=False) / group)
        .log()
        .abs()
        for n0 in (0.0, 1.0, 50.0, 1e4, 1e9)
    ]
    for less, more in itertools.pairwise(distance):
        assert bool((more <= less + 1e-12).all())
    assert float(distance[0].max()) > 0.01
    assert float(distance[-1].max()) < 1e-6


def test_stable_leaves_a_calibrated_stream_alone():
    table = collect(*calibrated(40_000, 4), STABLE.group_by)
    for star in (False, True):
        kappa = estimate(table, STABLE, cw.shots([500, 200, 50, 5]), star=star)
        assert kappa.tolist() == pytest.approx([1.0] * 4, abs=0.03)


@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.parametrize("star", [False, True])
def test_every_preset_survives_an_empty_epoch(preset: str, star: bool):
    table = bin_table(empty_bins(12))
    assert estimate(table, PRESETS[preset], SHOTS, star=star).tolist() == [1.0] * 12


@pytest.mark.parametrize("star", [False, True])
def test_paper_is_the_slope_itself(star: bool):
    sums = random_table(4)
    got = estimate(table_of(sums), PRESETS["paper"], SHOTS, star=star)
    expected = ref.slopes(sums, groups=GROUPS, on="logit" if star else "confidence")
    assert got.tolist() == pytest.approx(expected, rel=1e-9)


# Configuration


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"group_by": "class"}, "group_by='class'"),
        ({"logits": "softmax"}, "logits='softmax'"),
        ({"star_on": "logits"}, "did you mean 'logit'"),
        ({"method": "ridge"}, "method='ridge'"),
        ({"pool": "many"}, "pool='many'"),
        ({"fallback": None}, "fallback=None"),
        ({"min_count": 0}, "min_count=0 must be at least 1"),
        ({"min_count": 1.5}, "min_count=1.5 must be a whole number"),
        ({"num_bins": 1}, "num_bins=1"),
        ({"shrink": -1}, "shrink=-1"),
        ({"shrink": math.inf}, "shrink=inf"),
        ({"momentum": 1.0}, "momentum=1.0"),
        ({"bound": (0, 1)}, r"bound\[0\]=0"),
        ({"bound": (2.0, 1.0)}, r"bound\[1\]=1.0"),
        ({"bound": 0.5}, "must be .low, high. or None"),
        ({"bound": (1, 2, 3)}, "must be .low, high. or None"),
    ],
)
def test_wrong_parts_are_refused(parts: dict[str, Any], message: str):
    with pytest.raises(cw.ArgumentError, match=message):
        SlopeConfig(**parts)
    with pytest.raises(cw.ArgumentError, match=message):
        STABLE.replace(**parts)


def test_replace_exchanges_named_parts():
    changed = STABLE.replace(shrink=5, bound=[0.5, 2])
    assert (changed.shrink, changed.bound, changed.group_by) == (5, (0.5, 2.0), STABLE.group_by)
    assert STABLE.shrink == 50.0
    assert changed.replace(shrink=50.0, bound=STABLE.bound) == STABLE
    with pytest.raises(cw.UnknownNameError, match="did you mean 'shrink'"):
        STABLE.replace(shrinkage=5)


def test_settings_are_names_estimators_or_none():
    assert slope_config("released") is PRESETS["released"]
    assert slope_config(STABLE) is STABLE
    assert slope_config(None) is None
    with pytest.raises(cw.UnknownNameError, match="did you mean 'stable'"):
        slope_config("stabel")
    with pytest.raises(cw.UnknownNameError):
        slope_config(True)  # type: ignore[arg-type]


def test_presets_are_what_the_design_says():
    paper, released, stable = PRESETS["paper"], PRESETS["released"], PRESETS["stable"]
    assert (paper.group_by, paper.logits, paper.star_on) == ("target", "raw", "logit")
    assert (paper.fallback, paper.shrink, paper.bound, paper.momentum) == ("all", 0, None, 0)
    assert (released.group_by, released.star_on, released.reciprocal) == (
        "prediction",
        "confidence",
        True,
    )
    assert (released.fallback, released.bound, released.momentum) == ("one", (0.05, 0.2), 0.9)
    assert (stable.logits, stable.fallback, stable.center) == ("adjusted", "shots", True)
    assert {config.num_bins for config in PRESETS.values()} == {20}
    assert {config.min_count for config in PRESETS.values()} == {10}
