"""Value functions: the published 2x2 answer, Shapley's axioms, the permutations that define the value."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3ablate.config import InputError
from k3ablate.fits.forms import Array
from k3ablate.fits.split import (
    Coalition,
    Values,
    beyond_pairs,
    coalitions,
    combine,
    effect,
    first_in,
    interactions,
    last_in,
    shapley,
    total,
)

NAMES = "abcdefghij"
FACTORIAL = {"": 1.4697, "a": 1.4665, "b": 1.4546, "ab": 1.4525}  # losses of a published 2x2 factorial


def game(values: dict[str, float]) -> dict[Coalition, Array]:
    return {frozenset(members): np.array([value]) for members, value in values.items()}


def random_game(count: int, seed: int, num_values: int = 3) -> dict[Coalition, Array]:
    generator = np.random.default_rng(seed)
    return {subset: generator.normal(size=num_values) for subset in coalitions(NAMES[:count])}


def by_permutations(values: Values, names: str) -> dict[str, Array]:
    """The definition: the mean, over all orders of switching on, of what each adds to those before it."""
    sums = {name: np.zeros_like(values[frozenset()]) for name in names}
    for order in itertools.permutations(names):
        for place, name in enumerate(order):
            sums[name] = sums[name] + values[frozenset(order[: place + 1])] - values[frozenset(order[:place])]
    return {name: value / math.factorial(len(names)) for name, value in sums.items()}


games = st.builds(random_game, st.integers(1, 5), st.integers(0, 2**32 - 1))


def players(values: Values) -> str:
    return "".join(sorted(max(values, key=len)))


def test_published_factorial() -> None:
    values = game(FACTORIAL)
    found, (interaction,) = shapley(values, "ab"), interactions(values, "ab").values()
    assert found["a"][0] == pytest.approx(-0.00265, abs=1e-12)
    assert found["b"][0] == pytest.approx(-0.01455, abs=1e-12)
    assert interaction[0] == pytest.approx(0.0011, abs=1e-12)
    first, last = first_in(values, "a"), last_in(values, "a", frozenset("ab"))
    assert first is not None
    assert last is not None
    assert (first[0], last[0]) == (pytest.approx(-0.0032), pytest.approx(-0.0021))


@given(games)
def test_equals_the_mean_over_all_orders(values: Values) -> None:
    names = players(values)
    expected = by_permutations(values, names)
    for name, value in shapley(values, names).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-12)


@given(games)
def test_efficiency(values: Values) -> None:
    names = players(values)
    whole = values[frozenset(names)] - values[frozenset()]
    np.testing.assert_allclose(total(list(shapley(values, names).values())), whole, rtol=0, atol=1e-12)


@given(games, st.data())
def test_symmetry_under_renaming(values: Values, data: st.DataObject) -> None:
    names = players(values)
    renamed = dict(zip(names, data.draw(st.permutations(list(names))), strict=True))
    moved = {frozenset(renamed[name] for name in subset): value for subset, value in values.items()}
    before, after = shapley(values, names), shapley(moved, names)
    for name in names:
        np.testing.assert_allclose(after[renamed[name]], before[name], rtol=0, atol=1e-12)


@given(games)
def test_a_null_player_gets_nothing_and_changes_nothing(values: Values) -> None:
    names = players(values)
    wider = dict(values) | {subset | {"z"}: value for subset, value in values.items()}
    with_null = shapley(wider, names + "z")
    np.testing.assert_allclose(with_null.pop("z"), 0.0, atol=1e-12)
    for name, value in shapley(values, names).items():
        np.testing.assert_allclose(with_null[name], value, rtol=0, atol=1e-12)
    touching = [value for pair, value in interactions(wider, names + "z").items() if "z" in pair]
    np.testing.assert_allclose(touching, 0.0, atol=1e-12)


@given(st.integers(1, 5), st.integers(0, 2**31), st.integers(0, 2**31), st.floats(-3, 3))
def test_additivity(count: int, seed: int, other_seed: int, weight: float) -> None:
    first, second = random_game(count, seed), random_game(count, other_seed)
    mixed = {subset: first[subset] + weight * second[subset] for subset in first}
    parts = [shapley(values, NAMES[:count]) for values in (first, second, mixed)]
    for name in NAMES[:count]:
        np.testing.assert_allclose(parts[2][name], parts[0][name] + weight * parts[1][name], rtol=0, atol=1e-11)


@given(games)
def test_interactions_add_up_with_first_in_values(values: Values) -> None:
    """The whole is all first-in values and all pairs; a Shapley value is its first in and half of its pairs."""
    names = players(values)
    found, by_pair = shapley(values, names), interactions(values, names)
    first = {name: first_in(values, name) for name in names}
    whole = sum(first.values()) + sum(by_pair.values())  # type: ignore[arg-type]
    np.testing.assert_allclose(whole, values[frozenset(names)] - values[frozenset()], rtol=0, atol=1e-12)
    for name in names:
        halves = sum((value / 2 for pair, value in by_pair.items() if name in pair), np.zeros(3))
        np.testing.assert_allclose(found[name], first[name] + halves, rtol=0, atol=1e-12)


def test_interactions_of_a_game_of_pairs_are_its_pairs() -> None:
    generator, names = np.random.default_rng(3), "abcd"
    singles = {name: generator.normal() for name in names}
    by_pair = {frozenset(pair): generator.normal() for pair in itertools.combinations(names, 2)}
    values = {}
    for subset in coalitions(names):
        together = sum(value for pair, value in by_pair.items() if pair <= subset)
        values[subset] = np.array([sum(singles[name] for name in subset) + together])
    for pair, value in interactions(values, names).items():
        assert value[0] == pytest.approx(by_pair[pair], abs=1e-12)
    assert beyond_pairs(values, names)[0] == pytest.approx(0.0, abs=1e-12)
    values[frozenset(names)] = values[frozenset(names)] + 0.3
    assert beyond_pairs(values, names)[0] == pytest.approx(0.3)


def test_eight_components_with_many_draws_add_up() -> None:
    values = random_game(8, seed=0, num_values=1001)
    found = shapley(values, NAMES[:8])
    whole = values[frozenset(NAMES[:8])] - values[frozenset()]
    np.testing.assert_allclose(sum(found.values()), whole, rtol=0, atol=1e-12)  # type: ignore[arg-type]


def test_a_missing_coalition_is_named() -> None:
    values = random_game(3, seed=1)
    del values[frozenset("ac")]
    for function in (shapley, interactions):
        with pytest.raises(InputError, match=r"1 of 8 coalitions have no value \(a \+ c\)"):
            function(values, "abc")
    assert first_in(values, "a") is not None
    assert last_in(values, "b", frozenset("abc")) is None


def test_draws_that_reach_no_loss_open_the_interval_on_the_side_they_are_on() -> None:
    values = random_game(2, seed=2, num_values=101)
    values[frozenset("ab")][1:21] = np.inf
    values[frozenset()][11:31] = np.inf
    drawn = shapley(values, "ab")["a"][1:]
    assert np.isposinf(drawn[:10]).all()  # v(ab) alone
    assert sorted(drawn[10:20]) == [-np.inf] * 5 + [np.inf] * 5  # both, so that nothing is known
    assert np.isneginf(drawn[20:30]).all()  # v(none) alone
    assert np.isfinite(drawn[30:]).all()
    found = effect(shapley(values, "ab")["a"])
    assert found.factor_interval is not None
    assert (found.factor_interval.low, found.factor_interval.high) == (0.0, np.inf)
    assert not found.told_from_one


@given(games)
def test_infinities_that_carry_no_weight_do_not_matter(values: Values) -> None:
    weights = np.array([[1.0, 0.0]])
    stacked = np.stack([values[frozenset()], np.full(3, np.inf)])
    np.testing.assert_array_equal(combine(weights, stacked)[0], values[frozenset()])


def test_effect_is_the_estimate_with_the_middle_of_its_draws() -> None:
    found = effect(np.concatenate([[0.5], np.linspace(0.0, 1.0, 1001)]))
    assert found.log_interval is not None
    assert found.factor == pytest.approx(np.exp(0.5))
    assert (found.log_interval.low, found.log_interval.high) == (pytest.approx(0.025), pytest.approx(0.975))
    assert found.told_from_one
    assert effect(np.array([0.5])).factor_interval is None
