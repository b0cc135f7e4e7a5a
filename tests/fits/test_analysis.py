"""One call from a table to every arm's curve and multiplier."""

from collections.abc import Callable

import numpy as np
import pandas
import pytest

from k3ablate.config import InputError
from k3ablate.fits.analysis import Analysis, analyse

Tables = Callable[..., pandas.DataFrame]


def analysed(table: pandas.DataFrame, form: str | None = None, **options: float | None) -> Analysis:
    return analyse(table, "k2", form, np.random.default_rng(0), num_draws=200, **options)  # type: ignore[arg-type]


def test_planted_multipliers_lie_in_their_intervals(planted_table: Tables) -> None:
    analysis = analysed(planted_table())
    for arm, factor in {"k3": 2.5, "kda": 1.4, "again": 1.0}.items():
        read = analysis.arm(arm).multiplier
        assert read is not None
        assert read.interval.contains(factor)
        assert read.measured
    assert analysis.arm("k2").multiplier is None
    assert analysis.arm("k3").changed == {"attention": "kda", "residual": "block"}
    assert analysis.warnings == ()


def test_noiseless_multipliers_are_exact(planted_table: Tables) -> None:
    analysis = analysed(planted_table(deviation=0.0))
    read, paired = analysis.arm("k3").multiplier, analysis.arm("k3").paired
    assert read is not None
    assert paired is not None
    assert read.value == pytest.approx(2.5, rel=1e-5)
    assert paired.value == pytest.approx(2.5, rel=1e-5)


def test_three_sizes_give_no_floor_and_say_so(planted_table: Tables) -> None:
    analysis = analysed(planted_table())
    assert analysis.form == "power"
    assert "undetermined: 3 different compute values" in analysis.form_reason
    assert set(analysis.arm("k2").no_fit) == {"power_floor"}


def test_four_sizes_with_a_floor_use_it(planted_table: Tables) -> None:
    analysis = analysed(planted_table("power_floor", num_sizes=5, deviation=1e-4))
    assert analysis.form == "power_floor"
    fitted = analysis.arm("k3").fits["power_floor"]
    assert fitted.intervals["E"].contains(1.2)
    assert fitted.values["E"] == pytest.approx(1.2, abs=0.05)
    read = analysis.arm("k3").multiplier
    assert read is not None
    assert read.interval.contains(2.5)


def test_a_floor_at_a_bound_falls_back_to_power_and_names_the_arm(planted_table: Tables) -> None:
    table = planted_table("power", num_sizes=5, num_seeds=1, deviation=0.0)
    bend = 1 - 0.004 * np.log(table["flops"] / 1e14) ** 2
    analysis = analysed(table.assign(loss=table["loss"] * bend))
    assert analysis.form == "power"
    assert "power_floor fit of again has E at a bound" in analysis.form_reason  # the first by name


def test_asking_for_a_form_that_cannot_be_fitted_gives_no_multiplier(planted_table: Tables) -> None:
    analysis = analysed(planted_table(), "power_floor")
    assert analysis.arm("k3").multiplier is None
    assert "undetermined" in analysis.arm("k3").no_multiplier


def test_one_size_has_losses_and_no_curve(planted_table: Tables) -> None:
    analysis = analysed(planted_table(num_sizes=1))
    assert analysis.form is None
    assert "one size, no curve" in analysis.form_reason
    largest = analysis.arm("k3").largest
    assert largest is not None
    assert largest.num_seeds == 2
    assert analysis.arm("k3").no_multiplier == analysis.form_reason


def test_one_size_is_told_also_where_a_form_was_asked_for(planted_table: Tables) -> None:
    analysis = analysed(planted_table(num_sizes=1), "power_floor")
    assert analysis.form is None
    assert "no arm allows power_floor, as asked for; k2: power_floor: one size, no curve" in analysis.form_reason


@pytest.mark.parametrize("num_sizes", [1, 3])
def test_an_arm_without_a_finished_run_says_so_with_and_without_curves(planted_table: Tables, num_sizes: int) -> None:
    table = planted_table(num_sizes=num_sizes)
    table.loc[table["arm"] == "kda", ["status", "reason"]] = ["failed", "out of memory"]
    analysis = analysed(table)
    assert analysis.arm("kda").no_multiplier == "no run of this arm finished"
    assert "kda" not in analysis.form_reason


@pytest.mark.parametrize("form", [None, "power", "power_floor"])
def test_without_a_finished_run_there_is_no_curve_and_every_run_is_listed(
    planted_table: Tables, form: str | None
) -> None:
    table = planted_table().assign(status="out_of_time", reason="stopped after 2 h", loss=np.nan)
    analysis = analysed(table, form)
    assert analysis.form is None
    assert "no run finished, so there is nothing to fit" in analysis.form_reason
    assert not analysis.any_finished
    assert len(analysis.excluded) == len(table)
    for arm in analysis.arms:
        assert (arm.largest, arm.multiplier, arm.paired, dict(arm.fits)) == (None, None, None, {})
        assert arm.no_multiplier == "no run of this arm finished"
        assert set(arm.no_fit.values()) == {"no run of this arm finished"}


def test_a_baseline_without_a_finished_run_leaves_losses_and_no_multiplier(planted_table: Tables) -> None:
    table = planted_table()
    table.loc[table["arm"] == "k2", ["status", "reason"]] = ["diverged", "loss above 30"]
    analysis = analysed(table)
    assert analysis.form is None
    assert analysis.form_reason == "no curve for the baseline: no run of this arm finished"
    assert analysis.arm("k3").largest is not None
    assert analysis.arm("k3").no_multiplier == analysis.form_reason


def test_one_seed_takes_its_noise_from_residuals(planted_table: Tables) -> None:
    analysis = analysed(planted_table(num_sizes=5, num_seeds=1))
    assert analysis.noise["power"].source == "residuals"
    assert any("one seed per point" in warning for warning in analysis.warnings) == (analysis.form == "power")
    assert "one seed per point" in analysis.arm("k3").fits["power"].interval_method


def test_a_diverged_run_is_out_of_the_fit_and_listed(planted_table: Tables, diverged: Tables) -> None:
    analysis = analysed(diverged(planted_table(), 8))
    (run,) = analysis.excluded
    assert (run.arm, run.size, run.reason) == ("k3", "s1", "loss above 30 at step 12")
    assert analysis.arm("k3").fits["power"].num_points == 5
    assert analysis.arm("k3").fits["power"].dropped == ("s1 seed 0: diverged (loss above 30 at step 12)",)


def test_an_arm_that_never_finished_keeps_its_row(planted_table: Tables) -> None:
    table = planted_table()
    table.loc[table["arm"] == "kda", ["status", "reason"]] = ["failed", "out of memory"]
    analysis = analysed(table)
    assert analysis.arm("kda").largest is None
    assert analysis.arm("kda").no_fit["power"] == "no run of this arm finished"
    assert analysis.arm("k3").multiplier is not None


@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_curves_that_hardly_fall_give_reasons_or_open_intervals_and_no_overflow(
    planted_table: Tables, factor: float
) -> None:
    table = planted_table(deviation=0.0)
    flat = 2.0 - 1e-4 * np.log(table["flops"]) + 1e-4 * (np.arange(len(table)) * 7 % 5)
    analysis = analysed(table.assign(loss=flat * np.where(table["arm"] == "k3", factor, 1.0)))
    k3 = analysis.arm("k3")
    assert k3.multiplier is None
    assert "curve is so flat that it reaches it at compute 1e" in k3.no_multiplier
    assert k3.paired is None
    again = analysis.arm("again").multiplier
    assert again is not None
    assert 0 <= again.interval.low <= again.value <= again.interval.high


def test_a_repeat_that_differs_from_the_baseline_is_told(planted_table: Tables) -> None:
    table = planted_table(deviation=0.0005)
    again = table["arm"] == "again"
    analysis = analysed(table.assign(loss=table["loss"].where(~again, table["loss"] * 0.97)))
    assert analysis.is_repeat_of_baseline(analysis.arm("again"))
    assert any("again repeats the baseline" in warning for warning in analysis.warnings)


def test_reading_at_a_stated_loss(planted_table: Tables) -> None:
    analysis = analysed(planted_table(), at_loss=1.2)
    read = analysis.arm("k3").multiplier
    assert read is not None
    assert read.loss == 1.2
    assert not read.measured


def test_same_generator_same_result(planted_table: Tables) -> None:
    first, second = analysed(planted_table()), analysed(planted_table())
    for arm in ("k3", "kda", "again"):
        assert first.arm(arm).multiplier == second.arm(arm).multiplier


def test_order_of_rows_does_not_move_the_curves(planted_table: Tables) -> None:
    table = planted_table()
    first, second = analysed(table), analysed(table.iloc[::-1])
    assert first.arm("k3").fits["power"].values == pytest.approx(second.arm("k3").fits["power"].values, rel=1e-6)


def test_unknown_baseline_is_refused(planted_table: Tables) -> None:
    with pytest.raises(InputError, match="no arm 'K-3' in the table"):
        analyse(planted_table(), "K-3", None, np.random.default_rng(0))


def lifted(table: pandas.DataFrame, arm: str, floor: float) -> pandas.DataFrame:
    """The table with a constant added to every loss of one arm."""
    return table.assign(loss=table["loss"].where(table["arm"] != arm, table["loss"] + floor))


@pytest.mark.parametrize(("form", "floor"), [("shared_floor", None), ("shared_exponent", None), ("shared_floor", 1.2)])
def test_parallel_curves_give_one_number_per_arm(planted_table: Tables, form: str, floor: float | None) -> None:
    analysis = analysed(planted_table("power_floor", num_sizes=5, deviation=1e-3), form, floor=floor)
    assert analysis.form == form
    assert analysis.parallel is not None
    assert not analysis.parallel.rejected
    assert analysis.parallel.floor == floor
    assert analysis.forms == ("power", "power_floor", form)
    for arm, factor in {"k3": 2.5, "kda": 1.4, "again": 1.0}.items():
        found, line = analysis.arm(arm).multiplier, analysis.arm(arm).multiplier_curve
        assert found is not None
        assert found.interval.contains(factor)
        assert line is not None
        np.testing.assert_allclose(line.value_G, found.value, rtol=1e-6)
        np.testing.assert_allclose(line.low_G, found.interval.low, rtol=1e-6)


def test_curves_with_different_floors_give_a_curve_and_no_single_number(planted_table: Tables) -> None:
    table = lifted(planted_table("power_floor", num_sizes=6, deviation=2e-4), "k3", 0.15)
    analysis = analysed(table, "shared_floor")
    k3 = analysis.arm("k3")
    assert analysis.parallel is not None
    assert analysis.parallel.rejected
    assert k3.multiplier is None
    assert "shared_floor, as asked for, is rejected: one exponent for 4 arms is rejected" in k3.no_multiplier
    assert k3.no_multiplier.endswith("m(C) stands instead of a single number")
    assert (analysis.form, k3.holm_p_value) == ("power_floor", None)
    assert analysis.form_reason.startswith("power_floor for every arm, because shared_floor, as asked for, is rejected")
    line = k3.multiplier_curve
    assert line is not None
    # planted: L_k2 = 1.2 + 40 C^-.12 and L_k3 = 1.35 + 40 (2.5 C)^-.12
    true = 2.5 * ((line.loss_G - 1.35) / (line.loss_G - 1.2)) ** (1 / 0.12)
    assert ((line.low_G <= true) & (true <= line.high_G)).all()
    assert line.value_G[0] > 1.3 * line.value_G[-1]
    assert any("is rejected" in warning for warning in k3.fits["shared_floor"].warnings)


def test_own_curves_are_tested_too_and_keep_their_number_at_its_place(planted_table: Tables) -> None:
    steeper = planted_table(num_sizes=4, deviation=5e-4)
    steeper["loss"] *= np.where(steeper["arm"] == "k3", (steeper["flops"] / 1e14) ** -0.02, 1.0)
    analysis = analysed(steeper, "power")
    assert analysis.parallel is not None
    assert analysis.parallel.floor == 0.0
    assert analysis.parallel.rejected
    k3 = analysis.arm("k3")
    assert k3.multiplier is not None
    assert k3.multiplier_curve is not None
    assert k3.multiplier_curve.value_G[-1] > k3.multiplier_curve.value_G[0]


def test_one_arm_with_sizes_is_not_tested_and_says_why(planted_table: Tables) -> None:
    table = planted_table()
    analysis = analysed(table[(table["arm"] == "k2") | (table["size"] == "s0")])
    assert analysis.parallel is None
    assert "1 of 4 arms with two sizes or more" in analysis.not_tested
    assert analysed(planted_table(num_sizes=1)).not_tested.endswith("add a size")


def test_p_values_are_corrected_for_every_arm_that_claims_something(planted_table: Tables) -> None:
    analysis = analysed(planted_table(deviation=0.02))
    raw = {arm: analysis.arm(arm).multiplier for arm in ("k3", "kda", "again")}
    p_values = {arm: found.p_value for arm, found in raw.items() if found is not None}
    assert p_values["k3"] < p_values["kda"]
    assert analysis.arm("k3").holm_p_value == pytest.approx(2 * p_values["k3"])
    assert analysis.arm("kda").holm_p_value == pytest.approx(max(2 * p_values["k3"], p_values["kda"]))
    assert analysis.arm("again").holm_p_value is None
    for arm, found in raw.items():
        assert found is not None
        assert (p_values[arm] < 0.05) == (not found.interval.contains(1.0))


def test_reading_where_the_baseline_has_spent_a_compute(planted_table: Tables) -> None:
    analysis = analysed(planted_table(), at_compute=1e14)
    for arm in ("k3", "kda", "again"):
        found = analysis.arm(arm).multiplier
        assert found is not None
        assert found.baseline_compute == pytest.approx(1e14)
    with pytest.raises(InputError, match="both stated"):
        analysed(planted_table(), at_compute=1e14, at_loss=1.5)


def test_a_shared_form_without_another_arm_is_refused_with_the_reason(planted_table: Tables) -> None:
    table = planted_table()
    analysis = analysed(table[table["arm"] == "k2"], "shared_floor")
    assert analysis.form is None
    assert "no arm allows shared_floor, as asked for; k2: shared_floor: needs finished runs" in analysis.form_reason


@pytest.mark.parametrize(
    ("form", "floor", "message"),
    [
        ("chinchilla", None, "unknown form 'chinchilla'; write one of power, power_floor, shared_floor"),
        (None, 1.0, "floor 1.0: only forms that arms share take one"),
        ("power_floor", 0.0, "floor 0.0: only forms that arms share take one"),
    ],
)
def test_forms_and_floors_that_give_no_multiplier_are_refused(
    planted_table: Tables, form: str | None, floor: float | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        analysed(planted_table(), form, floor=floor)


def test_identical_arms_contain_one_in_both_estimates(planted_table: Tables) -> None:
    table = planted_table(generator_seed=2)
    copied = table[table["arm"] == "k2"].assign(arm="copy", digest=lambda rows: rows["digest"] + "-copy")
    for form in ("power", "shared_exponent"):
        analysis = analysed(pandas.concat([table, copied]), form)
        found, paired = analysis.arm("copy").multiplier, analysis.arm("copy").paired
        assert found is not None
        assert paired is not None
        assert found.interval.contains(1.0)
        assert paired.interval.contains(1.0)
        assert found.value == pytest.approx(1.0)
