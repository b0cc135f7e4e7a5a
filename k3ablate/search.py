"""What may a study vary, how does it search, and does every arm take it? The block `tuning:` of an experiment.

`Tuning` is what one writes; `check_space` tries the ends of every range and a value between them on every arm, with the
check of the arm's own configuration. What a value costs at a proxy size is checked in `plan`, which trials follow is in
`tuning.space`, how they are run in `tuning.study`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, ValidationInfo, field_validator, model_validator

from k3ablate.config import Config, InputError, Tree, override

RATIO = "budgets.tokens_per_parameter"  # no path of a configuration: it chooses the width at a number of FLOPs
BATCH_SIZE = "training.batch_size"
TUNABLE = ("model", "training", "data")
OVERWRITTEN = "comes from {}, which would overwrite it"
# Paths below which trials would not compare, or would be overwritten, with the reason.
NOT_TUNABLE = {
    "model.width": OVERWRITTEN.format("`sizes`"),
    "model.num_layers": OVERWRITTEN.format("`sizes`"),
    "model.vocabulary_size": OVERWRITTEN.format("the tokenizer of `data`"),
    "training.context": "the validation loss is measured at this context, so that trials would not compare",
    "training.validation_tokens": "the loss of every trial would be measured on other text",
    "training.precision": "the validation loss is computed in it, and it costs time, which no budget counts",
    "training.divergence_loss": "it says which trials count, not how an arm trains",
    "data.tokenizer": "the validation text would be cut into other tokens, on which losses do not compare",
    "data.source.validation": "the loss of every trial would be measured on other text",
    "data.source.validation_fraction": "the loss of every trial would be measured on other text",
}
Scalar = bool | int | float | str
EXAMPLES = {"trials": "12", "reach": "0.35"}
EXAMPLE = "training.optimizer.learning_rate: {low: 1.0e-3, high: 3.0e-2}"


class Range(Config):
    """Values of one path: from `low` to `high` by a scale, or one of `choices`."""

    low: float | None = None
    high: float | None = None
    scale: Literal["log", "linear"] = "log"
    whole: bool = False  # whole numbers only
    points: PositiveInt | None = None  # of a grid, ends included
    choices: tuple[Scalar, ...] | None = None

    @field_validator("low", "high", "choices", mode="before")
    @classmethod
    def _is_finite(cls, written: Tree) -> Tree:
        for number in written if isinstance(written, list | tuple) else [written]:
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError("no trial can have this value; write finite numbers, e.g. {low: 1.0e-3, high: 3.0e-2}")
        return written

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
        """What must be allowed by every arm: every choice, or both ends and an inner value, small ones first.

        The inner one is next to the lower end: a fraction, or the next whole number, which only 1 divides as well.
        """
        if self.choices is not None:
            return self.choices
        low, high = self.ends
        inner = low + 1 if self.whole else low + min(1.0, high - low) / math.pi
        return tuple(dict.fromkeys(self.written(min(value, high)) for value in (low, inner, high)))

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
    sizes: tuple[str, ...]  # proxy sizes, named as `plan` names them
    space: dict[str, Range]
    reach: PositiveFloat | None = Field(default=None, le=1)  # optimum: from trials within this share of each range

    @field_validator("sizes", "space", mode="before")
    @classmethod
    def _is_not_empty(cls, written: Tree, info: ValidationInfo) -> Tree:
        if written is None or written in ([], (), {}):
            remedy = "a proxy size as `plan` names it, e.g. [xs]" if info.field_name == "sizes" else EXAMPLE
            raise ValueError(f"nothing to tune; write {remedy}")
        return written

    @field_validator("trials", "reach", mode="before")
    @classmethod
    def _is_a_number(cls, written: Tree, info: ValidationInfo) -> Tree:
        if isinstance(written, float) and not math.isfinite(written):
            raise ValueError(f"write a finite number, e.g. {info.field_name}: {EXAMPLES[info.field_name or '']}")
        return written

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
        if path == RATIO:
            _check_ratios(one)
            continue
        _check_path(path, one, tuple(tuning.space))
        for arm, tree in arms.items():
            _check_values(path, one, tree, f"tuning.space (arm {arm})", check)


def _check_values(path: str, one: Range, tree: Tree, where: str, check: Callable[[Tree, str], object]) -> None:
    """Try some values; where only fractions are refused, the message is of whole numbers."""

    def refusal(value: Scalar) -> InputError | None:
        try:
            check(override(tree, path, value, source=where), f"{where}: {path} = {value}")
        except InputError as error:
            return error
        return None

    takes_fractions = False
    for value in one.tried_first:
        error = refusal(value)
        is_fraction = isinstance(value, float) and not value.is_integer()
        if error is None:
            takes_fractions = takes_fractions or is_fraction
        elif one.whole:
            raise InputError(f"{error}; or write choices: [...] of values that every arm takes")
        elif is_fraction and one.choices is None and not takes_fractions and refusal(math.floor(float(value))) is None:
            raise InputError(
                f"{where}: {path} = {value} lies in the range, and this path takes whole numbers only; write "
                "whole: true"
            )
        else:
            raise error


def _check_ratios(one: Range) -> None:
    for value in one.tried_first:
        if isinstance(value, bool | str) or value <= 0:
            raise InputError(f"tuning.space: {RATIO} = {value}: write numbers above 0, e.g. {{low: 5, high: 80}}")


def _check_path(path: str, one: Range, paths: tuple[str, ...]) -> None:
    where = f"tuning.space: {path}"
    kind = path.split(".")[0]
    if kind not in TUNABLE:
        raise InputError(f"{where}: no such path here; paths begin with {', '.join(TUNABLE)}, or write {RATIO}")
    reason = next((why for barred, why in NOT_TUNABLE.items() if f"{path}.".startswith(f"{barred}.")), None)
    if reason is not None:
        raise InputError(f"{where}: {reason}; remove it")
    if kind == "data" and one.choices is None:
        raise InputError(
            f"{where}: each value is another corpus, which is built before the trials; write choices, e.g. "
            "{choices: [0.0, 0.25]}"
        )
    above = next((other for other in paths if path.startswith(f"{other}.")), None)
    if above is not None:
        raise InputError(f"{where}: lies below {above}, which is varied as well; keep one of them")
