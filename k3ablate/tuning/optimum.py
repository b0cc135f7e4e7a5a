"""Where is the loss least along each parameter, by the trials of a study, and how well is that known?

One parabola per parameter, in its logarithm or in itself, all fitted together by least squares: the vertex is the
optimum. Its interval is Fieller's: all places at which the slope is not told from zero, by Student's t with the
residuals' variance, which is exact for normal noise. An end beyond the range is open: nothing was tried there. What
parameters do to each other (a product term) and the skew of a wide range are not in the curve.

`reach` takes the vertex from the trials near the best one. These are chosen by their losses, so that an interval from
them alone says too much. Where the others do not contradict them (Chow's test), they judge whether an optimum is
claimed, and the interval holds that of all trials as well; where they do, as on a cliff, the near ones stand alone, by
a stricter quantile. Of 12 trials on a planted parabola, in noise up to a third of the loss's rise over the range, the
intervals that are claimed hold the truth in 93 percent of draws or more; of 8 trials, or next to a cliff, in so much
noise, in 89. A skew within the reach is not in them.

No optimum is claimed where the parabola opens downwards, where its curvature is not told from zero or where the vertex
lies beyond what was tried: the value is then that of the best trial, and `note` says why. Nothing here knows what a
trial is, needs torch or reads a file; a law through the optima of several sizes is in `laws`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from k3ablate.fits.forms import Array
from k3ablate.fits.solve import Interval

# On either side of an interval. One is shown only where an optimum is claimed, which favours small residuals: of those
# claimed in much noise, what is 96 percent by Student's t holds the truth in 94.
TAIL = 0.02
TAIL_CHOSEN = 0.005  # of a curve through trials that were chosen by their losses alone
CONTRADICTION = 0.01  # chance that trials further out seem to be off the near ones' parabola
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
    """Where a parameter is best. Where no curve tells, `value` and `loss` are those of the best trial.

    An end of the 95 percent interval is None where nothing is claimed, and where it lies beyond the range.
    """

    value: float
    loss: float
    low: float | None
    high: float | None
    is_from_curve: bool
    is_at_edge: bool
    num_trials: int  # that the curve went through
    note: str = ""

    @property
    def interval(self) -> Interval | None:
        """Where both ends are known."""
        return None if self.low is None or self.high is None else Interval(self.low, self.high)


@dataclass(frozen=True)
class _Parabolas:
    """Coefficients about the centre: constant, then slope and curvature of each parameter."""

    values_K: Array
    covariance_KK: Array
    degrees: int
    residual: float  # sum of squares

    def of(self, axis: int) -> tuple[float, float, Array]:
        """Slope and curvature along one parameter, with their covariance."""
        pair = slice(1 + 2 * axis, 3 + 2 * axis)
        slope, curvature = map(float, self.values_K[pair])
        return slope, curvature, self.covariance_KK[pair, pair]


@dataclass(frozen=True)
class _Curve:
    """Trials, and the parabolas through them; None where they do not determine these and their noise."""

    places_NA: Array
    loss_N: Array
    centre_A: Array
    parabolas: _Parabolas | None

    @classmethod
    def through(cls, places_NA: Array, loss_N: Array) -> "_Curve":
        centre_A = places_NA.mean(axis=0)
        return cls(places_NA, loss_N, centre_A, _fit(places_NA - centre_A, loss_N))

    def near_best(self, reach: float) -> "_Curve":
        """Through the trials within `reach` of the best one along every parameter."""
        is_near_N = (np.abs(self.places_NA - self.places_NA[self.loss_N.argmin()]) <= reach).all(axis=1)
        return self if is_near_N.all() else _Curve.through(self.places_NA[is_near_N], self.loss_N[is_near_N])


def optima(
    axes: Sequence[Axis], value_NA: ArrayLike, loss_N: ArrayLike, reach: float | None = None
) -> tuple[Optimum, ...]:
    """The optimum along each of A axes by N finished trials.

    With `reach`, of the trials that lie within this share of every range from the best one, checked by the others.
    """
    values = np.asarray(value_NA, dtype=np.float64).reshape(-1, len(axes))
    losses = np.asarray(loss_N, dtype=np.float64)
    assert len(values) == len(losses) > 0, "a study with finished trials"
    places_NA = np.stack([axis.positions(values[:, index]) for index, axis in enumerate(axes)], axis=1)
    whole = _Curve.through(places_NA, losses)
    if reach is None:
        return tuple(_read(axis, index, whole, whole, TAIL) for index, axis in enumerate(axes))
    return tuple(_near(axis, index, whole, whole.near_best(reach)) for index, axis in enumerate(axes))


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
    residual = float(((loss_N - design_NK @ values_K) ** 2).sum())
    return _Parabolas(values_K, residual / degrees * np.linalg.inv(design_NK.T @ design_NK), degrees, residual)


def _near(axis: Axis, index: int, whole: _Curve, near: _Curve) -> Optimum:
    """The near trials' vertex, with an interval that stands although these were chosen by their losses."""
    if near is whole or near.parabolas is None:
        return _read(axis, index, near, whole, TAIL)
    if _is_contradicted(near, whole):
        found = _read(axis, index, near, whole, TAIL_CHOSEN)
        further = f"{len(whole.loss_N) - len(near.loss_N)} trials further out are off this curve and left out"
        return replace(found, note=f"{found.note}; {further}" if found.note else further)
    found, told = (_read(axis, index, curve, whole, TAIL) for curve in (near, whole))
    if not (told.is_from_curve and found.is_from_curve):
        return told
    low, high = (told.low, found.low), (told.high, found.high)
    return replace(
        found,
        low=None if None in low else min(end for end in low if end is not None),
        high=None if None in high else max(end for end in high if end is not None),
    )


def _is_contradicted(near: _Curve, whole: _Curve) -> bool:
    """Chow's test of further observations (1960): whether one curve through all leaves more than their noise."""
    assert near.parabolas is not None, "a curve"
    assert whole.parabolas is not None, "more trials determine it as well"
    further = len(whole.loss_N) - len(near.loss_N)
    excess = (whole.parabolas.residual - near.parabolas.residual) / further
    noise = near.parabolas.residual / near.parabolas.degrees
    return bool(excess > float(stats.f.isf(CONTRADICTION, further, near.parabolas.degrees)) * noise)


def _read(axis: Axis, index: int, curve: _Curve, whole: _Curve, tail: float) -> Optimum:
    """What `curve` says along one parameter; its trials are some of the `whole`'s."""
    if curve.parabolas is None:
        needed, num_trials = 2 * whole.places_NA.shape[1] + 2, len(curve.loss_N)
        return _best(axis, index, whole, f"{num_trials} finished trials: a curve takes {needed} or more that differ")
    slope, curvature, covariance_22 = curve.parabolas.of(index)
    if curvature <= 0:
        return _best(axis, index, whole, "the curve through the trials has no minimum")
    centre = float(curve.centre_A[index])
    place = centre - slope / (2 * curvature)
    if beyond := _beyond(place, curve.places_NA[:, index]):
        is_at_edge = bool(_beyond(place, whole.places_NA[:, index]))
        what = "everything that was tried" if is_at_edge else "the trials that it goes through"
        return _best(axis, index, whole, f"the curve's minimum lies {beyond} {what}", is_at_edge=is_at_edge)
    ends = fieller(slope, curvature, covariance_22, curve.parabolas.degrees, tail)
    if ends is None:
        return _best(axis, index, whole, "the curve's curvature is not told from zero")
    low, high = (axis.value(centre + end) if 0 <= centre + end <= 1 else None for end in ends)
    return Optimum(axis.value(place), _loss_at_minimum(curve.parabolas), low, high, True, False, len(curve.loss_N))


def _beyond(place: float, place_N: Array) -> str:
    """'below' or 'above' these places; empty among them."""
    return "below" if place < place_N.min() else "above" if place > place_N.max() else ""


def fieller(
    slope: float, curvature: float, covariance_22: Array, degrees: int, tail: float = TAIL
) -> tuple[float, float] | None:
    """Ends of the set of places x = -slope / (2 curvature) that are not excluded; None where it is not an interval.

    The set holds every x at which slope + 2 curvature x is not told from zero: a quadratic inequality in x. An end may
    be infinite.
    """
    square = float(stats.t.isf(tail, degrees)) ** 2
    leading = 4 * (curvature**2 - square * float(covariance_22[1, 1]))
    middle = 4 * (slope * curvature - square * float(covariance_22[0, 1]))
    last = slope**2 - square * float(covariance_22[0, 0])
    if leading <= 0:
        return None
    root = math.sqrt(max(0.0, middle**2 - 4 * leading * last))
    return (-middle - root) / (2 * leading), (-middle + root) / (2 * leading)


def _loss_at_minimum(parabolas: _Parabolas) -> float:
    """Of the curve, every parameter whose parabola opens upwards at its vertex, the others in the middle."""
    pairs = [parabolas.of(index)[:2] for index in range(len(parabolas.values_K) // 2)]
    return float(parabolas.values_K[0] - sum(slope**2 / (4 * curvature) for slope, curvature in pairs if curvature > 0))


def _best(axis: Axis, index: int, whole: _Curve, note: str, is_at_edge: bool = False) -> Optimum:
    """The best trial's value; at the edge too where no trial lies beyond it and others lie on this side."""
    best = int(whole.loss_N.argmin())
    place_N = whole.places_NA[:, index]
    is_outermost = place_N[best] in (place_N.min(), place_N.max()) and len(np.unique(place_N)) >= FEWEST_PLACES
    return Optimum(
        value=axis.value(float(place_N[best])),
        loss=float(whole.loss_N[best]),
        low=None,
        high=None,
        is_from_curve=False,
        is_at_edge=is_at_edge or bool(is_outermost),
        num_trials=len(place_N),
        note=note,
    )
