"""Power: widths and smallest gains against closed forms, simulations apart, and the analysis of single tables."""

import math

import numpy as np
import pandas
import pytest
from scipy import stats

from k3ablate.config import InputError
from k3ablate.fits.analysis import Place, analyse
from k3ablate.fits.coalitions import design
from k3ablate.fits.power import Assumed, DesignPower, Sensitivity, critical_gains, design_power, planned_runs
from k3ablate.fits.simulated_readings import Read, planted_parts, read_tables
from k3ablate.fits.simulated_tables import Truth, draw_losses, fit_tables
from k3ablate.fits.split_analysis import split_analysis

EXPONENT, DEVIATION = 0.06, 0.001
ARMS = {
    "k2": ("k2", "k2"), "+attention": ("k3", "k2"), "+residual": ("k2", "k3"), "k3": ("k3", "k3"), "a/a": ("k2", "k2"),
}  # fmt: skip
PAIRED = ("k2", "+attention", "+residual", "k3")  # that run the same seeds


def runs(num_sizes: int = 5, num_seeds: int = 4, arms: tuple[str, ...] = PAIRED) -> pandas.DataFrame:
    return pandas.DataFrame([
        {"arm": arm, "size": f"s{size}", "seed": seed + 100 * (arm == "a/a"), "flops": compute,
         "attention": ARMS[arm][0], "residual": ARMS[arm][1]}
        for arm in arms
        for size, compute in enumerate(np.geomspace(1e18, 1e20, num_sizes))
        for seed in range(num_seeds)
    ])  # fmt: skip


def assumed(
    num_tables: int = 300, num_draws: int = 39, delta: float = math.inf, share: float = 0.0, **others
) -> Assumed:
    truth = Truth("power", {"A": 30.0, "a": EXPONENT}, others.pop("deviation", DEVIATION), share)
    return Assumed(truth, form="power", num_tables=num_tables, num_draws=num_draws, delta=delta, **others)


def named(found: tuple[Sensitivity, ...], name: str) -> Sensitivity:
    return next(one for one in found if one.name == name)


def told(error: float, degrees: float) -> float:
    """The gain that a t interval tells from nothing in 80 percent: by the noncentral t distribution."""
    critical = stats.t.isf(0.025, degrees)
    gains = np.linspace(1, 10, 2000)
    return error * float(np.interp(0.8, stats.nct.sf(critical, degrees, gains), gains))


@pytest.fixture(scope="module")
def least_squares() -> DesignPower:
    return design_power(planned_runs(runs()), "k2", assumed(multipliers=(1.015, 1.05)))


def test_curves_are_as_wide_as_least_squares_says(least_squares: DesignPower) -> None:
    log_compute = np.repeat(np.log(np.geomspace(1e18, 1e20, 5)), 4)
    deviations = log_compute - log_compute.mean()
    leverage = 1 / 20 + deviations[-1] ** 2 / (deviations**2).sum()  # of the largest size, where curves are read
    error, degrees = DEVIATION / EXPONENT * math.sqrt(2 * leverage), 5 * (4 - 1) * (4 - 1)  # of what seeds do not share
    generator = np.random.default_rng(0)
    reach = generator.standard_t(degrees, (20_000, 39)).max(axis=1)  # 39 draws are known to hold 95 percent
    deviation = np.sqrt(generator.chisquare(degrees, 20_000) / degrees)
    critical = error * (deviation * reach + generator.standard_normal(20_000))
    for one in least_squares.arms:
        assert math.log(one.half_width) == pytest.approx(error * np.median(deviation * reach), rel=0.05)
        assert math.log(one.smallest) == pytest.approx(np.quantile(critical, 0.8), rel=0.09)
        assert one.smallest_interval.low < one.smallest < one.smallest_interval.high


def test_pairs_are_as_wide_as_student_says() -> None:
    found = design_power(planned_runs(runs(arms=("k2", "+attention", "a/a"))), "k2", assumed(200, share=0.8))
    (one,) = found.paired  # a/a shares no seed
    error, degrees = DEVIATION / EXPONENT * math.sqrt(2 * 0.2 / 20), 19
    median = math.sqrt(stats.chi2.median(degrees) / degrees)
    assert math.log(one.half_width) == pytest.approx(stats.t.isf(0.025, degrees) * error * median, rel=0.06)
    assert math.log(one.smallest) == pytest.approx(told(error, degrees), rel=0.12)


def test_identical_arms_raise_a_false_alarm_in_five_percent(least_squares: DesignPower) -> None:
    few = planned_runs(runs(3, 2, ("k2", "+attention", "a/a")))
    repeated = design_power(few, "k2", assumed(delta=1e-3, share=0.3))
    assert (least_squares.repeats, repeated.repeats) == ((), ("a/a",))
    rates = [one.false_alarms for one in (*least_squares.arms, *least_squares.paired, *repeated.arms)]
    assert all(0.01 <= rate <= 0.09 for rate in rates)  # 300 tables: .05 has a standard error of .013


def test_twice_the_seeds_narrow_by_the_square_root_of_two(least_squares: DesignPower) -> None:
    twice = design_power(planned_runs(runs(num_seeds=8)), "k2", assumed(150))
    expected = math.sqrt(2) * stats.t.isf(0.025, 45) / stats.t.isf(0.025, 105)
    for name in ("+attention", "k3"):
        ratio = math.log(named(least_squares.arms, name).half_width) / math.log(named(twice.arms, name).half_width)
        assert ratio == pytest.approx(expected, rel=0.06)


def test_power_grows_with_the_gain_and_is_stated_where_asked(least_squares: DesignPower) -> None:
    one = named(least_squares.arms, "+attention")
    assert 0.2 < one.power[0] < 0.8 < one.power[1]
    assert 1.015 < one.smallest < 1.05


def test_the_smallest_gain_is_told_in_eight_of_ten_tables_that_are_simulated_apart() -> None:
    table = planned_runs(runs(3, 2, tuple(ARMS)))
    chosen = assumed(200, delta=1e-3, share=0.3, deviation=0.003)
    found = design_power(table, "k2", chosen)
    split = design({arm: _changed(arm) for arm in ARMS}, "k2")
    generator = np.random.default_rng(99)

    def apart(gains: dict[str, float]):
        losses = draw_losses(table, chosen.truth, {arm: gains.get(arm, 0.0) for arm in ARMS}, 200, generator)
        return read_tables(fit_tables(table, "power", losses, 39, 1e-3, generator), "k2", split)

    # both sides are simulations of 200 tables: standard errors of .028 each
    arms = apart({one.name: math.log(one.smallest) for one in found.arms if one.name != "a/a"})
    assert all(_rate(arms.arms[arm]) == pytest.approx(0.8, abs=0.12) for arm in PAIRED[1:])
    parts = {one.name: math.log(one.smallest) for one in found.parts}
    sums = {"+attention": parts["attention"], "+residual": parts["residual"], "k3": sum(parts.values())}
    assert found.method == "shapley"
    assert all(_rate(read) == pytest.approx(0.8, abs=0.12) for read in apart(sums).parts.values())


def test_the_smallest_gain_of_pairs_is_told_in_eight_of_ten_tables_that_are_simulated_apart() -> None:
    table, chosen = planned_runs(runs(3, 2)), assumed(250, 3)
    found, generator = design_power(table, "k2", chosen), np.random.default_rng(99)
    gains = {one.name: math.log(one.smallest) for one in found.paired} | {"k2": 0.0}
    losses = draw_losses(table, chosen.truth, gains, 250, generator)
    paired = read_tables(fit_tables(table, "power", losses, 3, math.inf, generator), "k2", None).paired
    assert all(_rate(read) == pytest.approx(0.8, abs=0.11) for read in paired.values())


def _rate(read: Read) -> float:
    return float(np.mean(read.low_R > 0))


def _changed(arm: str) -> dict[str, str]:
    levels = dict(zip(("attention", "residual"), ARMS[arm], strict=True))
    return {name: level for name, level in levels.items() if level == "k3"}


@pytest.mark.parametrize("form", ["power", "power_floor"])
@pytest.mark.parametrize("num_seeds", [1, 3])
def test_tables_are_read_as_the_analysis_reads_them(form: str, num_seeds: int) -> None:
    table = planned_runs(runs(5, num_seeds, tuple(ARMS)))
    values = {"power": {"A": 30.0, "a": EXPONENT}, "power_floor": {"E": 1.2, "A": 4e4, "a": 0.25}}
    truth, generator = Truth(form, values[form], 0.0005, 0.5), np.random.default_rng(1)
    gains = {"k2": 0.0, "+attention": 0.2, "+residual": 0.1, "k3": 0.25, "a/a": 0.0}
    losses = draw_losses(table, truth, gains, 4, generator)
    split = design({arm: _changed(arm) for arm in ARMS}, "k2")
    found = read_tables(fit_tables(table, form, losses, 199, 1e-3, generator), "k2", split)
    labels = runs(5, num_seeds, tuple(ARMS))
    widths = []
    for row, loss in enumerate(losses):
        plain = analyse(labels.assign(loss=np.exp(loss)), "k2", form, generator, 199)
        for arm, read in found.arms.items():
            one = plain.arm(arm).multiplier
            assert one is not None
            assert read.estimate_R[row] == pytest.approx(math.log(one.value), abs=2e-6)
            widths.append((read.high_R - read.low_R)[row] / math.log(one.interval.high / one.interval.low))
            paired = plain.arm(arm).paired
            assert (paired is None) == (arm not in found.paired)
            if paired is not None:
                assert found.paired[arm].high_R[row] == pytest.approx(math.log(paired.interval.high))
        parts = {part.name: part.effect.log for part in split_analysis(plain).split.parts}
        assert {name: read.estimate_R[row] for name, read in found.parts.items()} == pytest.approx(parts, abs=2e-6)
    assert np.mean(widths) == pytest.approx(1.0, abs=0.08)  # other draws of the same intervals


def test_blocks_of_tables_are_put_together_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    table, chosen = planned_runs(runs(3, 2)), assumed()
    losses = draw_losses(table, chosen.truth, dict.fromkeys(table.points, 0.0), 7, np.random.default_rng(0))
    whole = fit_tables(table, "power", losses, 39, 1e-3, np.random.default_rng(0)).curves
    monkeypatch.setattr("k3ablate.fits.simulated_tables.ROWS_AT_ONCE", 2 * 39)
    blocks = fit_tables(table, "power", losses, 39, 1e-3, np.random.default_rng(0)).curves
    assert blocks["+attention"].values["a"][::40] == pytest.approx(whole["+attention"].values["a"][::40], abs=1e-6)


def test_gains_of_power_laws_move_curves_as_a_fit_would() -> None:
    table, chosen = planned_runs(runs(3, 2, tuple(ARMS))), assumed(deviation=0.003)
    gains = {"k2": 0.0, "+attention": 0.2, "+residual": 0.1, "k3": 0.25, "a/a": 0.0}

    def fitted(form: str, gains: dict[str, float]):
        generator = np.random.default_rng(5)
        losses = draw_losses(table, chosen.truth, gains, 8, generator)
        return fit_tables(table, form, losses, 39, 1e-3, generator)

    moved, plain = fitted("power", dict.fromkeys(ARMS, 0.0)).with_gains(chosen.truth, gains), fitted("power", gains)
    assert moved is not None
    assert moved.log_loss_RN == pytest.approx(plain.log_loss_RN, abs=1e-12)
    for arm in ARMS:
        compute = np.array([1e18, 1e20])
        same = np.isclose(moved.curves[arm].predict(compute), plain.curves[arm].predict(compute), rtol=1e-6)
        assert same.mean() > 0.95  # where the sum is flat between two seeds, searches from two sides end apart
    assert moved.with_gains(Truth("power_floor", {"E": 1.0, "A": 9.0, "a": 0.1}, 0.01), gains) is None


def test_planted_noise_has_the_deviation_and_the_share() -> None:
    table = planned_runs(runs(2, 2, ("k2", "+attention", "a/a")))
    truth = Truth("power", {"A": 30.0, "a": EXPONENT}, 0.01, 0.7)
    log_loss = draw_losses(table, truth, dict.fromkeys(table.points, 0.0), 20_000, np.random.default_rng(0))
    assert log_loss.std(axis=0) == pytest.approx([0.01] * 12, rel=0.03)
    correlations = np.corrcoef(log_loss.T)
    assert correlations[0, 4] == pytest.approx(0.7, abs=0.02)  # same size and seed, baseline and arm
    assert abs(correlations[0, 5]) < 0.03
    assert abs(correlations[0, 8]) < 0.03  # a/a has other seeds


def test_an_arm_with_a_gain_has_the_loss_of_more_compute() -> None:
    truth = Truth("power_floor", {"E": 1.0, "A": 100.0, "a": 0.1}, 0.0)
    compute = np.array([1e18, 1e19])
    assert truth.log_loss(compute, math.log(2.5)) == pytest.approx(np.log(1.0 + 100 * (2.5 * compute) ** -0.1))


def test_critical_gains_lie_on_the_line_through_both_rounds() -> None:
    null = Read(np.zeros(4), np.array([-0.1, 0.02, -np.inf, -0.1]), np.ones(4))
    gain = Read(np.zeros(4), np.array([0.2 - 0.08, 0.22, 0.1, -np.inf]), np.ones(4))
    critical = critical_gains(null, gain, 0.2)
    assert critical[0] == pytest.approx(0.1 / (1 + 0.02 / 0.2))  # where gain - (.1 - .1 gain) is 0
    assert critical[1] < 0  # a false alarm
    assert critical[2] == critical[3] == np.inf


def test_parts_of_known_gains_are_those_of_the_split() -> None:
    split = design({arm: _changed(arm) for arm in ARMS}, "k2")
    gains = {"k2": 0.0, "+attention": 0.2, "+residual": 0.1, "k3": 0.26, "a/a": 0.0}
    assert planted_parts(split, gains) == pytest.approx({"attention": 0.18, "residual": 0.08})


def test_the_form_is_the_one_that_analyses_of_such_tables_choose() -> None:
    floor = Truth("power_floor", {"E": 1.5, "A": 4e4, "a": 0.25}, 2e-5)
    found = design_power(planned_runs(runs()), "k2", Assumed(floor, num_tables=20, num_draws=39, num_choosing=2))
    assert (found.form, found.form_share) == ("power_floor", 1.0)
    none = Truth("power", {"A": 30.0, "a": EXPONENT}, 0.001)
    assert (
        design_power(planned_runs(runs()), "k2", Assumed(none, num_tables=20, num_draws=39, num_choosing=2)).form
        == "power"
    )


def test_same_seed_same_power() -> None:
    table, few = planned_runs(runs(3, 2)), assumed(20)
    assert design_power(table, "k2", few) == design_power(table, "k2", few)
    assert design_power(table, "k2", few) != design_power(table, "k2", assumed(20, seed=1))


def test_designs_that_give_no_multiplier_are_refused() -> None:
    free = Assumed(Truth("power", {"A": 30.0, "a": EXPONENT}, 0.001), num_tables=20, num_choosing=1)
    with pytest.raises(InputError, match=r"power: such runs give no multiplier: .*one size, no curve"):
        design_power(planned_runs(runs(1, 3)), "k2", free)
    with pytest.raises(InputError, match="k2 is the only arm"):
        design_power(planned_runs(runs(arms=("k2",))), "k2", free)
    with pytest.raises(InputError, match="no arm 'k9'"):
        design_power(planned_runs(runs()), "k9", free)


def test_a_planned_table_needs_no_losses_and_reads_none() -> None:
    without = planned_runs(runs())
    assert planned_runs(runs().assign(loss=np.nan, status="diverged", reason="lost")) == without


@pytest.mark.parametrize("place", [Place(loss=2.2), Place(compute=1e19), Place(compute=1e21)])
def test_tables_are_read_where_the_analysis_is_asked_to(place: Place) -> None:
    table, generator = planned_runs(runs(5, 3, tuple(ARMS))), np.random.default_rng(1)
    truth = Truth("power", {"A": 30.0, "a": EXPONENT}, 0.0005, 0.5)
    losses = draw_losses(table, truth, dict.fromkeys(ARMS, 0.1) | {"k2": 0.0}, 3, generator)
    split = design({arm: _changed(arm) for arm in ARMS}, "k2")
    found = read_tables(fit_tables(table, "power", losses, 39, 1e-3, generator), "k2", split, place)
    for row, loss in enumerate(losses):
        labels = runs(5, 3, tuple(ARMS)).assign(loss=np.exp(loss))
        plain = analyse(labels, "k2", "power", generator, 39, at_loss=place.loss, at_compute=place.compute)
        for arm, read in found.arms.items():
            one = plain.arm(arm).multiplier
            assert one is not None
            assert read.estimate_R[row] == pytest.approx(math.log(one.value), abs=2e-6)
        parts = {
            part.name: part.effect.log for part in split_analysis(plain, None, place.loss, place.compute).split.parts
        }
        assert {name: read.estimate_R[row] for name, read in found.parts.items()} == pytest.approx(parts, abs=2e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"place": Place(loss=2.0, compute=1e19)}, "loss 2 and compute 1e.19 were both stated; state one"),
        (
            {"place": Place(loss=0.1)},
            "power: loss 0.1 lies outside what a report would read: .* within 1,000 times",
        ),
        ({"place": Place(compute=1e30)}, r"power: compute 1e\+30 lies outside"),
        ({"place": Place(compute=-1.0)}, "compute -1.0; write a positive number"),
        ({"form": "shared_floor"}, "--form shared_floor: power simulates curves of one arm each; write one of power, "),
        ({"form": "powr"}, "--form powr: power simulates .*; write one of power, power_floor"),
    ],
)
def test_places_and_forms_that_are_not_simulated_are_refused(options: dict, message: str) -> None:
    truth = Truth("power", {"A": 30.0, "a": EXPONENT}, 0.001)
    with pytest.raises(InputError, match=message):
        design_power(planned_runs(runs()), "k2", Assumed(truth, num_tables=20, **options))
