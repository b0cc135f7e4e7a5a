"""What does a table of runs say about every arm? The one call that reports read.

`analyse` fits curves to each arm, draws the seeds again, and reads every arm's multiplier against the baseline: one
number at a stated point, the same as a curve m(C) over what was measured, and the paired estimate. Which form they are
read from is decided in `choosing`; `Analysis.form_reason` says why. Where a form that arms share was asked for and its
hypothesis fails there is m(C) and no single number. A single size, an arm with too few points, or a table in which no
run finished gives no curve and a sentence that says so. No splitting into components.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas

from k3ablate.config import InputError
from k3ablate.fits.caveats import caveats
from k3ablate.fits.choosing import Choice, check_form, choose
from k3ablate.fits.curves import NOTHING_OF_ARM, Curves, Drawing, own_curves, seeds_of, shared_curves
from k3ablate.fits.forms import CURVES, SHARED
from k3ablate.fits.hypotheses import ParallelTest, holm
from k3ablate.fits.multiplier import Multiplier, MultiplierCurve, check_place, multiplier_curve, read_multiplier
from k3ablate.fits.observations import Excluded, Observations, check_arm, observations
from k3ablate.fits.paired import Paired, Point, paired_multiplier
from k3ablate.fits.solve import DEFAULT_DELTA, Fit
from k3ablate.fits.uncertainty import NUM_DRAWS, Draws, Noise


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
    multiplier_curve: MultiplierCurve | None = None
    holm_p_value: float | None = None  # the multiplier's, corrected for all arms that are no repeat of the baseline


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
    forms: tuple[str, ...] = tuple(CURVES)  # that were fitted
    parallel: ParallelTest | None = None  # of one exponent for all arms
    not_tested: str = ""  # why there is no such test

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
class Place:
    """Where multipliers are read: at a loss, at a compute of the baseline, or, both None, where each was measured."""

    loss: float | None = None
    compute: float | None = None


def analyse(
    table: pandas.DataFrame,
    baseline: str,
    form: str | None,
    generator: np.random.Generator,
    num_draws: int = NUM_DRAWS,
    delta: float = DEFAULT_DELTA,
    at_loss: float | None = None,
    at_compute: float | None = None,
    floor: float | None = None,
) -> Analysis:
    """Fits, multipliers and exclusions of a table of records (loss in nats per token, `flops` as compute).

    `form` None leaves the choice to `choosing`; one that arms share takes the `floor` that is given, or a free one.
    Multipliers are read at `at_loss`, where the baseline has spent `at_compute`, or, both None, each at the lowest loss
    measured for both arms. A table without a finished run has no curve, and every run in `excluded`. InputError for
    what else statistics.md, section 6 refuses.
    """
    check_form(form, floor)
    check_place(at_loss, at_compute)
    seen = observations(table)
    check_arm(baseline, seen.points)
    drawing, drawn = Drawing(delta, num_draws, generator), seen.by_name()
    curves = {name: own_curves(drawn, name, drawing) for name in CURVES}
    if form in SHARED:
        curves[form] = shared_curves(drawn, form, baseline, floor, drawing)
    choice = choose(drawn, curves, baseline, form, floor, delta, seeds_of(drawn))
    if form in SHARED and choice.withheld:
        curves[form] = curves[form].warned(choice.withheld)
    place = Place(at_loss, at_compute)
    analysis = Analysis(
        baseline=baseline,
        arms=tuple(_arm(seen, curves, name, baseline, choice, place) for name in seen.points),
        form=choice.form,
        form_reason=choice.reason,
        noise={name: curve.noise for name, curve in curves.items() if curve.noise is not None},
        num_draws=num_draws,
        excluded=seen.excluded,
        warnings=(),
        forms=tuple(curves),
        parallel=choice.parallel,
        not_tested=choice.not_tested,
    )
    analysis = replace(analysis, arms=_with_holm(analysis))
    return replace(analysis, warnings=(*_warnings(analysis), *caveats(table)))


def _arm(
    seen: Observations, curves: Mapping[str, Curves], name: str, baseline: str, choice: Choice, place: Place
) -> ArmAnalysis:
    points, levels = seen.points[name], seen.levels.get(name, {})
    arm = ArmAnalysis(
        arm=name,
        changed={key: level for key, level in levels.items() if level != seen.levels[baseline].get(key)},
        points=points,
        largest=_largest(points),
        fits={form: curve.fits[name] for form, curve in curves.items() if name in curve.fits},
        no_fit={form: curve.refused[name] for form, curve in curves.items() if name in curve.refused},
        draws={form: curve.draws[name] for form, curve in curves.items() if name in curve.draws},
        multiplier=None,
        no_multiplier="",
        paired=paired_multiplier(seen.points[baseline], points) if name != baseline else None,
    )
    if not points:
        return replace(arm, no_multiplier=NOTHING_OF_ARM)
    if name == baseline:
        return replace(arm, no_multiplier="the baseline")
    if choice.form is None:
        return replace(arm, no_multiplier=choice.reason)
    return _with_multiplier(arm, curves[choice.form], baseline, choice, place)


def _with_multiplier(arm: ArmAnalysis, curve: Curves, baseline: str, choice: Choice, place: Place) -> ArmAnalysis:
    """The arm with its multiplier and m(C) from curves of one form, or with the reason why there is none."""
    for needed in (baseline, arm.arm):
        if needed not in curve.fits:
            return replace(arm, no_multiplier=f"{needed}: {curve.refused[needed]}")
    assert curve.noise is not None, "curves that were fitted have a noise"
    pair = (curve.fits[baseline], curve.fits[arm.arm], curve.draws[baseline], curve.draws[arm.arm])
    try:
        arm = replace(arm, multiplier_curve=multiplier_curve(*pair))
        if choice.withheld:
            return replace(arm, no_multiplier=choice.withheld)
        degrees = curve.noise.own_degrees
        read = read_multiplier(*pair, arm.paired, place.loss, place.compute, degrees_of_freedom=degrees)
    except InputError as error:
        return replace(arm, no_multiplier=str(error))
    return replace(arm, multiplier=read)


def _with_holm(analysis: Analysis) -> tuple[ArmAnalysis, ...]:
    """Arms with the p-values that their number leaves; a repeat of the baseline claims nothing and is not counted."""
    raw = {
        arm.arm: arm.multiplier.p_value
        for arm in analysis.arms
        if arm.multiplier is not None and not analysis.is_repeat_of_baseline(arm)
    }
    corrected = holm(raw)
    return tuple(replace(arm, holm_p_value=corrected.get(arm.arm)) for arm in analysis.arms)


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
