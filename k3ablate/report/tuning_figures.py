"""What did tuning try, and where is each arm best?

A panel per arm, all on shared axes: every trial by value and loss, the parabola through them, the optimum with its 95
percent interval, or the best trial where no optimum is claimed. Trials that diverged are ticks at the top. Where two
sizes were tuned the optima by compute are a picture of their own (`law_figures`). What is claimed was decided by
`tuning.optimum`; which trials its curve goes through is told again by `_near`.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from k3ablate.fits.forms import Array
from k3ablate.report.law_figures import Best, Named, draw_best, law_picture
from k3ablate.report.panels import (
    Entry,
    Page,
    baseline_marked,
    few,
    grouped,
    label_numbers,
    lay_out,
    marker_looks,
    scale,
)
from k3ablate.report.parabolas import parabola
from k3ablate.report.pictures import Picture
from k3ablate.report.style import Theme
from k3ablate.search import Range, Scalar
from k3ablate.tuned import TunedArm, TunedSize, TunedValues

COLUMNS = ["arm", "size", "kind", "value", "loss", "low", "high", "note"]
REMARK = (
    "Dashes: parabola through the trials. Filled, with a bar: its minimum with a 95 percent interval, an arrow where "
    "an end is open. Ringed: the best trial, where no optimum is claimed. At the top: ticks are trials that diverged, "
    "arrows those with higher losses."
)
SHARE_SHOWN = 0.9  # of the trials; a higher loss is an arrow at the top
Table = pandas.DataFrame


def tuning_pictures(values: TunedValues, trials: Mapping[str, Table], order: Sequence[str]) -> list[Picture]:
    """A picture per tuned path, and one of its laws where two sizes were tuned.

    `trials`: of each arm, a row each with size, status, loss and a column per path, as `tune` writes them. `order`: the
    arms of the experiment, its baseline first; what was tuned and is no longer among them comes last.
    """
    places = {name: place for place, name in enumerate(order)}
    arms = sorted(values.tuned.values(), key=lambda arm: places.get(arm.arm, len(places)))
    found: list[Picture] = []
    for path in dict.fromkeys(path for arm in arms for path in arm.tuning.space):
        those = [arm for arm in arms if path in arm.tuning.space]
        found.append(_picture(those, trials, path, order[0]))
        best = [_best(arm.arm, one, path) for arm in those for one in arm.sizes.values()]
        if len({one.flops for one in best}) > 1 and all(arm.tuning.space[path].choices is None for arm in those):
            named = Named(f"tuning_law_{_stem(path)}", f"Optimum of {path} by compute",
                          "training compute of the baseline (FLOPs)", path)  # fmt: skip
            laws = {arm.arm: values.laws[arm.arm][path] for arm in those if path in values.laws.get(arm.arm, {})}
            found.append(law_picture(named, best, laws, order[0]))
    return found


def _picture(arms: Sequence[TunedArm], trials: Mapping[str, Table], path: str, baseline: str) -> Picture:
    rows = [
        row for arm in arms for size in arm.sizes for row in _rows(arm, size, trials.get(arm.arm, Table()), path)
    ]  # fmt: skip
    data = Table(rows, columns=COLUMNS)
    told = data[data["note"].notna()]
    notes = [REMARK, *grouped((f"{row.arm} {row.size}", str(row.note)) for row in told.itertuples())]
    return Picture(
        name=f"tuning_{_stem(path)}",
        title=f"Tuning of {path}",
        description=f"Every trial by {path} and validation loss, a panel per arm. {' '.join(few(notes))}",
        data=data,
        draw=partial(_drawn, [arm.arm for arm in arms], arms[0].tuning.space[path], path, data, notes, baseline),
    )


def _best(arm: str, size: TunedSize, path: str) -> Best:
    one = size.paths[path]
    claimed = one.is_from_curve
    value = _place(one.value, size.space[path])
    return Best(arm, size.baseline_flops, value, claimed, one.low if claimed else None, one.high if claimed else None)


def _rows(arm: TunedArm, size: str, trials: Table, path: str) -> list[dict[str, object]]:
    found, cell = arm.sizes[size], {"arm": arm.arm, "size": size}
    best, space = found.paths[path], found.space[path]
    some = trials[trials["size"].astype(str) == size] if len(trials) else trials
    rows: list[dict[str, object]] = [
        {**cell, "kind": "trial" if np.isfinite(trial["loss"]) else "diverged", "value": _place(trial[path], space),
         "loss": trial["loss"]}
        for trial in some.to_dict("records") if path in trial
    ]  # fmt: skip
    near = _near(arm, size, some)
    ranges = [name for name, one in found.space.items() if one.choices is None]
    if path in ranges and len(near):
        place_NA = np.column_stack([_inner(near[name].to_numpy(float), found.space[name]) for name in ranges])
        curve = parabola(place_NA, near["loss"].to_numpy(float), ranges.index(path))
        if curve is not None:
            value_K = np.exp(curve.place_K) if space.scale == "log" else curve.place_K
            pairs = zip(value_K.tolist(), curve.loss_K.tolist(), strict=True)
            rows += [{**cell, "kind": "curve", "value": value, "loss": loss} for value, loss in pairs]
    claimed = best.is_from_curve and found.curve_loss is not None
    doubts = "; ".join(
        text
        for text in ("at the edge of its range" if best.is_at_edge and not space.choices else "", best.note)
        if text
    )
    note = (doubts if claimed else f"optimum not claimed: {doubts}") or None
    rows.append({**cell, "kind": "optimum" if claimed else "best trial", "value": _place(best.value, space),
                 "loss": found.curve_loss if claimed else found.best_loss, "low": best.low if claimed else None,
                 "high": best.high if claimed else None, "note": note})  # fmt: skip
    return rows


def _near(arm: TunedArm, size: str, trials: Table) -> Table:
    """Finished trials that share the best one's choices and lie within the study's reach of it."""
    finished = trials[trials["loss"].notna()] if len(trials) else trials
    if not len(finished):
        return finished
    best, is_near = finished.iloc[int(finished["loss"].to_numpy(float).argmin())], np.ones(len(finished), dtype=bool)
    for path, one in arm.sizes[size].space.items():
        if one.choices is not None:
            is_near &= (finished[path].astype(str) == str(best[path])).to_numpy()
        elif arm.tuning.reach is not None:
            place_N = _inner(finished[path].to_numpy(float), one)
            width = float(np.ptp(_inner(np.array(one.ends), one)))
            is_near &= np.abs(place_N - _inner(np.array([float(best[path])]), one)) <= arm.tuning.reach * width
    return finished[is_near]


def _inner(value_N: Array, one: Range) -> Array:
    return np.log(value_N) if one.scale == "log" else value_N


def _place(value: Scalar, one: Range) -> float:
    """A number, or which of the choices it is, from 0."""
    return float(value) if one.choices is None else float([str(choice) for choice in one.choices].index(str(value)))


def _stem(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", path).strip("_").lower()


def _drawn(
    arms: Sequence[str], space: Range, path: str, data: Table, notes: Sequence[str], baseline: str, theme: Theme
) -> Figure:  # fmt: skip
    sizes = list(dict.fromkeys(data["size"]))
    entries = [Entry(f"trial at {size}", marker_looks(index, theme)) for index, size in enumerate(sizes)]
    titles, label = baseline_marked(arms, baseline), "validation loss (nats per token)"
    page = Page(titles, path, label, entries, few(notes), panel_height=1.6)
    figure, panels = lay_out(page, theme)
    low, high = _shown(data)
    for arm, axes in zip(arms, panels, strict=True):
        for index, size in enumerate(sizes):
            _study(axes, data[(data["arm"] == arm) & (data["size"] == size)], high, index, theme)
    _scale(panels[0], space)
    panels[0].set_ylim(low, high)
    label_numbers(panels[0], 5)
    return figure


def _shown(data: Table) -> tuple[float, float]:
    """From below the lowest loss to where the worst trials leave the panel."""
    losses = data[data["kind"].isin(["trial", "optimum", "best trial"])]["loss"].astype(float)
    low, most = float(losses.min()), float(losses.max())
    high = min(most, max(float(losses.quantile(SHARE_SHOWN)), low * 1.01))
    span = max(high - low, 0.01 * low)
    return low - 0.08 * span, high + 0.15 * span


def _study(axes: Axes, rows: Table, top: float, index: int, theme: Theme) -> None:
    looks = marker_looks(index, theme)
    kinds = {kind: rows[rows["kind"] == kind] for kind in ("trial", "diverged", "curve", "optimum", "best trial")}
    inside = kinds["trial"][kinds["trial"]["loss"] <= top]
    axes.plot(inside["value"], inside["loss"], **{**looks, "alpha": 0.75})
    axes.plot(kinds["curve"]["value"], kinds["curve"]["loss"], "--", color=looks["color"], linewidth=1.0)
    above = kinds["trial"][kinds["trial"]["loss"] > top]
    for lost, mark in ((above, "^"), (kinds["diverged"], "|")):
        axes.plot(lost["value"], [0.97] * len(lost), mark, color=looks["color"], markersize=4.5 if mark == "|" else 3,
                  markeredgewidth=1.2, transform=axes.get_xaxis_transform())  # fmt: skip
    draw_best(axes, kinds["optimum"], kinds["best trial"], "value", theme)


def _scale(axes: Axes, space: Range) -> None:
    if space.choices is not None:
        axes.xaxis.set_major_locator(FixedLocator(list(range(len(space.choices)))))
        names = [str(choice).replace("$", r"\$") for choice in space.choices]
        axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: names[round(place)]))
        axes.set_xlim(-0.5, len(names) - 0.5)
    elif space.scale == "log":
        scale(axes, y=False)
