"""Round numbers on logarithmic axes."""

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3ablate.report.ticks import decade_ticks, factor_ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.5, 4.0, [0.5, 0.7, 1.0, 1.4, 2.0, 3.0]),
        (0.98, 1.03, [0.98, 0.99, 1.0, 1.01, 1.02, 1.03]),
        (0.2, 12.0, [0.2, 0.5, 1.0, 2.0, 5.0, 10.0]),
    ],
)
def test_factors(low: float, high: float, ticks: list[float]) -> None:
    assert factor_ticks(low, high, 7) == pytest.approx(ticks)


def test_decades() -> None:
    assert decade_ticks(4e19, 1.2e21, 5) == pytest.approx([5e19, 1e20, 2e20, 5e20, 1e21])
    assert decade_ticks(1e10, 1e17, 4) == pytest.approx([1e10, 1e12, 1e14, 1e16])


@pytest.mark.parametrize("ticks", [factor_ticks, decade_ticks])
@given(low=st.floats(1e-30, 1e30), span=st.floats(1e-4, 60), most=st.integers(2, 9))
def test_ticks_lie_in_the_range_and_apart(
    ticks: Callable[[float, float, int], list[float]], low: float, span: float, most: int
) -> None:
    high = low * math.exp(span)
    found = ticks(low, high, most)
    assert all(low <= value <= high for value in found)
    assert all(math.log(b / a) >= span / most * (1 - 1e-9) for a, b in itertools.pairwise(found))
    assert len(found) <= most + 1
