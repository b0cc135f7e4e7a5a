"""Figure 7 of the Kimi K3 report, whose loss axis has no numbers; and lines by hand."""

from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy import stats

from k3ablate.config import InputError
from k3ablate.fits.lines import Heights, drawn_ratio, equal_slopes, heights, line_ratio

PUBLISHED = Path(__file__).parents[2] / "analysis" / "published"


def figure7(name: str = "k3_figure7") -> tuple[Heights, Heights]:
    table = pandas.read_csv(PUBLISHED / f"{name}.csv")
    k2, k3 = (table[table["series"] == series] for series in ("K2", "K3"))
    return heights(k2["flops"], k2["loss_ticks"]), heights(k3["flops"], k3["loss_ticks"])


def test_stars_of_figure_7_with_a_common_slope() -> None:
    read = line_ratio(*figure7(), common_slope=True)
    assert round(read.value, 3) == 2.530
    assert (round(read.interval.low, 3), round(read.interval.high, 3)) == (2.469, 2.592)
    assert read.degrees_of_freedom == 8
    assert round(read.slopes[0] * np.log(10), 4) == -1.6538


@pytest.mark.parametrize(("height", "ratio"), [(0.046, 2.547), (0.702, 2.530), (1.358, 2.513)])
def test_stars_of_figure_7_with_two_slopes(height: float, ratio: float) -> None:
    read = line_ratio(*figure7(), common_slope=False, height=height)
    assert round(read.value, 3) == ratio
    assert read.interval.contains(2.530)
    assert read.degrees_of_freedom == 7


def test_equal_slopes_of_figure_7_are_not_rejected() -> None:
    test = equal_slopes(*figure7())
    assert round(test.statistic, 2) == 0.45
    assert round(test.p_value, 2) == 0.52
    assert not test.rejected


def test_the_part_beyond_the_last_star_of_k2_is_extrapolated() -> None:
    """K3's stars go on to where K2 was never measured."""
    k2, k3 = figure7()
    inside = line_ratio(k2, k3, common_slope=False)
    assert inside.measured
    beyond = line_ratio(k2, k3, common_slope=False, height=float(k3.height.min()))
    assert not beyond.measured
    log_compute = (k3.height.min() - inside.height) / inside.slopes[0]
    assert beyond.beyond == pytest.approx(np.exp(log_compute), rel=1e-9)


def test_dashed_curves_of_figure_7() -> None:
    at, ratio = drawn_ratio(*figure7("k3_figure7_curves"))
    assert (round(ratio.min(), 3), round(ratio.max(), 3)) == (2.444, 2.500)
    assert np.exp(np.log(ratio).mean()) == pytest.approx(2.4716, abs=2e-3)
    assert (np.diff(at) >= 0).all()


def test_power_laws_by_their_logarithms_give_the_naive_interval_of_table_2() -> None:
    """Attention Residuals on 6ND with a common exponent: 1.239, naive 1.145 to 1.341."""
    table = pandas.read_csv(PUBLISHED / "attnres_table2.csv")
    baseline, block = (
        heights(table["pflop_s_days_6nd"], np.log(table[name])) for name in ("loss_baseline", "loss_block")
    )
    read = line_ratio(baseline, block, common_slope=True)
    assert round(-read.slopes[0], 4) == 0.0557
    assert [round(value, 3) for value in (read.value, read.interval.low, read.interval.high)] == [1.239, 1.145, 1.341]


def test_planted_lines_and_the_invariance_under_unit_and_zero_of_height() -> None:
    compute = np.geomspace(1, 100, 6)
    noise = 0.01 * np.random.default_rng(0).standard_normal((2, 6))
    plain = [heights(compute, -np.log(factor * compute) + noise[row]) for row, factor in enumerate((1.0, 1.8))]
    moved = [Heights(part.compute * 1e18, 7 + 3 * part.height) for part in plain]
    for common_slope in (True, False):
        first, second = line_ratio(*plain, common_slope), line_ratio(*moved, common_slope)
        assert first.value == pytest.approx(1.8, rel=0.05)
        assert second.value == pytest.approx(first.value, rel=1e-9)
        assert second.interval.high == pytest.approx(first.interval.high, rel=1e-9)


def test_slopes_that_differ_are_told() -> None:
    compute = np.geomspace(1, 100, 6)
    noise = 0.01 * np.random.default_rng(1).standard_normal((2, 6))
    lines = [heights(compute, -slope * np.log(compute) + noise[row]) for row, slope in enumerate((1.0, 1.1))]
    assert equal_slopes(*lines).rejected


def test_intervals_cover_and_p_values_are_uniform() -> None:
    generator = np.random.default_rng(2)
    compute, hits, p_values = np.geomspace(1, 100, 5), 0, []
    for _ in range(1000):
        noise = 0.02 * generator.standard_normal((2, 5))
        lines = [heights(compute, -0.06 * np.log(factor * compute) + noise[row]) for row, factor in enumerate((1, 1.2))]
        hits += line_ratio(*lines, common_slope=True).interval.contains(1.2)
        p_values.append(equal_slopes(*lines).p_value)
    assert 0.93 <= hits / 1000 <= 0.97
    assert stats.kstest(p_values, "uniform").pvalue > 0.01


@pytest.mark.parametrize(
    ("compute", "height", "message"),
    [
        ([1.0, 2.0], [2.0, 3.0], "both must fall"),
        ([1.0], [2.0], "do not determine"),
        ([5.0, 5.0], [2.0, 2.1], "do not determine"),
        ([0.0, 2.0], [2.0, 1.0], "a positive compute"),
    ],
)
def test_lines_that_have_no_ratio_are_refused(compute: list[float], height: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        line_ratio(heights(compute, height), heights(compute, height), common_slope=True)


def test_drawn_curves_at_different_heights_are_refused() -> None:
    with pytest.raises(InputError, match="no height in common"):
        drawn_ratio(heights([1, 2], [9, 8]), heights([1, 2], [3, 2]))
