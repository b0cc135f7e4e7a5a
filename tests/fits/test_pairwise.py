"""What the arms of partial designs determine, what they leave open, and what contradicts the model."""

import itertools

import numpy as np
import pytest

from k3ablate.fits.forms import Array
from k3ablate.fits.pairwise import fit_pairwise
from k3ablate.fits.split import Coalition, coalitions, shapley

NAMES = "abcd"
ALONE = {name: name for name in NAMES}  # every change is a component of its own
EVERYTHING = frozenset(NAMES)
ONE_AT_A_TIME = [frozenset(name) for name in NAMES]
LEAVE_ONE_OUT = [EVERYTHING - {name} for name in NAMES]
ENDS = [frozenset(), EVERYTHING]


def planted(triple: float = 0.0, num_draws: int = 50, deviation: float = 0.01) -> dict[Coalition, Array]:
    """A game of singles and pairs on all coalitions, with noise in the draws only."""
    generator = np.random.default_rng(5)
    singles = {name: generator.normal() for name in NAMES}
    pairs = {frozenset(pair): 0.2 * generator.normal() for pair in itertools.combinations(NAMES, 2)}
    values = {}
    for subset in coalitions(NAMES):
        value = sum(singles[name] for name in subset) + sum(v for pair, v in pairs.items() if pair <= subset)
        value += triple * (frozenset("abc") <= subset)
        values[subset] = np.concatenate([[value], value + deviation * generator.normal(size=num_draws)])
    return values


def some(values: dict[Coalition, Array], arms: list[Coalition]) -> dict[Coalition, Array]:
    return {arm: values[arm] for arm in arms}


def test_a_full_factorial_gives_the_exact_shapley_value_of_a_game_of_pairs() -> None:
    values = planted()
    model = fit_pairwise(values, ALONE)
    assert (model.rank, model.num_arms, model.groups) == (11, 16, ())
    for name, exact in shapley(values, NAMES).items():
        part = model.part(name, EVERYTHING)
        assert part is not None
        assert part[0] == pytest.approx(exact[0], abs=1e-12)


def test_singles_and_pairs_are_enough_and_fit_exactly() -> None:
    values = planted()
    arms = [subset for subset in coalitions(NAMES) if len(subset) <= 2]
    model = fit_pairwise(some(values, arms), ALONE)
    assert (model.rank, model.num_arms, model.groups, model.misfit) == (11, 11, (), None)
    interaction = model.estimate({frozenset("ab"): 1.0})
    assert interaction is not None
    expected = values[frozenset("ab")] - values[frozenset("a")] - values[frozenset("b")] + values[frozenset()]
    np.testing.assert_allclose(interaction, expected, atol=1e-12)


def test_one_at_a_time_sees_every_single_and_only_the_sum_of_pairs() -> None:
    values = planted()
    model = fit_pairwise(some(values, [*ENDS, *ONE_AT_A_TIME]), ALONE)
    (group,) = model.groups
    assert set(group) == {frozenset(pair) for pair in itertools.combinations(NAMES, 2)}
    assert model.rank == 6
    single = model.estimate({frozenset("a"): 1.0})
    assert single is not None
    np.testing.assert_allclose(single, values[frozenset("a")] - values[frozenset()], atol=1e-12)
    assert model.estimate({frozenset("ab"): 1.0}) is None
    assert model.part("a", EVERYTHING) is None
    together = model.estimate(dict.fromkeys(group, 1.0))
    assert together is not None
    ends = values[EVERYTHING] - values[frozenset()]
    singles = sum(values[frozenset(name)] - values[frozenset()] for name in NAMES)
    np.testing.assert_allclose(together, ends - singles, atol=1e-12)


def test_without_the_full_arm_no_pair_is_seen_at_all() -> None:
    model = fit_pairwise(some(planted(), [frozenset(), *ONE_AT_A_TIME]), ALONE)
    assert [len(group) for group in model.groups] == [1] * 6


def test_leave_one_out_leaves_every_single_and_pair_open() -> None:
    model = fit_pairwise(some(planted(), [*ENDS, *LEAVE_ONE_OUT]), ALONE)
    (group,) = model.groups
    assert len(group) == 10
    assert all(model.part(name, EVERYTHING) is None for name in NAMES)


def test_both_designs_together_give_the_mean_of_first_and_last_in() -> None:
    values = planted()
    model = fit_pairwise(some(values, [*ENDS, *ONE_AT_A_TIME, *LEAVE_ONE_OUT]), ALONE)
    for name, exact in shapley(values, NAMES).items():
        part = model.part(name, EVERYTHING)
        assert part is not None
        assert part[0] == pytest.approx(exact[0], abs=1e-12)
        assert model.estimate({frozenset({name, "a" if name != "a" else "b"}): 1.0}) is None


def test_an_arm_that_does_not_matter_brings_no_infinity() -> None:
    values = some(planted(), [*ENDS, *ONE_AT_A_TIME])
    values[EVERYTHING] = np.full_like(values[EVERYTHING], np.inf)
    single = fit_pairwise(values, ALONE).estimate({frozenset("a"): 1.0})
    assert single is not None
    assert np.isfinite(single).all()


def test_three_that_interact_contradict_the_model() -> None:
    honest, wrong = fit_pairwise(planted(), ALONE), fit_pairwise(planted(triple=0.3), ALONE)
    assert honest.misfit == 1.0
    assert wrong.misfit == 0.0


def test_misfit_is_uniform_where_the_model_holds() -> None:
    generator, arms = np.random.default_rng(6), coalitions(NAMES)
    found = []
    for _ in range(400):
        noisy = {arm: 0.1 * generator.normal() for arm in arms}
        values = {arm: np.concatenate([[noisy[arm]], noisy[arm] + 0.1 * generator.normal(size=200)]) for arm in arms}
        found.append(fit_pairwise(values, ALONE).misfit)
    below = np.mean(np.array(found) < 0.05)
    assert 0.02 < below < 0.085  # 5 percent, give or take three standard errors


def test_levels_of_one_component_never_meet() -> None:
    generator = np.random.default_rng(7)
    component_of = {"residual=block": "residual", "residual=full": "residual", "attention=kda": "attention"}
    arms = [frozenset(members) for members in (
        (), ("residual=block",), ("residual=full",), ("attention=kda",), ("residual=block", "attention=kda"),
        ("residual=full", "attention=kda"),
    )]  # fmt: skip
    values = {arm: generator.normal(size=2) for arm in arms}
    model = fit_pairwise(values, component_of)
    assert len(model.terms) == 5
    assert frozenset({"residual=block", "residual=full"}) not in model.terms
    assert model.estimate({frozenset({"residual=block", "residual=full"}): 1.0}) is None
    part = model.part("residual=block", frozenset({"residual=block", "attention=kda"}))
    assert part is not None
    cube = {subset: values[subset] for subset in coalitions(["residual=block", "attention=kda"])}
    np.testing.assert_allclose(part, shapley(cube, ["residual=block", "attention=kda"])["residual=block"], atol=1e-12)
