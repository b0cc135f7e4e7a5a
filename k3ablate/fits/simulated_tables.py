"""What would many tables of one planned experiment be, and what curves and draws would each of them give?

`draw_losses` plants curves and seeds, `fit_tables` fits all tables at once, each with the noise of its own seeds and a
parametric bootstrap of its own: the functions are those that `curves` uses, only the loop over tables is turned into
rows of the solver. Multipliers are read in `simulated_readings`, what follows for the design is in `power`.

Array legend: R tables, D bootstrap draws of each, N points of all arms, arm by arm; E the estimate and then the draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from k3ablate.fits.curves import arrays_of, keys_of
from k3ablate.fits.forms import POWER, Array, curve_named
from k3ablate.fits.observations import Observations
from k3ablate.fits.solve import Fit, fit
from k3ablate.fits.uncertainty import Draws, Noise, refit_losses, residual_noise, seed_noise

ROWS_AT_ONCE = 20_000  # draws that are fitted together, over tables


@dataclass(frozen=True)
class Truth:
    """What is planted: the baseline's curve and the deviation of ln L between seeds, a share of its square common to
    arms of one size and seed."""

    form: str
    values: Mapping[str, float]
    seed_sd: float
    shared_share: float = 0.0

    def log_loss(self, compute_N: Array, log_multiplier: float) -> Array:
        """ln L of an arm that needs exp(log_multiplier) times less compute than the baseline."""
        return np.asarray(np.log(curve_named(self.form).predict(self.values, compute_N * np.exp(log_multiplier))))


@dataclass(frozen=True)
class FittedTables:
    """Losses ln L [R, N] of every table, and every arm's curve in each: the estimate, then the draws [R x E]."""

    planned: Observations
    log_loss_RN: Array
    num_draws: int
    curves: Mapping[str, Draws]

    @property
    def shape(self) -> tuple[int, int]:
        """Tables, and curves of each."""
        return len(self.log_loss_RN), 1 + self.num_draws

    def with_gains(self, truth: Truth, log_multipliers: Mapping[str, float]) -> "FittedTables | None":
        """The tables with other gains and the same random numbers, without a fit; None where that is not exact.

        Of power laws fitted to power laws a gain moves all losses of an arm by one factor, and so its coefficient: what
        minimises a sum over residuals of ln L moves along with what is linear in the parameters.
        """
        if any(curve.form != POWER.name for curve in self.curves.values()) or truth.form != POWER.name:
            return None
        moved = {arm: -truth.values["a"] * log_multipliers[arm] for arm in self.curves}
        parts = [part_RN + moved[arm] for arm, part_RN in by_arm(self.planned, self.log_loss_RN).items()]
        curves = {
            arm: Draws(curve.form, {**curve.values, "A": curve.values["A"] * np.exp(moved[arm])})
            for arm, curve in self.curves.items()
        }
        return replace(self, log_loss_RN=np.concatenate(parts, axis=1), curves=curves)


def draw_losses(
    planned: Observations, truth: Truth, log_multipliers: Mapping[str, float], num_tables: int,
    generator: np.random.Generator,
) -> Array:  # fmt: skip
    """ln L [R, N] of every planned run in each table."""
    _, keys = _labels(planned)
    mean_N = np.concatenate([
        truth.log_loss(arrays_of(points)[0], log_multipliers[arm]) for arm, points in planned.points.items()
    ])  # fmt: skip
    index_N = [list(dict.fromkeys(keys)).index(key) for key in keys]
    shared_RK = generator.standard_normal((num_tables, len(set(keys))))
    own_RN = generator.standard_normal((num_tables, len(keys)))
    noise_RN = np.sqrt(truth.shared_share) * shared_RK[:, index_N] + np.sqrt(1 - truth.shared_share) * own_RN
    return np.asarray(mean_N + truth.seed_sd * noise_RN)


def fit_tables(
    planned: Observations, form: str, log_loss_RN: Array, num_draws: int, delta: float, generator: np.random.Generator
) -> FittedTables:
    """Fit `form` to every arm of every table, and draw all again; InputError where the points do not allow the form."""
    compute = {arm: arrays_of(points)[0] for arm, points in planned.points.items()}
    mean = by_arm(planned, np.exp(log_loss_RN.mean(axis=0)))
    templates = {arm: fit(compute[arm], mean[arm], form, delta) for arm in compute}
    num_tables = max(1, ROWS_AT_ONCE // num_draws)
    blocks = [
        _fit_block(planned, templates, log_loss_RN[first : first + num_tables], num_draws, generator)
        for first in range(0, len(log_loss_RN), num_tables)
    ]
    curves = {
        arm: Draws(form, {name: np.concatenate([block[arm].values[name] for block in blocks]) for name in one.values})
        for arm, one in blocks[0].items()
    }
    return FittedTables(planned, log_loss_RN, num_draws, curves)


def by_arm(planned: Observations, values: Array) -> dict[str, Array]:
    """Arm -> its part of an array whose last axis is the points of all arms."""
    splits = np.cumsum([len(points) for points in planned.points.values()])[:-1]
    return dict(zip(planned.points, np.split(values, splits, axis=-1), strict=True))


def _fit_block(
    planned: Observations, templates: Mapping[str, Fit], log_loss_RN: Array, num_draws: int,
    generator: np.random.Generator,
) -> dict[str, Draws]:  # fmt: skip
    """Every arm's curve in every table and its draws [R x E]; the planted curve is where each search starts."""
    _, keys = _labels(planned)
    losses = by_arm(planned, log_loss_RN)
    compute = {arm: arrays_of(points)[0] for arm, points in planned.points.items()}
    estimates = {arm: refit_losses(templates[arm], compute[arm], losses[arm]) for arm in templates}
    noise_RDN = np.stack([
        _noise(planned, templates, estimates, log_loss_RN, row).draw(keys, num_draws, generator)
        for row in range(len(log_loss_RN))
    ])  # fmt: skip
    found = {}
    for arm, noise in by_arm(planned, noise_RDN).items():
        curve_RN = np.log(estimates[arm].predict(compute[arm]))
        again_SN = (curve_RN[:, None] + noise).reshape(-1, noise.shape[-1])
        drawn = refit_losses(templates[arm], compute[arm], again_SN, num_starts=1)
        values = {
            name: np.concatenate([value_R[:, None], drawn.values[name].reshape(noise.shape[:2])], axis=1).ravel()
            for name, value_R in estimates[arm].values.items()
        }
        found[arm] = Draws(drawn.form, values)
    return found


def _noise(
    planned: Observations, templates: Mapping[str, Fit], estimates: Mapping[str, Draws], log_loss_RN: Array, row: int
) -> Noise:
    """That of one table: from its seeds, or from residuals where no arm has two seeds at a size."""
    cells, keys = _labels(planned)
    noise = seed_noise(cells, keys, log_loss_RN[row])
    if noise is not None:
        return noise
    fits = {
        arm: replace(template, values={name: float(value_R[row]) for name, value_R in estimates[arm].values.items()})
        for arm, template in templates.items()
    }
    compute = {arm: arrays_of(points)[0] for arm, points in planned.points.items()}
    return residual_noise(fits, compute, by_arm(planned, np.exp(log_loss_RN[row])), keys)


def _labels(planned: Observations) -> tuple[Sequence[tuple[str, str]], Sequence[tuple[str, int]]]:
    """(arm, size) and (size, seed) of every point."""
    cells = [(arm, point.size) for arm, points in planned.points.items() for point in points]
    return cells, [key for points in planned.points.values() for key in keys_of(points)]
