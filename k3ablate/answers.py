"""What do the commands answer? One frozen dataclass each, as text for people and as JSON for scripts.

Both show the same numbers: `as_json` the fields at full precision, `text` a rounded reading of them. Nothing here
computes a result.
"""

import dataclasses
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Protocol

from tabulate import tabulate

from k3ablate.config import Closed, Tree

if TYPE_CHECKING:
    from k3ablate.fits.hypotheses import ParallelTest
    from k3ablate.fits.power import DesignPower
    from k3ablate.fits.split_analysis import AnalysedSplit


class Answer(Protocol):
    """A dataclass with a reading for people."""

    def text(self) -> str:
        """Lines for a terminal."""
        ...


@dataclass(frozen=True)
class Change:
    """One leaf of the configuration that an arm sets otherwise than the baseline."""

    path: str
    before: Tree
    after: Tree

    def text(self) -> str:
        """'path: before -> after'; what one side lacks, or leaves open, is 'none'."""
        return f"{self.path}: {_shown(self.before)} -> {_shown(self.after)}"


@dataclass(frozen=True)
class Checked:
    """`check`: the question, and what each arm changes."""

    experiment: str
    question: str
    metric: str
    expected: str
    baseline: str
    match: str
    num_rows: int
    arms: Mapping[str, Sequence[Change]]
    tuned: Sequence[str] = ()  # values that arms get from tuning, and where from

    def text(self) -> str:
        """The question, then each arm with its changes."""
        lines = [
            f"{self.experiment}: {self.question}",
            f"metric: {self.metric}; baseline: {self.baseline}; matched: {self.match}; {self.num_rows} rows",
            f"expected: {self.expected}",
        ]
        for arm, changes in self.arms.items():
            lines += ["", arm if changes else f"{arm} (the baseline's configuration)"]
            lines += [f"  {change.text()}" for change in changes]
        return "\n".join([*lines, *([""] if self.tuned else []), *self.tuned])


@dataclass(frozen=True)
class PlannedRow:
    """One row of a plan. FLOPs per token are forward, FLOPs are of the whole training."""

    arm: str
    size: str
    seed: int
    total_params: int
    active_params: int
    flops_per_token: float
    mismatch: float
    tokens: int
    flops: float
    digest: str | None
    state: str


@dataclass(frozen=True)
class Planned:
    """`plan`: every row, and what the whole costs. A run that several rows share counts once."""

    experiment: str
    rows: Sequence[PlannedRow]
    num_runs: int
    tokens: int
    flops: float
    flops_left: float
    num_workers: int
    flops_per_second: float  # of one worker
    basis: str  # where that number comes from
    hours_left: float
    notes: Sequence[str] = ()
    power: "DesignPower | None" = None  # what the design tells apart; None where it gives no multiplier
    power_text: Sequence[str] = ()

    def text(self) -> str:
        """The table, the totals, the power and the notes."""
        headers = ["arm", "size", "seed", "total", "active", "FLOPs/token", "match", "tokens", "FLOPs", "run", "state"]
        rows = [
            (row.arm, row.size, row.seed, number(row.total_params), number(row.active_params),
             number(row.flops_per_token), f"{row.mismatch:+.2%}", number(row.tokens), number(row.flops),
             row.digest or "-", row.state)
            for row in self.rows
        ]  # fmt: skip
        rate = f"{number(self.flops_per_second)} FLOP/s per worker ({self.basis})"
        left = (
            f"{number(self.flops_left)} FLOPs, about {hours(self.hours_left)} with {self.num_workers} workers at {rate}"
        )
        totals = (
            f"{self.num_runs} runs, {number(self.tokens)} tokens, {number(self.flops)} FLOPs; "
            f"left: {left if self.flops_left else 'nothing'}"
        )
        return "\n".join([table(rows, headers), "", totals, *self.power_text, *self.notes])


@dataclass(frozen=True)
class Problem:
    """A run that has no loss to offer, and why."""

    name: str
    status: str
    reason: str

    def text(self) -> str:
        """One line; what a terminal would take for commands is shown as question marks."""
        return printable(f"{self.name} {self.status}: {self.reason}")


@dataclass(frozen=True)
class Ran:
    """`run`: how the grid ended."""

    experiment: str
    counts: Mapping[str, int]  # status -> runs
    problems: Sequence[Problem]

    def text(self) -> str:
        """The counts, and the reason of every run without a loss."""
        problems = [problem.text() for problem in self.problems]
        return "\n".join([f"{self.experiment}: {by_state(self.counts)}", *problems])


@dataclass(frozen=True)
class Collected:
    """`collect`: the table of records."""

    experiment: str
    files: Sequence[str]
    num_rows: int
    num_planned: int
    counts: Mapping[str, int]  # status -> rows

    def text(self) -> str:
        """How many rows there are, and where the table is."""
        head = f"{self.experiment}: {self.num_rows} of {self.num_planned} rows have a record ({by_state(self.counts)})"
        return "\n".join([head, *self.files])


@dataclass(frozen=True)
class Synced:
    """`sync`: what came of sending runs to a store."""

    experiment: str
    store: str
    counts: Mapping[str, int]  # what came of it -> runs
    problems: Sequence[Problem]
    failure: str | None = None  # of the store, which ended it

    @property
    def is_complete(self) -> bool:
        """Whether the store now has what there is."""
        return self.failure is None and not self.problems

    def text(self) -> str:
        """The counts, and what could not be sent."""
        lines = [f"{self.experiment}: {by_state(self.counts)}; store {self.store}"]
        lines += [problem.text() for problem in self.problems]
        if self.failure is not None:
            lines.append(f"the store cannot be used ({self.failure}); the same command sends what is left")
        return "\n".join(lines)


@dataclass(frozen=True)
class CorpusSet:
    """One set of a corpus."""

    name: str
    num_documents: int
    num_bytes: int
    num_tokens: int


@dataclass(frozen=True)
class CorpusAnswer:
    """`data`: what a corpus holds and where it lies."""

    recipe: str
    digest: str
    folder: str
    vocabulary_size: int
    sets: Sequence[CorpusSet]
    dropped: Mapping[str, int]

    def text(self) -> str:
        """The sets as a table."""
        rows = [(s.name, f"{s.num_documents:,}", f"{s.num_bytes:,}", f"{s.num_tokens:,}") for s in self.sets]
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in self.dropped.items()) or "none"
        return "\n".join([
            f"{self.recipe}: corpus {self.digest}, vocabulary {self.vocabulary_size:,}, in {self.folder}",
            table(rows, ["set", "documents", "bytes", "tokens"]),
            f"documents left out: {dropped}",
        ])  # fmt: skip


@dataclass(frozen=True)
class ArmResult:
    """One arm of a report: its loss at the largest size, and its equal-loss multiplier with a 95 percent interval.

    What does not exist is None. `beyond` is the factor by which the reading lies outside the measured range, 1 inside.
    """

    arm: str
    num_runs: int
    largest_size: str | None
    loss: float | None
    loss_seed_sd: float | None
    form: str | None
    multiplier: float | None
    multiplier_low: float | None
    multiplier_high: float | None
    read_at_loss: float | None
    read_at_baseline_flops: float | None
    read_at_arm_flops: float | None
    beyond: float | None
    p_value: float | None
    holm_p_value: float | None
    paired: float | None
    paired_low: float | None
    paired_high: float | None
    paired_p_value: float | None
    no_multiplier: str


@dataclass(frozen=True)
class Reported:
    """`report` and `demo`: the published table, number by number, and where everything is."""

    experiment: str
    arms: Sequence[ArmResult]
    curves: Sequence[Mapping[str, str | int | float]]  # by arm and form, with every diagnostic
    multipliers: Sequence[Mapping[str, str | float]]  # m(C) by arm and loss
    parallel: "ParallelTest | None"  # of one exponent for all arms
    not_tested: str  # why there is no such test
    notes: Sequence[str]
    excluded: Sequence[Problem]
    provenance: str
    files: Sequence[str]  # of the site the page to open
    logged: str  # where MLflow has it, or why not
    table: str  # as it is shown on a terminal
    split: "AnalysedSplit | None" = None  # a SplitAnswer of `splitting`
    no_split: str = ""  # why there is none

    def text(self) -> str:
        """The tables, then the files, each folder of them in a line, and the site to open."""
        return "\n".join([self.table.rstrip(), "", *_by_folder(self.files), self.logged])


def _by_folder(files: Sequence[str]) -> list[str]:
    """A line per folder, in order: where it is, and the names of its files without those that differ in suffix."""
    folders: dict[str, dict[str, list[str]]] = {}
    for file in map(PurePath, files):
        folders.setdefault(str(file.parent), {}).setdefault(file.stem, []).append(file.suffix.removeprefix("."))
    return [
        f"{folder}/: {', '.join(f'{stem}.{_one_of(suffixes)}' for stem, suffixes in stems.items())}"
        for folder, stems in folders.items()
    ]


def _one_of(suffixes: Sequence[str]) -> str:
    return suffixes[0] if len(suffixes) == 1 else f"{{{','.join(suffixes)}}}"


def as_json(answer: Answer | Sequence[Answer]) -> str:
    """Every field at full precision, of one answer or of a list of them; what is not finite is null."""
    return json.dumps(plain(answer), indent=1, allow_nan=False)


def plain(value: Tree) -> Tree:
    """Only what JSON knows: dataclasses and configs become mappings, paths text, numbers that are not finite null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Closed):
        return value.tree()
    if isinstance(value, Mapping):
        return {str(key): plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [plain(below) for below in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def table(rows: Sequence[Sequence[object]], headers: Sequence[str], right: Collection[int] = ()) -> str:
    """Columns under headers, numbers as they come; those whose index is in `right` end flush."""
    sides = ["right" if column in right else "left" for column in range(len(headers))]
    return str(tabulate(rows, headers, tablefmt="simple", disable_numparse=True, colalign=sides))


def number(value: float) -> str:
    """Four digits and a letter: '1.235G'. The letters are those of SI, with B nowhere."""
    for letter, scale in (("Z", 1e21), ("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale:
            return f"{value / scale:.4g}{letter}"
    return f"{value:.4g}"


def hours(value: float) -> str:
    """Hours, or minutes where that reads better."""
    return f"{value * 60:.1f} minutes" if value < 1.5 else f"{value:,.1f} hours"


def by_state(counts: Mapping[str, int]) -> str:
    """'3 finished, 1 running', or 'nothing'."""
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count) or "nothing"


def printable(text: str) -> str:
    """Without control characters, which reasons and names from elsewhere may hold."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _shown(value: Tree) -> str:
    return "none" if value is None else json.dumps(value)
