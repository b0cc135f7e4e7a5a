"""How far do runs lie from the fitted curves, arm by arm?

ln L less the curve's over training FLOPs. A band of two deviations between seeds says what noise alone does; a point
beyond the objective's delta is clipped: it draws on the fit by its side alone, not by its distance (statistics.md,
section 3). Runs and arms in no fit are listed. Nothing is fitted here.
"""

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from k3ablate.fits.analysis import Analysis, ArmAnalysis
from k3ablate.report.panels import Entry, Looks, Page, few, lay_out, marker_looks, say, scale
from k3ablate.report.pictures import Picture
from k3ablate.report.style import Theme, decimal

COLUMNS = ["arm", "kind", "size", "seed", "flops", "residual", "clipped", "note"]
BAND = 2.0  # deviations between seeds


def residual_picture(analysis: Analysis) -> Picture:
    """Residuals of the form that multipliers are read from, a panel per arm."""
    data, notes = _data(analysis), _notes(analysis)

    def draw(theme: Theme) -> Figure:
        return _drawn(analysis, data, notes, theme)

    return Picture(
        name="residuals",
        title="Residuals of the fitted curves",
        description="ln of the loss less ln of the arm's fitted curve, by training FLOPs, a panel per arm; filled "
        f"where the objective clips the point. {' '.join(few(notes))}",
        data=data,
        draw=draw,
    )


def arm_order(analysis: Analysis) -> list[str]:
    """Arms in the order of their styles: the baseline first, then as in the table."""
    return sorted((arm.arm for arm in analysis.arms), key=lambda name: name != analysis.baseline)


def _data(analysis: Analysis) -> pandas.DataFrame:
    """A row per run in a fit, and one per run or arm that is in none, with the reason."""
    arms = [analysis.arm(name) for name in arm_order(analysis)]
    rows = [row for arm in arms for row in _residuals(analysis, arm)]
    rows += [
        {"arm": run.arm, "kind": "not in a fit", "size": run.size, "seed": run.seed,
         "note": f"{run.status}: {run.reason}"}
        for run in analysis.excluded
    ]  # fmt: skip
    return pandas.DataFrame(rows, columns=COLUMNS)


def _residuals(analysis: Analysis, arm: ArmAnalysis) -> list[dict[str, object]]:
    fitted = arm.fits.get(analysis.form or "")
    if fitted is None:
        reason = _no_fit(analysis, arm)
        return [
            {"arm": arm.arm, "kind": "not in a fit", "size": point.size, "seed": point.seed, "flops": point.compute,
             "note": reason}
            for point in arm.points
        ]  # fmt: skip
    compute, loss = (np.array([getattr(point, name) for point in arm.points]) for name in ("compute", "loss"))
    residuals = (np.log(loss) - np.log(fitted.predict(compute))).tolist()
    return [
        {"arm": arm.arm, "kind": "run", "size": point.size, "seed": point.seed, "flops": point.compute,
         "residual": residual, "clipped": abs(residual) > fitted.delta}
        for point, residual in zip(arm.points, residuals, strict=True)
    ]  # fmt: skip


def _no_fit(analysis: Analysis, arm: ArmAnalysis) -> str:
    return arm.no_fit.get(analysis.form or "", analysis.form_reason)


def _notes(analysis: Analysis) -> list[str]:
    notes = [] if analysis.any_finished else ["No run finished."]
    noise = analysis.noise.get(analysis.form or "")
    if analysis.form is not None:
        deltas = {fit.delta for arm in analysis.arms if (fit := arm.fits.get(analysis.form)) is not None}
        clipped = " and ".join(decimal(delta, 2) for delta in sorted(deltas))
        notes.append(f"Curves: {analysis.form}, fitted to FLOPs. Clipped: further from the curve than {clipped}.")
    if noise is not None:
        source = "the spread over seeds" if noise.source == "seeds" else "the residuals themselves"
        notes.append(
            f"Band: {BAND:g} deviations of ln L between seeds ({decimal(noise.pooled_sd, 2)}) each way, from {source}."
        )
    refused: dict[str, list[str]] = {}
    for arm in analysis.arms:
        if arm.points and (analysis.form is None or analysis.form not in arm.fits):
            refused.setdefault(_no_fit(analysis, arm), []).append(arm.arm)
    notes += [f"No fit: {', '.join(arms)}: {reason}" for reason, arms in refused.items()]
    notes += [
        f"In no fit: {run.arm} {run.size} seed {run.seed}: {run.status}: {run.reason}" for run in analysis.excluded
    ]
    return notes


def _drawn(analysis: Analysis, data: pandas.DataFrame, notes: list[str], theme: Theme) -> Figure:
    shown = data[data["kind"] == "run"]
    labels = ("training compute (FLOPs)", "ln loss − ln curve")
    if not len(shown):
        figure, (axes,) = lay_out(Page([""], *labels, notes=few(notes), panel_height=1.6), theme)
        say(axes, "no residuals: no curve was fitted")
        return figure
    arms = arm_order(analysis)
    titles = [f"{name} (baseline)" if name == analysis.baseline else name for name in arms]
    open_looks = {**marker_looks(0, theme), "marker": "o"}
    noise = analysis.noise.get(analysis.form or "")
    entries = [Entry("run", open_looks), Entry("clipped run", {**open_looks, "markerfacecolor": theme.ink})]
    if noise is not None:
        entries.append(
            Entry("two deviations between seeds", {"color": theme.faint, "linewidth": 6.0, "solid_capstyle": "butt"})
        )
    figure, panels = lay_out(Page(titles, *labels, entries, few(notes)), theme)
    for index, (name, axes) in enumerate(zip(arms, panels, strict=True)):
        runs = shown[shown["arm"] == name]
        if noise is not None:
            half = BAND * noise.pooled_sd
            axes.axhspan(-half, half, color=theme.faint, linewidth=0)
        axes.axhline(0.0, color=theme.muted, linewidth=0.8)
        _runs(axes, runs, {**marker_looks(index, theme), "marker": "o"})  # others hardly show whether they are filled
        if not len(runs):
            say(axes, "no fit")
    _scale(panels[0], shown)
    return figure


def _runs(axes: Axes, runs: pandas.DataFrame, looks: Looks) -> None:
    for is_clipped in (False, True):
        some = runs[runs["clipped"].astype(bool) == is_clipped]
        face = looks["color"] if is_clipped else "none"
        axes.plot(some["flops"], some["residual"], **{**looks, "markerfacecolor": face, "label": str(is_clipped)})


def _scale(axes: Axes, shown: pandas.DataFrame) -> None:
    """Compute is logarithmic; residuals are symmetric about none."""
    scale(axes, y=False)
    most = max(1.15 * float(shown["residual"].abs().max()), abs(axes.get_ylim()[0]), abs(axes.get_ylim()[1]))
    axes.set_ylim(-most, most)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, symmetric=True))
