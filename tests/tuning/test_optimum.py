"""Vertices of curves through trials: known answers, coverage of their intervals, and what is refused."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from k3ablate.fits.forms import Array
from k3ablate.tuning.optimum import Axis, Optimum, optima

MULTIPLIERS = (0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5)
FIRST = (3.1928, 3.1554, 3.1490, 3.1485, 3.1526, 3.1558, 3.1671)
SECOND = (3.1930, 3.1598, 3.1546, 3.1563, 3.1601, 3.1668, 3.1780)
SWEPT = Axis(0.5, 1.5)
RATES = Axis(1e-3, 1e-1)


def one(axis: Axis, values: object, losses: object, reach: float | None = None) -> Optimum:
    (found,) = optima([axis], values, losses, reach)
    return found


@pytest.mark.parametrize(("losses", "value", "loss"), [(FIRST, 0.971, 3.1492), (SECOND, 0.922, 3.1559)])
def test_two_published_sweeps_of_the_learning_rate(losses: tuple[float, ...], value: float, loss: float) -> None:
    found = one(SWEPT, MULTIPLIERS, losses)
    assert found.value == pytest.approx(value, abs=5e-4)
    assert found.loss == pytest.approx(loss, abs=5e-5)
    assert found.interval is not None
    assert found.interval.contains(found.value)
    assert found.is_from_curve
    assert not found.is_at_edge


def test_a_unit_changes_nothing() -> None:
    found, scaled = (one(Axis(0.5 * unit, 1.5 * unit), np.array(MULTIPLIERS) * unit, FIRST) for unit in (1.0, 3e-4))
    assert scaled.value == pytest.approx(found.value * 3e-4)
    assert scaled.loss == pytest.approx(found.loss)


def test_a_planted_minimum_is_found_without_noise_in_both_scales() -> None:
    for axis, truth in ((Axis(1e-3, 1e-1), 7e-3), (Axis(0.0, 0.3, "linear"), 0.12)):
        values = np.array([axis.value(place) for place in (0.02, 0.3, 0.4, 0.8, 0.97)])
        losses = 3 + 0.4 * (axis.positions(values) - axis.positions(truth)) ** 2
        found = one(axis, values, losses)
        assert found.value == pytest.approx(truth, rel=1e-6)
        assert found.loss == pytest.approx(3.0)


def covered(noise: float, reach: float | None, num_draws: int, loss: Callable[[Array], Array]) -> tuple[int, int]:
    """How often 12 trials at random places claim an optimum, and how often its interval holds the planted .4."""
    generator, truth = np.random.default_rng(0), RATES.value(0.4)
    claimed, hits = 0, 0
    for _ in range(num_draws):
        places = generator.uniform(size=12)
        losses = loss(places) + noise * generator.standard_normal(12)
        found = one(RATES, [RATES.value(place) for place in places], losses, reach)
        claimed += found.is_from_curve
        hits += found.is_from_curve and (found.low or 0) <= truth <= (found.high or math.inf)
    return claimed, hits


def parabola(places: Array) -> Array:
    return 3 + 0.5 * (places - 0.4) ** 2


@pytest.mark.parametrize("reach", [None, 0.35])
@pytest.mark.parametrize(("noise", "fewest"), [(0.01, 0.98), (0.03, 0.75), (0.06, 0.3)])
def test_the_interval_contains_a_planted_minimum_in_95_percent_of_draws(
    noise: float, fewest: float, reach: float | None
) -> None:
    claimed, hits = covered(noise, reach, 2000, parabola)
    assert claimed > fewest * 2000
    assert 0.93 <= hits / claimed <= (0.97 if reach is None else 0.99)  # with a reach it holds two intervals


@pytest.mark.parametrize(("noise", "least"), [(0.01, 0.95), (0.03, 0.93), (0.06, 0.9)])
def test_with_a_reach_the_interval_stands_next_to_a_cliff(noise: float, least: float) -> None:
    claimed, hits = covered(noise, 0.35, 2000, lambda places: parabola(places) + 5 * (places > 0.85))
    assert claimed > 0.2 * 2000
    assert hits / claimed >= least


def test_an_end_beyond_the_range_is_open_and_the_other_one_known() -> None:
    values = np.geomspace(1e-3, 1e-1, 8)
    wobble = 0.2 * np.array([1, -1, -1, 1, 1, -1, -1, 1])
    found = one(RATES, values, 3 + 0.1 * np.log(values / 5e-2) ** 2 + wobble)
    assert found.is_from_curve
    assert found.low is not None
    assert 1e-3 < found.low < found.value < 1e-1
    assert found.high is None
    assert found.interval is None


def test_an_end_too_far_for_a_number_is_open_and_no_end_lies_beyond_the_range() -> None:
    far = 0
    for seed, num_draws in ((244, 81), (2, 1000)):  # the last draw of the first has an end at more than 1e308
        generator = np.random.default_rng(seed)
        for _ in range(num_draws):
            places = generator.uniform(size=5)
            losses = 3 + 0.5 * (places - 0.4) ** 2 + 0.05 * generator.standard_normal(5)
            found = one(RATES, [RATES.value(place) for place in places], losses)
            far += found.is_from_curve and found.interval is None
            for end in (found.low, found.high):
                assert end is None or 1e-3 <= end <= 1e-1
    assert far > 20


@pytest.mark.parametrize("reach", [None, 0.5])
def test_two_parameters_are_told_apart(reach: float | None) -> None:
    generator = np.random.default_rng(1)
    axes, truth = (RATES, Axis(0.0, 1.0, "linear")), (0.3, 0.6)
    hits = np.zeros(2)
    for _ in range(300):
        ranks = np.stack([generator.permutation(16) for _ in axes], axis=1)
        places = (ranks + generator.uniform(size=(16, 2))) / 16
        losses = 3 + ((places - truth) ** 2).sum(axis=1) + 0.01 * generator.standard_normal(16)
        values = np.stack([[axis.value(place) for place in places[:, i]] for i, axis in enumerate(axes)], axis=1)
        for index, found in enumerate(optima(axes, values, losses, reach)):
            assert found.is_from_curve
            value = axes[index].value(truth[index])
            hits[index] += (found.low or 0) <= value <= (found.high or math.inf)
    assert ((hits / 300 > 0.93) & (hits / 300 < (0.985 if reach is None else 1))).all()


def test_a_minimum_beyond_what_was_tried_is_at_the_edge_and_has_no_interval() -> None:
    values = np.geomspace(1e-3, 1e-1, 8)
    for truth in (3e-4, 0.5):
        found = one(RATES, values, 3 + 0.1 * np.log(values / truth) ** 2)
        assert found.is_at_edge
        assert found.interval is None
        assert not found.is_from_curve
        assert found.value == pytest.approx(min(max(truth, 1e-3), 1e-1))


def test_a_curve_that_opens_downwards_has_no_optimum() -> None:
    values = np.geomspace(1e-3, 1e-1, 7)
    found = one(RATES, values, 3 - 0.1 * (RATES.positions(values) - 0.4) ** 2)
    assert found.interval is None
    assert "no minimum" in found.note
    assert found.value == pytest.approx(1e-1)
    assert found.is_at_edge


def test_curvature_that_is_not_told_from_zero_gives_the_best_trial() -> None:
    generator = np.random.default_rng(3)
    values = np.geomspace(1e-3, 1e-1, 12)
    notes = []
    for _ in range(50):
        losses = 3 + 0.1 * generator.standard_normal(12)
        found = one(RATES, values, losses)
        notes.append(found.note)
        if found.interval is None:
            assert found.value == pytest.approx(values[losses.argmin()])
            assert found.loss == losses.min()
    assert any("not told from zero" in note for note in notes)


@pytest.mark.parametrize("values", [[1e-2, 2e-2, 4e-2], [1e-2, 2e-2] * 5])
def test_too_few_trials_or_places_give_the_best_trial(values: list[float]) -> None:
    found = one(RATES, values, 3 + np.arange(len(values)) / 10)
    assert not found.is_from_curve
    assert found.value == pytest.approx(values[0])
    assert "4 or more that differ" in found.note


def test_reach_keeps_a_cliff_out_of_the_curve() -> None:
    values = np.array([2e-3, 5e-3, 8e-3, 1.2e-2, 2e-2, 9e-2, 1e-1])
    losses = 3 + 0.1 * np.log(values / 1e-2) ** 2
    losses[-2:] += 5
    assert one(RATES, values, losses, reach=0.4).value == pytest.approx(1e-2)
    assert one(RATES, values, losses).value != pytest.approx(1e-2, rel=0.2)
