"""What would many tables of one planned experiment say, each analysed as a table of real runs is?

`draw_losses` plants curves and seeds, `read_tables` analyses all tables at once: noise from the seeds of each table, a
parametric bootstrap of each, multipliers at the loss that baseline and arm reach, parts of the split at the loss that
all reach. Everything is fitted, drawn and read by the functions that `analysis` and `split_analysis` use; only the
loop over tables is turned into rows of the solver. What follows for the design is in `power`.

Array legend: R tables, D bootstrap draws of each, N points of all arms, arm by arm; E the estimate and then the draws.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from k3ablate.fits.attribution import Method, method_and_terms
from k3ablate.fits.coalitions import Design
from k3ablate.fits.curves import arrays_of, keys_of
from k3ablate.fits.forms import Array, curve_named
from k3ablate.fits.multiplier import draw_log_multipliers
from k3ablate.fits.observations import Observations
from k3ablate.fits.paired import Paired, Point, paired_multiplier
from k3ablate.fits.pairwise import fit_pairwise
from k3ablate.fits.solve import LARGEST_LOG, Fit, fit
from k3ablate.fits.split import NOBODY, Coalition
from k3ablate.fits.uncertainty import TAIL, Draws, Noise, refit_losses, residual_noise, seed_noise

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
class Read:
    """ln m with its 95 percent interval in every table [R]; NaN, and an endless interval, where there is no number."""

    estimate_R: Array
    low_R: Array
    high_R: Array


@dataclass(frozen=True)
class TableReadings:
    """What every table says: multipliers of arms from curves and from pairs, and the parts of the split."""

    arms: Mapping[str, Read]
    paired: Mapping[str, Read]  # of arms that share seeds with the baseline
    parts: Mapping[str, Read]  # empty where the arms do not split
    method: Method  # that the parts are from


def draw_losses(
    planned: Observations, truth: Truth, log_multipliers: Mapping[str, float], num_tables: int,
    generator: np.random.Generator,
) -> Array:  # fmt: skip
    """ln L [R, N] of every planned run in each table."""
    points = [(arm, point) for arm, found in planned.points.items() for point in found]
    keys = [(point.size, point.seed) for _, point in points]
    mean_N = np.concatenate([
        truth.log_loss(arrays_of(found)[0], log_multipliers[arm]) for arm, found in planned.points.items()
    ])  # fmt: skip
    index_N = [list(dict.fromkeys(keys)).index(key) for key in keys]
    shared_RK = generator.standard_normal((num_tables, len(set(keys))))
    own_RN = generator.standard_normal((num_tables, len(keys)))
    noise_RN = np.sqrt(truth.shared_share) * shared_RK[:, index_N] + np.sqrt(1 - truth.shared_share) * own_RN
    return np.asarray(mean_N + truth.seed_sd * noise_RN)


def read_tables(
    planned: Observations, baseline: str, design: Design | None, form: str, log_loss_RN: Array, num_draws: int,
    delta: float, generator: np.random.Generator,
) -> TableReadings:  # fmt: skip
    """The readings of every table; `design` None splits nothing. InputError where the points do not allow the form."""
    compute = {arm: arrays_of(points)[0] for arm, points in planned.points.items()}
    mean = _by_arm(planned, np.exp(log_loss_RN.mean(axis=0, keepdims=True)))
    templates = {arm: fit(compute[arm], mean[arm][0], form, delta) for arm in compute}
    num_rows = max(1, ROWS_AT_ONCE // num_draws)
    blocks = [
        _read_block(planned, baseline, design, templates, log_loss_RN[first : first + num_rows], num_draws, generator)
        for first in range(0, len(log_loss_RN), num_rows)
    ]
    return TableReadings(
        arms=_joined([block.arms for block in blocks]),
        paired=_joined([block.paired for block in blocks]),
        parts=_joined([block.parts for block in blocks]),
        method=blocks[0].method,
    )


def planted_parts(design: Design, log_multipliers: Mapping[str, float]) -> dict[str, float]:
    """What the split attributes to every component where ln m of the arms is known."""
    values = {coalition: np.array([log_multipliers[arm]]) for coalition, arm in design.arms.items()}
    return {name: float(value_E[0]) for name, value_E in _terms(design, values)[1].items()}


def _read_block(
    planned: Observations, baseline: str, design: Design | None, templates: Mapping[str, Fit], log_loss_RN: Array,
    num_draws: int, generator: np.random.Generator,
) -> TableReadings:  # fmt: skip
    curves = _curves(planned, templates, log_loss_RN, num_draws, generator)
    shape = (len(log_loss_RN), 1 + num_draws)
    largest = {arm: template.x_range[1] for arm, template in templates.items()}
    end = {arm: _ends(curve, largest[arm], shape) for arm, curve in curves.items()}
    arms = {
        arm: _read(_log_multiplier(curves, baseline, arm, np.maximum(end[baseline], end[arm]), shape))
        for arm in curves if arm != baseline
    }  # fmt: skip
    points = [_points(planned, log_loss_N) for log_loss_N in log_loss_RN]
    paired = {arm: [paired_multiplier(table[baseline], table[arm]) for table in points] for arm in arms}
    method, parts = ("none", {}) if design is None else _parts(design, curves, end, shape)
    return TableReadings(
        arms=arms,
        paired={arm: _read_paired(found) for arm, found in paired.items() if any(found)},
        parts=parts,
        method=method,
    )  # fmt: skip


def _curves(
    planned: Observations, templates: Mapping[str, Fit], log_loss_RN: Array, num_draws: int,
    generator: np.random.Generator,
) -> dict[str, Draws]:  # fmt: skip
    """Every arm's curve in every table and its draws, as one set of [R x E] curves."""
    keys = [key for points in planned.points.values() for key in keys_of(points)]
    losses = _by_arm(planned, log_loss_RN)
    compute = {arm: arrays_of(points)[0] for arm, points in planned.points.items()}
    estimates = {arm: refit_losses(templates[arm], compute[arm], losses[arm]) for arm in templates}
    noise_RDN = np.stack([
        _noise(planned, templates, estimates, log_loss_RN, row).draw(keys, num_draws, generator)
        for row in range(len(log_loss_RN))
    ])  # fmt: skip
    found = {}
    for arm, noise in _by_arm(planned, noise_RDN).items():
        curve_RN = np.log(estimates[arm].predict(compute[arm]))
        drawn = refit_losses(templates[arm], compute[arm], (curve_RN[:, None] + noise).reshape(-1, noise.shape[-1]))
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
    points = [(arm, point) for arm, found in planned.points.items() for point in found]
    cells, keys = [(arm, point.size) for arm, point in points], [(point.size, point.seed) for _, point in points]
    noise = seed_noise(cells, keys, log_loss_RN[row])
    if noise is not None:
        return noise
    fits = {
        arm: replace(template, values={name: float(value_R[row]) for name, value_R in estimates[arm].values.items()})
        for arm, template in templates.items()
    }
    compute = {arm: arrays_of(found)[0] for arm, found in planned.points.items()}
    loss = {arm: np.exp(part[0]) for arm, part in _by_arm(planned, log_loss_RN[row : row + 1]).items()}
    return residual_noise(fits, compute, loss, keys)


def _ends(curve: Draws, largest: float, shape: tuple[int, int]) -> Array:
    """Loss [R] of the estimated curves at the largest compute."""
    return np.asarray(curve.predict(np.array([largest])).reshape(shape)[:, 0])


def _log_multiplier(
    curves: Mapping[str, Draws], baseline: str, arm: str, loss_R: Array, shape: tuple[int, int]
) -> Array:
    """ln m [R, E] at each table's own loss; infinite in all of a table where no number holds an estimated compute."""
    loss_E = np.repeat(loss_R, shape[1])
    log_m_RE = draw_log_multipliers(curves[baseline], curves[arm], loss_E).reshape(shape)
    for one in (baseline, arm):
        log_compute_R = curves[one].log_compute_at(loss_E).reshape(shape)[:, 0]
        log_m_RE[~(np.abs(log_compute_R) <= LARGEST_LOG)] = np.inf
    return np.asarray(log_m_RE)


def _parts(
    design: Design, curves: Mapping[str, Draws], end: Mapping[str, Array], shape: tuple[int, int]
) -> tuple[Method, dict[str, Read]]:
    """What the split attributes to every component, all arms read at one loss; sums are linear, so tables lie flat."""
    loss_R = np.max([end[arm] for arm in design.concerned], axis=0)
    values = {
        coalition: _log_multiplier(curves, design.baseline, arm, loss_R, shape).ravel()
        for coalition, arm in design.arms.items()
        if arm != design.baseline
    }
    values = {NOBODY: np.zeros(shape[0] * shape[1])} | values
    method, terms = _terms(design, values)
    return method, {name: _read(value_E.reshape(shape)) for name, value_E in terms.items()}


def _terms(design: Design, values: Mapping[Coalition, Array]) -> tuple[Method, dict[str, Array]]:
    """By the best method that the arms allow, as `attribution.split` has it."""
    model = fit_pairwise(values, design.component_of) if design.missing(values) else None
    return method_and_terms(design, values, model)[:2]


def _read(log_m_RE: Array) -> Read:
    """The estimate and the middle 95 percent of the draws of every table, as `percentile_interval` takes them."""
    low_R = np.quantile(log_m_RE[:, 1:], TAIL, axis=1, method="lower")
    high_R = np.quantile(log_m_RE[:, 1:], 1 - TAIL, axis=1, method="higher")
    known_R = np.isfinite(log_m_RE[:, 0])
    return Read(
        np.where(known_R, log_m_RE[:, 0], np.nan), np.where(known_R, low_R, -np.inf), np.where(known_R, high_R, np.inf)
    )


def _read_paired(found: Sequence[Paired | None]) -> Read:
    """The logarithms; a table without a paired estimate has an endless interval."""
    ends = [(one.value, one.interval.low, one.interval.high) if one else (np.nan, 0.0, np.inf) for one in found]
    with np.errstate(divide="ignore"):
        return Read(*np.log(ends).T)


def _joined(blocks: Sequence[Mapping[str, Read]]) -> dict[str, Read]:
    """Tables of all blocks, of what every block has."""
    names = [name for name in blocks[0] if all(name in block for block in blocks)]
    return {
        name: Read(*(
            np.concatenate([getattr(block[name], part) for block in blocks])
            for part in ("estimate_R", "low_R", "high_R")
        ))
        for name in names
    }  # fmt: skip


def _by_arm(planned: Observations, values: Array) -> dict[str, Array]:
    """Arm -> its part of an array whose last axis is the points of all arms."""
    splits = np.cumsum([len(points) for points in planned.points.values()])[:-1]
    return dict(zip(planned.points, np.split(values, splits, axis=-1), strict=True))


def _points(planned: Observations, log_loss_N: Array) -> dict[str, list[Point]]:
    """The runs of one table by arm."""
    return {
        arm: [replace(point, loss=float(loss)) for point, loss in zip(planned.points[arm], part, strict=True)]
        for arm, part in _by_arm(planned, np.exp(log_loss_N)).items()
    }
