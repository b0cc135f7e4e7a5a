"""How far apart in compute are K2 and K3: in the published figure, and in our own runs beside it?

`k2_vs_k3` draws Figure 7 of the Kimi K3 report from its coordinates, with the arrow measured instead of quoted, and
beside it two arms of an analysis in the same way: runs, fitted curves with 95 percent bands, the arrow at a loss that
both arms measured. Where one number per arm does not hold it shows from where to where m(C) goes, and why. The
published numbers are computed in `published`, ours in `fits`; nothing is here. All arms of a table are in `figures`.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas

from k3ablate.config import InputError
from k3ablate.fits.analysis import Analysis, ArmAnalysis
from k3ablate.fits.multiplier import Multiplier, MultiplierCurve
from k3ablate.fits.solve import Interval
from k3ablate.report.arrow_panels import Arrow, Panel, Series, panel_rows, panels_figure
from k3ablate.report.evidence import claims
from k3ablate.report.pictures import Picture
from k3ablate.report.published import Figure7, read_figure_7
from k3ablate.report.style import factor, factor_range, loss_text, probability

NAME = "k2_vs_k3"
PUBLISHED_LOSS = "validation loss\n(axis unnumbered in the report; ticks)"
OWN_LOSS = "validation loss (nats per token)"
ADD_OURS = "Ours beside it: k3ablate figure k2-vs-k3 --table EXPERIMENT"
NUM_CURVE_POINTS = 60
COLUMNS = (
    "panel", "kind", "arm", "size", "seed", "flops", "loss", "loss_low", "loss_high", "loss_unit", "baseline_flops",
    "multiplier", "multiplier_low", "multiplier_high", "note",
)  # fmt: skip


def k2_vs_k3(
    folder: Path, analysis: Analysis | None = None, arm: str | None = None, name: str = "ours", provenance: str = ""
) -> Picture:
    """Published data in `folder` on the left, `analysis`, if there is one, on the right.

    `arm` stands for K3, by default the last one that changes most components; the baseline stands for K2. `name` is
    that of the table, `provenance` says where ours comes from. InputError where there is no such arm.
    """
    total = claims(folder / "claims.yaml").total
    assert total.factor is not None, "claims are read with a total"
    panels = [_published(read_figure_7(folder), total.factor)]
    notes = [f"Published: {total.source}; coordinates read from its vector graphics"]
    if analysis is None:
        notes.append(ADD_OURS)
    else:
        panels.append(_ours(analysis, _chosen(analysis, arm), name))
        notes.append(f"Ours: {provenance or name}")
    return Picture(
        name=NAME,
        title="K2 against K3: training compute at equal loss",
        description=" ".join(panel.description for panel in panels),
        data=_data(panels),
        draw=lambda theme: panels_figure(panels, notes, theme),
    )


def _data(panels: Sequence[Panel]) -> pandas.DataFrame:
    """Rows of all panels; seeds stay whole numbers where other rows have none."""
    data = pandas.DataFrame([row for panel in panels for row in panel_rows(panel)], columns=list(COLUMNS))
    return data.astype({"seed": "Int64"})


def _chosen(analysis: Analysis, name: str | None) -> ArmAnalysis | None:
    """The arm that stands for K3; None where the table has the baseline alone."""
    others = [arm for arm in analysis.arms if arm.arm != analysis.baseline]
    if name is None:
        most = max((len(arm.changed) for arm in others), default=0)
        return next((arm for arm in reversed(others) if len(arm.changed) == most), None)
    found = next((arm for arm in others if arm.arm == name), None)
    if found is None:
        known = ", ".join(arm.arm for arm in others) or "(none)"
        raise InputError(f"--arm {name}: no such arm beside the baseline {analysis.baseline}; write one of {known}")
    return found


def _published(read: Figure7, claimed: float) -> Panel:
    drawn, fitted = (float(read.drawn_H.min()), float(read.drawn_H.max())), read.fitted
    height, arm_compute, baseline_compute = read.arrow
    how = (
        f"dashed curves {factor(drawn[0])} to {factor(drawn[1])}",
        f"stars {factor(fitted.value)} (95 %: {factor_range(fitted.interval)})",
    )
    both = f"{factor(min(drawn[0], fitted.value))} to {factor(max(drawn[1], fitted.value))}"
    return Panel(
        key="published",
        heading="Published: K3 report, Figure 7",
        loss_label=PUBLISHED_LOSS,
        has_numbers=False,
        series=tuple(
            Series(f"Kimi {name}", "*", (), read.stars[name].compute, read.stars[name].height,
                   read.curves[name].compute, read.curves[name].height) for name in ("K2", "K3")
        ),
        arrows=(Arrow(height, arm_compute, baseline_compute, None, None, "; ".join(how)),),
        number=f"{both}×",
        lines=(f"K2's compute over K3's at equal loss; the report says {claimed:g}×", *how),
        description=f"Left, Figure 7 of the Kimi K3 report: markers and dashed curves of K2 and K3, training compute "
        f"against validation loss on an axis without numbers. An arrow at equal loss runs from K3's compute to K2's, "
        f"which is {both} times more: {', '.join(how)}.",
    )  # fmt: skip


def _ours(analysis: Analysis, arm: ArmAnalysis | None, name: str) -> Panel:
    baseline = analysis.arm(analysis.baseline)
    arms = [baseline] if arm is None else [baseline, arm]
    number, lines, arrows = _reading(analysis, arm)
    drawn = f"{number} ({'; '.join(lines)})" if number else "; ".join(lines)
    return Panel(
        key="ours",
        heading=f"Ours: {name}",
        loss_label=OWN_LOSS,
        has_numbers=True,
        series=tuple(_series(analysis, one) for one in arms),
        arrows=arrows,
        number=number,
        lines=lines,
        description=f"Right, our runs of {' and '.join(one.arm for one in arms)} with fitted curves and 95 percent "
        f"bands, training compute against validation loss. {drawn}.",
    )


def _series(analysis: Analysis, arm: ArmAnalysis) -> Series:
    is_baseline = arm.arm == analysis.baseline
    compute, loss = (np.array([getattr(point, key) for point in arm.points]) for key in ("compute", "loss"))
    label = f"{arm.arm} (baseline)" if is_baseline else arm.arm
    runs = tuple((point.size, point.seed) for point in arm.points)
    fitted = arm.fits.get(analysis.form) if analysis.form else None
    if fitted is None or analysis.form is None:
        return Series(label, "o" if is_baseline else "s", runs, compute, loss)
    along = np.geomspace(*fitted.x_range, NUM_CURVE_POINTS)
    low, high = arm.draws[analysis.form].band(along)
    return Series(label, "o" if is_baseline else "s", runs, compute, loss, along, fitted.predict(along), low, high)


def _reading(analysis: Analysis, arm: ArmAnalysis | None) -> tuple[str, tuple[str, ...], tuple[Arrow, ...]]:
    """The number, the lines that belong to it, and the arrows."""
    if not analysis.any_finished:
        return "", (f"no run finished: {len(analysis.excluded)} are listed with their reasons in the table",), ()
    if arm is None:
        return "", (f"no arm but {analysis.baseline} in this table",), ()
    curve, over = arm.multiplier_curve, f"{analysis.baseline}'s compute over {arm.arm}'s at equal loss"
    if arm.multiplier is not None:
        lines = _multiplier_lines(analysis, arm, arm.multiplier)
        return f"{factor(arm.multiplier.value)}×", (over, *lines), (_arrow(arm.multiplier),)
    if curve is None:
        return "", (f"no multiplier of {arm.arm}: {arm.no_multiplier}",), ()
    ends = (f"{_point(curve, 0)}", f"{_point(curve, -1)}", f"no single number: {arm.no_multiplier}")
    arrows = tuple(_arrow_along(curve, index) for index in (0, -1))
    return f"m(C) {factor(curve.value_G[0])} to {factor(curve.value_G[-1])}×", (over, *ends), arrows


def _multiplier_lines(analysis: Analysis, arm: ArmAnalysis, found: Multiplier) -> list[str]:
    where = "measured by both" if found.measured else f"extrapolated {factor(found.beyond)}x"
    lines = [f"95 %: {factor_range(found.interval)}", f"at loss {loss_text(found.loss)}, {where}"]
    if arm.paired is not None:
        lines.append(f"paired runs {factor(arm.paired.value)} (95 %: {factor_range(arm.paired.interval)})")
    test, curve = analysis.parallel, arm.multiplier_curve
    if test is not None and test.rejected and curve is not None:
        ends = f"{factor(curve.value_G[0])} to {factor(curve.value_G[-1])}"
        lines.append(f"exponents differ (p {_of(test.test.p_value)}): m(C) {ends}")
    return lines


def _arrow(found: Multiplier) -> Arrow:
    note = "measured" if found.measured else f"extrapolated {factor(found.beyond)}x"
    return Arrow(found.loss, found.arm_compute, found.baseline_compute, found.value, found.interval, note)


def _arrow_along(curve: MultiplierCurve, index: int) -> Arrow:
    loss, arm, baseline, value = (
        float(values_G[index])
        for values_G in (curve.loss_G, curve.arm_compute_G, curve.baseline_compute_G, curve.value_G)
    )
    interval = Interval(float(curve.low_G[index]), float(curve.high_G[index]))
    return Arrow(loss, arm, baseline, value, interval, "m(C), measured")


def _point(curve: MultiplierCurve, index: int) -> str:
    span = factor_range(Interval(float(curve.low_G[index]), float(curve.high_G[index])))
    return f"{factor(float(curve.value_G[index]))} ({span}) at loss {loss_text(float(curve.loss_G[index]))}"


def _of(p_value: float) -> str:
    shown = probability(p_value)
    return shown if shown.startswith("<") else f"= {shown}"
