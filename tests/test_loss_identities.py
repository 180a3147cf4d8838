"""What each loss reduces to, and what only one of them must do."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_rows import (
    CLASSES,
    COUNTS,
    ROWS,
    SAMPLES,
    Batch,
    Row,
    assert_close,
    every_kind,
    make_batch,
    one_row_each,
    weighted_ldam,
)
from reference import losses as reference
from torch import Tensor

import classwise as cw
from classwise import terms
from classwise.errors import ArgumentError
from classwise.losses.ala import ala_terms

# --------------------------------------------------------------------------- against torch


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(), (3,), (3, 2)], ids=str)
def test_neutral_vs_is_the_cross_entropy_of_torch(
    weighted: bool, smoothing: float, reduction: str, shape: tuple[int, ...]
) -> None:
    logits = torch.randn(5, CLASSES, *shape, dtype=torch.float64, requires_grad=True)
    target = torch.randint(CLASSES, (5, *shape))
    target[0] = -100
    weight = terms.power_weights(COUNTS, nu=0.5) if weighted else torch.ones(CLASSES).double()
    common: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    loss = cw.vs_loss(logits, target, terms.ce(COUNTS).replace(alpha=weight), **common)
    expected = F.cross_entropy(logits, target, weight=weight, **common)
    assert_close(loss, expected, 1e-13)
    (actual,) = torch.autograd.grad(loss.square().sum(), logits)
    (wanted,) = torch.autograd.grad(expected.square().sum(), logits)
    assert_close(actual, wanted, 1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_probability_targets_are_those_of_torch_in_a_mean_over_the_batch(
    smoothing: float, reduction: str
) -> None:
    batch, weight = make_batch("soft"), terms.power_weights(COUNTS, nu=0.5)
    common: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    made = terms.ce(COUNTS).replace(alpha=weight)
    loss = cw.vs_loss(batch.logits, batch.target, made, normalize="batch", **common)
    expected = F.cross_entropy(batch.logits, batch.target, weight=weight, **common)
    assert_close(loss, expected, 1e-13)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_focal_without_focus_is_the_cross_entropy_of_torch(weighted: bool, reduction: str) -> None:
    batch = make_batch("ignored")
    weight = terms.power_weights(COUNTS, nu=0.5) if weighted else None
    loss = cw.focal_loss(batch.logits, batch.target, gamma=0.0, weight=weight, reduction=reduction)
    expected = F.cross_entropy(batch.logits, batch.target, weight=weight, reduction=reduction)
    assert_close(loss, expected, 1e-13)


# --------------------------------------------------------------------------- identities


@every_kind
@pytest.mark.parametrize(
    "make",
    [
        lambda counts: terms.la(counts, tau=1.0),
        lambda counts: terms.cdt(counts, gamma=0.5),
        lambda counts: terms.vs(counts, tau=0.7, gamma=0.5),
        lambda counts: terms.cla(counts, tau=0.7),
        terms.balanced,
        terms.class_balanced,
    ],
    ids=["la", "cdt", "vs", "cla", "balanced", "class_balanced"],
)
def test_equal_counts_are_cross_entropy(make: Callable[[list[int]], cw.Terms], kind: str) -> None:
    counts, batch = [50] * CLASSES, make_batch(kind)
    loss = cw.vs_loss(batch.logits, batch.target, make(counts))
    expected = cw.vs_loss(batch.logits, batch.target, terms.ce(counts))
    assert_close(loss, expected, 1e-13)
    assert_close(batch.gradients(loss)[0], batch.gradients(expected)[0], 1e-12)


@every_kind
def test_ldam_without_margin_is_cross_entropy_of_scaled_logits(kind: str) -> None:
    batch = make_batch(kind)
    plain = cw.vs_loss(batch.logits, batch.target, terms.ldam(COUNTS, max_margin=0.0, scale=1.0))
    assert_close(plain, cw.vs_loss(batch.logits, batch.target, terms.ce(COUNTS)), 1e-14)
    scaled = cw.vs_loss(batch.logits, batch.target, terms.ldam(COUNTS, max_margin=0.0))
    assert_close(
        scaled, cw.vs_loss(30 * batch.logits.detach(), batch.target, terms.ce(COUNTS)), 1e-13
    )


def test_logit_adjustment_is_the_balanced_softmax() -> None:
    batch = make_batch()
    loss = cw.vs_loss(batch.logits, batch.target, terms.la(COUNTS))
    expected = F.cross_entropy(batch.logits + torch.tensor(COUNTS).log(), batch.target)
    assert_close(loss, expected, 1e-7)
    assert_close(batch.gradients(loss)[0], batch.gradients(expected)[0], 1e-6)


@every_kind
def test_a_constant_on_every_delta_changes_nothing(kind: str) -> None:
    batch, made = make_batch(kind), terms.vs(COUNTS, tau=1.0, gamma=0.1)
    loss = cw.vs_loss(batch.logits, batch.target, made)
    shifted = cw.vs_loss(batch.logits, batch.target, made.replace(delta=made.delta + 3))
    assert_close(shifted, loss, 1e-13)


@every_kind
def test_a_factor_on_every_slope_changes_nothing_in_cla_and_is_a_temperature_in_mla(
    kind: str,
) -> None:
    batch, slopes = make_batch(kind), torch.tensor([0.4, 0.9, 1.3, 2.0]).double()
    logits, target = batch.logits, batch.target
    one, seven = (terms.cla(COUNTS, tau=0.9, slopes=k * slopes) for k in (1, 7))
    assert_close(cw.vs_loss(logits, target, seven), cw.vs_loss(logits, target, one), 1e-13)
    one, seven = (terms.mla(COUNTS, gamma=0.1, slopes=k * slopes) for k in (1, 7))
    assert_close(cw.vs_loss(7 * logits, target, seven), cw.vs_loss(logits, target, one), 1e-13)


@every_kind
def test_scaled_weights_leave_a_weighted_mean_alone(kind: str) -> None:
    batch = make_batch(kind)

    def loss(factor: float, normalize: str) -> Tensor:
        made = weighted_ldam(COUNTS)
        made = made.replace(alpha=factor * made.alpha)
        return cw.vs_loss(batch.logits, batch.target, made, normalize=normalize)

    assert_close(loss(5.0, "weights"), loss(1.0, "weights"), 1e-13)
    assert_close(loss(5.0, "batch"), 5 * loss(1.0, "batch"), 1e-13)


def test_a_batch_of_weightless_classes_gives_zero() -> None:
    batch = make_batch()
    made = terms.ce(COUNTS).replace(alpha=[0, 1, 1, 1])
    loss = cw.vs_loss(batch.logits, torch.zeros(SAMPLES, dtype=torch.int64), made)
    assert loss.item() == 0
    assert bool((batch.gradients(loss)[0] == 0).all())


@every_kind
def test_lade_without_regulariser_is_logit_adjustment(kind: str) -> None:
    batch = make_batch(kind)
    loss = cw.lade_loss(batch.logits, batch.target, COUNTS, weight=0.0)
    expected = cw.vs_loss(batch.logits, batch.target, terms.la(COUNTS, tau=1.0))
    assert_close(loss, expected, 1e-13)
    assert_close(batch.gradients(loss)[0], batch.gradients(expected)[0], 1e-12)


def test_lade_treats_an_empty_class_as_one_sample() -> None:
    batch = make_batch()
    loss = cw.lade_loss(batch.logits, batch.target, [500, 0, 19, 0], allow_empty=True)
    assert loss.item() == cw.lade_loss(batch.logits, batch.target, [500, 1, 19, 1]).item()


def test_ala_treats_an_empty_class_as_one_sample() -> None:
    batch = make_batch()
    loss = cw.ala_loss(batch.logits, batch.target, [500, 0, 19, 0], allow_empty=True)
    assert loss.item() == cw.ala_loss(batch.logits, batch.target, [500, 1, 19, 1]).item()


def test_quantity_factors_of_ala_for_cifar_100_lt() -> None:
    assert ala_terms([500, 5], scale=1.0).margin.tolist() == pytest.approx([0.217, 1.443], abs=5e-4)


def test_influence_falls_with_features_and_errors() -> None:
    features = torch.tensor([[1.0, -1.0], [3.0, -3.0]])
    logits, target = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 0])
    small, large = cw.influence_balanced_loss(logits, target, features, reduction="none").tolist()
    assert small == pytest.approx(3 * large, rel=2e-3)


def test_detached_influence_factor_scales_the_gradient_of_cross_entropy() -> None:
    batch = make_batch(samples=1)
    loss = cw.influence_balanced_loss(*ROWS["influence"].inputs(batch), detach=True)
    entropy = F.cross_entropy(batch.logits, batch.target)
    factor = loss.detach() / entropy.detach()
    gradient, of_features = batch.gradients(loss)
    assert_close(gradient, factor * batch.gradients(entropy)[0], 1e-12)
    assert bool((of_features == 0).all())


# --------------------------------------------------------------------------- numerics


@pytest.mark.parametrize("gamma", [0.0, 0.05, 0.5, 0.9, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_focal_gradient_is_finite_where_the_answer_is_certain(
    gamma: float, dtype: torch.dtype
) -> None:
    logits = torch.tensor([[1e3, 0, 0], [200, 0, 0], [30, 0, 0], [0, 0, 0]], dtype=dtype)
    logits.requires_grad_()
    loss = cw.focal_loss(logits, torch.zeros(4, dtype=torch.int64), gamma=gamma, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, logits)
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(gradient).all())
    assert bool((gradient[0] == 0).all())


@pytest.mark.parametrize("normalize", ["weights", "batch"])
def test_no_weights_are_weights_of_one(normalize: str) -> None:
    batch = make_batch("soft", dtype=torch.bfloat16)  # rounded, the rows no longer sum to 1
    ones = [1.0] * CLASSES
    for row in (ROWS["focal"], ROWS["influence-detached"]):
        without = row.call(batch, normalize=normalize)
        assert_close(row.call(batch, normalize=normalize, weight=ones), without, 1e-6)


def test_focal_weights_do_not_enter_the_focus() -> None:
    batch, weight = make_batch(), torch.tensor([1.0, 2, 3, 4]).double()
    plain = cw.focal_loss(batch.logits, batch.target, reduction="none")
    loss = cw.focal_loss(batch.logits, batch.target, weight=weight, reduction="none")
    assert_close(loss, weight[batch.target] * plain, 1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("others", [-1.0, 0.0, 0.5, 0.9, 1.0], ids=str)
def test_margins_with_soft_targets_are_exact_where_an_answer_is_certain(
    dtype: torch.dtype, others: float
) -> None:
    cosines = torch.full((CLASSES, CLASSES), others, dtype=torch.float64)
    cosines.fill_diagonal_(1.0)
    made = terms.ldam(COUNTS, max_margin=0.5, scale=30.0)
    expected_terms = reference.ldam(COUNTS, 0.5, 30.0)
    target = torch.eye(CLASSES, dtype=torch.float64).roll(1, 0) * 0.2 + 0.8 * torch.eye(CLASSES)
    for q in (torch.eye(CLASSES), target):
        logits = cosines.to(dtype).requires_grad_()
        exact = logits.detach().double().requires_grad_()
        loss = cw.vs_loss(logits, q.to(dtype), made, reduction="none")
        expected = reference.vs_loss(exact, q.to(dtype), expected_terms, reduction="none")
        # Rounding a logit of 30 is what remains; no digit of 1 - p may be lost on top.
        rounding = torch.finfo(dtype).eps
        torch.testing.assert_close(loss.double(), expected, rtol=100 * rounding, atol=0)
        (actual,) = torch.autograd.grad(loss.sum(), logits)
        (wanted,) = torch.autograd.grad(expected.sum(), exact)
        torch.testing.assert_close(
            actual.double(), wanted, rtol=100 * rounding, atol=10 * 30 * rounding
        )


@pytest.mark.parametrize("name", ["ldam", "ala"])
@pytest.mark.parametrize("kind", ["index", "soft"])
def test_large_margins_lose_no_digits_in_float64(name: str, kind: str) -> None:
    row = ROWS[name]
    batch = make_batch("index", samples=12)
    batch.logits = (0.1 * batch.logits.detach() + 0.9).requires_grad_()
    with torch.no_grad():
        batch.logits[torch.arange(12), batch.target] = -0.5
    if kind == "soft":
        batch.target = F.one_hot(batch.target, CLASSES).double()
    loss = row.call(batch, reduction="none")
    expected = row.expected(batch, reduction="none")
    torch.testing.assert_close(loss, expected, rtol=1e-13, atol=0)


def test_a_soft_target_keeps_its_gradient_path() -> None:
    logits = torch.randn(3, CLASSES)
    q = torch.rand(3, CLASSES, requires_grad=True)
    cw.vs_loss(logits, q.softmax(1), terms.ldam(COUNTS)).backward()
    assert q.grad is not None
    assert bool(torch.isfinite(q.grad).all())


# --------------------------------------------------------------------------- any input


def vectors(low: float, high: float) -> st.SearchStrategy[list[float]]:
    numbers = st.floats(low, high).filter(lambda x: x == 0 or abs(x) > 1e-3)
    return st.lists(numbers, min_size=3, max_size=3)


@settings(max_examples=40, deadline=None)
@given(
    alpha=vectors(0, 10),
    beta=vectors(0.01, 5),
    delta=vectors(-20, 20),
    margin=vectors(-5, 20),
    logits=st.lists(vectors(-50, 50), min_size=1, max_size=3),
    labels=st.lists(st.integers(-1, 2), min_size=3, max_size=3),
    normalize=st.sampled_from(["weights", "batch"]),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_any_terms_equal_the_oracle(
    alpha: list[float],
    beta: list[float],
    delta: list[float],
    margin: list[float],
    logits: list[list[float]],
    labels: list[int],
    normalize: str,
    smoothing: float,
) -> None:
    fields = {"alpha": alpha, "beta": beta, "delta": delta, "margin": margin}
    made = terms.ce([1, 1, 1]).replace(**fields)
    z = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    y = torch.tensor(labels[: len(logits)])
    options: dict[str, Any] = {
        "normalize": normalize,
        "label_smoothing": smoothing,
        "ignore_index": -1,
    }
    loss, expected = cw.vs_loss(z, y, made, **options), reference.vs_loss(z, y, fields, **options)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    (actual,) = torch.autograd.grad(loss, z)
    (wanted,) = torch.autograd.grad(expected, z)
    torch.testing.assert_close(actual, wanted, rtol=1e-9, atol=1e-9)


@one_row_each
@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(1, 10**6), min_size=CLASSES, max_size=CLASSES),
    labels=st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=3),
    seed=st.integers(0, 2**16),
)
def test_any_counts_and_targets_equal_the_oracle(
    row: Row, counts: list[int], labels: list[int], seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(labels), CLASSES)
    logits = torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1
    features = torch.rand(shape, generator=generator, dtype=torch.float64)
    batch = Batch(logits, torch.tensor(labels), features)
    assert_close(row.call(batch, counts), row.expected(batch, counts), 1e-11)


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 10**6), min_size=2, max_size=6),
    tau=st.floats(0, 3),
    gamma=st.floats(0, 1),
    seed=st.integers(0, 2**16),
)
def test_any_vs_loss_is_never_negative_and_pulls_towards_the_target(
    counts: list[int], tau: float, gamma: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, len(counts), generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    target = torch.randint(len(counts), (5,), generator=generator)
    made = terms.vs(counts, tau=tau, gamma=gamma)
    loss = cw.vs_loss(logits, target, made, reduction="none")
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    of_target = F.one_hot(target, len(counts)).bool()
    assert bool((loss >= 0).all())
    assert bool((gradient[of_target] <= 0).all())
    assert bool((gradient[~of_target] >= 0).all())
    # beta cancels: the pulls of all classes balance once it is divided out.
    assert_close((gradient / made.beta).sum(1), torch.zeros(5), 1e-12)


# --------------------------------------------------------------------------- wrong arguments

NOTHING: Any = None
LISTS: Any = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
LOGITS, LABELS = torch.zeros(2, 3), torch.tensor([0, 1])
THREE = terms.ce([9, 3, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cw.vs_loss(LOGITS, LABELS, THREE, reduction="avg"), "reduction='avg' is unknown"),
        (
            lambda: cw.vs_loss(LOGITS, LABELS, THREE, normalize="weight"),
            "normalize='weight' is unknown, did you mean 'weights'",
        ),
        (lambda: cw.VSLoss(THREE, reduction="avg"), "reduction='avg' is unknown"),
        (lambda: cw.vs_loss(LOGITS, LABELS, THREE, label_smoothing=1.1), "label_smoothing=1.1"),
        (lambda: cw.VSLoss(THREE, label_smoothing=-0.1), "label_smoothing=-0.1"),
        (lambda: cw.vs_loss(LOGITS, LABELS, terms.ce([1, 1])), "3 classes .* where 2 are expected"),
        (lambda: cw.vs_loss(LOGITS[0], LABELS, THREE), r"must have shape \(N, C\)"),
        (lambda: cw.vs_loss(LOGITS.long(), LABELS, THREE), "logits must be floating point"),
        (lambda: cw.vs_loss(LISTS, LABELS, THREE), "logits must be a torch.Tensor"),
        (lambda: cw.vs_loss(LOGITS, LISTS, THREE), "target must be a torch.Tensor, got list"),
        (lambda: cw.vs_loss(LOGITS, LABELS[:1], THREE), r"target must have shape \(2,\)"),
        (lambda: cw.vs_loss(LOGITS, LABELS + 2, THREE), "target holds 3, legal are 0 to 2"),
        (lambda: cw.vs_loss(LOGITS, LABELS - 1, THREE), "target holds -1, legal are 0 to 2"),
        (lambda: cw.vs_loss(LOGITS, LABELS.double(), THREE), "class indices must be int64"),
        (lambda: cw.vs_loss(LOGITS, LABELS.bool(), THREE), "got torch.bool"),
        (
            lambda: cw.vs_loss(LOGITS, F.one_hot(LABELS, 3), THREE),
            "cast a one-hot target to floating point",
        ),
        (lambda: cw.vs_loss(LOGITS, LABELS, NOTHING), "terms must be"),
        (lambda: cw.VSLoss(NOTHING), "terms must be a classwise Terms, got NoneType"),
        (lambda: cw.vs_loss(LOGITS, LABELS, THREE, normalizer=-2.0), "normalizer=-2.0"),
        (lambda: cw.vs_loss(LOGITS, LABELS, THREE, normalizer=math.nan), "normalizer=nan"),
        (lambda: cw.focal_loss(LOGITS, LABELS, gamma=-1), "gamma=-1 is out of range"),
        (lambda: cw.FocalLoss(gamma=-1), "gamma=-1 is out of range"),
        (lambda: cw.focal_loss(LOGITS, LABELS, weight=[1, 2]), "weight has 2 entries .* 3 classes"),
        (lambda: cw.FocalLoss(weight=[1, -2]), r"weight\[1\]=-2.0 must be >= 0"),
        (lambda: cw.FocalLoss(weight=[1, 2])(LOGITS, LABELS), "weight has 2 entries"),
        (
            lambda: cw.influence_balanced_loss(LOGITS, LABELS, torch.zeros(3, 2)),
            r"features must be \(N, D\)",
        ),
        (
            lambda: cw.influence_balanced_loss(LOGITS, LABELS, NOTHING),
            "needs the features that the last layer sees",
        ),
        (lambda: cw.InfluenceBalancedLoss(strength=0), "strength=0 is out of range"),
        (lambda: cw.InfluenceBalancedLoss(eps=0), "eps=0 is out of range"),
        (lambda: cw.lade_loss(LOGITS, LABELS, [9, 3, 1], weight=-1), "weight=-1 is out of range"),
        (lambda: cw.LADELoss([9, 3, 1], remine=-1), "remine=-1 is out of range"),
        (lambda: cw.lade_loss(LOGITS, LABELS, [9, 3]), "3 classes .* where 2 are expected"),
        (lambda: cw.ala_loss(LOGITS, LABELS, [9, 0, 1]), "without samples"),
        (lambda: cw.ALALoss([9, 3, 1], scale=0), "scale=0 is out of range"),
        (lambda: cw.ala_loss(LOGITS, LABELS, [9, 3, 1], weight=[1]), "1 entries .* 3 classes"),
    ],
)
def test_wrong_argument_is_named_with_what_is_legal(
    call: Callable[[], object], message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_a_narrow_target_out_of_range_is_refused() -> None:
    # 156 is what -100 becomes as uint8.
    with pytest.raises(ArgumentError, match="target holds 156"):
        cw.vs_loss(LOGITS, torch.tensor([0, 156], dtype=torch.uint8), THREE)


def test_a_normalizer_that_is_not_a_number_shows_in_the_loss() -> None:
    loss = cw.vs_loss(LOGITS, LABELS, THREE, normalizer=torch.tensor(math.nan))
    assert bool(loss.isnan())
