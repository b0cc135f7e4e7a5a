"""What must be said beside the numbers of a split: how, where, what checks it, and what the arms do not tell?

Sentences and single cells for `split_table`, in plain text. Nothing is computed here.
"""

from collections.abc import Sequence

from k3ablate.fits.attribution import Missing, Split
from k3ablate.fits.split import Effect
from k3ablate.fits.split_analysis import AnalysedSplit, Check
from k3ablate.report.style import MOST_PLACES, factor, loss_text, places_of

NOTHING = "-"
ZERO = "nothing"  # a term that is zero but for rounding, as of a model with as many terms as arms
FACTOR_PLACES = 2  # fewest decimals
MAX_NAMED = 6  # of arms in one sentence
NO_SHAPLEY = "no Shapley values, which need all {count} arms; "
METHODS = {
    "shapley": "Shapley value: what a component adds, averaged over every order of switching on (all {count} arms)",
    "pairwise": NO_SHAPLEY + "parts by a model of single components and pairs, in which three or more do not interact",
    "first in": NO_SHAPLEY + "the parts are what each component gains alone",
    "last in": NO_SHAPLEY + "the parts are what each component gains on top of the others",
    "none": NO_SHAPLEY + "no arm shows a component alone",
}


def heading(found: AnalysedSplit) -> str:
    """From where to where, and where it is read."""
    to = f" to {found.split.target}" if found.split.target else ", component by component"
    return (
        f"Split from {found.baseline}{to}, read at loss {loss_text(found.loss)} (compute {found.compute:.4g} of "
        f"{found.baseline}), {range_text(found)}, from {found.form} curves"
    )


def range_text(found: AnalysedSplit) -> str:
    """Whether the point lies in the measured range of every arm of the split."""
    outside = found.extrapolated
    if not outside:
        return "measured by every arm"
    return f"extrapolated for {len(outside)} of {len(found.beyond)} arms by up to {factor(max(outside.values()))}x"


def sentences(found: AnalysedSplit) -> tuple[str, ...]:
    """One per line under the table."""
    split = found.split
    return (
        METHODS[split.method].format(count=2 ** len(split.components)),
        *_sum(split),
        *_interactions(split),
        *_model(split),
        *missing_sentences(split.missing),
        *(_check(check) for check in found.checks),
        *(_other_target(other) for other in found.other_targets),
        f"curves: {found.form_reason}",
        f"at other losses: {found.elsewhere}",
        *_outside(found),
        *split.warnings,
        *found.warnings,
    )


def cell(effect: Effect | None) -> str:
    """A factor with its interval, to as many places as two digits of the interval's half-width take."""
    if effect is None:
        return NOTHING
    interval = effect.factor_interval
    if interval is None:
        return factor(effect.factor)
    if effect.is_nothing:
        return f"{1:.{FACTOR_PLACES}f}"
    if not all(0.1 <= value < 10 for value in (effect.factor, interval.low, interval.high)):
        return f"{factor(effect.factor)} ({factor(interval.low)} to {factor(interval.high)})"
    places = places_of((interval.high - interval.low) / 2, FACTOR_PLACES)
    ends = (interval.low, interval.high)
    while effect.told_from_one and places < MOST_PLACES and any(round(end, places) == 1 for end in ends):
        places += 1  # an interval that ends beside 1 must not look as if it held it
    return f"{effect.factor:.{places}f} ({interval.low:.{places}f} to {interval.high:.{places}f})"


def whole_name(split: Split) -> str:
    """What the parts are parts of."""
    return split.target if split.whole_from == "target arm" and split.target else split.whole_from


def verdict(effect: Effect | None) -> str:
    """On which side of 1 the interval lies; no word where there is none."""
    if effect is None or effect.log_interval is None:
        return ""
    if effect.is_nothing:
        return ZERO
    if not effect.told_from_one:
        return "not told from 1"
    return "gain" if effect.log > 0 else "loss"


def _sum(split: Split) -> list[str]:
    if split.whole is None:
        return ["the arm with every component changed was not read: there is no whole for the parts to add up to"]
    lines = [
        f"check: parts multiply to {split.product:.6g}; the whole, {whole_name(split)}, is {split.whole.factor:.6g}"
    ]
    if any(part.share is None for part in split.parts):
        lines.append("no shares: the whole is not told from 1")
    return lines


def _interactions(split: Split) -> list[str]:
    told = {f"{pair.first} x {pair.second}": pair.effect for pair in split.pairs if pair.effect is not None}
    lines = []
    if split.pairs and any(row.gap for row in split.components):
        lines.append("with all others: last in over first in")
    if told:
        lines.append("interaction: what a pair gains together over both apart; 1 where neither touches the other")
        apart = [name for name, effect in told.items() if effect.told_from_one]
        lines.append(f"interactions told from 1: {', '.join(apart) or 'none'}")
    if told and split.method == "shapley":
        lines.append(
            "interactions are Shapley-Taylor indices: the whole is every first in times every interaction, a Shapley "
            "value its first in times the square root of each of its interactions"
        )
    if split.beyond_pairs is not None:
        lines.append(
            f"interactions of three and more, which these indices share out among pairs: {cell(split.beyond_pairs)} of "
            f"the whole, {verdict(split.beyond_pairs)}"
        )
    return lines


def _model(split: Split) -> list[str]:
    if split.model is None:
        return []
    model = split.model
    misfit = "" if model.misfit is None else f"; they agree with it at p = {model.misfit:.2g}"
    lines = [f"pairwise model: rank {model.rank} of {model.num_terms} terms from {model.num_arms} arms{misfit}"]
    unseen = [group[0] for group in model.not_told if len(group) == 1]
    if unseen:
        lines.append(f"in no arm, so that nothing is known: {', '.join(unseen)}")
    return lines + [f"told only together: {', '.join(group)}" for group in model.not_told if len(group) > 1]


def missing_sentences(missing: Sequence[Missing]) -> list[str]:
    """Arms that could not be read one by one, those that the table does not have in one line."""
    lines = [
        f"{gone.arm} is missing: {gone.reason}; lost: {', '.join(gone.lost)}" for gone in missing if not gone.absent
    ]
    absent = [gone for gone in missing if gone.absent]
    if absent:
        named = "; ".join(gone.arm for gone in absent[:MAX_NAMED]) + ("; ..." if len(absent) > MAX_NAMED else "")
        lost = ", ".join(dict.fromkeys(text for gone in absent for text in gone.lost))
        lines.append(f"not in the table ({len(absent)}): {named}; lost: {lost}")
    return lines


def _check(check: Check) -> str:
    told = "which contains 1" if check.contains_one else "which does not contain 1: trust no smaller effect"
    return f"check: {check.arm} has the levels of {check.repeats} and stands at {cell(check.effect)}, {told}"


def _other_target(other: Split) -> str:
    parts = ", ".join(f"{part.name} {cell(part.effect)}" for part in other.parts)
    return f"to {other.target} instead: {cell(other.total)}; parts ({other.method}): {parts}"


def _outside(found: AnalysedSplit) -> list[str]:
    """The arms furthest outside first."""
    furthest = sorted(found.extrapolated.items(), key=lambda pair: -pair[1])
    named = [f"{arm} {factor(beyond)}x" for arm, beyond in furthest[:MAX_NAMED]]
    more = [f"{len(furthest) - MAX_NAMED} more"] if len(furthest) > MAX_NAMED else []
    return [f"read outside the measured range: {', '.join([*named, *more])}"] if named else []
