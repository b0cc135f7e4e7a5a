"""Which parabola goes through the trials of a study, or the runs of a sweep, as a line to draw?

Least squares in the positions of all parameters at once, one parabola each without products, as an optimum is found
(`tuning.optimum`, which decides whether one is claimed; nothing is decided here). Along one parameter the others are
at their own minimum, or, where a parabola has none, in the middle.
"""

from dataclasses import dataclass

import numpy as np

from k3ablate.fits.forms import Array

NUM_POINTS = 60


@dataclass(frozen=True)
class Parabola:
    """Points of the curve between the lowest and the highest position tried."""

    place_K: Array
    loss_K: Array


def parabola(place_NA: Array, loss_N: Array, along: int = 0) -> Parabola | None:
    """The curve along one of A parameters through N losses; None where they do not determine it."""
    centre_A = place_NA.mean(axis=0)
    width_A = np.maximum(np.ptp(place_NA, axis=0), 1e-12)
    inner_NA = (place_NA - centre_A) / width_A
    design_NK = np.column_stack([np.ones(len(loss_N)), inner_NA, inner_NA**2])
    if len(loss_N) < design_NK.shape[1] or np.linalg.matrix_rank(design_NK) < design_NK.shape[1]:
        return None
    values_K = np.linalg.lstsq(design_NK, loss_N, rcond=None)[0]
    constant, slope_A, curve_A = values_K[0], *np.split(values_K[1:], 2)
    is_least_A = curve_A > 0
    gain_A = np.where(is_least_A, slope_A**2 / (4 * np.where(is_least_A, curve_A, 1.0)), 0.0)
    others = float(gain_A.sum() - gain_A[along])
    inner_K = np.linspace(inner_NA[:, along].min(), inner_NA[:, along].max(), NUM_POINTS)
    loss_K = constant - others + slope_A[along] * inner_K + curve_A[along] * inner_K**2
    return Parabola(centre_A[along] + width_A[along] * inner_K, loss_K)
