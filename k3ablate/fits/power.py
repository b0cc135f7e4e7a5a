"""What could a planned experiment tell apart, before any of its compute is spent?

Simulates tables of the planned runs with curves and seeds that are assumed, analyses each as a table of real runs is
(`simulated_tables`, `simulated_readings`), and says of every arm and component how wide its interval comes out and how
large a multiplier must be to be told from 1 in eight of ten experiments. It says what the design could see if curves
are of the assumed form; it cannot know the noise, which the caller states or takes from a pilot (`pilot`).

Two rounds with the same random numbers: one in which nothing differs, which gives half-widths and false alarms, and one
with gains near the smallest that the first round would tell from 1. Each table then has a critical gain, the one at
which its interval begins to leave 1 out, as it lies on the line through the two rounds; power is the share of tables
whose critical gain is smaller. The tests simulate gains apart and find the stated power.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas
from scipy import stats

from k3ablate.config import InputError
from k3ablate.fits.analysis import Place, analyse
from k3ablate.fits.coalitions import Design, design
from k3ablate.fits.curves import arrays_of
from k3ablate.fits.forms import CURVES, Array, curve_named
from k3ablate.fits.multiplier import FURTHEST, check_place
from k3ablate.fits.observations import Observations, check_arm, observations
from k3ablate.fits.simulated_readings import MEASURED, Read, TableReadings, planted_parts, read_tables
from k3ablate.fits.simulated_tables import FittedTables, Truth, draw_losses, fit_tables
from k3ablate.fits.solve import DEFAULT_DELTA, Interval
from k3ablate.fits.uncertainty import TAIL

POWER = 0.8
NUM_TABLES = 200
NUM_DRAWS = 119  # the middle 95 percent of 40 k - 1 draws hold exactly that in the mean, here 114 of 120
NUM_CHOOSING = 4  # tables whose whole analysis chooses the form
CHOOSING_DRAWS = 39
SEED = 0  # the same plan gives the same power


@dataclass(frozen=True)
class Assumed:
    """How the simulation is carried out."""

    truth: Truth
    multipliers: tuple[float, ...] = ()  # whose power is stated
    form: str | None = None  # of the analysis; None: the one that analyses of simulated tables choose
    place: Place = MEASURED  # where multipliers are read
    num_tables: int = NUM_TABLES
    num_draws: int = NUM_DRAWS
    num_choosing: int = NUM_CHOOSING
    delta: float = DEFAULT_DELTA
    seed: int = SEED


@dataclass(frozen=True)
class Sensitivity:
    """What the design tells of one multiplier. Factors; infinite where most tables have no interval."""

    name: str
    half_width: float  # of the 95 percent interval, median over tables in which nothing differs
    smallest: float  # that is told from 1 in eight of ten tables
    smallest_interval: Interval  # of it over simulations, 95 percent
    power: tuple[float, ...]  # at the stated multipliers, in their order
    false_alarms: float  # share of the tables in which nothing differs and the interval leaves 1 out


@dataclass(frozen=True)
class DesignPower:
    """Of all arms, by curves and by pairs, and of all components."""

    form: str
    form_share: float  # of the analyses that chose it; 1 where it was asked for
    num_tables: int
    num_draws: int
    repeats: tuple[str, ...]  # arms with the baseline's levels: A/A
    arms: tuple[Sensitivity, ...]
    paired: tuple[Sensitivity, ...]  # of arms that share seeds with the baseline
    parts: tuple[Sensitivity, ...]  # of components
    method: str  # of the split that the parts are from

    def share_error(self, share: float) -> float:
        """Standard error of a share of the tables."""
        return float(np.sqrt(share * (1 - share) / self.num_tables))


def planned_runs(table: pandas.DataFrame) -> Observations:
    """The runs of a table that has no losses yet (arm, size, seed, flops, and the components' levels)."""
    known = table.drop(columns=[name for name in ("loss", "status", "reason") if name in table])
    return observations(known.assign(loss=1.0))


def design_power(planned: Observations, baseline: str, assumed: Assumed) -> DesignPower:
    """Simulate `planned` and say what it tells apart; InputError where no curve can be fitted to such runs."""
    check_arm(baseline, planned.points)
    if len(planned.points) < 2:
        raise InputError(f"power: {baseline} is the only arm; a multiplier needs another")
    _check(planned, baseline, assumed)
    form, form_share = _form(planned, baseline, assumed)
    changes = {arm: _changed(planned, baseline, arm) for arm in planned.points}
    split = _split(changes, baseline)
    tables = _simulated(planned, form, assumed, dict.fromkeys(planned.points, 0.0))
    null = read_tables(tables, baseline, split, assumed.place)
    gains = _gains(planned, baseline, changes, null)
    with_gains = tables.with_gains(assumed.truth, gains) or _simulated(planned, form, assumed, gains)
    found = read_tables(with_gains, baseline, split, assumed.place)
    return DesignPower(
        form=form,
        form_share=form_share,
        num_tables=assumed.num_tables,
        num_draws=assumed.num_draws,
        repeats=tuple(arm for arm, changed in changes.items() if arm != baseline and not changed),
        arms=_sensitivities(null.arms, found.arms, gains, assumed),
        paired=_sensitivities(null.paired, found.paired, gains, assumed),
        parts=_sensitivities(null.parts, found.parts, {} if split is None else planted_parts(split, gains), assumed),
        method=null.method,
    )


def _check(planned: Observations, baseline: str, assumed: Assumed) -> None:
    """InputError for a form that is not simulated, and for a place that no report would read."""
    if assumed.form is not None and assumed.form not in CURVES:
        raise InputError(
            f"--form {assumed.form}: power simulates curves of one arm each; write one of {', '.join(CURVES)}"
        )
    check_place(assumed.place.loss, assumed.place.compute)
    compute_N, truth = arrays_of(planned.points[baseline])[0], assumed.truth
    read = assumed.place.compute
    if assumed.place.loss is not None:
        values = {name: np.array([value]) for name, value in truth.values.items()}
        with np.errstate(over="ignore"):
            read = float(np.exp(curve_named(truth.form).log_compute_at(values, assumed.place.loss)[0]))
    if read is not None and not compute_N.min() / FURTHEST <= read <= compute_N.max() * FURTHEST:
        where = f"loss {assumed.place.loss:.6g}" if assumed.place.loss is not None else f"compute {read:.4g}"
        raise InputError(
            f"power: {where} lies outside what a report would read: the assumed baseline is there at compute "
            f"{read:.4g}, and {compute_N.min():.4g} to {compute_N.max():.4g} are planned; ask within {FURTHEST:,.0f} "
            "times of them"
        )


def critical_gains(null: Read, gain: Read, planted: float) -> Array:
    """ln m [R] from which on each table's interval leaves 1 out; infinite where none does.

    The lower end is the truth less a distance, which is taken as straight between the round without gain and the one
    with `planted`.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        at_null_R, slope_R = -null.low_R, np.zeros_like(null.low_R)
        if planted > 0:
            slope_R = (planted - gain.low_R - at_null_R) / planted
        critical_R = at_null_R / (1 - slope_R)
    reached_R = np.isfinite(at_null_R) & np.isfinite(slope_R) & (slope_R < 1)
    return np.where(reached_R, critical_R, np.inf)


def _sensitivities(
    null: Mapping[str, Read], gain: Mapping[str, Read], planted: Mapping[str, float], assumed: Assumed
) -> tuple[Sensitivity, ...]:
    return tuple(
        _sensitivity(name, null[name], critical_gains(null[name], gain[name], planted[name]), assumed)
        for name in null if name in gain
    )  # fmt: skip


def _sensitivity(name: str, null: Read, critical_R: Array, assumed: Assumed) -> Sensitivity:
    with np.errstate(over="ignore", invalid="ignore"):
        half_width_R = np.where(np.isfinite(null.low_R), (null.high_R - null.low_R) / 2, np.inf)
        low, high = _ranks(len(critical_R))
        ordered_R = np.exp(np.sort(critical_R))
        smallest = float(np.exp(np.quantile(critical_R, POWER, method="higher")))
        half_width = float(np.exp(np.quantile(half_width_R, 0.5, method="lower")))
    return Sensitivity(
        name=name,
        half_width=half_width,
        smallest=smallest,
        smallest_interval=Interval(float(ordered_R[low]), float(ordered_R[high])),
        power=tuple(float(np.mean(critical_R < np.log(multiplier))) for multiplier in assumed.multipliers),
        false_alarms=float(np.mean((null.low_R > 0) | (null.high_R < 0))),
    )


def _ranks(num_tables: int) -> tuple[int, int]:
    """Ranks between which the quantile of the smallest multiplier lies in 95 percent of simulations."""
    low, high = stats.binom.ppf((TAIL, 1 - TAIL), num_tables, POWER)
    return max(int(low) - 1, 0), min(int(high), num_tables - 1)


def _simulated(planned: Observations, form: str, assumed: Assumed, gains: Mapping[str, float]) -> FittedTables:
    """Tables in which every arm has its gain; the random numbers are those of every other round."""
    generator = np.random.default_rng(assumed.seed)
    losses_RN = draw_losses(planned, assumed.truth, gains, assumed.num_tables, generator)
    return fit_tables(planned, form, losses_RN, assumed.num_draws, assumed.delta, generator)


def _gains(
    planned: Observations, baseline: str, changes: Mapping[str, Mapping[str, str]], null: TableReadings
) -> dict[str, float]:
    """ln m of every arm in the round with gains, which grows as the square root of how many components it changes.

    So an arm lies near the smallest gain that it tells (the median over arms, within the range of compute), and a part
    of the full factorial near that of parts, which is about half of it.
    """
    ends = [float(np.quantile(-null.arms[arm].low_R, POWER, method="higher")) for arm in null.arms if changes[arm]]
    compute_N = arrays_of(planned.points[baseline])[0]
    most = float(np.log(compute_N.max() / compute_N.min())) / 2
    gain = min(float(np.median(ends)), most) if ends else 0.0
    fewest = min((len(changed) for changed in changes.values() if changed), default=1)
    return {arm: gain * float(np.sqrt(len(changed) / fewest)) for arm, changed in changes.items()}


def _form(planned: Observations, baseline: str, assumed: Assumed) -> tuple[str, float]:
    """The form that most analyses of simulated tables choose, and the share of those that do."""
    if assumed.form is not None:
        return assumed.form, 1.0
    generator = np.random.default_rng(assumed.seed)
    losses_RN = draw_losses(planned, assumed.truth, dict.fromkeys(planned.points, 0.0), assumed.num_choosing, generator)
    points = [(arm, point) for arm, found in planned.points.items() for point in found]
    labels = pandas.DataFrame(
        [{"arm": arm, "size": point.size, "seed": point.seed, "flops": point.compute} for arm, point in points]
    )
    analyses = [
        analyse(labels.assign(loss=np.exp(loss_N)), baseline, None, generator, CHOOSING_DRAWS, assumed.delta)
        for loss_N in losses_RN
    ]
    forms = Counter(found.form for found in analyses)
    ((form, times),) = forms.most_common(1)
    if form is None:
        raise InputError(f"power: such runs give no multiplier: {analyses[0].form_reason}")
    return form, times / len(analyses)


def _changed(planned: Observations, baseline: str, arm: str) -> dict[str, str]:
    """Component -> level, where the arm differs from the baseline; without levels the arm itself is the change."""
    levels, base = planned.levels.get(arm, {}), planned.levels.get(baseline, {})
    if not any(planned.levels.values()):
        return {} if arm == baseline else {"arm": arm}
    return {name: level for name, level in levels.items() if level != base.get(name)}


def _split(changes: Mapping[str, Mapping[str, str]], baseline: str) -> Design | None:
    """The split to the last arm that changes everything; None with a single component."""
    components = {name for changed in changes.values() for name in changed}
    return design(changes, baseline) if len(components) > 1 else None
