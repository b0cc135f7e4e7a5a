"""What does `compare` answer? Curves at equal loss, as text for people and as JSON for scripts.

Both show the same numbers, which `fits` computes; a caution stays beside the ratio that it belongs to. The other
commands' answers are in `answers`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from k3ablate.answers import number
from k3ablate.answers import table as text_table
from k3ablate.fits.comparable import LeftOut
from k3ablate.fits.solve import Interval
from k3ablate.fits.training_curves import AXES
from k3ablate.report.style import factor, factor_range, loss_text

Axis = Literal["tokens", "flops", "hours"]
AXIS_TEXTS = {"tokens": "tokens", "flops": "FLOPs", "hours": "hours"}
OTHER_PHASE_TEXT = "the learning rate stands elsewhere in its schedule than the reference's: part of the ratio is that"


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 percent interval over seeds, None with one seed."""

    value: float
    interval: Interval | None


@dataclass(frozen=True)
class ComparedRuns:
    """One group: how far it went, and what must stay beside its numbers."""

    run: str
    seeds: Sequence[str]  # empty where they are not known
    num_runs: int
    num_steps: int  # of the shortest of its runs
    tokens: float  # of the same
    lowest_loss: float  # that all its runs reach
    num_rows_dropped: int
    cautions: Sequence[str]


@dataclass(frozen=True)
class Reading:
    """One group at one loss; the reference has no ratio. Where not all its runs meet the loss `not_met` says so."""

    loss: float
    run: str
    spent: Mapping[str, Estimate]
    ratio: Mapping[str, Estimate]  # the reference's over this one's
    method: str  # of the ratio's interval
    learning_rate: float | None  # over its peak, where the loss is met
    caution: str  # where the schedules are in different phases
    not_met: str


@dataclass(frozen=True)
class Along:
    """The ratio over all losses that the reference and a group meet."""

    run: str
    loss: Sequence[float]
    ratio: Mapping[str, Mapping[str, Sequence[float]]]  # axis -> value, low, high


@dataclass(frozen=True)
class Compared:
    """`compare`: what each group spent until it met a loss, and how that compares with the reference."""

    reference: str
    by: str
    loss_column: str
    window: float  # share of the tokens that losses are averaged over
    runs: Sequence[ComparedRuns]
    readings: Sequence[Reading]
    along: Sequence[Along]
    left_out: Sequence[LeftOut]
    notes: Sequence[str]

    def text(self) -> str:
        """The runs, then the losses with what they cost, then what belongs to the numbers."""
        marks = self._marks()
        return "\n".join([
            self._runs_text(), "", self._readings_text(marks), "",
            *(f"[{mark}] {text}" for text, mark in marks.items()),
            *(f"- {note}" for note in self.notes),
            f"- runs left out: {'; '.join(gone.text() for gone in self.left_out) or 'none'}",
        ])  # fmt: skip

    def _marks(self) -> dict[str, int]:
        """Every caution once, with the number that stands beside the ratios it belongs to."""
        found = dict.fromkeys(text for one in self.readings for text in self._cautions(one))
        return {text: mark for mark, text in enumerate(found, start=1)}

    def _cautions(self, reading: Reading) -> list[str]:
        if self.by not in reading.ratio:
            return []
        of_run = next(one.cautions for one in self.runs if one.run == reading.run)
        return [*of_run, *([OTHER_PHASE_TEXT] if reading.caution else [])]

    def _runs_text(self) -> str:
        rows = [
            (one.run + (" (reference)" if one.run == self.reference else ""), ", ".join(one.seeds) or one.num_runs,
             one.num_steps, number(one.tokens), loss_text(one.lowest_loss))
            for one in self.runs
        ]  # fmt: skip
        return text_table(rows, ["run", "seeds", "steps", "tokens", "lowest loss"])

    def _readings_text(self, marks: Mapping[str, int]) -> str:
        axes = [axis for axis in AXES if any(axis in reading.ratio for reading in self.readings)]
        others = [axis for axis in axes if axis != self.by]
        headers = [
            "loss", "run", f"{AXIS_TEXTS[self.by]} (95 %)", f"ratio of {AXIS_TEXTS[self.by]} (95 %)",
            *(f"of {AXIS_TEXTS[axis]}" for axis in others), "learning rate",
        ]  # fmt: skip
        return text_table([self._row(reading, others, marks) for reading in self.readings], headers)

    def _row(self, reading: Reading, others: Sequence[str], marks: Mapping[str, int]) -> tuple[str, ...]:
        beside = "".join(f" [{marks[text]}]" for text in self._cautions(reading))
        return (
            loss_text(reading.loss),
            reading.run,
            _spent_text(reading.spent[self.by]) if self.by in reading.spent else reading.not_met,
            _ratio_text(reading.ratio.get(self.by)) + beside,
            *(factor(reading.ratio[axis].value) if axis in reading.ratio else "" for axis in others),
            "" if reading.learning_rate is None else f"{reading.learning_rate:.2f}",
        )


def _spent_text(found: Estimate) -> str:
    interval = found.interval
    return number(found.value) + (f" ({number(interval.low)} to {number(interval.high)})" if interval else "")


def _ratio_text(found: Estimate | None) -> str:
    if found is None:
        return ""
    return factor(found.value) + (f" ({factor_range(found.interval)})" if found.interval else "")
