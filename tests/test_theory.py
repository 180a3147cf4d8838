"""The theory: Lipschitz constants against gradients, the bound, and consistency against minima."""

import math
from collections.abc import Callable

import pytest
import torch
from reference import statistics as ref
from torch import Tensor

import classwise as cw
from classwise import terms as ct
from classwise.stats.floors import FloorState
from classwise.theory import bound, consistent, lipschitz

COUNTS = [500, 120, 60, 19, 5]
PRIOR = torch.tensor(COUNTS, dtype=torch.float64) / sum(COUNTS)
SLOPES = [0.9, 1.2, 0.7, 1.1, 0.5]

TERMS: dict[str, cw.Terms] = {
    "ce": ct.ce(COUNTS),
    "balanced": ct.balanced(COUNTS),
    "la": ct.la(COUNTS),
    "cdt": ct.cdt(COUNTS, gamma=0.3),
    "vs": ct.vs(COUNTS, tau=1.25, gamma=0.15),
    "vs+adrw": ct.vs(COUNTS, tau=0.75, gamma=0.05).replace(alpha=ct.power_weights(COUNTS, 0.25)),
    "mla": ct.mla(COUNTS, gamma=0.15, slopes=SLOPES),
    "cla": ct.cla(COUNTS, tau=0.9, slopes=SLOPES),
}
every_loss = pytest.mark.parametrize("name", list(TERMS))


def observed(classes: int = 5, per_class: int = 12) -> tuple[Tensor, Tensor]:
    target = torch.arange(classes).repeat_interleave(per_class)
    logits = 2 * torch.randn(len(target), classes, dtype=torch.float64)
    logits[torch.arange(len(target)), target] += 4 * torch.rand(len(target), dtype=torch.float64)
    return logits, target


def floors_of(logits: Tensor, target: Tensor, terms: cw.Terms | None = None) -> FloorState:
    floors = cw.ClassFloors(logits.shape[1], terms)
    floors.update(logits, target)
    return floors.compute()


def losses(logits: Tensor, target: Tensor, terms: cw.Terms) -> Tensor:
    return cw.vs_loss(logits, target, terms, reduction="none")


def gradient_norms(logits: Tensor, target: Tensor, terms: cw.Terms) -> Tensor:
    logits = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(losses(logits, target, terms).sum(), logits)
    return gradient.norm(dim=1)


# Lipschitz constants


@every_loss
def test_constants_equal_the_formula(name: str):
    terms = TERMS[name]
    logits, target = observed()
    alpha, beta = terms.alpha.tolist(), terms.beta.tolist()
    worst = ref.floors(logits, target, beta, terms.delta.tolist())
    mu = lipschitz(terms, floors_of(logits, target, terms))
    assert mu.dtype == torch.float64
    assert mu.tolist() == pytest.approx(ref.lipschitz(alpha, beta, worst["probability"]), rel=1e-9)


@every_loss
def test_no_gradient_on_an_observed_sample_exceeds_the_constant(name: str):
    terms = TERMS[name]
    logits, target = observed(per_class=40)
    mu = lipschitz(terms, floors_of(logits, target, terms))
    norms = gradient_norms(logits, target, terms)
    assert bool((norms <= mu[target] * (1 + 1e-12)).all())


@every_loss
def test_the_loss_changes_no_faster_than_the_constant_between_observed_samples(name: str):
    # The samples of a class with a probability of at least the floor are a sublevel set of a convex
    # loss, so the whole segment between two of them is in the region that the constant is about.
    terms = TERMS[name]
    logits, target = observed()
    mu = lipschitz(terms, floors_of(logits, target, terms))
    rates = []
    for y in range(5):
        mine = logits[target == y]
        first, second = (part.flatten(0, 1) for part in _pairs(mine))
        for start, end in ((0.0, 1.0), (0.0, 0.01), (0.3, 0.4), (0.99, 1.0)):
            f, g = (first.lerp(second, t) for t in (start, end))
            label = torch.full((len(f),), y)
            change = (losses(f, label, terms) - losses(g, label, terms)).abs()
            distance = (f - g).norm(dim=1)
            assert bool((change <= mu[y] * distance * (1 + 1e-9) + 1e-12).all())
            rates.append(float((change / distance.clamp(min=1e-12) / mu[y]).max()))
    assert max(rates) > 0.3  # the comparison is no empty one


def _pairs(rows: Tensor) -> tuple[Tensor, Tensor]:
    shape = (len(rows), *rows.shape)
    return rows.unsqueeze(0).expand(shape), rows.unsqueeze(1).expand(shape)


@every_loss
def test_constants_from_raw_floors_are_larger_and_still_bound_the_gradient(name: str):
    terms = TERMS[name]
    logits, target = observed(per_class=40)
    exact = lipschitz(terms, floors_of(logits, target, terms))
    loose = lipschitz(terms, floors_of(logits, target))
    assert bool((loose >= exact * (1 - 1e-12)).all())
    assert bool((loose <= terms.alpha * terms.beta.norm() * (1 + 1e-12)).all())
    assert bool((gradient_norms(logits, target, terms) <= loose[target]).all())
    foreign = lipschitz(terms, floors_of(logits, target, ct.vs(COUNTS, tau=2.0, gamma=0.3)))
    assert bool((foreign >= exact * (1 - 1e-12)).all())


def test_raw_floors_are_exact_where_the_loss_does_not_adjust():
    logits, target = observed()
    for name in ("ce", "balanced"):
        exact = lipschitz(TERMS[name], floors_of(logits, target, TERMS[name]))
        assert torch.equal(lipschitz(TERMS[name], floors_of(logits, target)), exact)


def test_the_constant_is_attained_with_two_classes():
    logits, target = observed(classes=2)
    terms = ct.la([90, 10]).replace(alpha=[0.5, 2.0])
    mu = lipschitz(terms, floors_of(logits, target, terms))
    norms = gradient_norms(logits, target, terms)
    attained = [float(norms[target == y].max()) for y in (0, 1)]
    assert mu.tolist() == pytest.approx(attained, rel=1e-9)


@pytest.mark.parametrize("adjusted", [False, True])
def test_a_class_without_samples_gets_the_largest_constant(adjusted: bool):
    terms = TERMS["vs+adrw"]
    logits, target = observed()
    kept = target != 3
    mu = lipschitz(terms, floors_of(logits[kept], target[kept], terms if adjusted else None))
    assert float(mu[3]) == pytest.approx(float(terms.alpha[3] * terms.beta.norm()))
    assert bool(mu.isfinite().all())


def test_masked_logits_keep_constants_finite():
    terms = TERMS["vs"]
    logits, target = observed()
    logits[:, 4][target != 4] = -math.inf
    logits[target == 0, 0] = -math.inf  # and the true class itself
    for floors in (floors_of(logits, target, terms), floors_of(logits, target)):
        mu = lipschitz(terms, floors)
        assert bool(mu.isfinite().all())
        assert float(mu[0]) == pytest.approx(float(terms.alpha[0] * terms.beta.norm()))


@every_loss
def test_a_higher_floor_lowers_the_constant_of_its_class_only(name: str):
    terms = TERMS[name]
    state = floors_of(*observed(), terms)
    before = lipschitz(terms, state)
    for y in range(5):
        raised = state.log_prob.clone()
        raised[y] /= 2
        after = lipschitz(terms, state._replace(log_prob=raised))
        assert (after < before).tolist() == [c == y for c in range(5)]
        assert torch.equal(after[after >= before], before[after >= before])


def test_a_higher_least_logit_or_a_lower_rival_lowers_the_constant():
    terms = TERMS["vs"]
    state = floors_of(*observed())
    before = lipschitz(terms, state)
    step = torch.tensor([0.0, 0.5, 0, 0, 0], dtype=torch.float64)
    for better in (
        state._replace(logit=state.logit + step),
        state._replace(rival=state.rival + step),
    ):
        after = lipschitz(terms, better)
        assert (after < before).tolist() == [False, True, False, False, False]


def test_constants_scale_with_alpha_and_do_not_depend_on_a_common_shift():
    logits, target = observed()
    terms = TERMS["vs"]
    mu = lipschitz(terms, floors_of(logits, target, terms))
    thrice = terms.replace(alpha=3 * terms.alpha)
    torch.testing.assert_close(lipschitz(thrice, floors_of(logits, target, thrice)), 3 * mu)
    shifted = terms.replace(delta=terms.delta + 5)
    torch.testing.assert_close(lipschitz(shifted, floors_of(logits, target, shifted)), mu)


def test_many_classes_are_handled_in_parts():
    counts = list(range(600, 0, -1))
    terms = ct.vs(counts, tau=1.0, gamma=0.1)
    logits, target = observed(classes=600, per_class=2)
    logits[torch.arange(1200), target] += 12  # so that each rival makes a difference
    loose = lipschitz(terms, floors_of(logits, target))
    assert bool((loose >= lipschitz(terms, floors_of(logits, target, terms))).all())
    state = floors_of(logits, target)
    for y in (0, 255, 256, 599):
        rivals = [terms.beta[j] * -state.rival[y] + terms.delta[j] for j in range(600) if j != y]
        own = math.exp(terms.beta[y] * state.logit[y] + terms.delta[y])
        wrong = 1 - own / (own + math.fsum(math.exp(r) for r in rivals))
        assert float(loose[y]) == pytest.approx(float(terms.beta.norm()) * wrong, rel=1e-9)


# The bound


@every_loss
def test_the_bound_equals_the_formula(name: str):
    terms = TERMS[name]
    floors = floors_of(*observed(), terms)
    got = bound(terms, floors, COUNTS)
    summands, total = ref.bound(lipschitz(terms, floors).tolist(), COUNTS)
    assert got.per_class.tolist() == pytest.approx(summands, rel=1e-9)
    assert float(got.total) == pytest.approx(total, rel=1e-9)


def test_the_bound_is_the_printed_one():
    terms = TERMS["vs+adrw"]
    logits, target = observed()
    worst = ref.floors(logits, target, terms.beta.tolist(), terms.delta.tolist())["probability"]
    summands = terms.alpha * PRIOR.sqrt() * (1 - torch.tensor(worst, dtype=torch.float64))
    printed = terms.beta.square().sum().sqrt() / (5 * PRIOR.min()) * summands.sum()
    got = bound(terms, floors_of(logits, target, terms), COUNTS)
    assert float(got.total) == pytest.approx(float(printed), rel=1e-9)


def test_a_higher_floor_lowers_the_bound():
    state = floors_of(*observed(), TERMS["vs"])
    totals = [
        float(bound(TERMS["vs"], state._replace(log_prob=state.log_prob * factor), COUNTS).total)
        for factor in (1.0, 0.5, 0.1, 0.0)
    ]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] == 0.0


# What is refused


def test_margins_are_outside_the_lemma():
    floors = floors_of(*observed())
    for terms in (ct.ldam(COUNTS), ct.ce(COUNTS).replace(margin=[0, 0, 0, 0, 0.1])):
        with pytest.raises(cw.ArgumentError, match="margin must be 0"):
            lipschitz(terms, floors)
        with pytest.raises(cw.ArgumentError, match="margin must be 0"):
            bound(terms, floors, COUNTS)


def test_floors_must_be_floors_of_these_classes():
    terms = TERMS["ce"]
    with pytest.raises(cw.ArgumentError, match="got Tensor"):
        lipschitz(terms, torch.zeros(5))
    with pytest.raises(cw.ArgumentError, match="floors are of 3 classes, the terms of 5"):
        lipschitz(terms, floors_of(torch.zeros(1, 3), torch.tensor([0])))
    with pytest.raises(cw.StateError, match="no sample"):
        lipschitz(terms, cw.ClassFloors(5).state())
    with pytest.raises(cw.ArgumentError, match="class_counts has 2 classes, the terms 5"):
        bound(terms, floors_of(*observed()), [3, 1])
    with pytest.raises(cw.ArgumentError, match="without samples"):
        bound(terms, floors_of(*observed()), [3, 1, 1, 1, 0])


def test_a_metric_and_its_result_are_both_floors():
    logits, target = observed()
    metric = cw.ClassFloors(5, TERMS["vs"])
    metric.update(logits, target)
    mu = lipschitz(TERMS["vs"], metric)
    assert torch.equal(mu, lipschitz(TERMS["vs"], metric.compute()))


# Consistency: verdicts

Make = Callable[[list[int], list[float]], cw.Terms]


def log_prior(counts: list[int]) -> Tensor:
    pi = torch.tensor(counts, dtype=torch.float64)
    return (pi / pi.sum()).log()


def free(counts: list[int]) -> Tensor:
    """Positive constants delta_y that have nothing to do with the prior."""
    return torch.tensor([0.4, 1.7, 0.8, 2.6, 1.1], dtype=torch.float64)[: len(counts)]


def general(counts: list[int], kappa: list[float]) -> cw.Terms:
    """Proposition 1."""
    delta = free(counts)
    alpha = (delta.log() - log_prior(counts)).exp()
    return ct.ce(counts).replace(alpha=alpha, delta=delta.log())


def general_with_slopes(counts: list[int], kappa: list[float]) -> cw.Terms:
    """Proposition 2, as its proof has it."""
    terms = general(counts, kappa)
    return terms.replace(delta=terms.delta - torch.tensor(kappa, dtype=torch.float64).log())


def general_as_printed(counts: list[int], kappa: list[float]) -> cw.Terms:
    """Proposition 2, as it is printed: log(delta_y) / kappa_y."""
    terms = general(counts, kappa)
    return terms.replace(delta=terms.delta / torch.tensor(kappa, dtype=torch.float64))


def general_factors(counts: list[int], kappa: list[float]) -> cw.Terms:
    """Proposition 3."""
    terms = general(counts, kappa)
    beta = terms.delta.exp() / torch.tensor(kappa, dtype=torch.float64)
    return terms.replace(beta=beta, delta=torch.zeros(len(counts)))


def gauged(counts: list[int], kappa: list[float]) -> cw.Terms:
    """Proposition 1 up to what changes nothing: a factor of alpha and of beta, a shift of delta."""
    terms = general(counts, kappa)
    beta = 2 * torch.ones(len(counts), dtype=torch.float64)
    return terms.replace(alpha=3 * terms.alpha, beta=beta, delta=terms.delta + 0.7)


def gauged_factors(counts: list[int], kappa: list[float]) -> cw.Terms:
    """Proposition 3 up to a factor of alpha and of beta."""
    terms = general_factors(counts, kappa)
    return terms.replace(alpha=3 * terms.alpha, beta=0.5 * terms.beta)


CASES: dict[str, tuple[Make, set[str]]] = {
    # name: terms of counts and slopes, and the assumptions under which they are consistent
    "ce": (lambda n, k: ct.ce(n), set()),
    "balanced": (lambda n, k: ct.balanced(n), {"global"}),
    "class_balanced": (lambda n, k: ct.class_balanced(n, p=0.99), set()),
    "la": (lambda n, k: ct.la(n), {"global"}),
    "la(0.5)": (lambda n, k: ct.la(n, tau=0.5), set()),
    "cdt": (lambda n, k: ct.cdt(n, gamma=0.2), set()),
    "vs": (lambda n, k: ct.vs(n, tau=1.0, gamma=0.15), set()),
    "ldam": (lambda n, k: ct.ldam(n, scale=4.0), set()),
    "mla(1)": (lambda n, k: ct.mla(n, gamma=1.0), set()),
    "mla(0.01)": (lambda n, k: ct.mla(n, gamma=0.01), set()),
    "cla(1)": (lambda n, k: ct.cla(n, tau=1.0), {"global"}),
    "cla(0.9)": (lambda n, k: ct.cla(n, tau=0.9), set()),
    "mla(1, slopes)": (lambda n, k: ct.mla(n, gamma=1.0, slopes=k), {"logit"}),
    "mla(0.01, slopes)": (lambda n, k: ct.mla(n, gamma=0.01, slopes=k), set()),
    "cla(1, slopes)": (lambda n, k: ct.cla(n, tau=1.0, slopes=k), {"confidence"}),
    "cla(0.9, slopes)": (lambda n, k: ct.cla(n, tau=0.9, slopes=k), set()),
    "general": (general, {"global"}),
    "general, gauged": (gauged, {"global"}),
    "general with slopes": (general_with_slopes, {"confidence"}),
    "general as printed": (general_as_printed, set()),
    "general factors": (general_factors, {"logit"}),
    "general factors, gauged": (gauged_factors, {"logit"}),
    "balanced / slopes": (
        lambda n, k: ct.balanced(n).replace(
            alpha=ct.balanced(n).alpha * torch.tensor(k, dtype=torch.float64)
        ),
        {"confidence", "logit"},
    ),
}
ASSUMPTIONS = ("global", "confidence", "logit")
every_case = pytest.mark.parametrize("case", list(CASES))
WORLDS = {
    "four classes": ([700, 200, 80, 20], [0.9, 1.3, 0.6, 0.35]),
    "three": ([900, 60, 40], [1.2, 0.5, 0.8]),
}


@every_case
@pytest.mark.parametrize("world", list(WORLDS))
def test_verdicts(case: str, world: str):
    counts, kappa = WORLDS[world]
    make, holds = CASES[case]
    terms = make(counts, kappa)
    judged = consistent(terms, counts, kappa)
    assert {v.assumption for v in judged.verdicts if v.holds} == holds
    assert bool(judged) == bool(holds & {"confidence", "logit"})
    assert bool(consistent(terms, counts)) == ("global" in holds)


def test_without_slopes_the_local_assumptions_are_shown_for_slopes_of_one():
    counts = [700, 200, 80, 20]
    for name, expected in (("mla(1)", {"logit"}), ("la", {"global", "confidence"})):
        judged = consistent(CASES[name][0](counts, [1.0] * 4), counts)
        assert {v.assumption for v in judged.verdicts if v.holds} == expected
        assert bool(judged) == ("global" in expected)


@pytest.mark.parametrize(
    "name", ["ce", "balanced", "class_balanced", "la", "cdt", "vs", "mla(1)", "cla(0.9)"]
)
def test_everything_is_consistent_with_equal_counts(name: str):
    counts = [70, 70, 70]
    judged = consistent(CASES[name][0](counts, [1.0] * 3), counts)
    assert judged.under("global").holds
    assert judged.under("confidence").holds
    assert bool(judged)


def test_ce_is_consistent_when_counts_are_equal_up_to_rounding_only():
    assert consistent(ct.ce([1, 1]), [10**9, 10**9 + 1])
    assert not consistent(ct.ce([1, 1]), [1000, 1001])
    assert consistent(ct.ce([1, 1]), [1000, 1001], rtol=1e-2)


def test_the_dtype_of_terms_does_not_change_a_verdict():
    counts = cw.longtail_counts(500, 100, 100)
    for terms in (ct.la(counts), ct.balanced(counts), general([7, 2, 1], [])):
        matching = counts if terms.num_classes == 100 else [7, 2, 1]
        assert consistent(terms.to(dtype=torch.float32), matching)


@pytest.mark.parametrize(
    ("terms", "assumption", "named", "unnamed"),
    [
        (ct.ce([9, 1]), "global", ["alpha * pi / exp(delta) differs"], ["beta differs", "margin"]),
        (ct.cdt([9, 1], gamma=1.0), "global", ["beta differs", "exp(delta) differs"], ["margin"]),
        (ct.balanced([9, 1]).replace(beta=[1, 2]), "global", ["beta differs"], ["exp(delta)"]),
        (ct.ldam([9, 1]), "global", ["margin", "exp(delta)"], ["beta differs"]),
        (ct.ldam([9, 1]), "logit", ["margin", "(kappa * beta) differs"], ["delta is"]),
        (
            ct.la([9, 1]),
            "confidence",
            ["alpha * pi / (kappa * exp(delta)) differs"],
            ["beta differs"],
        ),
        (ct.la([9, 1]), "logit", ["delta is not 0", "(kappa * beta) differs"], ["margin"]),
        (ct.mla([9, 1], gamma=1.0), "logit", ["(kappa * beta) differs"], ["delta is"]),
    ],
)
def test_reasons_name_what_breaks_consistency(terms, assumption, named, unnamed):
    verdict = consistent(terms, [9, 1], [0.5, 1.5]).under(assumption)
    assert not verdict.holds
    assert all(part in verdict.reason for part in named)
    assert not any(part in verdict.reason for part in unnamed)


def test_reasons_and_verdicts_are_printed():
    held = consistent(ct.la([9, 1]), [9, 1])
    assert held.under("global").reason == (
        "beta and alpha * pi / exp(delta) are the same for all classes"
    )
    assert str(held).startswith("consistent under global\n  global (Proposition 1): yes")
    broken = consistent(ct.la([9, 1]), [9, 1], [0.5, 1.5])
    assert str(broken).startswith("not consistent under confidence or logit\n")
    with pytest.raises(cw.ArgumentError, match="Known: global, confidence, logit"):
        held.under("local")


def test_wrong_slopes_and_counts_are_refused():
    with pytest.raises(cw.ArgumentError, match="slopes must be > 0"):
        consistent(ct.ce([9, 1]), [9, 1], [1.0, 0.0])
    with pytest.raises(cw.ArgumentError, match="slopes has 3 entries"):
        consistent(ct.ce([9, 1]), [9, 1], [1.0, 1.0, 1.0])
    with pytest.raises(cw.ArgumentError, match="class_counts has 3 classes, the terms 2"):
        consistent(ct.ce([9, 1]), [9, 1, 1])


def test_a_class_of_weight_zero_is_never_consistent():
    judged = consistent(ct.ce([9, 1]).replace(alpha=[1, 0]), [9, 1])
    assert not any(verdict.holds for verdict in judged.verdicts)


# Consistency: minima of the population risk

POINTS, SEEDS = 12, 8


def posteriors(counts: list[int]) -> tuple[Tensor, Tensor]:
    """P[y|x] on the points of several finite input spaces, and argmax_y P[y|x] / pi_y."""
    prior = log_prior(counts).exp()
    rows = []
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        shape = (POINTS, len(counts))
        given_class = torch.randn(shape, generator=generator, dtype=torch.float64).softmax(0)
        joint = given_class * prior
        rows.append(joint / joint.sum(1, keepdim=True))
    eta = torch.cat(rows)
    best = (eta / prior).log().topk(2, dim=1)
    assert bool((best.values[:, 0] - best.values[:, 1] > 1e-4).all())  # no ties
    return eta, best.indices[:, 0]


def minimise(risk: Callable[[Tensor], Tensor], points: int, terms: cw.Terms) -> Tensor:
    """Minimise a convex risk over free logits at each point: damped Newton steps.

    The probability of a point is a positive factor of its risk and moves no minimum. Where the
    minimum is not unique, this is the one reached from logits of 0 without moving along it.
    """
    z = torch.zeros(points, terms.num_classes, dtype=torch.float64)
    damping = torch.full((points, 1, 1), 1e-2, dtype=torch.float64)
    scale = float((terms.alpha * terms.beta).max())
    for _ in range(200):
        value, slope, hessian = derivatives(risk, z)
        if float(slope.abs().max()) < 1e-12 * scale:
            return z
        curvature = hessian.diagonal(dim1=1, dim2=2).amax(1)[:, None, None]
        damped = hessian + damping * curvature * torch.eye(z.shape[1], dtype=torch.float64)
        moved = z - torch.linalg.solve(damped, slope.unsqueeze(2)).squeeze(2)
        better = risk(moved) <= value + 1e-13 * value.abs()
        z = torch.where(better[:, None], moved, z)
        damping = torch.where(better[:, None, None], damping / 10, damping * 10).clamp(1e-9, 1e9)
    raise AssertionError("this is no minimum: the gradient is not 0")


def derivatives(risk: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return value, gradient and Hessian at each point; points do not influence each other."""
    z = z.clone().requires_grad_()
    value = risk(z)
    (slope,) = torch.autograd.grad(value.sum(), z, create_graph=True)
    columns = [torch.autograd.grad(g.sum(), z, retain_graph=True)[0] for g in slope.unbind(1)]
    return value.detach(), slope.detach(), torch.stack(columns, 1)


def loss_of_each_label(z: Tensor, terms: cw.Terms) -> Tensor:
    """L(z(x), y) for every point and every label, (points, C), by the library."""
    points, classes = z.shape
    label = torch.arange(classes).repeat(points)
    return losses(z.repeat_interleave(classes, 0), label, terms).view(points, classes)


def risk_under(assumption: str, eta: Tensor, kappa: Tensor, terms: cw.Terms):
    """Return the risk of free logits in a world in which the assumption holds at the minimum.

    Write a = beta * z + delta for what the cross-entropy sees, and eta-bar for the posterior of the
    re-weighted data, proportional to alpha_y eta_y, as the proofs of Propositions 2 and 3 do.

    - global: nothing is distorted. The minimum of sum_y eta_y L(z, y) has softmax(a) = eta-bar,
      which is Assumption 1 of the adjusted scores.
    - confidence: the training data follow eta_y / kappa_y, so that the minimum has
      softmax(a)_y ~ eta-bar_y / kappa_y, that is eta-bar_y ~ kappa_y softmax(a)_y: Assumption 2,
      and the first line of the proof of Proposition 2.
    - logit: scores are fitted by squares to onehot(y) / kappa, so that the minimum over a has
      a_y = eta-bar_y / kappa_y, that is eta-bar_y = kappa_y a_y: Assumption 3, and the first line
      of the proof of Proposition 3.
    """
    if assumption == "global":
        return lambda z: (eta * loss_of_each_label(z, terms)).sum(1)
    if assumption == "confidence":
        return lambda z: (eta / kappa * loss_of_each_label(z, terms)).sum(1)

    def squared(z: Tensor) -> Tensor:
        onehot = torch.eye(len(kappa), dtype=torch.float64)
        adjusted = (terms.beta * z + terms.delta).unsqueeze(1) - terms.margin * onehot
        errors = (adjusted - onehot / kappa).square().sum(2)  # of each point and label
        return (eta * terms.alpha * errors).sum(1)

    return squared


@every_case
@pytest.mark.parametrize("assumption", ASSUMPTIONS)
@pytest.mark.parametrize("world", list(WORLDS))
def test_minima_are_balanced_bayes_exactly_where_the_verdict_says_so(
    world: str, assumption: str, case: str
):
    counts, slopes = WORLDS[world]
    kappa = torch.tensor(slopes, dtype=torch.float64)
    terms = CASES[case][0](counts, slopes)
    eta, bayes = posteriors(counts)
    z = minimise(risk_under(assumption, eta, kappa, terms), len(eta), terms)
    same = z.argmax(1) == bayes
    verdict = consistent(terms, counts, None if assumption == "global" else slopes)
    if verdict.under(assumption).holds:
        assert bool(same.all())
    else:
        assert not bool(same.all())


@pytest.mark.parametrize("assumption", ASSUMPTIONS)
def test_the_worlds_are_those_of_the_assumptions(assumption: str):
    counts, slopes = WORLDS["four classes"]
    kappa = torch.tensor(slopes, dtype=torch.float64)
    eta, _ = posteriors(counts)
    for case in ("ce", "vs", "general", "general factors"):
        terms = CASES[case][0](counts, slopes)
        z = minimise(risk_under(assumption, eta, kappa, terms), len(eta), terms)
        adjusted = terms.beta * z + terms.delta
        reweighted = eta * terms.alpha
        reweighted = reweighted / reweighted.sum(1, keepdim=True)
        claimed = {
            "global": adjusted.softmax(1),
            "confidence": kappa * adjusted.softmax(1),
            "logit": kappa * adjusted,
        }[assumption]
        claimed = claimed / claimed.sum(1, keepdim=True)
        torch.testing.assert_close(claimed, reweighted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("case", ["ce", "la", "cdt", "vs", "mla(1)", "cla(0.9)"])
def test_minima_are_balanced_bayes_with_equal_counts(case: str):
    counts = [70, 70, 70]
    terms = CASES[case][0](counts, [1.0] * 3)
    eta, bayes = posteriors(counts)
    z = minimise(risk_under("global", eta, torch.ones(3), terms), len(eta), terms)
    assert torch.equal(z.argmax(1), bayes)


def test_terms_in_float32_are_judged_like_those_in_float64():
    counts = [8142, 500, 20, 1]
    for terms in (cw.terms.la(counts, tau=1.0), cw.terms.balanced(counts), cw.terms.ce(counts)):
        narrow = terms.to(dtype=torch.float32)
        assert bool(consistent(narrow, counts)) == bool(consistent(terms, counts))
