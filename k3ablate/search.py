"""What may a study vary, how does it search, and does every arm take it? The block `tuning:` of an experiment.

`Tuning` is what one writes; `check_space` tries both ends of every range on every arm, with the check of the arm's own
configuration. Which trials follow from it is in `tuning.space`, how they are run in `tuning.study`.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from k3ablate.config import Config, InputError, Tree, override

TUNABLE = ("model", "training")
NOT_TUNABLE = {
    "model.width": "`sizes`",
    "model.num_layers": "`sizes`",
    "model.vocabulary_size": "the tokenizer of `data`",
}
Scalar = bool | int | float | str


class Range(Config):
    """Values of one path: from `low` to `high` by a scale, or one of `choices`."""

    low: float | None = None
    high: float | None = None
    scale: Literal["log", "linear"] = "log"
    whole: bool = False  # whole numbers only
    points: PositiveInt | None = None  # of a grid, ends included
    choices: tuple[Scalar, ...] | None = None

    @model_validator(mode="after")
    def _is_one_of_both(self) -> Self:
        if self.choices is not None:
            self._check_choices(self.choices)
        elif self.low is None or self.high is None:
            raise ValueError("write low and high, e.g. {low: 1.0e-3, high: 3.0e-2, scale: log}, or choices: [8, 16]")
        elif not self.low < self.high:
            raise ValueError(f"low {self.low:g} is not below high {self.high:g}: this range is empty; write low < high")
        elif self.scale == "log" and self.low <= 0:
            raise ValueError(
                f"low {self.low:g} has no logarithm, and the range touches or crosses zero; write scale: linear, or a "
                "low above 0"
            )
        elif self.whole and not (self.low.is_integer() and self.high.is_integer()):
            raise ValueError(f"whole: true, and the ends are {self.low:g} and {self.high:g}; write whole numbers")
        return self

    def _check_choices(self, choices: tuple[Scalar, ...]) -> None:
        if self.low is not None or self.high is not None or self.points is not None:
            raise ValueError("has choices and a range; write either")
        if len(choices) < 2 or len({repr(choice) for choice in choices}) < len(choices):
            raise ValueError(f"choices {list(choices)}: write two or more, each once")

    @property
    def ends(self) -> tuple[float, float]:
        """Low and high of a range that has no choices."""
        assert self.low is not None, "has no choices"
        assert self.high is not None, "has no choices"
        return self.low, self.high

    @property
    def tried_first(self) -> tuple[Scalar, ...]:
        """What must be allowed by every arm: both ends, or every choice."""
        return self.choices if self.choices is not None else tuple(self.written(end) for end in self.ends)

    def written(self, value: float) -> Scalar:
        """A number of this range as it is put into a configuration: six digits, and not beyond the ends."""
        low, high = self.ends
        return round(value) if self.whole else min(max(float(f"{value:.6g}"), low), high)


class TPE(Config):
    """Tree-structured Parzen estimator, of Optuna, after `startup` quasi-random trials.

    `parallel` trials are proposed on the same knowledge; the next ones wait for them, so that a study comes out the
    same however many workers it has.
    """

    kind: Literal["tpe"] = "tpe"
    seed: int = Field(default=0, ge=0, lt=2**32)
    startup: PositiveInt = 8
    parallel: PositiveInt = 2


class Random(Config):
    """Uniform in every range's scale."""

    kind: Literal["random"] = "random"
    seed: int = Field(default=0, ge=0, lt=2**32)


class QuasiRandom(Config):
    """A scrambled Halton sequence: as random, without clusters and gaps."""

    kind: Literal["quasi_random"] = "quasi_random"
    seed: int = Field(default=0, ge=0, lt=2**32)


class Grid(Config):
    """Every combination of each range's `points`, evenly spaced in its scale, and of choices."""

    kind: Literal["grid"] = "grid"


Sampler = Annotated[TPE | Random | QuasiRandom | Grid, Field(discriminator="kind")]


class Tuning(Config):
    """Studies of an experiment: one per arm and proxy size, with the same space and the same number of trials.

    A trial trains with the experiment's first seed to its end. None is cut short by its loss half-way: where the
    learning rate decays, that loss speaks against high learning rates and not against the trial.
    """

    trials: PositiveInt = 12  # of every arm at every size
    sampler: Sampler = TPE()
    pruning: Literal["none"] = "none"
    sizes: tuple[str, ...] = Field(min_length=1)  # proxy sizes, named as `plan` names them
    space: dict[str, Range] = Field(min_length=1)
    reach: PositiveFloat | None = Field(default=None, le=1)  # optimum: from trials within this share of each range

    @model_validator(mode="after")
    def _trials_suffice(self) -> Self:
        if isinstance(self.sampler, TPE) and self.sampler.startup > self.trials:
            raise ValueError(f"sampler.startup {self.sampler.startup} is more than trials {self.trials}; write fewer")
        if isinstance(self.sampler, Grid) and self.trials != self.num_grid_points:
            raise ValueError(
                f"trials {self.trials}, and the grid has {self.num_grid_points} points; write trials: "
                f"{self.num_grid_points}, or other `points`"
            )
        twice = sorted({size for size in self.sizes if self.sizes.count(size) > 1})
        if twice:
            raise ValueError(f"sizes: {', '.join(twice)} stands there twice; name each once")
        return self

    @property
    def num_grid_points(self) -> int:
        """Points of the grid; one range without `points` takes as many as there are trials."""
        product = 1
        for one in self.space.values():
            product *= len(one.choices) if one.choices is not None else self.points_of(one)
        return product

    def points_of(self, one: Range) -> int:
        """How many places the grid has along a range."""
        return one.points or (self.trials if len(self.space) == 1 else 1)


def check_space(tuning: Tuning, arms: Mapping[str, Tree], check: Callable[[Tree, str], object]) -> None:
    """InputError where an arm, by name, does not take the space; `check(tree, source)` raises what is wrong with it."""
    for path, one in tuning.space.items():
        _check_path(path, tuple(tuning.space))
        for arm, tree in arms.items():
            where = f"tuning.space (arm {arm})"
            for value in one.tried_first:
                check(override(tree, path, value, source=where), f"{where}: {path} = {value}")


def _check_path(path: str, paths: tuple[str, ...]) -> None:
    if path.split(".")[0] not in TUNABLE:
        raise InputError(f"tuning.space: {path}: no such path here; paths begin with {' or '.join(TUNABLE)}")
    if path in NOT_TUNABLE:
        raise InputError(f"tuning.space: {path}: comes from {NOT_TUNABLE[path]}, which would overwrite it; remove it")
    above = next((other for other in paths if path.startswith(f"{other}.")), None)
    if above is not None:
        raise InputError(f"tuning.space: {path}: lies below {above}, which is varied as well; keep one of them")
