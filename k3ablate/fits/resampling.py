"""How would a curve through a large table move if other points had been measured?

Points are drawn again with replacement and the form is fitted to each drawing (the pairs bootstrap of Efron, Annals of
Statistics 7, 1979). That takes residuals as they are, tails and all, and asks nothing about seeds, but it says too
little where points are few. Measured on 2,000 straight lines each, the 95 percent interval of the slope holds the truth
in 90 to 91 percent for 5 to 15 points, 92 for 20, 93 for 50 and 94 to 95 from 100 on, where it is offered. Smaller
tables have the noise model of `uncertainty`.
"""

import numpy as np

from k3ablate.config import InputError
from k3ablate.fits.forms import Array
from k3ablate.fits.solve import Fit
from k3ablate.fits.uncertainty import NUM_DRAWS, Draws, refit_losses

MIN_POINTS = 100
METHOD = "bootstrap over points"  # how intervals from here are named


def resample(
    fit: Fit, inputs: Array, loss_N: Array, generator: np.random.Generator, num_draws: int = NUM_DRAWS
) -> Draws:
    """The curve of `fit` through its points drawn again with replacement; InputError for fewer than MIN_POINTS."""
    num_points = len(loss_N)
    if num_points < MIN_POINTS:
        raise InputError(
            f"resampling: {num_points} points; from fewer than {MIN_POINTS} it gives intervals that hold the truth too "
            "seldom: take those of the noise model (--intervals noise), which seeds make sharper"
        )
    weight_DN = generator.multinomial(num_points, np.full(num_points, 1 / num_points), num_draws).astype(np.float64)
    return refit_losses(fit, inputs, np.broadcast_to(np.log(loss_N), weight_DN.shape), weight_DN)
