"""Which run is a trial? An arm at a proxy size with the trial's values, as a row of a plan, and the studies there are.

A study's name holds a digest of everything its losses depend on beside the values: an arm that is edited gets a new
study, and one that is only renamed or given more trials goes on with what it has. Pure, like `plan`; what is done with
the rows is in `study` and in the verbs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from k3ablate.config import InputError, digest, located, parse
from k3ablate.experiment import Arm, Experiment, distinct_arms, setting, setting_digest
from k3ablate.plan import PlanRow, Point, points, rows_at, tried_recipes
from k3ablate.search import Grid, Range, Tuning
from k3ablate.training.spec import DataRecipe
from k3ablate.tuned import Taken
from k3ablate.tuning.costs import check_costs
from k3ablate.tuning.space import Values
from k3ablate.tuning.study import Study

SEPARATE = "-tuning"  # behind the experiment's name, in what runs are called


@dataclass(frozen=True)
class Studies:
    """Every study of an experiment, arms first, with what makes runs of their trials."""

    experiment: Experiment
    tuning: Tuning
    corpora: Mapping[DataRecipe, str]  # digests
    ladder: Mapping[str, Point]
    all: Sequence[Study]

    @property
    def seed(self) -> int:
        """That of every trial's training."""
        return self.experiment.seeds[0]

    def chosen(self, arms: Sequence[str], sizes: Sequence[str]) -> list[Study]:
        """Those of some arms and sizes; all of them where none is named. InputError for a name that is none."""
        for option, wanted, known in (
            ("--arm", arms, [study.arm for study in self.all]),
            ("--size", sizes, [study.size for study in self.all]),
        ):
            for name in wanted:
                if name not in known:
                    raise InputError(f"{option} {name}: not tuned here; write one of {', '.join(dict.fromkeys(known))}")
        return [
            study for study in self.all if study.arm in (arms or [study.arm]) and study.size in (sizes or [study.size])
        ]

    def arm(self, name: str) -> Arm:
        """The arm called `name`."""
        return next(arm for arm in distinct_arms(self.experiment) if arm.name == name)

    def row(self, study: Study, number: int, values: Values) -> PlanRow:
        """The run of one trial."""
        arm = replace(self.arm(study.arm), seeds=(self.seed,))
        chosen = setting(self.experiment, arm, values)
        tried = Taken(values, dict.fromkeys(values, "tried"))
        (row,) = rows_at(self.experiment, arm, chosen, tried, self.ladder[study.size], self.corpora[chosen.data])
        label = replace(
            row.label, experiment=f"{row.label.experiment}{SEPARATE}", arm=f"{study.arm}/trial-{number}"
        )  # fmt: skip
        return replace(row, label=label)

    def corpus_of(self, study: Study) -> str:
        """Digest of the corpus that its trials train on."""
        return self.corpora[setting(self.experiment, self.arm(study.arm)).data]


def check_widened(every: Studies, size: str, space: Mapping[str, Range]) -> None:
    """InputError where an arm does not take, or at this size cannot afford, a space that would be widened."""
    tuning = {"sizes": [size], "space": {path: one.tree() for path, one in space.items()}}
    wider = parse(Experiment, every.experiment.tree() | {"tuning": tuning}, source="--extend")
    with located("--extend"):
        check_costs(wider)


def studies(experiment: Experiment, corpora: Mapping[DataRecipe, str], num_trials: int | None = None) -> Studies:
    """One study per arm and proxy size; InputError where the experiment says nothing of tuning."""
    if experiment.tuning is None:
        raise InputError(
            f"{experiment.name}: nothing to tune; write e.g. tuning: {{sizes: [{experiment.sizes[0].name}], "
            "trials: 12, space: {training.optimizer.learning_rate: {low: 1.0e-3, high: 3.0e-2}}}"
        )
    check_costs(experiment)
    tree = experiment.tuning.tree() | ({} if num_trials is None else {"trials": num_trials})
    tuning = parse(Tuning, tree, source="tuning")
    bare = Studies(experiment, tuning, corpora, {point.name: point for point in points(experiment)}, ())
    found = [
        Study(_name(bare, arm, size), arm.name, size, tuning)
        for arm in distinct_arms(experiment)
        for size in tuning.sizes
    ]
    return replace(bare, all=found)


def _name(bare: Studies, arm: Arm, size: str) -> str:
    tuning, point = bare.tuning, bare.ladder[size]
    identity = {
        "setting": setting_digest(bare.experiment, arm, tuning.space),
        "baseline": point.model.digest(),
        "match": bare.experiment.match,
        "budget": point.budget.tree(),
        "seed": bare.seed,
        "corpus": "+".join(bare.corpora[recipe] for recipe in tried_recipes(bare.experiment, arm)),
        "sampler": tuning.sampler.tree(),
        "space": {path: one.tree() for path, one in tuning.space.items()},
        "grid": tuning.trials if isinstance(tuning.sampler, Grid) else None,
    }
    return f"{size}/{digest(identity)}"
