"""All arms read at one point: planted multipliers, one loss for all, draws that belong together."""

from collections.abc import Callable

import numpy as np
import pandas
import pytest

from k3ablate.config import InputError
from k3ablate.fits.analysis import Analysis, analyse
from k3ablate.fits.readings import Readings, read_all

Tables = Callable[..., pandas.DataFrame]
PLANTED = {"k2": 1.0, "k3": 2.5, "kda": 1.4, "again": 1.0}


def analysed(table: pandas.DataFrame, num_draws: int = 200) -> Analysis:
    return analyse(table, "k2", None, np.random.default_rng(0), num_draws=num_draws)


def equal(first: Readings, second: Readings) -> None:
    assert first.log_multiplier == pytest.approx(second.log_multiplier, rel=1e-9, abs=1e-12)
    for arm, drawn in first.draws.items():
        np.testing.assert_allclose(drawn, second.draws[arm], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("form", "num_sizes"), [("power", 3), ("power_floor", 5)])
def test_planted_multipliers_of_all_arms_come_back_at_one_loss(
    planted_table: Tables, form: str, num_sizes: int
) -> None:
    readings = read_all(analysed(planted_table(form, num_sizes=num_sizes, deviation=0.0)), form)
    assert (readings.baseline, readings.form) == ("k2", form)
    for arm, factor in PLANTED.items():
        assert readings.log_multiplier[arm] == pytest.approx(np.log(factor), abs=1e-4)
        np.testing.assert_allclose(readings.draws[arm], np.log(factor), atol=1e-3)
        assert readings.measured(arm)
    assert dict(readings.refused) == {}


def test_the_common_point_is_the_lowest_loss_that_every_arm_measured(planted_table: Tables) -> None:
    analysis = analysed(planted_table())
    readings = read_all(analysis)
    tops = [arm.fits["power"].predict(arm.fits["power"].x_range[1]) for arm in analysis.arms]
    assert readings.loss == pytest.approx(max(tops))
    assert analysis.arm("k2").fits["power"].predict(readings.compute) == pytest.approx(readings.loss)
    fewer = read_all(analysis, arms=["k3"])
    assert set(fewer.log_multiplier) == {"k2", "k3"}


def test_each_arm_has_the_interval_that_the_analysis_reads_at_that_loss(planted_table: Tables) -> None:
    table = planted_table()
    readings = read_all(analysed(table))
    same = analyse(table, "k2", None, np.random.default_rng(0), num_draws=200, at_loss=readings.loss)
    for arm in ("k3", "kda", "again"):
        alone = same.arm(arm).multiplier
        assert alone is not None
        assert np.exp(readings.log_multiplier[arm]) == pytest.approx(alone.value)
        assert np.exp(np.quantile(readings.draws[arm], 0.025, method="lower")) == pytest.approx(alone.interval.low)


def test_draws_keep_what_arms_have_in_common(planted_table: Tables) -> None:
    """Both arms are read against one baseline, whose noise they share; their difference has less than their sum."""
    readings = read_all(analysed(planted_table(), num_draws=1000))
    k3, kda = readings.draws["k3"], readings.draws["kda"]
    assert np.var(k3 - kda) < 0.7 * (np.var(k3) + np.var(kda))
    assert (readings.draws["k2"] == 0).all()


def test_a_compute_is_the_baselines_and_its_noise_is_not_counted_as_loss(planted_table: Tables) -> None:
    analysis = analysed(planted_table())
    by_compute = read_all(analysis, compute=3e14)
    assert by_compute.compute == pytest.approx(3e14)
    by_loss = read_all(analysis, loss=by_compute.loss)
    assert by_compute.log_multiplier == pytest.approx(by_loss.log_multiplier)
    k3, base = (analysis.arm(arm).draws["power"] for arm in ("k3", "k2"))
    lost = base.predict(np.array([3e14]))[:, 0]
    first = np.log(3e14) - k3.log_compute_at(float(lost[0]))[0]
    assert by_compute.draws["k3"][0] == pytest.approx(first)


def test_reading_a_draw_at_a_loss_or_a_compute_agrees_for_parallel_curves(planted_table: Tables) -> None:
    analysis = analysed(planted_table(deviation=0.0))
    equal(read_all(analysis, compute=1e14), read_all(analysis, loss=read_all(analysis, compute=1e14).loss))


def test_beyond_the_measured_range_is_said_per_arm(planted_table: Tables) -> None:
    analysis = analysed(planted_table(deviation=0.0))
    loss = float(analysis.arm("k2").fits["power"].predict(4e15))
    readings = read_all(analysis, loss=loss)
    assert readings.beyond == pytest.approx({"k2": 4.0, "k3": 4.0, "kda": 4.0, "again": 4.0}, rel=1e-3)
    assert not readings.measured("k3")


def test_readings_end_a_thousandfold_beyond_what_was_measured(planted_table: Tables) -> None:
    """The planted sizes end at 1e15; an arm that is read further out than the baseline is refused by itself."""
    analysis = analysed(planted_table())
    inside = read_all(analysis, compute=0.999e18)
    assert 990 < inside.beyond["k2"] < 1000
    assert {"k2", "k3", "kda"} <= set(inside.log_multiplier)
    for place in ({"compute": 1.01e18}, {"compute": 1e300}, {"loss": 0.1}, {"compute": 1e10 / 1.01}):
        with pytest.raises(InputError, match=r"k2 reaches it at compute .* ask within 1,000 times"):
            read_all(analysis, **place)
    low = read_all(analysis, compute=1.1e10)  # below the smallest size, where the better arms need still less
    assert low.log_multiplier.keys() == {"k2", "again"} | ({"kda", "k3"} - set(low.refused))
    assert "times outside the" in low.refused["k3"]
    alone = analyse(planted_table(), "k2", None, np.random.default_rng(0), num_draws=50, at_loss=0.1).arm("k3")
    assert alone.multiplier is None
    assert "the baseline reaches it at compute" in alone.no_multiplier


def test_an_arm_without_a_curve_is_refused_with_its_reason(planted_table: Tables) -> None:
    table = planted_table()
    table.loc[table["arm"] == "kda", ["status", "reason"]] = ["failed", "out of memory"]
    readings = read_all(analysed(table))
    assert readings.refused == {"kda": "no run of this arm finished"}
    assert set(readings.log_multiplier) == {"k2", "k3", "again"}
    assert "kda: no multiplier here: no run of this arm finished" in readings.warnings


def test_an_arm_that_never_reaches_the_loss_is_refused(planted_table: Tables) -> None:
    table = planted_table("power_floor", num_sizes=6, num_seeds=1, deviation=0.0)
    kda = table["arm"] == "kda"
    readings = read_all(analysed(table.assign(loss=table["loss"].where(~kda, table["loss"] + 0.3))), loss=1.49)
    assert "no compute reaches it" in readings.refused["kda"]
    assert np.exp(readings.log_multiplier["k3"]) == pytest.approx(2.5, rel=1e-3)


@pytest.mark.parametrize(
    ("num_sizes", "options", "message"),
    [
        (3, {"form": "power_floor"}, "k2: no power_floor curve: power_floor: undetermined: 3 different compute values"),
        (3, {"form": "cubic"}, "k2: no cubic curve: this form was not fitted"),
        (1, {}, "no curve to read a multiplier from: .*one size, no curve"),
        (3, {"loss": 1.9, "compute": 1e14}, "were both stated; state one"),
        (3, {"compute": -1.0}, "compute -1.0; write a positive number"),
    ],
)
def test_what_cannot_be_read_is_refused(
    planted_table: Tables, num_sizes: int, options: dict[str, float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_all(analysed(planted_table(num_sizes=num_sizes)), **options)  # type: ignore[arg-type]


def test_shared_curves_are_read_like_any_other(planted_table: Tables) -> None:
    table = planted_table("power_floor", num_sizes=5, deviation=1e-3)
    analysis = analyse(table, "k2", "shared_floor", np.random.default_rng(0), num_draws=200)
    low, high = read_all(analysis, "shared_floor", loss=1.8), read_all(analysis, "shared_floor", loss=2.0)
    equal(low, high)
    assert low.log_multiplier["k3"] == pytest.approx(np.log(2.5), abs=0.1)
