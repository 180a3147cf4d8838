import copy
import inspect
import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import losses as reference
from torch import Tensor

from classwise import terms
from classwise._hyper import DEFAULTS
from classwise.errors import ArgumentError, UnknownNameError
from classwise.terms import Terms

FIELDS = ("alpha", "beta", "delta", "margin")

COUNTS = {
    "cifar": [500, 120, 60, 19, 5],
    "extreme": [1_000_000, 1, 1_000, 1],
    "rising": [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000],
    "equal": [7, 7, 7],
    "ones": [1, 1],
}


def some_slopes(counts: list[int]) -> list[float]:
    return [0.3 + 1.7 / n**0.25 for n in counts]


# name of the constructor, its arguments; a callable argument is called with the counts.
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("ce", {}),
    ("balanced", {}),
    ("class_balanced", {"p": 0.9999}),
    ("class_balanced", {"p": 0.9}),
    ("la", {"tau": 1.0}),
    ("la", {"tau": 0.65}),
    ("cdt", {"gamma": 0.2}),
    ("cdt", {"gamma": 1.0}),
    ("vs", {"tau": 1.25, "gamma": 0.15}),
    ("ldam", {"max_margin": 0.5, "scale": 30.0}),
    ("ldam", {"max_margin": 0.3, "scale": 1.0}),
    ("mla", {"gamma": 0.01, "slopes": some_slopes}),
    ("cla", {"tau": 0.9, "slopes": some_slopes}),
    ("power_weights", {"nu": 0.2}),
    ("power_weights", {"nu": 1.0}),
    ("effective_number", {"p": 0.9999}),
    ("effective_number", {"p": 0.0}),
]
IDS = [name + "".join(f"-{v}" for v in kw.values() if not callable(v)) for name, kw in ROWS]
rows = pytest.mark.parametrize(("name", "arguments"), ROWS, ids=IDS)
profiles = pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)


def resolved(arguments: dict[str, Any], counts: list[int]) -> dict[str, Any]:
    return {k: v(counts) if callable(v) else v for k, v in arguments.items()}


def fields_of(made: Terms | Tensor) -> dict[str, Tensor]:
    if isinstance(made, Tensor):
        return {"alpha": made}
    return {name: getattr(made, name) for name in FIELDS}


def assert_close(actual: Tensor, expected: object, rtol: float = 1e-12) -> None:
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, wanted, rtol=rtol, atol=1e-13)


def build(name: str, counts: Any, arguments: dict[str, Any], **options: Any) -> dict[str, Tensor]:
    return fields_of(getattr(terms, name)(counts, **arguments, **options))


# --------------------------------------------------------------------------- constructors


def test_every_constructor_has_a_row() -> None:
    assert {name for name, _ in ROWS} == set(terms.__all__) - {"Terms"}


@rows
@profiles
def test_constructor_equals_the_oracle(
    name: str, arguments: dict[str, Any], counts: list[int]
) -> None:
    arguments = resolved(arguments, counts)
    expected = getattr(reference, name)(counts, **arguments)
    expected = expected if isinstance(expected, dict) else {"alpha": expected}
    actual = build(name, counts, arguments)
    for field, vector in actual.items():
        assert vector.dtype == torch.float64
        assert_close(vector, expected[field])


@rows
@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(1, 10**6), min_size=2, max_size=8))
def test_constructor_equals_the_oracle_for_any_counts(
    name: str, arguments: dict[str, Any], counts: list[int]
) -> None:
    arguments = resolved(arguments, counts)
    expected = getattr(reference, name)(counts, **arguments)
    expected = expected if isinstance(expected, dict) else {"alpha": expected}
    for field, vector in build(name, counts, arguments).items():
        assert_close(vector, expected[field])


@rows
@profiles
def test_permuted_classes_give_permuted_terms(
    name: str, arguments: dict[str, Any], counts: list[int]
) -> None:
    order = torch.randperm(len(counts))
    permuted = [counts[i] for i in order]
    made = build(name, counts, resolved(arguments, counts))
    for field, vector in build(name, permuted, resolved(arguments, permuted)).items():
        assert_close(vector, made[field][order])


@rows
def test_an_empty_class_counts_as_one_sample(name: str, arguments: dict[str, Any]) -> None:
    with_empty, with_one = [0, 500, 3, 0], [1, 500, 3, 1]
    arguments = resolved(arguments, with_one)
    expected = build(name, with_one, arguments)
    for field, vector in build(name, with_empty, arguments, allow_empty=True).items():
        assert bool(torch.isfinite(vector).all())
        assert vector.tolist() == expected[field].tolist()


@rows
def test_an_empty_class_is_refused_by_default(name: str, arguments: dict[str, Any]) -> None:
    counts = [5, 0, 3, 0]
    with pytest.raises(ArgumentError, match=r"2 class\(es\) without samples \(index 1, 3\)"):
        build(name, counts, resolved(arguments, [5, 1, 3, 1]))


@pytest.mark.parametrize("container", [tuple, np.array, torch.tensor], ids=["tuple", "np", "torch"])
@rows
def test_counts_may_be_any_sequence_of_integers(
    name: str, arguments: dict[str, Any], container: Callable[[list[int]], Any]
) -> None:
    counts = COUNTS["cifar"]
    arguments = resolved(arguments, counts)
    expected = build(name, counts, arguments)
    for field, vector in build(name, container(counts), arguments).items():
        assert_close(vector, expected[field])


def test_counts_may_be_a_read_only_array() -> None:
    counts = np.array([9, 1])
    counts.flags.writeable = False
    assert terms.ce(counts).num_classes == 2


@pytest.mark.parametrize("name", ["power_weights", "effective_number", "class_balanced"])
@profiles
def test_weights_have_mean_one(name: str, counts: list[int]) -> None:
    strength = {"nu": 0.7} if name == "power_weights" else {"p": 0.999}
    alpha = build(name, counts, strength)["alpha"]
    assert float(alpha.mean()) == pytest.approx(1, abs=1e-13)


# --------------------------------------------------------------------------- identities


def test_vs_without_gamma_is_la(counts: list[int]) -> None:
    assert terms.vs(counts, tau=0.75, gamma=0.0).isclose(terms.la(counts, tau=0.75), rtol=1e-14)


def test_vs_without_tau_is_cdt(counts: list[int]) -> None:
    assert terms.vs(counts, tau=0.0, gamma=0.15).isclose(terms.cdt(counts, gamma=0.15), rtol=1e-14)


@pytest.mark.parametrize(
    "make",
    [
        lambda counts: terms.la(counts, tau=0.0),
        lambda counts: terms.cdt(counts, gamma=0.0),
        lambda counts: terms.vs(counts, tau=0.0, gamma=0.0),
        lambda counts: terms.mla(counts, gamma=0.0),
        lambda counts: terms.cla(counts, tau=0.0, slopes=[0.5, 2, 1, 1, 3]),
        lambda counts: terms.ldam(counts, max_margin=0.0, scale=1.0),
        lambda counts: terms.class_balanced(counts, p=0.0),
        lambda counts: terms.ce(counts).replace(alpha=terms.power_weights(counts, nu=0.0)),
    ],
    ids=["la", "cdt", "vs", "mla", "cla", "ldam", "class_balanced", "power_weights"],
)
def test_strength_zero_is_cross_entropy(
    make: Callable[[list[int]], Terms], counts: list[int]
) -> None:
    made = make(counts)
    assert made.isclose(terms.ce(counts), rtol=1e-14)
    assert not any([made.scales, made.shifts, made.has_margin, made.weighs])


def test_cla_without_slopes_is_la(counts: list[int]) -> None:
    assert terms.cla(counts, tau=0.9).isclose(terms.la(counts, tau=0.9), rtol=1e-14)


def test_mla_is_cdt_up_to_a_global_temperature(counts: list[int]) -> None:
    ratio = terms.mla(counts, gamma=0.3).beta / terms.cdt(counts, gamma=0.3).beta
    assert_close(ratio, [(max(counts) / sum(counts)) ** 0.3] * len(counts))


def test_slopes_equal_to_the_prior_undo_the_adjustment(counts: list[int]) -> None:
    pi = reference.prior(counts)
    assert_close(terms.mla(counts, gamma=1.0, slopes=pi).beta, [1.0] * 5)
    assert_close(terms.cla(counts, tau=1.0, slopes=pi).delta, [0.0] * 5)


def test_balanced_weights_are_the_inverse_prior_and_not_mean_one() -> None:
    assert_close(terms.balanced([75, 25]).alpha, [4 / 3, 4.0])


def test_ldam_margins_of_cifar_100_lt() -> None:
    made = terms.ldam([500, 5])
    assert (made.margin / 30).tolist() == pytest.approx([0.158, 0.5], abs=5e-4)
    assert made.beta.tolist() == [30, 30]


def test_class_balanced_weights_of_cifar_100_lt() -> None:
    counts = [int(500 * 100 ** (-c / 99)) for c in range(100)]
    alpha = terms.class_balanced(counts, p=0.9999).alpha
    assert float(alpha[0]) == pytest.approx(0.045, abs=5e-4)
    assert float(alpha[-1]) == pytest.approx(4.38, abs=5e-3)


def test_mla_of_cifar_100_lt() -> None:
    counts = [int(500 * 100 ** (-c / 99)) for c in range(100)]
    beta = terms.mla(counts, gamma=0.01).beta
    assert float(beta[0]) == pytest.approx(0.970, abs=5e-4)
    assert float(beta[-1]) == pytest.approx(0.926, abs=5e-4)


@pytest.mark.parametrize("below_one", [1e-6, 1e-9, 1e-12, 1e-15])
@profiles
def test_effective_number_keeps_its_digits_next_to_one(below_one: float, counts: list[int]) -> None:
    p = 1 - below_one
    expected = reference.effective_number(counts, p)
    assert_close(terms.effective_number(counts, p), expected, rtol=1e-12)


def test_effective_number_tends_to_the_inverse_frequency(counts: list[int]) -> None:
    nearly = terms.effective_number(counts, math.nextafter(1, 0))
    assert_close(nearly, terms.power_weights(counts, nu=1.0), rtol=1e-9)


def test_power_weights_survive_strengths_at_which_the_power_overflows() -> None:
    assert terms.power_weights([10**6, 1], nu=1e3).tolist() == [0, 2]


def test_every_term_favours_the_smallest_class_most(counts: list[int]) -> None:
    for favour in (
        terms.balanced(counts).alpha,
        terms.class_balanced(counts).alpha,
        terms.power_weights(counts, nu=0.2),
        terms.ldam(counts).margin,
        -terms.la(counts).delta,
        -terms.cdt(counts, gamma=0.1).beta,
    ):
        assert favour.tolist() == sorted(favour.tolist())


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("cb", "class_balanced"),
        *((part, part) for part, _ in DEFAULTS if hasattr(terms, part)),
    ],
)
def test_default_in_the_signature_is_the_one_in_the_table(part: str, name: str) -> None:
    parameters = inspect.signature(getattr(terms, name)).parameters
    table = {key: default.value for (p, key), default in DEFAULTS.items() if p == part}
    assert table.keys() <= parameters.keys()
    for key, value in table.items():
        assert parameters[key].default in (inspect.Parameter.empty, value)


@pytest.mark.parametrize("name", sorted(set(terms.__all__) - {"Terms"}))
def test_only_counts_and_the_strength_of_weights_are_positional(name: str) -> None:
    parameters = list(inspect.signature(getattr(terms, name)).parameters.values())
    by_position = [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    strength = {"power_weights": ["nu"], "effective_number": ["p"]}.get(name, [])
    assert by_position == ["class_counts", *strength]


# --------------------------------------------------------------------------- wrong arguments


TEXT: Any = "1"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n: terms.la(n, tau=-0.1), r"tau=-0.1 is out of range, legal is \[0, inf\)"),
        (lambda n: terms.la(n, tau=math.nan), "tau=nan is out of range"),
        (lambda n: terms.la(n, tau=math.inf), "tau=inf is out of range"),
        (lambda n: terms.la(n, tau=TEXT), "tau='1' must be a number, got str"),
        (lambda n: terms.la(n, tau=True), "tau=True must be a number, got bool"),
        (lambda n: terms.cdt(n, gamma=-1), "gamma=-1 is out of range"),
        (lambda n: terms.vs(n, tau=1, gamma=-1), "gamma=-1 is out of range"),
        (lambda n: terms.mla(n, gamma=-1), "gamma=-1 is out of range"),
        (lambda n: terms.cla(n, tau=-1), "tau=-1 is out of range"),
        (lambda n: terms.ldam(n, max_margin=-1), "max_margin=-1 is out of range"),
        (lambda n: terms.ldam(n, scale=0), r"scale=0 is out of range, legal is \(0, inf\)"),
        (lambda n: terms.class_balanced(n, p=1), r"p=1 is out of range, legal is \[0, 1\)"),
        (lambda n: terms.effective_number(n, -0.5), "p=-0.5 is out of range"),
        (lambda n: terms.power_weights(n, -1), "nu=-1 is out of range"),
        (lambda n: terms.mla(n, gamma=1, slopes=[1, 0, 1, 1, 1]), r"slopes\[1\]=0.0 must be > 0"),
        (lambda n: terms.cla(n, tau=1, slopes=[1, 2]), "slopes has 2 entries where there are 5"),
        (lambda n: terms.cla(n, tau=1, slopes=[math.nan] * 5), r"slopes\[0\]=nan is not finite"),
    ],
)
def test_wrong_strength_is_named_with_what_is_legal(
    call: Callable[[list[int]], object], message: str, counts: list[int]
) -> None:
    with pytest.raises(ArgumentError, match=message):
        call(counts)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ([0.9, 0.1], "must be whole numbers, got list .* not its frequency"),
        (torch.tensor([0.9, 0.1]), "whole numbers, got Tensor of shape .2,. and dtype"),
        ([True, False], "whole numbers"),
        (["9", "1"], "whole numbers"),
        ([10**30, 1], "whole numbers"),
        ([9, -1], r"class_counts\[1\]=-1 is negative"),
        ([9], "at least 2 classes, got 1"),
        ([], "class_counts"),
        ([[9, 1]], "one-dimensional"),
        ([[9, 1], [2]], "class_counts"),
        ({0: 9, 1: 1}, "one-dimensional sequence .* got dict"),
        ("91", "one-dimensional sequence .* got str"),
        (None, "one-dimensional sequence .* got NoneType"),
        (91, "one-dimensional sequence .* got int"),
    ],
    ids=str,
)
def test_wrong_counts_are_refused(wrong: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        terms.ce(wrong)


def test_counts_without_any_sample_are_refused() -> None:
    with pytest.raises(ArgumentError, match="no sample in any class"):
        terms.ce([0, 0], allow_empty=True)


# --------------------------------------------------------------------------- Terms


def test_lists_become_float64_and_tensors_keep_their_dtype() -> None:
    made = Terms(
        alpha=torch.ones(2),
        beta=[1, 2],
        delta=torch.tensor([0, -1]),
        margin=np.zeros(2, np.float16),
    )
    dtypes = [getattr(made, name).dtype for name in FIELDS]
    assert dtypes == [torch.float32, torch.float64, torch.float64, torch.float16]


def test_terms_are_frozen(counts: list[int]) -> None:
    made = terms.ce(counts)
    with pytest.raises(FrozenInstanceError):
        made.alpha = torch.zeros(5)  # type: ignore[misc]


@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_terms_do_not_change_with_what_they_were_made_of(make: Callable[[int], Any]) -> None:
    source = make(2)
    made = terms.ce([3, 1]).replace(alpha=source)
    source[0] = -5
    assert made.alpha.tolist() == [1, 1]


def test_terms_carry_no_gradient() -> None:
    alpha = torch.ones(2, requires_grad=True)
    assert not terms.ce([3, 1]).replace(alpha=alpha).alpha.requires_grad


def test_replace_exchanges_only_what_is_named(counts: list[int]) -> None:
    before = terms.vs(counts, tau=1.0, gamma=0.1)
    after = before.replace(alpha=[1, 2, 3, 4, 5], margin=torch.ones(5))
    assert after.alpha.tolist() == [1, 2, 3, 4, 5]
    assert after.margin.tolist() == [1] * 5
    assert (after.beta.tolist(), after.delta.tolist()) == (
        before.beta.tolist(),
        before.delta.tolist(),
    )
    assert before.alpha.tolist() == [1] * 5


def test_replace_suggests_the_field_that_was_meant(counts: list[int]) -> None:
    with pytest.raises(UnknownNameError, match=r"no field 'alhpa', did you mean 'alpha'\?"):
        terms.ce(counts).replace(alhpa=[1] * 5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"alpha": [1, 2]}, "alpha has 2 entries where there are 5 classes"),
        ({"alpha": [1, 1, 1, -1, 1]}, r"alpha\[3\]=-1.0 must be >= 0"),
        ({"beta": [1, 0, 1, 1, 1]}, r"beta\[1\]=0.0 must be > 0"),
        ({"delta": [0, 0, -math.inf, 0, 0]}, r"delta\[2\]=-inf is not finite"),
        ({"margin": [math.nan] * 5}, r"margin\[0\]=nan is not finite"),
        ({"delta": [[0] * 5]}, r"delta must have shape \(C,\), got \(1, 5\)"),
        ({"delta": 1.0}, r"delta must have shape \(C,\), got \(\)"),
        ({"delta": "abcde"}, "delta must be numbers"),
        ({"delta": None}, "delta must be numbers"),
        ({"delta": [1j] * 5}, "delta must be real numbers"),
        ({"alpha": [True] * 5}, "alpha must be real numbers"),
    ],
)
def test_illegal_field_is_named(fields: dict[str, Any], message: str, counts: list[int]) -> None:
    with pytest.raises(ArgumentError, match=message):
        terms.ce(counts).replace(**fields)


def test_terms_of_different_length_or_one_class_are_refused() -> None:
    one, two = torch.ones(1), torch.ones(2)
    with pytest.raises(ArgumentError, match=r"differ in length: .*'delta': 1"):
        Terms(alpha=two, beta=two, delta=one, margin=two)
    with pytest.raises(ArgumentError, match="at least 2 classes, got 1"):
        Terms(alpha=one, beta=one, delta=one, margin=one)


def test_zero_weight_is_legal() -> None:
    assert terms.ce([3, 1]).replace(alpha=[0, 1]).alpha.tolist() == [0, 1]


def test_flags_say_which_terms_are_neutral(counts: list[int]) -> None:
    flags = ("scales", "shifts", "has_margin", "weighs")
    true_of = {
        "ce": set(),
        "balanced": {"weighs"},
        "la": {"shifts"},
        "ldam": {"scales", "has_margin"},
    }
    for name, expected in true_of.items():
        made = getattr(terms, name)(counts)
        assert {flag for flag in flags if getattr(made, flag)} == expected
    assert {f for f in flags if getattr(terms.vs(counts, tau=1, gamma=1), f)} == {
        "scales",
        "shifts",
    }


def test_to_changes_dtype_and_device(counts: list[int]) -> None:
    made = terms.vs(counts, tau=1.0, gamma=0.1)
    moved = made.to("cpu", torch.float32)
    assert all(getattr(moved, name).dtype == torch.float32 for name in FIELDS)
    assert made.beta.dtype == torch.float64
    assert moved.isclose(made)
    assert made.to(device="cpu").beta.tolist() == made.beta.tolist()
    assert made.to(dtype=torch.float32).delta.dtype == torch.float32


def test_to_refuses_whole_numbers_and_what_would_overflow() -> None:
    made = terms.balanced([10**6, 1])
    with pytest.raises(ArgumentError, match="floating point"):
        made.to(dtype=torch.int64)
    with pytest.raises(ArgumentError, match=r"alpha\[1\]=inf is not finite"):
        made.to(dtype=torch.float16)


def test_map_applies_to_every_field(counts: list[int]) -> None:
    made = terms.vs(counts, tau=1.0, gamma=0.1).map(lambda vector: vector.flip(0))
    assert made.isclose(terms.vs(counts[::-1], tau=1.0, gamma=0.1))


def test_isclose_sees_every_field_and_the_number_of_classes(counts: list[int]) -> None:
    made = terms.ce(counts)
    assert made.isclose(made.to(dtype=torch.float32))
    assert not made.isclose(terms.ce(counts[:4]))
    for name in FIELDS:
        changed = made.replace(**{name: getattr(made, name) + 1e-3})
        assert not made.isclose(changed)
        assert made.isclose(changed, rtol=1e-2)


def test_repr_shows_numbers_and_ranges() -> None:
    made = Terms(*(torch.tensor(v) for v in ([1.0, 1], [0.5, 1], [0, -2.5], [0.0, 0])))
    assert repr(made) == "Terms(2 classes, alpha=1, beta=0.5..1, delta=-2.5..0, margin=0)"


def test_repr_of_strength_zero_is_that_of_cross_entropy(counts: list[int]) -> None:
    assert repr(terms.la(counts, tau=0.0)) == repr(terms.ce(counts))


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))]
)
def test_copies_are_equal(copied: Callable[[Terms], Terms], counts: list[int]) -> None:
    made = terms.vs(counts, tau=1.0, gamma=0.1)
    other = copied(made)
    assert other.isclose(made, rtol=0)
    assert (other.scales, other.shifts, other.has_margin, other.weighs) == (
        True,
        True,
        False,
        False,
    )
