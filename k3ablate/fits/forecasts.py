"""What does a curve say of a run that is not in the table, and how far is that from what was measured?

The interval of the curve says where its mean lies; the wider one of a run adds the noise of one more run. Neither holds
an error of the form, which grows with the factor beyond the measured range that every forecast carries.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from k3ablate.config import InputError
from k3ablate.fits.forms import Array, curve_named
from k3ablate.fits.solve import Fit, Interval
from k3ablate.fits.uncertainty import Draws, percentile_interval


@dataclass(frozen=True)
class Prediction:
    """What a curve says of a run that is not in the table, with 95 percent intervals."""

    at: Mapping[str, float]  # variable -> value
    loss: float  # in the unit of the table
    interval: Interval  # of the curve
    run_interval: Interval  # of one more run, its noise included
    extrapolated: bool
    beyond: float  # factor by which it lies outside what was measured; 1 inside


def forecast(fitted: Fit, draws: Draws, point: tuple[float, ...], noise_D: Array) -> Prediction:
    """Loss at a point, one number per variable; `noise_D` is that of one more run in ln L."""
    variables = curve_named(fitted.form).variables
    inputs = np.array([point]) if len(variables) > 1 else np.array(point)
    loss_D, beyond = draws.predict(inputs)[:, 0], fitted.beyond(point)
    return Prediction(
        at=dict(zip(variables, point, strict=True)),
        loss=float(fitted.predict(inputs)[0]),
        interval=percentile_interval(loss_D),
        run_interval=percentile_interval(loss_D * np.exp(noise_D)),
        extrapolated=beyond > 1,
        beyond=beyond,
    )


def check_point(form: str, point: tuple[float, ...]) -> None:
    """InputError where a form cannot be read there."""
    variables, written = curve_named(form).variables, ",".join(f"{value:g}" for value in point)
    if len(point) != len(variables):
        raise InputError(f"--predict {written}: {form} takes one number for each of {', '.join(variables)}")
    if not all(0 < value < np.inf for value in point):
        raise InputError(f"--predict {written}: write positive numbers, in the unit of the table")
