"""A criterion on a linear head: the loss, its gradients and the statistics of the dense logits."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import classwise as cw
from classwise.errors import ArgumentError, StateError
from classwise.losses._head import head_losses
from classwise.stats.bins import empty_bins, update_bins_with_predictions

CLASSES, SAMPLES, WIDTH = 37, 50, 6
COUNTS = cw.longtail_counts(500, CLASSES, 100)


def head(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((SAMPLES, WIDTH), (CLASSES, WIDTH), (CLASSES,))
    leaves = [
        torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes
    ]
    target = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    target[::7] = -100
    return leaves[0], leaves[1], leaves[2], target


def pair(method: str, slopes: cw.SlopeConfig | str | None, epoch: int) -> list[cw.Criterion]:
    made = [cw.Criterion(method, COUNTS, epochs=10, slopes=slopes) for _ in range(2)]
    for criterion in made:
        criterion.start_epoch(epoch, jump=True)
    return made


@pytest.mark.parametrize("epoch", [0, 9])
@pytest.mark.parametrize("method", ["cvs+adrw", "vs", "ldam+drw", "balanced", "ce"])
@pytest.mark.parametrize("logits", ["raw", "adjusted"])
@pytest.mark.parametrize("group_by", ["target", "prediction"])
def test_it_equals_the_dense_criterion(method: str, epoch: int, logits: str, group_by: str):
    config = cw.SlopeConfig(group_by=group_by, logits=logits)
    dense, chunked = pair(method, config, epoch)
    features, weight, bias, target = head()
    expected = dense(F.linear(features, weight, bias), target)
    loss = chunked.linear(features, weight, bias, target)
    torch.testing.assert_close(loss, expected)
    wanted = torch.autograd.grad(expected, [features, weight, bias])
    torch.testing.assert_close(torch.autograd.grad(loss, [features, weight, bias]), wanted)
    for (name, mine), (_, theirs) in zip(
        chunked.statistics().tensors(), dense.statistics().tensors(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, msg=name)
    assert int(dense.statistics().count.sum()) == int((target >= 0).sum())


def test_slopes_of_the_next_epoch_are_those_of_dense_logits():
    dense, chunked = pair("cvs", "stable", 0)
    features, weight, bias, target = head()
    for _ in range(20):
        dense(F.linear(features, weight, bias), target)
        chunked.linear(features, weight, bias, target)
    for criterion in (dense, chunked):
        criterion.start_epoch(1)
    assert (dense.kappa_star != 1).any()
    torch.testing.assert_close(chunked.kappa_star, dense.kappa_star)
    torch.testing.assert_close(chunked.kappa_plus, dense.kappa_plus)


@pytest.mark.parametrize("chunk", [1, 2, 5, CLASSES - 1, CLASSES, 1000])
def test_what_is_seen_does_not_depend_on_the_chunks(chunk: int):
    # Whole numbers: exact whatever the order of summation, and often equal in different chunks.
    features, weight, bias = (x.detach().round() for x in head()[:3])
    target = head()[3]
    terms = cw.terms.ce(COUNTS)
    _, seen = head_losses(
        features, weight, bias, target.clamp(min=0), terms, chunk=chunk, view="raw", scale=2.0
    )
    assert seen is not None
    logits = 2 * F.linear(features, weight, bias).detach()
    assert seen.predicted.tolist() == logits.numpy().argmax(1).tolist()
    assert ((logits == logits.amax(1, keepdim=True)).sum(1) > 1).any()
    torch.testing.assert_close(seen.logit, logits.max(1).values)
    torch.testing.assert_close(seen.log_prob, logits.log_softmax(1).max(1).values)


def test_logits_that_are_not_finite_are_skipped():
    dense, chunked = pair("cvs", "stable", 0)
    features, weight, bias, target = head()
    with torch.no_grad():
        features[1] = torch.nan
        features[2] = torch.inf
    dense(F.linear(features, weight, bias), target)
    chunked.linear(features, weight, bias, target)
    assert int(chunked.statistics().skipped) == int(dense.statistics().skipped) == 2
    assert torch.equal(chunked.table().count, dense.table().count)


def test_statistics_are_left_alone_where_they_should_be():
    criterion, _ = pair("cvs", "stable", 0)
    features, weight, bias, target = head()
    criterion.linear(features, weight, bias, target, track=False)
    with torch.no_grad():
        criterion.linear(features, weight, bias, target)
    criterion.eval().linear(features, weight, bias, target)
    assert not criterion.statistics().count.any()


def test_it_refuses_what_it_cannot_do():
    features, weight, bias, target = head()
    smooth = cw.Criterion("cvs", COUNTS, epochs=2, label_smoothing=0.1)
    with pytest.raises(StateError, match="start_epoch"):
        smooth.linear(features, weight, bias, target)
    smooth.start_epoch(0)
    with pytest.raises(ArgumentError, match=r"label_smoothing=0.1"):
        smooth.linear(features, weight, bias, target)
    focal = cw.Criterion("focal", COUNTS, epochs=2)
    focal.start_epoch(0)
    with pytest.raises(ArgumentError, match=r"class terms.* got 'focal'"):
        focal.linear(features, weight, bias, target)
    with pytest.raises(ArgumentError, match=r"weight \(36, 6\)"):
        focal.linear(features, weight[1:], bias, target)
    score, _ = pair("cvs", cw.SlopeConfig(group_by="score"), 0)
    with pytest.raises(ArgumentError, match="group_by='score'"):
        score.linear(features, weight, bias, target)
    one = torch.zeros(1)
    with pytest.raises(ArgumentError, match="legal without them are 'target'"):
        update_bins_with_predictions(
            empty_bins(3), one.long(), log_prob=one, predicted=one.long(), logit=one,
            group_by="score",
        )  # fmt: skip


def test_a_half_head_is_computed_in_float32():
    criterion, other = pair("cvs", "stable", 9)
    features, weight, bias, target = head(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = criterion.linear(features, weight, bias, target)
    assert loss.dtype == torch.float32
    x, w, b = (part.detach().float() for part in (features, weight, bias))
    expected = other.linear(x, w, b, target)
    torch.testing.assert_close(loss.detach(), expected)
