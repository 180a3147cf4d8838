"""The battery: every loss of the registry, against its oracle and in every form it comes in."""

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loss_rows import (
    CLASSES,
    COUNTS,
    KINDS,
    ONE_EACH,
    ROWS,
    SAMPLES,
    Batch,
    Row,
    assert_close,
    every_dense_row,
    every_differentiable_row,
    every_dtype,
    every_flat_row,
    every_kind,
    every_reducing_row,
    every_row,
    make_batch,
    one_row_each,
    rows_where,
    wide,
)
from torch import Tensor, nn
from waits import recorded

from classwise._hyper import DEFAULTS
from classwise.errors import ArgumentError
from classwise.losses import LOSSES
from classwise.losses._scores import Scores, Target
from classwise.losses.ala import ala_terms, per_sample_ala


def test_every_loss_of_the_registry_has_a_row() -> None:
    assert {row.loss for row in ROWS.values()} == set(LOSSES)
    assert {row.loss for row in ONE_EACH.values()} == set(LOSSES)


# --------------------------------------------------------------------------- the battery


@every_row
@pytest.mark.parametrize("kind", ["index", *KINDS])
@every_dtype
def test_value_and_gradient_equal_the_oracle(row: Row, kind: str, dtype: torch.dtype) -> None:
    batch = make_batch(kind, dtype=dtype)
    loss = row.call(batch)
    # The oracle starts from the rounded numbers, and rounds nothing after that.
    exact = batch.to(torch.float64)
    expected = row.expected(exact)
    assert loss.dtype == wide(dtype)
    rounding = 1e-11 if dtype == torch.float64 else 2e-5
    assert_close(loss, expected, rounding)
    for actual, wanted in zip(batch.gradients(loss), exact.gradients(expected), strict=True):
        assert actual.dtype == dtype
        assert_close(actual, wanted, max(rounding, 0 if dtype == wide(dtype) else eps(dtype)))


def eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


@every_reducing_row
@every_kind
@pytest.mark.parametrize(
    ("reduction", "normalize"),
    [("mean", "weights"), ("mean", "batch"), ("sum", "weights"), ("none", "batch")],
)
def test_reductions_equal_the_oracle(row: Row, kind: str, reduction: str, normalize: str) -> None:
    batch = make_batch(kind)
    options: dict[str, Any] = {"reduction": reduction, "normalize": normalize}
    loss, expected = row.call(batch, **options), row.expected(batch, **options)
    assert loss.shape == ((SAMPLES,) if reduction == "none" else ())
    assert_close(loss, expected, 1e-11)
    for actual, wanted in zip(batch.gradients(loss), batch.gradients(expected), strict=True):
        assert_close(actual, wanted, 1e-11)


@pytest.mark.parametrize("name", [key for key, row in ROWS.items() if row.loss == "vs"])
@every_kind
@pytest.mark.parametrize("normalize", ["weights", "batch"])
def test_label_smoothing_equals_the_oracle(name: str, kind: str, normalize: str) -> None:
    row, batch = ROWS[name], make_batch(kind)
    options: dict[str, Any] = {"label_smoothing": 0.3, "normalize": normalize}
    loss, expected = row.call(batch, **options), row.expected(batch, **options)
    assert_close(loss, expected, 1e-11)
    assert_close(batch.gradients(loss)[0], batch.gradients(expected)[0], 1e-11)


@every_differentiable_row
@every_kind
def test_gradcheck(row: Row, kind: str) -> None:
    batch = make_batch(kind, samples=2)
    given = row.inputs(batch)
    differentiable = (given[0], *given[2:])

    options: dict[str, Any] = {"reduction": "none"} if "reduction" in row.takes else {}

    def loss(logits: Tensor, *features: Tensor) -> Tensor:
        of = Batch(logits, batch.target, features[0] if features else batch.features)
        return row.call(of, **options)

    assert torch.autograd.gradcheck(loss, differentiable)


@every_kind
def test_gradcheck_of_ala_at_a_fixed_difficulty(kind: str) -> None:
    batch, quantity = make_batch(kind, samples=2), ala_terms(COUNTS, scale=5.0)
    fixed = batch.logits.detach().clone()

    def loss(logits: Tensor) -> Tensor:
        scores = Scores(logits, quantity)
        scores.logits = fixed  # what the difficulty is made of
        return per_sample_ala(scores, Target(batch.target, -100, torch.float64), quantity)

    assert torch.autograd.gradcheck(loss, batch.logits)


@every_row
@every_kind
def test_memory_layout_does_not_matter(row: Row, kind: str) -> None:
    batch = make_batch(kind)

    def strided(x: Tensor) -> Tensor:
        spread = (
            torch.stack([x.detach(), torch.full_like(x, 77)], dim=-1).movedim(0, 1).contiguous()
        )
        return spread.movedim(1, 0)[..., 0] if x.ndim > 1 else torch.stack([x, x], dim=-1)[:, 0]

    other = Batch(*(strided(x) for x in (batch.logits, batch.target, batch.features)))
    assert not any(x.is_contiguous() for x in row.inputs(other))
    other.logits.requires_grad_()
    other.features.requires_grad_()
    assert_close(row.call(other), row.call(batch), 1e-14)
    for actual, wanted in zip(
        other.gradients(row.call(other)), batch.gradients(row.call(batch)), strict=True
    ):
        assert_close(actual, wanted, 1e-13)


@every_row
@every_kind
def test_permuted_classes_give_the_same_loss(row: Row, kind: str) -> None:
    batch = make_batch(kind)
    order = torch.tensor([2, 0, 3, 1])
    soft = kind == "soft"
    index = torch.where(
        batch.target < 0, batch.target, order.argsort()[batch.target.long().clamp(0)]
    )
    permuted = Batch(
        batch.logits.detach()[:, order].requires_grad_(),
        batch.target.detach()[:, order] if soft else index,
        batch.features,
    )
    loss = row.call(permuted, [COUNTS[i] for i in order])
    assert_close(loss, row.call(batch), 1e-12)
    moved, features = permuted.gradients(loss)
    wanted, wanted_features = batch.gradients(row.call(batch))
    assert_close(moved, wanted[:, order], 1e-12)
    assert_close(features, wanted_features, 1e-12)


@every_reducing_row
@every_kind
@pytest.mark.parametrize("normalize", ["weights", "batch"])
def test_none_sums_to_sum_and_the_mean_divides_by_the_mass(
    row: Row, kind: str, normalize: str
) -> None:
    batch = make_batch(kind)
    total = row.call(batch, reduction="sum")
    assert_close(row.call(batch, reduction="none").sum(), total, 1e-13)
    alpha = torch.tensor(row.alpha(COUNTS), dtype=torch.float64)
    counted = batch.target[batch.target >= 0] if kind != "soft" else batch.target
    weights = alpha[counted] if kind != "soft" else (counted * alpha).sum(1)
    mass = weights.sum() if normalize == "weights" else torch.tensor(float(len(weights)))
    assert_close(row.call(batch, normalize=normalize), total / mass, 1e-13)
    assert_close(row.call(batch, normalizer=7.0), total / 7, 1e-13)
    assert_close(row.call(batch, normalizer=torch.tensor(7)), total / 7, 1e-13)


UNUSUAL = {"reduction": "none", "normalize": "batch", "ignore_index": 1, "label_smoothing": 0.1}


@every_row
@every_kind
@pytest.mark.parametrize("options", [{}, UNUSUAL, {"normalize": "weights"}], ids=str)
def test_module_equals_function(row: Row, kind: str, options: dict[str, Any]) -> None:
    batch = make_batch(kind)
    options = {key: value for key, value in options.items() if key in row.takes}
    batch.target[batch.target < 0] = options.get("ignore_index", -100)
    loss = row.module(**options)(*row.inputs(batch))
    assert loss.tolist() == row.call(batch, **options).tolist()


@pytest.mark.parametrize("name", LOSSES)
def test_module_and_function_share_their_defaults(name: str) -> None:
    of_function = inspect.signature(LOSSES[name].function).parameters
    of_module = inspect.signature(LOSSES[name].module).parameters
    per_batch = {"logits", "target", "features", "normalizer"}
    assert of_module.keys() == of_function.keys() - per_batch
    for key, parameter in of_module.items():
        assert (parameter.default, parameter.kind) == (of_function[key].default, parameter.kind)


@pytest.mark.parametrize(
    ("part", "name"),
    [("focal", "focal"), ("ala", "ala"), ("ib", "influence"), ("lade", "lade")],
)
def test_default_in_the_signature_is_the_one_in_the_table(part: str, name: str) -> None:
    table = {key: d.value for (p, key), d in DEFAULTS.items() if p == part and key != "start"}
    parameters = inspect.signature(LOSSES[name].function).parameters
    assert table == {key: parameters[key].default for key in table}
    assert set(LOSSES[name].hyper) <= set(parameters)


def test_registry_says_what_published_code_divides_a_mean_by() -> None:
    # The VS family is weighted cross-entropy of torch, LADE has no weights; the others are plain
    # means of weighted losses.
    published = {"vs": "weights", "lade": "weights"}
    published |= dict.fromkeys(("focal", "influence", "ala"), "batch")
    assert published == {name: spec.normalize for name, spec in LOSSES.items()}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_couples_a_batch_has_no_reduction(name: str) -> None:
    parameters = inspect.signature(LOSSES[name].function).parameters
    assert (LOSSES[name].batch_part is None) == ("reduction" in parameters)


@every_row
@pytest.mark.parametrize(
    "cast",
    [nn.Module.half, nn.Module.bfloat16, nn.Module.float, lambda m: m.to("cpu", torch.float16)],
    ids=["half", "bfloat16", "float", "to"],
)
def test_casting_a_model_does_not_round_the_constants(
    row: Row, cast: Callable[[nn.Module], nn.Module]
) -> None:
    batch, loss = make_batch("ignored"), row.module()
    before = loss(*row.inputs(batch))
    model = nn.Sequential(nn.Linear(2, 2), loss)
    cast(model)
    assert all(buffer.dtype == torch.float64 for buffer in loss.buffers())
    assert loss(*row.inputs(batch)).item() == before.item()


@every_row
def test_state_dict_holds_no_constants(row: Row) -> None:
    loss = row.module()
    assert loss.state_dict() == {}
    loss.load_state_dict({}, strict=True)
    assert list(loss.parameters()) == []


@every_row
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
)
def test_copies_of_a_module_give_the_same_loss(
    row: Row, copied: Callable[[nn.Module], nn.Module]
) -> None:
    batch, loss = make_batch(), row.module()
    assert copied(loss)(*row.inputs(batch)).item() == loss(*row.inputs(batch)).item()


@every_row
@pytest.mark.parametrize("ignore_index", [-100, -1, 255, 2])
def test_ignored_samples_change_nothing_and_get_no_gradient(row: Row, ignore_index: int) -> None:
    batch = make_batch(samples=8)
    ignored = torch.tensor([True, False, False, True, False, False, False, True])
    batch.target = torch.where(batch.target == 2, 1, batch.target)  # 2 may be what is ignored
    batch.target[ignored] = ignore_index
    loss = row.call(batch, ignore_index=ignore_index)
    kept = Batch(batch.logits[~ignored], batch.target[~ignored], batch.features[~ignored])
    assert_close(loss, row.call(kept), 1e-13)
    for gradient in batch.gradients(loss):
        assert bool((gradient[ignored] == 0).all())
    assert bool((batch.gradients(loss)[0][~ignored] != 0).any())


@every_row
@every_dtype
@pytest.mark.parametrize("normalize", ["weights", "batch"])
def test_a_batch_of_ignored_samples_gives_zero_with_a_gradient_path(
    row: Row, dtype: torch.dtype, normalize: str
) -> None:
    batch = make_batch("all ignored", dtype=dtype)
    options: dict[str, Any] = {"normalize": normalize} if "normalize" in row.takes else {}
    loss = row.call(batch, **options)
    assert loss.item() == 0
    loss.backward()
    assert batch.logits.grad is not None
    assert bool((batch.logits.grad == 0).all())


@every_row
def test_an_empty_batch_gives_zero_with_a_gradient_path(row: Row) -> None:
    batch = make_batch(samples=0)
    loss = row.call(batch)
    assert loss.item() == 0
    loss.backward()
    assert batch.logits.grad is not None


@every_row
@every_dtype
@every_kind
def test_extreme_logits_equal_the_oracle(row: Row, dtype: torch.dtype, kind: str) -> None:
    batch = make_batch(kind, dtype=dtype)
    sign = torch.where(torch.rand(SAMPLES, CLASSES) < 0.5, -1.0, 1.0).double()
    sign[0], sign[1], sign[2] = 1, -1, torch.tensor([1, -1, -1, -1])
    batch = Batch(1e4 * sign, batch.target, batch.features).to(dtype)
    loss = row.call(batch)
    exact = batch.to(torch.float64)
    expected = row.expected(exact)
    rounding = 1e-10 if dtype == torch.float64 else 2e-5
    assert_close(loss, expected, rounding)
    # Logits of 1e4, scaled by 30 for cosine heads, are known to 1e-2 in float32.
    rounding = 1e-8 if dtype == torch.float64 else max(2e-3, eps(dtype))
    for actual, wanted in zip(batch.gradients(loss), exact.gradients(expected), strict=True):
        assert bool(torch.isfinite(actual).all())
        # The naive focal loss has no slope where the answer is certain, x^gamma being infinite.
        known = torch.isfinite(wanted)
        assert known.double().mean() >= 0.5
        assert_close(actual[known], wanted[known], rounding)


@every_row
@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_extreme_counts_equal_the_oracle(row: Row, kind: str, dtype: torch.dtype) -> None:
    counts = [1_000_000, 1, 1_000, 1]
    batch = make_batch(kind, dtype=dtype)
    loss = row.call(batch, counts)
    exact = batch.to(torch.float64)
    expected = row.expected(exact, counts)
    rounding = 1e-11 if dtype == torch.float64 else 2e-5
    assert_close(loss, expected, rounding)
    for actual, wanted in zip(batch.gradients(loss), exact.gradients(expected), strict=True):
        assert_close(actual, wanted, max(rounding, eps(dtype)))


@rows_where(lambda row: row.loss != "lade")  # LADE is about every class's logit
def test_a_class_masked_by_minus_infinity_is_one_without_a_score(row: Row) -> None:
    batch = make_batch("ignored")
    masked = (batch.target.clamp(min=0) + 1)[:, None] % CLASSES
    gone, tiny = (
        Batch(batch.logits.detach().scatter(1, masked, low), batch.target, batch.features)
        for low in (-torch.inf, -1e4)
    )
    gone, tiny = gone.to(torch.float64), tiny.to(torch.float64)
    loss, expected = row.call(gone), row.call(tiny)
    assert_close(loss, expected, 1e-13)
    for actual, wanted in zip(gone.gradients(loss), tiny.gradients(expected), strict=True):
        assert_close(actual, wanted, 1e-13)


@every_row
@every_kind
def test_a_step_of_a_module_does_not_make_the_host_wait(row: Row, kind: str) -> None:
    batch, loss = make_batch(kind, dtype=torch.float32), row.module()
    with recorded() as recorder:
        loss(*row.inputs(batch)).backward()
    assert recorder.operations > 5
    assert recorder.waits == []


@every_row
@every_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_autocast_does_not_change_the_loss(row: Row, kind: str, dtype: torch.dtype) -> None:
    batch = make_batch(kind, dtype=dtype)
    plain = row.call(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = row.call(batch)
    assert loss.dtype == torch.float32
    assert loss.item() == plain.item()
    for actual, wanted in zip(batch.gradients(loss), batch.gradients(plain), strict=True):
        assert actual.tolist() == wanted.tolist()


@pytest.fixture
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@one_row_each
@every_kind
@pytest.mark.usefixtures("_fresh_compiler")
def test_module_compiles_to_one_graph(row: Row, kind: str) -> None:
    batch, loss = make_batch(kind, dtype=torch.float32), row.module()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert compiled(*row.inputs(batch)).item() == pytest.approx(loss(*row.inputs(batch)).item())
    assert_close(
        batch.gradients(compiled(*row.inputs(batch)))[0],
        batch.gradients(loss(*row.inputs(batch)))[0],
        1e-6,
    )


@pytest.mark.usefixtures("_fresh_compiler")
def test_another_setting_compiles_to_one_graph() -> None:
    batch = make_batch(dtype=torch.float32)
    for smoothing in (0.1, 0.2):  # the compiler takes a number that changed for a variable
        loss = ROWS["vs"].module(label_smoothing=smoothing)
        compiled = torch.compile(loss, fullgraph=True, backend="eager")
        inputs = batch.logits, batch.target
        assert compiled(*inputs).item() == pytest.approx(loss(*inputs).item())


@rows_where(lambda row: "class_counts" not in row.takes)
@every_kind
@pytest.mark.usefixtures("_fresh_compiler")
def test_function_compiles_to_one_graph(row: Row, kind: str) -> None:
    batch, function = make_batch(kind, dtype=torch.float32), LOSSES[row.loss].function
    constants = {
        key: torch.tensor(value) if key == "weight" and isinstance(value, list) else value
        for key, value in row.constants(COUNTS).items()
    }

    def loss(*inputs: Tensor) -> Tensor:
        return function(*inputs, **constants)

    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    assert compiled(*row.inputs(batch)).item() == pytest.approx(loss(*row.inputs(batch)).item())


@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.filterwarnings("ignore:Skipping serialization:UserWarning")  # torch 2.6's own
def test_vs_compiles_to_machine_code() -> None:
    batch, loss = make_batch("ignored", dtype=torch.float32), ROWS["vs"].module()
    compiled = torch.compile(loss, fullgraph=True, backend="inductor")
    value = compiled(batch.logits, batch.target)
    plain = loss(batch.logits, batch.target)
    assert_close(value, plain, 1e-6)
    (gradient,) = torch.autograd.grad(value, batch.logits)
    assert_close(gradient, batch.gradients(plain)[0], 1e-6)


@every_dense_row
@every_kind
@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("shape", [(6,), (2, 3)], ids=str)
def test_dense_equals_flattened(
    row: Row, kind: str, reduction: str, shape: tuple[int, ...]
) -> None:
    flat = make_batch(kind, samples=12)

    def dense(x: Tensor) -> Tensor:
        x = x.detach()
        return x.view(2, *shape, CLASSES).movedim(-1, 1) if x.ndim > 1 else x.view(2, *shape)

    batch = Batch(dense(flat.logits).requires_grad_(), dense(flat.target), flat.features)
    loss = row.call(batch, reduction=reduction)
    expected = row.call(flat, reduction=reduction)
    assert_close(loss.flatten(), expected.flatten(), 1e-13)
    assert loss.shape == ((2, *shape) if reduction == "none" else ())
    gradient = batch.gradients(loss.flatten() if reduction == "none" else loss)[0]
    assert_close(gradient.movedim(1, -1).reshape(12, CLASSES), flat.gradients(expected)[0], 1e-13)


@every_flat_row
def test_losses_of_features_or_batches_refuse_dense_logits(row: Row) -> None:
    logits, target = torch.zeros(2, CLASSES, 3), torch.zeros(2, 3, dtype=torch.int64)
    with pytest.raises(ArgumentError, match=r"\(N, C\).*\(2, 4, 3\)"):
        row.call(Batch(logits, target, torch.zeros(2, 5)))


@every_reducing_row
@pytest.mark.parametrize("normalize", ["weights", "batch"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_one_hot_probabilities_equal_the_index(row: Row, normalize: str, smoothing: float) -> None:
    batch = make_batch()
    options: dict[str, Any] = {"normalize": normalize}
    if "label_smoothing" in row.takes:
        options["label_smoothing"] = smoothing
    one_hot = Batch(batch.logits, F.one_hot(batch.target, CLASSES).double(), batch.features)
    for reduction in ("mean", "sum", "none"):
        of_index = row.call(batch, reduction=reduction, **options)
        of_one_hot = row.call(one_hot, reduction=reduction, **options)
        assert_close(of_one_hot, of_index, 1e-13)
        for actual, wanted in zip(
            one_hot.gradients(of_one_hot), batch.gradients(of_index), strict=True
        ):
            assert_close(actual, wanted, 1e-13)


def test_one_hot_probabilities_equal_the_index_for_lade() -> None:
    row, batch = ROWS["lade"], make_batch()
    one_hot = Batch(batch.logits, F.one_hot(batch.target, CLASSES).double(), batch.features)
    assert_close(row.call(one_hot), row.call(batch), 1e-13)


@every_reducing_row
def test_mixup_of_two_labels_is_one_soft_label(row: Row) -> None:
    batch, other = make_batch(), torch.randint(CLASSES, (SAMPLES,))
    ratio = 0.3
    one_hot = torch.eye(CLASSES, dtype=torch.float64)
    mixed = ratio * one_hot[batch.target] + (1 - ratio) * one_hot[other]
    soft = Batch(batch.logits, mixed, batch.features)
    second = Batch(batch.logits, other, batch.features)
    same_divisor: list[dict[str, Any]] = [
        {"reduction": "sum"},
        {"reduction": "none"},
        {"normalize": "batch"},
    ]
    for options in same_divisor:
        expected = ratio * row.call(batch, **options) + (1 - ratio) * row.call(second, **options)
        assert_close(row.call(soft, **options), expected, 1e-12)


@every_reducing_row
@every_kind
@pytest.mark.parametrize("normalize", ["weights", "batch"])
def test_accumulated_micro_batches_equal_the_big_batch(row: Row, kind: str, normalize: str) -> None:
    big = make_batch(kind, samples=9)
    expected = row.call(big, normalize=normalize)
    mass = row.call(big, reduction="sum").detach() / expected.detach()
    cuts = [slice(0, 1), slice(1, 4), slice(4, 9)]  # the first is ignored where some are
    loss = torch.zeros((), dtype=torch.float64)
    for cut in cuts:
        part = Batch(big.logits[cut], big.target[cut], big.features[cut])
        loss = loss + row.call(part, normalize=normalize, normalizer=mass)
    assert_close(loss, expected, 1e-12)
    for actual, wanted in zip(big.gradients(loss), big.gradients(expected), strict=True):
        assert_close(actual, wanted, 1e-12)


@every_row
@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8], ids=str)
def test_target_may_be_of_any_integer_type(row: Row, dtype: torch.dtype) -> None:
    batch = make_batch()
    narrow = Batch(batch.logits, batch.target.to(dtype), batch.features)
    assert row.call(narrow).item() == row.call(batch).item()
