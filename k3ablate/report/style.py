"""How do numbers and arms look, everywhere the same?

Colours of Okabe and Ito (Color Universal Design, 2008), which stay apart with any colour blindness, and one marker and
dash per arm, which stay apart in grey. Number formats keep a value and its interval together. Nothing is drawn here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from k3ablate.fits.solve import Interval

FLOPS_PER_PFLOP_DAY = 8.64e19  # 1e15 FLOP/s for 86400 s
FIGURE_SIZE = (7.0, 4.8)  # inches
DOTS_PER_INCH = 160
MOST_PLACES = 6  # decimals of anything
SMALL_PROBABILITY = 1e-4
SMALL_FACTOR = 0.1  # below it two decimals hold fewer than two digits

# The baseline is always black; bright yellow is left out, it vanishes on white.
COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")


@dataclass(frozen=True)
class Theme:
    """What a picture is drawn with; `colours` are of arms, the baseline's first, which is the ink's."""

    name: str
    paper: str
    ink: str
    muted: str  # of what explains: arrows, notes
    faint: str  # of grids
    colours: tuple[str, ...]


LIGHT = Theme("light", paper="#ffffff", ink="#000000", muted="#404040", faint="#e2e2e2", colours=COLOURS)
# The same hues, lightened until they stand on dark paper with a contrast of 4.5 or more.
DARK = Theme(
    "dark", paper="#14171c", ink="#f2f2f2", muted="#c0c4cc", faint="#343a43",
    colours=("#f2f2f2", "#ff8a4c", "#5aa9f0", "#35c793", "#e3a1c6", "#f0b840", "#9fd3f5"),
)  # fmt: skip


@dataclass(frozen=True)
class ArmStyle:
    """Colour and marker of one arm."""

    colour: str
    marker: str


def arm_style(index: int, theme: Theme = LIGHT) -> ArmStyle:
    """Style of the arm at `index`, the baseline being 0; 7 colours and 10 markers give 70 pairs before any repeats."""
    return ArmStyle(theme.colours[index % len(theme.colours)], MARKERS[index % len(MARKERS)])


def decimal(value: float, digits: int = 3) -> str:
    """`value` to `digits` significant digits in plain notation where that is short, else as 1.23e+45."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        places = max(0, digits - 1 - (math.floor(math.log10(abs(value))) if value else 0))
        return f"{value:.{places}f}"
    return f"{value:.{digits - 1}e}"


def factor(value: float) -> str:
    """A multiplier: two decimals, three digits above ten; two digits below a tenth, where decimals would lose them."""
    if 0 < value < SMALL_FACTOR:
        return decimal(value, digits=2)
    return f"{value:.2f}" if value < 10 else decimal(value)


def factor_range(interval: Interval) -> str:
    """The 95 percent interval of a multiplier."""
    return f"{factor(interval.low)} to {factor(interval.high)}"


def probability(value: float) -> str:
    """A p-value to two digits; very small ones are only called so."""
    return "<0.0001" if value < SMALL_PROBABILITY else decimal(value, digits=2)


def loss_text(value: float) -> str:
    """A loss in nats per token, four decimals: below the noise of any seed."""
    return f"{value:.4f}"


def signed_decimals(values: Sequence[float], total: float, places: int) -> list[str]:
    """Decimals of `values` that add up to that of `total`: those with the largest remainders are rounded up."""
    if not all(math.isfinite(value) for value in (*values, total)):
        return [f"{value:+.{places}f}" for value in values]
    scaled = [value * 10**places for value in values]
    units = [math.floor(value) for value in scaled]
    left = round(total * 10**places) - sum(units)
    by_remainder = sorted(range(len(values)), key=lambda index: units[index] - scaled[index])
    for index in by_remainder[: max(left, 0)]:
        units[index] += 1
    return [f"{unit / 10**places:+.{places}f}" for unit in units]


def places_of(half_width: float, fewest: int, most: int = MOST_PLACES) -> int:
    """Decimals that show two digits of the half-width of an interval; `fewest` where there is no such number."""
    if not 0 < half_width < math.inf:
        return fewest
    return min(max(fewest, 1 - math.floor(math.log10(half_width))), most)
