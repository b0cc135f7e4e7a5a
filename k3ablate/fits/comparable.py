"""Which training curves may be compared, and what must be said beside the comparison?

Groups are runs of one name, a seed each. Runs whose losses do not compare are refused, diverged ones are left out with
their reason, and what else differs (budgets, batches, devices) becomes a caution that stays with the numbers. Logs are
read in `logged_runs`, curves compared in `training_curves`.

Too early to rank is a run of fewer than 50 optimizer steps after the warm-up of its learning rate, or one that is still
in it: what is learnt first, which tokens are frequent, says nothing about an architecture.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas

from k3ablate.config import InputError
from k3ablate.fits.logged_runs import SAME, TRAINING_LOSS, VALIDATION_LOSS, LogColumns, LoggedRun, read_run
from k3ablate.fits.observations import SINGLE_VALUED
from k3ablate.fits.training_curves import TrainingCurve
from k3ablate.records import Status

MIN_STEPS = 50  # after the warm-up
CONTEXT = "context"  # how many tokens a token may see, which moves a training loss by itself


@dataclass(frozen=True)
class Group:
    """The runs of one name, one per seed, with what must stay beside their numbers."""

    name: str
    runs: tuple[LoggedRun, ...]
    cautions: tuple[str, ...] = ()

    @property
    def curves(self) -> list[TrainingCurve]:
        """One per seed."""
        return [run.curve for run in self.runs]

    @property
    def seeds(self) -> list[object | None]:
        """None where a seed is not known."""
        return [run.curve.seed for run in self.runs]

    def has(self, axis: str) -> bool:
        """Whether every run logged it."""
        return all(axis in curve.spent for curve in self.curves)


@dataclass(frozen=True)
class LeftOut:
    """A run that is not compared, and why."""

    run: str
    status: str
    reason: str

    def text(self) -> str:
        """One line."""
        return f"{self.run}: {self.status}: {self.reason}"


def loss_column(frames: Sequence[pandas.DataFrame]) -> str:
    """Validation losses where every run logged them along training, else the training loss."""
    return VALIDATION_LOSS if all(VALIDATION_LOSS in frame for frame in frames) else TRAINING_LOSS


def read_groups(
    frames: Mapping[str, Sequence[pandas.DataFrame]], columns: LogColumns, window: float
) -> tuple[tuple[Group, ...], tuple[LeftOut, ...]]:
    """The groups, reference first, and the runs that diverged; losses are smoothed over `window` of the tokens.

    InputError where losses do not compare, where a group has nothing but diverged runs, or where it is too early.
    """
    _refuse_mixtures([frame for parts in frames.values() for frame in parts])
    groups, left_out = [], []
    for name, parts in frames.items():
        runs = [read_run(name, frame, columns, window) for part in parts for frame in _by_seed(part, columns)]
        gone = [run for run in runs if run.status == Status.DIVERGED]
        left_out += [LeftOut(_called(name, run), run.status, run.reason) for run in gone]
        kept = tuple(run for run in runs if run.status != Status.DIVERGED)
        if not kept:
            raise InputError(f"{name}: every run diverged ({gone[0].reason}); there is no curve to compare")
        _refuse_repeated_seeds(name, kept)
        for run in kept:
            _refuse_early(_called(name, run), run)
        groups.append(Group(name, kept))
    return tuple(replace(group, cautions=tuple(_cautions(groups[0], group))) for group in groups), tuple(left_out)


def _refuse_mixtures(frames: Sequence[pandas.DataFrame]) -> None:
    """Corpus, validation set, metric, units and context must be one in all runs that state them."""
    for column in dict.fromkeys(str(column) for frame in frames for column in frame):
        if not (SINGLE_VALUED.fullmatch(column) or column == CONTEXT):
            continue
        values = {str(value) for frame in frames if column in frame for value in frame[column].dropna().unique()}
        if len(values) > 1:
            raise InputError(
                f"compare: {len(values)} values of {column} ({', '.join(sorted(values))}); losses of more than one "
                f"{column} do not compare: name runs of one"
            )


def _refuse_repeated_seeds(name: str, runs: Sequence[LoggedRun]) -> None:
    seeds = [run.curve.seed for run in runs if run.curve.seed is not None]
    twice = sorted({str(seed) for seed in seeds if seeds.count(seed) > 1})
    if twice:
        raise InputError(f"{name}: seed {twice[0]} stands there twice; name each run once")


def _refuse_early(name: str, run: LoggedRun) -> None:
    """Too early to rank, by the rule of the module."""
    if 0 < run.curve.start == len(run.curve.loss_N) - 1:
        raise InputError(
            f"{name}: too early to rank: its learning rate still rises at its last logged step ({run.num_steps} steps, "
            f"{run.tokens:,.0f} tokens); train beyond the warm-up"
        )
    if run.num_steps_after_warm_up < MIN_STEPS:
        what = "logged losses, which count as steps here (name the column of steps with --step)"
        raise InputError(
            f"{name}: too early to rank: {run.num_steps_after_warm_up} "
            f"{what if run.counts_rows else 'optimizer steps'}{' after its warm-up' if run.curve.start else ''}, and a "
            f"curve counts from {MIN_STEPS} on; train further"
        )


def _cautions(reference: Group, group: Group) -> Iterator[str]:
    """What keeps equal losses from being all that differs."""
    for run in group.runs:
        yield from (f"{_called(group.name, run)}: {text}" for text in run.lacking)
        if not run.is_complete:
            done = f"{run.tokens / run.budget:.0%} of its {run.budget:,.0f} tokens"
            yield f"{_called(group.name, run)}: {run.status or 'not finished'} after {done}"
    ours, theirs = ({round(run.budget) for run in one.runs} for one in (group, reference))
    if max(ours | theirs) > min(ours | theirs) * (1 + SAME):
        yield (
            f"budgets differ ({_listed(theirs)} tokens of {reference.name}, {_listed(ours)} of {group.name}): at equal "
            "tokens the learning-rate schedule is in another phase, and part of the ratio is the schedule's"
        )
    batches = [run.tokens / run.num_steps for one in (reference, group) for run in one.runs if not run.counts_rows]
    if batches and max(batches) > min(batches) * (1 + SAME):
        yield f"batches of {min(batches):,.0f} to {max(batches):,.0f} tokens: equal tokens are not equally many updates"
    devices = {run.device for one in (reference, group) for run in one.runs if run.device}
    if len(devices) > 1:
        yield f"hours were measured on different devices ({', '.join(sorted(devices))})"


def _listed(values: set[int]) -> str:
    return " and ".join(f"{value:,}" for value in sorted(values))


def _called(name: str, run: LoggedRun) -> str:
    return name if run.curve.seed is None else f"{name} seed {run.curve.seed}"


def _by_seed(frame: pandas.DataFrame, columns: LogColumns) -> list[pandas.DataFrame]:
    if columns.seed not in frame:
        return [frame]
    return [part for _, part in frame.groupby(columns.seed, sort=False, dropna=False)]
