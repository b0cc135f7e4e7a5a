"""What does an analysis say in a few sentences that nobody can read for more than it is?

For the head of a site. The numbers with all that belongs to them are in the tables; nothing is computed here.
"""

from k3ablate.fits.analysis import Analysis, ArmAnalysis
from k3ablate.fits.split import Effect
from k3ablate.fits.split_analysis import AnalysedSplit
from k3ablate.report.style import factor, factor_range, loss_text


def verdict(analysis: Analysis, split: AnalysedSplit | None) -> tuple[str, ...]:
    """The arm that changes most first, then what checks it, then its parts, then what was left out."""
    if not analysis.any_finished:
        return ("No run finished: there is no result.",)
    others = [arm for arm in analysis.arms if arm.arm != analysis.baseline and arm.changed]
    most = max(reversed(others), key=lambda arm: len(arm.changed), default=None)
    found = [] if most is None else [_arm(analysis, most)]
    found += [_repeat(analysis, arm) for arm in analysis.arms if analysis.is_repeat_of_baseline(arm)]
    if split is not None:
        found.append(_parts(split))
    if analysis.excluded:
        found.append(f"{len(analysis.excluded)} runs are in no fit; the tables name each with its reason.")
    return tuple(found)


def _arm(analysis: Analysis, arm: ArmAnalysis) -> str:
    read, baseline = arm.multiplier, analysis.baseline
    if read is None:
        return f"{arm.arm} has no single multiplier against {baseline}: {arm.no_multiplier}."
    where = "inside" if read.measured else f"{factor(read.beyond)} times beyond"
    told = f"at loss {loss_text(read.loss)}, {where} what both arms measured (95 percent {factor_range(read.interval)})"
    if read.interval.contains(1.0):
        return f"These runs do not tell {arm.arm} from {baseline}: the multiplier is {factor(read.value)} {told}."
    if read.value > 1:
        return f"{baseline} needs {factor(read.value)} times the compute of {arm.arm} {told}."
    return f"{arm.arm} needs more compute than {baseline}: its multiplier is {factor(read.value)} {told}."


def _repeat(analysis: Analysis, arm: ArmAnalysis) -> str:
    read, name = arm.multiplier, f"{arm.arm}, {analysis.baseline} again under another name"
    if read is None:
        return f"{name}, has no multiplier: {arm.no_multiplier}."
    span = factor_range(read.interval)
    if read.interval.contains(1.0):
        return f"{name}, comes out at {span}, which contains 1, as it must."
    return f"{name}, comes out at {span}, which does not contain 1: trust no effect of that size."


def _parts(split: AnalysedSplit) -> str:
    """Which components are told from 1, by name."""
    effects = {part.name: part.effect for part in split.split.parts}
    apart = [_factor(name, effect) for name, effect in effects.items() if effect.told_from_one]
    rest = ", ".join(name for name, effect in effects.items() if not effect.told_from_one)
    if not apart:
        return f"None of its parts is told from 1: {rest}."
    return f"Its parts that are told from 1: {', '.join(apart)}." + (f" Not told from 1: {rest}." if rest else "")


def _factor(name: str, effect: Effect) -> str:
    assert effect.factor_interval is not None, "what is told from 1 has an interval"
    return f"{name} {factor(effect.factor)} ({factor_range(effect.factor_interval)})"
