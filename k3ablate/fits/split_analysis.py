"""What does an analysed table say about the way from its baseline to a target arm?

Chooses the point where all arms of the split are read (the lowest loss that all of them measured, unless one is asked
for), reads the other arms of the table there too, splits, and checks: an arm that repeats another's levels should have
a ratio of 1 to it. Fitting is in `analysis`, reading in `readings`, the sums in `attribution`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from k3ablate.config import InputError
from k3ablate.fits.analysis import Analysis
from k3ablate.fits.attribution import Split, split
from k3ablate.fits.coalitions import Design, design
from k3ablate.fits.forms import Array
from k3ablate.fits.readings import Readings, read_all
from k3ablate.fits.split import NOBODY, Coalition, Effect, difference, effect


@dataclass(frozen=True)
class Check:
    """An arm with the levels of another, its compute multiplier over that one, which should be 1."""

    arm: str
    repeats: str
    effect: Effect
    contains_one: bool


@dataclass(frozen=True)
class AnalysedSplit:
    """The split to one target, where it is read, and what checks it."""

    baseline: str
    form: str
    form_reason: str
    elsewhere: str  # what is known of the split at other losses
    loss: float  # where all arms are read
    compute: float  # of the baseline there
    beyond: Mapping[str, float]  # arm of the split -> factor by which the point lies outside its measured range
    split: Split
    other_targets: tuple[Split, ...]  # to the arms that change every component to other levels
    checks: tuple[Check, ...]
    warnings: tuple[str, ...]

    @property
    def extrapolated(self) -> dict[str, float]:
        """Arms that are read outside what they and the baseline measured, with the factor."""
        return {arm: factor for arm, factor in self.beyond.items() if factor > 1.0}


def split_analysis(
    analysis: Analysis, target: str | None = None, loss: float | None = None, compute: float | None = None,
    claimed: float | None = None,
) -> AnalysedSplit:  # fmt: skip
    """The split to `target`, by default the last arm that changes every component; see `split` for `claimed`.

    InputError where there is nothing to split, or where the baseline cannot be read at the point asked for.
    """
    changed = {arm.arm: arm.changed for arm in analysis.arms}
    planned = design(changed, analysis.baseline, target)
    at = read_all(analysis, None, loss, compute, arms=planned.concerned)
    everyone = read_all(analysis, None, at.loss if compute is None else None, compute)
    if len(everyone.log_multiplier) < 2:
        raise InputError(f"split: no arm but {analysis.baseline} can be read: {'; '.join(everyone.warnings)}")
    others = [design(changed, analysis.baseline, other) for other in planned.other_targets]
    found = _split(planned, everyone, claimed)
    return AnalysedSplit(
        baseline=analysis.baseline,
        form=at.form,
        form_reason=analysis.form_reason,
        elsewhere=_elsewhere(analysis),
        loss=at.loss,
        compute=at.compute,
        beyond={arm: at.beyond[arm] for arm in planned.concerned if arm in at.beyond},
        split=found,
        other_targets=tuple(_split(other, everyone, claimed) for other in others),
        checks=_checks(planned, everyone),
        warnings=_warnings(everyone, found),
    )


def _elsewhere(analysis: Analysis) -> str:
    """Curves of one exponent have one split, wherever they are read."""
    if analysis.parallel is None:
        return f"whether it is the same is not tested ({analysis.not_tested})"
    same = "it is another" if analysis.parallel.rejected else "it may be the same"
    return f"{same}, as {analysis.parallel.decision}"


def _split(planned: Design, readings: Readings, claimed: float | None) -> Split:
    by_name = sorted(planned.arms.items(), key=lambda named: named[1])  # sums do not depend on the order of the table
    values: dict[Coalition, Array] = {
        coalition: _values(readings, arm) for coalition, arm in by_name if arm in readings.log_multiplier
    }
    assert NOBODY in values, "readings hold the baseline"
    return split(planned, values, readings.refused, claimed)


def _checks(planned: Design, readings: Readings) -> tuple[Check, ...]:
    found = []
    for arm, first in planned.repeats.items():
        if arm in readings.log_multiplier and first in readings.log_multiplier:
            ratio = effect(difference(_values(readings, arm), _values(readings, first)))
            found.append(Check(arm, first, ratio, not ratio.told_from_one))
    return tuple(found)


def _warnings(readings: Readings, found: Split) -> tuple[str, ...]:
    """Those of the readings but for arms that the split names as missing."""
    named = tuple(f"{gone.arm}: " for gone in found.missing if gone.arm in readings.refused)
    return tuple(text for text in readings.warnings if not text.startswith(named))


def _values(readings: Readings, arm: str) -> Array:
    return np.concatenate([[readings.log_multiplier[arm]], readings.draws[arm]])
