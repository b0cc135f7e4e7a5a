"""Which runs answer the question, what does each cost, and how well are they matched?

`expand` multiplies arms by sizes, budgets and seeds into labelled rows. Pure: it reads no file, trains nothing and
gives the same plan for the same experiment and corpora.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from k3ablate.config import InputError, digest
from k3ablate.experiment import Arm, Budget, Experiment, Flops, Setting, Tokens, make_arms, setting
from k3ablate.model.counting import Counts, count
from k3ablate.model.decoder import ModelConfig
from k3ablate.model.sizes import Size, matched, quantity, scaled
from k3ablate.records import Label
from k3ablate.training.spec import DataRecipe, RunSpec

UNBUILT = ""  # digest of a row whose corpus has not been built yet


@dataclass(frozen=True)
class PlanRow:
    """One run as the experiment calls it. `spec` is None while its corpus is not built (its digest is unknown)."""

    label: Label
    spec: RunSpec | None
    counts: Counts
    tokens: int  # budget, rounded up to whole optimizer steps
    flops: float  # training FLOPs


@dataclass(frozen=True)
class Plan:
    """Every row of an experiment, baseline first, small sizes first."""

    experiment: str
    rows: tuple[PlanRow, ...]


def data_recipes(experiment: Experiment) -> tuple[DataRecipe, ...]:
    """The distinct data recipes of all arms, the baseline's first."""
    return tuple(dict.fromkeys(setting(experiment, arm).data for arm in make_arms(experiment)))


def expand(experiment: Experiment, corpora: Callable[[DataRecipe], str | None]) -> Plan:
    """All rows. `corpora` gives the digest of a recipe's built corpus, or None where it has not been built."""
    arms = [(arm, setting(experiment, arm)) for arm in make_arms(experiment)]
    digests = {recipe: corpora(recipe) for recipe in data_recipes(experiment)}
    rows = [
        row
        for baseline in (_baseline(experiment, size) for size in experiment.sizes)
        for arm, chosen in arms
        for budget in experiment.budgets
        for row in _rows(experiment, arm, chosen, baseline, budget, digests[chosen.data])
    ]
    _check_distinct(rows)
    return Plan(experiment.name, tuple(rows))


@dataclass(frozen=True)
class _Baseline:
    """The baseline at one size, which all arms are matched to."""

    size: Size
    model: ModelConfig
    counts: Counts


def _baseline(experiment: Experiment, size: Size) -> _Baseline:
    model = scaled(experiment.baseline.model, size, experiment.baseline.data.vocabulary_size)
    return _Baseline(size, model, count(model, experiment.baseline.training.context))


def _rows(
    experiment: Experiment, arm: Arm, chosen: Setting, baseline: _Baseline, budget: Budget, corpus: str | None
) -> list[PlanRow]:
    """The seeds of one arm at one size and budget."""
    model = _arm_model(experiment, chosen, baseline)
    counts = count(model, chosen.training.context)
    tokens = _whole_steps(_tokens(budget, counts, baseline.counts), chosen.training.tokens_per_step)
    flops = counts.training_flops(tokens)
    mismatch = quantity(counts, experiment.match) / quantity(baseline.counts, experiment.match) - 1
    size = _size_name(experiment, baseline.size, budget)
    rows = []
    for seed, spec, name in _specs(arm, chosen, model, tokens, corpus):
        label = Label(experiment.name, arm.name, size, seed, name, arm.levels, mismatch)
        rows.append(PlanRow(label, spec, counts, tokens, flops))
    return rows


def _specs(
    arm: Arm, chosen: Setting, model: ModelConfig, tokens: int, corpus: str | None
) -> Iterator[tuple[int, RunSpec | None, str]]:
    """Every seed with its specification and digest. What seeds share is checked and written out once."""
    if corpus is None:
        yield from ((seed, None, UNBUILT) for seed in arm.seeds)
        return
    first = RunSpec(
        model=model, data=chosen.data, corpus=corpus, training=chosen.training, tokens=tokens, seed=arm.seeds[0]
    )
    tree = first.tree()
    for seed in arm.seeds:
        yield seed, first.model_copy(update={"seed": seed}), digest(tree | {"seed": seed})


def _size_name(experiment: Experiment, size: Size, budget: Budget) -> str:
    """A point on the curve: the size, with the budget where an experiment has several."""
    return size.name if len(experiment.budgets) == 1 else f"{size.name}@{budget.name}"


def _arm_model(experiment: Experiment, chosen: Setting, baseline: _Baseline) -> ModelConfig:
    """The arm at the width where it costs what the baseline costs; the baseline's own shape is never touched."""
    vocabulary_size = chosen.data.vocabulary_size
    if chosen.model == experiment.baseline.model and vocabulary_size == baseline.model.vocabulary_size:
        return baseline.model
    context = chosen.training.context
    return matched(chosen.model, baseline.size, vocabulary_size, baseline.model, experiment.match, context)


def _tokens(budget: Budget, counts: Counts, goal: Counts) -> int:
    if isinstance(budget, Tokens):
        return budget.tokens
    if isinstance(budget, Flops):
        return max(1, round(budget.flops / (3 * counts.flops_per_token)))
    return max(1, round(budget.ratio * goal.active_params))


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
