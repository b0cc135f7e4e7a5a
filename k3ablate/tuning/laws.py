"""How does an optimum move with size? A power law of the baseline's training FLOPs through the optima of an arm.

Straight line in logarithms, weighted by how well each optimum is known. Its interval says what that knowledge gives,
widened where three or more optima scatter further than they should; through two, which nothing checks, a law of tuned
values has none. Only optima that a curve tells, with both ends of their interval, take part: a best trial, or one at
the edge of its range, says nothing of how far off it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from k3ablate.tuned import LARGEST_LOGARITHM, Law, TunedSize

TAIL = 0.025
FEWEST = 2  # sizes
FEWEST_CHECKED = 3  # sizes whose scatter about a law can be told
SMALLEST_ERROR = 1e-6  # of a logarithm: an optimum without noise counts no more than this


@dataclass(frozen=True)
class Known:
    """An optimum with its 95 percent interval, of a parameter or of anything else that is positive."""

    size: str
    flops: float
    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Standard error of ln value, from the width of a 95 percent interval."""
        width = math.log(self.high) - math.log(self.low)
        return max(SMALLEST_ERROR, width / (2 * float(stats.norm.isf(TAIL))))


def laws(sizes: Mapping[str, TunedSize]) -> dict[str, Law]:
    """The law of every path whose optimum is known at two sizes or more; with intervals from three."""
    paths = list(dict.fromkeys(path for size in sizes.values() for path in size.paths))
    found = {path: power_law(_known(path, sizes)) for path in paths}
    return {path: _checked(law) for path, law in found.items() if law is not None}


def _checked(law: Law) -> Law:
    if len(law.sizes) >= FEWEST_CHECKED:
        return law
    return law.model_copy(update={"exponent_low": None, "exponent_high": None})


def _known(path: str, sizes: Mapping[str, TunedSize]) -> list[Known]:
    found = []
    for name, size in sizes.items():
        one = size.paths.get(path)
        if one is None or one.low is None or one.high is None or not one.is_from_curve or one.low <= 0:
            continue
        assert not isinstance(one.value, str), "a curve goes through numbers"
        found.append(Known(name, size.baseline_flops, float(one.value), one.low, one.high))
    return found


def power_law(known: Sequence[Known]) -> Law | None:
    """The law through these optima; None at fewer than two different FLOPs, or where it is too steep for a number."""
    if len({one.flops for one in known}) < FEWEST:
        return None
    log_flops = np.log([one.flops for one in known])
    log_value = np.log([one.value for one in known])
    weight = np.array([one.error for one in known]) ** -2
    centre = float(np.average(log_flops, weights=weight))
    away = log_flops - centre
    exponent = float((weight * away * log_value).sum() / (weight * away**2).sum())
    middle = float(np.average(log_value, weights=weight))
    degrees = len(known) - 2
    scatter = float((weight * (log_value - middle - exponent * away) ** 2).sum())
    excess = max(1.0, scatter / degrees) if degrees else 1.0
    quantile = float(stats.t.isf(TAIL, degrees) if degrees and excess > 1 else stats.norm.isf(TAIL))
    half_width = quantile * math.sqrt(excess / float((weight * away**2).sum()))
    if abs(middle - exponent * centre) > LARGEST_LOGARITHM:
        return None
    return Law(
        coefficient=math.exp(middle - exponent * centre),
        exponent=exponent,
        exponent_low=exponent - half_width,
        exponent_high=exponent + half_width,
        centre=math.exp(centre),
        spread=math.sqrt(float(np.average(away**2, weights=weight))),
        sizes=tuple(one.size for one in known),
        smallest=min(one.flops for one in known),
        largest=max(one.flops for one in known),
    )
