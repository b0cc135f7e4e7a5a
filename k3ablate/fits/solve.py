"""What are the parameters of a curve through these losses, and how far may they be trusted?

`fit` minimises the SUM of Huber terms on ln L residuals (statistics.md, section 3) from many starts, refuses points
that cannot determine the form, and returns the curve with its diagnostics. Intervals are not made here (see
`uncertainty`), nor is the minimum searched here (see `minimise`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from k3ablate.config import InputError
from k3ablate.fits.forms import Array, Form, form_named
from k3ablate.fits.minimise import Scaled, grid_starts, minimise, scale

DEFAULT_DELTA = 1e-3
LEAST_SQUARES = float("inf")
SAME_OBJECTIVE = 1e-6  # relative: two starts reached the same minimum
ILL_CONDITIONED = 1e4
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
    """A fitted curve with everything that says how far to trust it. Compute is in the unit of the data."""

    form: str
    values: Mapping[str, float]
    objective: float  # sum of Huber terms; half the sum of squares where delta is infinite
    delta: float
    num_points: int
    x_range: tuple[float, float]  # lowest and highest compute measured
    clipped_share: float  # of points further than delta from the curve
    num_starts: int
    converged_share: float  # of starts that reached the best objective
    at_bounds: tuple[str, ...]
    condition_number: float  # of the Jacobian with columns of unit length
    dropped: tuple[str, ...] = ()  # rows that were not used, with the reason
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    interval_method: str = "none"
    warnings: tuple[str, ...] = ()

    def predict(self, compute: ArrayLike) -> Array:
        """Loss at each compute."""
        return form_named(self.form).predict(self.values, np.asarray(compute, dtype=np.float64))

    def compute_at(self, loss: float) -> float:
        """Compute at which the curve reaches `loss`; InputError where it never does, or where no number holds it."""
        as_arrays = {name: np.array([value]) for name, value in self.values.items()}
        (log_compute,) = form_named(self.form).log_compute_at(as_arrays, loss)
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
    compute: ArrayLike, loss: ArrayLike, form: str, delta: float = DEFAULT_DELTA, dropped: tuple[str, ...] = ()
) -> Fit:
    """Fit `form` to losses [N] at compute [N], any unit; `delta` infinite is least squares on ln L.

    InputError where a number is not positive and finite, or where the points cannot determine the form.
    """
    curve = form_named(form)
    compute_N, loss_N = _checked(compute, "compute"), _checked(loss, "loss")
    if len(compute_N) != len(loss_N):
        raise InputError(f"compute has {len(compute_N)} values and loss {len(loss_N)}; give one of each per point")
    if not delta > 0:
        raise InputError(f"delta: found {delta}; write a positive number, or inf for least squares")
    warnings = _refuse_undetermined(curve, compute_N)
    data = scale(np.log(compute_N)[:, None], np.log(loss_N)[None])
    starts_SP = grid_starts(curve, data)[0]
    theta_SP, objective_S = minimise(curve, np.repeat(data.y_SN, len(starts_SP), 0), data.x_NV, starts_SP, delta)
    best = int(np.argmin(objective_S))
    return _described(curve, data, theta_SP[best], objective_S, delta, compute_N, dropped, warnings)


def _described(
    form: Form, data: Scaled, theta_P: Array, objective_S: Array, delta: float, compute_N: Array,
    dropped: tuple[str, ...], warnings: list[str],
) -> Fit:  # fmt: skip
    """The Fit of the best parameters, with its diagnostics."""
    log_prediction_SN, jacobian_SNP = form.log_prediction(theta_P[None], data.x_NV)
    natural = form.natural(theta_P[None], data.centre_V, data.log_scale)
    at_bounds, condition = _at_bounds(form, theta_P), _condition_number(jacobian_SNP[0])
    if at_bounds:
        warnings.append(f"{', '.join(at_bounds)} at a bound: this form does not suit the points")
    if condition > ILL_CONDITIONED:
        warnings.append(f"parameters hardly told apart by these points (condition number {condition:.1e})")
    best = objective_S.min()
    return Fit(
        form=form.name,
        values={name: float(natural[name][0]) for name in form.parameters},
        objective=float(best),
        delta=delta,
        num_points=len(compute_N),
        x_range=(float(compute_N.min()), float(compute_N.max())),
        clipped_share=float(np.mean(np.abs(data.y_SN - log_prediction_SN) > delta)),
        num_starts=len(objective_S),
        # rounding of a perfect fit is not a difference between minima
        converged_share=float(np.mean(objective_S <= best * (1 + SAME_OBJECTIVE) + 1e-18)),
        at_bounds=at_bounds,
        condition_number=condition,
        dropped=dropped,
        warnings=tuple(warnings),
    )


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


def num_distinct(compute_N: Array) -> int:
    """How many compute values differ by more than a rounding error (1e-6 relative)."""
    return int(1 + np.count_nonzero(np.diff(np.sort(np.log(compute_N))) > 1e-6)) if len(compute_N) else 0


def _refuse_undetermined(form: Form, compute_N: Array) -> list[str]:
    """InputError where these points cannot determine the form; a warning where they only just do."""
    num_free, distinct = len(form.parameters), num_distinct(compute_N)
    if distinct == 1:
        raise InputError(f"{form.name}: one size, no curve: all points are at compute {compute_N[0]:.4g}; add a size")
    if len(compute_N) <= num_free:
        raise InputError(
            f"{form.name}: {len(compute_N)} points for {num_free} free parameters; "
            "add sizes or seeds until there are more points"
        )
    if distinct < form.min_distinct:
        raise InputError(
            f"{form.name}: undetermined: {distinct} different compute values for {num_free} free parameters "
            f"(seeds do not help); add sizes until there are {form.min_distinct}, or ask for the form power"
        )
    if distinct == num_free:
        return [f"{distinct} different compute values determine {form.name} exactly: nothing checks its shape"]
    return []


def _at_bounds(form: Form, theta_P: Array) -> tuple[str, ...]:
    lower_P, upper_P = form.bounds()
    near_P = (theta_P <= lower_P + 1e-9) | (theta_P >= upper_P - 1e-9)
    return tuple(name for name, near in zip(form.parameters, near_P, strict=True) if near)


def _condition_number(jacobian_NP: Array) -> float:
    lengths_P = np.linalg.norm(jacobian_NP, axis=0)
    return float(np.linalg.cond(jacobian_NP / np.where(lengths_P > 0, lengths_P, 1.0)))
