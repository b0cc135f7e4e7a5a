"""What does the published table of an experiment say?

One row per arm with value and interval, where it is read and whether that was measured, then the notes that belong to
the numbers, every run that was left out with its reason, and one line of provenance. `sheet` is that table for files
(`writing`), `render_text` for a terminal. The same analysis gives the same bytes: the date is that of the newest
record, and handed in, as records do not hold it. Nothing is computed here.
"""

import io
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from k3ablate.fits.analysis import Analysis, ArmAnalysis
from k3ablate.fits.multiplier import Multiplier
from k3ablate.fits.solve import Fit
from k3ablate.report import writing
from k3ablate.report.notes import notes
from k3ablate.report.sheet import Grid, Sheet
from k3ablate.report.style import decimal, factor, factor_range, loss_text, probability

TERMINAL_WIDTH = 118
NOTHING = "-"
HEADINGS = (
    "arm", "changes", "runs", "loss at largest size", "multiplier (95 %)", "read at loss", "range", "p (Holm)",
    "paired (95 %)",
)  # fmt: skip
FOLD = HEADINGS.index("multiplier (95 %)")


@dataclass(frozen=True)
class Provenance:
    """Where the numbers come from; `date` is that of the newest record, None where nobody knows it."""

    experiment: str
    experiment_digest: str
    corpus: str
    flops_convention: str
    code_version: str
    command: str
    date: str | None = None

    def line(self) -> str:
        """All of it on one line."""
        parts = [
            f"experiment {self.experiment} ({self.experiment_digest})",
            f"corpus {self.corpus}",
            f"FLOPs: {self.flops_convention}",
            f"code {self.code_version}",
            f"command: {self.command}",
        ]
        return "; ".join([*parts, f"newest record {self.date}"] if self.date else parts)


def sheet(analysis: Analysis, provenance: Provenance, name: str = "table") -> Sheet:
    """The published table; each of its records has the runs of that arm that are in no fit, and the provenance."""
    return Sheet(
        name=name,
        title=f"{provenance.experiment}: loss and compute multiplier of every arm against {analysis.baseline}",
        grids=(Grid("Arms", HEADINGS, tuple(_cells(analysis, arm) for arm in analysis.arms), FOLD),),
        notes=(*notes(analysis), *_curves(analysis)),
        provenance=provenance.line(),
        records=tuple(_record(analysis, arm) | {"provenance": provenance.line()} for arm in analysis.arms),
        excluded=analysis.excluded,
    )


def write_tables(analysis: Analysis, provenance: Provenance, stem: Path) -> list[Path]:
    """Write `<stem>.md`, `.csv`, `.tex` and `.html`; the same bytes for the same analysis."""
    return writing.write(sheet(analysis, provenance, stem.name), stem.parent)


def render_text(analysis: Analysis, provenance: Provenance, width: int = TERMINAL_WIDTH) -> str:
    """The same for a terminal of `width` columns, without colours or control codes."""
    shown = sheet(analysis, provenance)
    table = Table(width=width)
    for heading in HEADINGS:
        table.add_column(heading, overflow="fold")
    for cells in shown.grids[0].rows:
        table.add_row(*map(Text, cells))
    lines = [f"- {note}" for note in shown.notes]
    lines += [shown.excluded_title]
    lines += [f"- {run.arm} {run.size} seed {run.seed}: {run.status}: {run.reason}" for run in analysis.excluded]
    lines += [f"Provenance: {shown.provenance}"]
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, color_system=None, force_terminal=False, emoji=False, highlight=False)
    console.print(table)
    for line in lines:
        console.print(Text(line))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _cells(analysis: Analysis, arm: ArmAnalysis) -> tuple[str, ...]:
    """One row as text, in the order of HEADINGS."""
    found = arm.multiplier
    return (
        arm.arm,
        _changes(analysis, arm),
        str(len(arm.points)),
        _largest(arm),
        _multiplier(analysis, arm),
        _read_at(arm),
        _range(found) if found else ("measured" if arm.multiplier_curve else NOTHING),
        _p_value(arm),
        f"{factor(arm.paired.value)} ({factor_range(arm.paired.interval)})" if arm.paired else NOTHING,
    )


def _changes(analysis: Analysis, arm: ArmAnalysis) -> str:
    if arm.arm == analysis.baseline:
        return "baseline"
    if analysis.is_repeat_of_baseline(arm):
        return "none (A/A)"
    return ", ".join(f"{component}={level}" for component, level in arm.changed.items()) or NOTHING


def _largest(arm: ArmAnalysis) -> str:
    if arm.largest is None:
        return NOTHING
    spread = f" ± {loss_text(arm.largest.seed_sd)}" if arm.largest.num_seeds > 1 else ""
    return f"{loss_text(arm.largest.loss)}{spread} ({arm.largest.size})"


def _multiplier(analysis: Analysis, arm: ArmAnalysis) -> str:
    if arm.arm == analysis.baseline and arm.points:
        return "1"
    if arm.multiplier is None and arm.multiplier_curve is not None:
        first, last = arm.multiplier_curve.value_G[[0, -1]]
        return f"m(C) {factor(first)} to {factor(last)}"
    return f"{factor(arm.multiplier.value)} ({factor_range(arm.multiplier.interval)})" if arm.multiplier else "none"


def _read_at(arm: ArmAnalysis) -> str:
    """The loss, or from where to where m(C) goes."""
    if arm.multiplier is not None:
        return loss_text(arm.multiplier.loss)
    if arm.multiplier_curve is not None:
        return " to ".join(map(loss_text, arm.multiplier_curve.loss_G[[0, -1]]))
    return NOTHING


def _p_value(arm: ArmAnalysis) -> str:
    """Raw, then corrected; a repeat of the baseline has no correction."""
    if arm.multiplier is None:
        return NOTHING
    corrected = "" if arm.holm_p_value is None else f" ({probability(arm.holm_p_value)})"
    return f"{probability(arm.multiplier.p_value)}{corrected}"


def _range(found: Multiplier) -> str:
    return "measured" if found.measured else f"extrapolated {factor(found.beyond)}x"


def _shown_fit(analysis: Analysis, arm: ArmAnalysis) -> Fit | None:
    return arm.fits.get(analysis.form) if analysis.form else None


def _curves(analysis: Analysis) -> list[str]:
    """The curve of every arm; where there is none for any arm, the notes have said why."""
    told = [arm for arm in analysis.arms if analysis.form or not arm.points]
    return [f"curve of {arm.arm}: {_curve(analysis, arm)}" for arm in told]


def _curve(analysis: Analysis, arm: ArmAnalysis) -> str:
    """Form and parameters with their intervals."""
    fitted = _shown_fit(analysis, arm)
    if fitted is None:
        reason = arm.no_fit.get(analysis.form or "", "") if arm.points else arm.no_multiplier
        return f"none: {reason}" if reason else "none"
    parameters = [
        f"{name} {decimal(value)} ({decimal(fitted.intervals[name].low)} to {decimal(fitted.intervals[name].high)})"
        for name, value in fitted.values.items()
    ]
    return f"{fitted.form}: {', '.join(parameters)}"


def _record(analysis: Analysis, arm: ArmAnalysis) -> dict[str, object]:
    """Numbers at full precision; empty where there is none."""
    found, paired, largest, fitted = arm.multiplier, arm.paired, arm.largest, _shown_fit(analysis, arm)
    left_out = [run for run in analysis.excluded if run.arm == arm.arm]
    return {
        "arm": arm.arm,
        "changes": _changes(analysis, arm),
        "runs": len(arm.points),
        "largest_size": largest.size if largest else "",
        "loss": largest.loss if largest else "",
        "loss_seed_sd": largest.seed_sd if largest and largest.num_seeds > 1 else "",
        "multiplier": found.value if found else "",
        "multiplier_low": found.interval.low if found else "",
        "multiplier_high": found.interval.high if found else "",
        "read_at_loss": found.loss if found else "",
        "read_at_baseline_flops": found.baseline_compute if found else "",
        "read_at_arm_flops": found.arm_compute if found else "",
        "range": _range(found) if found else "",
        "p_value": found.p_value if found else "",
        "holm_p_value": "" if arm.holm_p_value is None else arm.holm_p_value,
        "paired": paired.value if paired else "",
        "paired_low": paired.interval.low if paired else "",
        "paired_high": paired.interval.high if paired else "",
        "paired_p_value": paired.p_value if paired else "",
        "form": fitted.form if fitted else "",
        "curve": "; ".join(f"{name}={value!r}" for name, value in fitted.values.items()) if fitted else "",
        "no_multiplier": arm.no_multiplier,
        "excluded": "; ".join(f"{run.size} seed {run.seed}: {run.status}: {run.reason}" for run in left_out),
    }
