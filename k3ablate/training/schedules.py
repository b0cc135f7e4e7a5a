"""How large is each step? Learning-rate schedules as one writes them in a recipe, and `factor`, what they come to.

A pure function of the step: nothing has to be restored when a run resumes. Where the rate is set is `callbacks.py`.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from k3ablate.config import Config, Tree

WARMUP_FRACTION = 0.01  # where a schedule says nothing (K3)


class Warmup(Config):
    """The linear start of every schedule: a fraction of the run's steps, or so many steps.

    Only one of the two is set, so that one warm-up has one digest.
    """

    warmup_fraction: float | None = Field(default=None, ge=0, lt=1)
    warmup_steps: PositiveInt | None = None

    @model_validator(mode="before")
    @classmethod
    def _fraction_unless_steps(cls, tree: Tree) -> Tree:
        if isinstance(tree, Mapping) and tree.get("warmup_fraction") is None and tree.get("warmup_steps") is None:
            return {**tree, "warmup_fraction": WARMUP_FRACTION}
        return tree

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.warmup_fraction is not None and self.warmup_steps is not None:
            raise ValueError(
                f"warmup_fraction {self.warmup_fraction:g} and warmup_steps {self.warmup_steps} both say how long the "
                "warm-up is; write one, and null for the other where an arm overrides it"
            )
        return self

    def num_warmup(self, num_steps: int) -> int:
        """Steps of the warm-up of a run of `num_steps`, at least one."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        assert self.warmup_fraction is not None, "set where steps are not"
        return max(1, round(self.warmup_fraction * num_steps))


class Cosine(Warmup):
    """Linear warm-up, then a half cosine to `final_fraction` of the peak (K3: 1 percent warm-up)."""

    kind: Literal["cosine"] = "cosine"
    final_fraction: float = Field(default=0.1, ge=0, le=1)


class WarmupStableDecay(Warmup):
    """Linear warm-up, constant, cosine decay over the last `decay_fraction` of the steps (K2: 500 steps of warm-up)."""

    kind: Literal["wsd"] = "wsd"
    decay_fraction: float = Field(default=0.355, gt=0, le=1)  # K2: 5.5T of 15.5T tokens
    final_fraction: float = Field(default=0.1, ge=0, le=1)

    def decay_start(self, num_steps: int) -> int:
        """Steps of a run of `num_steps` before its decay; those do not depend on it if the warm-up is in steps."""
        before = num_steps - max(1, round(self.decay_fraction * num_steps))
        return max(before, self.num_warmup(num_steps))


class Linear(Warmup):
    """Linear warm-up, then linear to `final_fraction` of the peak."""

    kind: Literal["linear"] = "linear"
    final_fraction: float = Field(default=0.0, ge=0, le=1)


class Constant(Warmup):
    """Linear warm-up, then constant."""

    kind: Literal["constant"] = "constant"


ScheduleConfig = Annotated[Cosine | WarmupStableDecay | Linear | Constant, Field(discriminator="kind")]


def factor(schedule: ScheduleConfig, step: int, num_steps: int) -> float:
    """Learning rate over its peak at 0-based `step` of `num_steps`, in [0, 1].

    Warm-up takes at least one step and rises to 1 at its last; `final_fraction` is reached as the run ends.
    """
    num_warmup = schedule.num_warmup(num_steps)
    if step < num_warmup:
        return (step + 1) / num_warmup
    match schedule:
        case Constant():
            return 1.0
        case Linear():
            return 1.0 + (schedule.final_fraction - 1.0) * _progress(num_warmup, step, num_steps)
        case Cosine():
            return _half_cosine(_progress(num_warmup, step, num_steps), schedule.final_fraction)
        case WarmupStableDecay():
            decay_start = schedule.decay_start(num_steps)
            return _half_cosine(_progress(decay_start, step, num_steps), schedule.final_fraction)


def _progress(start: int, step: int, num_steps: int) -> float:
    """0 until step `start`, then linear to 1 at `num_steps`, one past the last step."""
    return max(0, step - start) / max(1, num_steps - start)


def _half_cosine(progress: float, final: float) -> float:
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))
