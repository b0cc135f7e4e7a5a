"""How noisy are the losses, and what would the curves have been with other seeds?

The noise model (statistics.md, section 4): ln L = curve + shared + own, where `shared` belongs to a (size, seed) and is
common to the arms that ran it (same data order), `own` is the run's. Both variances come from the spread over seeds, or
from the residuals about the curves where no cell has two seeds. `Noise.draw` re-draws every point, jointly over arms so
that pairing carries over to any comparison of arms; `refit` fits all draws at once. Each draw also re-draws the
variances from their degrees of freedom, which widens intervals the way Student's t does. With few degrees of freedom
the parameters' own intervals come out wide (98 percent instead of 95), those of multipliers keep their level.

Not modelled: noise that changes with size, and a curve of the wrong shape (`lack_of_fit` tells, the interval does not).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, stats

from k3ablate.fits.forms import Array, Form, curve_named, form_named
from k3ablate.fits.levelled import least
from k3ablate.fits.minimise import ROUNDING_SQUARE, Scaled, grid_starts, scale
from k3ablate.fits.solve import Fit, Interval

NUM_DRAWS = 1000
NUM_STARTS_PER_DRAW = 3
TAIL = 0.025
# Stands for least absolute deviations in draws: half the steps of the smaller one of a fit, and spreads that agree to
# one in ten thousand.
DRAWN_DELTA = 1e-6
HELD = 2**21  # derivatives (draws x starts x points x parameters) that are held at a time: 16 MiB
LACK_OF_FIT_LEVEL = 0.01


@dataclass(frozen=True)
class Noise:
    """Variances of ln L with their degrees of freedom. `pooled_sd`: deviation between seeds of one arm and size."""

    source: Literal["seeds", "residuals"]
    pooled_sd: float
    degrees_of_freedom: int
    own_square: float  # mean square of what is not shared
    own_degrees: int
    shared_square: float  # mean square of what is shared over (size, seed); its expectation mixes both variances
    shared_degrees: int
    shared_weight: float  # the shared variance's factor in the shared sum of squares

    @property
    def shared_share(self) -> float:
        """Part of the variance that arms with the same size and seed have in common, 0 to 1."""
        own, shared = self._variances(self.own_square, self.shared_square)
        return float(shared / (own + shared)) if own + shared > 0 else 0.0

    @property
    def method(self) -> str:
        """One phrase that says how intervals were made from this noise."""
        kind = "spread over seeds" if self.source == "seeds" else "residuals about the curves (one seed per point)"
        return f"parametric bootstrap, noise from {kind}, {self.degrees_of_freedom} degrees of freedom"

    def draw(self, keys: Sequence[Hashable], num_draws: int, generator: np.random.Generator) -> Array:
        """Noise [draws, N] in ln L; points with equal keys (size, seed) share a part."""
        own_square_D = self.own_square * _scaled_inverse(self.own_degrees, num_draws, generator)
        shared_square_D = self.shared_square * _scaled_inverse(self.shared_degrees, num_draws, generator)
        own_D, shared_D = self._variances(own_square_D, shared_square_D)
        index_N, num_keys = _indexed(keys)
        own_DN = generator.standard_normal((num_draws, len(keys)))
        shared_DK = generator.standard_normal((num_draws, num_keys))
        noise_DN: Array = own_DN * np.sqrt(own_D)[:, None] + shared_DK[:, index_N] * np.sqrt(shared_D)[:, None]
        return noise_DN

    def covariance(self, keys: Sequence[Hashable]) -> Array:
        """Covariance [N, N] of ln L between runs; those with equal keys (size, seed) share a part."""
        own, shared = self._variances(self.own_square, self.shared_square)
        index_N, _ = _indexed(keys)
        return np.asarray(own * np.eye(len(keys)) + shared * (index_N[:, None] == index_N), dtype=np.float64)

    def _variances(self, own_square: Array | float, shared_square: Array | float) -> tuple[Array, Array]:
        if not self.shared_degrees:
            return np.asarray(own_square), np.zeros_like(own_square)
        shared = self.shared_degrees * (shared_square - np.asarray(own_square)) / self.shared_weight
        return np.asarray(own_square), np.maximum(shared, 0.0)


def seed_noise(cells: Sequence[Hashable], keys: Sequence[Hashable], log_loss_N: Array) -> Noise | None:
    """Noise from replicates: `cells` are (arm, size), `keys` (size, seed). None where no cell has two seeds."""
    index_N, num_cells = _indexed(cells)
    if len(cells) == num_cells:
        return None
    indicator_NC = np.eye(num_cells)[index_N]  # columns without a common point: orthogonal as they are
    return _components(log_loss_N, indicator_NC / np.sqrt(indicator_NC.sum(axis=0)), keys, "seeds")


def residual_noise(fits: Mapping[str, Fit], inputs: Mapping[str, Array], loss: Mapping[str, Array],
                   keys: Sequence[Hashable]) -> Noise:  # fmt: skip
    """Noise from what the curves leave over; `keys` run over the arms in the order of `fits`."""
    residual_N = np.concatenate([np.log(loss[arm]) - np.log(fits[arm].predict(inputs[arm])) for arm in fits])
    blocks = [jacobian(fits[arm], inputs[arm]) for arm in fits]
    return linear_noise(residual_N, linalg.block_diag(*blocks), keys)


def linear_noise(residual_N: Array, jacobian_NP: Array, keys: Sequence[Hashable]) -> Noise:
    """Noise from what curves leave over of ln L, given its derivative by all their free parameters."""
    return _components(residual_N, _orthonormal(jacobian_NP), keys, "residuals")


def jacobian(fit: Fit, inputs: Array) -> Array:
    """Derivative [N, P] of ln L by the scaled parameters at the fit (its column space is all that is used)."""
    form = form_named(fit.form)
    log_NV = form.log_inputs(inputs)
    centre_V = log_NV.mean(axis=0)
    _, jacobian_SNP = form.log_prediction(scaled_values(fit, centre_V, 0.0), log_NV - centre_V)
    return np.asarray(jacobian_SNP[0], dtype=np.float64)


def scaled_values(fit: Fit, centre_V: Array, log_scale: float) -> Array:
    """The fit's parameters [1, P] as the solver holds them, for data with that centre and loss scale."""
    form = form_named(fit.form)
    exponents = np.array([[fit.values[name] for name in form.exponents]])
    centre = dict(zip(form.variables, centre_V, strict=True))
    coefficients = [
        fit.values[term.coefficient]
        * np.exp(-log_scale - (fit.values[term.exponent] * centre[term.variable] if term.exponent else 0.0))
        for term in form.terms
    ]
    return form.scaled(np.array([coefficients]), exponents)


@dataclass(frozen=True)
class Draws:
    """Parameters of one arm's curve in every bootstrap draw: name -> values [draws]."""

    form: str
    values: Mapping[str, Array]

    def log_compute_at(self, loss: float | Array) -> Array:
        """ln of the compute [draws] at which each drawn curve reaches `loss` (one, or one each), or infinity."""
        return curve_named(self.form).log_compute_at(self.values, loss)

    def predict(self, inputs: Array) -> Array:
        """Loss [draws, N] of each drawn curve at inputs [N], or [N, V] of a form of several variables."""
        return curve_named(self.form).predict({name: value_D[:, None] for name, value_D in self.values.items()}, inputs)

    def band(self, inputs: Array) -> tuple[Array, Array]:
        """Lower and upper end of the 95 percent interval of the loss at each input, each [N]."""
        ends = [percentile_interval(loss_D) for loss_D in self.predict(inputs).T]
        return np.array([end.low for end in ends]), np.array([end.high for end in ends])

    def intervals(self) -> dict[str, Interval]:
        """95 percent percentile interval of each parameter."""
        return {name: percentile_interval(value_D) for name, value_D in self.values.items()}


def refit(fit: Fit, inputs: Array, noise_DN: Array) -> Draws:
    """The curve of `fit` with other noise on every point, fitted again for each draw, all draws at once."""
    return refit_losses(fit, inputs, np.log(fit.predict(inputs)) + noise_DN)


def refit_losses(
    fit: Fit, inputs: Array, log_loss_DN: Array, weight_DN: Array | None = None, num_starts: int = NUM_STARTS_PER_DRAW
) -> Draws:
    """The form of `fit`, fitted to other losses ln L at its inputs for each draw; `weight_DN` counts the points.

    The first start is the curve of `fit`, the others are the best of the exponent grid.
    """
    form = form_named(fit.form)
    data = scale(form.log_inputs(inputs), log_loss_DN)
    num_rows = max(1, HELD // (num_starts * len(data.x_NV) * len(form.parameters)))
    blocks = [slice(first, first + num_rows) for first in range(0, len(data.y_SN), num_rows)]
    theta_DP = np.concatenate(
        [_refit(form, fit, replace(data, y_SN=data.y_SN[rows]), _rows(weight_DN, rows), num_starts) for rows in blocks]
    )
    return Draws(form.name, form.natural(theta_DP, data.centre_V, data.log_scale))


def _rows(weight_DN: Array | None, rows: slice) -> Array | None:
    return None if weight_DN is None else weight_DN[rows]


def _refit(form: Form, fit: Fit, data: Scaled, weight_DN: Array | None, num_starts: int) -> Array:
    """Scaled parameters [D, P] of the draws in `data`, the best end of each one's starts."""
    unit = np.exp(data.log_scale) if fit.residuals == "plain" else 1.0
    starts_DSP = _starts(form, fit, data, weight_DN, num_starts)
    num_draws, num_starts, num_parameters = starts_DSP.shape
    y_SN = np.repeat(data.y_SN, num_starts, axis=0)
    weight_SN = None if weight_DN is None else np.repeat(weight_DN, num_starts, axis=0)
    starts_SP = starts_DSP.reshape(-1, num_parameters)
    delta = (fit.delta or DRAWN_DELTA) / unit
    theta_SP, objective_S = least(form, y_SN, data.x_NV, starts_SP, delta, weight_SN, fit.residuals)
    best_D = objective_S.reshape(num_draws, num_starts).argmin(axis=1)
    return np.asarray(theta_SP.reshape(num_draws, num_starts, num_parameters)[np.arange(num_draws), best_D])


def percentile_interval(values_D: Array) -> Interval:
    """The middle 95 percent of the draws; its ends are drawn values, so that infinite ones stay infinite."""
    low = np.quantile(values_D, TAIL, method="lower")
    high = np.quantile(values_D, 1 - TAIL, method="higher")
    return Interval(float(low), float(high))


def lack_of_fit(fit: Fit, inputs: Array, loss_N: Array, noise: Noise) -> str | None:
    """A warning where the points lie further from the curve than seeds explain (F test at 1 percent), else None."""
    residual_N = np.log(loss_N) - np.log(fit.predict(inputs))
    ratio = misfit(residual_N, [tuple(np.atleast_1d(point)) for point in inputs], len(fit.values), noise)
    return f"sizes lie {ratio:.1f} times further from the {fit.form} curve than seeds explain" if ratio else None


def misfit(residual_N: Array, cells: Sequence[Hashable], num_free: int, noise: Noise) -> float | None:
    """How many times further cells (arm and size) lie from curves than seeds explain; None where seeds do (1 %).

    Seeds that differ by rounding only measure nothing that a distance could be compared with: None.
    """
    if noise.source != "seeds" or noise.pooled_sd**2 <= ROUNDING_SQUARE:
        return None
    index_N, num_cells = _indexed(cells)
    counts_C = np.bincount(index_N)
    means_C = np.bincount(index_N, weights=residual_N) / counts_C
    degrees = num_cells - num_free
    if degrees < 1:
        return None
    ratio = float((counts_C * means_C**2).sum()) / degrees / noise.pooled_sd**2
    if stats.f.sf(ratio, degrees, noise.degrees_of_freedom) > LACK_OF_FIT_LEVEL:
        return None
    return float(np.sqrt(ratio))


def _components(
    values_N: Array, basis_NP: Array, keys: Sequence[Hashable], source: Literal["seeds", "residuals"]
) -> Noise:
    """Variance components by Henderson's method 3 (Biometrics 9, 1953): shared effects fitted after the fixed part.

    `basis_NP` is an orthonormal basis of the fixed part.
    """
    index_N, num_keys = _indexed(keys)
    left_N = values_N - basis_NP @ (basis_NP.T @ values_N)
    total, degrees = float(left_N @ left_N), len(values_N) - basis_NP.shape[1]
    assert degrees > 0, "fits with more points than parameters leave degrees of freedom"
    pooled_sd = float(np.sqrt(total / degrees))
    unpaired = Noise(source, pooled_sd, degrees, total / degrees, degrees, 0.0, 0, 1.0)
    if num_keys == len(values_N):
        return unpaired  # no two arms share a size and seed, which a large table need not find out the long way
    shared_NK = np.eye(num_keys)[index_N]
    shared_NK -= basis_NP @ (basis_NP.T @ shared_NK)
    shared_basis_NR = _orthonormal(shared_NK)
    shared_degrees = shared_basis_NR.shape[1]
    own_degrees = degrees - shared_degrees
    if own_degrees == 0 or shared_degrees == 0:
        return unpaired  # pairing cannot be seen
    shared = float(np.sum((shared_basis_NR.T @ left_N) ** 2))
    own_square = max(total - shared, 0.0) / own_degrees
    weight = float(np.sum(shared_NK**2))
    return Noise(source, pooled_sd, degrees, own_square, own_degrees, shared / shared_degrees, shared_degrees, weight)


def _starts(form: Form, fit: Fit, data: Scaled, weight_DN: Array | None, num_starts: int) -> Array:
    """Starts [D, S, P] of each draw: the fitted curve, and the best points of the exponent grid."""
    fitted_P = scaled_values(fit, data.centre_V, data.log_scale)
    num_draws, num_parameters = len(data.y_SN), len(form.parameters)
    if len(form.terms) == 1 or num_starts == 1:  # one term is linear in the parameters, so that there is one minimum
        return np.broadcast_to(fitted_P, (num_draws, 1, num_parameters))
    best_DSP = grid_starts(form, data, weight_DN, num_starts - 1)
    return np.concatenate([np.broadcast_to(fitted_P, (num_draws, 1, num_parameters)), best_DSP], axis=1)


def _scaled_inverse(degrees: int, num_draws: int, generator: np.random.Generator) -> Array:
    """degrees / chi-square(degrees): what turns normal into t intervals; ones where nothing was estimated."""
    return degrees / generator.chisquare(degrees, num_draws) if degrees else np.ones(num_draws)


def _orthonormal(matrix_NP: Array) -> Array:
    """An orthonormal basis of the columns' span."""
    left_NR, singular_R, _ = np.linalg.svd(matrix_NP, full_matrices=False)
    return left_NR[:, singular_R > 1e-9 * max(1.0, singular_R.max(initial=0.0))]


def _indexed(labels: Sequence[Hashable]) -> tuple[NDArray[np.intp], int]:
    """Position of each label among the distinct ones, in order of appearance, and how many there are."""
    positions = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    return np.array([positions[label] for label in labels], dtype=np.intp), len(positions)
