"""How does an optimum move with compute, arm by arm, and what law goes through it?

A panel per arm, on shared logarithmic axes: optima that are claimed, with 95 percent intervals (an arrow where an end
is open), the best runs where none is, open, the arm's power law as a line over what was tuned, its 95 percent
interval as a band where three optima tell one, and the baseline's law as a faint line. Nothing is fitted here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from k3ablate.report.panels import Entry, Page, baseline_marked, few, grouped, lay_out, marker_looks, open_end, scale
from k3ablate.report.pictures import Picture
from k3ablate.report.style import Theme
from k3ablate.tuned import Law

COLUMNS = ["arm", "kind", "flops", "value", "low", "high"]
OPEN = 16.0  # points
BAND_ROOM = 3.0  # factor beyond the lowest and the highest value of an arm, to which bands are drawn
NUM_LAW_POINTS = 30  # for the interval's ends: a power law is straight on these axes


@dataclass(frozen=True)
class Best:
    """The best value of one arm at one place, that of the best run where none is claimed; an open end is None."""

    arm: str
    flops: float
    value: float
    is_claimed: bool
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Named:
    """What a picture of laws is called, and what its axes are."""

    name: str
    title: str
    x_label: str
    y_label: str


def law_picture(named: Named, best: Sequence[Best], laws: Mapping[str, Law], baseline: str) -> Picture:
    """Optima and laws, arms in the order of `best`; the law of `baseline` stands in every panel."""
    rows = [
        {"arm": one.arm, "kind": "optimum" if one.is_claimed else "best run", "flops": one.flops, "value": one.value,
         "low": one.low, "high": one.high}
        for one in best
    ]  # fmt: skip
    for arm, law in laws.items():
        flops = np.geomspace(law.smallest, law.largest, NUM_LAW_POINTS).tolist()
        ends = [law.interval(at) or (None, None) for at in flops]
        rows += [
            {"arm": arm, "kind": "law", "flops": at, "value": law.at(at), "low": low, "high": high}
            for at, (low, high) in zip(flops, ends, strict=True)
        ]
    data = pandas.DataFrame(rows, columns=COLUMNS)
    arms = list(dict.fromkeys(one.arm for one in best))
    notes = [_told(arm, laws[arm]) for arm in arms if arm in laws]
    notes += grouped((arm, "no law: fewer than two optima are claimed.") for arm in arms if arm not in laws)
    return Picture(
        name=named.name,
        title=named.title,
        description=f"{named.y_label} by {named.x_label}, a panel per arm: optima with 95 percent intervals, and the "
        f"power law through them. {' '.join(few(notes))}",
        data=data,
        draw=partial(_drawn, named, arms, data, notes, baseline),
    )


def draw_best(axes: Axes, claimed: pandas.DataFrame, ringed: pandas.DataFrame, x: str, theme: Theme) -> None:
    """Minima of curves with their intervals along x, and best runs where none is claimed; rows with loss, low, high.

    An interval that is open on a side has an arrow there.
    """
    for row in claimed.to_dict("records"):
        low, high = (float(row[x] if pandas.isna(row[end]) else row[end]) for end in ("low", "high"))
        axes.hlines(row["loss"], low, high, color=theme.ink, linewidth=1.4)
        for end, aside in (("low", (-OPEN, 0.0)), ("high", (OPEN, 0.0))):
            if pandas.isna(row[end]):
                open_end(axes, row[x], row["loss"], aside, theme.ink)
    axes.plot(claimed[x], claimed["loss"], linestyle="none", marker="o", markersize=4.5, color=theme.ink, gid="claimed")
    axes.plot(ringed[x], ringed["loss"], linestyle="none", marker="o", markersize=8.5, markerfacecolor="none",
              color=theme.ink, gid="not claimed")  # fmt: skip


def _told(arm: str, law: Law) -> str:
    known = law.exponent_low is not None and law.exponent_high is not None
    interval = f" ({law.exponent_low:.3g} to {law.exponent_high:.3g})" if known else ""
    return f"{arm}: goes as FLOPs^{law.exponent:.3g}{interval}."


def _drawn(
    named: Named, arms: Sequence[str], data: pandas.DataFrame, notes: Sequence[str], baseline: str, theme: Theme
) -> Figure:
    first = data[(data["arm"] == baseline) & (data["kind"] == "law")]
    kinds = {*data["kind"], *(["of the baseline"] if len(first) and len(arms) > 1 else [])}
    entries = [
        Entry("optimum, 95 percent interval", {"color": theme.ink, "marker": "o", "markersize": 4.0, "linewidth": 0.9}),
        Entry("best run, not claimed", {**marker_looks(0, theme), "marker": "o"}),
        Entry("law, 95 percent interval as a band", {"color": theme.ink, "linewidth": 1.0, "linestyle": "--"}),
        Entry(f"law of {baseline}", {"color": theme.muted, "linewidth": 0.8, "alpha": 0.6}),
    ]  # fmt: skip
    shown = [
        entry
        for entry, kind in zip(entries, ("optimum", "best run", "law", "of the baseline"), strict=True)
        if kind in kinds
    ]
    figure, panels = lay_out(
        Page(baseline_marked(arms, baseline), named.x_label, named.y_label, shown, few(notes)), theme
    )
    for index, (arm, axes) in enumerate(zip(arms, panels, strict=True)):
        if arm != baseline:
            axes.plot(first["flops"], first["value"], color=theme.muted, linewidth=0.8, alpha=0.6)
        _arm(axes, data[data["arm"] == arm], index, theme)
    scale(panels[0])
    return figure


def _arm(axes: Axes, rows: pandas.DataFrame, index: int, theme: Theme) -> None:
    looks = marker_looks(index, theme)
    law, claimed, others = (rows[rows["kind"] == kind] for kind in ("law", "optimum", "best run"))
    axes.plot(law["flops"], law["value"], "--", color=looks["color"], linewidth=1.0)
    # an interval may be endless: as far as it is drawn it leaves the optima room
    room = float(rows["value"].min()) / BAND_ROOM, float(rows["value"].max()) * BAND_ROOM
    lower, upper = (law[end].astype(float).clip(*room) for end in ("low", "high"))
    axes.fill_between(law["flops"].astype(float), lower, upper, color=looks["color"], alpha=0.14, linewidth=0)
    low, high = (claimed[end].astype(float) for end in ("low", "high"))
    axes.vlines(claimed["flops"], low.fillna(claimed["value"]), high.fillna(claimed["value"]), color=looks["color"],
                linewidth=0.9)  # fmt: skip
    for ends, aside in ((low, (0.0, -OPEN)), (high, (0.0, OPEN))):
        for row in claimed[ends.isna()].to_dict("records"):
            open_end(axes, row["flops"], row["value"], aside, looks["color"])
    axes.plot(claimed["flops"], claimed["value"], **{**looks, "markerfacecolor": looks["color"]})
    axes.plot(others["flops"], others["value"], **looks)
