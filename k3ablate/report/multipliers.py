"""What is each arm's multiplier, and how does it change with compute? m(C) with its bands, and the numbers beside it.

`write_multipliers` has one CSV row per arm and point of the losses that the arm and the baseline both measured, in
FLOPs and in PFLOP/s-days. Where the arms' curves are not parallel this, and no single number, is the result.
`arm_multiplier` is one arm of it as an answer, in the unit of the table. Nothing is computed here.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3ablate.fits.analysis import Analysis, ArmAnalysis
from k3ablate.fits.paired import Paired
from k3ablate.fits.solve import Interval
from k3ablate.report.notes import arm_notes
from k3ablate.report.style import FLOPS_PER_PFLOP_DAY, factor, factor_range, loss_text, probability
from k3ablate.storage import write_atomic

Row = dict[str, str | float]

COLUMNS = (
    "arm", "form", "loss", "baseline_flops", "arm_flops", "baseline_pflop_s_days", "arm_pflop_s_days", "multiplier",
    "multiplier_low", "multiplier_high",
)  # fmt: skip
SHOWN_POINTS = 6  # steps between the points of m(C) that a text shows


@dataclass(frozen=True)
class ArmMultiplier:
    """One arm against the baseline; `value` is None where `none` says why, and then `curve`, m(C), may be the result.

    Compute is in the unit of the table, losses too.
    """

    baseline: str
    form: str | None  # None where no curve can be read
    value: float | None
    none: str
    interval: Interval | None
    interval_method: str
    loss: float | None  # where it is read
    baseline_compute: float | None
    arm_compute: float | None
    measured: bool | None  # whether that loss lies inside what both arms measured
    beyond: float | None  # by which factor it lies outside; 1 inside
    p_value: float | None
    holm_p_value: float | None
    paired: Paired | None  # from runs of equal size and seed
    repeats_baseline: bool  # an A/A check
    one_exponent_rejected: bool | None  # None where it was not tested
    held_out_own: float | None  # relative error at the largest size, left out of the fits, of the arms' own exponents
    held_out_common: float | None  # the same of one exponent for all
    curve: Sequence[Mapping[str, float]]
    warnings: Sequence[str]

    def text(self) -> str:
        """The number with where it was read, the paired one, and m(C) where one number does not hold."""
        lines = [f"multiplier against {self.baseline}: {self._read()}"]
        if self.paired is not None:
            value, span = factor(self.paired.value), factor_range(self.paired.interval)
            lines.append(f"paired, by {self.paired.num_pairs} runs of equal size and seed: {value} ({span})")
        if self.repeats_baseline and self.interval is not None:
            contains = "contains" if self.interval.contains(1.0) else "does not contain"
            lines.append(f"A/A check: it repeats {self.baseline}, and its interval {contains} 1")
        if self.value is None or self.one_exponent_rejected:
            lines += [self._point(point) for point in self.curve[::SHOWN_POINTS]]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def _read(self) -> str:
        if self.value is None or self.interval is None or self.loss is None or self.p_value is None:
            return f"none: {self.none}"
        where = "measured" if self.measured else f"extrapolated {factor(self.beyond or 1.0)}x"
        holm = "" if self.holm_p_value is None else f" ({probability(self.holm_p_value)})"
        return (
            f"{factor(self.value)} ({factor_range(self.interval)}) at loss {loss_text(self.loss)}, {where}, from "
            f"{self.form}; p {probability(self.p_value)}{holm}"
        )

    def _point(self, point: Mapping[str, float]) -> str:
        span = factor_range(Interval(point["low"], point["high"]))
        return (
            f"m(C) at {point['baseline_compute']:.4g} of {self.baseline}, loss {loss_text(point['loss'])}: "
            f"{factor(point['multiplier'])} ({span})"
        )


def arm_multiplier(analysis: Analysis, arm: ArmAnalysis) -> ArmMultiplier:
    """The multiplier of an arm that is not the baseline, or why it has none."""
    read, test = arm.multiplier, analysis.parallel
    return ArmMultiplier(
        baseline=analysis.baseline,
        form=analysis.form,
        value=read.value if read else None,
        none=arm.no_multiplier,
        interval=read.interval if read else None,
        interval_method=read.interval_method if read else "none",
        loss=read.loss if read else None,
        baseline_compute=read.baseline_compute if read else None,
        arm_compute=read.arm_compute if read else None,
        measured=bool(read.measured) if read else None,
        beyond=read.beyond if read else None,
        p_value=read.p_value if read else None,
        holm_p_value=arm.holm_p_value,
        paired=arm.paired,
        repeats_baseline=analysis.is_repeat_of_baseline(arm),
        one_exponent_rejected=bool(test.rejected) if test else None,
        held_out_own=test.held_out_own if test else None,
        held_out_common=test.held_out_common if test else None,
        curve=_curve(arm),
        warnings=arm_notes(analysis, arm),
    )


def _curve(arm: ArmAnalysis) -> list[Mapping[str, float]]:
    """m(C) in the unit of the table, from the highest common loss to the lowest."""
    found = arm.multiplier_curve
    if found is None:
        return []
    names = ("loss", "baseline_compute", "arm_compute", "multiplier", "low", "high")
    columns = (found.loss_G, found.baseline_compute_G, found.arm_compute_G, found.value_G, found.low_G, found.high_G)
    return [
        dict(zip(names, point, strict=True)) for point in zip(*(column.tolist() for column in columns), strict=True)
    ]


def rows(analysis: Analysis) -> list[Row]:
    """m(C) of every arm that has one, from the highest common loss to the lowest."""
    return [row for arm in analysis.arms for row in _rows(arm)]


def write_multipliers(analysis: Analysis, path: Path) -> Path:
    """Write the rows as CSV, the head alone where there are none; the same bytes for the same analysis."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows(analysis))
    write_atomic(path, text.getvalue())
    return path


def _rows(arm: ArmAnalysis) -> list[Row]:
    found = arm.multiplier_curve
    if found is None:
        return []
    columns = (found.loss_G, found.baseline_compute_G, found.arm_compute_G, found.value_G, found.low_G, found.high_G)
    return [
        {
            "arm": arm.arm,
            "form": found.form,
            "loss": loss,
            "baseline_flops": baseline,
            "arm_flops": own,
            "baseline_pflop_s_days": baseline / FLOPS_PER_PFLOP_DAY,
            "arm_pflop_s_days": own / FLOPS_PER_PFLOP_DAY,
            "multiplier": value,
            "multiplier_low": low,
            "multiplier_high": high,
        }
        for loss, baseline, own, value, low, high in zip(*(column.tolist() for column in columns), strict=True)
    ]
