"""Does every trial of a space cost what its proxy size is given? Asked before anything is trained.

Trials compare at equal cost. Three things may break that: a batch so large that whole optimizer steps go beyond the
budget, a change of the model that nothing matches, and tokens per parameter that no width gives. What the losses are
measured on and with is checked in `search`; what several paths do together beyond their ends is not tried.
"""

from collections.abc import Iterator, Mapping

from k3ablate.budgets import Flops, afforded
from k3ablate.config import InputError, located
from k3ablate.experiment import Arm, Experiment, distinct_arms, setting
from k3ablate.model.sizes import quantity
from k3ablate.plan import PlanRow, Point, points, rows_at
from k3ablate.search import BATCH_SIZE, RATIO, Range, Scalar, Tuning
from k3ablate.tuned import Taken

LARGEST_EXCESS = 0.05  # of what a run costs over its budget
UNBUILT = "unbuilt"  # stands for a corpus in specifications that are only checked


def check_costs(experiment: Experiment) -> None:
    """InputError for the first value of a space that an arm cannot afford at a proxy size; nothing without a space."""
    tuning = experiment.tuning
    if tuning is None:
        return
    ladder = {point.name: point for point in points(experiment)}
    for arm in distinct_arms(experiment):
        for size in tuning.sizes:
            with located(f"tuning.space (arm {arm.name}, size {size})"):
                _check_arm(experiment, tuning, arm, ladder[size])


def _check_arm(experiment: Experiment, tuning: Tuning, arm: Arm, point: Point) -> None:
    own = _row(experiment, arm, point, {})
    context = setting(experiment, arm).training.context
    ratios: tuple[Scalar, ...] = tuning.space[RATIO].tried_first if RATIO in tuning.space else ()
    rows = [_row(experiment, arm, point, {RATIO: ratio}) for ratio in ratios]
    for ratio, row in zip(ratios, rows, strict=True):
        _check_steps(f"{RATIO} = {ratio}", "other ratios, a smaller training.batch_size", row, point)
    if BATCH_SIZE in tuning.space:
        tokens = min(afforded(point.budget, row.counts, point.counts) for row in rows or [own])
        _check_batches(tuning.space[BATCH_SIZE], context, tokens)
    for path, value in _others(tuning):
        row = _row(experiment, arm, point, {path: value})
        if path.startswith("model."):
            _check_model(f"{path} = {value}", experiment, row, own, point)


def _others(tuning: Tuning) -> Iterator[tuple[str, Scalar]]:
    """Values of the paths whose trials take the same steps; making their specification checks those."""
    for path, one in tuning.space.items():
        if path not in (RATIO, BATCH_SIZE):
            for value in one.tried_first:
                yield path, value


def _row(experiment: Experiment, arm: Arm, point: Point, values: Mapping[str, Scalar]) -> PlanRow:
    with located(", ".join(f"{path} = {value}" for path, value in values.items()) or "the arm itself"):
        return rows_at(experiment, arm, setting(experiment, arm, values), Taken(values, {}), point, UNBUILT)[0]


def _check_batches(one: Range, context: int, tokens: int) -> None:
    """Refuse the smallest batch whose whole steps go beyond `tokens`."""
    batches = sorted(map(_whole, one.choices)) if one.choices is not None else _candidates(one, context, tokens)
    for batch in batches:
        step = batch * context
        excess = -(-tokens // step) * step / tokens - 1
        if excess > LARGEST_EXCESS:
            raise InputError(
                f"{BATCH_SIZE} = {batch}: whole optimizer steps of {step:,} tokens take {excess:.0%} more than the "
                f"budget of {tokens:,}; write {'smaller choices' if one.choices else f'high: {batch - 1} or less'}, or "
                "a larger budget"
            )


def _candidates(one: Range, context: int, tokens: int) -> range:
    """Batches of a range that may go beyond: one step more than the budget is more than the allowed excess."""
    low, high = (round(end) for end in one.ends)
    return range(max(low, int(LARGEST_EXCESS * tokens / context)), high + 1)


def _whole(value: Scalar) -> int:
    assert not isinstance(value, str), "a batch size, as the configuration has checked"
    return round(value)


def _check_steps(what: str, remedy: str, row: PlanRow, point: Point) -> None:
    tokens = afforded(point.budget, row.counts, point.counts)
    excess = row.tokens / tokens - 1
    if excess > LARGEST_EXCESS:
        raise InputError(
            f"{what}: leaves {tokens:,} tokens, and whole optimizer steps take {excess:.0%} more; write {remedy} or a "
            "larger budget"
        )


def _check_model(what: str, experiment: Experiment, row: PlanRow, own: PlanRow, point: Point) -> None:
    """A budget in FLOPs pays for a larger model in tokens, `match` in width; else cost must be the same."""
    if isinstance(point.budget, Flops) or experiment.match != "none":
        return
    ratio = quantity(row.counts, experiment.match) / quantity(own.counts, experiment.match)
    if abs(ratio - 1) > LARGEST_EXCESS:
        raise InputError(
            f"{what}: costs {ratio:.3g} times the FLOPs of the arm as it is, so that trials would not compare; write "
            "match: flops_per_token, or budgets of kind flops"
        )
