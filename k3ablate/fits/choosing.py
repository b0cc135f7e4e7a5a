"""Which curves are the multipliers of a table read from, and do the arms differ by one number each?

All multipliers of one analysis come from ONE form, so that they compare: `power_floor` where every fitted arm
determines its floor and has no parameter at a bound, otherwise `power`, unless one is asked for. A form that arms share
serves as far as its hypothesis does: where one exponent for all arms is rejected its single numbers are `withheld`, and
the arms' own curves take its place. The curves are fitted in `curves`, the hypothesis is tested in `hypotheses`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from k3ablate.config import InputError
from k3ablate.fits.curves import Curves
from k3ablate.fits.forms import CURVES, POWER, POWER_FLOOR, SHARED
from k3ablate.fits.hypotheses import ParallelTest, parallel_test
from k3ablate.fits.observations import Observations
from k3ablate.fits.uncertainty import Noise

NOTHING_AT_ALL = "no run finished, so there is nothing to fit; every run is listed with its reason"


@dataclass(frozen=True)
class Choice:
    """`form` is None where no curve can be read; `reason` says why this form, or why none."""

    form: str | None
    reason: str
    parallel: ParallelTest | None = None  # of one exponent for all arms
    not_tested: str = ""  # why there is no such test
    withheld: str = ""  # why arms have no single multiplier although there are curves


def choose(
    seen: Observations, curves: Mapping[str, Curves], baseline: str, asked: str | None, floor: float | None,
    delta: float, seeds: Noise | None,
) -> Choice:  # fmt: skip
    """The form, by the rule above; `floor` is the one given for a form that arms share."""
    if not any(seen.points.values()):
        return Choice(None, NOTHING_AT_ALL, not_tested=NOTHING_AT_ALL)
    form, reason = _form(curves, baseline, asked)
    if form is None:
        return Choice(None, reason, not_tested=reason)
    of_test = floor if form in SHARED else (0.0 if form == POWER.name else None)
    try:
        test = parallel_test(seen.points, of_test, delta, seeds)
    except InputError as error:
        return Choice(form, reason, not_tested=str(error))
    if form not in SHARED or not test.rejected:
        return Choice(form, reason, test)
    own, _ = _form(curves, baseline, None)
    rejected = f"{form}, as asked for, is rejected: {test.decision}"
    if own is None:
        return Choice(None, rejected, test)
    withheld = f"{rejected}; m(C) stands instead of a single number"
    return Choice(own, f"{own} for every arm, because {rejected}", test, withheld=withheld)


def _form(curves: Mapping[str, Curves], baseline: str, asked: str | None) -> tuple[str | None, str]:
    """The form, and the sentence that says why."""
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
    return POWER_FLOOR.name, "power_floor: every arm determines its floor and has no parameter at a bound"


def check_form(asked: str | None, floor: float | None) -> None:
    """InputError for a form that gives no multipliers, and for a floor without a form that takes one."""
    known = CURVES | SHARED
    if asked is not None and asked not in known:
        raise InputError(f"form: unknown form {asked!r}; write one of {', '.join(known)}")
    if floor is not None and asked not in SHARED:
        raise InputError(f"floor {floor}: only forms that arms share take one; ask for {' or '.join(SHARED)}")
