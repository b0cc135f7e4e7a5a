"""How does a log become a training curve?

Takes what one run logged as anybody has it: a row per logged step in the order of logging, columns by `LogColumns`. A
step that was taken again counts once, with what was logged last; a row without a loss is left out. Which runs compare
is decided in `comparable`, and the curves are compared in `training_curves`.
"""

from dataclasses import dataclass

import numpy as np
import pandas

from k3ablate.config import InputError
from k3ablate.fits.forms import Array
from k3ablate.fits.training_curves import TrainingCurve, smooth
from k3ablate.records import Status

PEAK = 1 - 1e-6  # of a learning rate, up to rounding
SECONDS_PER_HOUR = 3600
SAME = 0.01  # relative: two budgets, or two batches, count as one
TRAINING_LOSS, VALIDATION_LOSS = "loss", "validation_loss"


@dataclass(frozen=True)
class LogColumns:
    """Which columns hold what; the defaults are those of `metrics.jsonl`. Of hours and seconds one will do."""

    step: str = "step"
    tokens: str = "tokens"
    compute: str = "flops"
    loss: str = TRAINING_LOSS
    hours: str = "hours"
    seconds: str = "seconds"
    seed: str = "seed"
    learning_rate: str = "learning_rate"
    budget: str = "budget"  # tokens that the run was to be trained on
    device: str = "device"


@dataclass(frozen=True)
class LoggedRun:
    """One run: its curve, how far it went, and how far it was to go (what it was trained on where that is unknown)."""

    curve: TrainingCurve
    num_steps: int
    num_steps_after_warm_up: int
    counts_rows: bool  # as steps, for want of a column of them
    budget: float
    status: str
    reason: str
    device: str
    num_dropped: int  # rows of steps that were taken again, and rows without a loss
    lacking: tuple[str, ...]  # what was logged and does not serve, with the reason

    @property
    def tokens(self) -> float:
        """Of the last logged step."""
        return float(self.curve.spent["tokens"][-1])

    @property
    def is_complete(self) -> bool:
        """Whether it used its budget up."""
        return self.tokens >= self.budget * (1 - SAME)


def read_run(name: str, frame: pandas.DataFrame, columns: LogColumns, window: float) -> LoggedRun:
    """One run of one seed, its losses smoothed over `window` of the tokens; InputError for wrong columns."""
    for column, option in ((columns.tokens, "--tokens"), (columns.loss, "--y")):
        if column not in frame:
            raise InputError(
                f"{name}: no column {column!r}; it has {', '.join(map(str, frame.columns))}. Name its column with "
                f"{option}" + (": steps of unknown batches do not compare" if option == "--tokens" else "")
            )
    has_steps = columns.step in frame
    last = _logged_last(_numbers(name, frame, columns.step if has_steps else columns.tokens))
    once = frame[last]
    loss_N = _losses(name, once, columns.loss)
    rows, logged_N = once[np.isfinite(loss_N)], loss_N[np.isfinite(loss_N)]
    if rows.empty:
        raise InputError(f"{name}: no row has a finite {columns.loss}")
    step_N = _numbers(name, rows, columns.step) if has_steps else np.arange(len(rows), dtype=np.float64)
    (spent, lacking), rate_N = _spent(name, rows, columns), _learning_rate(rows, columns)
    start = 0 if rate_N is None else int(np.argmax(rate_N >= PEAK))
    status, reason = _status(once, columns, loss_N)
    return LoggedRun(
        curve=TrainingCurve(
            _constant(frame, columns.seed), smooth(spent["tokens"], logged_N, window), spent, start, rate_N
        ),
        num_steps=int(step_N[-1]) + (0 if has_steps and _counts_from_one(step_N, spent["tokens"]) else 1),
        num_steps_after_warm_up=int(step_N[-1] - step_N[start]) + (start == 0),
        counts_rows=not has_steps,
        budget=float(str(_constant(frame, columns.budget) or spent["tokens"][-1])),
        status=status,
        reason=reason,
        device=str(_constant(frame, columns.device) or ""),
        num_dropped=len(frame) - len(rows),
        lacking=lacking,
    )


def _logged_last(step_N: Array) -> Array:
    """Rows whose step was not taken again: a resumed run goes back behind what it had logged."""
    later_N = np.append(np.minimum.accumulate(step_N[::-1])[::-1][1:], np.inf)
    return np.asarray(step_N < later_N)


def _counts_from_one(step_N: Array, tokens_N: Array) -> bool:
    """Whether step n is the n-th: its tokens are then those of n batches, else of n + 1."""
    if len(step_N) == 1:
        return False
    batch = (tokens_N[1] - tokens_N[0]) / (step_N[1] - step_N[0])
    return bool(abs(tokens_N[0] / batch - step_N[0]) < 0.5)


def _losses(name: str, rows: pandas.DataFrame, column: str) -> Array:
    """Losses [N]; a row without one, or with one that is not finite, has NaN."""
    try:
        return np.asarray(rows[column].to_numpy(dtype=np.float64), dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name}: column {column} does not hold numbers; name that of the losses with --y") from None


def _status(once: pandas.DataFrame, columns: LogColumns, loss_N: Array) -> tuple[str, str]:
    """As it is stated; else a run whose last losses alone are not finite has diverged."""
    stated, reason = str(_constant(once, "status") or ""), str(_constant(once, "reason") or "")
    finite = np.flatnonzero(np.isfinite(loss_N))
    ends_early = len(finite) and finite[-1] < len(loss_N) - 1 and len(finite) == finite[-1] + 1
    if stated or not ends_early:
        return stated, reason
    order = columns.step if columns.step in once else columns.tokens
    return Status.DIVERGED, f"no finite {columns.loss} from {order} {once[order].iloc[int(finite[-1]) + 1]:.6g} on"


def _spent(name: str, rows: pandas.DataFrame, columns: LogColumns) -> tuple[dict[str, Array], tuple[str, ...]]:
    """Axis -> what had been spent [N], and why an axis is not there although it was logged; tokens must be there."""
    found = {"tokens": _numbers(name, rows, columns.tokens)}
    if columns.compute in rows:
        found["flops"] = _numbers(name, rows, columns.compute)
    if columns.hours in rows:
        found["hours"] = _numbers(name, rows, columns.hours)
    elif columns.seconds in rows:
        found["hours"] = _numbers(name, rows, columns.seconds) / SECONDS_PER_HOUR
    wrong = {}
    for axis, values_N in found.items():
        steps_N = np.diff(values_N, prepend=0.0)
        falls = np.flatnonzero(steps_N < 0 if axis == "hours" else steps_N <= 0)
        if len(falls):
            wrong[axis] = f"{axis} do not grow along the run (row {rows.index[int(falls[0])]})"
    if "tokens" in wrong:
        raise InputError(f"{name}: {wrong['tokens']}; keep one run per file, rows in the order of logging")
    kept = {axis: values_N for axis, values_N in found.items() if axis not in wrong}
    return kept, tuple(f"{text}, so that they are not compared" for text in wrong.values())


def _learning_rate(rows: pandas.DataFrame, columns: LogColumns) -> Array | None:
    """Over its peak, or None where it was not logged with every loss."""
    if columns.learning_rate not in rows:
        return None
    rate_N = pandas.to_numeric(rows[columns.learning_rate], errors="coerce").to_numpy(np.float64)
    return rate_N / rate_N.max() if np.isfinite(rate_N).all() and rate_N.max() > 0 else None


def _numbers(name: str, rows: pandas.DataFrame, column: str) -> Array:
    """A column of finite numbers."""
    values = pandas.to_numeric(rows[column], errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        row, value = rows.index[int(wrong[0])], rows[column].iloc[int(wrong[0])]
        raise InputError(f"{name}: row {row}: {column} {value}; write a number on every row")
    return values


def _constant(frame: pandas.DataFrame, column: str) -> object | None:
    """What a column says of the whole run: its last value; None where it says nothing."""
    stated = frame[column].dropna() if column in frame else pandas.Series(dtype=object)
    return stated.iloc[-1] if len(stated) else None
