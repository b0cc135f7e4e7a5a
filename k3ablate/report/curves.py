"""Which curves were fitted to every arm, and how far may each be trusted? One CSV row per arm and form.

The published table shows the one form that its multipliers are read from; here all stand, with intervals and every
diagnostic of the solver, or the reason why a form was refused. Curves that arms share have the diagnostics of the one
fit to all of them. Nothing is computed here.
"""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from k3ablate.fits.analysis import Analysis, ArmAnalysis
from k3ablate.fits.forms import curve_named
from k3ablate.fits.solve import Fit
from k3ablate.storage import write_atomic

Row = dict[str, str | int | float]


def rows(analysis: Analysis) -> list[Row]:
    """Every arm with every form: parameters with 95 percent intervals, diagnostics, or why it was `refused`."""
    parameters = dict.fromkeys(name for form in analysis.forms for name in curve_named(form).parameters)
    return [_row(arm, form, parameters) for arm in analysis.arms for form in analysis.forms]


def write_curves(analysis: Analysis, path: Path) -> Path:
    """Write the rows as CSV; the same bytes for the same analysis."""
    text = io.StringIO()
    table = rows(analysis)
    writer = csv.DictWriter(text, fieldnames=list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_atomic(path, text.getvalue())
    return path


def _row(arm: ArmAnalysis, form: str, parameters: Iterable[str]) -> Row:
    fitted = arm.fits.get(form)
    row: Row = {"arm": arm.arm, "form": form}
    for name in parameters:
        row |= {name: "", f"{name}_low": "", f"{name}_high": ""}
    return row | _diagnostics(fitted) | {"refused": arm.no_fit.get(form, "")} | (_parameters(fitted) if fitted else {})


def _parameters(fitted: Fit) -> Row:
    found: Row = {}
    for name, value in fitted.values.items():
        interval = fitted.intervals[name]
        found |= {name: value, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return found


def _diagnostics(fitted: Fit | None) -> Row:
    return {
        "objective": fitted.objective if fitted else "",
        "delta": fitted.delta if fitted else "",
        "num_points": fitted.num_points if fitted else "",
        "lowest_flops": fitted.x_range[0] if fitted else "",
        "highest_flops": fitted.x_range[1] if fitted else "",
        "clipped_share": fitted.clipped_share if fitted else "",
        "num_starts": fitted.num_starts if fitted else "",
        "converged_share": fitted.converged_share if fitted else "",
        "condition_number": fitted.condition_number if fitted else "",
        "at_bounds": " ".join(fitted.at_bounds) if fitted else "",
        "intervals": fitted.interval_method if fitted else "",
        "dropped": "; ".join(fitted.dropped) if fitted else "",
        "warnings": "; ".join(fitted.warnings) if fitted else "",
    }
