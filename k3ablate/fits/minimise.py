"""Where is the sum of Huber terms least, for many starts and many data sets at once?

Variable projection over a grid of exponents gives the starts; a projected Newton method with analytic gradients ends
them all in one batch. The Newton matrix holds the points within delta, the damping holds the majorant (reweighted least
squares), so that a step either lowers the objective or turns into the reweighted one. Array legend: see `forms`.
What is done with the minimum, and which points are refused, stands in `solve`.
"""

import itertools
from dataclasses import dataclass

import numpy as np

from k3ablate.fits.forms import Array, Form

# With several seeds per size and noise above delta the sum of Huber terms is flat between the seeds, so that any curve
# between them would do. This much of the least-squares objective chooses among them; other minima do not visibly move.
TIE_BREAK = 1e-6
NUM_GRID_EXPONENTS = 24
GRID_RANGE = (0.01, 2.0)
MAX_ITERATIONS = 400
STEP_TOLERANCE = 1e-11


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


def grid_starts(form: Form, data: Scaled) -> Array:
    """Starts [S, G, P]: non-negative least squares (relative residuals) for each exponent of a grid."""
    per_exponent = np.geomspace(
        *GRID_RANGE, NUM_GRID_EXPONENTS if len(form.exponents) == 1 else NUM_GRID_EXPONENTS // 3
    )
    exponents_GK = np.array(list(itertools.product(per_exponent, repeat=len(form.exponents))))
    # relative residuals (L - prediction) / L stand in for those of ln L, and keep the problem linear
    weight_SN = np.exp(-data.y_SN)
    design_GNT = form.design(exponents_GK, data.x_NV)
    normal_SGTT = np.einsum("gnt,sn,gnu->sgtu", design_GNT, weight_SN**2, design_GNT, optimize=True)
    target_SGT = np.einsum("gnt,sn->sgt", design_GNT, weight_SN)
    coefficients_SGT = _non_negative_solve(normal_SGTT, target_SGT)
    num_sets, num_grid, num_terms = coefficients_SGT.shape
    exponents_SGK = np.broadcast_to(exponents_GK, (num_sets, *exponents_GK.shape))
    flat = form.scaled(coefficients_SGT.reshape(-1, num_terms).copy(), exponents_SGK.reshape(-1, exponents_GK.shape[1]))
    return flat.reshape(num_sets, num_grid, -1)


def huber(residual: Array, delta: float) -> Array:
    """Huber's function (Annals of Mathematical Statistics 35, 1964): half the square up to `delta`, straight beyond."""
    size = np.abs(residual)
    inside = np.minimum(size, delta)
    return np.asarray(inside * (size - 0.5 * inside), dtype=np.float64)


def minimise(form: Form, y_SN: Array, x_NV: Array, start_SP: Array, delta: float) -> tuple[Array, Array]:
    """Minimum reached from each start [S, P] for its own data [S, N], and the sum of Huber terms there [S]."""
    theta_SP = np.clip(start_SP, *form.bounds())
    damping_S = np.full(len(theta_SP), 1e-3)
    running_S = np.arange(len(theta_SP))
    for _ in range(MAX_ITERATIONS):
        if not len(running_S):
            break
        theta_RP, y_RN, damping_R = theta_SP[running_S], y_SN[running_S], damping_S[running_S]
        before_R, gradient_RP, newton_RPP, majorant_RPP = _expand(form, theta_RP, y_RN, x_NV, delta)
        step_RP = _projected_step(form, theta_RP, gradient_RP, newton_RPP + damping_R[:, None, None] * majorant_RPP)
        trial_RP = np.clip(theta_RP + step_RP, *form.bounds())
        after_R = _penalised(y_RN - form.log_prediction(trial_RP, x_NV)[0], delta)
        better_R = after_R <= before_R
        theta_SP[running_S[better_R]] = trial_RP[better_R]
        damping_S[running_S] = np.where(better_R, damping_R / 8, np.maximum(damping_R, 1e-9) * 8)
        moved_R = np.abs(trial_RP - theta_RP).max(axis=-1)
        running_S = running_S[moved_R > STEP_TOLERANCE]
    residual_SN = y_SN - form.log_prediction(theta_SP, x_NV)[0]
    return theta_SP, huber(residual_SN, delta).sum(axis=-1)


def _penalised(residual_SN: Array, delta: float) -> Array:
    value_S = (huber(residual_SN, delta) + 0.5 * TIE_BREAK * residual_SN**2).sum(axis=-1)
    return np.where(np.isfinite(value_S), value_S, np.inf)


def _expand(form: Form, theta_SP: Array, y_SN: Array, x_NV: Array, delta: float) -> tuple[Array, Array, Array, Array]:
    """Objective, its gradient, its Gauss-Newton matrix, and the majorant's (reweighted least squares) as damping."""
    log_prediction_SN, jacobian_SNP = form.log_prediction(theta_SP, x_NV)
    residual_SN = y_SN - log_prediction_SN
    size_SN = np.abs(residual_SN)
    clipped_SN = np.minimum(1.0, delta / np.maximum(size_SN, np.finfo(float).tiny))
    majorant_SN = clipped_SN + TIE_BREAK
    newton_SN = (size_SN <= delta) + TIE_BREAK
    gradient_SP = -np.einsum("sn,snp->sp", majorant_SN * residual_SN, jacobian_SNP)
    return (
        _penalised(residual_SN, delta),
        gradient_SP,
        np.einsum("snp,sn,snq->spq", jacobian_SNP, newton_SN, jacobian_SNP),
        np.einsum("snp,sn,snq->spq", jacobian_SNP, majorant_SN, jacobian_SNP),
    )


def _projected_step(form: Form, theta_SP: Array, gradient_SP: Array, matrix_SPP: Array) -> Array:
    """Newton step that leaves alone the parameters at a bound whose gradient points outward."""
    lower_P, upper_P = form.bounds()
    held_SP = ((theta_SP <= lower_P) & (gradient_SP > 0)) | ((theta_SP >= upper_P) & (gradient_SP < 0))
    free_SPP = ~(held_SP[:, :, None] | held_SP[:, None, :])
    identity_PP = np.eye(len(lower_P))
    ridge_S = 1e-14 * np.trace(matrix_SPP, axis1=1, axis2=2) + 1e-300
    held_matrix_SPP = held_SP[:, :, None] * identity_PP
    solvable_SPP = matrix_SPP * free_SPP + held_matrix_SPP + ridge_S[:, None, None] * identity_PP
    return -np.linalg.solve(solvable_SPP, (gradient_SP * ~held_SP)[..., None])[..., 0]


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
