"""Do these points determine a floor at all?

`floor_range` gives the 95 percent interval of E in L = E + A C^-a by profiling: every floor whose best curve is not
significantly worse (F test of nested least-squares fits on ln L, noise from the residuals). `undetermined_floor` turns
it into a refusal: where a curve without a floor and one whose floor is half the lowest loss both pass, the points do
not tell, and neither would a number read beyond them. Few sizes, a short range of compute or much noise make it so; a
floor that is known to be near zero, or at that bound, is none of these. Curves are fitted in `solve` and `joint`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import stats

from k3ablate.config import InputError
from k3ablate.fits.forms import Array
from k3ablate.fits.joint import JointForm
from k3ablate.fits.minimise import ROUNDING_SQUARE, scale

LEAST_SQUARES = float("inf")
LEVEL = 0.05
ROUNDING = 1e-9  # relative
WIDE = 0.5  # of the lowest loss: floors from none to this one all fit
NUM_FLOORS = 100
HIGHEST_FLOOR = 0.99  # of the lowest loss


class FloorRange(NamedTuple):
    """The best floor and its 95 percent interval, in the unit of the losses."""

    low: float
    best: float
    high: float


def floor_range(compute: Sequence[Array], loss: Sequence[Array]) -> FloorRange:
    """95 percent interval of the floor of one arm, or of that which arms with one exponent share; arms in order."""
    free = JointForm(tuple(map(len, compute)), common_exponent=True)
    data = scale(np.log(np.concatenate(compute))[:, None], np.log(np.concatenate(loss))[None])
    floors_F = np.linspace(0, HIGHEST_FLOOR, NUM_FLOORS) * np.exp(data.y_SN.min())
    starts_FP, y_FN = free.starts(data, floors_F, factors=(1.0,))[0], np.repeat(data.y_SN, NUM_FLOORS, axis=0)
    theta_FP, objective_F = replace(free, hold_floor=True).minimise(y_FN, data.x_NV, starts_FP, LEAST_SQUARES)
    lowest = int(objective_F.argmin())
    theta_SP, objective_S = free.minimise(data.y_SN, data.x_NV, theta_FP[lowest : lowest + 1], LEAST_SQUARES)
    best, degrees = float(theta_SP[0, 0]), len(data.x_NV) - free.num_free
    critical = objective_S[0] * float(stats.f.isf(LEVEL, 1, degrees)) / degrees + ROUNDING_SQUARE
    ends = [
        _crossing(best, floors_F[side], objective_F[side] - objective_S[0], critical)
        for side in (np.flatnonzero(floors_F < best)[::-1], np.flatnonzero(floors_F > best))
    ]
    return FloorRange(*(float(floor * np.exp(data.log_scale)) for floor in (ends[0], best, ends[1])))


def _crossing(best: float, floors_F: Array, excess_F: Array, critical: float) -> float:
    """Where the profile, from the best floor outwards, rises to the critical excess; the last floor if it does not."""
    # near its minimum a profile is a parabola, whose root is straight
    height_F = np.sqrt(np.maximum.accumulate(np.maximum(excess_F, 0.0)))
    return float(np.interp(np.sqrt(critical), np.append(0.0, height_F), np.append(best, floors_F)))


def refuse_undetermined_floor(compute_N: Array, loss_N: Array) -> None:
    """InputError with the numbers where the points of one arm leave its floor open."""
    reason = undetermined_floor([compute_N], [loss_N])
    if reason:
        raise InputError(
            f"power_floor: undetermined: {reason}; add sizes over a wider range of compute, ask for the form power, or "
            "share the floor among arms (shared_floor)"
        )


def undetermined_floor(compute: Sequence[Array], loss: Sequence[Array]) -> str | None:
    """Why these points do not determine the floor, with the numbers; None where they do."""
    lowest, found = min(float(loss_N.min()) for loss_N in loss), floor_range(compute, loss)
    at_bound = found.best <= ROUNDING * lowest  # the points ask for less than no floor, which the fit says by itself
    if at_bound or found.low > 0 or found.high <= WIDE * lowest:
        return None
    return (
        f"any floor from 0 to {found.high:.3g} fits these {sum(map(len, loss))} points within their noise "
        f"(95 percent; the lowest loss is {lowest:.4g})"
    )
