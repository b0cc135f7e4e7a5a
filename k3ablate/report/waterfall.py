"""How does a waterfall of logarithms look: steps from a baseline to a whole, each beginning where the last one ends?

Bars lie on an axis of ln m, with factors above. Gains are filled, losses hollow, what belongs to no component is grey
and what nobody accounts for is hatched, so that they stay apart without colours. Which steps there are is decided in
`split_figures`; nothing is computed here.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from k3ablate.fits.forms import Array
from k3ablate.fits.split import Effect
from k3ablate.report.lettering import BODY
from k3ablate.report.pictures import Row
from k3ablate.report.rows import Line, Sheet, Words, sheet
from k3ablate.report.style import Theme
from k3ablate.report.ticks import label_factors

HALF_BAR, HALF_CAP, TICK_AT = 0.07, 0.035, 0.115  # inches from the centre of a row
PAD, LEAST_RANGE = 0.05, 0.05  # around the bars, of their range; of the axis, in ln m
MOST_TICKS = 6
GAIN, LOSS = 2, 1  # colours of the theme
HATCH = "/////"


@dataclass(frozen=True)
class Step:
    """One row; `kind` is baseline, part, remainder, unattributed, whole or unseen. Logarithms count from `start`."""

    name: str
    kind: str
    start: float
    effect: Effect | None
    share: float | None
    value: str
    remark: str = ""
    first_in: Effect | None = None
    last_in: Effect | None = None
    detail: str = ""

    def moved(self, start: float) -> "Step":
        """The same from another place."""
        return replace(self, start=start)


def step_rows(steps: Sequence[Step]) -> list[Row]:
    """Every number that is drawn, empty where there is none."""
    return [_row(step) for step in steps]


def waterfall_figure(steps: Sequence[Step], words: Words, theme: Theme) -> Figure:
    """The rows with their bars, whiskers, and ticks of first in and last in."""
    lines = [Line(step.name, step.value, step.detail, (step.remark,), apart=step.kind == "whole") for step in steps]
    page = sheet(lines, words, theme, has_top_axis=True, legend=_legend(steps, theme))
    _scale(page.axes, steps, theme)
    for step, y in zip(steps, page.centres, strict=True):
        _draw_step(page.axes, step, y, theme)
    _connect(page, steps, theme)
    return page.figure


def _row(step: Step) -> Row:
    found: Row = {"name": step.name, "kind": step.kind, "start_log": step.start}
    for name, effect in (("", step.effect), ("first_in_", step.first_in), ("last_in_", step.last_in)):
        interval = effect.log_interval if effect else None
        factors = effect.factor_interval if effect else None
        found |= {
            f"{name}log": effect.log if effect else "",
            f"{name}log_low": interval.low if interval else "",
            f"{name}log_high": interval.high if interval else "",
            f"{name}factor": effect.factor if effect else "",
            f"{name}factor_low": factors.low if factors else "",
            f"{name}factor_high": factors.high if factors else "",
        }
    return found | {"share": "" if step.share is None else step.share}


def _scale(axes: Axes, steps: Sequence[Step], theme: Theme) -> None:
    ends = [0.0, *(end for step in steps for end in _ends(step) if math.isfinite(end))]
    low, high = min(ends), max(ends)
    pad = max(PAD * (high - low), LEAST_RANGE)
    axes.set_xlim(low - pad, high + pad)
    axes.set_xlabel("ln multiplier", fontsize=BODY)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=MOST_TICKS, steps=[1, 2, 2.5, 5, 10]))
    axes.axvline(0, color=theme.ink, linewidth=0.8, zorder=1)
    factors = axes.secondary_xaxis("top", functions=(_exponential, _logarithm))
    factors.set_xlabel("multiplier (factor of compute)", fontsize=BODY)
    factors.tick_params(labelsize=BODY - 1)
    factors.set_xscale("log")
    label_factors(factors.xaxis, math.exp(low - pad), math.exp(high + pad), MOST_TICKS)


def _exponential(log: ArrayLike) -> Array:
    return np.exp(np.asarray(log, dtype=np.float64))


def _logarithm(factor: ArrayLike) -> Array:
    return np.log(np.maximum(np.asarray(factor, dtype=np.float64), np.finfo(float).tiny))


def _ends(step: Step) -> list[float]:
    effects = [effect for effect in (step.effect, step.first_in, step.last_in) if effect is not None]
    ends = [step.start + effect.log for effect in effects]
    interval = step.effect.log_interval if step.effect else None
    return [*ends, *([step.start + interval.low, step.start + interval.high] if interval else [])]


def _draw_step(axes: Axes, step: Step, y: float, theme: Theme) -> None:
    if step.effect is not None and math.isfinite(step.effect.log):
        bar = Rectangle((step.start, y - HALF_BAR), step.effect.log, 2 * HALF_BAR, zorder=2, **_looks(step, theme))
        axes.add_patch(bar)
        _draw_interval(axes, step, y, theme)
    for effect, marker, side in ((step.first_in, "v", -TICK_AT), (step.last_in, "^", TICK_AT)):
        if effect is not None and math.isfinite(effect.log):
            axes.plot(step.start + effect.log, y + side, marker, color=theme.ink, markersize=3.6, zorder=4,
                      markerfacecolor=theme.ink if marker == "v" else theme.paper, markeredgewidth=0.7)  # fmt: skip


def _draw_interval(axes: Axes, step: Step, y: float, theme: Theme) -> None:
    """A whisker that ends in a cap, or in an arrow at the frame where the end is not finite."""
    interval = step.effect.log_interval if step.effect else None
    if interval is None:
        return
    left, right = axes.get_xlim()
    around = [withStroke(linewidth=2.4, foreground=theme.paper)]  # ink on ink, where the bar is the whole
    looks: dict[str, Any] = {"color": theme.ink, "linewidth": 1.0, "zorder": 3, "path_effects": around}
    low, high = step.start + interval.low, step.start + interval.high
    axes.plot([max(low, left), min(high, right)], [y, y], **looks)
    for end, marker, frame in ((low, "<", left), (high, ">", right)):
        if math.isfinite(end):
            axes.plot([end, end], [y - HALF_CAP, y + HALF_CAP], **looks)
        else:
            axes.plot(frame, y, marker, color=theme.ink, markersize=4, clip_on=False, zorder=3)


def _looks(step: Step, theme: Theme) -> dict[str, Any]:
    """Filling and edge of a bar, apart in grey as well."""
    if step.kind in ("whole", "baseline"):
        return {"facecolor": theme.ink, "edgecolor": theme.ink, "linewidth": 1.0}
    if step.kind == "unattributed":
        return {"facecolor": theme.paper, "edgecolor": theme.muted, "hatch": HATCH, "linewidth": 1.0}
    if step.kind == "remainder":
        return {"facecolor": theme.faint, "edgecolor": theme.muted, "linewidth": 1.0}
    is_gain = step.effect is None or step.effect.log >= 0
    colour = theme.colours[GAIN if is_gain else LOSS]
    return {"facecolor": colour if is_gain else theme.paper, "edgecolor": colour, "linewidth": 1.2}


def _connect(page: Sheet, steps: Sequence[Step], theme: Theme) -> None:
    """Thin lines from the end of a bar to the beginning of the next one."""
    rows = list(zip(steps, page.centres, strict=True))
    for (step, y), (following, below) in itertools.pairwise(rows):
        end = step.start + (step.effect.log if step.effect else 0.0)
        if following.kind == "whole" or not math.isclose(end, following.start, abs_tol=1e-12):
            end = end if following.kind == "whole" and step.kind != "whole" else math.nan
        page.axes.plot([end, end], [y, below], color=theme.muted, linewidth=0.6, linestyle=(0, (1, 1.5)), zorder=1)


def _legend(steps: Sequence[Step], theme: Theme) -> list[Artist]:
    """What stands in the picture, and no more."""
    found: list[Artist] = []
    kinds = {
        "gain": [step for step in steps if step.kind == "part" and _is_gain(step)],
        "loss": [step for step in steps if step.kind == "part" and not _is_gain(step)],
        "of no single component": [step for step in steps if step.kind == "remainder"],
        "no public source": [step for step in steps if step.kind == "unattributed"],
    }
    found += [Patch(label=name, **_looks(shown[0], theme)) for name, shown in kinds.items() if shown]
    if any(step.effect and step.effect.log_interval for step in steps):
        found.append(Line2D([], [], color=theme.ink, linewidth=1.0, marker="|", markersize=5, label="95 % interval"))
    for name, marker, is_there in (
        ("first in", "v", any(step.first_in for step in steps)), ("last in", "^", any(step.last_in for step in steps))
    ):  # fmt: skip
        if is_there:
            found.append(Line2D([], [], linestyle="none", marker=marker, color=theme.ink, markersize=4, label=name,
                                markerfacecolor=theme.ink if marker == "v" else theme.paper))  # fmt: skip
    return found


def _is_gain(step: Step) -> bool:
    return step.effect is None or step.effect.log >= 0
