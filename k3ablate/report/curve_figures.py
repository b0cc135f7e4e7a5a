"""How does loss fall with tokens and with hours, and how far do runs lie from the curves that were fitted?

Tokens and hours come from the table of records. A curve over tokens is fitted here as `fit` does, one arm at a time,
and only drawn; multipliers are read from compute alone. Hours have no curve: they are of the machine as well. Loss
against compute is in `figures`.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas
from matplotlib.figure import Figure

from k3ablate.config import InputError
from k3ablate.fits.analysis import Analysis
from k3ablate.fits.forms import CURVES
from k3ablate.fits.logged_runs import SECONDS_PER_HOUR
from k3ablate.fits.solve import fit
from k3ablate.records import Status
from k3ablate.report.panels import Entry, Page, few, lay_out, marker_looks, say, scale
from k3ablate.report.pictures import Picture
from k3ablate.report.residual_figures import arm_order, residual_picture
from k3ablate.report.style import Theme

NUM_CURVE_POINTS = 100
COLUMNS = ["arm", "kind", "size", "seed", "spent", "loss", "note"]
HOURS_NOTE = (
    "Hours depend on the machine, on what else it did and on which kernels ran: no curve is fitted and no ratio read."
)


@dataclass(frozen=True)
class _Spent:
    """What loss is drawn against."""

    name: str
    title: str
    label: str
    column: str
    unit: float  # of the column, in that of the axis
    has_curve: bool


TOKENS = _Spent("loss_vs_tokens", "Loss against training tokens", "training tokens", "tokens", 1.0, has_curve=True)
HOURS = _Spent("loss_vs_hours", "Loss against hours of training", "hours of training (wall clock)", "wall_seconds",
               SECONDS_PER_HOUR, has_curve=False)  # fmt: skip


def curve_pictures(analysis: Analysis, runs: pandas.DataFrame) -> list[Picture]:
    """Loss against tokens and against hours, and the residuals of the fits to compute; `runs` is the table analysed."""
    return [_spent_picture(analysis, runs, TOKENS), _spent_picture(analysis, runs, HOURS), residual_picture(analysis)]


def _spent_picture(analysis: Analysis, runs: pandas.DataFrame, spent: _Spent) -> Picture:
    points = _points(analysis, runs, spent)
    curves, reason = _curves(analysis, points, spent)
    data = pandas.concat([points, curves], ignore_index=True) if len(curves) else points
    left_out = data[data["kind"] == "left out"]
    notes = [*reason, *(f"left out: {row.arm} {row.size} seed {row.seed}: {row.note}" for row in left_out.itertuples())]

    def draw(theme: Theme) -> Figure:
        return _drawn(analysis, data, notes, spent, theme)

    curve_text = " and the curve of each arm as dashes, where tokens alone tell one" if spent.has_curve else ""
    return Picture(
        name=spent.name,
        title=spent.title,
        description=f"Every finished run as a marker, by {spent.label} and validation loss on logarithmic axes"
        f"{curve_text}. {' '.join(reason)}".strip(),
        data=data,
        draw=draw,
    )


def _points(analysis: Analysis, runs: pandas.DataFrame, spent: _Spent) -> pandas.DataFrame:
    """A row per finished run; one without a number for this axis is kept as left out, with the reason."""
    cells = _cells(runs, spent)
    rows = []
    for name in arm_order(analysis):
        for point in analysis.arm(name).points:
            value, reason = cells.get((name, point.size, point.seed), (np.nan, f"no {spent.column} in the table"))
            rows.append({"arm": name, "kind": "left out" if reason else "run", "size": point.size, "seed": point.seed,
                         "spent": value, "loss": point.loss, "note": reason})  # fmt: skip
    return pandas.DataFrame(rows, columns=COLUMNS)


def _cells(runs: pandas.DataFrame, spent: _Spent) -> Mapping[Hashable, tuple[float, str]]:
    """(arm, size, seed) -> what was spent, or why that is not known."""
    if spent.column not in runs:
        return {}
    finished = runs[runs["status"] == Status.FINISHED] if "status" in runs else runs
    numbers = pandas.to_numeric(finished[spent.column], errors="coerce") / spent.unit
    is_part = np.zeros(len(finished), dtype=bool)
    if spent is HOURS and "tokens_trained" in finished:
        is_part = (finished["tokens_trained"] < finished["tokens"]).to_numpy(dtype=bool)
    found: dict[Hashable, tuple[float, str]] = {}
    for arm, size, seed, number, part in zip(
        finished["arm"], finished["size"], finished["seed"], numbers, is_part, strict=True
    ):
        reason = "" if np.isfinite(number) and number > 0 else f"no {spent.column} in the table"
        part_reason = "began from a checkpoint of another run, whose hours are not in its own"
        found[str(arm).strip(), str(size), int(seed)] = (float(number), part_reason if part else reason)
    return found


def _curves(analysis: Analysis, points: pandas.DataFrame, spent: _Spent) -> tuple[pandas.DataFrame, list[str]]:
    """The curves where they are drawn, and what is to be said of them."""
    if not spent.has_curve:
        return pandas.DataFrame(columns=COLUMNS), [HOURS_NOTE]
    if analysis.form not in CURVES:
        return pandas.DataFrame(columns=COLUMNS), [
            "No curve over tokens: no form of an arm's own was chosen for FLOPs."
        ]
    rows, refused = [], dict[str, list[str]]()
    for name in arm_order(analysis):
        runs = points[(points["arm"] == name) & (points["kind"] == "run")]
        if not len(runs):
            continue
        try:
            fitted = fit(runs["spent"], runs["loss"], analysis.form)
        except InputError as error:
            refused.setdefault(str(error), []).append(name)
            continue
        x = np.geomspace(runs["spent"].min(), runs["spent"].max(), NUM_CURVE_POINTS)
        rows += [
            {"arm": name, "kind": "curve", "spent": at, "loss": loss}
            for at, loss in zip(x.tolist(), fitted.predict(x).tolist(), strict=True)
        ]
    told = [f"Curves: {analysis.form}, fitted to tokens as `fit` does, each arm alone."] if rows else []
    told += [f"No curve over tokens for {', '.join(names)}: {reason}" for reason, names in refused.items()]
    return pandas.DataFrame(rows, columns=COLUMNS), told


def _drawn(
    analysis: Analysis, data: pandas.DataFrame, notes: list[str], spent: _Spent, theme: Theme
) -> Figure:  # fmt: skip
    shown, arms = data[data["kind"] == "run"], arm_order(analysis)
    styles = {name: marker_looks(index, theme) for index, name in enumerate(arms)}
    present = [name for name in arms if name in set(shown["arm"])]
    entries = [
        Entry(f"{name} (baseline)" if name == analysis.baseline else name, styles[name]) for name in present
    ]  # fmt: skip
    page = Page([""], spent.label, "validation loss (nats per token)", entries, few(notes), 1, 3.6)
    figure, (axes,) = lay_out(page, theme)
    if not len(shown):
        say(axes, f"nothing to show: no finished run has {spent.label}")
        return figure
    for name in present:
        runs, curve = (data[(data["arm"] == name) & (data["kind"] == kind)] for kind in ("run", "curve"))
        axes.plot(runs["spent"], runs["loss"], label=name, **styles[name])
        if len(curve):
            axes.plot(curve["spent"], curve["loss"], "--", linewidth=1.0, color=styles[name]["color"], label=f"_{name}")
    scale(axes)
    return figure
