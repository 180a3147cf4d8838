import itertools

import pytest
import torch

import classwise as cw
from classwise._hyper import DEFAULTS, RANGES
from classwise.phases import TERMS, WEIGHTS, epoch_of
from classwise.recipes import BASES, SUFFIXES

COUNTS = [500, 120, 60, 19, 5]
ISSUE_BASES = [
    *("ce", "balanced", "cb", "focal", "la", "cdt", "vs"),
    *("ldam", "ala", "ib", "lade", "mla", "cla", "cvs"),
]


def legal_methods() -> list[str]:
    names = []
    for row in cw.list_methods():
        for taken in itertools.product([False, True], repeat=len(row.suffixes)):
            suffixes = [s for s, use in zip(row.suffixes, taken, strict=True) if use]
            if not {"drw", "adrw"} <= set(suffixes):
                names.append("+".join([row.name, *suffixes]))
    return names


def alpha_delta_beta(recipe: cw.Recipe, phase: int) -> cw.Terms:
    return recipe.phases[phase].build(torch.tensor(COUNTS))


def test_the_registry_holds_the_methods_of_the_grammar():
    assert list(BASES) == ISSUE_BASES
    assert [row.name for row in cw.list_methods()] == ISSUE_BASES


@pytest.mark.parametrize("method", legal_methods())
def test_every_legal_method_parses_to_its_own_name(method: str):
    recipe = cw.Recipe.parse(method)
    assert recipe.name == method
    assert recipe.phases[0].start == 0
    assert cw.Recipe.parse(method.upper()) == recipe


@pytest.mark.parametrize("method", [f"{b}+{s}" for b, base in BASES.items() for s in base.refuses])
def test_every_illegal_combination_says_why(method: str):
    base, suffix = method.split("+")
    with pytest.raises(cw.RecipeError, match="is no method") as error:
        cw.Recipe.parse(method)
    assert BASES[base].refuses[suffix] in str(error.value)


def test_cvs_refuses_tla_because_it_drops_beta_itself():
    with pytest.raises(cw.RecipeError, match="already drops beta at T0"):
        cw.Recipe.parse("cvs+tla")


@pytest.mark.parametrize("base", BASES)
def test_every_default_has_a_range_and_a_source(base: str):
    for name in BASES[base].hyper:
        assert DEFAULTS[base, name].source
        assert name in RANGES
    for (part, name), default in DEFAULTS.items():
        assert part in BASES or part in SUFFIXES
        cw.Recipe.parse("ce")
        assert RANGES[name].low <= default.value <= RANGES[name].high


def test_drw_switches_to_effective_number_weights_after_t0_epochs():
    recipe = cw.Recipe.parse("ldam+drw")
    assert recipe.starts(200, 0.8) == [0, 160]
    first, second = alpha_delta_beta(recipe, 0), alpha_delta_beta(recipe, 1)
    assert torch.equal(first.alpha, torch.ones(5, dtype=torch.float64))
    assert torch.equal(second.alpha, cw.terms.effective_number(COUNTS, 0.9999))
    assert torch.equal(first.margin, second.margin)
    assert torch.equal(first.beta, second.beta)


def test_adrw_switches_to_power_weights():
    second = alpha_delta_beta(cw.Recipe.parse("ce+adrw", nu=0.15), 1)
    assert torch.equal(second.alpha, cw.terms.power_weights(COUNTS, 0.15))
    assert not second.shifts
    assert not second.scales


def test_tla_drops_beta_and_keeps_delta():
    recipe = cw.Recipe.parse("vs+tla+adrw", tau=1.0, gamma=0.1)
    first, second = alpha_delta_beta(recipe, 0), alpha_delta_beta(recipe, 1)
    assert first.scales
    assert not second.scales
    assert torch.equal(first.delta, second.delta)


def test_tla_may_have_a_tau_of_its_own():
    recipe = cw.Recipe.parse("vs+tla", tau=1.0, deferred_tau=0.75)
    first, second = alpha_delta_beta(recipe, 0), alpha_delta_beta(recipe, 1)
    assert torch.allclose(second.delta, 0.75 * first.delta)


def test_cvs_is_mla_and_then_cla_without_an_additive_term_before():
    recipe = cw.Recipe.parse("cvs+adrw", gamma=0.01, tau=0.9, nu=0.2)
    kappa = torch.tensor([0.9, 1.0, 1.1, 1.2, 0.8], dtype=torch.float64)
    counts = torch.tensor(COUNTS)
    first = recipe.phases[0].build(counts, kappa)
    second = recipe.phases[1].build(counts, kappa)
    assert first.isclose(cw.terms.mla(COUNTS, gamma=0.01, slopes=kappa))
    expected = cw.terms.cla(COUNTS, tau=0.9, slopes=kappa)
    assert second.isclose(expected.replace(alpha=cw.terms.power_weights(COUNTS, 0.2)))
    assert [phase.slope for phase in recipe.phases] == ["star", "plus"]


def test_ib_begins_at_half_of_training_with_inverse_frequency_weights():
    recipe = cw.Recipe.parse("ib")
    assert recipe.starts(200, 0.8) == [0, 100]
    weights = alpha_delta_beta(recipe, 1).alpha
    assert torch.allclose(weights * torch.tensor(COUNTS), weights[0] * COUNTS[0])
    assert weights.sum() == pytest.approx(5)


def test_a_recipe_by_hand_equals_the_named_one():
    mine = cw.Recipe(
        [
            cw.Phase(cw.Part("mla", gamma=0.01)),
            cw.Phase(cw.Part("cla", tau=0.9), start="defer", weights=cw.Part("power", nu=0.2)),
        ],
        name="cvs+adrw",
    )
    assert mine == cw.Recipe.parse("cvs+adrw", gamma=0.01, tau=0.9, nu=0.2)


def test_a_phase_takes_ready_terms_and_functions():
    ready = cw.terms.vs(COUNTS, tau=1.0, gamma=0.1)
    assert cw.Phase(ready).build(torch.tensor(COUNTS)).isclose(ready)
    assert (
        cw.Phase(cw.terms.balanced).build(torch.tensor(COUNTS)).isclose(cw.terms.balanced(COUNTS))
    )
    with pytest.raises(cw.RecipeError, match="must return Terms"):
        cw.Phase(lambda counts: counts).build(torch.tensor(COUNTS))
    with pytest.raises(cw.RecipeError, match="have 5 classes, class_counts 3"):
        cw.Phase(ready).build(torch.tensor([3, 2, 1]))


def test_other_terms_make_another_recipe_text():
    one = cw.Recipe([cw.Phase(cw.terms.la(COUNTS, tau=1.0))])
    other = cw.Recipe([cw.Phase(cw.terms.la(COUNTS, tau=1.0 + 1e-9))])
    assert str(one) != str(other)


@pytest.mark.parametrize(
    ("value", "epochs", "expected"),
    [
        (0.8, 200, 160),
        (160, 200, 160),
        (0.05, 200, 10),
        (0.0, 5, 0),
        (0.8, 1, 0),
        (0.8, 2, 1),
        (0.8, 60, 48),
        (0, 5, 0),
        (0.7, 10, 7),
        (0.29, 100, 29),
    ],
)
def test_an_int_is_epochs_and_a_float_a_fraction(value: float, epochs: int, expected: int):
    assert epoch_of("defer_at", value, epochs) == expected


def test_rows_name_defaults_and_needs():
    rows = {row.name: row for row in cw.list_methods()}
    assert rows["vs"].defaults["gamma"][0] == 0.05
    assert "scripts" in rows["vs"].defaults["gamma"][1]
    assert rows["ldam"].needs == "cosine logits"
    assert rows["ib"].needs == "features of the last layer"
    assert rows["vs"].suffixes == ("tla", "drw", "adrw")
    assert all(row.title and row.recipe.startswith(row.name) for row in rows.values())


def test_every_named_part_names_the_arguments_of_its_function():
    for name, spec in TERMS.items():
        built = spec.build(COUNTS, **dict.fromkeys(spec.hyper, 0.5))
        assert isinstance(built, cw.Terms), name
    for weigh, hyper in WEIGHTS.values():
        assert weigh(COUNTS, **dict.fromkeys(hyper, 0.5)).mean() == pytest.approx(1)


@pytest.mark.parametrize("base", BASES)
def test_a_recipe_says_what_it_needs(base: str):
    recipe = cw.Recipe.parse(base)
    assert recipe.needs_cosine_head == (base in ("ldam", "ala"))
    assert recipe.needs_features == (base == "ib")
    assert recipe.leans_on_slopes == (base in ("mla", "cla", "cvs"))


def test_any_phase_may_need_something():
    late = cw.Part("influence", strength=1000)
    recipe = cw.Recipe([cw.Phase("ce"), cw.Phase(cw.terms.ldam(COUNTS), start=0.5)])
    assert recipe.needs_cosine_head
    assert not recipe.needs_features
    assert not recipe.leans_on_slopes
    assert cw.Recipe([cw.Phase("ce"), cw.Phase("ce", start=0.5, loss=late)]).needs_features
    assert cw.Recipe([cw.Phase(), cw.Phase(cw.Part("cla", tau=1), start=3)]).leans_on_slopes
    assert not cw.Recipe([cw.Phase(cw.terms.vs(COUNTS, tau=1.0, gamma=0.1))]).needs_cosine_head


def test_a_function_says_which_slopes_it_leans_on():
    def mine(class_counts: torch.Tensor, slopes: torch.Tensor) -> cw.Terms:
        return cw.terms.mla(class_counts, gamma=0.1, slopes=slopes)

    phase = cw.Phase(mine, leans_on="star")
    assert phase.slope == "star"
    assert cw.Recipe([phase]).leans_on_slopes
    counts, kappa = torch.tensor(COUNTS), torch.tensor([1.0, 2, 3, 4, 5])
    assert phase.build(counts).isclose(cw.terms.mla(COUNTS, gamma=0.1))
    assert phase.build(counts, kappa).isclose(cw.terms.mla(COUNTS, gamma=0.1, slopes=kappa))
