"""What does loss against compute look like, arm by arm?

Functions take and return a matplotlib Axes and keep no state; `loss_picture` is the picture that is published. The
layout is that of Figure 7 of the Kimi K3 report: one marker per run, dashed fitted curves, an arrow at equal
loss from the arm's compute to the baseline's with the multiplier on it.
"""

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.axes._secondary_axes import SecondaryAxis
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    LogFormatterSciNotation,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)
from numpy.typing import ArrayLike

from k3ablate.fits.analysis import Analysis, ArmAnalysis
from k3ablate.fits.forms import Array
from k3ablate.fits.solve import Fit
from k3ablate.report.pictures import Picture
from k3ablate.report.style import (
    DOTS_PER_INCH,
    FIGURE_SIZE,
    FLOPS_PER_PFLOP_DAY,
    LIGHT,
    ArmStyle,
    Theme,
    arm_style,
    factor,
    factor_range,
)

NUM_CURVE_POINTS = 100
MAX_LEGEND_ROWS = 12
LONGEST_LABEL = 40


def new_figure() -> tuple[Figure, Axes]:
    """A figure of the standard size with one Axes; no pyplot, so that nothing outlives the caller."""
    figure = Figure(figsize=FIGURE_SIZE, dpi=DOTS_PER_INCH, layout="constrained")
    return figure, figure.add_subplot()


def loss_picture(analysis: Analysis) -> Picture:
    """Loss against compute of every run, with the fitted curves."""

    def draw(theme: Theme) -> Figure:
        figure, axes = new_figure()
        loss_against_compute(axes, analysis, theme=theme)
        return figure

    chosen = highlighted(analysis, None)
    arrow = "" if chosen is None else f" An arrow at equal loss shows the multiplier of {chosen.arm}."
    return Picture(
        name="loss_vs_flops",
        title="Loss against training compute",
        description="Every finished run as a marker, by training FLOPs and validation loss on logarithmic axes, and "
        f"the fitted curve of each arm as dashes.{arrow}",
        data=_loss_data(analysis),
        draw=draw,
    )


def loss_against_compute(
    axes: Axes, analysis: Analysis, highlight: str | None = None, theme: Theme = LIGHT
) -> Axes:  # fmt: skip
    """Runs and fitted curves of every arm on log axes, FLOPs below and PFLOP/s-days above.

    `highlight` names the arm the arrow belongs to; None takes the one that changes most components. Where no run
    finished the axes are empty and say so.
    """
    axes.set_xlabel("training compute (FLOPs)")
    axes.set_ylabel("validation loss (nats per token)")
    if not analysis.any_finished:
        return _say_nothing_finished(axes, analysis)
    for index, arm in enumerate(_baseline_first(analysis)):
        _draw_arm(axes, analysis, arm, arm_style(index, theme))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(visible=True, which="both", color=theme.faint, linewidth=0.6)
    axes.set_axisbelow(True)
    label_loss(axes)
    label_compute(axes.xaxis)
    label_compute(add_days_axis(axes).xaxis)
    chosen = highlighted(analysis, highlight)
    if chosen is not None:
        _draw_arrow(axes, chosen, theme)
    num_arms = len(analysis.arms)
    axes.legend(fontsize="small", ncols=1 + (num_arms - 1) // MAX_LEGEND_ROWS, frameon=False)
    return axes


def highlighted(analysis: Analysis, name: str | None) -> ArmAnalysis | None:
    """The arm that carries the arrow; None where it has no multiplier."""
    read = [arm for arm in analysis.arms if arm.multiplier is not None]
    if name is not None:
        return next((arm for arm in read if arm.arm == name), None)
    return max(read, key=lambda arm: len(arm.changed), default=None)


def _loss_data(analysis: Analysis) -> pandas.DataFrame:
    """The markers, and the curves at the points where they are drawn."""
    rows = [
        {"arm": arm.arm, "kind": "run", "size": point.size, "seed": point.seed, "flops": point.compute,
         "loss": point.loss}
        for arm in _baseline_first(analysis) for point in arm.points
    ]  # fmt: skip
    for arm in _baseline_first(analysis):
        fitted = arm.fits.get(analysis.form) if analysis.form else None
        if fitted is not None:
            compute = np.geomspace(*fitted.x_range, NUM_CURVE_POINTS)
            pairs = zip(compute.tolist(), fitted.predict(compute).tolist(), strict=True)
            rows += [{"arm": arm.arm, "kind": "curve", "flops": flops, "loss": loss} for flops, loss in pairs]
    return pandas.DataFrame(rows, columns=["arm", "kind", "size", "seed", "flops", "loss"])


def _baseline_first(analysis: Analysis) -> list[ArmAnalysis]:
    """The baseline keeps the first style wherever it stands in the table."""
    return sorted(analysis.arms, key=lambda arm: arm.arm != analysis.baseline)


def _say_nothing_finished(axes: Axes, analysis: Analysis) -> Axes:
    """No ticks either: numbers on axes without data would be made up."""
    axes.set_xticks([])
    axes.set_yticks([])
    text = f"no run finished: {len(analysis.excluded)} are listed with their reasons in the table"
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")
    return axes


def _draw_arm(axes: Axes, analysis: Analysis, arm: ArmAnalysis, style: ArmStyle) -> None:
    if not arm.points:
        return
    axes.plot(
        [point.compute for point in arm.points],
        [point.loss for point in arm.points],
        linestyle="none",
        marker=style.marker,
        markersize=5,
        markerfacecolor="none",
        color=style.colour,
        label=_label(analysis, arm),
    )
    fitted = arm.fits.get(analysis.form) if analysis.form else None
    if fitted is not None:
        _draw_curve(axes, arm, fitted, style)


def _draw_curve(axes: Axes, arm: ArmAnalysis, fitted: Fit, style: ArmStyle) -> None:
    compute = np.geomspace(*fitted.x_range, NUM_CURVE_POINTS)
    # an underscore keeps a curve out of the legend: its markers stand there
    axes.plot(compute, fitted.predict(compute), linestyle="--", linewidth=1.2, color=style.colour, label=f"_{arm.arm}")


def _label(analysis: Analysis, arm: ArmAnalysis) -> str:
    """Legend entry of an arm; a leading space shows names that start with an underscore, which would hide them."""
    name = arm.arm.replace("$", r"\$")  # or mathematics would start
    shown = name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 3]}..."
    factor_text = f" {factor(arm.multiplier.value)}×" if arm.multiplier else ""
    return (
        f"{' ' if name.startswith('_') else ''}{shown}{' (baseline)' if arm.arm == analysis.baseline else factor_text}"
    )


def _draw_arrow(axes: Axes, arm: ArmAnalysis, theme: Theme) -> None:
    """From the arm's compute to the baseline's at one loss: the multiplier is its length."""
    found = arm.multiplier
    assert found is not None, "only an arm with a multiplier is highlighted"
    start, end = (found.arm_compute, found.loss), (found.baseline_compute, found.loss)
    axes.annotate("", xy=end, xytext=start, arrowprops={"arrowstyle": "->", "color": theme.muted, "linewidth": 1.4})
    extrapolated = "" if found.measured else "\nextrapolated"
    text = f"{factor(found.value)}× ({factor_range(found.interval)}){extrapolated}"
    axes.annotate(
        text,
        xy=(float(np.sqrt(start[0] * end[0])), found.loss),
        xytext=(0, -6),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize="small",
        bbox={"boxstyle": "round,pad=0.15", "facecolor": theme.paper, "edgecolor": "none", "alpha": 0.85},
    )


def label_loss(axes: Axes) -> None:
    """Plain numbers at round losses: a loss axis rarely spans a decade, where log ticks would show one label."""
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def label_compute(axis: Axis) -> None:
    """Labels at 1, 2 and 5 of every decade, so that less than a decade still has several and none overlap."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def add_days_axis(axes: Axes) -> SecondaryAxis:
    """PFLOP/s-days on top of FLOPs."""

    def to_days(flops: ArrayLike) -> Array:
        return np.asarray(flops, dtype=np.float64) / FLOPS_PER_PFLOP_DAY

    def to_flops(days: ArrayLike) -> Array:
        return np.asarray(days, dtype=np.float64) * FLOPS_PER_PFLOP_DAY

    days = axes.secondary_xaxis("top", functions=(to_days, to_flops))
    days.set_xlabel("PFLOP/s-days")
    return days
