"""How far apart in compute are two lines at equal height, where heights are not losses?

A figure without numbers on its loss axis, like Figure 7 of the Kimi K3 report, gives heights with an unknown zero and
unit: no logarithm of a loss can be taken, but curves that are straight over ln C still have an equal-height ratio of
compute. `line_ratio` reads it from points, with a common slope or two, and an interval by the delta method and
Student's t; `equal_slopes` tests the common one; `drawn_ratio` reads it from curves that are given as drawn. ln L of
pure power laws serves as height too. Where losses are known, use `analysis`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from k3ablate.config import InputError
from k3ablate.fits.forms import Array
from k3ablate.fits.hypotheses import FTest, f_test
from k3ablate.fits.solve import ROUNDING, Interval

TAIL = 0.025


@dataclass(frozen=True)
class Heights:
    """Heights [N], in any unit and from any zero, at compute [N]."""

    compute: Array
    height: Array


@dataclass(frozen=True)
class LineRatio:
    """Compute of the baseline over that of the arm at one height."""

    value: float
    interval: Interval
    height: float
    slopes: tuple[float, float]  # height per factor e of compute, of the baseline and of the arm
    degrees_of_freedom: int
    beyond: float  # factor by which the reading lies outside the measured compute of either; 1 inside

    @property
    def measured(self) -> bool:
        """Whether both lines were measured at this height."""
        return self.beyond == 1.0


def heights(compute: ArrayLike, height: ArrayLike) -> Heights:
    """Heights at compute in any unit; InputError where a compute is not positive or a number not finite."""
    compute_N, height_N = np.asarray(compute, dtype=np.float64), np.asarray(height, dtype=np.float64)
    if not (np.isfinite(compute_N) & (compute_N > 0) & np.isfinite(height_N)).all():
        raise InputError("lines: every point needs a positive compute and a finite height")
    return Heights(compute_N, height_N)


def line_ratio(baseline: Heights, arm: Heights, common_slope: bool, height: float | None = None) -> LineRatio:
    """Ratio at `height` (default: the lowest that both lines reach where they were measured) by least squares.

    InputError where a line does not fall, or where points are no more than the parameters.
    """
    lines = _fit(baseline, arm, common_slope)
    slopes_2 = lines.values_P[2:] if not common_slope else np.repeat(lines.values_P[2:], 2)
    if (slopes_2 >= 0).any():
        raise InputError(f"lines: slopes {slopes_2[0]:.3g} and {slopes_2[1]:.3g}; both must fall with compute")
    tops_2 = [np.log(part.compute.max()) - lines.centre for part in (baseline, arm)]
    at = float(max(lines.values_P[:2] + slopes_2 * tops_2)) if height is None else height
    log_compute_2 = (at - lines.values_P[:2]) / slopes_2
    gradient_2P = -lines.parameters_2P(log_compute_2) / slopes_2[:, None]
    gradient_P = gradient_2P[0] - gradient_2P[1]
    centre, error = float(log_compute_2[0] - log_compute_2[1]), np.sqrt(gradient_P @ lines.covariance_PP @ gradient_P)
    half_width = float(stats.t.isf(TAIL, lines.degrees) * error)
    read_2 = np.exp(log_compute_2 + lines.centre)
    return LineRatio(
        value=float(np.exp(centre)),
        interval=Interval(float(np.exp(centre - half_width)), float(np.exp(centre + half_width))),
        height=at,
        slopes=(float(slopes_2[0]), float(slopes_2[1])),
        degrees_of_freedom=lines.degrees,
        beyond=max(_beyond(part, compute) for part, compute in zip((baseline, arm), read_2, strict=True)),
    )


def equal_slopes(baseline: Heights, arm: Heights) -> FTest:
    """F test of one slope against two, with the noise of the two lines' residuals."""
    one, two = _fit(baseline, arm, True), _fit(baseline, arm, False)
    return f_test(one.squares, two.squares, 1, two.squares / two.degrees, two.degrees)


def drawn_ratio(baseline: Heights, arm: Heights) -> tuple[Array, Array]:
    """Heights that both drawn curves pass, and the ratio at each, by straight lines between neighbouring vertices."""
    shared = max(part.height.min() for part in (baseline, arm)), min(part.height.max() for part in (baseline, arm))
    every_H = np.sort(np.concatenate([baseline.height, arm.height]))
    at_H = every_H[(every_H >= shared[0]) & (every_H <= shared[1])]
    if not len(at_H):
        raise InputError("lines: the two drawn curves pass no height in common")
    return at_H, np.exp(_drawn_log_compute(baseline, at_H) - _drawn_log_compute(arm, at_H))


@dataclass(frozen=True)
class _Lines:
    """Two fitted lines: heights at the centre of ln C, then the slope, or both slopes."""

    values_P: Array
    covariance_PP: Array
    squares: float
    degrees: int
    centre: float  # of ln C

    def parameters_2P(self, log_compute_2: Array) -> Array:  # noqa: N802
        """Derivative of each line's height at centred ln C by the parameters."""
        return _design(log_compute_2, np.array([0, 1]), len(self.values_P) == 3)


def _fit(baseline: Heights, arm: Heights, common_slope: bool) -> _Lines:
    log_compute_N = np.log(np.concatenate([baseline.compute, arm.compute]))
    height_N = np.concatenate([baseline.height, arm.height])
    line_N = np.repeat([0, 1], [len(baseline.compute), len(arm.compute)])
    centre = float(log_compute_N.mean())
    design_NP = _design(log_compute_N - centre, line_N, common_slope)
    degrees = len(height_N) - design_NP.shape[1]
    if degrees < 1 or np.linalg.matrix_rank(design_NP) < design_NP.shape[1]:
        raise InputError(f"lines: {len(height_N)} points do not determine {design_NP.shape[1]} parameters; add points")
    values_P, _, _, _ = np.linalg.lstsq(design_NP, height_N, rcond=None)
    squares = float(((height_N - design_NP @ values_P) ** 2).sum())
    covariance_PP = squares / degrees * np.linalg.inv(design_NP.T @ design_NP)
    return _Lines(values_P, covariance_PP, squares, degrees, centre)


def _design(log_compute_N: Array, line_N: Array, common_slope: bool) -> Array:
    member_N2 = (line_N[:, None] == [0, 1]).astype(np.float64)
    slopes = log_compute_N[:, None] if common_slope else member_N2 * log_compute_N[:, None]
    return np.concatenate([member_N2, slopes], axis=1)


def _beyond(part: Heights, compute: float) -> float:
    factor = float(max(compute / part.compute.max(), part.compute.min() / compute))
    return factor if factor > 1 + ROUNDING else 1.0


def _drawn_log_compute(part: Heights, at_H: Array) -> Array:
    order = np.argsort(part.height)
    return np.interp(at_H, part.height[order], np.log(part.compute[order]))
