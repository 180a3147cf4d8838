import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import losses as reference
from torch import Tensor, nn

import classwise as cw
from classwise import terms
from classwise.errors import ArgumentError

COUNTS = [500, 60, 19, 5]
CLASSES, DIMENSIONS, SAMPLES = len(COUNTS), 5, 9

TERMS: dict[str, cw.Terms] = {
    "ce": terms.ce(COUNTS),
    "la": terms.la(COUNTS),
    "vs": terms.vs(COUNTS, tau=1.25, gamma=0.15),
    "balanced": terms.balanced(COUNTS),
    "ldam": terms.ldam(COUNTS, scale=4.0).replace(alpha=terms.power_weights(COUNTS, nu=0.5)),
}
every_term = pytest.mark.parametrize("made", TERMS.values(), ids=TERMS)
# Without and with a margin.
two_terms = pytest.mark.parametrize("made", [TERMS["vs"], TERMS["ldam"]], ids=["vs", "ldam"])
every_kind = pytest.mark.parametrize("kind", ["ignored", "soft"])
both_biases = pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "no-bias"])


class Head:
    """Features and a linear head, all of which want gradients, and targets."""

    def __init__(
        self,
        kind: str = "ignored",
        *,
        with_bias: bool = True,
        dtype: torch.dtype = torch.float32,
        samples: int = SAMPLES,
    ) -> None:
        def leaf(*shape: int) -> Tensor:
            return torch.randn(*shape).to(dtype).requires_grad_()

        self.features = leaf(samples, DIMENSIONS)
        self.weight = leaf(CLASSES, DIMENSIONS)
        self.bias = leaf(CLASSES) if with_bias else None
        self.target = torch.arange(samples) % CLASSES
        if kind == "ignored":
            self.target[::3] = -100
        if kind == "all ignored":
            self.target[:] = -100
        if kind == "soft":
            self.target = torch.randn(samples, CLASSES).softmax(1).to(dtype)

    def loss(self, made: cw.Terms, **options: Any) -> Tensor:
        return cw.linear_vs_loss(
            self.features, self.weight, self.bias, self.target, made, **options
        )

    def dense(self, made: cw.Terms, **options: Any) -> Tensor:
        """The same from logits in float64."""
        bias = None if self.bias is None else self.bias.double()
        logits = F.linear(self.features.double(), self.weight.double(), bias)
        return cw.vs_loss(logits, self.target, made, **options)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        leaves = [x for x in (self.features, self.weight, self.bias) if x is not None]
        generator = torch.Generator().manual_seed(1)
        mix = torch.rand(loss.shape, generator=generator, dtype=torch.float64) if loss.ndim else 1
        return list(torch.autograd.grad((loss.double() * mix).sum(), leaves))

    def assert_equal_to_dense(
        self, made: cw.Terms, rtol: float = 1e-5, of_gradients: float = 1e-5, **options: Any
    ) -> None:
        dense_options = {key: value for key, value in options.items() if key != "chunk"}
        loss, expected = self.loss(made, **options), self.dense(made, **dense_options)
        assert loss.shape == expected.shape
        assert_close(loss, expected, rtol)
        for actual, wanted in zip(self.gradients(loss), self.gradients(expected), strict=True):
            assert_close(actual, wanted, of_gradients)


def assert_close(actual: Tensor, expected: Tensor, rtol: float = 1e-5) -> None:
    """Relative to the largest entry."""
    actual, expected = actual.detach().double(), expected.detach().double()
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    torch.testing.assert_close(actual, expected, rtol=0, atol=rtol * scale + 1e-12)


# --------------------------------------------------------------------------- linear_vs_loss


@every_term
@every_kind
@both_biases
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_equals_the_dense_loss(
    made: cw.Terms, kind: str, with_bias: bool, smoothing: float
) -> None:
    Head(kind, with_bias=with_bias).assert_equal_to_dense(made, label_smoothing=smoothing)


@every_term
@every_kind
@pytest.mark.parametrize(
    ("reduction", "normalize"),
    [("mean", "weights"), ("mean", "batch"), ("sum", "weights"), ("none", "batch")],
)
def test_reductions_equal_those_of_the_dense_loss(
    made: cw.Terms, kind: str, reduction: str, normalize: str
) -> None:
    Head(kind).assert_equal_to_dense(made, reduction=reduction, normalize=normalize)


@every_kind
@two_terms
@pytest.mark.parametrize("chunk", [1, 2, SAMPLES, 1000, None])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_chunk_size_does_not_matter(
    made: cw.Terms, kind: str, chunk: int | None, reduction: str
) -> None:
    Head(kind).assert_equal_to_dense(made, chunk=chunk, reduction=reduction)


@every_kind
@two_terms
def test_more_samples_than_one_chunk_by_default(made: cw.Terms, kind: str) -> None:
    Head(kind, samples=200).assert_equal_to_dense(made)


@every_term
def test_equals_the_oracle(made: cw.Terms) -> None:
    head = Head("soft", dtype=torch.float64)
    fields = {name: getattr(made, name).tolist() for name in ("alpha", "beta", "delta", "margin")}
    logits = F.linear(head.features, head.weight, head.bias)
    assert_close(head.loss(made), reference.vs_loss(logits, head.target, fields), 1e-9)


@every_kind
@two_terms
def test_gradcheck(made: cw.Terms, kind: str) -> None:
    head = Head(kind, dtype=torch.float64)
    assert head.bias is not None

    def loss(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return cw.linear_vs_loss(
            features, weight, bias, head.target, made, reduction="none", chunk=2
        )

    assert torch.autograd.gradcheck(loss, (head.features, head.weight, head.bias))


@every_kind
@every_term
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(
    made: cw.Terms, kind: str, dtype: torch.dtype
) -> None:
    head = Head(kind, dtype=dtype)
    assert head.loss(made).dtype == torch.float32
    assert all(g.dtype == dtype for g in head.gradients(head.loss(made)))
    # The gradients come back rounded to half; the loss does not.
    head.assert_equal_to_dense(made, of_gradients=torch.finfo(dtype).eps)


@every_term
def test_half_features_beside_a_full_head(made: cw.Terms) -> None:
    head = Head()
    head.features = head.features.detach().bfloat16().requires_grad_()
    loss, expected = head.loss(made), head.dense(made)
    assert_close(loss, expected)
    of_features, *of_head = head.gradients(loss)
    wanted_of_features, *wanted_of_head = head.gradients(expected)
    assert_close(of_features, wanted_of_features, torch.finfo(torch.bfloat16).eps)
    for actual, wanted in zip(of_head, wanted_of_head, strict=True):
        assert_close(actual, wanted)


@every_kind
@every_term
def test_float64_stays_float64(made: cw.Terms, kind: str) -> None:
    head = Head(kind, dtype=torch.float64)
    assert head.loss(made).dtype == torch.float64
    head.assert_equal_to_dense(made, rtol=1e-9, of_gradients=1e-9)


@every_kind
@every_term
def test_the_widest_part_decides_the_precision(made: cw.Terms, kind: str) -> None:
    head = Head(kind, dtype=torch.float64)
    head.features = head.features.detach().float().requires_grad_()
    loss = head.loss(made)
    assert loss.dtype == torch.float64
    (of_features,) = torch.autograd.grad(loss, head.features, retain_graph=True)
    assert of_features.dtype == torch.float32
    logits = F.linear(head.features.double(), head.weight, head.bias)
    assert_close(loss, cw.vs_loss(logits, head.target, made), 1e-12)


@every_kind
@every_term
def test_autocast_changes_nothing(made: cw.Terms, kind: str) -> None:
    head = Head(kind)
    plain = head.loss(made)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = head.loss(made)
    assert loss.dtype == torch.float32
    assert loss.item() == plain.item()
    for actual, wanted in zip(head.gradients(loss), head.gradients(plain), strict=True):
        assert_close(actual, wanted, 1e-7)


@every_term
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_batch_of_ignored_samples_gives_zero_with_a_gradient_path(
    made: cw.Terms, reduction: str
) -> None:
    head = Head("all ignored")
    loss = head.loss(made, reduction=reduction)
    assert bool((loss == 0).all())
    assert all(bool((gradient == 0).all()) for gradient in head.gradients(loss))


@every_term
def test_an_empty_batch_gives_zero(made: cw.Terms) -> None:
    loss = Head(samples=0).loss(made)
    assert loss.item() == 0
    assert loss.requires_grad


@every_term
@pytest.mark.parametrize("ignore_index", [-1, 255, 2])
def test_ignored_samples_get_no_gradient(made: cw.Terms, ignore_index: int) -> None:
    head = Head("index")
    ignored = head.target == 2
    head.target[ignored] = ignore_index
    head.assert_equal_to_dense(made, ignore_index=ignore_index)
    of_features, *_ = head.gradients(head.loss(made, ignore_index=ignore_index))
    assert bool((of_features[ignored] == 0).all())
    assert bool((of_features[~ignored] != 0).any())


@every_kind
@two_terms
def test_accumulated_micro_batches_equal_the_big_batch(made: cw.Terms, kind: str) -> None:
    head = Head(kind)
    mass = (head.dense(made, reduction="sum") / head.dense(made)).detach()
    loss = torch.zeros(())
    for cut in (slice(0, 1), slice(1, 4), slice(4, SAMPLES)):
        loss = loss + cw.linear_vs_loss(
            head.features[cut], head.weight, head.bias, head.target[cut], made, normalizer=mass
        )
    assert_close(loss, head.dense(made))
    for actual, wanted in zip(head.gradients(loss), head.gradients(head.dense(made)), strict=True):
        assert_close(actual, wanted)


@every_term
def test_memory_layout_does_not_matter(made: cw.Terms) -> None:
    head = Head()
    expected = head.loss(made)
    head.features = head.features.detach().T.contiguous().T.requires_grad_()
    head.weight = head.weight.detach().T.contiguous().T.requires_grad_()
    head.target = torch.stack([head.target, head.target], dim=1)[:, 0]
    assert not head.features.is_contiguous()
    assert not head.weight.is_contiguous()
    assert_close(head.loss(made), expected, 1e-6)


@two_terms
@every_kind
def test_backward_can_be_repeated(made: cw.Terms, kind: str) -> None:
    head = Head(kind)
    loss = head.loss(made)
    first = torch.autograd.grad(loss, head.features, retain_graph=True)
    second = torch.autograd.grad(loss, head.features)
    assert first[0].tolist() == second[0].tolist()


@two_terms
def test_a_soft_target_keeps_its_gradient_path(made: cw.Terms) -> None:
    head = Head("soft")
    head.target.requires_grad_()
    (actual,) = torch.autograd.grad(head.loss(made), head.target)
    (wanted,) = torch.autograd.grad(head.dense(made), head.target)
    assert_close(actual, wanted)


@every_term
def test_only_what_wants_a_gradient_gets_one(made: cw.Terms) -> None:
    head = Head()
    of_features, of_weight, of_bias = head.gradients(head.loss(made))
    for name, expected in {"features": of_features, "weight": of_weight, "bias": of_bias}.items():
        tensors = {key: getattr(head, key).detach() for key in ("features", "weight", "bias")}
        tensors[name].requires_grad_()
        loss = cw.linear_vs_loss(**tensors, target=head.target, terms=made)
        assert_close(torch.autograd.grad(loss, tensors[name])[0], expected, 1e-6)
    with torch.no_grad():
        assert not head.loss(made).requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": torch.zeros(SAMPLES, 2)}, r"features \(9, 2\), weight \(4, 5\)"),
        ({"features": torch.zeros(SAMPLES, 2, 3)}, "features must be .* 2 dimension"),
        ({"features": [[1.0]]}, r"features must be .* got list"),
        ({"weight": torch.zeros(3, DIMENSIONS)}, r"weight \(3, 5\) and terms of 4 classes"),
        ({"weight": torch.zeros(CLASSES, DIMENSIONS).long()}, "weight must be a floating-point"),
        ({"bias": torch.zeros(3)}, "bias has 3 entries for 4 classes"),
        ({"bias": torch.zeros(CLASSES, 1)}, "bias must be .* 1 dimension"),
        ({"target": torch.zeros(2).long()}, r"target must have shape \(9,\)"),
        ({"target": torch.full((SAMPLES,), CLASSES)}, "target holds 4, legal are 0 to 3"),
        ({"chunk": 0}, "chunk=0 must be at least 1"),
        ({"chunk": 1.5}, "chunk=1.5 must be a whole number"),
        ({"reduction": "avg"}, "reduction='avg' is unknown"),
        ({"normalize": "none"}, "normalize='none' is unknown"),
        ({"label_smoothing": 2}, "label_smoothing=2 is out of range"),
        ({"normalizer": -1.0}, "normalizer=-1.0"),
        ({"normalizer": math.nan}, "normalizer=nan"),
    ],
)
def test_wrong_argument_is_named_with_what_is_legal(
    arguments: dict[str, Any], message: str
) -> None:
    legal: dict[str, Any] = {
        "features": torch.zeros(SAMPLES, DIMENSIONS),
        "weight": torch.zeros(CLASSES, DIMENSIONS),
        "bias": None,
        "target": torch.zeros(SAMPLES).long(),
        "terms": TERMS["vs"],
    }
    with pytest.raises(ArgumentError, match=message):
        cw.linear_vs_loss(**(legal | arguments))


# --------------------------------------------------------------------------- fold


@every_term
@both_biases
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_folded_head_gives_adjusted_logits(
    made: cw.Terms, with_bias: bool, dtype: torch.dtype
) -> None:
    head = nn.Linear(DIMENSIONS, CLASSES, bias=with_bias, dtype=dtype)
    features = torch.randn(SAMPLES, DIMENSIONS, dtype=dtype)
    expected = head(features).double() * made.beta + made.delta
    folded = cw.fold(head, made)
    assert folded(features).dtype == dtype
    assert_close(folded(features), expected, 10 * torch.finfo(dtype).eps)


def test_folded_head_is_a_plain_linear_of_its_own() -> None:
    class Fancy(nn.Linear):
        pass

    head = Fancy(DIMENSIONS, CLASSES)
    before = head.weight.detach().clone()
    folded = cw.fold(head, TERMS["ce"])
    assert type(folded) is nn.Linear
    assert folded.weight.requires_grad
    assert folded.weight.grad_fn is None
    with torch.no_grad():
        folded.weight.zero_()
    assert head.weight.tolist() == before.tolist()


def test_folding_a_half_head_rounds_only_once() -> None:
    head = nn.Linear(DIMENSIONS, CLASSES).half()
    made = TERMS["vs"]
    folded = cw.fold(head, made)
    assert folded.weight.dtype == folded.bias.dtype == torch.float16
    exact = (head.weight.double() * made.beta[:, None]).half()
    assert_close(folded.weight, exact, torch.finfo(torch.float16).eps)


def test_fold_draws_no_random_numbers() -> None:
    head = nn.Linear(DIMENSIONS, CLASSES)
    before = torch.get_rng_state()
    folded = cw.fold(head, TERMS["vs"])
    assert folded.out_features == CLASSES
    assert torch.equal(torch.get_rng_state(), before)


def test_cross_entropy_of_the_folded_head_is_the_vs_loss() -> None:
    head, made = nn.Linear(DIMENSIONS, CLASSES), TERMS["vs"]
    features, target = torch.randn(SAMPLES, DIMENSIONS), torch.arange(SAMPLES) % CLASSES
    expected = cw.vs_loss(head(features), target, made)
    assert_close(F.cross_entropy(cw.fold(head, made)(features), target), expected)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (nn.Identity(), "linear must be an nn.Linear, got Identity"),
        (nn.Linear(DIMENSIONS, 3), "linear has 3 outputs, the terms have 4 classes"),
    ],
)
def test_fold_refuses_what_it_cannot_fold(head: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        cw.fold(head, TERMS["vs"])


# --------------------------------------------------------------------------- adjust


def log_prior() -> Tensor:
    return torch.tensor(reference.prior(COUNTS), dtype=torch.float64).log()


@pytest.mark.parametrize("tau", [0.5, 1.0, 2.0])
def test_adjusted_logits_expect_uniform_classes(tau: float) -> None:
    logits = torch.randn(SAMPLES, CLASSES, dtype=torch.float64)
    assert_close(cw.adjust(logits, COUNTS, tau=tau), logits - tau * log_prior(), 1e-14)
    uniform = cw.adjust(logits, COUNTS, tau=tau, target_prior=[1] * CLASSES)
    assert_close(uniform.log_softmax(1), (logits - tau * log_prior()).log_softmax(1), 1e-13)


@pytest.mark.parametrize("tau", [0.5, 1.0])
@pytest.mark.parametrize("scale", [1.0, 1 / sum(COUNTS), 7.0])
def test_the_training_prior_changes_nothing(tau: float, scale: float) -> None:
    logits = torch.randn(SAMPLES, CLASSES, dtype=torch.float64)
    same = cw.adjust(logits, COUNTS, tau=tau, target_prior=[n * scale for n in COUNTS])
    assert_close(same, logits, 1e-13)


def test_without_tau_nothing_changes() -> None:
    logits = torch.randn(SAMPLES, CLASSES)
    assert cw.adjust(logits, COUNTS, tau=0.0).tolist() == logits.tolist()


def test_adjusted_probabilities_are_the_posterior_under_the_expected_prior() -> None:
    logits = torch.randn(200, CLASSES, dtype=torch.float64)
    expected = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    posterior = logits.softmax(1) * expected / log_prior().exp()
    posterior = posterior / posterior.sum(1, keepdim=True)
    adjusted = cw.adjust(logits, COUNTS, target_prior=expected)
    assert_close(adjusted.softmax(1), posterior, 1e-13)
    assert adjusted.argmax(1).tolist() == posterior.argmax(1).tolist()
    assert (adjusted.argmax(1) != logits.argmax(1)).any()


@pytest.mark.parametrize("shape", [(3,), (2, 3)], ids=str)
def test_dense_logits_are_adjusted_along_the_classes(shape: tuple[int, ...]) -> None:
    logits = torch.randn(2, CLASSES, *shape)
    flat = logits.movedim(1, -1).reshape(-1, CLASSES)
    adjusted = cw.adjust(logits, COUNTS)
    assert adjusted.shape == logits.shape
    assert_close(adjusted.movedim(1, -1).reshape(-1, CLASSES), cw.adjust(flat, COUNTS), 1e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_logits_are_adjusted_in_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(SAMPLES, CLASSES).to(dtype)
    adjusted = cw.adjust(logits, COUNTS)
    assert adjusted.dtype == torch.float32
    assert_close(adjusted, logits.double() - log_prior(), 1e-6)


def test_adjusting_undoes_the_terms_of_logit_adjustment() -> None:
    logits = torch.randn(SAMPLES, CLASSES, dtype=torch.float64)
    made = terms.la(COUNTS, tau=0.8)
    assert_close(cw.adjust(logits + made.delta, COUNTS, tau=0.8), logits, 1e-13)


def test_an_empty_class_counts_as_one_sample() -> None:
    logits = torch.randn(SAMPLES, 3)
    adjusted = cw.adjust(logits, [9, 0, 1], allow_empty=True)
    assert adjusted.tolist() == cw.adjust(logits, [9, 1, 1]).tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: cw.adjust(z, COUNTS, tau=-1), "tau=-1 is out of range"),
        (lambda z: cw.adjust(z, [9, 1]), "4 classes .* where 2 are expected"),
        (lambda z: cw.adjust(z, [9, 0, 1, 1]), "without samples"),
        (lambda z: cw.adjust(z, COUNTS, target_prior=[1, 1]), "target_prior has 2 entries"),
        (
            lambda z: cw.adjust(z, COUNTS, target_prior=[1, 1, 0, 1]),
            r"target_prior\[2\]=0.0 must be > 0",
        ),
    ],
)
def test_adjust_names_a_wrong_argument(call: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(torch.zeros(2, CLASSES))
