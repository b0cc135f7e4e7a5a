"""How does each arm's multiplier change with compute? m(C) with its bands, as CSV rows.

One row per arm and point of the losses that the arm and the baseline both measured, in FLOPs and in PFLOP/s-days. Where
the arms' curves are not parallel this, and no single number, is the result. Nothing is computed here.
"""

import csv
import io
from pathlib import Path

from k3ablate.fits.analysis import Analysis, ArmAnalysis
from k3ablate.report.style import FLOPS_PER_PFLOP_DAY
from k3ablate.storage import write_atomic

Row = dict[str, str | float]

COLUMNS = (
    "arm", "form", "loss", "baseline_flops", "arm_flops", "baseline_pflop_s_days", "arm_pflop_s_days", "multiplier",
    "multiplier_low", "multiplier_high",
)  # fmt: skip


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
