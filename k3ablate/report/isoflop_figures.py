"""How should compute be shared between parameters and tokens? Loss by tokens per parameter, a curve per budget.

A panel per arm on shared axes: every run, the parabola in ln(tokens per parameter) of each budget, and its minimum with
the 95 percent interval. Where no minimum is claimed the parabola is dotted and the best run is ringed. The minima by
budget, with their law, are a second picture. What is claimed was decided by `tuning.isoflop`.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from k3ablate.report.law_figures import Best, Named, draw_best, law_picture
from k3ablate.report.panels import Entry, Page, baseline_marked, few, grouped, lay_out, marker_looks, scale
from k3ablate.report.parabolas import parabola
from k3ablate.report.pictures import Picture
from k3ablate.report.style import Theme
from k3ablate.report.traces import Sweep
from k3ablate.tuned import Law

COLUMNS = ["arm", "flops", "kind", "size", "tokens_per_parameter", "loss", "low", "high", "note"]
RATIO = "tokens per active parameter"
REMARK = (
    "Dashes: parabola in the logarithm. Filled, with a bar: its minimum with a 95 percent interval, an arrow where an "
    "end is open. Dots and a ring: no minimum is claimed, and the best run is ringed."
)


def isoflop_pictures(sweeps: Sequence[Sweep], laws: Mapping[str, Law], baseline: str) -> list[Picture]:
    """The parabolas, and the minima by budget where there are two budgets; none without a sweep."""
    if not sweeps:
        return []
    ordered = sorted(sweeps, key=lambda one: one.arm != baseline)
    found = [_picture(ordered, baseline)]
    if len({one.flops for one in ordered}) > 1:
        best = [_best(one) for one in ordered]
        named = Named("isoflop_law", "Compute-optimal tokens per parameter", "training compute (FLOPs)", RATIO)
        found.append(law_picture(named, best, laws, baseline))
    return found


def _best(one: Sweep) -> Best:
    return Best(one.arm, one.flops, one.value, one.is_claimed, one.low, one.high)


def _picture(sweeps: Sequence[Sweep], baseline: str) -> Picture:
    data = pandas.DataFrame([row for one in sweeps for row in _rows(one)], columns=COLUMNS)
    doubted = [one for one in sweeps if not one.is_claimed]
    notes = [REMARK, *grouped((f"{one.arm} {one.flops:.3g} FLOPs", f"not claimed: {one.note}") for one in doubted)]
    return Picture(
        name="isoflop",
        title="Loss at equal compute",
        description=f"Every finished run by {RATIO} and validation loss, a panel per arm, a curve per budget. "
        f"{' '.join(few(notes))}",
        data=data,
        draw=partial(_drawn, list(dict.fromkeys(one.arm for one in sweeps)), data, notes, baseline),
    )


def _rows(one: Sweep) -> list[dict[str, object]]:
    cell = {"arm": one.arm, "flops": one.flops}
    rows: list[dict[str, object]] = [
        {**cell, "kind": "run", "size": size, "tokens_per_parameter": ratio, "loss": loss}
        for size, ratio, loss in zip(one.sizes, one.ratios, one.losses, strict=True)
    ]  # fmt: skip
    curve = parabola(np.log(np.array(one.ratios))[:, None], np.array(one.losses))
    if curve is not None:
        pairs = zip(np.exp(curve.place_K).tolist(), curve.loss_K.tolist(), strict=True)
        kind = "curve" if one.is_claimed else "curve, not claimed"
        rows += [{**cell, "kind": kind, "tokens_per_parameter": ratio, "loss": loss} for ratio, loss in pairs]
    kind = "minimum" if one.is_claimed else "best run"
    best = {"kind": kind, "tokens_per_parameter": one.value, "loss": one.loss, "low": one.low, "high": one.high}
    return [*rows, {**cell, **best, "note": one.note or None}]


def _drawn(
    arms: Sequence[str], data: pandas.DataFrame, notes: Sequence[str], baseline: str, theme: Theme
) -> Figure:  # fmt: skip
    budgets = sorted(set(data["flops"]))
    entries = [Entry(f"{flops:.3g} FLOPs", marker_looks(index, theme)) for index, flops in enumerate(budgets)]
    titles = baseline_marked(arms, baseline)
    page = Page(titles, RATIO, "validation loss (nats per token)", entries, few(notes), columns=3, panel_height=1.9)
    figure, panels = lay_out(page, theme)
    for arm, axes in zip(arms, panels, strict=True):
        for index, flops in enumerate(budgets):
            _budget(axes, data[(data["arm"] == arm) & (data["flops"] == flops)], index, theme)
    scale(panels[0])
    return figure


def _budget(axes: Axes, rows: pandas.DataFrame, index: int, theme: Theme) -> None:
    looks = marker_looks(index, theme)
    for kind, dash in (("curve", "--"), ("curve, not claimed", ":")):
        line = rows[rows["kind"] == kind]
        axes.plot(line["tokens_per_parameter"], line["loss"], dash, color=looks["color"], linewidth=1.0, gid=kind)
    runs, least, ringed = (rows[rows["kind"] == kind] for kind in ("run", "minimum", "best run"))
    axes.plot(runs["tokens_per_parameter"], runs["loss"], gid="run", **looks)
    draw_best(axes, least, ringed, "tokens_per_parameter", theme)
