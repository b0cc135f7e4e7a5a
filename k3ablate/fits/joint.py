"""Which curves L = E + A C^-a fit all arms at once, where they share the floor and perhaps the exponent?

`fit_joint` minimises one sum of Huber terms over the points of every arm: own coefficients A, one floor E (free, or
given; 0 is a pure power law) and one exponent a for all (`common_exponent`) or one each. What it means for multipliers
is in `shared`, whether the common exponent is true in `hypotheses`. A single arm alone is fitted in `solve`.

Array legend: see `forms`; N runs over the points arm by arm. Scaled parameters: E, ln A of each arm at the common
centre of the data, then the exponents.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from k3ablate.config import InputError
from k3ablate.fits.arrow import Arrow
from k3ablate.fits.forms import EXPONENT_RANGE, LOG_COEFFICIENT_RANGE, Array
from k3ablate.fits.minimise import ROUNDING_SQUARE, SAME_OBJECTIVE, Scaled, huber, minimise_by, scale

SIZES_FOR_FLOOR = 3  # of some arm: two sizes lie on a curve with any floor
NUM_FLOORS = 12
HIGHEST_FLOOR = 0.98  # of the lowest loss, in the start design
EXPONENT_FACTORS = (0.5, 1.0, 2.0)  # on the exponents that regression gives for each floor of the start design
NUM_STARTS_PER_DRAW = 3
HELD = 2**22  # losses (draws x starts x points) of start designs: 32 MiB an array
MOST_DRAWS = 250  # that are fitted at a time


@dataclass(frozen=True)
class JointForm:
    """The curves of all arms as the solver sees them. `counts`: points of each arm, which lie together."""

    counts: tuple[int, ...]
    common_exponent: bool
    hold_floor: bool = False  # E stays where each start has it

    @property
    def arms_of_points(self) -> NDArray[np.intp]:
        """Index of each point's arm."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @property
    def num_parameters(self) -> int:
        """Length of the scaled vector, a floor that is held included."""
        return 1 + len(self.counts) + (1 if self.common_exponent else len(self.counts))

    @property
    def num_free(self) -> int:
        """Parameters that the points determine."""
        return self.num_parameters - self.hold_floor

    @property
    def exponents_of_points(self) -> NDArray[np.intp]:
        """Index of each point's exponent in the scaled vector."""
        return 1 + len(self.counts) + (0 if self.common_exponent else 1) * self.arms_of_points

    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds of the scaled parameters, each [P]."""
        num_exponents = self.num_parameters - 1 - len(self.counts)
        pairs = [(0.0, np.inf), *[LOG_COEFFICIENT_RANGE] * len(self.counts), *[EXPONENT_RANGE] * num_exponents]
        lower_P, upper_P = np.array(pairs).T
        return lower_P, upper_P

    def log_loss(self, theta_SP: Array, x_NV: Array) -> Array:
        """ln L [S, N]."""
        return np.asarray(np.log(theta_SP[:, :1] + self._parts(theta_SP, x_NV)))

    def columns(self, theta_SP: Array, x_NV: Array) -> tuple[Array, Array]:
        """ln L [S, N] and its derivative by E, by ln A and by the exponent of each point's curve [S, 3, N]."""
        part_SN = self._parts(theta_SP, x_NV)
        prediction_SN = theta_SP[:, :1] + part_SN
        column_SCN = np.zeros((len(theta_SP), 3, len(x_NV)))
        if not self.hold_floor:
            np.divide(1.0, prediction_SN, out=column_SCN[:, 0])
        np.divide(part_SN, prediction_SN, out=column_SCN[:, 1])
        np.multiply(column_SCN[:, 1], -x_NV[:, 0], out=column_SCN[:, 2])
        return np.log(prediction_SN), column_SCN

    def log_prediction(self, theta_SP: Array, x_NV: Array) -> tuple[Array, Array]:
        """ln L [S, N] and its derivative by the scaled parameters [S, N, P], mostly zeros."""
        log_loss_SN, column_SCN = self.columns(theta_SP, x_NV)
        points_N = np.arange(len(x_NV))
        gradient_SPN = np.zeros((len(theta_SP), self.num_parameters, len(x_NV)))
        gradient_SPN[:, 0] = column_SCN[:, 0]
        gradient_SPN[:, 1 + self.arms_of_points, points_N] = column_SCN[:, 1]
        gradient_SPN[:, self.exponents_of_points, points_N] = column_SCN[:, 2]
        return log_loss_SN, gradient_SPN.swapaxes(1, 2)

    def minimise(self, y_SN: Array, x_NV: Array, start_SP: Array, delta: float) -> tuple[Array, Array]:
        """As `minimise.minimise`: the minimum reached from each start [S, P], and the sum of Huber terms there [S]."""
        order_N = np.lexsort((x_NV[:, 0], self.arms_of_points))
        arm_N, x_N = self.arms_of_points[order_N], x_NV[order_N, 0]
        new_N = np.append(True, (np.diff(arm_N) > 0) | (np.diff(x_N) > 0))  # where a cell begins
        cells = tuple(np.bincount(arm_N[new_N], minlength=len(self.counts)).tolist())
        sizes = tuple(np.diff(np.append(np.flatnonzero(new_N), len(x_N))).tolist())
        arrow = Arrow(replace(self, counts=cells).columns, self.bounds(), cells, sizes, self.common_exponent)
        return minimise_by(arrow, y_SN[:, order_N], x_NV[order_N], start_SP, delta)

    def _parts(self, theta_SP: Array, x_NV: Array) -> Array:
        """A C^-a [S, N] of each point's own curve."""
        log_part_SN = np.repeat(theta_SP[:, 1 : 1 + len(self.counts)], self.counts, axis=1)
        if self.common_exponent:
            log_part_SN -= theta_SP[:, -1:] * x_NV[:, 0]
        else:
            log_part_SN -= np.repeat(theta_SP[:, 1 + len(self.counts) :], self.counts, axis=1) * x_NV[:, 0]
        return np.exp(log_part_SN, out=log_part_SN)

    def starts(self, data: Scaled, floors_F: Array, factors: Sequence[float] = EXPONENT_FACTORS) -> Array:
        """Starts [S, G, P] from a design of floors: for each, ln(L - E) is linear in the rest and is regressed."""
        above_SFN = np.log(np.exp(data.y_SN)[:, None, :] - floors_F[:, None])
        mean_KN = (self.arms_of_points == np.arange(len(self.counts))[:, None]) / np.array(self.counts)[:, None]
        mean_x_K, mean_SFK = mean_KN @ data.x_NV[:, 0], above_SFN @ mean_KN.T
        deviation_N = data.x_NV[:, 0] - mean_x_K[self.arms_of_points]
        first, num_exponents = 1 + len(self.counts), self.num_parameters - 1 - len(self.counts)
        deviation_XN = deviation_N * (self.exponents_of_points - first == np.arange(num_exponents)[:, None])
        # an arm of one size has no slope of its own: it starts flat
        slope_SFX = -(above_SFN @ deviation_XN.T) / np.maximum(deviation_XN @ deviation_N, 1e-12)
        floor_SF1 = np.broadcast_to(floors_F[:, None], (*slope_SFX.shape[:2], 1))
        blocks = []
        for factor in factors:
            exponent_SFX = np.clip(slope_SFX * factor, *EXPONENT_RANGE)
            blocks.append(np.concatenate([floor_SF1, mean_SFK + exponent_SFX * mean_x_K, exponent_SFX], axis=-1))
        return np.concatenate(blocks, axis=1)


@dataclass(frozen=True)
class Joint:
    """The best curves of all arms under one hypothesis, in the solver's scaled parameters."""

    form: JointForm
    data: Scaled
    theta_P: Array
    objective_G: Array  # that each start reached: sum of Huber terms of ln L
    delta: float

    @property
    def objective(self) -> float:
        """The least sum of Huber terms; half the sum of squares where delta is infinite."""
        return float(self.objective_G.min())

    @property
    def converged_share(self) -> float:
        """Part of the starts that reached it."""
        return float(np.mean(self.objective_G <= self.objective * (1 + SAME_OBJECTIVE) + ROUNDING_SQUARE))

    @property
    def residuals(self) -> Array:
        """ln L minus that of the curves."""
        return np.asarray(self.data.y_SN[0] - self.form.log_loss(self.theta_P[None], self.data.x_NV)[0])

    @property
    def jacobian(self) -> Array:
        """Derivative of ln L by the free parameters."""
        jacobian_NP = self.form.log_prediction(self.theta_P[None], self.data.x_NV)[1][0]
        return np.asarray(jacobian_NP[:, 1:] if self.form.hold_floor else jacobian_NP)

    def at_bounds(self, arm: int) -> tuple[str, ...]:
        """Which of E, A and a of one arm are at a bound; a floor that was given is not."""
        lower_P, upper_P = self.form.bounds()
        near_P = (self.theta_P <= lower_P + 1e-9) | (self.theta_P >= upper_P - 1e-9)
        positions = {"E": 0, "A": 1 + arm, "a": self._exponent(arm)}
        named = [name for name, position in positions.items() if near_P[position]]
        return tuple(name for name in named if name != "E" or not self.form.hold_floor)

    def curves(self, theta_SP: Array | None = None) -> list[dict[str, Array]]:
        """E, A and a [S] of each arm in the units of the data, of these curves or of other scaled parameters."""
        theta_SP = self.theta_P[None] if theta_SP is None else theta_SP
        loss_scale, (centre,) = np.exp(self.data.log_scale), self.data.centre_V
        found = []
        for index in range(len(self.form.counts)):
            exponent_S = theta_SP[:, self._exponent(index)]
            coefficient_S = loss_scale * np.exp(theta_SP[:, 1 + index] + exponent_S * centre)
            found.append({"E": loss_scale * theta_SP[:, 0], "A": coefficient_S, "a": exponent_S})
        return found

    def _exponent(self, arm: int) -> int:
        """Index of an arm's exponent in the scaled vector."""
        return 1 + len(self.form.counts) + (0 if self.form.common_exponent else arm)

    def refit(self, noise_DN: Array) -> list[dict[str, Array]]:
        """E, A and a [draws] of each arm, fitted to these curves with other noise on every point."""
        curve_N = self.data.y_SN[0] - self.residuals
        num_rows = min(MOST_DRAWS, max(1, HELD // (NUM_FLOORS * len(curve_N))))
        blocks = [
            self._refit(curve_N + noise_DN[first : first + num_rows]) for first in range(0, len(noise_DN), num_rows)
        ]
        return self.curves(np.concatenate(blocks))

    def _refit(self, y_DN: Array) -> Array:
        """Scaled parameters [D, P], from the fitted curves and the best points of the start design."""
        data = Scaled(self.data.x_NV, self.data.centre_V, y_DN, self.data.log_scale)
        floors_F = self.theta_P[:1] if self.form.hold_floor else _floors(y_DN)
        design_DGP = self.form.starts(data, floors_F, factors=(1.0,))
        num_draws, num_design, num_parameters = design_DGP.shape
        prediction_SN = self.form.log_loss(design_DGP.reshape(-1, num_parameters), data.x_NV)
        residual_DGN = y_DN[:, None] - prediction_SN.reshape(num_draws, num_design, -1)
        order_DG = np.argsort(huber(residual_DGN, self.delta).sum(axis=-1), axis=1)[:, : NUM_STARTS_PER_DRAW - 1]
        best_DSP = np.take_along_axis(design_DGP, order_DG[..., None], axis=1)
        fitted_D1P = np.broadcast_to(self.theta_P, (num_draws, 1, num_parameters))
        starts_DSP = np.concatenate([fitted_D1P, best_DSP], axis=1)
        num_starts = starts_DSP.shape[1]
        y_SN = np.repeat(y_DN, num_starts, axis=0)
        theta_SP, objective_S = self.form.minimise(y_SN, data.x_NV, starts_DSP.reshape(-1, num_parameters), self.delta)
        best_D = objective_S.reshape(num_draws, num_starts).argmin(axis=1)
        return np.asarray(theta_SP.reshape(num_draws, num_starts, -1)[np.arange(num_draws), best_D])


def fit_joint(
    compute: Sequence[Array], loss: Sequence[Array], common_exponent: bool, floor: float | None, delta: float
) -> Joint:
    """Curves through the points of every arm, arms in order; `floor` None leaves E free.

    InputError where the floor is negative or not below every loss, and where the points are too few.
    """
    compute_N, loss_N = np.concatenate(compute), np.concatenate(loss)
    if floor is not None and not 0 <= floor < loss_N.min():
        raise InputError(f"floor {floor}: write 0 or more, and less than the lowest loss {loss_N.min():.6g}")
    form = JointForm(tuple(map(len, compute)), common_exponent, hold_floor=floor is not None)
    if len(loss_N) <= form.num_free:
        raise InputError(
            f"{len(loss_N)} points of {len(compute)} arms for {form.num_free} free parameters; "
            "add sizes or seeds until there are more points"
        )
    data = scale(np.log(compute_N)[:, None], np.log(loss_N)[None])
    floors_F = _floors(data.y_SN) if floor is None else np.array([floor / np.exp(data.log_scale)])
    starts_GP = form.starts(data, floors_F)[0]
    theta_GP, objective_G = form.minimise(np.repeat(data.y_SN, len(starts_GP), 0), data.x_NV, starts_GP, delta)
    return Joint(form, data, theta_GP[objective_G.argmin()], objective_G, delta)


def _floors(y_SN: Array) -> Array:
    """The start design: floors from none to near the lowest of the scaled losses."""
    return np.asarray(np.linspace(0, HIGHEST_FLOOR, NUM_FLOORS) * np.exp(y_SN.min()))
