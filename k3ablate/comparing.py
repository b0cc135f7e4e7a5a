"""How much less does a run need for the loss of another, while both train? The verb `compare` over anybody's logs.

Takes frames of what runs logged, a group of seeds under each name, the first being the reference, and reads the ratio
of tokens, FLOPs and hours at equal loss. Reading logs and curves is in `fits`, finding runs in `run_logs`; nothing here
reaches a training library. Losses at the end of training and how they scale are the business of `fit` and `report`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas

from k3ablate.compared import Along, Axis, Compared, ComparedRuns, Estimate, Reading
from k3ablate.config import InputError
from k3ablate.fits.comparable import Group, loss_column, read_groups
from k3ablate.fits.equal_loss import EqualLoss, along_training, read_at
from k3ablate.fits.logged_runs import VALIDATION_LOSS, LogColumns
from k3ablate.fits.training_curves import AXES, DEFAULT_WINDOW, Estimates, default_targets

FLOPS_COLUMN = "flops_convention"


def compare(
    frames: Mapping[str, pandas.DataFrame | Sequence[pandas.DataFrame]],
    *,
    by: Axis = "tokens",
    targets: Sequence[float] = (),
    window: float | None = None,
    step: str | None = None,
    tokens: str | None = None,
    x: str | None = None,
    y: str | None = None,
    hours: str | None = None,
    seconds: str | None = None,
) -> Compared:
    """Tokens, FLOPs and hours until each loss of `targets`, and the ratio of the first group to every other.

    A frame has a row per logged step, with columns step, tokens, flops, hours or seconds, loss, and seed where it
    holds several runs; `step` `tokens` `x` (FLOPs) `y` (loss) `hours` `seconds` name them where they are called
    otherwise. Losses are averaged over the last `window` of the tokens (default: a tenth for a training loss, none for
    validation losses). `targets` default to the lowest loss that all reach, and what the reference had at a half, a
    quarter and an eighth of its tokens. InputError for curves that do not compare, or too early to rank.
    """
    lists = {name: [part] if isinstance(part, pandas.DataFrame) else list(part) for name, part in frames.items()}
    _check(lists, by, targets, window)
    column = y or loss_column([frame for part in lists.values() for frame in part])
    share = window if window is not None else (0.0 if column == VALIDATION_LOSS else DEFAULT_WINDOW)
    named = {"step": step, "tokens": tokens, "compute": x, "loss": column, "hours": hours, "seconds": seconds}
    columns = LogColumns(**{role: name for role, name in named.items() if name is not None})
    groups, left_out = read_groups(lists, columns, share)
    _check_axis(groups, by)
    loss_G = np.sort(np.array(targets, np.float64)) if targets else default_targets([one.curves for one in groups])
    read = {group.name: read_at(groups[0], group, loss_G) for group in groups}
    along = {group.name: along_training(groups[0], group) for group in groups[1:]}
    return Compared(
        reference=groups[0].name,
        by=by,
        loss_column=column,
        window=share,
        runs=[_facts(group) for group in groups],
        readings=[
            _reading(group, read[group.name], index, group is groups[0])
            for index in range(len(loss_G)) for group in groups
        ],
        along=[_along(name, found) for name, found in along.items() if found is not None],
        left_out=left_out,
        notes=[*_notes(groups, column, share, read, bool(targets)), f"FLOPs: {_convention(lists, columns)}"],
    )  # fmt: skip


def _check(
    lists: Mapping[str, Sequence[pandas.DataFrame]], by: str, targets: Sequence[float], window: float | None
) -> None:
    if len(lists) < 2:
        raise InputError("compare: name two runs or more, the reference first")
    if by not in AXES:
        raise InputError(f"--by {by}: write one of {', '.join(AXES)}")
    if window is not None and not 0 <= window < 1:
        raise InputError(f"--window {window}: write a share of the tokens, from 0 (no smoothing) to below 1")
    wrong = [target for target in targets if not 0 < target < np.inf]
    if wrong:
        raise InputError(f"--target {wrong[0]}: write a positive loss, in the unit of the logs")


def _check_axis(groups: Sequence[Group], by: str) -> None:
    lacking = [group.name for group in groups if not group.has(by)]
    if lacking:
        known = [axis for axis in AXES if all(group.has(axis) for group in groups)]
        raise InputError(
            f"--by {by}: {lacking[0]} has no column of it that serves; name one, or write --by {' or '.join(known)}"
        )


def _convention(lists: Mapping[str, Sequence[pandas.DataFrame]], columns: LogColumns) -> str:
    """Of those who state one, which have one in common; else where the numbers are from."""
    stated = [frame[FLOPS_COLUMN].iloc[0] for part in lists.values() for frame in part if FLOPS_COLUMN in frame]
    return str(stated[0]) if stated else f"column {columns.compute} of the logs"


def _facts(group: Group) -> ComparedRuns:
    shortest = min(group.runs, key=lambda run: run.tokens)
    return ComparedRuns(
        run=group.name,
        seeds=[str(seed) for seed in group.seeds if seed is not None],
        num_runs=len(group.runs),
        num_steps=shortest.num_steps,
        tokens=shortest.tokens,
        lowest_loss=max(float(curve.falling[-1]) for curve in group.curves),
        num_rows_dropped=sum(run.num_dropped for run in group.runs),
        cautions=group.cautions,
    )


def _reading(group: Group, read: EqualLoss, index: int, is_reference: bool) -> Reading:
    not_met = read.not_met(index)
    found = {} if is_reference or not_met else {axis: _estimate(one, index) for axis, one in read.ratio.items()}
    rate_G = read.learning_rate_G
    return Reading(
        loss=float(read.loss_G[index]),
        run=group.name,
        spent={} if not_met else {axis: _estimate(one, index) for axis, one in read.spent.items()},
        ratio={axis: one for axis, one in found.items() if np.isfinite(one.value)},
        method="" if is_reference else read.ratio["tokens"].method,
        learning_rate=None if not_met or rate_G is None else float(rate_G[index]),
        caution="" if is_reference else read.caution(index),
        not_met=not_met,
    )


def _estimate(found: Estimates, index: int) -> Estimate:
    return Estimate(float(found.value_G[index]), found.interval(index))


def _along(name: str, found: EqualLoss) -> Along:
    ratios = {
        axis: {"value": one.value_G.tolist(), "low": one.low_G.tolist(), "high": one.high_G.tolist()}
        for axis, one in found.ratio.items()
    }
    return Along(name, found.loss_G.tolist(), ratios)


def _notes(
    groups: Sequence[Group], column: str, window: float, read: Mapping[str, EqualLoss], stated: bool
) -> list[str]:
    smoothing = (
        f"losses: {column}, at every step the mean over the last {window:.0%} of the tokens until then, never ahead; "
        f"each loss is met about {window / 2:.0%} later for that, in all runs alike"
        if window
        else f"losses: {column} as logged, not smoothed"
    )
    chosen = "losses shown: the lowest that all meet, and the reference's at 1/2, 1/4 and 1/8 of its tokens there"
    dropped = sum(run.num_dropped for group in groups for run in group.runs)
    by_method: dict[str, list[str]] = {}
    for group in groups[1:]:
        by_method.setdefault(read[group.name].ratio["tokens"].method, []).append(group.name)
    methods = "; ".join(f"{method} ({', '.join(names)})" for method, names in by_method.items())
    return [
        f"ratio: what {groups[0].name} spends until it meets the loss, over what the run spends; above 1 is a gain, an "
        "interval that holds 1 tells no difference",
        smoothing,
        *([] if stated else [chosen]),
        f"intervals: 95 percent, of the logarithm over seeds; of the ratio: {methods}",
        *([f"{dropped} logged rows left out: steps that were taken again, or without a loss"] if dropped else []),
    ]
