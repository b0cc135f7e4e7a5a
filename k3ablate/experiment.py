"""What is asked, and which arms answer it? One YAML file becomes an `Experiment`.

The file names a baseline, declares components with their levels, and a design that makes arms from them. An arm is a
strict override of the baseline: what does not exist, changes nothing or reaches beyond its component is refused here,
before anything is planned. Sizes, budgets and seeds are declared; `plan` multiplies them out.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from k3ablate.budgets import Budget, Flops
from k3ablate.config import Config, Difference, InputError, Tree, differences, digest, override, parse, read_yaml
from k3ablate.model.decoder import ModelConfig
from k3ablate.model.sizes import Matching, Name, Size
from k3ablate.records import COLUMNS, Varied
from k3ablate.references import resolved
from k3ablate.search import RATIO, Scalar, Tuning, check_space
from k3ablate.training.spec import DataRecipe, Execution, Seed, TrainingConfig
from k3ablate.tuned import LAWS, TunedValues

# Where each component of the mission lives; any other component states its own paths.
COMPONENT_PATHS: dict[str, tuple[str, ...]] = {
    "attention": ("model.mixer",),
    "residual": ("model.residual",),
    "feed_forward": ("model.feed_forward",),
    "balancing": ("model.balancing",),
    "optimizer": ("training.optimizer",),
    "schedule": ("training.schedule",),
    "data": ("data",),
}


EXPERIMENT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
ExperimentName = Annotated[str, Field(pattern=f"^{EXPERIMENT_NAME.pattern}$")]
ComponentName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]


class Setting(Config):
    """What an arm is, before size, budget and seed: the model at reference size, its data and its training."""

    model: ModelConfig
    data: DataRecipe
    training: TrainingConfig


class Component(Config):
    """One axis of change. The first level is the baseline and changes nothing; the last is the full change."""

    levels: dict[Name, dict[str, Tree]] = Field(min_length=2)
    paths: tuple[str, ...] = ()  # what the component may change; known components need not say

    @model_validator(mode="after")
    def _first_level_is_the_baseline(self) -> Self:
        first = next(iter(self.levels))
        if self.levels[first]:
            raise ValueError(f"the first level {first!r} is the baseline's and must be {{}}")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Level names, the baseline's first and the full change last."""
        return tuple(self.levels)


class ArmNames(Config):
    """What the two ends of a design are called, and the baseline's twin."""

    baseline: Name = "baseline"
    full: Name = "full"
    replicate: Name = "a/a"


class ListedArm(Config):
    """One arm of `design: list`: its level of each component it changes."""

    name: Name
    levels: dict[str, str] = Field(min_length=1)


class Experiment(Config):
    """One question in one file."""

    name: ExperimentName
    question: str = Field(min_length=1)
    metric: Literal["validation loss"] = "validation loss"
    expected: str = Field(min_length=1)
    stopping: str = Field(min_length=1)
    exclusion: str = Field(min_length=1)
    baseline: Setting
    components: dict[ComponentName, Component] = Field(min_length=1)
    design: Literal["factorial", "leave_one_out", "one_at_a_time", "list"]
    arms: tuple[ListedArm, ...] = ()
    names: ArmNames = ArmNames()
    match: Matching = "flops_per_token"
    sizes: tuple[Size, ...] = Field(min_length=1)
    budgets: tuple[Budget, ...] = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field(min_length=1)
    replicate_seeds: tuple[Seed, ...] = ()  # the baseline again under another name: the A/A arm
    vary: Varied = Varied.BOTH  # what seeds have different; the rest, in the A/A arm too, is the first seed's
    tuning: Tuning | None = None  # what `tune` does with the arms
    tuned: TunedValues | None = None  # values that arms get, instead of what the baseline says
    execution: Execution = Execution()

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for what, names in (
            ("sizes", [size.name for size in self.sizes]),
            ("budgets", [budget.name for budget in self.budgets]),
            ("seeds", [str(seed) for seed in self.seeds]),
            ("replicate_seeds", [str(seed) for seed in self.replicate_seeds]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(f"{what}: {', '.join(twice)} stands there twice; name each once")
        shared = sorted(set(self.seeds) & set(self.replicate_seeds))
        if shared:
            raise ValueError(f"replicate_seeds: {shared} are the baseline's own seeds; write others")
        if (self.design == "list") != bool(self.arms):
            raise ValueError("`arms` belongs to design: list, and that design needs it")
        return self

    @model_validator(mode="after")
    def _every_arm_is_valid(self) -> Self:
        _check_components(self)
        arms = make_arms(self)
        _check_names(arms)
        for arm in arms:
            check_arm(self, arm)
        _check_tuning(self, arms)
        return self

    def paths(self, component: str) -> tuple[str, ...]:
        """Dotted paths that `component` may change."""
        declared = self.components[component].paths or COMPONENT_PATHS.get(component, ())
        if not declared:
            raise ValueError(
                f"components.{component}: not one of {', '.join(COMPONENT_PATHS)}; "
                "write `paths:` with what it may change, e.g. [training.batch_size]"
            )
        return declared


@dataclass(frozen=True)
class Arm:
    """A named set of levels, one per component, and the seeds it is run with."""

    name: str
    levels: Mapping[str, str]
    seeds: tuple[int, ...]


def load(path: Path) -> Experiment:
    """Read, resolve and check an experiment file. Every mistake is one InputError that says what to write instead."""
    return _parsed(path, _tree(path))


def load_untuned(path: Path) -> Experiment:
    """As `load`, without the values that it takes from tuning: those are still to be found."""
    return _parsed(path, {key: value for key, value in _tree(path).items() if key != "tuned"})


def make_arms(experiment: Experiment) -> tuple[Arm, ...]:
    """The arms of the design, baseline first, then in the order of the components, the full arm last, then A/A."""
    names = experiment.names
    found: dict[tuple[str, ...], Arm] = {}
    for name, levels in _designed(experiment):
        arm = found.setdefault(tuple(levels.values()), Arm(name, levels, experiment.seeds))
        if experiment.design == "list" and arm.name != name:
            raise ValueError(f"arms.{name}: has the levels of {arm.name}; list each combination once")
    replicate = Arm(names.replicate, _baseline_levels(experiment), experiment.replicate_seeds)
    return (*found.values(), *([replicate] if experiment.replicate_seeds else []))


def setting(experiment: Experiment, arm: Arm, values: Mapping[str, Scalar] | None = None) -> Setting:
    """The baseline with the arm's levels written over it, and then `values` by their dotted paths."""
    tree: Mapping[str, Tree] = experiment.baseline.tree()
    where = f"arm {arm.name}"
    for component, level in arm.levels.items():
        for path, value in experiment.components[component].levels[level].items():
            tree = override(tree, path, value, source=f"{where}, components.{component}.levels.{level}")
    for path, tuned in (values or {}).items():
        if path != RATIO:  # chooses the width, in `plan`
            tree = override(tree, path, tuned, source=f"{where}, tuned value")
    return parse(Setting, tree, source=where)


def point_name(experiment: Experiment, size: Size, budget: Budget) -> str:
    """A point on the curve: the size, with the budget where an experiment has several."""
    return size.name if len(experiment.budgets) == 1 else f"{size.name}@{budget.name}"


def setting_digest(experiment: Experiment, arm: Arm, paths: Iterable[str]) -> str:
    """What an arm is beside the values at `paths`: the digest of its configuration without them."""
    tree: Mapping[str, Tree] = setting(experiment, arm).tree()
    for path in paths:
        if path != RATIO:
            tree = override(tree, path, None, source=f"arm {arm.name}")
    return digest(tree)


def distinct_arms(experiment: Experiment) -> tuple[Arm, ...]:
    """The arms without the baseline's twin."""
    return tuple(arm for arm in make_arms(experiment) if arm.name != experiment.names.replicate)


def arm_differences(experiment: Experiment) -> dict[str, list[Difference]]:
    """What every arm changes against the baseline at reference size."""
    before = experiment.baseline.tree()
    return {arm.name: list(differences(before, setting(experiment, arm).tree())) for arm in make_arms(experiment)}


def check_arm(experiment: Experiment, arm: Arm) -> None:
    """Refuse an arm with a value that is the baseline's already or that reaches beyond its component."""
    before, after = experiment.baseline.tree(), setting(experiment, arm).tree()
    for component, level in arm.levels.items():
        where = f"components.{component}.levels.{level}"
        for path in experiment.components[component].levels[level]:
            if not _below(path, experiment.paths(component)):
                raise ValueError(
                    f"{where}: {path} is not part of {component} ({', '.join(experiment.paths(component))}); "
                    "move it to a component of its own"
                )
            if not any(differences(_at(before, path), _at(after, path))):
                raise ValueError(
                    f"{where}: {path}: this arm changes nothing: it is the baseline's value already; "
                    "write another value or drop the level"
                )


def _tree(path: Path) -> Mapping[str, Tree]:
    tree = read_yaml(path)
    if not isinstance(tree, Mapping):
        raise InputError(f"{path}: an experiment is a mapping of keys to values, found {tree!r}")
    return tree


def _parsed(path: Path, tree: Mapping[str, Tree]) -> Experiment:
    return parse(Experiment, resolved(tree, str(path), _complete), source=str(path))


def _check_components(experiment: Experiment) -> None:
    """Refuse a component named like a column of the table, and two that may change one path: the later would win."""
    owners: dict[str, str] = {}
    for component in experiment.components:
        if component in COLUMNS:
            raise ValueError(f"components.{component}: is a column of every table of runs; write another name")
        for path in experiment.paths(component):
            for other, owner in owners.items():
                if _below(path, (other,)) or _below(other, (path,)):
                    raise ValueError(
                        f"components.{component} and components.{owner} may both change {max(path, other, key=len)}; "
                        "give each `paths:` of its own, or make them levels of one component"
                    )
        owners |= dict.fromkeys(experiment.paths(component), component)


def _check_tuning(experiment: Experiment, arms: tuple[Arm, ...]) -> None:
    """Refuse a space that an arm does not take, and one that undoes what an arm changes."""
    tuning = experiment.tuning
    if tuning is None:
        return
    budgets = {
        point_name(experiment, size, budget): budget for size in experiment.sizes for budget in experiment.budgets
    }
    for name in tuning.sizes:
        if name not in budgets:
            raise ValueError(f"tuning.sizes: no size {name!r}; write some of {', '.join(budgets)}")
        if RATIO in tuning.space and not isinstance(budgets[name], Flops):
            raise ValueError(
                f"tuning.space: {RATIO}: size {name} has a budget of kind {budgets[name].kind}, by which more tokens "
                "per parameter are more compute and always win; write budgets of kind flops, where parameters pay for "
                "them"
            )
    if any(arm.name == LAWS for arm in arms):
        raise ValueError(f"arms: {LAWS} is the file beside the tuned arms; write another name")
    trees = {arm.name: setting(experiment, arm).tree() for arm in arms}
    check_space(tuning, trees, lambda tree, source: parse(Setting, tree, source=source))
    for name, tree in trees.items():
        changed = [difference.path for difference in differences(experiment.baseline.tree(), tree)]
        if changed and all(_below(path, tuple(tuning.space)) for path in changed):
            raise ValueError(
                f"tuning.space: {', '.join(changed)} is all that arm {name} changes, and tuning would undo it; take it "
                "out of the space, or drop the arm"
            )


def _check_names(arms: tuple[Arm, ...]) -> None:
    names = [arm.name for arm in arms]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"arms: {', '.join(twice)} stands for two arms; write other `names` or arm names")


def _at(tree: Tree, path: str) -> Tree:
    """The subtree at a dotted path that is known to exist."""
    for key in path.split("."):
        tree = tree[key]
    return tree


def _below(path: str, allowed: tuple[str, ...]) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in allowed)


def _baseline_levels(experiment: Experiment) -> dict[str, str]:
    return {name: component.names[0] for name, component in experiment.components.items()}


def _full_levels(experiment: Experiment) -> dict[str, str]:
    return {name: component.names[-1] for name, component in experiment.components.items()}


def _designed(experiment: Experiment) -> Iterator[tuple[str, dict[str, str]]]:
    """(name, levels) of the design's arms; both ends belong to every design, since the split needs them."""
    start, end = _baseline_levels(experiment), _full_levels(experiment)
    yield experiment.names.baseline, start
    if experiment.design == "list":
        for arm in experiment.arms:
            yield arm.name, start | _known_levels(experiment, arm)
        return
    if experiment.design == "one_at_a_time":
        for name, component in experiment.components.items():
            for level in component.names[1:]:
                yield _changed_name(experiment, {name: level}), start | {name: level}
    if experiment.design == "leave_one_out":
        for name in experiment.components:
            yield f"{experiment.names.full}-{name}", end | {name: start[name]}
    if experiment.design == "factorial":
        yield from _factorial(experiment, start, end)
    if len(experiment.components) > 1:
        yield experiment.names.full, end


def _factorial(
    experiment: Experiment, start: Mapping[str, str], end: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    for levels in itertools.product(*(component.names for component in experiment.components.values())):
        chosen = dict(zip(experiment.components, levels, strict=True))
        changed = {name: level for name, level in chosen.items() if level != start[name]}
        if changed and chosen != end:
            yield _changed_name(experiment, changed), chosen


def _changed_name(experiment: Experiment, changed: Mapping[str, str]) -> str:
    """'+attention' where a component has two levels, '+residual=block' where it has more."""
    return "".join(
        f"+{name}" if len(experiment.components[name].levels) == 2 else f"+{name}={level}"
        for name, level in changed.items()
    )


def _known_levels(experiment: Experiment, arm: ListedArm) -> dict[str, str]:
    for name, level in arm.levels.items():
        if name not in experiment.components:
            raise ValueError(f"arms.{arm.name}: no component {name!r}; write one of {', '.join(experiment.components)}")
        if level not in experiment.components[name].levels:
            known = ", ".join(experiment.components[name].names)
            raise ValueError(f"arms.{arm.name}.{name}: no level {level!r}; write one of {known}")
    return dict(arm.levels)


def _complete(baseline: Tree, source: str) -> Tree:
    """A baseline with every default written out, so that `set:` reaches those too."""
    return parse(Setting, baseline, source=source).tree()
