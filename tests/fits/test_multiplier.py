"""Multipliers of published and planted curves, curve by curve and pair by pair."""

from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy import stats

from k3ablate.config import InputError
from k3ablate.fits.forms import POWER, POWER_FLOOR
from k3ablate.fits.multiplier import (
    check_place,
    common_loss,
    equal_loss_ratio,
    multiplier_curve,
    read_multiplier,
    worth_in_compute,
)
from k3ablate.fits.paired import Point, paired_multiplier
from k3ablate.fits.solve import LEAST_SQUARES, Fit, fit
from k3ablate.fits.uncertainty import Draws, refit

PUBLISHED = Path(__file__).parents[2] / "analysis" / "published"
COMPUTE = np.geomspace(1, 100, 6)


def points(compute: np.ndarray, loss: np.ndarray) -> tuple[Point, ...]:
    pairs = zip(compute, loss, strict=True)
    return tuple(Point(f"rung {rank}", 0, float(c), float(value)) for rank, (c, value) in enumerate(pairs))


def kimi_linear() -> dict[str, tuple[Point, ...]]:
    table = pandas.read_csv(PUBLISHED / "kimi_linear_figure5.csv")
    return {
        str(name): points(rows["pflop_s_days"].to_numpy(), rows["loss"].to_numpy())
        for name, rows in table.groupby("series")
    }


def curve(part: tuple[Point, ...], form: str = "power") -> Fit:
    return fit([point.compute for point in part], [point.loss for point in part], form, LEAST_SQUARES)


def single_draw(fitted: Fit) -> Draws:
    return Draws(fitted.form, {name: np.array([value]) for name, value in fitted.values.items()})


def planted(multiplier: float, form: str = "power_floor") -> tuple[Fit, Fit]:
    values = {"E": 1.4, "A": 0.9, "a": 0.16}
    shapes = {"power": POWER, "power_floor": POWER_FLOOR}
    losses = [shapes[form].predict(values, COMPUTE * factor) for factor in (1.0, multiplier)]
    baseline, arm = (fit(COMPUTE, loss, form) for loss in losses)
    return baseline, arm


@pytest.mark.parametrize(("compute", "ratio"), [(1.0, 1.189), (4.29, 1.160), (10.0, 1.144)])
def test_published_equal_loss_ratios(compute: float, ratio: float) -> None:
    """Kimi Linear against MLA by the published coefficients, at the compute of Kimi Linear."""
    mla, linear = {"A": 2.3092, "a": 0.0536}, {"A": 2.2879, "a": 0.0527}
    assert round(equal_loss_ratio(POWER, mla, linear, compute), 3) == ratio


@pytest.mark.parametrize(("compute", "ratio"), [(5.6, 1.254), (0.5, 1.202)])
def test_published_curves_of_attention_residuals(compute: float, ratio: float) -> None:
    baseline, block = {"A": 1.891, "a": 0.057}, {"A": 1.870, "a": 0.058}
    assert round(equal_loss_ratio(POWER, baseline, block, compute), 3) == ratio


def test_a_seed_deviation_is_worth_about_one_percent_of_compute() -> None:
    """.0013 nats at AttnRes' exponent: 1.3 percent (statistics.md, section 7)."""
    assert worth_in_compute(1.766 + 0.0013, 1.766, 0.0557) == pytest.approx(1.0133, abs=1e-4)


def test_a_ratio_of_curves_equals_the_reading_of_the_same_curves() -> None:
    baseline, arm = planted(1.7)
    read = read_multiplier(baseline, arm, single_draw(baseline), single_draw(arm), None)
    ratio = equal_loss_ratio(POWER_FLOOR, baseline.values, arm.values, read.arm_compute)
    assert ratio == pytest.approx(read.value, rel=1e-9)


def test_published_points_read_at_the_loss_both_reached() -> None:
    arms = kimi_linear()
    mla, linear = curve(arms["MLA"]), curve(arms["Kimi Linear"])
    read = read_multiplier(mla, linear, single_draw(mla), single_draw(linear), None)
    assert read.loss == pytest.approx(float(mla.predict(14.58291)))
    assert read.measured
    assert read.baseline_compute == pytest.approx(14.58291)
    assert 1.10 < read.value < 1.16
    far = read_multiplier(mla, linear, single_draw(mla), single_draw(linear), None, loss=1.9)
    assert not far.measured
    assert far.beyond == pytest.approx(mla.compute_at(1.9) / 14.58291)


def test_published_pairs_share_an_exponent() -> None:
    """1.154 on each arm's own compute, 1.206 if both are given the same."""
    arms = kimi_linear()
    own = paired_multiplier(arms["MLA"], arms["Kimi Linear"])
    compute = np.array([point.compute for point in arms["MLA"]])
    same = paired_multiplier(arms["MLA"], points(compute, np.array([point.loss for point in arms["Kimi Linear"]])))
    assert own is not None
    assert same is not None
    assert own.value == pytest.approx(1.154, abs=5e-4)
    assert same.value == pytest.approx(1.206, abs=2e-3)
    assert own.num_pairs == 5


@pytest.mark.parametrize("multiplier", [0.6, 1.0, 2.5])
@pytest.mark.parametrize("form", ["power", "power_floor"])
def test_planted_multiplier_comes_back_at_any_loss(multiplier: float, form: str) -> None:
    baseline, arm = planted(multiplier, form)
    for loss in (None, float(baseline.predict(7.0)), float(baseline.predict(500.0))):
        read = read_multiplier(baseline, arm, single_draw(baseline), single_draw(arm), None, loss)
        assert read.value == pytest.approx(multiplier, rel=1e-4)
        assert read.interval.contains(read.value) or read.interval.low == pytest.approx(read.value)


def test_reading_beyond_the_points_says_how_far() -> None:
    baseline, arm = planted(2.0)
    inside = read_multiplier(baseline, arm, single_draw(baseline), single_draw(arm), None)
    outside = read_multiplier(
        baseline, arm, single_draw(baseline), single_draw(arm), None, float(baseline.predict(300))
    )
    assert (inside.measured, inside.beyond) == (True, 1.0)
    assert inside.loss == pytest.approx(common_loss(baseline, arm))
    assert not outside.measured
    assert outside.beyond == pytest.approx(3.0, rel=1e-3)


def test_draws_that_never_reach_the_loss_open_the_interval() -> None:
    baseline, arm = planted(2.0)
    loss = float(baseline.predict(90.0))
    floors = np.where(np.arange(100) < 10, loss + 0.1, 1.4)
    drawn = Draws("power_floor", {"E": floors, "A": np.full(100, 0.9), "a": np.full(100, 0.16)})
    read = read_multiplier(baseline, arm, drawn, single_draw(arm), None, loss)
    assert read.interval.high == np.inf
    assert read.interval.low == pytest.approx(2.0, rel=1e-3)
    assert read.unreachable_share == pytest.approx(0.1)


def test_different_forms_are_not_compared() -> None:
    baseline, arm = planted(2.0, "power")[0], planted(2.0)[1]
    with pytest.raises(InputError, match="a power curve against a power_floor curve"):
        read_multiplier(baseline, arm, single_draw(baseline), single_draw(arm), None)


def test_one_outlier_moves_the_robust_multiplier_by_less_than_a_percent() -> None:
    loss = POWER.predict({"A": 2.3, "a": 0.055}, COMPUTE * 1.5)
    spoiled = loss.copy()
    spoiled[2] += 0.1
    baseline = fit(COMPUTE, POWER.predict({"A": 2.3, "a": 0.055}, COMPUTE), "power")
    read = [fit(COMPUTE, losses, "power") for losses in (loss, spoiled)]
    clean, moved = (read_multiplier(baseline, arm, single_draw(baseline), single_draw(arm), None).value for arm in read)
    assert moved == pytest.approx(clean, rel=0.01)


def test_pairs_cancel_noise_that_both_arms_share() -> None:
    generator = np.random.default_rng(3)
    common = np.exp(0.01 * generator.standard_normal(6))
    baseline = points(COMPUTE, POWER.predict({"A": 2.3, "a": 0.055}, COMPUTE) * common)
    arm = points(COMPUTE, POWER.predict({"A": 2.3, "a": 0.055}, COMPUTE * 1.4) * common)
    paired = paired_multiplier(baseline, arm)
    assert paired is not None
    assert np.log(paired.value) * paired.exponent == pytest.approx(np.log(1.4) * 0.055, rel=1e-9)
    assert paired.fixed_exponent_interval.high == pytest.approx(paired.fixed_exponent_interval.low, rel=1e-9)
    assert paired.interval.contains(1.4)


def test_identical_arms_have_multiplier_one() -> None:
    baseline = points(COMPUTE, POWER.predict({"A": 2.3, "a": 0.055}, COMPUTE))
    paired = paired_multiplier(baseline, baseline)
    assert paired is not None
    assert (paired.value, paired.interval.low, paired.interval.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("kept", [0, 1])
def test_fewer_than_two_pairs_are_no_estimate(kept: int) -> None:
    baseline = points(COMPUTE, POWER.predict({"A": 2.3, "a": 0.055}, COMPUTE))
    assert paired_multiplier(baseline, baseline[:kept]) is None


def test_one_size_or_rising_loss_is_no_paired_estimate() -> None:
    one_size = tuple(Point("s", seed, 5.0, 2.0 + seed / 10) for seed in range(3))
    rising = points(COMPUTE, 2.0 + COMPUTE / 100)
    assert paired_multiplier(one_size, one_size) is None
    assert paired_multiplier(rising, rising) is None


def test_disagreement_of_the_two_estimates_is_told() -> None:
    baseline, arm = planted(2.0)
    noise = 1e-6 * np.random.default_rng(4).standard_normal((200, 6))
    drawn = [refit(fitted, COMPUTE, noise) for fitted in (baseline, arm)]
    part = points(COMPUTE, baseline.predict(COMPUTE))
    read = read_multiplier(baseline, arm, *drawn, paired_multiplier(part, part))
    assert any("do not agree" in warning for warning in read.warnings)


def test_a_curve_of_multipliers_covers_what_both_arms_measured() -> None:
    baseline = fit(COMPUTE, POWER_FLOOR.predict({"E": 1.4, "A": 0.9, "a": 0.16}, COMPUTE), "power_floor")
    later = COMPUTE * 3
    arm = fit(later, POWER_FLOOR.predict({"E": 1.3, "A": 0.9, "a": 0.16}, later), "power_floor")
    line = multiplier_curve(baseline, arm, single_draw(baseline), single_draw(arm))
    assert line is not None
    assert line.loss_G[0] == pytest.approx(min(baseline.predict(1.0), arm.predict(3.0)))
    assert line.loss_G[-1] == pytest.approx(common_loss(baseline, arm))
    for loss, value in zip(line.loss_G, line.value_G, strict=True):
        read = read_multiplier(baseline, arm, single_draw(baseline), single_draw(arm), None, float(loss))
        assert read.value == pytest.approx(value, rel=1e-9)
        assert read.measured
    assert (np.diff(line.value_G) > 0).all()


def test_arms_that_share_no_loss_have_no_curve_of_multipliers() -> None:
    baseline = fit(COMPUTE, POWER.predict({"A": 2.3, "a": 0.055}, COMPUTE), "power")
    arm = fit(COMPUTE, POWER.predict({"A": 1.3, "a": 0.055}, COMPUTE), "power")
    assert multiplier_curve(baseline, arm, single_draw(baseline), single_draw(arm)) is None


@pytest.mark.parametrize("multiplier", [0.7, 1.0, 1.02, 1.4])
def test_p_values_agree_with_the_interval_and_the_t_distribution(multiplier: float) -> None:
    baseline, arm = planted(multiplier)
    generator = np.random.default_rng(6)
    draws = [refit(fitted, COMPUTE, 0.002 * generator.standard_normal((400, 6))) for fitted in (baseline, arm)]
    for degrees in (3, 30, np.inf):
        read = read_multiplier(baseline, arm, *draws, None, degrees_of_freedom=degrees)
        assert (read.p_value < 0.05) == (not read.interval.contains(1.0))
        end = read.interval.low if read.value > 1 else read.interval.high
        error = abs(np.log(read.value) - np.log(end)) / stats.t.isf(0.025, degrees)
        assert read.p_value == pytest.approx(2 * stats.t.sf(abs(np.log(read.value)) / error, degrees), rel=1e-6)


def test_open_and_noiseless_intervals_have_a_p_value() -> None:
    baseline, arm = planted(2.0)
    loss = float(baseline.predict(90.0))
    floors = np.where(np.arange(100) < 10, loss + 0.1, 1.4)
    drawn = Draws("power_floor", {"E": floors, "A": np.full(100, 0.9), "a": np.full(100, 0.16)})
    read = read_multiplier(baseline, arm, single_draw(baseline), drawn, None, loss)
    assert (read.interval.low, read.p_value) == (0.0, 1.0)
    same = read_multiplier(baseline, baseline, single_draw(baseline), single_draw(baseline), None)
    assert (same.value, same.p_value) == (1.0, 1.0)


def test_paired_p_value_is_that_of_its_t_interval() -> None:
    generator = np.random.default_rng(7)
    base, better = (POWER.predict({"A": 2.3, "a": 0.055}, COMPUTE * factor) for factor in (1.0, 1.05))
    baseline = points(COMPUTE, base * np.exp(0.002 * generator.standard_normal(6)))
    paired = paired_multiplier(baseline, points(COMPUTE, better * np.exp(0.002 * generator.standard_normal(6))))
    assert paired is not None
    error = (np.log(paired.interval.high) - np.log(paired.value)) / stats.t.isf(0.025, 5)
    assert paired.p_value == pytest.approx(2 * stats.t.sf(abs(np.log(paired.value)) / error, 5))


@pytest.mark.parametrize("floor", [-0.1, 1.9, float("nan")])
def test_floors_that_no_pair_can_have_are_refused(floor: float) -> None:
    baseline = points(COMPUTE, POWER.predict({"A": 2.3, "a": 0.055}, COMPUTE))
    with pytest.raises(InputError, match="paired multiplier: floor"):
        paired_multiplier(baseline, baseline, floor)


@pytest.mark.parametrize("loss", [float("nan"), 0.0, -1.0, float("inf")])
def test_a_loss_that_is_none_is_no_place(loss: float) -> None:
    with pytest.raises(InputError, match=r"multiplier: loss .*; write a positive number"):
        check_place(loss, None)
