"""What must be read beside the numbers of a published table, whatever it is printed on?

Which form was fitted and why, where intervals and p-values come from, whether one number per arm is true at all, and
every warning that belongs to an arm. Nothing is computed here.
"""

from k3ablate.fits.analysis import Analysis, ArmAnalysis
from k3ablate.fits.hypotheses import ParallelTest
from k3ablate.report.style import decimal, factor_range

WIDE_INTERVAL = 1.2  # upper end over lower end
CURVES_OF_MULTIPLIERS = "multipliers.csv"


def notes(analysis: Analysis) -> tuple[str, ...]:
    """One sentence each, in the order they are read."""
    found = list(general_notes(analysis))
    for arm in analysis.arms:
        found += [f"{arm.arm}: {text}" for text in arm_notes(analysis, arm)]
    found += [f"{', '.join(arms)}: no multiplier: {reason}" for reason, arms in _without_multiplier(analysis).items()]
    return tuple(found)


def general_notes(analysis: Analysis, curves_in: str = CURVES_OF_MULTIPLIERS) -> tuple[str, ...]:
    """What belongs to no single arm; `curves_in` says where a reader finds m(C)."""
    found = [
        f"multiplier: compute that {analysis.baseline} needs for the same loss, over the arm's; above 1 is a gain",
        f"curves: {analysis.form_reason}",
    ]
    noise = analysis.noise.get(analysis.form or "")
    if noise is not None:
        found.append(
            f"intervals: {noise.method}; deviation of ln L {noise.pooled_sd:.2g}, "
            f"{noise.shared_share:.0%} of its square common to arms of the same size and seed; "
            f"{analysis.num_draws} draws"
        )
    found += _p_values(analysis)
    found += _parallel(analysis, curves_in)
    widest = _widest(analysis)
    if widest is not None:
        found.append(
            f"intervals are wide at this scale: {widest} (a table says so where an upper end is more than "
            f"{WIDE_INTERVAL} times its lower end); more sizes and seeds narrow them"
        )
    return (*found, *analysis.warnings)


def _p_values(analysis: Analysis) -> list[str]:
    num_arms = sum(arm.holm_p_value is not None for arm in analysis.arms)
    if not num_arms:
        return []
    return [
        "p: of neither gain nor loss, by Student's t with the width of the interval; in brackets after Holm's "
        f"correction for {num_arms} arm{'s' if num_arms > 1 else ''} against one baseline"
    ]


def _parallel(analysis: Analysis, curves_in: str) -> list[str]:
    """Whether one number per arm holds at every loss."""
    test = analysis.parallel
    if test is None:
        known = analysis.not_tested == analysis.form_reason  # it stands there already
        return [] if known else [f"one exponent for all arms was not tested: {analysis.not_tested}"]
    told = f"{_floor(test)}{test.decision}; {_criteria(test)}"
    if not test.rejected:
        return [told]
    return [f"{told}: a multiplier holds at the loss where it is read, {curves_in} has m(C)"]


def _floor(test: ParallelTest) -> str:
    if test.floor is None:
        return "with one floor for all arms, "
    return f"with the floor {decimal(test.floor)} for all arms, " if test.floor else "without a floor, "


def _criteria(test: ParallelTest) -> str:
    """What does not decide, but tells: Akaike's criterion, and the largest size predicted from the smaller ones."""
    told = []
    if test.aicc_common is not None and test.aicc_own is not None:
        told.append(f"AICc {test.aicc_common:.1f} against {test.aicc_own:.1f} (lower is better)")
    if test.held_out_common is not None and test.held_out_own is not None:
        told.append(
            f"loss at the largest size, left out of the fits, is off by {test.held_out_common:.2%} against "
            f"{test.held_out_own:.2%}"
        )
    else:
        told.append(f"the largest size was not predicted: {test.no_held_out}")
    return "; ".join(told)


def arm_notes(analysis: Analysis, arm: ArmAnalysis) -> list[str]:
    """What belongs to the numbers of one arm."""
    if arm.multiplier is not None:
        unreached = arm.multiplier.unreachable_share
        share = [f"in {unreached:.1%} of the draws a curve never reaches this loss"] if unreached else []
        return [*arm.multiplier.warnings, *share]
    fitted = arm.fits.get(analysis.form or "")
    return list(fitted.warnings) if fitted is not None and arm.arm == analysis.baseline else []


def _without_multiplier(analysis: Analysis) -> dict[str, list[str]]:
    """Reason -> arms; what holds for every arm because there are no curves stands as the reason for that."""
    arms: dict[str, list[str]] = {}
    for arm in analysis.arms:
        known = not analysis.any_finished or arm.no_multiplier == analysis.form_reason
        if arm.multiplier is None and arm.arm != analysis.baseline and not known:
            arms.setdefault(arm.no_multiplier, []).append(arm.arm)
    return arms


def _widest(analysis: Analysis) -> str | None:
    read = [(arm.arm, arm.multiplier) for arm in analysis.arms if arm.multiplier is not None]
    wide = [(name, found) for name, found in read if found.interval.high > WIDE_INTERVAL * found.interval.low]
    if not wide:
        return None
    name, found = max(wide, key=lambda pair: pair[1].interval.high / max(pair[1].interval.low, 1e-300))
    return f"{name} lies between {factor_range(found.interval).replace(' to ', ' and ')}"
