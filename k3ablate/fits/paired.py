"""How many times more compute does the baseline need, by runs of equal size and seed?

Such runs have much of their noise in common (the same data in the same order), so that their difference of ln L is
known better than either loss. `paired_multiplier` turns the differences into compute with the exponent that both arms
share; it is an average over the sizes, and shown beside the reading from fitted curves (`multiplier`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import stats

from k3ablate.config import InputError
from k3ablate.fits.forms import Array
from k3ablate.fits.solve import LARGEST_LOG, Interval
from k3ablate.fits.uncertainty import TAIL


@dataclass(frozen=True)
class Point:
    """One finished run: compute (FLOPs) and loss (nats per token) with the labels that pair it."""

    size: str
    seed: int
    compute: float
    loss: float


@dataclass(frozen=True)
class Paired:
    """Multiplier from runs of equal size and seed, with the common exponent that turned loss into compute."""

    value: float
    interval: Interval
    fixed_exponent_interval: Interval  # noise of the differences alone, as published pairings state it
    num_pairs: int
    exponent: float
    p_value: float  # of no gain and no loss, by Student's t over the pairs
    floor: float = 0.0  # what was taken off every loss first


def paired_multiplier(baseline: Sequence[Point], arm: Sequence[Point], floor: float = 0.0) -> Paired | None:
    """Mean over pairs of equal (size, seed) of ln m = difference of ln L / a + difference of ln C, with a t interval.

    L is the loss above `floor`. The exponent a is the slope of ln L over ln C common to both arms (least squares, an
    intercept each). Its own uncertainty enters by the delta method. None below two pairs, with a single size, or where
    loss does not fall or so little that no number holds the ratio. InputError where a loss is not above the floor.
    """
    others = {(point.size, point.seed): point for point in baseline}
    pairs = [(others[point.size, point.seed], point) for point in arm if (point.size, point.seed) in others]
    if len(pairs) < 2:
        return None
    if not 0 <= floor < min(point.loss for pair in pairs for point in pair):
        raise InputError(f"paired multiplier: floor {floor}; write 0 or more, and less than the lowest loss")
    log_compute_2N = np.log([[pair[side].compute for pair in pairs] for side in (0, 1)])
    log_loss_2N = np.log([[pair[side].loss - floor for pair in pairs] for side in (0, 1)])
    slope = _common_slope(log_compute_2N, log_loss_2N)
    if slope is None:
        return None
    exponent, exponent_error = slope
    from_loss_N = (log_loss_2N[0] - log_loss_2N[1]) / exponent
    log_ratio_N = from_loss_N + log_compute_2N[0] - log_compute_2N[1]
    spread = float(log_ratio_N.std(ddof=1) / np.sqrt(len(pairs)))
    from_exponent = float(from_loss_N.mean() * exponent_error / exponent)
    centre = float(log_ratio_N.mean())
    if abs(centre) > LARGEST_LOG:
        return None
    error, degrees = float(np.hypot(spread, from_exponent)), len(pairs) - 1
    return Paired(
        value=float(np.exp(centre)),
        interval=t_interval(centre, error, degrees),
        fixed_exponent_interval=t_interval(centre, spread, degrees),
        num_pairs=len(pairs),
        exponent=exponent,
        p_value=two_sided(centre, error, degrees),
        floor=floor,
    )


def t_interval(centre: float, error: float, degrees: int) -> Interval:
    """95 percent interval of exp(centre), by Student's t."""
    half_width = _critical(degrees) * error
    return exponential(centre - half_width, centre + half_width)


@cache
def _critical(degrees: int) -> float:
    """Student's t at 95 percent; simulated tables ask for one of them thousands of times."""
    return float(stats.t.isf(TAIL, degrees))


def two_sided(centre: float, error: float, degrees: float) -> float:
    """Probability of a t value as far from 0; noiseless values are either 0 or surely not."""
    if error == 0:
        return 1.0 if centre == 0 else 0.0
    return float(2 * stats.t.sf(abs(centre) / error, degrees))


def exponential(low: float, high: float) -> Interval:
    """The interval of factors; nearly flat curves give ends beyond any number, which are 0 and infinity."""
    with np.errstate(over="ignore"):
        return Interval(float(np.exp(low)), float(np.exp(high)))


def _common_slope(log_compute_2N: Array, log_loss_2N: Array) -> tuple[float, float] | None:
    """Exponent common to both rows and its standard error; None where compute does not vary or loss does not fall."""
    x_2N = log_compute_2N - log_compute_2N.mean(axis=1, keepdims=True)
    y_2N = log_loss_2N - log_loss_2N.mean(axis=1, keepdims=True)
    spread = float((x_2N**2).sum())
    if spread < 1e-9:
        return None
    exponent = -float((x_2N * y_2N).sum()) / spread
    if exponent <= 0:
        return None
    # the two rows share noise, so that residuals are averaged over them before their deviation is taken
    residual_N = (y_2N + exponent * x_2N).mean(axis=0)
    degrees = max(residual_N.size - 2, 1)
    return exponent, float(np.sqrt((residual_N**2).sum() / degrees / (spread / 2)))
