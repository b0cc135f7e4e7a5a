"""What is drawn, read back from the Axes; no pixels are compared."""

from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes

from k3ablate.fits.analysis import Analysis
from k3ablate.report.figures import highlighted, loss_against_compute, loss_picture, new_figure
from k3ablate.report.pictures import rendered, write
from k3ablate.report.style import COLOURS, DARK, LIGHT, MARKERS, arm_style, decimal, factor


def drawn(analysis: Analysis, highlight: str | None = None) -> Axes:
    figure, axes = new_figure()
    returned = loss_against_compute(axes, analysis, highlight)
    figure.draw_without_rendering()
    assert returned is axes
    return axes


def test_markers_are_the_runs_and_dashes_the_curves(analysis: Analysis) -> None:
    lines = {str(line.get_label()): line for line in drawn(analysis).get_lines()}
    assert len(lines) == 8
    k2 = analysis.arm("k2")
    np.testing.assert_array_equal(lines["k2 (baseline)"].get_xdata(), [point.compute for point in k2.points])
    np.testing.assert_array_equal(lines["k2 (baseline)"].get_ydata(), [point.loss for point in k2.points])
    curve = lines["_k2"]
    assert curve.get_linestyle() == "--"
    x = np.asarray(curve.get_xdata(), dtype=float)
    np.testing.assert_allclose(np.asarray(curve.get_ydata(), dtype=float), k2.fits["power"].predict(x))
    assert (x[0], x[-1]) == pytest.approx(k2.fits["power"].x_range)


def test_axes_have_scales_units_and_a_twin(analysis: Analysis) -> None:
    axes = drawn(analysis)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "training compute (FLOPs)"
    assert axes.get_ylabel() == "validation loss (nats per token)"
    (days,) = axes.child_axes
    assert days.get_xlabel() == "PFLOP/s-days"
    assert days.get_xlim() == pytest.approx([limit / 8.64e19 for limit in axes.get_xlim()])
    low, high = axes.get_xlim()
    assert low < 1e13
    assert high > 1e15


def test_arrow_runs_at_equal_loss_and_carries_the_multiplier(analysis: Analysis) -> None:
    arrow, label = drawn(analysis).texts
    read = analysis.arm("k3").multiplier
    assert read is not None
    assert arrow.xy == (read.baseline_compute, read.loss)  # type: ignore[attr-defined]
    assert arrow.xyann == (read.arm_compute, read.loss)  # type: ignore[attr-defined]
    assert label.get_text() == f"{read.value:.2f}× ({read.interval.low:.2f} to {read.interval.high:.2f})"


def test_arrow_goes_to_the_arm_asked_for(analysis: Analysis) -> None:
    assert highlighted(analysis, None) is analysis.arm("k3")
    assert highlighted(analysis, "kda") is analysis.arm("kda")
    assert highlighted(analysis, "k2") is None


def test_legend_names_every_arm(analysis: Analysis) -> None:
    legend = drawn(analysis).get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    assert names[0] == "k2 (baseline)"
    assert [name.split()[0] for name in names] == ["k2", "k3", "kda", "again"]


def test_strange_names_keep_their_legend_entry(analyses: Callable[..., Analysis]) -> None:
    legend = drawn(analyses(renamed={"kda": "_x$y", "again": "n" * 90})).get_legend()
    assert legend is not None
    names = [text.get_text().strip() for text in legend.get_texts()]
    assert names[2].startswith(r"_x\$y")
    assert names[3].startswith("n" * 37 + "...")


def test_one_size_draws_markers_only(analyses: Callable[..., Analysis]) -> None:
    axes = drawn(analyses(num_sizes=1))
    assert len(axes.get_lines()) == 4
    assert len(axes.texts) == 0


def test_without_a_finished_run_the_axes_are_empty_and_say_so(
    analyses: Callable[..., Analysis], tmp_path: Path
) -> None:
    empty = analyses(unfinished=["k2", "k3", "kda", "again"])
    axes = drawn(empty)
    assert len(axes.get_lines()) == 0
    assert [text.get_text() for text in axes.texts] == [
        "no run finished: 24 are listed with their reasons in the table"
    ]
    assert len(axes.get_xticks()) == len(axes.get_yticks()) == 0
    assert axes.get_ylabel() == "validation loss (nats per token)"
    assert all(path.stat().st_size for path in write(loss_picture(empty), tmp_path))
    assert loss_picture(empty).data.empty


def test_files_are_the_same_bytes_twice_and_carry_no_date(analysis: Analysis, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    first = {path.name: path.read_bytes() for path in write(loss_picture(analysis), tmp_path / "one")}
    second = {path.name: path.read_bytes() for path in write(loss_picture(analysis), tmp_path / "two")}
    assert first == second
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "csv": b"arm,kind,size,seed,flops,loss\n"}
    assert set(first) == {f"loss_vs_flops.{suffix}" for suffix in starts}
    assert all(first[f"loss_vs_flops.{suffix}"].startswith(start) for suffix, start in starts.items())
    assert b"<dc:date>" not in first["loss_vs_flops.svg"]
    assert b"CreationDate" not in first["loss_vs_flops.pdf"]
    assert dict(mpl.rcParams) == before


def test_data_are_what_is_drawn_and_their_digest_changes_with_them(
    analysis: Analysis, analyses: Callable[..., Analysis]
) -> None:
    data = loss_picture(analysis).data
    lines = {str(line.get_label()): line for line in drawn(analysis).get_lines()}
    for arm, label in (("k2", "k2 (baseline)"), ("kda", None)):
        runs = data[(data["arm"] == arm) & (data["kind"] == "run")]
        line = next(line for name, line in lines.items() if name == label or (label is None and name.startswith(arm)))
        np.testing.assert_array_equal(line.get_ydata(), runs["loss"])
        curve = data[(data["arm"] == arm) & (data["kind"] == "curve")]
        np.testing.assert_array_equal(lines[f"_{arm}"].get_ydata(), curve["loss"])
    assert loss_picture(analysis).digest == loss_picture(analysis).digest != loss_picture(analyses(steeper=0.01)).digest


def test_a_theme_changes_paper_and_ink(analysis: Analysis) -> None:
    light, dark = (rendered(loss_picture(analysis), ["svg"], theme)["svg"].decode() for theme in (LIGHT, DARK))
    assert f"fill: {LIGHT.paper}" in light
    assert f"fill: {DARK.paper}" in dark
    assert f"fill: {LIGHT.paper}" not in dark
    assert all(colour in dark for colour in DARK.colours[:4])


def test_styles_differ_in_colour_and_in_grey() -> None:
    styles = [arm_style(index) for index in range(len(COLOURS) * len(MARKERS))]
    assert len(set(styles)) == len(styles)
    assert len({style.marker for style in styles[:10]}) == 10
    assert styles[0].colour == "#000000"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0534, "0.0534"), (2.30851, "2.31"), (123.4, "123"), (0.0, "0.00"), (4.2e21, "4.20e+21"), (float("inf"), "inf")],
)
def test_numbers_show_three_digits(value: float, text: str) -> None:
    assert decimal(value) == text


def test_factors_show_two_decimals_below_ten() -> None:
    assert [factor(value) for value in (0.98, 2.5, 12.34, 0.1, 0.0)] == ["0.98", "2.50", "12.3", "0.10", "0.00"]


def test_small_factors_keep_two_digits() -> None:
    assert [factor(value) for value in (0.0951, 0.004, 3.24e-5)] == ["0.095", "0.0040", "3.2e-05"]
