"""Where is the loss least along each parameter, by the trials of a study, and how well is that known?

One parabola per parameter, in its logarithm or in itself, all fitted together by least squares: the vertex is the
optimum. Its interval is Fieller's: all places at which the slope is not told from zero, by Student's t with the
residuals' variance, which is exact for normal noise. What parameters do to each other (a product term) and the skew of
a wide range are not in the curve and widen the interval as residuals; `reach` keeps the trials near the best one.

No optimum is claimed where the parabola opens downwards, where its curvature is not told from zero or where the vertex
lies beyond what was tried: the value is then that of the best trial, and `note` says why. Nothing here knows what a
trial is, needs torch or reads a file; a law through the optima of several sizes is in `laws`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from k3ablate.fits.forms import Array
from k3ablate.fits.solve import Interval

TAIL = 0.025
FEWEST_PLACES = 3  # distinct values along one parameter


@dataclass(frozen=True)
class Axis:
    """One parameter, the range in which it was tried, and whether its logarithm or itself is the natural distance."""

    low: float
    high: float
    scale: Literal["log", "linear"] = "log"

    def positions(self, value_N: ArrayLike) -> Array:
        """Values as shares of the range: 0 at its low end, 1 at its high end."""
        low, value, high = (
            np.asarray(self._inner(value), dtype=np.float64) for value in (self.low, value_N, self.high)
        )
        return np.asarray((value - low) / (high - low), dtype=np.float64)

    def value(self, position: float) -> float:
        """The value at a position."""
        low, high = float(self._inner(self.low)), float(self._inner(self.high))
        inner = low + position * (high - low)
        return float(np.exp(inner)) if self.scale == "log" else inner

    def _inner(self, value: ArrayLike) -> Array:
        return np.log(value) if self.scale == "log" else np.asarray(value, dtype=np.float64)


@dataclass(frozen=True)
class Optimum:
    """Where a parameter is best. Where no curve tells, `value` and `loss` are those of the best trial."""

    value: float
    loss: float
    interval: Interval | None
    is_from_curve: bool
    is_at_edge: bool
    num_trials: int  # that the curve went through
    note: str = ""


@dataclass(frozen=True)
class _Parabolas:
    """Coefficients about the centre: constant, then slope and curvature of each parameter."""

    values_K: Array
    covariance_KK: Array
    degrees: int

    def of(self, axis: int) -> tuple[Array, Array]:
        """Slope and curvature along one parameter, with their covariance."""
        pair = slice(1 + 2 * axis, 3 + 2 * axis)
        return self.values_K[pair], self.covariance_KK[pair, pair]


def optima(
    axes: Sequence[Axis], value_NA: ArrayLike, loss_N: ArrayLike, reach: float | None = None
) -> tuple[Optimum, ...]:
    """The optimum along each of A axes by N finished trials.

    With `reach`, only trials are used that lie within this share of every range from the best one.
    """
    values = np.asarray(value_NA, dtype=np.float64).reshape(-1, len(axes))
    losses = np.asarray(loss_N, dtype=np.float64)
    assert len(values) == len(losses) > 0, "a study with finished trials"
    places_NA = np.stack([axis.positions(values[:, index]) for index, axis in enumerate(axes)], axis=1)
    best = int(losses.argmin())
    if reach is not None:
        is_near_N = (np.abs(places_NA - places_NA[best]) <= reach).all(axis=1)
        places_NA, losses = places_NA[is_near_N], losses[is_near_N]
    centre_A = places_NA.mean(axis=0)
    parabolas = _fit(places_NA - centre_A, losses)
    trials = _Trials(places_NA, losses, centre_A)
    return tuple(_optimum(axis, index, parabolas, trials, len(axes)) for index, axis in enumerate(axes))


@dataclass(frozen=True)
class _Trials:
    places_NA: Array
    loss_N: Array
    centre_A: Array


def _fit(place_NA: Array, loss_N: Array) -> _Parabolas | None:
    """None where the trials do not determine the curve and its noise."""
    terms = [np.ones_like(loss_N)]
    for place_N in place_NA.T:
        terms += [place_N, place_N**2]
    design_NK = np.stack(terms, axis=1)
    degrees = len(loss_N) - design_NK.shape[1]
    if degrees < 1 or np.linalg.matrix_rank(design_NK) < design_NK.shape[1]:
        return None
    values_K = np.asarray(np.linalg.lstsq(design_NK, loss_N, rcond=None)[0], dtype=np.float64)
    variance = float(((loss_N - design_NK @ values_K) ** 2).sum()) / degrees
    return _Parabolas(values_K, variance * np.linalg.inv(design_NK.T @ design_NK), degrees)


def _optimum(axis: Axis, index: int, parabolas: _Parabolas | None, trials: _Trials, num_axes: int) -> Optimum:
    place_N = trials.places_NA[:, index]
    if parabolas is None:
        needed = 2 * num_axes + 2
        return _best(axis, index, trials, f"{len(place_N)} finished trials: a curve takes {needed} or more that differ")
    (slope, curvature), covariance_22 = parabolas.of(index)
    if curvature <= 0:
        return _best(axis, index, trials, "the curve through the trials has no minimum")
    vertex = float(-slope / (2 * curvature))
    place = vertex + trials.centre_A[index]
    if not place_N.min() <= place <= place_N.max():
        side = "above" if place > place_N.max() else "below"
        return _best(axis, index, trials, f"the curve's minimum lies {side} everything that was tried", is_at_edge=True)
    ends = fieller(slope, curvature, covariance_22, parabolas.degrees)
    if ends is None:
        return _best(axis, index, trials, "the curve's curvature is not told from zero")
    low, high = (axis.value(end + float(trials.centre_A[index])) for end in ends)
    return Optimum(axis.value(place), _loss_at_minimum(parabolas, num_axes), Interval(low, high), True, False,
                   len(place_N))  # fmt: skip


def fieller(slope: float, curvature: float, covariance_22: Array, degrees: int) -> tuple[float, float] | None:
    """Ends of the 95 percent set of -slope / (2 curvature); None where it is not an interval.

    The set holds every x at which slope + 2 curvature x is not told from zero: a quadratic inequality in x.
    """
    square = float(stats.t.isf(TAIL, degrees)) ** 2
    leading = 4 * (curvature**2 - square * covariance_22[1, 1])
    middle = 4 * (slope * curvature - square * covariance_22[0, 1])
    last = slope**2 - square * covariance_22[0, 0]
    if leading <= 0:
        return None
    root = np.sqrt(max(0.0, middle**2 - 4 * leading * last))
    return float((-middle - root) / (2 * leading)), float((-middle + root) / (2 * leading))


def _loss_at_minimum(parabolas: _Parabolas, num_axes: int) -> float:
    """Of the curve, every parameter whose parabola opens upwards at its vertex, the others in the middle."""
    gains = [
        slope**2 / (4 * curvature)
        for slope, curvature in (parabolas.of(index)[0] for index in range(num_axes))
        if curvature > 0
    ]
    return float(parabolas.values_K[0] - sum(gains))


def _best(axis: Axis, index: int, trials: _Trials, note: str, is_at_edge: bool = False) -> Optimum:
    """The best trial's value; at the edge too where no trial lies beyond it and others lie on this side."""
    best = int(trials.loss_N.argmin())
    place_N = trials.places_NA[:, index]
    is_outermost = place_N[best] in (place_N.min(), place_N.max()) and len(np.unique(place_N)) >= FEWEST_PLACES
    return Optimum(
        value=axis.value(float(place_N[best])),
        loss=float(trials.loss_N[best]),
        interval=None,
        is_from_curve=False,
        is_at_edge=is_at_edge or bool(is_outermost),
        num_trials=len(place_N),
        note=note,
    )
