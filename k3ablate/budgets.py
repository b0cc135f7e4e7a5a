"""How much is a run trained? A number of tokens or FLOPs, or tokens per parameter: a given ratio or the optimal one.

An experiment has one budget or several, at each of its sizes; `afforded` gives the tokens of a run. Whole optimizer
steps come on top, in `plan`. How a ladder of optimal ratios is found is in `budgeting`.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from k3ablate.config import Config
from k3ablate.model.counting import Counts
from k3ablate.tuned import Law, optimal_ratio


class Tokens(Config):
    """A budget in tokens, for every arm and size."""

    kind: Literal["tokens"] = "tokens"
    tokens: PositiveInt = Field(le=10**18)

    @property
    def name(self) -> str:
        """Name beside a size, e.g. '300000t'."""
        return f"{self.tokens}t"


class TokensPerParameter(Config):
    """A budget in tokens per active parameter of the baseline at each size; all its arms get the same tokens."""

    kind: Literal["tokens_per_parameter"] = "tokens_per_parameter"
    ratio: PositiveFloat = Field(le=1e9)

    @property
    def name(self) -> str:
        """Name beside a size, e.g. '20tpp'."""
        return f"{_written(self.ratio)}tpp"


class Flops(Config):
    """A budget in training FLOPs; each arm gets the tokens it can afford."""

    kind: Literal["flops"] = "flops"
    flops: PositiveFloat = Field(le=1e30)

    @property
    def name(self) -> str:
        """Name beside a size, e.g. '1e+18flops'."""
        return f"{_written(self.flops)}flops"


class ComputeOptimal(Config):
    """Tokens per active parameter of the baseline at each size by a law over FLOPs; all its arms get the same tokens.

    The law is that of the baseline in a sweep at equal compute, `{from: X}`: by laws of their own, arms of one size
    would not spend the same.
    """

    kind: Literal["compute_optimal"] = "compute_optimal"
    experiment: str
    arm: str
    setting: str
    law: Law

    @model_validator(mode="after")
    def _law_is_crossed(self) -> Self:
        if self.law.exponent >= 1:
            raise ValueError(
                f"the law of {self.experiment} has exponent {self.law.exponent:.3g}: tokens per parameter that grow as "
                "fast as FLOPs make no size optimal; sweep further budgets"
            )
        return self

    @property
    def name(self) -> str:
        """Name beside a size."""
        return "optimal"

    def ratio_of(self, goal: Counts) -> float:
        """Tokens per active parameter of a baseline with these counts."""
        return optimal_ratio(self.law, flops_per_ratio(goal))


def _written(number: float) -> str:
    """Every digit, and no '.0'."""
    return repr(number).removesuffix(".0")


Budget = Annotated[Tokens | TokensPerParameter | Flops | ComputeOptimal, Field(discriminator="kind")]


def afforded(budget: Budget, counts: Counts, goal: Counts) -> int:
    """Tokens that `budget` buys a model with `counts`, before whole steps; `goal` is the baseline at that place."""
    if isinstance(budget, Tokens):
        return budget.tokens
    if isinstance(budget, Flops):
        return max(1, round(budget.flops / (3 * counts.flops_per_token)))
    ratio = budget.ratio if isinstance(budget, TokensPerParameter) else budget.ratio_of(goal)
    return max(1, round(ratio * goal.active_params))


def flops_per_ratio(counts: Counts) -> float:
    """Training FLOPs of one token per active parameter."""
    return counts.training_flops(counts.active_params)
