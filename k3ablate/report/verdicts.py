"""What does our measurement say of a published claim: consistent, contradicts, or cannot tell at this scale?

`verdict` judges a claimed factor by one multiplier with its interval, by the rules that `RULES` state in the words that
are printed under every board. Claims were made at scales far above ours, and multipliers change with scale, so that a
verdict is of our scale alone. Who claims what is in `evidence`, which arm belongs to which claim in `board`.
"""

import math
from dataclasses import dataclass
from typing import Literal

from k3ablate.fits.multiplier import Multiplier
from k3ablate.report.style import factor as shown

Verdict = Literal[
    "consistent", "contradicts at this scale", "cannot tell at this scale", "not measured", "no claim to judge"
]

TOLERANCE = 2.0  # how far, as a factor of the logarithm, a multiplier may move between scales and still be the claimed
RULES = (
    "consistent: our 95 percent interval lies wholly on the claimed side of 1 and, where a factor f is claimed, "
    "reaches into f^(1/2) to f^2, half to twice its logarithm. Published multipliers move as much over scales: KDA "
    "1.19 at 1 and 1.10 at 100 PFLOP/s-days, Muon 2.28 at 0.1 and 1.77 at 100",
    "contradicts at this scale: the interval lies wholly on the other side of 1, or wholly short of f^(1/2); the claim "
    "may still hold at the scale where it was made",
    "cannot tell at this scale: all else, as an interval that contains 1 and reaches f^(1/2), or a gain wholly beyond "
    "f^2, which is not the effect that was claimed. Always so where the number was read outside what was measured, "
    "where its curves have a warning, as intervals are too narrow then, and where an A/A interval does not contain 1",
    "a claim without a factor is of a gain, and judged by the side of 1 alone; intervals are of one component each, "
    "not corrected for their number",
)


@dataclass(frozen=True)
class Judged:
    """A verdict and, in a few words, the reason for it."""

    verdict: Verdict
    reason: str


def verdict(claimed: float | None, found: Multiplier, covers_less: str = "") -> Judged:
    """What one multiplier says of a claimed factor, or of a gain where `claimed` is None.

    `covers_less` names what the claim is about and our arm does not have, for which a smaller gain contradicts nothing.
    """
    if not found.measured:
        return Judged("cannot tell at this scale", f"extrapolated {shown(found.beyond)}x")
    if found.warnings:
        return Judged("cannot tell at this scale", f"warning: {found.warnings[0]}")
    return _by_interval(claimed, found.interval.low, found.interval.high, covers_less)


def _by_interval(claimed: float | None, low: float, high: float, covers_less: str) -> Judged:
    """All in logarithms, turned so that the claimed side is above 0."""
    logs = (_log(low), _log(high))
    claimed_log = 0.0 if claimed is None else math.log(claimed)
    below, above = logs if claimed_log >= 0 else (-logs[1], -logs[0])
    size = abs(claimed_log)
    if above < 0:
        return Judged("contradicts at this scale", "wholly on the other side of 1")
    if claimed is not None and above < size / TOLERANCE:
        if covers_less:
            return Judged("cannot tell at this scale", f"less than claimed, but the claim covers {covers_less} too")
        return Judged(
            "contradicts at this scale", f"wholly short of {shown(claimed ** (1 / TOLERANCE))}, {_half(claimed)}"
        )
    if below <= 0:
        return Judged("cannot tell at this scale", "the interval contains 1")
    if claimed is not None and below > size * TOLERANCE:
        return Judged("cannot tell at this scale", f"wholly beyond {shown(claimed**TOLERANCE)}, twice its logarithm")
    return Judged("consistent", _agreement(claimed, low, high))


def _agreement(claimed: float | None, low: float, high: float) -> str:
    if claimed is None:
        return "a gain, as claimed"
    return "contains the claimed factor" if low <= claimed <= high else "within half to twice its logarithm"


def _half(claimed: float) -> str:
    return f"half the logarithm of {shown(claimed)}"


def _log(value: float) -> float:
    """Minus infinity at 0, which an interval may reach."""
    return math.log(value) if value > 0 else -math.inf
