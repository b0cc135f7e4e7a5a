"""Do these points determine a floor at all?

`floor_range` gives the 95 percent interval of E in L = E + A C^-a by profiling: every floor whose best curve is not
significantly worse (F test of nested least-squares fits on ln L, noise from the residuals). `undetermined_floor` turns
it into a refusal: where a curve without a floor and one whose floor is half the lowest loss both pass, the points do
not tell, and neither would a number read beyond them. Few sizes, a short range of compute or much noise make it so; a
floor that is known to be near zero is none of these. The curve itself is fitted in `solve` or `joint`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from k3ablate.fits.forms import Array
from k3ablate.fits.joint import fit_joint
from k3ablate.fits.minimise import ROUNDING_SQUARE, minimise

LEAST_SQUARES = float("inf")
LEVEL = 0.05
WIDE = 0.5  # of the lowest loss: floors from none to this one all fit
NUM_FLOORS = 100
HIGHEST_FLOOR = 0.99  # of the lowest loss


def floor_range(compute: Sequence[Array], loss: Sequence[Array]) -> tuple[float, float]:
    """95 percent interval of the floor of one arm, or of that which arms with one exponent share; arms in order."""
    best = fit_joint(compute, loss, common_exponent=True, floor=None, delta=LEAST_SQUARES)
    data, held = best.data, replace(best.form, hold_floor=True)
    floors_F = np.linspace(0, HIGHEST_FLOOR, NUM_FLOORS) * np.exp(data.y_SN.min())
    starts_FP = held.starts(data, floors_F, factors=(1.0,))[0]
    y_FN = np.repeat(data.y_SN, NUM_FLOORS, axis=0)
    _, objective_F = minimise(held, y_FN, data.x_NV, starts_FP, LEAST_SQUARES)
    degrees = len(data.x_NV) - best.form.num_free
    limit = best.objective * (1 + float(stats.f.isf(LEVEL, 1, degrees)) / degrees) + ROUNDING_SQUARE
    passing = np.append(floors_F[objective_F <= limit], best.theta_P[0]) * np.exp(data.log_scale)
    return float(passing.min()), float(passing.max())


def undetermined_floor(compute: Sequence[Array], loss: Sequence[Array]) -> str | None:
    """Why these points do not determine the floor, with the numbers; None where they do."""
    lowest, (low, high) = min(float(loss_N.min()) for loss_N in loss), floor_range(compute, loss)
    if low > 0 or high <= WIDE * lowest:
        return None
    return (
        f"any floor from 0 to {high:.3g} fits these {sum(map(len, loss))} points within their noise "
        f"(95 percent; the lowest loss is {lowest:.4g})"
    )
