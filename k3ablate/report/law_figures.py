"""How does an optimum move with compute, arm by arm, and what law goes through it?

A panel per arm, on shared logarithmic axes: optima that are claimed, with 95 percent intervals (a caret where an end is
open), the best runs where none is, open, the arm's power law as a line over what was tuned, and the baseline's as a
faint one. Nothing is fitted here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETDOWN, CARETLEFT, CARETRIGHT, CARETUP

from k3ablate.report.panels import Entry, Page, few, lay_out, marker_looks, scale
from k3ablate.report.pictures import Picture
from k3ablate.report.style import Theme
from k3ablate.tuned import Law

COLUMNS = ["arm", "kind", "flops", "value", "low", "high"]
NUM_LAW_POINTS = 2  # a power law is straight on these axes


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


def law_picture(named: Named, best: Sequence[Best], laws: Mapping[str, Law]) -> Picture:
    """Optima and laws; the first arm in `best` is the baseline."""
    rows = [
        {"arm": one.arm, "kind": "optimum" if one.is_claimed else "best run", "flops": one.flops, "value": one.value,
         "low": one.low, "high": one.high}
        for one in best
    ]  # fmt: skip
    for arm, law in laws.items():
        flops = np.geomspace(law.smallest, law.largest, NUM_LAW_POINTS).tolist()
        rows += [{"arm": arm, "kind": "law", "flops": at, "value": law.at(at)} for at in flops]
    data = pandas.DataFrame(rows, columns=COLUMNS)
    arms = list(dict.fromkeys(one.arm for one in best))
    notes = [_told(arm, laws.get(arm)) for arm in arms]
    return Picture(
        name=named.name,
        title=named.title,
        description=f"{named.y_label} by {named.x_label}, a panel per arm: optima with 95 percent intervals, and the "
        f"power law through them. {' '.join(notes)}",
        data=data,
        draw=partial(_drawn, named, arms, data, notes),
    )


def draw_best(axes: Axes, claimed: pandas.DataFrame, ringed: pandas.DataFrame, x: str, theme: Theme) -> None:
    """Minima of curves with their intervals along x, and best runs where none is claimed; rows with loss, low, high.

    An interval that is open on a side has a caret there.
    """
    for row in claimed.to_dict("records"):
        low, high = (float(row[x] if pandas.isna(row[end]) else row[end]) for end in ("low", "high"))
        axes.hlines(row["loss"], low, high, color=theme.ink, linewidth=1.4)
        for end, marker in (("low", CARETLEFT), ("high", CARETRIGHT)):
            if pandas.isna(row[end]):
                axes.plot(row[x], row["loss"], marker=marker, markersize=9, color=theme.ink, gid=f"open {end}")
    axes.plot(claimed[x], claimed["loss"], linestyle="none", marker="o", markersize=4.5, color=theme.ink, gid="claimed")
    axes.plot(ringed[x], ringed["loss"], linestyle="none", marker="o", markersize=8.5, markerfacecolor="none",
              color=theme.ink, gid="not claimed")  # fmt: skip


def _told(arm: str, law: Law | None) -> str:
    if law is None:
        return f"{arm}: no law: fewer than two optima are claimed."
    known = law.exponent_low is not None and law.exponent_high is not None
    interval = f" ({law.exponent_low:.3g} to {law.exponent_high:.3g})" if known else ""
    return f"{arm}: goes as FLOPs^{law.exponent:.3g}{interval}."


def _drawn(named: Named, arms: Sequence[str], data: pandas.DataFrame, notes: Sequence[str], theme: Theme) -> Figure:
    kinds = set(data["kind"])
    entries = [
        Entry("optimum, 95 percent interval", {"color": theme.ink, "marker": "o", "markersize": 4.0, "linewidth": 0.9}),
        Entry("best run, not claimed", {**marker_looks(0, theme), "marker": "o"}),
        Entry("law", {"color": theme.ink, "linewidth": 1.0, "linestyle": "--"}),
        Entry(f"law of {arms[0]}", {"color": theme.muted, "linewidth": 0.8, "alpha": 0.6}),
    ]  # fmt: skip
    shown = [entry for entry, kind in zip(entries, ("optimum", "best run", "law", "law"), strict=True) if kind in kinds]
    figure, panels = lay_out(Page(arms, named.x_label, named.y_label, shown, few(notes)), theme)
    first = data[(data["arm"] == arms[0]) & (data["kind"] == "law")]
    for index, (arm, axes) in enumerate(zip(arms, panels, strict=True)):
        if index:
            axes.plot(first["flops"], first["value"], color=theme.muted, linewidth=0.8, alpha=0.6)
        _arm(axes, data[data["arm"] == arm], index, theme)
    scale(panels[0])
    return figure


def _arm(axes: Axes, rows: pandas.DataFrame, index: int, theme: Theme) -> None:
    looks = marker_looks(index, theme)
    law, claimed, others = (rows[rows["kind"] == kind] for kind in ("law", "optimum", "best run"))
    axes.plot(law["flops"], law["value"], "--", color=looks["color"], linewidth=1.0)
    low, high = (claimed[end].astype(float) for end in ("low", "high"))
    axes.vlines(claimed["flops"], low.fillna(claimed["value"]), high.fillna(claimed["value"]), color=looks["color"],
                linewidth=0.9)  # fmt: skip
    for ends, marker in ((low, CARETDOWN), (high, CARETUP)):
        is_open = ends.isna()
        axes.plot(claimed["flops"][is_open], claimed["value"][is_open], linestyle="none", marker=marker, markersize=8,
                  color=looks["color"])  # fmt: skip
    axes.plot(claimed["flops"], claimed["value"], **{**looks, "markerfacecolor": looks["color"]})
    axes.plot(others["flops"], others["value"], **looks)
