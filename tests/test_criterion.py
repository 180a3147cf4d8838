import copy
import inspect
import math
import pickle

import numpy as np
import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from waits import recorded

import classwise as cw
from classwise._hyper import CRITERION_KEYWORDS
from classwise.estimation import extreme
from classwise.recipes import BASES
from classwise.stats.bins import GROUPINGS

COUNTS = [500, 120, 60, 19, 5]


def batch(seed: int = 0, size: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(size, 5, generator=generator)
    return logits.requires_grad_(), torch.randint(5, (size,), generator=generator)


def started(method: str | cw.Recipe = "cvs+adrw", epoch: int = 0, **settings) -> cw.Criterion:
    criterion = cw.Criterion(method, COUNTS, **{"epochs": 10, **settings})
    criterion.start_epoch(epoch, jump=True)
    return criterion


@pytest.mark.parametrize("base", BASES)
def test_every_method_plays_from_the_first_epoch_to_the_last(base: str):
    model = torch.nn.Linear(6, 5)
    criterion = cw.Criterion(base, COUNTS, epochs=6, defer_at=4)
    for epoch in range(6):
        criterion.start_epoch(epoch)
        features = torch.randn(32, 6)
        loss = criterion(model(features), torch.randint(5, (32,)), features=features)
        model.zero_grad()
        loss.backward()
        assert math.isfinite(loss.item())
        assert model.weight.grad is not None
        assert model.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("method", "terms", "epoch"),
    [
        ("ce", cw.terms.ce(COUNTS), 0),
        ("balanced", cw.terms.balanced(COUNTS), 0),
        ("cb", cw.terms.class_balanced(COUNTS), 0),
        ("vs", cw.terms.vs(COUNTS, tau=1.0, gamma=0.05), 9),
        ("ldam", cw.terms.ldam(COUNTS), 5),
        ("vs+tla", cw.terms.la(COUNTS, tau=1.0), 8),
        ("cdt+tla", cw.terms.ce(COUNTS), 8),
    ],
)
def test_the_criterion_is_the_vs_loss_of_its_phase(method: str, terms: cw.Terms, epoch: int):
    logits, target = batch()
    assert torch.equal(started(method, epoch)(logits, target), cw.vs_loss(logits, target, terms))


def test_losses_beside_the_family_are_those_of_their_functions():
    logits, target = batch()
    features = torch.randn(40, 7)
    assert torch.equal(
        started("focal", gamma=1.5)(logits, target), cw.focal_loss(logits, target, gamma=1.5)
    )
    assert torch.allclose(started("lade")(logits, target), cw.lade_loss(logits, target, COUNTS))
    assert torch.allclose(started("ala")(logits, target), cw.ala_loss(logits, target, COUNTS))
    weight = cw.terms.power_weights(COUNTS, 1.0)
    assert torch.allclose(
        started("ib", epoch=5)(logits, target, features=features),
        cw.influence_balanced_loss(logits, target, features, weight=weight),
    )
    assert torch.allclose(
        started("ib", epoch=4)(logits, target, features=features), F.cross_entropy(logits, target)
    )


def test_the_phase_changes_at_t0_and_not_before():
    criterion = cw.Criterion("ce+drw", COUNTS, epochs=10, defer_at=7)
    weighted = []
    for epoch in range(10):
        criterion.start_epoch(epoch)
        weighted.append(criterion.terms.weighs)
    assert weighted == [False] * 7 + [True] * 3


def test_slopes_are_one_during_the_warm_up_and_used_after():
    criterion = cw.Criterion("mla", COUNTS, epochs=10, warmup=3, gamma=0.1)
    plain = cw.terms.mla(COUNTS, gamma=0.1)
    used = []
    for epoch in range(6):
        criterion.start_epoch(epoch)
        used.append(not criterion.terms.isclose(plain))
        criterion(*batch(epoch))
    assert used == [False, False, False, True, True, True]


def test_terms_follow_from_the_slopes_that_are_in_the_state():
    criterion = cw.Criterion("cvs", COUNTS, epochs=4, defer_at=2, warmup=1, slopes="paper")
    for epoch in range(4):
        criterion.start_epoch(epoch)
        criterion(*batch(epoch, 400))
    expected = cw.terms.cla(COUNTS, tau=0.9, slopes=criterion.kappa_plus)
    assert criterion.terms.isclose(expected)
    assert not torch.allclose(criterion.kappa_plus, torch.ones(5, dtype=torch.float64))


def test_slopes_without_momentum_are_those_of_the_last_epoch():
    criterion = cw.Criterion("cla", COUNTS, epochs=3, warmup=0, slopes="paper")
    criterion.start_epoch(0)
    criterion(*batch(0, 400))
    criterion.start_epoch(1)
    bins = cw.ClassBins(5)
    logits, target = batch(0, 400)
    bins.update(logits.detach(), target)
    table = bins.compute()
    assert torch.allclose(criterion.kappa_plus, cw.slopes(table))
    assert torch.allclose(criterion.kappa_star, cw.slopes(table, on="logit"))


def test_adjusted_statistics_see_what_the_cross_entropy_sees():
    config = cw.SlopeConfig(group_by="target", logits="adjusted")
    criterion = started("vs", slopes=config)
    logits, target = batch()
    criterion(logits, target)
    terms = cw.terms.vs(COUNTS, tau=1.0, gamma=0.05)
    bins = cw.ClassBins(5)
    bins.update((logits * terms.beta.float() + terms.delta.float()).detach(), target)
    assert torch.equal(criterion.table().count, bins.compute().count)
    assert torch.allclose(criterion.table().logit, bins.compute().logit, atol=1e-6)


def test_raw_statistics_of_a_cosine_head_are_scaled():
    criterion = started("ldam", slopes="paper")
    cosines = torch.rand(20, 5, requires_grad=True)
    target = torch.randint(5, (20,))
    criterion(cosines, target)
    bins = cw.ClassBins(5)
    bins.update(30 * cosines.detach(), target)
    assert torch.equal(criterion.table().count, bins.compute().count)


def test_released_leaves_the_first_deferred_epoch_without_slopes():
    criterion = cw.Criterion("cvs", COUNTS, epochs=10, defer_at=5, warmup=1, slopes="released")
    for epoch in range(6):
        criterion.start_epoch(epoch)
        criterion(*batch(epoch, 400))
    assert torch.equal(criterion.kappa_plus, torch.ones(5, dtype=torch.float64))
    assert criterion.terms.isclose(cw.terms.la(COUNTS, tau=0.9))
    assert not torch.equal(criterion.kappa_star, torch.ones(5, dtype=torch.float64))
    criterion.start_epoch(6)
    assert not torch.equal(criterion.kappa_plus, torch.ones(5, dtype=torch.float64))


def test_momentum_is_a_running_mean_from_one():
    criterion = cw.Criterion("mla", COUNTS, epochs=10, slopes="released", warmup=0)
    for epoch in range(4):
        criterion.start_epoch(epoch)
        # Confident and right: every fitted class has slope 1, reciprocal 1, clamped to 0.2.
        target = torch.arange(5).repeat(40)
        logits = 3.0 * F.one_hot(target, 5).float() * (1 + torch.arange(200)[:, None] / 200)
        criterion(logits.requires_grad_(), target)
    # Three finished epochs.
    assert torch.allclose(
        criterion.kappa_star, torch.full((5,), 0.9**3 + 0.2 * (1 - 0.9**3)).double()
    )


def test_statistics_are_left_alone_in_eval_without_grad_and_on_request():
    criterion = started()
    logits, target = batch()
    criterion(logits, target)
    before = copy.deepcopy(criterion.state_dict())
    criterion.eval()
    criterion(logits, target)
    criterion.train()
    with torch.no_grad():
        criterion(logits, target)
    criterion(logits, target, track=False)
    after = criterion.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert criterion.table().count.sum() == 40


def test_eval_works_before_the_first_epoch():
    logits, target = batch()
    criterion = cw.Criterion("la", COUNTS, epochs=10).eval()
    expected = cw.vs_loss(logits, target, cw.terms.la(COUNTS, tau=1.0))
    assert torch.equal(criterion(logits, target), expected)


def test_slopes_none_streams_nothing():
    criterion = started("cvs", slopes=None)
    assert not any(name.startswith("bin_") for name in criterion.state_dict())
    with pytest.raises(cw.StateError, match="streams no statistics"):
        criterion.table()
    for epoch in range(1, 10):
        criterion(*batch(epoch))
        criterion.start_epoch(epoch)
    assert criterion.terms.isclose(cw.terms.la(COUNTS, tau=0.9))


def test_the_same_epoch_again_changes_nothing():
    criterion = started()
    criterion(*batch())
    before = copy.deepcopy(criterion.state_dict())
    criterion.start_epoch(0)
    after = criterion.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_jumping_back_drops_the_statistics_and_keeps_the_slopes():
    criterion = started("cla", slopes="paper", warmup=0)
    criterion(*batch(0, 400))
    criterion.start_epoch(1)
    kappa = criterion.kappa_plus.clone()
    criterion(*batch(1, 400))
    criterion.start_epoch(0, jump=True)
    assert torch.equal(criterion.kappa_plus, kappa)
    assert criterion.table().count.sum() == 0


def test_an_epoch_without_batches_keeps_the_slopes():
    criterion = started("cla", slopes="paper", warmup=0)
    criterion(*batch(0, 400))
    criterion.start_epoch(1)
    kappa = criterion.kappa_plus.clone()
    criterion.start_epoch(2)
    assert torch.equal(criterion.kappa_plus, kappa)


def test_logits_that_are_not_finite_are_reported_and_do_not_poison_the_slopes():
    criterion = started("cla", slopes="paper", warmup=0)
    logits, target = batch(0, 400)
    criterion(logits, target)
    criterion(torch.full((3, 5), torch.nan, requires_grad=True), torch.zeros(3).long())
    with pytest.warns(cw.ClasswiseWarning, match="3 sample"):
        criterion.start_epoch(1)
    assert torch.isfinite(criterion.kappa_plus).all()


def anchored(top: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch whose largest logits are ``top``: kappa* is about accuracy / top."""
    logits, target = batch(seed, 400)
    logits = logits.detach()
    return (logits - logits.amax(1, keepdim=True) + top).requires_grad_(), target


def test_slopes_that_make_logits_explode_are_named_once_with_a_remedy():
    criterion = started("cvs", slopes="paper", warmup=2)
    criterion(*anchored(1e3))
    criterion.start_epoch(1)
    assert criterion.slope_warning == ""  # measured, but not in use
    criterion(*anchored(1e3))
    with pytest.warns(cw.ClasswiseWarning) as caught:
        criterion.start_epoch(2)
    (message,) = [str(warning.message) for warning in caught]
    worst = int(criterion.kappa_star.argmin())
    factor = 1 / float(criterion.kappa_star[worst])
    assert factor > 100
    assert f"epoch 2: kappa* of class {worst} is" in message
    assert f"multiplied by {factor:.3g}" in message
    assert "5 of 5 classes" in message
    assert "slopes='stable'" in message
    criterion(*anchored(1e3))
    criterion.start_epoch(3)  # a second warning would be an error here
    assert criterion.slope_warning
    criterion.start_epoch(8, jump=True)
    assert criterion.slope_warning == ""  # the second phase does not divide by slopes


def test_slopes_that_make_logits_vanish_are_named_too():
    criterion = started("mla", slopes="paper", warmup=0)
    criterion(*anchored(1e-3))
    with pytest.warns(cw.ClasswiseWarning, match=r"multiplied by 0\.00"):
        criterion.start_epoch(1)


def test_a_hundredfold_logit_is_where_slopes_are_extreme():
    assert extreme(torch.tensor([1.0, 0.0101, 99.0])) == ""
    assert "class 1 is 0.0099" in extreme(torch.tensor([1.0, 0.0099, 99.0]))
    assert "class 0 is 101" in extreme(torch.tensor([101.0, 0.0101, 99.0]))


@pytest.mark.parametrize("slopes", ["stable", "released", None])
def test_bounded_slopes_never_explode(slopes):
    criterion = started("cvs", slopes=slopes, warmup=0)
    for epoch in range(1, 10):
        criterion(*anchored(1e3, epoch))
        criterion.start_epoch(epoch)
        assert criterion.slope_warning == ""


def test_lost_samples_are_explained_by_the_slopes_in_use():
    criterion = started("cvs", slopes="paper", warmup=0)
    criterion(*anchored(1e3))
    with pytest.warns(cw.ClasswiseWarning, match="multiplied by"):
        criterion.start_epoch(1)
    criterion(torch.full((3, 5), torch.nan, requires_grad=True), torch.zeros(3).long())
    with pytest.warns(cw.ClasswiseWarning, match=r"3 sample.*kappa\* of class \d is"):
        criterion.start_epoch(2)


def test_autocast_changes_nothing():
    logits, target = batch()
    plain = started()(logits, target)
    criterion = started()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(criterion(logits, target), plain)
    half = criterion(logits.bfloat16(), target)
    assert half.dtype == torch.float32


def test_casting_the_model_rounds_nothing():
    model = torch.nn.ModuleDict({"criterion": started("cvs+adrw", epoch=9)})
    criterion = model["criterion"]
    assert isinstance(criterion, cw.Criterion)
    terms, counts = criterion.terms, criterion.class_counts.clone()
    model.half().to(torch.bfloat16)
    assert criterion.terms.alpha.dtype == torch.float64
    assert criterion.terms.isclose(terms)
    assert criterion.kappa_star.dtype == torch.float64
    assert torch.equal(criterion.class_counts, counts)


@pytest.mark.parametrize("method", ["balanced", "cvs+adrw", "ldam+drw", "focal+adrw"])
@pytest.mark.parametrize("normalize", ["weights", "batch"])
def test_accumulated_gradients_are_those_of_the_whole_batch(method: str, normalize: str):
    target = torch.randint(5, (48,))
    whole = torch.randn(48, 5, requires_grad=True)
    started(method, 9, normalize=normalize)(whole, target).backward()
    parts = whole.detach().clone().requires_grad_()
    criterion = started(method, 9, normalize=normalize)
    mass = criterion.mass(target)
    for chosen in torch.arange(48).split([5, 16, 27]):
        criterion(parts[chosen], target[chosen], normalizer=mass).backward()
    assert whole.grad is not None
    assert parts.grad is not None
    assert torch.allclose(parts.grad, whole.grad, atol=1e-7)
    assert criterion.table().count.sum() == 48


@pytest.mark.parametrize("target_kind", ["index", "soft"])
def test_mass_is_what_the_mean_divides_by(target_kind: str):
    logits, target = batch()
    target[:3] = -100
    goal = target
    if target_kind == "soft":
        logits, goal = logits[3:], F.one_hot(target[3:], 5).float()
    criterion = started("balanced")
    summed = started("balanced", reduction="sum")(logits, goal)
    mean = criterion(logits, goal)
    assert torch.allclose(mean, summed / criterion.mass(goal).float(), rtol=1e-6)


def test_soft_targets_and_smoothing():
    logits, target = batch()
    soft = F.one_hot(target, 5).float()
    for method, epoch in (("cvs+adrw", 9), ("ldam", 0), ("focal", 0)):
        hard = started(method, epoch)(logits, target)
        assert torch.allclose(started(method, epoch)(logits, soft), hard, rtol=1e-5)
    smooth = started("cb", label_smoothing=0.1)(logits, target)
    weight = cw.terms.class_balanced(COUNTS).alpha.float()
    expected = F.cross_entropy(logits, target, weight=weight, label_smoothing=0.1)
    assert torch.allclose(smooth, expected)


def test_dense_predictions():
    criterion = started("vs+drw", epoch=9)
    logits = torch.randn(2, 5, 4, 3, requires_grad=True)
    target = torch.randint(5, (2, 4, 3))
    target[0, 0] = -100
    loss = criterion(logits, target)
    flat = logits.movedim(1, -1).reshape(-1, 5)
    assert torch.allclose(loss, started("vs+drw", epoch=9)(flat, target.flatten()))
    assert criterion.table().count.sum() == 2 * 12 - 3


def test_reductions():
    logits, target = batch()
    each = started("cb", reduction="none")(logits, target)
    assert each.shape == (40,)
    assert torch.allclose(started("cb", reduction="sum")(logits, target), each.sum())


@pytest.mark.parametrize(
    "method", ["ce", "vs+tla+adrw", "cvs+adrw", "ldam+drw", "focal", "lade", "ib"]
)
@pytest.mark.parametrize("slopes", ["stable", "paper", cw.SlopeConfig(group_by="score"), None])
def test_compiles_whole_once_per_phase(method: str, slopes):
    torch._dynamo.reset()
    plain, compiled = (cw.Criterion(method, COUNTS, epochs=6, slopes=slopes) for _ in range(2))
    counter = torch._dynamo.testing.CompileCounter()
    call = torch.compile(compiled, fullgraph=True, backend=counter)
    for epoch in range(6):
        plain.start_epoch(epoch)
        compiled.start_epoch(epoch)
        (logits, target), features = batch(epoch), torch.randn(40, 7)
        expected = plain(logits, target, features=features)
        assert torch.allclose(call(logits, target, features=features), expected)
    assert counter.frame_count == len(plain.recipe.phases)
    if slopes is not None:
        assert torch.equal(plain.table().count, compiled.table().count)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of older compilers, about themselves
def test_the_compiler_of_torch_agrees():
    torch._dynamo.reset()
    plain, compiled = started(epoch=9), started(epoch=9)
    call = torch.compile(compiled, fullgraph=True)
    logits, target = batch()
    copied = logits.detach().clone().requires_grad_()
    plain(logits, target).backward()
    call(copied, target).backward()
    assert logits.grad is not None
    assert copied.grad is not None
    assert torch.allclose(copied.grad, logits.grad, atol=1e-7)
    assert torch.equal(plain.table().count, compiled.table().count)
    assert torch.allclose(plain.table().confidence, compiled.table().confidence)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("group_by", GROUPINGS)
@pytest.mark.parametrize("soft", [False, True])
def test_a_step_does_not_make_the_host_wait(base: str, group_by: str, soft: bool):
    criterion = started(base, 9, slopes=cw.SlopeConfig(group_by=group_by, logits="adjusted"))
    (logits, target), features = batch(), torch.randn(40, 7)
    goal = F.one_hot(target, 5).float() if soft else target
    with recorded() as recorder:
        criterion(logits, goal, features=features, normalizer=criterion.mass(goal)).backward()
    assert recorder.operations > 20
    assert recorder.waits == []


@pytest.mark.parametrize("base", BASES)
def test_an_empty_class_leaves_everything_finite(base: str):
    # Only what grows with 1 / N would break; nothing may, and no class may lose its place.
    criterion = cw.Criterion(base, [50, 0, 5, 0], epochs=6, defer_at=3, allow_empty=True)
    model = torch.nn.Linear(6, 4)
    for epoch in range(6):
        criterion.start_epoch(epoch)
        features = torch.randn(40, 6)
        loss = criterion(model(features), torch.tensor([0, 2]).repeat(20), features=features)
        model.zero_grad()
        loss.backward()
        assert model.weight.grad is not None
        assert torch.isfinite(model.weight.grad).all()
        for name in ("alpha", "beta", "delta", "margin"):
            assert getattr(criterion.terms, name).shape == (4,)
            assert torch.isfinite(getattr(criterion.terms, name)).all()
        assert torch.isfinite(criterion.kappa_star).all()
        assert torch.isfinite(criterion.kappa_plus).all()
    assert criterion.table().seen.tolist() == [20, 0, 20, 0]


def test_copies_are_independent():
    criterion = started()
    criterion(*batch())
    twin = copy.deepcopy(criterion)
    twin(*batch(1))
    assert criterion.table().count.sum() == 40
    assert twin.table().count.sum() == 80
    again = pickle.loads(pickle.dumps(criterion))
    assert torch.equal(again.table().count, criterion.table().count)


def test_empty_classes_on_request():
    criterion = cw.Criterion("cvs+adrw", [50, 0, 5], epochs=4, allow_empty=True)
    for epoch in range(4):
        criterion.start_epoch(epoch)
        logits = torch.randn(30, 3, requires_grad=True)
        loss = criterion(logits, torch.tensor([0, 2]).repeat(15))
        loss.backward()
        assert torch.isfinite(logits.grad).all()  # type: ignore[arg-type]
    assert criterion.terms.isclose(
        cw.terms.cla([50, 1, 5], tau=0.9, slopes=criterion.kappa_plus).replace(
            alpha=cw.terms.power_weights([50, 1, 5], 0.2)
        )
    )


def test_the_representation_names_the_phases():
    assert "cvs+adrw: mla(gamma=0.01) | from defer: cla(tau=0.9)" in repr(started())


def by_hand(*phases: cw.Phase, name: str = "mine") -> cw.Recipe:
    return cw.Recipe(phases, name=name)


def ldam_of_counts(class_counts: torch.Tensor) -> cw.Terms:
    return cw.terms.ldam(class_counts)


@pytest.mark.parametrize(
    ("method", "settings", "scale"),
    [
        ("ldam", {}, 30.0),
        ("ldam+drw", {"scale": 16}, 16.0),
        ("ldam", {"max_margin": 0, "scale": 20}, 20.0),
        ("ala", {}, 30.0),
        ("vs+tla+adrw", {}, 1.0),
        ("cvs", {}, 1.0),
        (by_hand(cw.Phase(cw.terms.ldam(COUNTS, scale=12))), {}, 12.0),
        (by_hand(cw.Phase(ldam_of_counts)), {}, 30.0),
        (by_hand(cw.Phase(cw.terms.cdt(COUNTS, gamma=0.2).replace(margin=[1] * 5))), {}, 1.0),
        (by_hand(cw.Phase(cw.terms.ce(COUNTS).replace(beta=[2] * 5))), {}, 1.0),
    ],
)
def test_the_logit_scale_is_that_of_a_cosine_head(method, settings, scale: float):
    criterion = cw.Criterion(method, COUNTS, epochs=4, **settings)
    assert criterion.logit_scale == scale
    for epoch in range(4):
        criterion.start_epoch(epoch)
        assert criterion.logit_scale == scale


def test_the_logit_scale_is_that_of_the_running_phase():
    phases = [cw.Phase("ce"), cw.Phase(cw.Part("ldam", max_margin=0.5, scale=30), start=2)]
    criterion = cw.Criterion(by_hand(*phases), COUNTS, epochs=4)
    scales = []
    for epoch in range(4):
        criterion.start_epoch(epoch)
        scales.append(criterion.logit_scale)
    assert scales == [1, 1, 30, 30]


def test_the_logit_scale_turns_cosines_into_the_probabilities_that_are_trained():
    criterion = started("ldam", max_margin=0.0)
    cosines, target = torch.rand(8, 5) * 2 - 1, torch.randint(5, (8,))
    expected = F.cross_entropy(criterion.logit_scale * cosines, target)
    assert torch.allclose(criterion.eval()(cosines, target), expected)


def test_ready_terms_are_binned_like_the_named_ones():
    cosines, target = torch.rand(20, 5, requires_grad=True), torch.randint(5, (20,))
    named = started("ldam", slopes="paper")
    ready = started(by_hand(cw.Phase(cw.terms.ldam(COUNTS))), slopes="paper")
    named(cosines, target)
    ready(cosines, target)
    assert torch.equal(named.table().logit, ready.table().logit)


def test_what_a_mean_divides_by_is_what_was_published():
    logits, target = batch()
    alpha = cw.terms.power_weights(COUNTS, 0.2)
    focal = {"weight": alpha, "gamma": 2.0}
    published = started("focal+adrw", 9)(logits, target)
    assert torch.allclose(
        published, cw.focal_loss(logits, target, normalize="batch", **focal), rtol=1e-6
    )
    weighted = started("focal+adrw", 9, normalize="weights")(logits, target)
    assert torch.allclose(weighted, cw.focal_loss(logits, target, **focal), rtol=1e-6)
    assert not torch.allclose(published, weighted, rtol=0.05)


def test_features_are_asked_for_from_the_first_step_and_not_at_the_phase_that_uses_them():
    criterion = started("ib")
    logits, target = batch()
    with pytest.raises(cw.ArgumentError, match="'ib' needs the features that the last layer sees"):
        criterion(logits, target)
    assert criterion.table().count.sum() == 0
    with torch.no_grad():
        assert torch.allclose(criterion(logits, target), F.cross_entropy(logits, target))


@pytest.mark.parametrize(
    ("phase", "message"),
    [
        (cw.Phase(cw.terms.ce([3, 2]), start=0.5), "have 2 classes, class_counts 5"),
        (
            cw.Phase(cw.terms.ldam(COUNTS), start=0.5, loss=cw.Part("focal", gamma=1)),
            "loss 'focal' knows no margins",
        ),
    ],
)
def test_what_a_late_phase_cannot_do_is_found_at_once(phase: cw.Phase, message: str):
    with pytest.raises(cw.RecipeError, match=message):
        cw.Criterion(by_hand(cw.Phase("ce"), phase), COUNTS, epochs=10)


def leaning_cla(class_counts: torch.Tensor, slopes: torch.Tensor) -> cw.Terms:
    return cw.terms.cla(class_counts, tau=0.9, slopes=slopes)


def test_a_function_may_lean_on_slopes_as_the_named_terms_do():
    mine = by_hand(cw.Phase(leaning_cla, leans_on="plus"))
    pair = [
        cw.Criterion(method, COUNTS, epochs=3, warmup=1, slopes="paper") for method in ("cla", mine)
    ]
    for criterion in pair:
        for epoch in range(3):
            criterion.start_epoch(epoch)
            criterion(*batch(epoch, 400))
    named, function = (criterion.terms for criterion in pair)
    assert not named.isclose(cw.terms.la(COUNTS, tau=0.9))
    assert function.isclose(named, rtol=1e-12)


def test_a_function_is_shown_an_empty_class_as_a_class_of_one():
    seen = []

    def mine(class_counts: torch.Tensor) -> cw.Terms:
        seen.append(class_counts.tolist())
        return cw.terms.la(class_counts)

    cw.Criterion(by_hand(cw.Phase(mine)), [5, 0], epochs=1, allow_empty=True)
    assert seen
    assert all(counts == [5, 1] for counts in seen)


def test_the_mass_of_wrong_targets_is_refused():
    criterion = started("balanced")
    with pytest.raises(cw.ArgumentError, match="target holds 7"):
        criterion.mass(torch.tensor([0, 7]))
    with pytest.raises(cw.ArgumentError, match=r"must have the shape of the logits \(4, 5\)"):
        criterion.mass(torch.rand(4, 3))
    dense = torch.randint(5, (2, 4, 3))
    assert torch.equal(criterion.mass(dense), criterion.mass(dense.flatten()))


def test_lade_in_parts_is_the_mean_of_its_parts():
    logits, target = batch()
    criterion = started("lade")
    mass = criterion.mass(target)
    parts = [slice(0, 10), slice(10, 40)]
    shares = torch.stack([criterion(logits[p], target[p], normalizer=mass) for p in parts])
    alone = [criterion(logits[p], target[p]) for p in parts]
    assert torch.allclose(shares.sum(), (10 * alone[0] + 30 * alone[1]) / 40)


def test_the_regulariser_of_lade_knows_the_prior_whatever_the_terms_are():
    logits, target = batch()
    loss = cw.Part("lade", weight=0.1, remine=0.1)
    plain = started(by_hand(cw.Phase("ce", loss=loss)))(logits, target)
    regulariser = cw.lade_loss(logits, target, COUNTS) - cw.lade_loss(
        logits, target, COUNTS, weight=0
    )
    assert torch.allclose(plain - F.cross_entropy(logits, target), regulariser, atol=1e-6)


def test_terms_are_buffers_that_are_not_saved():
    criterion = started("vs")
    buffers = dict(criterion.named_buffers())
    for name in ("alpha", "beta", "delta", "margin"):
        assert buffers[name] is getattr(criterion.terms, name)
        assert name not in criterion.state_dict()
    criterion.start_epoch(1)
    assert dict(criterion.named_buffers())["delta"] is criterion.terms.delta
    with pytest.raises(AttributeError):
        criterion.terms = cw.terms.ce(COUNTS)  # type: ignore[misc]


def test_numbers_of_numpy_are_numbers():
    settings = {"epochs": np.int64(10), "defer_at": np.float32(0.5), "warmup": np.int64(2)}
    criterion = cw.Criterion("ce+drw", COUNTS, **settings)
    assert criterion.phase_starts == [0, 5]
    assert criterion.warmup_epochs == 2


def test_keywords_for_hints_are_those_of_the_criterion():
    parameters = inspect.signature(cw.Criterion.__init__).parameters
    assert set(CRITERION_KEYWORDS) == set(parameters) - {"self", "method", "hyper"}
