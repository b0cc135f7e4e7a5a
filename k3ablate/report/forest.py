"""How many times more compute does the baseline need than each arm? All multipliers below one another.

`forest_picture` has a row per arm: the multiplier from curves with its interval, open where it was extrapolated, the
paired estimate as a second mark, m(C) as a thick line where one number does not hold, and the reason where there is
none. A repeat of the baseline (A/A) stands at the bottom, behind a rule: its interval should hold 1. The numbers are
those of the table (`tables`); nothing is computed here.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from k3ablate.fits.analysis import Analysis, ArmAnalysis
from k3ablate.fits.solve import Interval
from k3ablate.report.lettering import BODY
from k3ablate.report.pictures import Picture, Row
from k3ablate.report.rows import Line, Sheet, Words, sheet
from k3ablate.report.style import Theme, factor, factor_range
from k3ablate.report.ticks import label_factors

NAME = "multipliers"
WIDEST = 100.0  # times beyond all estimates that an axis follows an interval; further ends become arrows
PAD, LEAST_RANGE = 0.06, 0.05  # around what is drawn, of the range; of the axis, in ln m
CURVE_AT, PAIRED_AT, HALF_CAP = -0.055, 0.075, 0.03  # inches from the centre of a row
MOST_TICKS = 7


def forest_picture(analysis: Analysis) -> Picture:
    """Every arm that is not the baseline."""
    arms = _in_order(analysis)
    words = Words(
        heading=f"Compute that {analysis.baseline} needs over each arm's, at equal loss",
        lines=[f"curves: {analysis.form_reason}"],
        value_heading="multiplier (95 %)",
        notes=_notes(analysis, arms),
    )
    told = "; ".join(", ".join((f"{arm.arm} {_value(arm)}", *_remarks(arm))) for arm in arms)
    return Picture(
        name=NAME,
        title=words.heading,
        description=f"One row per arm on a logarithmic axis of the multiplier, above 1 is a gain: {told or 'no arm'}.",
        data=pandas.DataFrame([_row(analysis, arm) for arm in arms], columns=list(_COLUMNS)),
        draw=lambda theme: _draw(analysis, arms, words, theme),
    )


_COLUMNS = (
    "arm", "multiplier", "multiplier_low", "multiplier_high", "range", "beyond", "read_at_loss", "paired", "paired_low",
    "paired_high", "lowest_m", "highest_m", "repeats_baseline", "no_multiplier",
)  # fmt: skip


def _in_order(analysis: Analysis) -> list[ArmAnalysis]:
    """As in the table, repeats of the baseline last."""
    others = [arm for arm in analysis.arms if arm.arm != analysis.baseline]
    return sorted(others, key=analysis.is_repeat_of_baseline)


def _row(analysis: Analysis, arm: ArmAnalysis) -> Row:
    found, paired, along = arm.multiplier, arm.paired, arm.multiplier_curve
    values = (
        arm.arm,
        *((found.value, found.interval.low, found.interval.high) if found else ("", "", "")),
        *((_range(arm), found.beyond, found.loss) if found else ("", "", "")),
        *((paired.value, paired.interval.low, paired.interval.high) if paired else ("", "", "")),
        *((float(along.value_G.min()), float(along.value_G.max())) if along is not None else ("", "")),
        analysis.is_repeat_of_baseline(arm),
        "" if found else arm.no_multiplier,
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _range(arm: ArmAnalysis) -> str:
    assert arm.multiplier is not None, "asked for arms with a multiplier"
    return "measured" if arm.multiplier.measured else f"extrapolated {factor(arm.multiplier.beyond)}x"


def _value(arm: ArmAnalysis) -> str:
    if arm.multiplier is not None:
        return f"{factor(arm.multiplier.value)} ({factor_range(arm.multiplier.interval)})"
    along = arm.multiplier_curve
    return "none" if along is None else f"m(C) {factor(along.value_G[0])} to {factor(along.value_G[-1])}"


def _remarks(arm: ArmAnalysis) -> tuple[str, ...]:
    """That it was extrapolated, and the paired estimate."""
    extrapolated = _range(arm) if arm.multiplier is not None and not arm.multiplier.measured else ""
    paired = f"paired {factor(arm.paired.value)} ({factor_range(arm.paired.interval)})" if arm.paired else ""
    return tuple(text for text in (extrapolated, paired) if text)


def _notes(analysis: Analysis, arms: Sequence[ArmAnalysis]) -> list[str]:
    """Why arms have no number: a reason once, with all its arms."""
    if not arms:
        return [f"no arm but {analysis.baseline} in this table"]
    reasons: dict[str, list[str]] = {}
    for arm in arms:
        if arm.multiplier is None:
            reasons.setdefault(arm.no_multiplier, []).append(arm.arm)
    return [f"no multiplier of {', '.join(named)}: {reason}" for reason, named in reasons.items()]


def _draw(analysis: Analysis, arms: Sequence[ArmAnalysis], words: Words, theme: Theme) -> Figure:
    repeats = [analysis.is_repeat_of_baseline(arm) for arm in arms]
    first = repeats.index(True) if True in repeats else -1
    lines = [
        Line(arm.arm, _value(arm), "A/A: repeats the baseline" if repeats[index] else "", _remarks(arm), index == first)
        for index, arm in enumerate(arms)
    ]
    alone = Line(analysis.baseline, "1", "the baseline")
    page = sheet(lines or [alone], words, theme, has_top_axis=False, legend=_legend(arms, theme))
    _scale(page.axes, arms, theme)
    for arm, y in zip(arms, page.centres, strict=bool(arms)):
        _draw_arm(page, arm, y, theme)
    return page.figure


def _scale(axes: Axes, arms: Sequence[ArmAnalysis], theme: Theme) -> None:
    """Around all estimates and 1, and as far as intervals go within reason."""
    values = [value for arm in arms for value, _ in _estimates(arm)]
    values += [float(value) for arm in arms if arm.multiplier_curve for value in arm.multiplier_curve.value_G[[0, -1]]]
    values = [1.0, *(value for value in values if 0 < value < math.inf)]
    low, high = min(values), max(values)
    ends = [end for arm in arms for _, span in _estimates(arm) for end in (span.low, span.high)]
    within = [end for end in ends if low / WIDEST <= end <= high * WIDEST]
    low, high = math.log(min([low, *within])), math.log(max([high, *within]))
    pad = max(PAD * (high - low), LEAST_RANGE)
    axes.set_xscale("log")
    axes.set_xlim(math.exp(low - pad), math.exp(high + pad))
    axes.set_xlabel("multiplier (factor of compute, above 1 is a gain)", fontsize=BODY)
    axes.xaxis.set_minor_formatter(NullFormatter())
    if len(values) > 1:
        label_factors(axes.xaxis, *axes.get_xlim(), MOST_TICKS)
    else:  # numbers on an axis without data would be made up
        axes.set_xticks([1.0], ["1"])
    axes.axvline(1.0, color=theme.ink, linewidth=0.8, zorder=1)


def _estimates(arm: ArmAnalysis) -> list[tuple[float, Interval]]:
    return [(found.value, found.interval) for found in (arm.multiplier, arm.paired) if found is not None]


def _draw_arm(page: Sheet, arm: ArmAnalysis, y: float, theme: Theme) -> None:
    axes, found, along = page.axes, arm.multiplier, arm.multiplier_curve
    at, paired_at = (y + CURVE_AT, y + PAIRED_AT) if arm.paired is not None else (y, y)
    if found is not None:
        _draw_interval(axes, found.interval, at, theme.ink, 1.3)
        axes.plot(found.value, at, **_mark(theme, found.measured))
    elif along is not None:
        ends = [float(along.value_G.min()), float(along.value_G.max())]
        axes.plot(ends, [at] * 2, **_thick(theme))
    if arm.paired is not None:
        colour = theme.colours[1]
        _draw_interval(axes, arm.paired.interval, paired_at, colour, 0.9)
        axes.plot(arm.paired.value, paired_at, **_paired_mark(theme))


def _draw_interval(axes: Axes, interval: Interval, y: float, colour: str, wide: float) -> None:
    """A whisker with caps, or with an arrow where it goes on beyond the frame."""
    left, right = axes.get_xlim()
    axes.plot([max(interval.low, left), min(interval.high, right)], [y, y], color=colour, linewidth=wide, zorder=2)
    for end, frame, marker in ((interval.low, left, "<"), (interval.high, right, ">")):
        if left <= end <= right:
            axes.plot([end, end], [y - HALF_CAP, y + HALF_CAP], color=colour, linewidth=wide, zorder=2)
        else:
            axes.plot(frame, y, marker, color=colour, markersize=3.5, clip_on=False, zorder=2)


def _mark(theme: Theme, is_measured: bool) -> dict[str, Any]:
    return {"linestyle": "none", "marker": "o", "markersize": 5, "color": theme.ink, "zorder": 4,
            "markerfacecolor": theme.ink if is_measured else theme.paper, "markeredgewidth": 1.1}  # fmt: skip


def _paired_mark(theme: Theme) -> dict[str, Any]:
    return {"linestyle": "none", "marker": "D", "markersize": 3.4, "color": theme.colours[1], "zorder": 4,
            "markerfacecolor": theme.paper, "markeredgewidth": 0.9}  # fmt: skip


def _thick(theme: Theme) -> dict[str, Any]:
    return {"color": theme.muted, "linewidth": 4.0, "solid_capstyle": "butt", "zorder": 3}


def _legend(arms: Sequence[ArmAnalysis], theme: Theme) -> list[Artist]:
    """What stands in the picture, and no more."""
    found = [arm.multiplier for arm in arms if arm.multiplier is not None]
    marks = [
        ("from curves, measured", _mark(theme, True) | {"linestyle": "-"}, any(one.measured for one in found)),
        ("extrapolated", _mark(theme, False) | {"linestyle": "-"}, any(not one.measured for one in found)),
        ("paired runs", _paired_mark(theme) | {"linestyle": "-", "linewidth": 0.9}, any(arm.paired for arm in arms)),
        ("m(C): no single number", _thick(theme), any(not a.multiplier and a.multiplier_curve for a in arms)),
    ]  # fmt: skip
    return [Line2D([], [], label=label, **looks) for label, looks, is_there in marks if is_there]
