"""Which round numbers stand on a logarithmic axis, so that few labels tell the scale and none touch?

An axis of compute spans decades, one of multipliers often less than one: the rounder numbers are taken first, as far as
they lie apart.
"""

import math
from collections.abc import Iterable

from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogFormatterSciNotation, NullLocator

from k3ablate.report.style import MOST_PLACES

MANTISSAS = (1.0, 2.0, 5.0, 3.0, 1.5, 7.0)  # rounder ones first
STEPS = (1000.0, 100.0, 10.0, 5.0, 1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
PLAIN = (1e-2, 2e3)  # an axis inside has plain numbers
MOST_MULTIPLES = 500  # of one step that are looked at
EVEN = 1.7  # a range of less has ticks of one step
DECADES_OF_STEPS = 1.0  # beyond, decades and their parts are rounder than steps


def decade_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` powers of ten and round multiples of them in the range, in order; both ends positive."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return _apart((mantissa * 10.0**decade for mantissa in MANTISSAS for decade in decades), low, high, most)


def factor_ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round factors in the range, 1 first of all where it lies in it, in order; both ends positive."""
    if math.log10(high / low) > DECADES_OF_STEPS:
        return decade_ticks(low, high, most)
    even = [step for step in STEPS if step < high and math.log(high / (high - step)) >= math.log(high / low) / most]
    if even and high < EVEN * low:
        return [round(even[-1] * count, MOST_PLACES)
                for count in range(math.ceil(low / even[-1]), math.floor(high / even[-1]) + 1)]  # fmt: skip
    steps = (step for step in STEPS if 1 <= (high - low) / step + 1 <= MOST_MULTIPLES)
    multiples = (
        round(step * count, MOST_PLACES) for step in steps
        for count in range(math.ceil(low / step), math.floor(high / step) + 1)
    )  # fmt: skip
    return _apart([1.0, *multiples], low, high, most)


def label_factors(axis: Axis, low: float, high: float, most: int) -> None:
    """Ticks of a logarithmic axis of factors with plain numbers."""
    _place(axis, factor_ticks(low, high, most))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))


def label_decades(axis: Axis, low: float, high: float, most: int) -> None:
    """Ticks of a logarithmic axis of compute, as powers of ten where plain numbers would be long."""
    _place(axis, decade_ticks(low, high, most))
    if PLAIN[0] <= low and high <= PLAIN[1]:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    else:
        axis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf)))


def _place(axis: Axis, ticks: list[float]) -> None:
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())


def _apart(candidates: Iterable[float], low: float, high: float, most: int) -> list[float]:
    least, taken = math.log(high / low) / most, list[float]()
    for value in candidates:
        if low <= value <= high and all(abs(math.log(value / other)) >= least for other in taken):
            taken.append(value)
    return sorted(taken)
