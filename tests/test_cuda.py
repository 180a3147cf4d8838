"""The same numbers on a GPU, and no step that makes the host wait; skipped where there is none."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F

import classwise as cw
from classwise.recipes import BASES
from classwise.stats.bins import GROUPINGS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

COUNTS = [500, 120, 60, 19, 5]


@contextmanager
def no_waits() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def batch(seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(60, 5, generator=generator, dtype=torch.float64)
    features = torch.randn(60, 7, generator=generator, dtype=torch.float64)
    target = torch.randint(5, (60,), generator=generator)
    target[0] = -100
    return logits.to(device).requires_grad_(), target.to(device), features.to(device)


def test_the_guard_notices_a_wait():
    value = torch.ones(3, device="cuda")
    with no_waits(), pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        bool(value.sum() > 0)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("group_by", GROUPINGS)
def test_a_step_does_not_make_the_host_wait(base: str, group_by: str):
    config = cw.SlopeConfig(group_by=group_by, logits="adjusted")
    criterion = cw.Criterion(base, COUNTS, epochs=4, slopes=config).cuda()
    for epoch in range(4):
        criterion.start_epoch(epoch)
        logits, target, features = batch(epoch, "cuda")
        soft = F.one_hot(target.clamp(min=0), 5).double()
        with no_waits():
            criterion(logits, target, features=features).backward()
            criterion(logits, soft, features=features, normalizer=60).backward()
            criterion(logits, target, features=features, normalizer=criterion.mass(target))


@pytest.mark.parametrize("method", ["cvs+adrw", "ldam+drw", "ib", "lade", "focal+adrw"])
def test_a_training_equals_that_of_the_cpu(method: str):
    results = []
    for device in ("cpu", "cuda"):
        criterion = cw.Criterion(method, COUNTS, epochs=5, warmup=1).to(device)
        losses = []
        for epoch in range(5):
            criterion.start_epoch(epoch)
            logits, target, features = batch(epoch, device)
            losses.append(criterion(logits, target, features=features).detach().cpu())
        kappa = torch.stack([criterion.kappa_star, criterion.kappa_plus]).cpu()
        results.append((torch.stack(losses), kappa, criterion.table().count.cpu()))
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-9, atol=1e-12)


def test_a_state_moves_between_devices():
    first = cw.Criterion("cvs", COUNTS, epochs=4, warmup=0).cuda()
    for epoch in range(2):
        first.start_epoch(epoch)
        logits, target, _ = batch(epoch, "cuda")
        first(logits, target)
    saved = io.BytesIO()
    torch.save(first.state_dict(), saved)
    saved.seek(0)
    second = cw.Criterion("cvs", COUNTS, epochs=4, warmup=0)
    second.load_state_dict(torch.load(saved, weights_only=True, map_location="cuda"))
    assert second.kappa_star.device.type == "cpu"
    assert second.epoch == 1
    assert torch.equal(second.table().count, first.table().count.cpu())
    first.start_epoch(2)
    second.start_epoch(2)
    torch.testing.assert_close(second.kappa_star, first.kappa_star.cpu())


@pytest.mark.parametrize("group_by", GROUPINGS)
def test_metrics_do_not_wait_and_equal_those_of_the_cpu(group_by: str):
    terms = cw.terms.vs(COUNTS, tau=1.0, gamma=0.1)
    results = []
    for device in ("cpu", "cuda"):
        bins = cw.ClassBins(5, group_by=group_by).to(device)
        floors, accuracy = cw.ClassFloors(5, terms).to(device), cw.ClassAccuracy(COUNTS).to(device)
        logits, target, _ = batch(0, device)
        with no_waits() if device == "cuda" else nullcontext():
            for metric in (bins, floors, accuracy):
                metric.update(logits.detach(), target)
        table = bins.compute()
        assert table.logit.device.type == device
        results.append(
            [table.count, table.accuracy, table.logit, cw.slopes(table), *floors.compute()]
            + [accuracy.compute()[name] for name in ("per_class", "balanced", "many", "few")]
        )
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_autocast(dtype: torch.dtype):
    criterion = cw.Criterion("vs", COUNTS, epochs=2).cuda().half()
    criterion.start_epoch(0)
    logits, target, _ = batch(0, "cuda")
    narrow = logits.detach().to(dtype).requires_grad_()
    with torch.autocast("cuda", dtype=dtype):
        loss = criterion(narrow, target)
    assert loss.dtype == torch.float32
    expected = cw.vs_loss(narrow.detach().float(), target, criterion.terms)
    torch.testing.assert_close(loss.detach(), expected)


def test_the_head_of_many_classes_equals_the_dense_loss():
    counts = cw.longtail_counts(500, 1000, 100)
    terms = cw.terms.vs(counts, tau=1.0, gamma=0.1)
    features = torch.randn(300, 32, device="cuda", requires_grad=True)
    weight = torch.randn(1000, 32, device="cuda", requires_grad=True)
    target = torch.randint(1000, (300,), device="cuda")
    both = [
        cw.linear_vs_loss(features, weight, None, target, terms),
        cw.vs_loss(features @ weight.T, target, terms),
    ]
    torch.testing.assert_close(both[0], both[1])
    chunked, dense = (torch.autograd.grad(loss, [features, weight]) for loss in both)
    for mine, wanted in zip(chunked, dense, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the compiler, about itself
def test_it_compiles_whole():
    plain, compiled = (cw.Criterion("cvs+adrw", COUNTS, epochs=2).cuda() for _ in range(2))
    call = torch.compile(compiled, fullgraph=True)
    for epoch in range(2):
        plain.start_epoch(epoch)
        compiled.start_epoch(epoch)
        logits, target, _ = batch(epoch, "cuda")
        logits = logits.detach().float().requires_grad_()
        torch.testing.assert_close(call(logits, target), plain(logits, target))
    assert torch.equal(plain.table().count, compiled.table().count)
