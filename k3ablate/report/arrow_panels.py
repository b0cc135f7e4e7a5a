"""How does a panel of loss against compute look: points, dashed curves, bands, an arrow at equal loss, one number?

A panel is plain data, and what is drawn of it is what `panel_rows` lists. The number and what belongs to it stand above
the plot; curves fall from upper left to lower right, so that names have room in the lower left corner. Two series
differ in colour, in marker, in its filling and in their dashes. What is shown is decided in `headline`; nothing is
computed here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator, NullFormatter, NullLocator

from k3ablate.fits.forms import Array
from k3ablate.fits.solve import Interval
from k3ablate.report.figures import add_days_axis
from k3ablate.report.lettering import BODY, LINE_SPACING, SMALL, height, wrapped
from k3ablate.report.pictures import Row
from k3ablate.report.style import DOTS_PER_INCH, FLOPS_PER_PFLOP_DAY, Theme
from k3ablate.report.ticks import label_decades

PANEL_WIDTH, ALONE_WIDTH, PLOT_HEIGHT = 3.75, 4.6, 2.75  # inches
AXES_HEIGHT = 1.05  # of the names and numbers of both axes of compute
MARGIN = 0.85  # of a panel's width, for its loss axis
HEADING, NUMBER = 8.5, 16.0  # points
GAP = 2.5  # points under the number
BOLD = 1.14  # width of bold letters over those of others
NAME_WIDTH = 1.2  # inches
MOST_LINES, MOST_NAME_LINES = 5, 3  # of one sentence, of one name
DASHES = ((0, (5, 2)), (0, (1.8, 1.4)))
COLOURS = (0, 1)  # of the theme: the baseline's, the other's
PAD = 0.06  # of the range, around what is drawn
MOST_TICKS = 5


@dataclass(frozen=True)
class Series:
    """Points [N], and a curve [G] with its band where there is one. `runs`: size and seed of each point, or none."""

    name: str
    marker: str
    runs: tuple[tuple[str, int], ...]
    compute: Array
    loss: Array
    curve_compute: Array = field(default_factory=lambda: np.empty(0))
    curve_loss: Array = field(default_factory=lambda: np.empty(0))
    low: Array = field(default_factory=lambda: np.empty(0))
    high: Array = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class Arrow:
    """From the arm's compute to the baseline's at one loss; `value` is the multiplier where it is a single one."""

    loss: float
    arm_compute: float
    baseline_compute: float
    value: float | None
    interval: Interval | None
    note: str


@dataclass(frozen=True)
class Panel:
    """One plot; without `has_numbers` losses are heights in ticks. `number` is large, `lines` explain it."""

    key: str
    heading: str
    loss_label: str
    has_numbers: bool
    series: tuple[Series, ...]
    arrows: tuple[Arrow, ...]
    number: str
    lines: tuple[str, ...]
    description: str


def panel_rows(panel: Panel) -> list[Row]:
    """Every number that is drawn of a panel."""
    rows: list[Row] = []
    for one in panel.series:
        labels: list[Row] = [{"size": size, "seed": seed} for size, seed in one.runs] or [{}] * len(one.compute)
        rows += [
            {"kind": "run", "arm": one.name} | label | {"flops": compute, "loss": loss}
            for label, compute, loss in zip(labels, one.compute.tolist(), one.loss.tolist(), strict=True)
        ]
        columns = {"flops": one.curve_compute, "loss": one.curve_loss, "loss_low": one.low, "loss_high": one.high}
        present = {name: column.tolist() for name, column in columns.items() if len(column)}
        for values in zip(*present.values(), strict=True):
            rows.append({"kind": "curve", "arm": one.name, **dict(zip(present, values, strict=True))})
    rows += [_arrow_row(arrow) for arrow in panel.arrows]
    rows += [{"kind": "number", "note": panel.number}] if panel.number else []
    rows += [{"kind": "line", "note": line} for line in panel.lines]
    unit = "nats per token" if panel.has_numbers else "ticks"
    return [{"panel": panel.key, "loss_unit": unit, **row} for row in rows]


def panels_figure(panels: Sequence[Panel], notes: Sequence[str], theme: Theme) -> Figure:
    """Panels side by side, what each says above it, and small lines beneath them."""
    width = ALONE_WIDTH if len(panels) == 1 else PANEL_WIDTH * len(panels)
    lines = [line for note in notes for line in wrapped(note, width - 0.2, SMALL)]
    heads = [_head(panel, width / len(panels) - MARGIN) for panel in panels]
    above = max(sum(height(1, points) for _, points in head) for head in heads)
    tall = above + PLOT_HEIGHT + AXES_HEIGHT + height(len(lines), SMALL)
    figure = Figure(figsize=(width, tall), dpi=DOTS_PER_INCH, layout="constrained")
    figure.get_layout_engine().set(wspace=0.06, hspace=0.0, h_pad=0.03)  # type: ignore[union-attr, call-arg]
    rows = figure.subplots(2, len(panels), squeeze=False, height_ratios=(above, PLOT_HEIGHT))
    for top, axes, panel, head in zip(*rows, panels, heads, strict=True):
        top.set_axis_off()
        _say(top, head, theme)
        _draw(axes, panel, theme)
    below = figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=SMALL, color=theme.muted)
    below.set_parse_math(False)
    return figure


def _head(panel: Panel, inches: float) -> list[tuple[str, float]]:
    """The lines above a panel with their sizes: heading, number, what explains it."""
    (heading,) = wrapped(panel.heading, inches / BOLD, HEADING, most_lines=1)
    number = [(line, NUMBER) for line in wrapped(panel.number, inches / BOLD, NUMBER)] if panel.number else []
    lines = [line for text in panel.lines for line in wrapped(text, inches, SMALL, MOST_LINES)]
    return [(heading, HEADING), *number, *((line, SMALL) for line in lines)]


def _say(axes: Axes, head: list[tuple[str, float]], theme: Theme) -> None:
    """Line under line from the top, by points, so that the heads of all panels stand at one height."""
    below = 0.0
    for line, points in head:
        below += points * LINE_SPACING
        colour, weight = (theme.muted, "normal") if points == SMALL else (theme.ink, "bold")
        axes.annotate(
            line, xy=(0, 1), xycoords="axes fraction", xytext=(0, -below), textcoords="offset points", va="baseline",
            fontsize=points, color=colour, fontweight=weight, parse_math=False,
        )  # fmt: skip
        below += GAP if points == NUMBER else 0.0


def _arrow_row(arrow: Arrow) -> Row:
    return {
        "kind": "arrow",
        "flops": arrow.arm_compute,
        "baseline_flops": arrow.baseline_compute,
        "loss": arrow.loss,
        "multiplier": "" if arrow.value is None else arrow.value,
        "multiplier_low": "" if arrow.interval is None else arrow.interval.low,
        "multiplier_high": "" if arrow.interval is None else arrow.interval.high,
        "note": arrow.note,
    }


def _draw(axes: Axes, panel: Panel, theme: Theme) -> None:
    axes.set_xlabel("training compute (FLOPs)", fontsize=BODY)
    axes.set_ylabel(panel.loss_label, fontsize=BODY)
    axes.tick_params(labelsize=BODY - 1)
    axes.spines[["right"]].set_visible(False)
    if not any(len(one.compute) for one in panel.series):  # numbers on axes without data would be made up
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[["top"]].set_visible(False)
        return
    _scale(axes, panel)
    for index, one in enumerate(panel.series):
        _draw_series(axes, one, theme, index)
    for arrow in panel.arrows:
        _draw_arrow(axes, arrow, theme)
    _name_series(axes, panel, theme)


def _scale(axes: Axes, panel: Panel) -> None:
    """Limits around points and curves: a wide band may end at the frame."""
    compute = np.concatenate([part for one in panel.series for part in (one.compute, one.curve_compute)])
    loss = np.concatenate([part for one in panel.series for part in (one.loss, one.curve_loss)])
    ends = [end for arrow in panel.arrows for end in (arrow.arm_compute, arrow.baseline_compute)]
    low, high = _padded(np.log(np.concatenate([compute, ends])))
    axes.set_xscale("log")
    axes.set_xlim(float(np.exp(low)), float(np.exp(high)))
    _scale_loss(axes, np.concatenate([loss, [arrow.loss for arrow in panel.arrows]]), panel.has_numbers)
    days = add_days_axis(axes)
    days.set_xlabel("PFLOP/s-days", fontsize=BODY)
    days.tick_params(labelsize=BODY - 1)
    low, high = axes.get_xlim()  # those of the upper axis follow when it is drawn
    label_decades(axes.xaxis, low, high, MOST_TICKS)
    label_decades(days.xaxis, low / FLOPS_PER_PFLOP_DAY, high / FLOPS_PER_PFLOP_DAY, MOST_TICKS)


def _scale_loss(axes: Axes, loss: Array, has_numbers: bool) -> None:
    if not has_numbers:
        axes.set_ylim(*_padded(loss))
        axes.yaxis.set_major_locator(MultipleLocator(1.0))
        axes.yaxis.set_major_formatter(NullFormatter())
        return
    bottom, top = _padded(np.log(loss))
    axes.set_yscale("log")
    axes.set_ylim(float(np.exp(bottom)), float(np.exp(top)))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.5g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def _padded(values: Array) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    pad = PAD * (high - low) or 0.1
    return low - pad, high + pad


def _draw_series(axes: Axes, one: Series, theme: Theme, index: int) -> None:
    colour = theme.colours[COLOURS[index]]
    if len(one.low):
        axes.fill_between(one.curve_compute, one.low, one.high, color=colour, alpha=0.16, linewidth=0, zorder=1)
    if len(one.curve_compute):
        axes.plot(one.curve_compute, one.curve_loss, color=colour, linewidth=1.3, linestyle=DASHES[index], zorder=2)
    axes.plot(one.compute, one.loss, zorder=4, **_looks(one.marker, theme, index))


def _looks(marker: str, theme: Theme, index: int) -> dict[str, Any]:
    """The baseline's markers are open, the other's filled."""
    colour = theme.colours[COLOURS[index]]
    size = 8.5 if marker == "*" else 4.5
    filling = theme.paper if index == 0 else colour
    return {"linestyle": "none", "marker": marker, "markersize": size, "markerfacecolor": filling, "color": colour,
            "markeredgewidth": 0.9}  # fmt: skip


def _draw_arrow(axes: Axes, arrow: Arrow, theme: Theme) -> None:
    looks = {"arrowstyle": "-|>,head_width=0.18,head_length=0.5", "color": theme.ink, "linewidth": 1.4,
             "shrinkA": 0, "shrinkB": 0}  # fmt: skip
    start, end = (arrow.arm_compute, arrow.loss), (arrow.baseline_compute, arrow.loss)
    axes.annotate("", xy=end, xytext=start, arrowprops=looks, zorder=3)


def _name_series(axes: Axes, panel: Panel, theme: Theme) -> None:
    handles = [
        Line2D([], [], **_looks(one.marker, theme, index)
               | {"linestyle": DASHES[index] if len(one.curve_compute) else "none", "linewidth": 1.3})
        for index, one in enumerate(panel.series)
    ]  # fmt: skip
    legend = axes.legend(handles, [" "] * len(handles), loc="lower left", fontsize=BODY, frameon=False,
                         handlelength=2.4, borderaxespad=0.2)  # fmt: skip
    for text, one in zip(legend.get_texts(), panel.series, strict=True):
        text.set_parse_math(False)  # set afterwards: an underscore in front would hide it
        text.set_text("\n".join(wrapped(one.name, NAME_WIDTH, BODY, MOST_NAME_LINES)))
