"""Where is the sum of Huber terms least, for many starts and many data sets at once?

Variable projection over a grid of exponents, or over random ones, gives the starts; a projected Newton method with
analytic gradients ends them all in one batch. The Newton matrix holds the points within delta, the damping holds the
majorant (reweighted least squares), so that a step either lowers the objective or turns into the reweighted one. That
holds for any delta: infinite is least squares, 0 the sum of sizes. Points may be counted several times (`weight`).
What a step solves is in `normal_equations`.
Array legend: see `forms`. What is done with the minimum, and which points are refused, stands in `solve`.
"""

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from k3ablate.fits.forms import Array, Form
from k3ablate.fits.normal_equations import Curve, Dense, Equations, Mask

Rows = NDArray[np.intp] | NDArray[np.bool_]

# What residuals are of: ln L, or the loss itself ("plain"), as curve fits in print sometimes have it.
Residuals = Literal["log", "plain"]

# With several seeds per size and noise above delta the sum of Huber terms is flat between the seeds, so that any curve
# between them would do. This much of the least-squares objective chooses among them (less where delta is below the
# default); other minima do not visibly move.
TIE_BREAK = 1e-8
TIE_BREAK_DELTA = 1e-3
LEAST_ABSOLUTE_DELTA = 1e-10  # stands for 0 in the Newton matrix; curves of real losses do not see the difference
NUM_GRID_EXPONENTS = {1: 24, 2: 8, 3: 4}  # by number of exponents, along each
GRID_RANGE = (0.01, 2.0)
MAX_ITERATIONS = 400
SAME_OBJECTIVE = 1e-6  # relative: two starts reached the same minimum
ROUNDING_SQUARE = 1e-18  # of a sum of squares of ln L
STEP_TOLERANCE = 1e-11
# Tried on the Chinchilla points for delta from 1e-10 to infinity: every start ends in 30 to 400 steps. Damping by the
# majorant's diagonal is twice as quick at delta 1e-3 and above, but does not end at 1e-5.
FIRST_DAMPING, EASING, STIFFENING = 1e-2, 2.0, 3.0
# A second descent starts undamped. Where the sum is flat between seeds, damped steps are so small that rounding hides
# what they gain, and the first descent ends on the way to where the tie is broken.
LAST_DAMPING = 1e-9
BLOCK = 2**16  # losses that are worked on together: few calls, and arrays that stay in the cache
FEWEST_ROWS = 32  # of a block, however many points: fewer would cost more calls than they save


@dataclass(frozen=True)
class Scaled:
    """Data as the solver sees it: centred logarithms of the inputs [N, V] and of the losses [S, N]."""

    x_NV: Array
    centre_V: Array
    y_SN: Array
    log_scale: float


def scale(log_inputs_NV: Array, log_loss_SN: Array) -> Scaled:
    """Centre inputs and losses so that every scaled parameter is of order one."""
    centre_V, log_scale = log_inputs_NV.mean(axis=0), float(log_loss_SN.mean())
    return Scaled(log_inputs_NV - centre_V, centre_V, log_loss_SN - log_scale, log_scale)


def grid_starts(form: Form, data: Scaled, weight_SN: Array | None = None, num_best: int | None = None) -> Array:
    """Starts [S, G, P] from a grid of exponents, the same for the same data; the `num_best` of each row, or all."""
    num = NUM_GRID_EXPONENTS[len(form.exponents)]
    grid = itertools.product(np.geomspace(*GRID_RANGE, num), repeat=len(form.exponents))
    starts_SGP, squares_SG = _projected_starts(form, data, np.array(list(grid)), weight_SN)
    if num_best is None:
        return starts_SGP
    chosen_SG = np.argsort(squares_SG, axis=1)[:, :num_best]
    return np.take_along_axis(starts_SGP, chosen_SG[..., None], axis=1)


def random_starts(form: Form, data: Scaled, num_starts: int, generator: np.random.Generator) -> Array:
    """Starts [S, G, P] from exponents drawn log-uniformly over the range of the grid."""
    low, high = np.log(GRID_RANGE)
    log_exponents_GK = generator.uniform(low, high, (num_starts, len(form.exponents)))
    return _projected_starts(form, data, np.exp(log_exponents_GK), None)[0]


def _projected_starts(form: Form, data: Scaled, exponents_GK: Array, weight_SN: Array | None) -> tuple[Array, Array]:
    """Variable projection: non-negative least squares for each row of exponents [S, G, P], and what it leaves [S, G].

    Relative residuals (L - prediction) / L stand in for those of ln L, and keep the problem linear.
    """
    relative_SN = np.exp(-data.y_SN)
    count_SN = np.ones_like(relative_SN) if weight_SN is None else weight_SN
    design_GNT = form.design(exponents_GK, data.x_NV)
    normal_SGTT = np.einsum("gnt,sn,gnu->sgtu", design_GNT, count_SN * relative_SN**2, design_GNT, optimize=True)
    target_SGT = np.einsum("gnt,sn->sgt", design_GNT, count_SN * relative_SN)
    coefficients_SGT = _non_negative_solve(normal_SGTT, target_SGT)
    explained_SG = (
        coefficients_SGT * (2 * target_SGT - np.einsum("sgtu,sgu->sgt", normal_SGTT, coefficients_SGT))
    ).sum(-1)
    num_sets, num_grid, num_terms = coefficients_SGT.shape
    exponents_SGK = np.broadcast_to(exponents_GK, (num_sets, *exponents_GK.shape))
    flat = form.scaled(coefficients_SGT.reshape(-1, num_terms).copy(), exponents_SGK.reshape(-1, exponents_GK.shape[1]))
    return flat.reshape(num_sets, num_grid, -1), count_SN.sum(axis=-1)[:, None] - explained_SG


def huber(residual: Array, delta: float) -> Array:
    """Huber's function (Annals of Mathematical Statistics 35, 1964): half the square up to `delta`, straight beyond.

    At delta 0 the size of the residual, which is the limit of the function over delta.
    """
    size = np.abs(residual)
    if delta == 0:
        return np.asarray(size, dtype=np.float64)
    inside = np.minimum(size, delta)
    return np.asarray(inside * (size - 0.5 * inside), dtype=np.float64)


def residual(form: Curve | Equations, theta_SP: Array, y_SN: Array, x_NV: Array, of: Residuals = "log") -> Array:
    """What the curves leave over [S, N], of ln L or (`plain`) of the scaled loss."""
    log_prediction_SN = form.log_prediction(theta_SP, x_NV)[0]
    return y_SN - log_prediction_SN if of == "log" else np.exp(y_SN) - np.exp(log_prediction_SN)


def minimise(
    form: Curve, y_SN: Array, x_NV: Array, start_SP: Array, delta: float, weight_SN: Array | None = None,
    of: Residuals = "log",
) -> tuple[Array, Array]:  # fmt: skip
    """Minimum reached from each start [S, P] for its own data [S, N], and the sum of Huber terms there [S].

    `weight_SN` counts each point that often; `of` "plain" takes residuals and delta in scaled loss instead of ln L.
    """
    return minimise_by(Dense(form), y_SN, x_NV, start_SP, delta, weight_SN, of)


def minimise_by(
    form: Equations, y_SN: Array, x_NV: Array, start_SP: Array, delta: float, weight_SN: Array | None = None,
    of: Residuals = "log",
) -> tuple[Array, Array]:  # fmt: skip
    """The same with the normal equations that the curve has of its own."""
    theta_SP = np.clip(start_SP, *form.bounds())
    num_rows = max(FEWEST_ROWS, BLOCK // len(x_NV))
    for first in range(0, len(theta_SP), num_rows):
        rows = slice(first, first + num_rows)
        weight_RN = None if weight_SN is None else weight_SN[rows]
        theta_SP[rows] = _Problem(form, y_SN[rows], x_NV, weight_RN, delta, of).solve(theta_SP[rows])
    return theta_SP, objective(form, theta_SP, y_SN, x_NV, delta, weight_SN, of)


def objective(
    form: Curve | Equations, theta_SP: Array, y_SN: Array, x_NV: Array, delta: float, weight_SN: Array | None,
    of: Residuals,
) -> Array:  # fmt: skip
    """Sum of Huber terms [S]; infinite where a curve has no logarithm."""
    terms_SN = huber(residual(form, theta_SP, y_SN, x_NV, of), delta)
    sum_S = (terms_SN if weight_SN is None else weight_SN * terms_SN).sum(axis=-1)
    return np.where(np.isfinite(sum_S), sum_S, np.inf)


@dataclass(frozen=True)
class _Expansion:
    """The objective at one point of every row: value, gradient, Newton matrix and the majorant's as damping."""

    value_S: Array
    gradient_SP: Array
    newton: Array  # as the equations hold it, S first
    majorant: Array

    def taken(self, rows: Rows) -> "_Expansion":
        """Of some rows."""
        return _Expansion(self.value_S[rows], self.gradient_SP[rows], self.newton[rows], self.majorant[rows])

    def put(self, rows: Rows, other: "_Expansion") -> None:
        """Overwrite some rows, in place."""
        self.value_S[rows], self.gradient_SP[rows] = other.value_S, other.gradient_SP
        self.newton[rows], self.majorant[rows] = other.newton, other.majorant

    def damped(self, damping_S: Array) -> Array:
        """The Newton matrix with so much of the majorant's."""
        return np.asarray(self.newton + damping_S.reshape(-1, *[1] * (self.newton.ndim - 1)) * self.majorant)


@dataclass(frozen=True)
class _Problem:
    """Rows of data and the objective that each is fitted by."""

    form: Equations
    y_SN: Array
    x_NV: Array
    weight_SN: Array | None
    delta: float
    of: Residuals

    def solve(self, theta_SP: Array) -> Array:
        """The minimum reached from each row of parameters."""
        return self._descend(self._descend(theta_SP, FIRST_DAMPING), LAST_DAMPING)

    def _descend(self, theta_SP: Array, damping: float) -> Array:
        theta_SP, bounds = theta_SP.copy(), self.form.bounds()
        damping_S, running_S = np.full(len(theta_SP), damping), np.arange(len(theta_SP))
        there = self._expand(theta_SP, running_S)
        for _ in range(MAX_ITERATIONS):
            if not len(running_S):
                break
            theta_RP, here = theta_SP[running_S], there.taken(running_S)
            held_RP = _held(bounds, theta_RP, here.gradient_SP)
            step_RP = -self.form.solve(here.damped(damping_S[running_S]), here.gradient_SP, held_RP)
            trial_RP = np.clip(theta_RP + step_RP, *bounds)
            trial = self._expand(trial_RP, running_S)
            better_R = trial.value_S <= here.value_S
            theta_SP[running_S[better_R]] = trial_RP[better_R]
            there.put(running_S[better_R], trial.taken(better_R))
            damping_R = damping_S[running_S]
            stiff_R = np.maximum(damping_R, LAST_DAMPING) * STIFFENING
            damping_S[running_S] = np.where(better_R, damping_R / EASING, stiff_R)
            running_S = running_S[np.abs(trial_RP - theta_RP).max(axis=-1) > STEP_TOLERANCE]
        return theta_SP

    def _expand(self, theta_RP: Array, rows: Rows) -> _Expansion:
        log_prediction_RN, derivative = self.form.log_prediction(theta_RP, self.x_NV)
        plain_RN = np.exp(log_prediction_RN) if self.of == "plain" else None
        residual_RN = self.y_SN[rows] - log_prediction_RN if plain_RN is None else np.exp(self.y_SN[rows]) - plain_RN
        delta = self.delta or LEAST_ABSOLUTE_DELTA
        tie_break = TIE_BREAK * min(1.0, delta / TIE_BREAK_DELTA)
        size_RN = np.abs(residual_RN)
        with np.errstate(divide="ignore"):
            majorant_RN = np.minimum(1.0, delta / size_RN) + tie_break
        newton_RN: Array = np.asarray((size_RN <= delta) + tie_break, dtype=np.float64)
        value_R = self._sum(rows, size_RN, delta, tie_break)
        if self.weight_SN is not None:
            majorant_RN, newton_RN = majorant_RN * self.weight_SN[rows], newton_RN * self.weight_SN[rows]
        force_RN = majorant_RN * residual_RN
        if plain_RN is not None:  # the loss grows by its own size with its logarithm
            force_RN, majorant_RN, newton_RN = (
                force_RN * plain_RN, majorant_RN * plain_RN**2, newton_RN * plain_RN**2
            )  # fmt: skip
        return _Expansion(
            np.where(np.isfinite(value_R), value_R, np.inf),
            -self.form.gradient(derivative, force_RN),
            self.form.matrix(derivative, newton_RN),
            self.form.matrix(derivative, majorant_RN),
        )

    def _sum(self, rows: Rows, size_RN: Array, delta: float, tie_break: float) -> Array:
        """Sum of Huber terms of residuals of these sizes, and what breaks ties [R], without an array of the terms."""
        inside_RN = np.minimum(size_RN, delta)
        if self.weight_SN is None:
            products = [np.vecdot(inside_RN, size_RN), np.vecdot(inside_RN, inside_RN), np.vecdot(size_RN, size_RN)]
        else:
            weighted_RN, weight_RN = inside_RN * self.weight_SN[rows], self.weight_SN[rows]
            products = [np.vecdot(weighted_RN, size_RN), np.vecdot(weighted_RN, inside_RN),
                        np.vecdot(weight_RN * size_RN, size_RN)]  # fmt: skip
        return np.asarray(products[0] - 0.5 * products[1] + 0.5 * tie_break * products[2], dtype=np.float64)


def _held(bounds: tuple[Array, Array], theta_SP: Array, gradient_SP: Array) -> Mask:
    """Parameters at a bound whose gradient points outward, which a step leaves alone."""
    lower_P, upper_P = bounds
    return ((theta_SP <= lower_P) & (gradient_SP > 0)) | ((theta_SP >= upper_P) & (gradient_SP < 0))


def _non_negative_solve(normal_SGTT: Array, target_SGT: Array) -> Array:
    """Least squares with negative coefficients set to zero and the rest solved again, term by term."""
    num_terms = target_SGT.shape[-1]
    identity_TT = np.eye(num_terms)
    kept_SGT = np.ones(target_SGT.shape, dtype=bool)
    solution_SGT: Array = np.zeros_like(target_SGT)
    for _ in range(num_terms):
        pairs_SGTT = kept_SGT[..., :, None] & kept_SGT[..., None, :]
        matrix_SGTT = normal_SGTT * pairs_SGTT + identity_TT * ~kept_SGT[..., None, :] + 1e-12 * identity_TT
        solution_SGT = np.asarray(np.linalg.solve(matrix_SGTT, (target_SGT * kept_SGT)[..., None])[..., 0], np.float64)
        kept_SGT &= solution_SGT > 0
    return np.where(kept_SGT, solution_SGT, 0.0)
