"""The sentences at the head of a site, against the analysis that they speak of."""

from collections.abc import Callable
from dataclasses import replace

from k3ablate.fits.analysis import Analysis
from k3ablate.fits.solve import Interval
from k3ablate.fits.split_analysis import split_analysis
from k3ablate.report.plain_words import verdict


def replaced(analysis: Analysis, name: str, **changes: object) -> Analysis:
    """The analysis with another multiplier of one arm."""
    arms = tuple(
        replace(arm, multiplier=replace(arm.multiplier, **changes)) if arm.arm == name else arm for arm in analysis.arms
    )
    return replace(analysis, arms=arms)


def test_the_arm_that_changes_most_comes_first_and_the_repeat_is_checked(analysis: Analysis) -> None:
    first, repeat, excluded = verdict(analysis, None)
    read = analysis.arm("k3").multiplier
    assert read is not None
    assert first.startswith(f"k2 needs {read.value:.2f} times the compute of k3 at loss {read.loss:.4f}, inside what ")
    assert f"(95 percent {read.interval.low:.2f} to {read.interval.high:.2f})" in first
    assert repeat.startswith("again, k2 again under another name, comes out at ")
    assert repeat.endswith("which contains 1, as it must.")
    assert excluded == "1 runs are in no fit; the tables name each with its reason."


def test_what_is_not_told_apart_is_not_claimed(analysis: Analysis) -> None:
    wide = replaced(analysis, "k3", value=1.4, interval=Interval(0.9, 2.1))
    assert verdict(wide, None)[0].startswith("These runs do not tell k3 from k2: the multiplier is 1.40 ")
    loses = replaced(analysis, "k3", value=0.5, interval=Interval(0.4, 0.6), beyond=3.0)
    assert verdict(loses, None)[0].startswith("k3 needs more compute than k2: its multiplier is 0.50 at loss ")
    assert "3.00 times beyond what both arms measured" in verdict(loses, None)[0]
    off = replaced(analysis, "again", interval=Interval(1.1, 1.2))
    assert "which does not contain 1: trust no effect of that size." in verdict(off, None)[1]


def test_parts_are_named_with_their_factors(analysis: Analysis) -> None:
    split = split_analysis(analysis)
    said = verdict(analysis, split)[2]
    for part in split.split.parts:
        shown = f"{part.name} {part.effect.factor:.2f} ("
        assert (shown in said) == part.effect.told_from_one
        assert part.name in said


def test_without_a_number_the_reason_stands(analyses: Callable[..., Analysis]) -> None:
    one_size = analyses(num_sizes=1)
    assert verdict(one_size, None)[0] == (
        f"k3 has no single multiplier against k2: {one_size.arm('k3').no_multiplier}."
    )
    nothing = analyses(unfinished=["k2", "k3", "kda", "again"])
    assert verdict(nothing, None) == ("No run finished: there is no result.",)
