"""Which component carries how much of ln m, which pairs work together, and what is left over?

A value function gives ln m of coalitions: sets of changes that are switched on, the rest at the baseline's level. Its
values are arrays [E], the estimate first and then every bootstrap draw, so that each result carries its interval. All
that is computed here is linear in them. For a full factorial:

- first in v(i) - v(none), last in v(all) - v(all but i); the gap between them is what the rest does to i.
- Shapley value (Shapley, 1953): the mean over all orders of switching on. The values add up to v(all).
- interaction of a pair: the Shapley-Taylor index of order 2 (Sundararajan, Dhamdhere and Agarwal, ICML 2020). Of the
  published indices it is the one that adds up: v(all) is all first-in values plus all pairs, and the Shapley value of i
  is its first in plus half of its pairs. With two components it is v(12) - v(1) - v(2) + v(none), as every index is.

Partial designs are in `pairwise`, which arms form a coalition in `coalitions`, where ln m is read in `readings`.
Array legend: S coalitions, R results, E the estimate and then the draws.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from k3ablate.config import InputError
from k3ablate.fits.forms import Array
from k3ablate.fits.solve import Interval
from k3ablate.fits.uncertainty import percentile_interval

Coalition = frozenset[str]
Values = Mapping[Coalition, Array]  # coalition -> ln m [E]

NOBODY: Coalition = frozenset()
MAX_NAMED = 6  # of coalitions without a value
ROUNDING_LOG = 1e-9  # sums of ln m that are exactly zero come out below it, and no table of losses tells so little


@dataclass(frozen=True)
class Effect:
    """A term of ln m with its 95 percent interval, as logarithm and as factor; no interval without draws."""

    log: float
    log_interval: Interval | None
    factor: float
    factor_interval: Interval | None

    @property
    def told_from_one(self) -> bool:
        """Whether the interval of the factor lies on one side of 1, by more than rounding."""
        interval = self.log_interval
        return interval is not None and (interval.low > ROUNDING_LOG or interval.high < -ROUNDING_LOG)

    @property
    def is_nothing(self) -> bool:
        """Whether it is zero but for rounding, in the estimate and its interval."""
        ends = (self.log_interval.low, self.log_interval.high) if self.log_interval else ()
        return all(abs(value) <= ROUNDING_LOG for value in (self.log, *ends))


def effect(values_E: Array) -> Effect:
    """The estimate (index 0) with the middle 95 percent of its draws."""
    value = float(values_E[0])
    if len(values_E) == 1:
        return Effect(value, None, _exponential(value), None)
    interval = percentile_interval(values_E[1:])
    factors = Interval(_exponential(interval.low), _exponential(interval.high))
    return Effect(value, interval, _exponential(value), factors)


def combine(weights_RS: Array, values_SE: Array) -> Array:
    """Weighted sums [R, E]; a draw in which infinities meet is unknown, and counts against both ends in turn."""
    finite_SE = np.isfinite(values_SE)
    if finite_SE.all():
        return np.asarray(weights_RS @ values_SE, np.float64)
    assert not np.isnan(values_SE).any(), "a curve that does not reach the loss has an infinite ln m"
    sums_RE: Array = weights_RS @ np.where(finite_SE, values_SE, 0.0)
    rises_SE, falls_SE = (values_SE == np.inf).astype(float), (values_SE == -np.inf).astype(float)
    gains_RS, losses_RS = (weights_RS > 0).astype(float), (weights_RS < 0).astype(float)
    up_RE = gains_RS @ rises_SE + losses_RS @ falls_SE > 0
    down_RE = losses_RS @ rises_SE + gains_RS @ falls_SE > 0
    sums_RE[up_RE] = np.inf
    sums_RE[down_RE] = -np.inf
    unknown_RE = up_RE & down_RE
    turn_RE = np.cumsum(unknown_RE, axis=1) % 2 == 0
    sums_RE[unknown_RE & turn_RE] = np.inf
    return sums_RE


def weighted_sum(weights_S: Sequence[float] | Array, values_SE: Sequence[Array] | Array) -> Array:
    """One weighted sum [E]; see `combine`."""
    return np.asarray(combine(np.array([weights_S], dtype=np.float64), np.stack(list(values_SE)))[0], np.float64)


def difference(more_E: Array, fewer_E: Array) -> Array:
    """What the first has more than the second [E]; see `combine`."""
    return weighted_sum((1.0, -1.0), (more_E, fewer_E))


def total(terms: Sequence[Array]) -> Array:
    """The sum of all terms [E]; see `combine`."""
    return weighted_sum([1.0] * len(terms), terms)


def first_in(values: Values, change: str) -> Array | None:
    """ln m [E] that `change` brings to the baseline; None where one of the two arms is missing."""
    return _between(values, frozenset({change}), NOBODY)


def last_in(values: Values, change: str, everything: Coalition) -> Array | None:
    """ln m [E] that `change` brings to all the others; None where one of the two arms is missing."""
    return _between(values, everything, everything - {change})


def coalitions(changes: Sequence[str]) -> list[Coalition]:
    """All 2^k subsets; the place of each is the binary number of its members."""
    return [frozenset(name for bit, name in enumerate(changes) if mask >> bit & 1) for mask in range(1 << len(changes))]


def shapley(values: Values, changes: Sequence[str]) -> dict[str, Array]:
    """Shapley value [E] of every change, exact; InputError where a coalition has no value."""
    subsets, count = coalitions(changes), len(changes)
    values_SE = _stacked(values, subsets)
    weights_RS = np.zeros((count, len(subsets)))
    for row, name in enumerate(changes):
        for column, subset in enumerate(subsets):
            others = len(subset - {name})
            weight = math.factorial(others) * math.factorial(count - others - 1) / math.factorial(count)
            weights_RS[row, column] = weight if name in subset else -weight
    return dict(zip(changes, combine(weights_RS, values_SE), strict=True))


def pairs(changes: Sequence[str]) -> list[Coalition]:
    """Every pair of changes, in order."""
    return [frozenset(pair) for pair in itertools.combinations(changes, 2)]


def interactions(values: Values, changes: Sequence[str]) -> dict[Coalition, Array]:
    """Shapley-Taylor interaction [E] of every pair; InputError where a coalition has no value."""
    subsets, found = coalitions(changes), pairs(changes)
    if not found:
        return {}
    values_SE = _stacked(values, subsets)
    weights_RS = np.zeros((len(found), len(subsets)))
    for row, pair in enumerate(found):
        for column, subset in enumerate(subsets):
            others = len(subset - pair)
            weight = 2 / (len(changes) * math.comb(len(changes) - 1, others))
            weights_RS[row, column] = -weight if len(subset & pair) == 1 else weight
    return dict(zip(found, combine(weights_RS, values_SE), strict=True))


def beyond_pairs(values: Values, changes: Sequence[str]) -> Array:
    """What of v(all) [E] no single change and no pair explains: interactions of three and more."""
    weights: dict[Coalition, float] = dict.fromkeys([frozenset(changes), NOBODY], 0.0)
    weights[frozenset(changes)] += 1.0
    weights[NOBODY] -= 1.0
    for size in (1, 2):
        for names in itertools.combinations(changes, size):
            _subtract_term(weights, frozenset(names))
    return weighted_sum(list(weights.values()), [values[coalition] for coalition in weights])


def _subtract_term(weights: dict[Coalition, float], names: Coalition) -> None:
    """Subtract the Moebius term of `names`: the alternating sum over its subsets."""
    for subset in coalitions(sorted(names)):
        weights[subset] = weights.get(subset, 0.0) - (-1.0) ** (len(names) - len(subset))


def _between(values: Values, more: Coalition, fewer: Coalition) -> Array | None:
    return difference(values[more], values[fewer]) if more in values and fewer in values else None


def _stacked(values: Values, subsets: Sequence[Coalition]) -> Array:
    missing = [subset for subset in subsets if subset not in values]
    if missing:
        named = "; ".join(" + ".join(sorted(subset)) or "none" for subset in missing[:MAX_NAMED])
        raise InputError(
            f"split: {len(missing)} of {len(subsets)} coalitions have no value ({named}"
            f"{'; ...' if len(missing) > MAX_NAMED else ''}); a Shapley value needs every one: run those arms"
        )
    return np.stack([values[subset] for subset in subsets])


def _exponential(log: float) -> float:
    """The factor; beyond any number it is infinity."""
    with np.errstate(over="ignore"):
        return float(np.exp(log))
