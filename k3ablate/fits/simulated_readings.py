"""What multipliers and parts does each of many simulated tables say, as its report and its split would?

A multiplier is read at the lowest loss that baseline and arm reach in that table, parts of the split at the lowest that
all arms of the split reach, or all of them at a stated place; paired estimates are made table by table. The functions
are those of `multiplier`, `paired` and `attribution`; tables lie flat, one after the other, in their arrays.

Array legend: R tables, E the estimate and then the draws of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from k3ablate.fits.analysis import Place
from k3ablate.fits.attribution import Method, method_and_terms
from k3ablate.fits.coalitions import Design
from k3ablate.fits.curves import arrays_of
from k3ablate.fits.forms import Array
from k3ablate.fits.multiplier import draw_log_multipliers
from k3ablate.fits.observations import Observations
from k3ablate.fits.paired import Paired, Point, paired_multiplier
from k3ablate.fits.pairwise import fit_pairwise
from k3ablate.fits.simulated_tables import FittedTables, by_arm
from k3ablate.fits.solve import LARGEST_LOG
from k3ablate.fits.split import NOBODY, Coalition
from k3ablate.fits.uncertainty import TAIL

MEASURED = Place()


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


def read_tables(tables: FittedTables, baseline: str, design: Design | None, place: Place = MEASURED) -> TableReadings:
    """The readings of every table at `place`, by default where each was measured; `design` None splits nothing."""
    largest = {arm: float(arrays_of(points)[0].max()) for arm, points in tables.planned.points.items()}
    end = {
        arm: curve.predict(np.array([largest[arm]])).reshape(tables.shape)[:, 0] for arm, curve in tables.curves.items()
    }
    arms = [arm for arm in tables.curves if arm != baseline]
    points = [_points(tables.planned, log_loss_N) for log_loss_N in tables.log_loss_RN]
    paired = {arm: [paired_multiplier(table[baseline], table[arm]) for table in points] for arm in arms}
    method, parts = ("none", {}) if design is None else _parts(tables, design, end, place)
    return TableReadings(
        arms={
            arm: _read(_log_multiplier(tables, baseline, arm, np.maximum(end[baseline], end[arm]), place))
            for arm in arms
        },
        paired={arm: _read_paired(found) for arm, found in paired.items() if any(found)},
        parts=parts,
        method=method,
    )


def planted_parts(design: Design, log_multipliers: Mapping[str, float]) -> dict[str, float]:
    """What the split attributes to every component where ln m of the arms is known."""
    values = {coalition: np.array([log_multipliers[arm]]) for coalition, arm in design.arms.items()}
    return {name: float(value_E[0]) for name, value_E in _terms(design, values)[1].items()}


def _log_multiplier(tables: FittedTables, baseline: str, arm: str, loss_R: Array, place: Place) -> Array:
    """ln m [R, E] at `place`, or at each table's own loss; infinite in all of a table where no number holds an
    estimated compute."""
    base = tables.curves[baseline]
    loss_E = np.repeat(loss_R if place.loss is None else np.full_like(loss_R, place.loss), tables.shape[1])
    if place.compute is not None:
        loss_E = base.predict(np.array([place.compute]))[:, 0]
    log_m_RE = draw_log_multipliers(base, tables.curves[arm], loss_E, place.compute).reshape(tables.shape)
    for one in (baseline, arm):
        log_compute_R = tables.curves[one].log_compute_at(loss_E).reshape(tables.shape)[:, 0]
        log_m_RE[~(np.abs(log_compute_R) <= LARGEST_LOG)] = np.inf
    return np.asarray(log_m_RE)


def _parts(
    tables: FittedTables, design: Design, end: Mapping[str, Array], place: Place
) -> tuple[Method, dict[str, Read]]:
    """What the split attributes to every component, all arms read at one loss."""
    loss_R = np.max([end[arm] for arm in design.concerned], axis=0)
    values = {
        coalition: _log_multiplier(tables, design.baseline, arm, loss_R, place).ravel()
        for coalition, arm in design.arms.items()
        if arm != design.baseline
    }
    method, terms = _terms(design, {NOBODY: np.zeros(tables.shape[0] * tables.shape[1])} | values)
    return method, {name: _read(value_E.reshape(tables.shape)) for name, value_E in terms.items()}


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


def _points(planned: Observations, log_loss_N: Array) -> dict[str, list[Point]]:
    """The runs of one table by arm."""
    return {
        arm: [replace(point, loss=float(loss)) for point, loss in zip(planned.points[arm], part_N, strict=True)]
        for arm, part_N in by_arm(planned, np.exp(log_loss_N)).items()
    }
