"""How many tokens per parameter are best at equal compute? A parabola through the sizes of each budget.

At one number of FLOPs a larger model sees fewer tokens; the loss over ln(tokens per active parameter) has its least in
between. Whether the parabola opens upwards and has its vertex among the sizes is checked as in `optimum`, which reads
it; a sweep that fails there names no ratio. The law of the ratio over budgets tells what a ladder gives each size: the
ratio at which the law at the FLOPs that this takes gives it back. Sizes and budgets come from an experiment with
`budgets` of kind flops; one study that varies the ratio itself is `tune` with budgets.tokens_per_parameter.

A parabola is not the loss itself: on a planted Chinchilla surface its vertex is off by about 0.7 percent of the ratio,
which the intervals do not know. They hold for seed noise, and cover too rarely where that is smaller still (deviation
of the loss 4e-3: 97 of 100, 1e-3: 68).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from k3ablate.tuned import Law, Rung, optimal_ratio
from k3ablate.tuning.laws import Known, power_law
from k3ablate.tuning.optimum import Axis, Optimum, optima


@dataclass(frozen=True)
class Spent:
    """One finished run of a sweep."""

    size: str
    active_params: int
    tokens: int
    loss: float

    @property
    def ratio(self) -> float:
        """Tokens per active parameter."""
        return self.tokens / self.active_params


@dataclass(frozen=True)
class BestRatio:
    """The best tokens per parameter at one budget, with its interval, or why none is claimed."""

    flops: float
    num_sizes: int
    optimum: Optimum  # of tokens per parameter

    @property
    def is_claimed(self) -> bool:
        """Whether the parabola has its minimum among the sizes, with an interval."""
        return self.optimum.is_from_curve


def best_ratio(flops: float, runs: Sequence[Spent]) -> BestRatio:
    """The vertex through all seeds of the sizes at one budget; one run or more."""
    ratios = [run.ratio for run in runs]
    num_sizes = len({run.size for run in runs})
    if min(ratios) == max(ratios):
        loss = min(run.loss for run in runs)
        note = f"{num_sizes} size: a parabola takes 3 or more"
        return BestRatio(flops, num_sizes, Optimum(ratios[0], loss, None, None, False, False, len(runs), note))
    (found,) = optima([Axis(min(ratios), max(ratios))], ratios, [run.loss for run in runs])
    return BestRatio(flops, num_sizes, found)


def ratio_law(found: Sequence[BestRatio]) -> Law | None:
    """Tokens per parameter as a power law of the budget, through the budgets that claim one; None below two of them."""
    return power_law(_known(found))


def rung(found: Sequence[BestRatio], law: Law, active_params: int, flops_per_ratio: float) -> Rung:
    """A model at its own compute-optimal tokens, where one token per active parameter takes `flops_per_ratio`."""
    ratio = optimal_ratio(law, flops_per_ratio)
    # What moves the law by a factor moves its crossing with flops = flops_per_ratio r by this power of it.
    factor = math.exp(_half_width(_known(found), law, flops_per_ratio * ratio) / (1 - law.exponent))
    return Rung(
        ratio=ratio,
        low=ratio / factor,
        high=ratio * factor,
        active_params=active_params,
        tokens=round(ratio * active_params),
        flops=flops_per_ratio * ratio,
        beyond=law.beyond(flops_per_ratio * ratio),
    )


def _known(found: Sequence[BestRatio]) -> list[Known]:
    known = []
    for one in found:
        if one.optimum.interval is not None:
            interval = one.optimum.interval
            known.append(Known(f"{one.flops:.3g}", one.flops, one.optimum.value, interval.low, interval.high))
    return known


def _half_width(known: Sequence[Known], law: Law, flops: float) -> float:
    """Of the 95 percent interval of ln law(flops): the exponent's, turned about the centre of what is known."""
    assert law.exponent_high is not None, "laws that were fitted here have an interval"
    weight = np.array([one.error for one in known]) ** -2
    log_flops = np.log([one.flops for one in known])
    centre = float(np.average(log_flops, weights=weight))
    spread = float((weight * (log_flops - centre) ** 2).sum() / weight.sum())
    return (law.exponent_high - law.exponent) * math.sqrt(spread + (math.log(flops) - centre) ** 2)
