"""What could a planned experiment tell apart? The verb `power` over a table of planned runs.

Takes a frame of runs that need no losses (arm, size, seed, flops, the components' levels) and what is known of the
noise, and answers with the widths and the smallest effects that simulated tables of such runs give; the simulation is
in `fits`. Which runs an experiment plans is in `plan`, what they came out as in `fit`, `split` and `report`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas

from k3ablate.answers import table as text_table
from k3ablate.config import InputError
from k3ablate.fits.analysis import Place
from k3ablate.fits.curves import seeds_of
from k3ablate.fits.observations import check_arm, observations
from k3ablate.fits.pilot import Basis, from_pilot, stated
from k3ablate.fits.power import (
    NUM_CHOOSING,
    NUM_DRAWS,
    NUM_TABLES,
    POWER,
    Assumed,
    DesignPower,
    Sensitivity,
    design_power,
    planned_runs,
)
from k3ablate.fits.uncertainty import NUM_DRAWS as DRAWS_OF_REPORT
from k3ablate.report.style import decimal, factor

CLAIMED = (1.16, 1.25)  # KDA hybrid (Kimi Linear) and Block AttnRes, as published
FEWEST_TABLES = 20
FINE = 1.3  # factors below it are shown with three decimals


@dataclass(frozen=True)
class PowerAnswer:
    """`power`: what the design tells apart, and everything that was assumed for it."""

    experiment: str
    baseline: str
    num_runs: int
    num_sizes: int
    num_seeds: int
    flops_convention: str
    read_at: str
    basis: Basis
    multipliers: Sequence[float]  # whose power is stated
    design: DesignPower

    def text(self) -> str:
        """Arms, then components, then what was assumed."""
        head = (
            f"{self.experiment}: {self.num_runs} runs of {len(self.design.arms) + 1} arms, {self.num_sizes} sizes, "
            f"{self.num_seeds} seeds; baseline {self.baseline}"
        )
        tables = [self._arms_text(), *([self._parts_text()] if self.design.parts else [])]
        return "\n".join(
            [head, "", *("\n".join([one, ""]) for one in tables), *(f"- {note}" for note in self._notes())]
        )

    def short(self) -> list[str]:
        """The lines of `plan`."""
        design = self.design
        further = [("paired", self._told(design.paired)), (f"components by {design.method}", design.parts)]
        return [
            f"power: told from 1 in {10 * POWER:.0f} of 10 such experiments: a multiplier of "
            f"{_span(self._told(design.arms))}"
            + "".join(f", {label} {_span(found)}" for label, found in further if found)
            + f"; {design.num_tables} simulated tables, `k3ablate power {self.experiment}` simulates more",
            f"  assumed: {self.basis.source}",
        ]

    def _told(self, found: Sequence[Sensitivity]) -> list[Sensitivity]:
        """Those of arms that are no repeat of the baseline."""
        return [one for one in found if one.name not in self.design.repeats]

    def _arms_text(self) -> str:
        paired = {one.name: one for one in self.design.paired}
        rows = [
            [*self._cells(one), *((_fine(paired[one.name].half_width), _fine(paired[one.name].smallest))
                                  if one.name in paired else ("", ""))]
            for one in self.design.arms
        ]  # fmt: skip
        return text_table(rows, [*self._headers("arm"), "paired: half-width", "smallest"])

    def _parts_text(self) -> str:
        return text_table(
            [self._cells(one) for one in self.design.parts], self._headers(f"component ({self.design.method})")
        )

    def _headers(self, first: str) -> list[str]:
        powers = [f"power at {multiplier:g}" for multiplier in self.multipliers]
        return [first, "half-width", "smallest (simulations)", *powers, "false alarms"]

    def _cells(self, one: Sensitivity) -> list[str]:
        is_repeat = one.name in self.design.repeats
        spread = f"{_fine(one.smallest)} ({_fine(one.smallest_interval.low)} to {_fine(one.smallest_interval.high)})"
        return [
            f"{one.name} (A/A)" if is_repeat else one.name,
            _fine(one.half_width),
            "-" if is_repeat else spread,
            *("-" if is_repeat else f"{share:.0%}" for share in one.power),
            f"{one.false_alarms:.1%}",
        ]

    def _notes(self) -> list[str]:
        design, truth, known = self.design, self.basis.truth, self.basis.seed_sd_interval
        chosen = "" if design.form_share == 1 else f" (chosen by {design.form_share:.0%} of the analyses)"
        return [
            "half-width: of the 95 percent interval, as the factor to each side, where nothing differs (median)",
            f"smallest: multiplier whose interval lies above 1 in {POWER:.0%} of such experiments, and the range in "
            "which another simulation may put it (95 percent); power: that share for a true multiplier",
            "false alarms: share of intervals without 1 where nothing differs; 5 percent is fair"
            + ("" if design.repeats else "; the design has no A/A arm, which would check that on real runs"),
            f"FLOPs: {self.flops_convention}; read {self.read_at}",
            f"assumed: {self.basis.source}",
            f"so planted: a deviation of ln L of {decimal(truth.seed_sd)}"
            + (f" (95 percent {decimal(known.low)} to {decimal(known.high)}; widths go with it)" if known else "")
            + f", worth a factor of {_fine(self.basis.worth)} in compute; {truth.shared_share:.0%} of its square is "
            "common to arms of one size and seed",
            f"simulated: {design.num_tables} tables, each analysed as `report` and `split` do, with {design.num_draws} "
            f"bootstrap draws (there {DRAWS_OF_REPORT}, which makes intervals a few percent narrower; fewer here, "
            "because every table has its own; the middle 95 percent of 40 k - 1 draws are a whole number); curves: "
            f"{design.form}{chosen}; a share of {POWER:.0%} is known to {design.share_error(POWER):.1%} (standard "
            "error); p-values of many arms are not corrected",
        ]  # fmt: skip


def power(
    frame: pandas.DataFrame,
    *,
    baseline: str | None = None,
    pilot: pandas.DataFrame | None = None,
    seed_deviation: float | None = None,
    loss: float | None = None,
    exponent: float | None = None,
    multipliers: Sequence[float] = CLAIMED,
    form: str | None = None,
    at_loss: float | None = None,
    at_flops: float | None = None,
    num_tables: int = NUM_TABLES,
    num_draws: int = NUM_DRAWS,
    num_choosing: int = NUM_CHOOSING,
    name: str = "table",
    pilot_name: str = "the pilot",
    flops_convention: str = "column flops of the table",
) -> PowerAnswer:
    """What runs like those of `frame` (arm, size, seed, flops, levels of components; what seeds vary) tell apart.

    The noise is that of a `pilot`, or `seed_deviation` in loss on a power law with `loss` at the largest size and
    `exponent`; what is not stated is assumed, and said. `baseline` None is the first arm. InputError for a design that
    gives no multiplier. Multipliers are read from curves of `form` (None: as an analysis chooses) at `at_loss`, where
    the baseline has spent `at_flops`, or, both None, where each was measured.
    """
    planned = planned_runs(frame)
    first = baseline or next(iter(planned.points))
    check_arm(first, planned.points)
    _check(multipliers, num_tables)
    largest = max(point.compute for point in planned.points[first])
    if pilot is None:
        basis = stated(largest, seed_deviation, loss, exponent)
    elif (seed_deviation, loss, exponent) != (None, None, None):
        raise InputError("power: a pilot tells the deviation and the curve; state no other beside --pilot")
    else:
        basis = from_pilot(pilot, first, largest, pilot_name, _varied(frame))
    place = Place(at_loss, at_flops)
    assumed = Assumed(basis.truth, tuple(multipliers), form, place, num_tables, num_draws, num_choosing)
    points = planned.points[first]
    return PowerAnswer(
        experiment=name,
        baseline=first,
        num_runs=sum(map(len, planned.points.values())),
        num_sizes=len({point.size for point in points}),
        num_seeds=len({point.seed for point in points}),
        flops_convention=flops_convention,
        read_at=_place_text(place),
        basis=basis,
        multipliers=assumed.multipliers,
        design=design_power(planned, first, assumed),
    )


def tells_noise(table: pandas.DataFrame) -> bool:
    """Whether a table of runs has two finished seeds at some size."""
    return seeds_of(observations(table)) is not None


def _varied(frame: pandas.DataFrame) -> str | None:
    """What the planned seeds vary; None where the table does not say."""
    found = {str(value) for value in frame["varied"].dropna()} if "varied" in frame else set()
    return found.pop() if len(found) == 1 else None


def _check(multipliers: Sequence[float], num_tables: int) -> None:
    wrong = [multiplier for multiplier in multipliers if not 1 < multiplier < math.inf]
    if wrong:
        raise InputError(f"--multiplier {wrong[0]}: write a number above 1, the gain to be told from none")
    if num_tables < FEWEST_TABLES:
        raise InputError(f"--simulations {num_tables}: write {FEWEST_TABLES} or more")


def _place_text(place: Place) -> str:
    if place.loss is not None:
        return f"at loss {place.loss:g}"
    return "where each was measured" if place.compute is None else f"where the baseline has spent {place.compute:.4g}"


def _fine(value: float) -> str:
    """A factor, with three decimals near 1; none where there is no end to it."""
    if not math.isfinite(value):
        return "none"
    return f"{value:.3f}" if value < FINE else factor(value)


def _span(found: Sequence[Sensitivity]) -> str:
    """From the smallest to the largest of their smallest multipliers."""
    low, high = (_fine(end(one.smallest for one in found)) for end in (min, max))
    return low if low == high else f"{low} to {high}"
