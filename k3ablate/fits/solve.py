"""What are the parameters of a curve through these losses, and how far may they be trusted?

`fit` minimises the SUM of Huber terms on ln L residuals (statistics.md, section 3) from many starts, refuses points
that cannot determine the form, and returns the curve with its diagnostics. Intervals are not made here (see
`uncertainty` and `resampling`), the minimum is not searched here (see `levelled`), and which points are refused stands
in `determined`.

What is minimised is one choice, `delta`: 1e-3 by default, infinity is least squares, 0 least absolute deviations (the
sum of |residual|, not divided by anything). `residuals="plain"` takes residuals of L instead of ln L, which is what
`scipy.optimize.curve_fit` minimises and what some reports print.

The Chinchilla points show why the objective belongs beside the numbers. On the 240 points of Besiroglu et al. (arXiv
2404.10102) the Huber minimum is E 1.81722, A 477.826, B 2143.417, alpha .34731, beta .36717; least absolute deviations
give E 1.81686, A 482.01, B 2085.4, alpha .34781, beta .36585. The published set (1.8172, 482.01, 2085.43, .3478, .3658)
is a mixture, E of the one and the rest of the other, and lies 0.45 percent above the Huber minimum: its authors fit
a scale as well, which shrank until Huber's function had become the absolute value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from k3ablate.config import InputError
from k3ablate.fits.determined import condition_number, refuse_undetermined
from k3ablate.fits.floors import refuse_undetermined_floor
from k3ablate.fits.forms import LOG_COEFFICIENT_RANGE, POWER_FLOOR, VANISHED, Array, Form, curve_named, form_named
from k3ablate.fits.levelled import least
from k3ablate.fits.minimise import (
    LEAST_ABSOLUTE_DELTA,
    ROUNDING_SQUARE,
    SAME_OBJECTIVE,
    Residuals,
    Scaled,
    grid_starts,
    random_starts,
    residual,
    scale,
)

DEFAULT_DELTA = 1e-3
LEAST_SQUARES = float("inf")
LEAST_ABSOLUTE = 0.0
NUM_RANDOM_STARTS = 32
ILL_CONDITIONED = 1e4  # of a curve
ILL_CONDITIONED_SURFACE = 100.0  # of a form of several variables, which `determined` refuses from 1000 on
ROUNDING = 1e-9  # relative: a point this close to the end of the measured range lies in it
LARGEST_LOG = 700.0  # of a compute or a ratio of computes: floats end at e^709


@dataclass(frozen=True)
class Interval:
    """A 95 percent interval."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Whether `value` lies in it, ends included."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Fit:
    """A fitted curve with everything that says how far to trust it. Inputs are in the unit of the data."""

    form: str
    values: Mapping[str, float]
    objective: float  # sum of Huber terms; half the sum of squares where delta is infinite, of sizes where it is 0
    delta: float
    num_points: int
    ranges: Mapping[str, tuple[float, float]]  # variable -> lowest and highest measured
    clipped_share: float  # of points further than delta from the curve
    num_starts: int
    converged_share: float  # of starts that reached the best objective
    at_bounds: tuple[str, ...]
    condition_number: float  # of the Jacobian with columns of unit length
    dropped: tuple[str, ...] = ()  # rows that were not used, with the reason
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    interval_method: str = "none"
    warnings: tuple[str, ...] = ()
    residuals: Residuals = "log"  # what the objective is of

    @property
    def x_range(self) -> tuple[float, float]:
        """Lowest and highest compute measured, for a curve of compute."""
        return self.ranges["compute"]

    def predict(self, inputs: ArrayLike) -> Array:
        """Loss at each input; several variables lie on the last axis."""
        return curve_named(self.form).predict(self.values, np.asarray(inputs, dtype=np.float64))

    def beyond(self, point: Sequence[float]) -> float:
        """Largest factor by which a point, one number per variable, lies outside what was measured; 1 inside."""
        factors = [
            max(value / high, low / value) for value, (low, high) in zip(point, self.ranges.values(), strict=True)
        ]
        return max(factors) if max(factors) > 1 + ROUNDING else 1.0

    def compute_at(self, loss: float) -> float:
        """Compute at which the curve reaches `loss`; InputError where it never does, or where no number holds it."""
        as_arrays = {name: np.array([value]) for name, value in self.values.items()}
        (log_compute,) = curve_named(self.form).log_compute_at(as_arrays, loss)
        if not np.isfinite(log_compute):
            floor = self.values.get("E", 0.0)
            raise InputError(
                f"loss {loss:.6g}: no compute reaches it on this {self.form} curve; ask above E = {floor:.6g}"
            )
        if abs(log_compute) > LARGEST_LOG:
            raise InputError(
                f"loss {loss:.6g}: this {self.form} curve is so flat that it reaches it at compute "
                f"1e{log_compute / np.log(10):+.0f}; more sizes and seeds tell its slope"
            )
        return float(np.exp(log_compute))


def fit(
    inputs: ArrayLike, loss: ArrayLike, form: str, delta: float = DEFAULT_DELTA, dropped: tuple[str, ...] = (),
    residuals: Residuals = "log", generator: np.random.Generator | None = None,
) -> Fit:  # fmt: skip
    """Fit `form` to losses [N] at inputs [N], or [N, V] where the form has several variables; any unit.

    `delta` infinite is least squares, 0 least absolute deviations. Starts come from a grid, or, with a `generator`, at
    random. InputError where a number is not positive and finite, or where the points cannot determine the form.
    """
    surface = form_named(form)
    x_NV, loss_N = _inputs(surface, inputs), _checked(loss, "loss")
    if len(x_NV) != len(loss_N):
        names = " and ".join(surface.variables)
        raise InputError(f"{names} has {len(x_NV)} values and loss {len(loss_N)}; give one of each per point")
    if not delta >= 0:
        raise InputError(f"delta: found {delta}; write a positive number, inf for least squares, or 0 for least "
                         "absolute deviations")  # fmt: skip
    warnings = refuse_undetermined(surface, x_NV)
    if surface is POWER_FLOOR:
        refuse_undetermined_floor(x_NV[:, 0], loss_N)
    data = scale(np.log(x_NV), np.log(loss_N)[None])
    starts_GP = _starts(surface, data, generator)
    # plain residuals are those of the scaled loss: delta in its unit, the objective in its square
    unit = np.exp(data.log_scale) if residuals == "plain" else 1.0
    y_GN = np.repeat(data.y_SN, len(starts_GP), axis=0)
    theta_GP, objective_G = least(surface, y_GN, data.x_NV, starts_GP, delta / unit, of=residuals)
    fitted = _described(surface, data, theta_GP, objective_G, delta / unit, residuals, x_NV)
    return replace(
        fitted,
        delta=float(delta),
        objective=float(fitted.objective * unit ** (2 if delta else 1)),
        dropped=dropped,
        warnings=(*warnings, *fitted.warnings),
    )


def _starts(form: Form, data: Scaled, generator: np.random.Generator | None) -> Array:
    if generator is None:
        return np.asarray(grid_starts(form, data)[0])
    return np.asarray(random_starts(form, data, NUM_RANDOM_STARTS, generator)[0])


def _described(
    form: Form, data: Scaled, theta_GP: Array, objective_G: Array, delta: float, residuals: Residuals, x_NV: Array
) -> Fit:
    """The Fit of the best of the starts, with its diagnostics, in the solver's unit of loss."""
    best = int(np.argmin(objective_G))
    theta_SP, lowest = theta_GP[best : best + 1], float(objective_G[best])
    _, jacobian_SNP = form.log_prediction(theta_SP, data.x_NV)
    natural = form.natural(theta_SP, data.centre_V, data.log_scale)
    at_bounds, condition = _at_bounds(form, theta_SP[0]), condition_number(jacobian_SNP[0])
    left_over_SN = residual(form, theta_SP, data.y_SN, data.x_NV, residuals)
    # rounding of a perfect fit is not a difference between minima
    same = lowest * (1 + SAME_OBJECTIVE) + (ROUNDING_SQUARE if delta else len(x_NV) * LEAST_ABSOLUTE_DELTA)
    return Fit(
        form=form.name,
        values={name: float(natural[name][0]) for name in form.parameters},
        objective=lowest,
        delta=delta,
        num_points=len(x_NV),
        ranges={name: (float(x_N.min()), float(x_N.max())) for name, x_N in zip(form.variables, x_NV.T, strict=True)},
        clipped_share=float(np.mean(np.abs(left_over_SN) > delta)),
        num_starts=len(objective_G),
        converged_share=float(np.mean(objective_G <= same)),
        at_bounds=at_bounds,
        condition_number=condition,
        warnings=_warnings(form, at_bounds, condition, int(np.sum(objective_G <= same))),
        residuals=residuals,
    )


def _warnings(form: Form, at_bounds: tuple[str, ...], condition: float, num_there: int) -> tuple[str, ...]:
    warnings = []
    if at_bounds:
        warnings.append(f"{', '.join(at_bounds)} at a bound: this form does not suit the points")
    if condition > (ILL_CONDITIONED if len(form.variables) == 1 else ILL_CONDITIONED_SURFACE):
        warnings.append(f"parameters hardly told apart by these points (condition number {condition:.1e})")
    if num_there == 1:
        warnings.append("one start alone reached this objective: there may be a lower one")
    return tuple(warnings)


def _inputs(form: Form, inputs: ArrayLike) -> Array:
    """Inputs [N, V], every column checked."""
    array = np.asarray(inputs, dtype=np.float64)
    columns = [array] if len(form.variables) == 1 else list(array.T)
    if len(columns) != len(form.variables) or array.ndim != (1 if len(form.variables) == 1 else 2):
        raise InputError(
            f"{form.name}: inputs of shape {array.shape}; it takes one column each of {', '.join(form.variables)}"
        )
    return np.stack([_checked(column, name) for name, column in zip(form.variables, columns, strict=True)], axis=1)


def _checked(values: ArrayLike, name: str) -> Array:
    """The values as floats; the first that has no logarithm is an InputError."""
    array = np.asarray(values, dtype=np.float64)
    bad = np.flatnonzero(~(np.isfinite(array) & (array > 0)))
    if len(bad):
        raise InputError(
            f"{name}: point {bad[0]} is {array[bad[0]]}, and a logarithm is taken; "
            f"leave out runs that have no positive, finite {name}"
        )
    return array


def _at_bounds(form: Form, theta_P: Array) -> tuple[str, ...]:
    """Names of the parameters at a bound, and of power terms that have vanished."""
    lower_P, upper_P = form.bounds()
    lower_P = np.where(lower_P == LOG_COEFFICIENT_RANGE[0], VANISHED, lower_P)
    near_P = (theta_P <= lower_P + 1e-9) | (theta_P >= upper_P - 1e-9)
    return tuple(name for name, near in zip(form.parameters, near_P, strict=True) if near)
