"""SAM against the two steps computed by hand, and against plain SGD where it must be that."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn import functional as F

import classwise as cw
from classwise.train.sam import SAM

LR, MOMENTUM, DECAY = 0.1, 0.9, 0.01


def batch(seed: int, rows: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 5, generator=generator), torch.randint(3, (rows,), generator=generator)


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), LR, momentum=MOMENTUM, weight_decay=DECAY)


def train(
    rho: Callable[[int], float] | None, steps: int = 6, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Train with SAM, or plainly where ``rho`` is None."""
    model = network(dtype)
    optimizer = sgd(model)
    sam = SAM(model.parameters(), 0.0)
    for step in range(steps):
        x, y = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(dtype)), y).backward()
        if rho is not None:
            sam.rho = rho(step)
            sam.ascend()
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(dtype)), y).backward()
            sam.restore()
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def by_hand(rho: Callable[[int], float], steps: int = 6) -> list[Tensor]:
    """Compute the same by formulas on copies: gradient, one norm, gradient there, momentum."""
    model = network()
    weights = [p.detach().clone() for p in model.parameters()]
    names = [name for name, _ in model.named_parameters()]
    velocity = [torch.zeros_like(w) for w in weights]

    def gradient(at: list[Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
        at = [w.clone().requires_grad_() for w in at]
        logits = torch.func.functional_call(model, dict(zip(names, at, strict=True)), (x,))
        return list(torch.autograd.grad(F.cross_entropy(logits, y), at))

    for step in range(steps):
        x, y = batch(step)
        first = gradient(weights, x.double(), y)
        norm = math.sqrt(sum(float((g**2).sum()) for g in first))
        raised = [w + rho(step) * g / (norm + 1e-12) for w, g in zip(weights, first, strict=True)]
        second = gradient(raised, x.double(), y)
        for i, w in enumerate(weights):
            velocity[i] = MOMENTUM * velocity[i] + second[i] + DECAY * w
            weights[i] = w - LR * velocity[i]
    return weights


@pytest.mark.parametrize("rho", [0.05, 0.5, 2.0])
def test_steps_are_those_by_hand(rho: float):
    torch.testing.assert_close(train(lambda step: rho), by_hand(lambda step: rho))


def test_rho_of_two_phases():
    def two(step: int) -> float:
        return 0.2 if step < 3 else 0.4

    torch.testing.assert_close(train(two), by_hand(two))
    assert not torch.allclose(train(two)[0], train(lambda step: 0.2)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rho_zero_is_sgd_bit_for_bit(dtype: torch.dtype):
    plain, with_sam = train(None, dtype=dtype), train(lambda step: 0.0, dtype=dtype)
    assert all(torch.equal(a, b) for a, b in zip(plain, with_sam, strict=True))


def test_rho_zero_does_not_touch_a_weight():
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), math.inf)
    sam = SAM([weight], rho=0.0)
    sam.ascend()
    assert weight.tolist() == [1.0, 1.0]
    sam.restore()


def test_a_quadratic_in_two_parameters_of_one_norm():
    # L = (4 a^2 + b^2) / 2 at (1, 3): g = (4, 3), |g| = 5; raised by rho = 1: (1.8, 3.6).
    a, b = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(3.0))
    sam = SAM([a, b], rho=1.0)
    ((4 * a**2 + b**2) / 2).backward()
    sam.ascend()
    assert [a.item(), b.item()] == pytest.approx([1.8, 3.6])
    a.grad = b.grad = None
    ((4 * a**2 + b**2) / 2).backward()
    sam.restore()
    assert [a.item(), b.item()] == [1.0, 3.0]
    assert a.grad is not None
    assert b.grad is not None
    assert [a.grad.item(), b.grad.item()] == pytest.approx([7.2, 3.6])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_restoring_brings_back_every_bit(dtype: torch.dtype):
    values = torch.cat(
        [torch.randn(1000) * 10.0 ** torch.arange(-5, 5).repeat(100), torch.zeros(1)]
    )
    weight = nn.Parameter(torch.cat([values, -torch.zeros(1)]).to(dtype))
    before = weight.detach().clone()
    address = weight.data_ptr()
    weight.grad = torch.randn(1002).to(dtype)
    sam = SAM([weight], rho=3.0)
    sam.ascend()
    assert not torch.equal(weight, before)
    sam.restore()
    assert weight.data_ptr() == address
    assert torch.equal(weight.view(torch.uint8), before.view(torch.uint8))


def test_gradients_accumulated_over_micro_batches_raise_as_the_whole_batch_does():
    def raised(parts: int) -> list[Tensor]:
        model = network()
        x, y = batch(0)
        for xs, ys in zip(x.double().split(12 // parts), y.split(12 // parts), strict=True):
            (F.cross_entropy(model(xs), ys) / parts).backward()
        SAM(model.parameters(), rho=0.5).ascend()
        return [p.detach() for p in model.parameters()]

    torch.testing.assert_close(raised(4), raised(1))


def test_ranks_with_averaged_gradients_take_the_step_of_one_process():
    def stepped(parts: int) -> list[list[Tensor]]:
        models = [network() for _ in range(parts)]
        sams = [SAM(model.parameters(), rho=0.5) for model in models]
        x, y = batch(0)
        for do in ([sam.ascend for sam in sams], [sam.restore for sam in sams]):
            for model, xs, ys in zip(models, x.double().chunk(parts), y.chunk(parts), strict=True):
                model.zero_grad()
                F.cross_entropy(model(xs), ys).backward()
            for same in zip(*(model.parameters() for model in models), strict=True):
                grads = [p.grad for p in same if p.grad is not None]
                mean = torch.stack(grads).mean(0)
                for p in same:
                    p.grad = mean.clone()
            for call in do:
                call()
        for model in models:
            sgd(model).step()
        return [[p.detach() for p in model.parameters()] for model in models]

    (alone,), (first, second) = stepped(1), stepped(2)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    torch.testing.assert_close(first, alone)


def test_clipping_after_restoring_clips_the_gradient_of_the_second_pass():
    model = network()
    x, y = batch(0)
    sam = SAM(model.parameters(), rho=0.5)
    F.cross_entropy(model(x.double()), y).backward()
    sam.ascend()
    model.zero_grad()
    F.cross_entropy(model(x.double()), y).backward()
    second = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    sam.restore()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    for p, g in zip(model.parameters(), second, strict=True):
        torch.testing.assert_close(p.grad, g * 1e-3 / (norm + 1e-6))


def test_parameters_without_a_gradient_stay():
    moved, frozen, unused = (nn.Parameter(torch.ones(2)) for _ in range(3))
    frozen.requires_grad_(False)
    sam = SAM([moved, frozen, unused], rho=1.0)
    moved.sum().backward()
    sam.ascend()
    assert moved.tolist() == pytest.approx([1 + 2**-0.5] * 2)
    assert frozen.tolist() == unused.tolist() == [1.0, 1.0]
    sam.restore()
    assert moved.tolist() == [1.0, 1.0]


def test_no_gradient_at_all_and_a_gradient_of_zero_move_nothing():
    weight = nn.Parameter(torch.ones(2))
    sam = SAM([weight], rho=1.0)
    for gradient in (None, torch.zeros(2)):
        weight.grad = gradient
        sam.ascend()
        assert weight.tolist() == [1.0, 1.0]
        sam.restore()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_shows_in_the_second_pass(bad: float):
    model = network()
    x, y = batch(0)
    F.cross_entropy(model(x.double()), y).backward()
    before = [p.detach().clone() for p in model.parameters()]
    first = next(model.parameters())
    assert first.grad is not None
    first.grad[0, 0] = bad
    sam = SAM(model.parameters(), rho=0.1)
    sam.ascend()
    model.zero_grad()
    loss = F.cross_entropy(model(x.double()), y)
    loss.backward()
    sam.restore()
    assert math.isnan(loss.item())
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert first.grad is not None
    assert bool(first.grad.isnan().any())


def test_the_host_never_reads_a_value():
    with FakeTensorMode():  # holds no values: reading one is an error
        weight = nn.Parameter(torch.ones(3))
        (weight**2).sum().backward()
        sam = SAM([weight], rho=0.1)
        sam.ascend()
        sam.restore()
        with pytest.raises(DataDependentOutputException):
            weight.sum().item()


def test_calls_out_of_order():
    weight = nn.Parameter(torch.ones(2))
    sam = SAM([weight], rho=0.0)
    with pytest.raises(cw.StateError, match=r"restore\(\) was called without ascend"):
        sam.restore()
    sam.ascend()
    with pytest.raises(cw.StateError, match=r"ascend\(\) was called twice"):
        sam.ascend()
    sam.restore()
    with pytest.raises(cw.StateError, match=r"restore\(\) was called without ascend"):
        sam.restore()


def test_what_is_wrong_is_named():
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(cw.ArgumentError, match="params is empty"):
        SAM([], rho=0.1)
    for rho in (-0.1, math.nan, math.inf):
        with pytest.raises(cw.ArgumentError, match=r"rho=.* is out of range"):
            SAM([weight], rho=rho)
    sam = SAM([weight], rho=0.1)
    with pytest.raises(cw.ArgumentError, match=r"rho='0\.1' must be a number"):
        sam.rho = "0.1"  # type: ignore[assignment]
    assert sam.rho == 0.1
