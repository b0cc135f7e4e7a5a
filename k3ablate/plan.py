"""Which runs answer the question, what does each cost, and how well are they matched?

`expand` multiplies arms by sizes, budgets and seeds into labelled rows. Pure: it reads no file, trains nothing and
gives the same plan for the same experiment and corpora.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from k3ablate.budgets import Budget, Flops, afforded
from k3ablate.config import InputError, digest, parse
from k3ablate.experiment import (
    Arm,
    Experiment,
    Setting,
    distinct_arms,
    make_arms,
    point_name,
    setting,
)
from k3ablate.model.counting import Counts, count
from k3ablate.model.decoder import ModelConfig
from k3ablate.model.sizes import Size, at_ratio, matched, quantity, scaled
from k3ablate.records import Label, Varied
from k3ablate.search import RATIO
from k3ablate.training.spec import DataRecipe, RunSpec
from k3ablate.tuned import Taken

UNBUILT = ""  # digest of a row whose corpus has not been built yet
NOT_TUNED = Taken({}, {})


@dataclass(frozen=True)
class PlanRow:
    """One run as the experiment calls it. `spec` is None while its corpus is not built (its digest is unknown)."""

    label: Label
    spec: RunSpec | None
    counts: Counts
    tokens: int  # budget, rounded up to whole optimizer steps
    flops: float  # training FLOPs
    tuned: Taken = NOT_TUNED  # values that tuning found, and where


@dataclass(frozen=True)
class Point:
    """A place on the ladder, a size and a budget, with the baseline there, which all arms are matched to."""

    name: str
    size: Size
    budget: Budget
    model: ModelConfig  # of the baseline
    counts: Counts
    flops: float  # of the baseline's training


@dataclass(frozen=True)
class Plan:
    """Every row of an experiment, baseline first, small sizes first."""

    experiment: str
    rows: tuple[PlanRow, ...]


def data_recipes(experiment: Experiment) -> tuple[DataRecipe, ...]:
    """The distinct data recipes of all arms, the baseline's first; tuned values may make others of them."""
    tuned = experiment.tuned
    if tuned is not None and any(is_of_data(path) for arm in tuned.tuned.values() for path in arm.tuning.space):
        return tuple(dict.fromkeys(chosen.data for _, _, chosen, _ in _placed(experiment)))
    return tuple(dict.fromkeys(setting(experiment, arm).data for arm in make_arms(experiment)))


def trial_recipes(experiment: Experiment) -> tuple[DataRecipe, ...]:
    """The data recipes of all trials of all arms, which are built before them."""
    return tuple(dict.fromkeys(one for arm in distinct_arms(experiment) for one in tried_recipes(experiment, arm)))


def tried_recipes(experiment: Experiment, arm: Arm) -> tuple[DataRecipe, ...]:
    """The arm's own data recipe, and what the choices of its space make of it."""
    space = experiment.tuning.space if experiment.tuning is not None else {}
    varied = {path: one.choices or () for path, one in space.items() if is_of_data(path)}
    trials = [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]
    return tuple(dict.fromkeys(setting(experiment, arm, values).data for values in [{}, *trials]))


def expand(experiment: Experiment, corpora: Callable[[DataRecipe], str | None]) -> Plan:
    """All rows. `corpora` gives the digest of a recipe's built corpus, or None where it has not been built."""
    digests = {recipe: corpora(recipe) for recipe in data_recipes(experiment)}
    rows = [
        row
        for arm, point, chosen, tuned in _placed(experiment)
        for row in rows_at(experiment, arm, chosen, tuned, point, digests[chosen.data])
    ]
    _check_distinct(rows)
    return Plan(experiment.name, tuple(rows))


def points(experiment: Experiment) -> tuple[Point, ...]:
    """The ladder, small sizes first, each with every budget."""
    return tuple(point for size in experiment.sizes for point in _points_of(experiment, size))


def rows_at(
    experiment: Experiment, arm: Arm, chosen: Setting, tuned: Taken, point: Point, corpus: str | None
) -> list[PlanRow]:
    """The seeds of one arm at one place; `chosen` is the arm with its tuned values in it, but for the ratio."""
    model = _arm_model(experiment, chosen, tuned, point)
    counts = count(model, chosen.training.context)
    tokens = _whole_steps(afforded(point.budget, counts, point.counts), chosen.training.tokens_per_step)
    flops = counts.training_flops(tokens)
    mismatch = quantity(counts, experiment.match) / quantity(point.counts, experiment.match) - 1
    if RATIO in tuned.values:  # an arm at its own size is matched in what it spends
        mismatch = flops / point.flops - 1
    rows = []
    for seed, spec, name in _specs(experiment, arm, chosen, model, tokens, corpus):
        label = Label(experiment.name, arm.name, point.name, seed, name, arm.levels, mismatch, experiment.vary)
        rows.append(PlanRow(label, spec, counts, tokens, flops, tuned))
    return rows


def is_of_data(path: str) -> bool:
    """Whether other values at `path` are other corpora."""
    return path.split(".")[0] == "data"


def _placed(experiment: Experiment) -> Iterator[tuple[Arm, Point, Setting, Taken]]:
    """Every arm at every place, with what it is there."""
    arms = [(arm, setting(experiment, arm)) for arm in make_arms(experiment)]
    for at_size in (_points_of(experiment, size) for size in experiment.sizes):
        for arm, chosen in arms:
            for point in at_size:
                yield arm, point, *_at_own_values(experiment, arm, chosen, point)


def _points_of(experiment: Experiment, size: Size) -> list[Point]:
    """The budgets of one size."""
    baseline = experiment.baseline
    model = scaled(baseline.model, size, baseline.data.vocabulary_size)
    counts = count(model, baseline.training.context)
    found = []
    for budget in experiment.budgets:
        tokens = _whole_steps(afforded(budget, counts, counts), baseline.training.tokens_per_step)
        name = point_name(experiment, size, budget)
        found.append(Point(name, size, budget, model, counts, counts.training_flops(tokens)))
    return found


def _at_own_values(experiment: Experiment, arm: Arm, chosen: Setting, point: Point) -> tuple[Setting, Taken]:
    """The arm at the values that were tuned for it, if the experiment takes any; the baseline's twin has its own."""
    if experiment.tuned is None:
        return chosen, NOT_TUNED
    names = experiment.names
    is_baseline = arm.name == names.replicate or experiment.tuned.arms == "baseline"
    taken = experiment.tuned.at(names.baseline if is_baseline else arm.name, point.name, point.flops)
    return setting(experiment, arm, taken.values), taken


def _specs(
    experiment: Experiment, arm: Arm, chosen: Setting, model: ModelConfig, tokens: int, corpus: str | None
) -> Iterator[tuple[int, RunSpec | None, str]]:
    """Every seed with its specification and digest. What seeds share is checked and written out once."""
    if corpus is None:
        yield from ((seed, None, UNBUILT) for seed in arm.seeds)
        return
    parts = {"model": model, "data": chosen.data, "corpus": corpus, "training": chosen.training, "tokens": tokens}
    first = parse(RunSpec, {**parts, "seed": arm.seeds[0]}, source=f"arm {arm.name}")
    tree = first.tree()
    for seed in arm.seeds:
        seeds = _seeds(experiment, seed)
        yield seed, first.model_copy(update=seeds), digest(tree | seeds)


def _seeds(experiment: Experiment, seed: int) -> dict[str, int | None]:
    """`seed` and `data_seed` of the run that the experiment calls `seed`."""
    held = experiment.seeds[0]
    match experiment.vary:
        case Varied.BOTH:
            return {"seed": seed, "data_seed": None}
        case Varied.INITIALISATION:
            return {"seed": seed, "data_seed": None if held == seed else held}
        case Varied.DATA_ORDER:
            return {"seed": held, "data_seed": None if held == seed else seed}


def _arm_model(experiment: Experiment, chosen: Setting, tuned: Taken, point: Point) -> ModelConfig:
    """The arm at the width where it costs what the baseline costs; the baseline's own shape is never touched.

    With tuned tokens per parameter, the width at which the arm's own budget in FLOPs buys so many.
    """
    vocabulary_size = chosen.data.vocabulary_size
    if RATIO in tuned.values:
        flops, ratio = _flops_of(point), float(tuned.values[RATIO])
        return at_ratio(chosen.model, point.size, vocabulary_size, flops, ratio, chosen.training.context)
    if chosen.model == experiment.baseline.model and vocabulary_size == point.model.vocabulary_size:
        return point.model
    context = chosen.training.context
    return matched(chosen.model, point.size, vocabulary_size, point.model, experiment.match, context)


def _flops_of(point: Point) -> float:
    if isinstance(point.budget, Flops):
        return point.budget.flops
    raise InputError(
        f"size {point.name}: tuned values with {RATIO} choose a width at a number of FLOPs, and this budget is of kind "
        f"{point.budget.kind}; write budgets of kind flops"
    )


def _whole_steps(tokens: int, tokens_per_step: int) -> int:
    return -(-tokens // tokens_per_step) * tokens_per_step


def _check_distinct(rows: list[PlanRow]) -> None:
    """Refuse rows that come out as one run: two arms where a change changes nothing, two sizes that are one."""
    seen: dict[str, Label] = {}
    for label in (row.label for row in rows if row.spec is not None):
        other = seen.setdefault(label.digest, label)
        if other is not label and other.arm == label.arm:
            raise InputError(
                f"sizes {other.size} and {label.size} are the same run for arm {label.arm}, seed {label.seed} "
                f"(digest {label.digest}); drop one of them"
            )
        if other.arm != label.arm:
            raise InputError(
                f"arms {other.arm} and {label.arm} are the same run at size {label.size}, seed {label.seed} "
                f"(digest {label.digest}): there the change changes nothing; write a larger size or drop the arm"
            )
