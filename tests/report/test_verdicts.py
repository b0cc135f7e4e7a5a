"""What an interval says of a claim, at and about every edge of the rules."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3ablate.fits.multiplier import Multiplier
from k3ablate.fits.solve import Interval
from k3ablate.report.verdicts import RULES, verdict

CONSISTENT, CONTRADICTS, CANNOT = "consistent", "contradicts at this scale", "cannot tell at this scale"


def read(low: float, high: float, beyond: float = 1.0, warnings: tuple[str, ...] = ()) -> Multiplier:
    value = float(np.sqrt(low * high)) if low > 0 and high < math.inf else 1.0
    return Multiplier(
        value, Interval(low, high), "power", 2.5, 1e19, 1e19, beyond, "bootstrap", 0.0, None, 0.01, warnings
    )


@pytest.mark.parametrize(
    ("claimed", "low", "high", "told", "reason"),
    [
        (1.25, 1.1, 1.4, CONSISTENT, "contains the claimed factor"),
        (1.25, 1.01, 3.0, CONSISTENT, "contains the claimed factor"),
        (1.25, 1.3, 1.5, CONSISTENT, "within half to twice its logarithm"),
        (1.25, 1.02, 1.13, CONSISTENT, "within half to twice its logarithm"),
        (1.25, 1.02, 1.11, CONTRADICTS, "wholly short of 1.12"),
        (1.25, 0.95, 1.05, CONTRADICTS, "wholly short of 1.12"),
        (1.25, 0.5, 0.9, CONTRADICTS, "wholly on the other side of 1"),
        (1.25, 0.9, 1.2, CANNOT, "the interval contains 1"),
        (1.25, 1.0, 1.4, CANNOT, "the interval contains 1"),
        (1.25, 0.0, math.inf, CANNOT, "the interval contains 1"),
        (1.25, 1.6, 1.9, CANNOT, "wholly beyond 1.56"),
        (0.8, 0.7, 0.9, CONSISTENT, "contains the claimed factor"),
        (0.8, 1.1, 1.3, CONTRADICTS, "wholly on the other side of 1"),
        (0.8, 0.95, 1.02, CONTRADICTS, "wholly short of 0.89"),
        (None, 1.1, 9.0, CONSISTENT, "a gain, as claimed"),
        (None, 0.5, 0.9, CONTRADICTS, "wholly on the other side of 1"),
        (None, 0.5, 1.5, CANNOT, "the interval contains 1"),
    ],
)
def test_known_verdicts(claimed: float | None, low: float, high: float, told: str, reason: str) -> None:
    judged = verdict(claimed, read(low, high))
    assert judged.verdict == told
    assert reason in judged.reason


@pytest.mark.parametrize("interval", [(0.5, 0.9), (1.2, 1.3), (1.0, 2.0)])
def test_what_was_not_measured_or_has_a_warning_is_never_more_than_cannot_tell(interval: tuple[float, float]) -> None:
    assert verdict(1.25, read(*interval, beyond=1.3)).verdict == CANNOT
    assert "extrapolated 1.30x" in verdict(1.25, read(*interval, beyond=1.3)).reason
    assert verdict(1.25, read(*interval, warnings=("E at a bound",))).verdict == CANNOT
    assert "E at a bound" in verdict(1.25, read(*interval, warnings=("E at a bound",))).reason


def test_a_smaller_gain_contradicts_no_claim_that_covers_more() -> None:
    assert verdict(2.5, read(1.1, 1.3)).verdict == CONTRADICTS
    judged = verdict(2.5, read(1.1, 1.3), covers_less="recipe")
    assert (judged.verdict, "the claim covers recipe too" in judged.reason) == (CANNOT, True)
    assert verdict(2.5, read(0.5, 0.9), covers_less="recipe").verdict == CONTRADICTS


@given(st.floats(0.05, 20), st.floats(-3, 3), st.floats(0, 3))
def test_turning_every_factor_around_turns_no_verdict(claimed: float, middle: float, half: float) -> None:
    """Which of two models is called the baseline is a convention."""
    if abs(math.log(claimed)) < 1e-6:
        return
    low, high = math.exp(middle - half), math.exp(middle + half)
    edges = [0.0, math.log(claimed) / 2, math.log(claimed) * 2]
    if min(abs(end - edge) for end in (middle - half, middle + half) for edge in edges) < 1e-9:
        return
    assert verdict(claimed, read(low, high)).verdict == verdict(1 / claimed, read(1 / high, 1 / low)).verdict


@given(st.floats(1.01, 5), st.floats(-3, 3), st.floats(0, 3), st.floats(0, 1))
def test_a_wider_interval_never_says_the_opposite(claimed: float, middle: float, half: float, more: float) -> None:
    narrow = verdict(claimed, read(math.exp(middle - half), math.exp(middle + half))).verdict
    wide = verdict(claimed, read(math.exp(middle - half - more), math.exp(middle + half + more))).verdict
    assert {narrow, wide} != {CONSISTENT, CONTRADICTS}


def test_there_is_a_rule_in_words_for_every_verdict() -> None:
    for told in (CONSISTENT, CONTRADICTS, CANNOT):
        assert sum(rule.startswith(f"{told}: ") for rule in RULES) == 1
