"""What do the published numbers say when they are computed again from the published data?

`results` reads the tables of analysis/published/, each of which has a note on its source beside it, and gives every
number with its interval and what it must be read with: the figure that K3's claim rests on, the two components with a
published factor, and what these leave of the total. All arithmetic is in `fits`. Compute is in PFLOP/s-days; in Figure
7 its unit cancels. Runs of our own are in no result here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas

from k3ablate.fits.analysis import Analysis, analyse
from k3ablate.fits.forms import POWER, Array
from k3ablate.fits.lines import Heights, LineRatio, drawn_ratio, equal_slopes, heights, line_ratio
from k3ablate.fits.multiplier import equal_loss_ratio, worth_in_compute
from k3ablate.fits.paired import paired_multiplier
from k3ablate.fits.solve import LEAST_SQUARES, Interval, fit
from k3ablate.report.evidence import claims, unclaimed

# Curves as the reports print them, rounded: L = A C^-a.
KIMI_LINEAR_PRINTED = {"MLA": {"A": 2.3092, "a": 0.0536}, "Kimi Linear": {"A": 2.2879, "a": 0.0527}}
ATTNRES_PRINTED = {"baseline": {"A": 1.891, "a": 0.057}, "block": {"A": 1.870, "a": 0.058}}
ATTNRES_EXPONENT = 0.0557  # common to baseline and block on 6ND


class Result(NamedTuple):
    """One number, with a 95 percent interval where there is one, and what it must be read with; None is refused."""

    source: str
    quantity: str
    value: float | None
    interval: Interval | None = None
    note: str = ""


@dataclass(frozen=True)
class Figure7:
    """Figure 7 of the K3 report and what is read from it; heights in ticks of a loss axis without numbers."""

    stars: Mapping[str, Heights]  # series -> points
    curves: Mapping[str, Heights]  # series -> vertices of the dashed curve
    heights_H: Array  # that both dashed curves pass
    drawn_H: Array  # K2's compute over K3's there
    fitted: LineRatio  # the same from lines of one slope through the stars, at the lowest height both have stars at

    @property
    def arrow(self) -> tuple[float, float, float]:
        """Height, compute of K3 and compute of K2 on the dashed curves, at the vertex next to where stars are read."""
        k2 = self.curves["K2"]
        vertex = int(np.argmin(np.abs(k2.height - self.fitted.height)))
        (ratio,) = self.drawn_H[self.heights_H == k2.height[vertex]]
        return float(k2.height[vertex]), float(k2.compute[vertex] / ratio), float(k2.compute[vertex])


def results(folder: Path) -> list[Result]:
    """All of them, from the tables in `folder`."""
    return [
        *figure_7(folder),
        *kimi_linear(folder),
        *attention_residuals(folder),
        *attention_residuals_ablations(folder),
        *product(folder),
    ]


def figure_7(folder: Path) -> list[Result]:
    """K2 against K3; heights in ticks of a loss axis without numbers."""
    source = "K3 report, Figure 7"
    read = read_figure_7(folder)
    k2, k3 = read.stars["K2"], read.stars["K3"]
    one, test, drawn = read.fitted, equal_slopes(k2, k3), read.drawn_H
    found = [
        Result(source, "dashed curves, lowest", float(drawn.min())),
        Result(source, "dashed curves, highest", float(drawn.max())),
        Result(source, "stars, one slope", one.value, one.interval, f"equal slopes: p = {test.p_value:.2f}"),
        Result(source, "stars, p of equal slopes", test.p_value),
    ]
    for height in (0.046, 0.702, 1.358, float(k3.height.min())):
        two = line_ratio(k2, k3, common_slope=False, height=height)
        note = "measured" if two.measured else f"extrapolated {two.beyond:.2f}x"
        found.append(Result(source, f"stars, two slopes, at {height:.3f} ticks", two.value, two.interval, note))
    return found


def read_figure_7(folder: Path) -> Figure7:
    """The figure from its two tables; K2 stands first."""
    stars, curves = _lines(folder, "k3_figure7"), _lines(folder, "k3_figure7_curves")
    fitted = line_ratio(stars["K2"], stars["K3"], common_slope=True)
    return Figure7(stars, curves, *drawn_ratio(curves["K2"], curves["K3"]), fitted)


def kimi_linear(folder: Path) -> list[Result]:
    """Kimi Linear against MLA, each series on its own compute unless said otherwise."""
    source = "Kimi Linear, Figure 5"
    runs = _read(folder, "kimi_linear_figure5").rename(columns={"series": "arm", "pflop_s_days": "flops"})
    fits = {
        str(arm): fit(rows["flops"], rows["loss"], "power", LEAST_SQUARES, residuals="plain")
        for arm, rows in runs.groupby("arm")
    }
    found = [
        Result(source, f"{arm}, {name}", value, note="least squares in plain loss")
        for arm, fitted in fits.items() for name, value in fitted.values.items()
    ]  # fmt: skip
    own: Mapping[str, Mapping[str, float]] = {arm: fitted.values for arm, fitted in fits.items()}
    found += [
        _ratio(source, name, curves, ("MLA", "Kimi Linear"), compute, "each on its own compute")
        for name, curves in (("printed curves", KIMI_LINEAR_PRINTED), ("fitted curves", own))
        for compute in (1.0, 4.29, 10.0)
    ]
    given = runs[runs["arm"] == "MLA"]["flops"].tolist() * 2
    for note, rows in (("each on its own compute", runs), ("both given the compute of MLA", runs.assign(flops=given))):
        found.append(_paired(source, _analysed(rows, "MLA"), "Kimi Linear", note))
    return found


def attention_residuals(folder: Path) -> list[Result]:
    """Three ways to read earlier layers against plain residual adds."""
    source, convention = "Attention Residuals, Table 2", "one exponent, 6ND, paired by rung"
    printed = ("printed curves", ATTNRES_PRINTED, ("baseline", "block"))
    found = [_ratio(source, *printed, compute, "the report's compute, which is not 6ND") for compute in (5.6, 0.5)]
    wide = _read(folder, "attnres_table2").rename(columns={"pflop_s_days_6nd": "flops"})
    losses = [column for column in map(str, wide) if column.startswith("loss_")]
    runs = wide.melt("flops", losses, "arm", "loss").replace("^loss_", "", regex=True)
    analysis = _analysed(runs, "baseline")
    found += [_paired(source, analysis, arm.arm, convention) for arm in analysis.arms[1:]]
    raised = paired_multiplier(analysis.arm("baseline").points, analysis.arm("block").points, floor=1.5)
    assert raised is not None, "five rungs give pairs"
    found.append(Result(source, "block, floor 1.5 for both", raised.value, raised.fixed_exponent_interval, convention))
    refusal, _, _ = analysis.arm("block").no_fit["power_floor"].partition(";")
    return [*found, Result(source, "block, floor of its own", None, note=refusal)]


def attention_residuals_ablations(folder: Path) -> list[Result]:
    """Single runs of one size."""
    rows = _read(folder, "attnres_table4").set_index("variant")["loss"]
    note = f"one run each, exponent {ATTNRES_EXPONENT}"
    worth = {str(name): worth_in_compute(rows.iloc[0], loss, ATTNRES_EXPONENT) for name, loss in rows.items()}
    return [Result("Attention Residuals, Table 4", name, value, note=note) for name, value in worth.items()]


def product(folder: Path) -> list[Result]:
    """What the published factors leave of the total."""
    found = []
    for part in unclaimed(claims(folder / "claims.yaml")):
        share = "" if part.share is None else f"{part.share:.0%} of the logarithm"
        found.append(Result("claims.yaml", part.name, part.effect.factor, note=share))
    return found


def _lines(folder: Path, name: str) -> dict[str, Heights]:
    """K2 and K3."""
    rows = _read(folder, name)
    series = {name: rows[rows["series"] == name] for name in ("K2", "K3")}
    return {name: heights(part["flops"], part["loss_ticks"]) for name, part in series.items()}


def _read(folder: Path, name: str) -> pandas.DataFrame:
    return pandas.read_csv(folder / f"{name}.csv")


def _analysed(runs: pandas.DataFrame, baseline: str) -> Analysis:
    """The analysis of series of five rungs, one run each."""
    rungs = runs.assign(size=runs.groupby("arm").cumcount().astype(str), seed=0)
    return analyse(rungs, baseline, "power", np.random.default_rng(0))


def _ratio(
    source: str, name: str, curves: Mapping[str, Mapping[str, float]], arms: tuple[str, str], compute: float, note: str
) -> Result:
    """Equal-loss ratio of two power laws at a compute of the second."""
    ratio = equal_loss_ratio(POWER, curves[arms[0]], curves[arms[1]], compute)
    return Result(source, f"{arms[1]}, {name}, at its {compute:g}", ratio, note=note)


def _paired(source: str, analysis: Analysis, arm: str, note: str) -> Result:
    """The multiplier by pairs of runs, with the interval that published pairings state."""
    found = analysis.arm(arm).paired
    assert found is not None, "five rungs give pairs"
    return Result(source, f"{arm}, paired", found.value, found.fixed_exponent_interval, note)
