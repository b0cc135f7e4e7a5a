"""Tests that reject as often as they say, corrections by hand, and one exponent for all arms against one each."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from k3ablate.config import InputError
from k3ablate.fits import hypotheses
from k3ablate.fits.hypotheses import aicc, f_test, holm, parallel_test
from k3ablate.fits.lines import equal_slopes, heights
from k3ablate.fits.paired import Point
from k3ablate.fits.solve import LEAST_SQUARES, fit
from k3ablate.fits.uncertainty import seed_noise

SIZES = np.geomspace(1, 100, 4)
ARMS = ("k2", "kda", "k3")
Points = dict[str, list[Point]]


def planted(
    generator: np.random.Generator, exponents: tuple[float, ...] = (0.1,) * 3, floor: float = 0.0, num_seeds: int = 1,
    own: float = 0.001, shared: float = 0.003, sizes: np.ndarray = SIZES,
) -> Points:  # fmt: skip
    """Arms with one multiplier each where exponents are equal; runs of one size and seed share most of their noise."""
    common = shared * generator.standard_normal((len(sizes), num_seeds))
    points: Points = {}
    for index, (arm, exponent) in enumerate(zip(ARMS, exponents, strict=True)):
        noise = common + own * generator.standard_normal(common.shape)
        points[arm] = [
            Point(f"s{size}", seed, float(compute), float((floor + 2 * ((1 + index / 3) * compute) ** -exponent)
                  * np.exp(noise[size, seed])))
            for size, compute in enumerate(sizes) for seed in range(num_seeds)
        ]  # fmt: skip
    return points


def unpaired(points: Points) -> Points:
    """The same losses with seeds of their own in every arm, which share nothing."""
    return {
        arm: [Point(point.size, 10 * index + point.seed, point.compute, point.loss) for point in found]
        for index, (arm, found) in enumerate(points.items())
    }


def test_holm_by_hand() -> None:
    raw = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    assert holm(raw) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(holm(raw)) == list(raw)
    assert holm({}) == {}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_lies_between_the_raw_values_and_bonferronis(raw: list[float]) -> None:
    named = {str(index): value for index, value in enumerate(raw)}
    corrected = holm(named)
    for name, value in named.items():
        assert value <= corrected[name] <= min(1.0, value * len(raw)) + 1e-15
    ordered = sorted(named, key=lambda name: named[name])
    assert [corrected[name] for name in ordered] == sorted(corrected.values())


def test_f_test_equals_the_table_of_the_distribution() -> None:
    test = f_test(3.0, 2.0, 2, 0.1, 10)
    assert test.statistic == pytest.approx(5.0)
    assert test.p_value == pytest.approx(stats.f.sf(5.0, 2, 10))
    assert f_test(0.0, 0.0, 2, 0.0, 10).p_value == 1.0


def test_aicc_is_twice_the_parameters_minus_twice_the_likelihood_with_its_correction() -> None:
    residual = 0.01 * np.random.default_rng(0).standard_normal(12)
    square = float((residual**2).sum())
    likelihood = stats.norm.logpdf(residual, scale=np.sqrt(square / 12)).sum()
    counted = 4  # three and the variance
    expected = -2 * likelihood + 2 * counted + 2 * counted * (counted + 1) / (12 - counted - 1)
    constant = 12 * (np.log(2 * np.pi) + 1)
    assert aicc(square, 12, 3) == pytest.approx(expected - constant)
    assert aicc(square, 5, 3) is None


def test_two_unpaired_arms_without_a_floor_are_the_lines_of_ln_loss() -> None:
    points = {arm: found for arm, found in unpaired(planted(np.random.default_rng(1))).items() if arm != "kda"}
    lines = [heights([p.compute for p in found], np.log([p.loss for p in found])) for found in points.values()]
    test, expected = parallel_test(points, 0.0, LEAST_SQUARES, None).test, equal_slopes(*lines)
    assert test.statistic == pytest.approx(expected.statistic, rel=1e-6)
    assert (test.num_restrictions, test.degrees_of_freedom) == (1, expected.degrees_of_freedom)


@pytest.mark.parametrize(
    ("floor", "given_floor", "sizes"),
    [
        pytest.param(0.0, 0.0, SIZES, id="none"),
        pytest.param(1.2, None, np.geomspace(1, 1e4, 6), id="free", marks=pytest.mark.slow),
    ],
)
def test_true_hypotheses_are_rejected_in_five_percent(
    floor: float, given_floor: float | None, sizes: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise that arms share says nothing about their differences, and is not counted as noise of them."""
    monkeypatch.setattr(hypotheses, "_held_out", lambda *arguments: (None, "p-values are all that is read"))
    generator = np.random.default_rng(2)
    p_values = [
        parallel_test(planted(generator, floor=floor, sizes=sizes), given_floor, LEAST_SQUARES, None).test.p_value
        for _ in range(200 if given_floor is None else 300)
    ]
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_seeds_are_the_noise_where_there_are_some() -> None:
    generator, p_values = np.random.default_rng(3), []
    for _ in range(150):
        points = planted(generator, num_seeds=3)
        flat = [(arm, point) for arm, found in points.items() for point in found]
        seeds = seed_noise(
            [(arm, point.size) for arm, point in flat],
            [(point.size, point.seed) for _, point in flat],
            np.log([point.loss for _, point in flat]),
        )
        test = parallel_test(points, 0.0, LEAST_SQUARES, seeds).test
        assert seeds is not None
        assert test.degrees_of_freedom == seeds.own_degrees
        p_values.append(test.p_value)
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


def test_pairing_sees_what_unpaired_runs_do_not() -> None:
    points = planted(np.random.default_rng(4), exponents=(0.1, 0.1, 0.102))
    paired = parallel_test(points, 0.0, LEAST_SQUARES, None)
    assert paired.rejected
    assert "one exponent for 3 arms is rejected against one each: F(2, " in paired.decision
    assert not parallel_test(unpaired(points), 0.0, LEAST_SQUARES, None).rejected


def test_planted_exponents_are_rejected_by_all_three_answers() -> None:
    points = planted(np.random.default_rng(5), (0.1, 0.11, 0.12), num_seeds=2)
    found = parallel_test(points, 0.0, 1e-3, None)
    assert found.rejected
    assert found.aicc_common is not None
    assert found.aicc_own is not None
    assert found.aicc_own < found.aicc_common
    assert found.held_out_common is not None
    assert found.held_out_own is not None
    assert found.held_out_own < found.held_out_common


def test_floors_that_differ_are_rejected_too() -> None:
    points = planted(np.random.default_rng(6), floor=1.2, num_seeds=2, sizes=np.geomspace(1, 1000, 6))
    lifted = [Point(p.size, p.seed, p.compute, p.loss + 0.1) for p in points["kda"]]
    assert not parallel_test(points, None, 1e-3, None).rejected
    assert parallel_test(points | {"kda": lifted}, None, 1e-3, None).rejected


def test_the_largest_size_is_predicted_from_the_smaller_ones() -> None:
    """By hand: each arm's own power law without its largest size, and the error it makes there."""
    points = planted(np.random.default_rng(7))
    errors = []
    for found in points.values():
        smaller = fit([p.compute for p in found[:-1]], [p.loss for p in found[:-1]], "power", LEAST_SQUARES)
        errors.append(np.log(found[-1].loss) - np.log(smaller.predict(found[-1].compute)))
    found_test = parallel_test(points, 0.0, LEAST_SQUARES, None)
    assert found_test.held_out_own == pytest.approx(np.sqrt(np.mean(np.square(errors))), rel=1e-6)


def test_without_enough_sizes_there_is_no_prediction_and_a_reason() -> None:
    two = {arm: found[:2] for arm, found in planted(np.random.default_rng(8), num_seeds=1).items()}
    more = {arm: [*found, Point("s0", 9, found[0].compute, found[0].loss * 1.001)] for arm, found in two.items()}
    found = parallel_test(more, 0.0, LEAST_SQUARES, None)
    assert (found.held_out_common, found.held_out_own) == (None, None)
    assert found.no_held_out == "without its largest size k2 has fewer than two sizes"
    three = {arm: found[:3] for arm, found in planted(np.random.default_rng(8), num_seeds=1).items()}
    free = parallel_test(three, None, LEAST_SQUARES, None)
    assert free.held_out_own is None
    assert free.no_held_out == "without the largest size no arm has 3 sizes, which a free floor needs"


@pytest.mark.parametrize(
    ("kept", "floor", "message"),
    [
        (1, 0.0, "0 of 3 arms with two sizes or more, two are needed"),
        (2, None, "no arm has more than 2 sizes, which lie on curves with any floor"),
        (2, 0.0, "6 points of 3 arms for 6 free parameters"),
    ],
)
def test_what_cannot_be_tested_is_refused(kept: int, floor: float | None, message: str) -> None:
    points = {arm: found[:kept] for arm, found in planted(np.random.default_rng(9)).items()}
    with pytest.raises(InputError, match=message):
        parallel_test(points, floor, 1e-3, None)
