"""One call from a table to every arm's curve and multiplier."""

from collections.abc import Callable

import numpy as np
import pandas
import pytest

from k3ablate.config import InputError
from k3ablate.fits.analysis import Analysis, analyse

Tables = Callable[..., pandas.DataFrame]


def analysed(table: pandas.DataFrame, form: str | None = None, **options: float) -> Analysis:
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
    assert "power_floor fit of k2 has E at a bound" in analysis.form_reason


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
