"""Which values does a study try first? Points of a space as a pure function of its sampler and the trial's number.

Every arm thus starts with the same trials, and a study that was interrupted goes on with the ones it would have had.
What TPE proposes after its first trials is up to Optuna (`store`). A range that was widened gets trials over the added
band, spaced evenly. Configuration of a space is in `search`.
"""

import itertools
from collections.abc import Mapping

import numpy as np
from scipy.stats import qmc

from k3ablate.search import TPE, Grid, QuasiRandom, Random, Range, Scalar, Tuning
from k3ablate.tuning.optimum import Axis

Values = Mapping[str, Scalar]  # dotted path -> value
STEP = 0.5  # by which `widened` moves an end, as a share of the range in its scale


def axis_of(one: Range) -> Axis:
    """The range as `optimum` takes it."""
    return Axis(*one.ends, one.scale)


def point(tuning: Tuning, number: int) -> dict[str, Scalar] | None:
    """The values of trial `number`, from 0; None where the sampler has to learn from those before."""
    sampler = tuning.sampler
    if isinstance(sampler, Grid):
        return _grid(tuning)[number]
    if isinstance(sampler, TPE) and number >= sampler.startup:
        return None
    return _placed(tuning.space, _places(sampler, len(tuning.space), number))


def widened(one: Range, is_upwards: bool, step: float = STEP) -> Range:
    """The range with one end moved outwards by a share of its width; a linear one stops at 0."""
    axis, low = axis_of(one), one.ends[0]
    if is_upwards:
        return one.model_copy(update={"high": _rounded(one, axis.value(1 + step))})
    moved = _rounded(one, axis.value(-step))
    if one.scale == "linear" and low >= 0:
        moved = max(0.0, moved)
    if one.whole and one.scale == "log":
        moved = max(1.0, moved)
    return one.model_copy(update={"low": moved})


def band(before: Range, after: Range, num_points: int) -> list[Scalar]:
    """Evenly spaced values of what `after` has and `before` has not, its new end included."""
    axis = axis_of(after)
    low, high = axis.positions(before.ends)
    shares = np.arange(1, num_points + 1) / num_points
    places = high + shares * (1 - high) if high < 1 else low - shares * low
    return [after.written(axis.value(float(place))) for place in places]


def _rounded(one: Range, value: float) -> float:
    return float(round(value)) if one.whole else float(f"{value:.3g}")


def _places(
    sampler: TPE | Random | QuasiRandom, num_axes: int, number: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A point of the unit cube."""
    if isinstance(sampler, Random):
        return np.random.default_rng([sampler.seed, number]).uniform(size=num_axes)
    sequence = qmc.Halton(num_axes, scramble=True, rng=np.random.default_rng(sampler.seed))
    return np.asarray(sequence.random(number + 1)[number], dtype=np.float64)


def _placed(space: Mapping[str, Range], places: np.ndarray[tuple[int], np.dtype[np.float64]]) -> dict[str, Scalar]:
    return {path: _value(one, float(place)) for (path, one), place in zip(space.items(), places, strict=True)}


def _value(one: Range, place: float) -> Scalar:
    if one.choices is not None:
        return one.choices[min(int(place * len(one.choices)), len(one.choices) - 1)]
    return one.written(axis_of(one).value(place))


def _grid(tuning: Tuning) -> list[dict[str, Scalar]]:
    """Every point, the first path slowest."""
    columns = [one.choices or _spaced(one, tuning.points_of(one)) for one in tuning.space.values()]
    return [dict(zip(tuning.space, values, strict=True)) for values in itertools.product(*columns)]


def _spaced(one: Range, num_points: int) -> tuple[Scalar, ...]:
    """Both ends and what lies evenly between; the middle where there is one point."""
    places = np.linspace(0, 1, num_points) if num_points > 1 else [0.5]
    return tuple(one.written(axis_of(one).value(float(place))) for place in places)
