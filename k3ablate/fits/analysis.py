"""What does a table of runs say about every arm? The one call that reports read.

`analyse` fits both curves to each arm, draws the seeds again, and reads every arm's multiplier against the baseline.
All multipliers of one analysis come from ONE form, so that they compare: `power_floor` where every fitted arm has at
least four different compute values and no parameter at a bound, otherwise `power`; `Analysis.form_reason` says why.
A single size, an arm with too few points, or a table in which no run finished gives no curve and a sentence that says
so. No splitting into components.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas

from k3ablate.config import InputError
from k3ablate.fits.forms import CURVES, POWER, POWER_FLOOR, Array, form_named
from k3ablate.fits.multiplier import Multiplier, read_multiplier
from k3ablate.fits.observations import Excluded, Observations, check_arm, observations
from k3ablate.fits.paired import Paired, Point, paired_multiplier
from k3ablate.fits.solve import DEFAULT_DELTA, Fit, fit
from k3ablate.fits.uncertainty import NUM_DRAWS, Draws, Noise, lack_of_fit, refit, residual_noise, seed_noise

NOTHING_OF_ARM = "no run of this arm finished"
NOTHING_AT_ALL = "no run finished, so there is nothing to fit; every run is listed with its reason"


@dataclass(frozen=True)
class LargestSize:
    """Mean loss over the seeds of the largest size, and their deviation (NaN with one seed)."""

    size: str
    compute: float
    loss: float
    seed_sd: float
    num_seeds: int


@dataclass(frozen=True)
class ArmAnalysis:
    """Everything known about one arm."""

    arm: str
    changed: Mapping[str, str]  # component -> level, where it differs from the baseline's
    points: tuple[Point, ...]
    largest: LargestSize | None  # None where no run finished
    fits: Mapping[str, Fit]  # form -> fit
    no_fit: Mapping[str, str]  # form -> why there is none
    draws: Mapping[str, Draws]
    multiplier: Multiplier | None
    no_multiplier: str  # why there is none; empty where there is one
    paired: Paired | None


@dataclass(frozen=True)
class Analysis:
    """What the tables and figures show. `form` is None where no curve can be read; `form_reason` then says why."""

    baseline: str
    arms: tuple[ArmAnalysis, ...]
    form: str | None
    form_reason: str
    noise: Mapping[str, Noise]  # form -> noise its intervals were drawn from
    num_draws: int
    excluded: tuple[Excluded, ...]
    warnings: tuple[str, ...]

    def arm(self, name: str) -> ArmAnalysis:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.arm == name)

    def is_repeat_of_baseline(self, arm: ArmAnalysis) -> bool:
        """Whether it is an A/A arm: another name, but every declared component at the baseline's level."""
        return arm.arm != self.baseline and not arm.changed and self.has_levels

    @property
    def any_finished(self) -> bool:
        """Whether there is a loss at all."""
        return any(arm.points for arm in self.arms)

    @property
    def has_levels(self) -> bool:
        """Whether the table told the components' levels."""
        return any(arm.changed for arm in self.arms)


@dataclass(frozen=True)
class Curves:
    """Fits of one form to all arms that allow it, with their bootstrap draws."""

    fits: Mapping[str, Fit]
    refused: Mapping[str, str]
    draws: Mapping[str, Draws]
    noise: Noise | None


def analyse(
    table: pandas.DataFrame,
    baseline: str,
    form: str | None,
    generator: np.random.Generator,
    num_draws: int = NUM_DRAWS,
    delta: float = DEFAULT_DELTA,
    at_loss: float | None = None,
) -> Analysis:
    """Fits, multipliers and exclusions of a table of records (loss in nats per token, `flops` as compute).

    `form` None chooses by the rule above; `at_loss` None reads each at the lowest loss measured for both arms.
    A table without a finished run has no curve, and every run in `excluded`. InputError for what else statistics.md,
    section 6 refuses.
    """
    seen = observations(table)
    check_arm(baseline, seen.points)
    if form is not None:
        form_named(form)
    curves = {name: _curves(seen, name, delta, num_draws, generator) for name in CURVES}
    chosen, reason = _choose_form(curves, baseline, form) if any(seen.points.values()) else (None, NOTHING_AT_ALL)
    arms = tuple(_arm(seen, curves, name, baseline, chosen, reason, at_loss) for name in seen.points)
    noise = {name: curve.noise for name, curve in curves.items() if curve.noise is not None}
    analysis = Analysis(baseline, arms, chosen, reason, noise, num_draws, seen.excluded, ())
    return replace(analysis, warnings=tuple(_warnings(analysis)))


def _curves(seen: Observations, form: str, delta: float, num_draws: int, generator: np.random.Generator) -> Curves:
    """Fits of one form, and the draws of all their points at once, so that pairs of arms keep their shared noise."""
    fits: dict[str, Fit] = {}
    refused: dict[str, str] = {}
    for arm, points in seen.points.items():
        dropped = tuple(
            f"{run.size} seed {run.seed}: {run.status} ({run.reason})" for run in seen.excluded if run.arm == arm
        )
        try:
            fits[arm] = _fit(points, form, delta, dropped)
        except InputError as error:
            refused[arm] = str(error)
    if not fits:
        return Curves(fits, refused, {}, None)
    noise = _noise(seen, fits)
    keys = [key for arm in fits for key in _keys(seen.points[arm])]
    noise_DN = noise.draw(keys, num_draws, generator)
    splits = np.cumsum([len(seen.points[arm]) for arm in fits])[:-1]
    draws = {}
    for arm, part_DN in zip(fits, np.split(noise_DN, splits, axis=1), strict=True):
        compute_N, loss_N = _arrays(seen.points[arm])
        draws[arm] = refit(fits[arm], compute_N, part_DN)
        misfit = lack_of_fit(fits[arm], compute_N, loss_N, noise)
        fits[arm] = replace(
            fits[arm],
            intervals=draws[arm].intervals(),
            interval_method=noise.method,
            warnings=fits[arm].warnings + ((misfit,) if misfit else ()),
        )
    return Curves(fits, refused, draws, noise)


def _fit(points: Sequence[Point], form: str, delta: float, dropped: tuple[str, ...]) -> Fit:
    if not points:
        raise InputError(NOTHING_OF_ARM)
    compute_N, loss_N = _arrays(points)
    return fit(compute_N, loss_N, form, delta, dropped)


def _noise(seen: Observations, fits: Mapping[str, Fit]) -> Noise:
    """From the seeds of all arms, fitted or not; from residuals where no arm has two seeds at a size."""
    everything = [(arm, point) for arm, points in seen.points.items() for point in points]
    keys = [(point.size, point.seed) for _, point in everything]
    log_loss_N = np.log([point.loss for _, point in everything])
    from_seeds = seed_noise([(arm, point.size) for arm, point in everything], keys, log_loss_N)
    if from_seeds is not None:
        return from_seeds
    arrays = {arm: _arrays(seen.points[arm]) for arm in fits}
    fitted_keys = [key for arm in fits for key in _keys(seen.points[arm])]
    return residual_noise(
        fits,
        {arm: pair[0] for arm, pair in arrays.items()},
        {arm: pair[1] for arm, pair in arrays.items()},
        fitted_keys,
    )


def _choose_form(curves: Mapping[str, Curves], baseline: str, asked: str | None) -> tuple[str | None, str]:
    """The form all multipliers are read from, and the sentence that says why."""
    with_floor, without = curves[POWER_FLOOR.name], curves[POWER.name]
    if asked is not None and not curves[asked].fits:
        return None, f"no arm allows {asked}, as asked for; {baseline}: {curves[asked].refused[baseline]}"
    if asked is not None:
        return asked, f"{asked}, as asked for"
    if baseline not in without.fits:
        return None, f"no curve for the baseline: {without.refused[baseline]}"
    lacking = [arm for arm in without.fits if arm not in with_floor.fits]
    if lacking:
        return POWER.name, f"power, because {lacking[0]} allows no floor: {with_floor.refused[lacking[0]]}"
    bounded = [arm for arm, fitted in with_floor.fits.items() if fitted.at_bounds]
    if bounded:
        parameters = ", ".join(with_floor.fits[bounded[0]].at_bounds)
        return POWER.name, f"power, because the power_floor fit of {bounded[0]} has {parameters} at a bound"
    return POWER_FLOOR.name, "power_floor: every arm has at least four compute values and no parameter at a bound"


def _arm(
    seen: Observations, curves: Mapping[str, Curves], name: str, baseline: str, form: str | None, form_reason: str,
    at_loss: float | None,
) -> ArmAnalysis:  # fmt: skip
    points = seen.points[name]
    paired = paired_multiplier(seen.points[baseline], points) if name != baseline else None
    if not points:
        multiplier, no_multiplier = None, NOTHING_OF_ARM
    elif name == baseline:
        multiplier, no_multiplier = None, "the baseline"
    elif form is None:
        multiplier, no_multiplier = None, form_reason
    else:
        multiplier, no_multiplier = _multiplier(curves[form], name, baseline, at_loss, paired)
    levels = seen.levels.get(name, {})
    return ArmAnalysis(
        arm=name,
        changed={key: level for key, level in levels.items() if level != seen.levels[baseline].get(key)},
        points=points,
        largest=_largest(points),
        fits={form_name: curve.fits[name] for form_name, curve in curves.items() if name in curve.fits},
        no_fit={form_name: curve.refused[name] for form_name, curve in curves.items() if name in curve.refused},
        draws={form_name: curve.draws[name] for form_name, curve in curves.items() if name in curve.draws},
        multiplier=multiplier,
        no_multiplier=no_multiplier,
        paired=paired,
    )


def _multiplier(
    curve: Curves, arm: str, baseline: str, at_loss: float | None, paired: Paired | None
) -> tuple[Multiplier | None, str]:
    """The arm's multiplier from curves of one form, or the reason why there is none."""
    for needed in (baseline, arm):
        if needed not in curve.fits:
            return None, f"{needed}: {curve.refused[needed]}"
    try:
        read = read_multiplier(
            curve.fits[baseline], curve.fits[arm], curve.draws[baseline], curve.draws[arm], paired, at_loss
        )
    except InputError as error:
        return None, str(error)
    return read, ""


def _largest(points: Sequence[Point]) -> LargestSize | None:
    if not points:
        return None
    top = max(points, key=lambda point: point.compute)
    losses = [point.loss for point in points if point.size == top.size]
    deviation = float(np.std(losses, ddof=1)) if len(losses) > 1 else float("nan")
    return LargestSize(top.size, top.compute, float(np.mean(losses)), deviation, len(losses))


def _warnings(analysis: Analysis) -> list[str]:
    """What holds for the analysis as a whole; an arm's own warnings stay with its numbers."""
    warnings = []
    for name, noise in analysis.noise.items():
        if noise.source == "residuals" and name == analysis.form:
            warnings.append("one seed per point: intervals come from the residuals about the curves, not from seeds")
    for arm in analysis.arms:
        repeated = analysis.is_repeat_of_baseline(arm) and arm.multiplier is not None
        if repeated and arm.multiplier is not None and not arm.multiplier.interval.contains(1.0):
            warnings.append(
                f"{arm.arm} repeats the baseline, but its interval does not contain 1: trust no smaller effect"
            )
    return warnings


def _keys(points: Sequence[Point]) -> list[tuple[str, int]]:
    return [(point.size, point.seed) for point in points]


def _arrays(points: Sequence[Point]) -> tuple[Array, Array]:
    return np.array([point.compute for point in points]), np.array([point.loss for point in points])
