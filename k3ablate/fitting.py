"""What curve do the losses of a table follow? The verb `fit` over anybody's table of runs.

Takes a frame, gives it our column names and fits one form to every arm; the fitting and the forecasts are in `fits`.
Where a baseline is named, every other arm has its multiplier against it, as `fits.analysis` reads them for reports. It
reaches no training library. The form, where none is asked for: `chinchilla`
where columns of parameters or tokens are named or the table has no compute; else `power_floor` where every arm
determines its floor, else `power`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas

from k3ablate.answers import table as text_table
from k3ablate.config import InputError
from k3ablate.fits.analysis import Analysis, analyse
from k3ablate.fits.arm_fits import COLUMN_OF, ArmFit, ArmFits, Intervals, Options, fit_arms
from k3ablate.fits.caveats import caveats
from k3ablate.fits.columns import OURS, Columns, canonical
from k3ablate.fits.forecasts import Prediction
from k3ablate.fits.forms import CHINCHILLA, FORMS, POWER, SHARED, curve_named
from k3ablate.fits.minimise import Residuals
from k3ablate.fits.observations import check_arm, must_not_differ, usable
from k3ablate.fits.solve import DEFAULT_DELTA, Interval
from k3ablate.fits.uncertainty import NUM_DRAWS
from k3ablate.report.multipliers import ArmMultiplier, arm_multiplier
from k3ablate.report.notes import general_notes
from k3ablate.report.style import FLOPS_PER_PFLOP_DAY, decimal, factor, loss_text

DRAWS_SEED = 0  # the same table gives the same intervals
DEFAULTS = Columns()
KNOWN_FORMS = (*FORMS, *SHARED)
# Role of a column -> the option that names it.
OPTION_OF = {"arm": "--by", "compute": "--x", "loss": "--y", "params": "--params", "tokens": "--tokens"}
LEAST_FLOPS = 1e15  # a compute above it can only be in FLOPs, and is also shown in PFLOP/s-days


@dataclass(frozen=True)
class FittedArm:
    """One curve with everything that says how far to trust it; `refused` says why there is none, empty otherwise."""

    arm: str
    form: str
    formula: str
    columns: Mapping[str, str]  # variable, and loss -> column of the table
    flops_convention: str  # empty where the form has no compute
    values: Mapping[str, float]
    objective: float | None
    objective_of: str
    delta: float
    num_points: int
    dropped: Sequence[str]
    num_starts: int
    converged_share: float | None
    clipped_share: float | None
    at_bounds: Sequence[str]
    condition_number: float | None
    intervals: Mapping[str, Interval]
    interval_method: str
    noise_sd: float | None  # deviation of ln L between seeds, or about the curve
    ranges: Mapping[str, tuple[float, float]]  # variable -> lowest and highest measured
    predictions: Sequence[Prediction]
    warnings: Sequence[str]
    refused: str
    form_reason: str  # why this form
    notes: Sequence[str]  # what holds for all arms
    multiplier: ArmMultiplier | None = None  # None where no baseline is named, and for the baseline

    def text(self) -> str:
        """The parameters as a table, then the diagnostics, the forecasts and what must be read beside them."""
        title = f"{self.arm}: {self.form}, {self.formula}"
        multiplier = self.multiplier.text().splitlines() if self.multiplier else []
        if self.refused:
            return "\n".join([title, f"  no curve: {self.refused}", *(f"  {line}" for line in multiplier)])
        rows = [
            [name, decimal(value, 6), interval_text(self.intervals.get(name))] for name, value in self.values.items()
        ]
        lines = [
            *text_table(rows, ["parameter", "value", "95 %"]).splitlines(),
            self._columns(),
            f"{self.objective_of}: {decimal(self.objective or 0.0, 6)} over {self.num_points} points, "
            f"{self.clipped_share or 0.0:.1%} of them further than delta from the curve",
            f"{self.num_starts} starts, {self.converged_share:.0%} reached it; "
            f"condition number {decimal(self.condition_number or 0.0)}",
            f"intervals: {self.interval_method}; deviation of ln L {decimal(self.noise_sd or 0.0)}",
            *(self._forecast(prediction) for prediction in self.predictions),
            *multiplier,
            *(f"warning: {text}" for text in self.warnings),
            *(f"dropped: {text}" for text in self.dropped),
        ]
        return "\n".join([title, *(f"  {line}" for line in lines)])

    def _columns(self) -> str:
        spans = [f"{self.columns[name]}, measured {_range_text(name, span)}" for name, span in self.ranges.items()]
        convention = [f"FLOPs: {self.flops_convention}"] if self.flops_convention else []
        return "; ".join([f"columns: {self.columns['loss']}", *spans, *convention])

    def _forecast(self, prediction: Prediction) -> str:
        at = ", ".join(f"{self.columns[name]} {_value_text(name, value)}" for name, value in prediction.at.items())
        where = f"extrapolated {factor(prediction.beyond)}x" if prediction.extrapolated else "measured"
        return (
            f"at {at}: loss {loss_text(prediction.loss)} ({_loss_range(prediction.interval)}; one more run "
            f"{_loss_range(prediction.run_interval)}), {where}"
        )


@dataclass(frozen=True)
class Fitted:
    """`fit`: a curve per arm."""

    fits: Sequence[FittedArm]
    notes: Sequence[str]

    def text(self) -> str:
        """One block per arm, then what holds for all."""
        return "\n\n".join([*(fitted.text() for fitted in self.fits), "\n".join(self.notes)])


def fit(
    frame: pandas.DataFrame,
    form: str | None = None,
    *,
    by: str | None = None,
    x: str | None = None,
    y: str | None = None,
    params: str | None = None,
    tokens: str | None = None,
    where: Sequence[str] = (),
    predict: Sequence[Sequence[float]] = (),
    delta: float = DEFAULT_DELTA,
    residuals: Residuals = "log",
    intervals: Intervals | None = None,
    baseline: str | None = None,
    num_draws: int = NUM_DRAWS,
    flops_convention: str | None = None,
) -> Fitted:
    """Fit `form` to the losses of every arm of a table of runs; None chooses by the rule of the module.

    `by` `x` `y` `params` `tokens` name the columns of arms, compute, loss, parameters and tokens where they are not
    called as in our tables; `where` keeps rows (column=value, also != < <= > >=); `predict` are points, one number per
    variable of the form. `delta` infinite is least squares, 0 least absolute deviations; `residuals` "plain" is of L
    instead of ln L. `baseline`: the arm that the others' multipliers are against, none where it is None; in
    `shared_floor` the one whose m is 1. InputError for what the table cannot answer.
    """
    named = {"arm": by, "compute": x, "loss": y, "params": params, "tokens": tokens}
    columns = Columns(**{role: name for role, name in named.items() if name is not None})
    frame = frame.reset_index(drop=True)  # messages count its rows
    table, left_out = canonical(frame, columns, where)
    default, reason = _default_form(table, columns)
    if form is not None and form not in KNOWN_FORMS:
        raise InputError(f"form: unknown form {form!r}; write one of {', '.join(KNOWN_FORMS)}")
    if not delta >= 0:
        raise InputError(f"--delta {delta}: write a positive number, inf for least squares, or 0 for least absolute "
                         "deviations")  # fmt: skip
    points = tuple(tuple(map(float, point)) for point in predict)
    options = Options(float(delta), residuals, intervals, num_draws, points, baseline)
    names = {ours: getattr(columns, role) for role, ours in OURS.items()}
    variables = curve_named(form or default or POWER.name).variables
    _refuse_missing(frame, table, variables, columns)
    seen = usable(table, ["loss", *(COLUMN_OF[name] for name in variables)], names)
    if baseline is not None:
        check_arm(baseline, dict.fromkeys(seen.arms))
    found = fit_arms(seen, form or default, options, np.random.default_rng(DRAWS_SEED), left_out)
    convention = flops_convention or f"column {columns.compute} of the table"
    found = replace(found, form_reason=found.form_reason if form or not default else reason)
    notes = [_curves_of(found.form, columns.arm if columns.arm in frame else None), *caveats(table)]
    analysis = _analysed(table, found.form, columns, options)
    if analysis is not None:
        notes = list(dict.fromkeys([*notes, *_notes(analysis, found.form)]))
    fits = [_answer(found, arm, columns, convention, options, notes) for arm in found.arms]
    return Fitted(
        [_with_multiplier(fitted, analysis) for fitted in fits] if analysis is not None else fits,
        [f"form: {found.form_reason}", *notes],
    )


def point(text: str) -> tuple[float, ...]:
    """A point to forecast at, as it is typed: one number per variable, with commas between them."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--predict {text}: write a compute, or parameters,tokens for chinchilla: 1e9,2e10") from None


def _default_form(table: pandas.DataFrame, columns: Columns) -> tuple[str | None, str]:
    """`chinchilla` with the reason, or None for the rule of `fit_arms`."""
    if (columns.params, columns.tokens) != (DEFAULTS.params, DEFAULTS.tokens):
        return CHINCHILLA.name, f"{CHINCHILLA.name}, because columns of parameters or tokens are named"
    if OURS["compute"] not in table:
        return CHINCHILLA.name, f"{CHINCHILLA.name}, because the table has no column {columns.compute}"
    return None, ""


def _refuse_missing(
    frame: pandas.DataFrame, table: pandas.DataFrame, variables: Sequence[str], columns: Columns
) -> None:
    """InputError with the options that name what a form needs and the table does not have."""
    missing = [name for name in variables if COLUMN_OF[name] not in table]
    if missing:
        named = ", ".join(getattr(columns, name) for name in missing)
        options = " and ".join(f"{OPTION_OF[name]} COLUMN" for name in missing)
        raise InputError(
            f"table: no column {named}; it has {', '.join(map(str, frame.columns))}; name the column of "
            f"{' and of '.join(missing)} ({options})"
        )


def _curves_of(form: str, arms: str | None) -> str:
    """Whose curves they are; `arms` is the column of arms."""
    if form in SHARED:
        return f"all arms fitted together, {SHARED[form].formula.partition(', ')[2]}"
    return f"one curve per {arms}" if arms else "one curve for all rows"


def _analysed(table: pandas.DataFrame, form: str, columns: Columns, options: Options) -> Analysis | None:
    """Every arm against the baseline, on curves of the form that was fitted; None where no baseline is named."""
    if options.baseline is None:
        return None
    if form == CHINCHILLA.name:
        raise InputError(f"baseline: {form} has no compute to multiply; write --form power_floor, and --x COLUMN")
    if options.residuals != "log":
        raise InputError("baseline: multipliers are read from curves fitted in ln L; leave out --residuals plain")
    if must_not_differ(columns.arm):
        raise InputError(f"baseline: losses of more than one {columns.arm} do not compare; leave out --baseline")
    generator = np.random.default_rng(DRAWS_SEED)
    return analyse(table, options.baseline, form, generator, options.num_draws, options.delta)


def _notes(analysis: Analysis, form: str) -> list[str]:
    """What must be read beside multipliers and does not stand there as the form's reason."""
    known = f"curves: {analysis.form_reason}" if analysis.form == form else ""
    return [text for text in general_notes(analysis, "the list under every arm") if text != known]


def _with_multiplier(fitted: FittedArm, analysis: Analysis) -> FittedArm:
    if fitted.arm == analysis.baseline:
        return fitted
    return replace(fitted, multiplier=arm_multiplier(analysis, analysis.arm(fitted.arm)))


def _answer(
    found: ArmFits, arm: ArmFit, columns: Columns, convention: str, options: Options, notes: Sequence[str]
) -> FittedArm:
    form, fitted = curve_named(found.form), arm.fit
    return FittedArm(
        arm=arm.arm,
        form=form.name,
        formula=form.formula,
        columns={name: getattr(columns, name) for name in (*form.variables, "loss")},
        flops_convention=convention if "compute" in form.variables else "",
        values=fitted.values if fitted else {},
        objective=fitted.objective if fitted else None,
        objective_of=_objective_of(options.delta, options.residuals),
        delta=options.delta,
        num_points=fitted.num_points if fitted else arm.num_points,
        dropped=arm.dropped,
        num_starts=fitted.num_starts if fitted else 0,
        converged_share=fitted.converged_share if fitted else None,
        clipped_share=fitted.clipped_share if fitted else None,
        at_bounds=fitted.at_bounds if fitted else (),
        condition_number=fitted.condition_number if fitted else None,
        intervals=fitted.intervals if fitted else {},
        interval_method=fitted.interval_method if fitted else "none",
        noise_sd=arm.noise_sd if fitted else None,
        ranges=fitted.ranges if fitted else {},
        predictions=arm.predictions,
        warnings=fitted.warnings if fitted else (),
        refused=arm.refused,
        form_reason=found.form_reason,
        notes=notes,
    )


def _objective_of(delta: float, residuals: Residuals) -> str:
    of = "ln L" if residuals == "log" else "L"
    if delta == 0:
        return f"sum of the sizes of residuals of {of} (least absolute deviations)"
    if np.isinf(delta):
        return f"half the sum of squares of residuals of {of} (least squares)"
    return f"sum of Huber terms of residuals of {of}, delta {delta:g}"


def interval_text(interval: Interval | None) -> str:
    """A 95 percent interval, or nothing."""
    return f"{decimal(interval.low, 4)} to {decimal(interval.high, 4)}" if interval else ""


def _loss_range(interval: Interval) -> str:
    return f"{loss_text(interval.low)} to {loss_text(interval.high)}"


def _value_text(variable: str, value: float) -> str:
    """A number, and in PFLOP/s-days what can only be FLOPs."""
    days = f" ({decimal(value / FLOPS_PER_PFLOP_DAY)} PFLOP/s-days)"
    return f"{value:.4g}" + (days if variable == "compute" and value > LEAST_FLOPS else "")


def _range_text(variable: str, span: tuple[float, float]) -> str:
    return f"{_value_text(variable, span[0])} to {_value_text(variable, span[1])}"
