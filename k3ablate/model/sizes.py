"""How does one reference model become a ladder of sizes, and how do two arms come to cost the same?

A `Size` is one dial: the width, with the few numbers that do not follow from it. Every other dimension keeps the
reference's ratios (specification 8), so a tiny K2 is K2's shape. `matched` turns the same dial until an arm costs
what the baseline costs.
"""

import math
from bisect import bisect_left
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from k3ablate.config import Config, InputError, parse
from k3ablate.model.counting import Counts, count
from k3ablate.model.decoder import FeedForwardPattern, MixerPattern, ModelConfig
from k3ablate.model.slots import Dial

Matching = Literal["flops_per_token", "active_parameters", "none"]

# An arm that cannot come closer to the baseline's cost than this is refused.
LARGEST_MISMATCH = 0.10
WIDTHS_TRIED = (0.3, 2.0)  # as shares of the size's width
MATCHING_STEPS = 4  # a matched width is a multiple of a quarter of `multiple`: whole multiples of it are too coarse


# What may stand in a table, a file name and a progress line: sizes, arms and levels are called so.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9+_][A-Za-z0-9+_=@./-]*$", max_length=80)]


class Size(Config):
    """A point on the ladder. None keeps the reference model's own number."""

    name: Name
    width: PositiveInt = Field(le=1_000_000)
    num_layers: PositiveInt = Field(le=10_000)
    head_width: PositiveInt | None = Field(default=None, multiple_of=2)  # rotary pairs need even numbers
    # Routed experts per token; all experts keep their ratio to them.
    num_active: PositiveInt | None = Field(default=None, ge=2, le=10_000)
    multiple: PositiveInt = 4  # of the width and of every inner width that follows from it

    @model_validator(mode="after")
    def _multiple_divides(self) -> Self:
        if self.width % self.multiple:
            below = self.width // self.multiple * self.multiple
            near = " or ".join(str(width) for width in (below, below + self.multiple) if width)
            raise ValueError(
                f"width {self.width} is not a multiple of {self.multiple}; write {near}, or another `multiple`"
            )
        return self


def scaled(reference: ModelConfig, size: Size, vocabulary_size: int) -> ModelConfig:
    """`reference` at `size`: ratios kept, `vocabulary_size` replaced."""
    _check_depth(reference, size)
    dial = Dial(
        width_ratio=size.width / reference.width,
        head_width=size.head_width,
        num_active=size.num_active,
        multiple=size.multiple,
    )
    changes = {
        "vocabulary_size": vocabulary_size,
        "width": size.width,
        "num_layers": size.num_layers,
        "mixer": _scaled_mixers(reference.mixer, dial),
        "feed_forward": _scaled_feed_forwards(reference.feed_forward, dial),
        "residual": reference.residual.scaled(size.num_layers),
    }
    return parse(ModelConfig, dict(reference) | changes, source=f"size {size.name}")


def matched(
    reference: ModelConfig, size: Size, vocabulary_size: int, target: ModelConfig, matching: Matching, context: int
) -> ModelConfig:
    """`reference` at `size` with the width at which its cost is nearest to `target`'s; InputError if none is near."""
    if matching == "none":
        return scaled(reference, size, vocabulary_size)
    goal = cost(target, matching, context)
    step = max(1, size.multiple // MATCHING_STEPS)
    low, high = (max(1, round(size.width * share / step)) for share in WIDTHS_TRIED)

    def at(steps: int) -> ModelConfig:
        return scaled(reference, size.model_copy(update={"width": steps * step}), vocabulary_size)

    # No dimension shrinks as the width grows, so the nearest cost is on one side of where the goal is crossed.
    crossing = bisect_left(range(low, high), goal, key=lambda steps: cost(at(steps), matching, context)) + low
    best = min(
        (at(steps) for steps in (crossing - 1, crossing) if steps >= low),
        key=lambda model: abs(cost(model, matching, context) / goal - 1),
    )
    mismatch = cost(best, matching, context) / goal - 1
    if abs(mismatch) > LARGEST_MISMATCH:
        raise InputError(
            f"size {size.name}: no width brings {matching} within {LARGEST_MISMATCH:.0%} of the baseline's {goal:.4g} "
            f"(nearest: width {best.width}, {mismatch:+.1%}); write a larger size, a smaller `multiple` or match: none"
        )
    return best


def at_ratio(
    reference: ModelConfig, size: Size, vocabulary_size: int, flops: float, ratio: float, context: int
) -> ModelConfig:
    """`reference` at `size` with the width at which `flops` of training are `ratio` tokens per active parameter.

    InputError where no width does that, and where widths lie so far apart that none comes near.
    """
    step = max(1, size.multiple // MATCHING_STEPS)
    low, high = (max(1, round(size.width * share / step)) for share in WIDTHS_TRIED)

    def at(steps: int) -> ModelConfig:
        return scaled(reference, size.model_copy(update={"width": steps * step}), vocabulary_size)

    def afforded(model: ModelConfig) -> float:
        counts = count(model, context)
        return flops / (3 * counts.flops_per_token) / counts.active_params

    most, least = afforded(at(low)), afforded(at(high))
    if not least <= ratio <= most:
        raise InputError(
            f"size {size.name}: {ratio:g} tokens per parameter at {flops:.4g} FLOPs take a width beyond "
            f"{low * step} to {high * step}; write {least:.3g} to {most:.3g}, or another size or budget"
        )
    # A wider model costs more per token and has more parameters, so the ratio falls as the width grows.
    crossing = bisect_left(range(low, high), -ratio, key=lambda steps: -afforded(at(steps))) + low
    best = min(
        (steps for steps in (crossing - 1, crossing) if steps >= low),
        key=lambda steps: abs(math.log(afforded(at(steps)) / ratio)),
    )
    miss = 2 / best  # half a step of width, and the ratio goes as width^-4
    if miss > LARGEST_MISMATCH:
        raise InputError(
            f"size {size.name}: {ratio:g} tokens per parameter at {flops:.4g} FLOPs take width {best * step}, where "
            f"the nearest width may miss them by {miss:.0%}; write fewer, a larger budget or a smaller `multiple`"
        )
    return at(best)


def cost(model: ModelConfig, matching: Matching, context: int) -> float:
    """The number that `matching` holds equal, of a model at a context of `context` tokens."""
    return quantity(count(model, context), matching)


def quantity(counts: Counts, matching: Matching) -> float:
    """The number that `matching` holds equal; FLOPs per token where it holds nothing."""
    return float(counts.active_params) if matching == "active_parameters" else counts.flops_per_token


def _check_depth(reference: ModelConfig, size: Size) -> None:
    leading = reference.feed_forward.leading
    if leading and leading.num_layers >= size.num_layers:
        raise InputError(
            f"size {size.name}: num_layers {size.num_layers} leaves no layer after the {leading.num_layers} leading "
            f"ones of feed_forward.leading; write at least {leading.num_layers + 1}"
        )


def _scaled_mixers(pattern: MixerPattern, dial: Dial) -> MixerPattern:
    periodic = pattern.periodic
    return MixerPattern(
        main=pattern.main.scaled(dial),
        periodic=periodic and periodic.model_copy(update={"mixer": periodic.mixer.scaled(dial)}),
    )


def _scaled_feed_forwards(pattern: FeedForwardPattern, dial: Dial) -> FeedForwardPattern:
    leading = pattern.leading
    return FeedForwardPattern(
        main=pattern.main.scaled(dial),
        leading=leading and leading.model_copy(update={"feed_forward": leading.feed_forward.scaled(dial)}),
    )
