"""How does an experiment stand? The verb `status`: states by arm and size, pace, expected end, and what went wrong.

One look at the run folders and, where runs were submitted, one question to Slurm; without an answer of it the folders
alone are shown, and that is said. A run whose folder is damaged is one of the problems and does not hide the others.
`watching` looks again and again. Nothing is changed by looking.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path

from k3ablate.answers import Problem, by_state, number, printable, table
from k3ablate.experiment import load
from k3ablate.jobs import folders
from k3ablate.jobs.attempts import attempts
from k3ablate.jobs.folders import SETTLED_STATES, RunFolder, State
from k3ablate.jobs.progress import duration
from k3ablate.jobs.whereabouts import AtSlurm, Lookout, Whereabouts, whereabouts
from k3ablate.recipes import experiment_path
from k3ablate.records import SETTLED, RunRecord
from k3ablate.tuning.submitted import submitted_trials
from k3ablate.verbs import AskedRun, digests, plan_from_known_corpora, problems

MAX_PROBLEMS = 50  # lines for people
DAMAGED = "damaged"  # beside the states of runs: the record is, or something in the folder is another run's or a link
OVER = SETTLED_STATES | {State.FAILED}  # nothing will happen to these by itself, nor has to


@dataclass(frozen=True)
class Standings:
    """`status`: how many rows are in which state, by arm and size, and how the whole goes on.

    Pace and end are those of the runs that are running now; failed and damaged ones are not counted as left to do.
    """

    experiment: str
    counts: Mapping[str, Mapping[str, Mapping[str, int]]]  # arm -> size -> state -> rows
    tokens_per_second: Mapping[str, Mapping[str, float]]  # arm -> size, where something is running
    tokens: int  # of all runs that are not damaged, asked for
    tokens_done: int
    seconds_left: float | None  # of what is open, at that pace; None where nothing runs
    attempts: Mapping[str, int]  # cause -> attempts that settled nothing, of runs that needed several
    problems: Sequence[Problem]
    note: str = ""  # why Slurm's queue is not in it

    @property
    def totals(self) -> Counter[str]:
        """State -> rows."""
        cells = chain.from_iterable(by_size.values() for by_size in self.counts.values())
        return sum((Counter(states) for states in cells), Counter[str]())

    @property
    def is_over(self) -> bool:
        """Whether every run has ended, well or not."""
        return (OVER | {DAMAGED}).issuperset(self.totals)

    @property
    def headers(self) -> list[str]:
        """Of the table's columns."""
        return ["arm", *dict.fromkeys(size for by_size in self.counts.values() for size in by_size)]

    def rows(self) -> list[list[str]]:
        """The table's cells: an arm, then what its runs do at each size."""
        return [[arm, *(self._cell(arm, size) for size in self.headers[1:])] for arm in self.counts]

    def summary(self) -> str:
        """One line: the totals and, while something is open, how far the whole is and when it ends."""
        line = f"{self.experiment}: {by_state(self.totals)}"
        if self.is_over:
            return line
        line += f"; {self.tokens_done / max(1, self.tokens):.0%} of the tokens"
        speed = sum(chain.from_iterable(by_size.values() for by_size in self.tokens_per_second.values()))
        if speed:
            line += f", {number(speed)} tokens/s"
        if self.seconds_left is not None:
            end = datetime.now().astimezone() + timedelta(seconds=self.seconds_left)
            line += f", about {duration(self.seconds_left)} left ({end:%a %d %b %H:%M})"
        return line

    def details(self) -> list[str]:
        """Lines below the summary: attempts by cause, every problem's first line, and what is not known."""
        tried = {cause.replace("_", " "): times for cause, times in self.attempts.items()}
        lines = [f"attempts that settled nothing: {by_state(tried)}"] if tried else []
        lines += [problem.text() for problem in self.problems[:MAX_PROBLEMS]]
        if len(self.problems) > MAX_PROBLEMS:
            lines.append(f"... and {len(self.problems) - MAX_PROBLEMS} more; --json has them all")
        return [*lines, printable(self.note)] if self.note else lines

    def text(self) -> str:
        """The table, the summary and the details."""
        return "\n".join([table(self.rows(), self.headers), "", self.summary(), *self.details()])

    def _cell(self, arm: str, size: str) -> str:
        speed = self.tokens_per_second.get(arm, {}).get(size)
        pace = f" ({number(speed)} tokens/s)" if speed else ""
        return by_state(self.counts[arm].get(size, {})) + pace


def status(name: str, root: Path) -> Standings:
    """States by arm and size; a row whose corpus is not built waits."""
    experiment = load(experiment_path(name))
    return look(experiment.name, plan_from_known_corpora(experiment, root).rows, root, Lookout(root))


def status_of_trials(name: str, root: Path) -> Standings:
    """States of the trials that were handed to a cluster, by arm and size."""
    apart, trials = submitted_trials(name, root)
    return look(apart, trials, root, Lookout(root))


def look(experiment: str, rows: Sequence[AskedRun], root: Path, lookout: Lookout) -> Standings:
    """How these rows stand now."""
    wanted = digests(rows)
    records, damage = folders.records_and_damage(root, wanted)
    sound = [digest for digest in wanted if digest not in damage]
    where = whereabouts(root, sound, lookout, records)
    works = {
        row.label.digest or str(number): _work(row, root, where, records)
        for number, row in enumerate(rows)
        if row.label.digest not in damage
    }
    return Standings(
        experiment=experiment,
        counts=_counts(rows, {**where.states, **dict.fromkeys(damage, DAMAGED)}),
        tokens_per_second=_speeds(rows, works),
        tokens=sum(work.tokens for work in works.values()),
        tokens_done=sum(work.tokens_done for work in works.values()),
        seconds_left=_seconds_left([*works.values()]),
        attempts=Counter(chain.from_iterable(_causes(root / digest, where, records) for digest in sound)),
        problems=[*_damaged(rows, damage), *problems(rows, records), *_lost(rows, where)],
        note=lookout.note,
    )


@dataclass(frozen=True)
class _Work:
    """What one run asks for, has done, and does at the moment."""

    tokens: int
    tokens_done: int
    flops_per_token: float
    tokens_per_second: float
    is_over: bool

    @property
    def flops_left(self) -> float:
        return 0.0 if self.is_over else self.flops_per_token * max(0, self.tokens - self.tokens_done)

    @property
    def flops_per_second(self) -> float:
        return self.flops_per_token * self.tokens_per_second


def _work(row: AskedRun, root: Path, where: Whereabouts, records: Mapping[str, RunRecord]) -> _Work:
    """With a record that ends the run, both tokens are what was done: one that diverges early saves work."""
    cost = row.flops / row.tokens
    state, record = where.states.get(row.label.digest, State.WAITING), records.get(row.label.digest)
    if record is not None and state in OVER:
        return _Work(record.tokens, record.tokens, cost, 0.0, is_over=True)
    if state is State.WAITING or not row.label.digest:
        return _Work(row.tokens, 0, cost, 0.0, is_over=False)
    progress = RunFolder(root / row.label.digest).progress()
    speed = progress.tokens_per_second if state is State.RUNNING else 0.0
    return _Work(row.tokens, progress.tokens, cost, speed, is_over=False)


def _counts(rows: Iterable[AskedRun], states: Mapping[str, str]) -> dict[str, dict[str, Counter[str]]]:
    counts: dict[str, dict[str, Counter[str]]] = {}
    for row in rows:
        state = states.get(row.label.digest, State.WAITING)
        counts.setdefault(row.label.arm, {}).setdefault(row.label.size, Counter())[str(state)] += 1
    return counts


def _speeds(rows: Iterable[AskedRun], works: Mapping[str, _Work]) -> dict[str, dict[str, float]]:
    speeds: dict[str, dict[str, float]] = {}
    for row in rows:
        work = works.get(row.label.digest)
        speed = work.tokens_per_second if work else 0.0
        if speed:
            by_size = speeds.setdefault(row.label.arm, {})
            by_size[row.label.size] = by_size.get(row.label.size, 0.0) + speed
    return speeds


def _seconds_left(works: Sequence[_Work]) -> float | None:
    """By the pace of all together, but no less than the slowest of those that run needs for itself."""
    running = [work for work in works if work.tokens_per_second > 0]
    if not running:
        return None
    together = sum(work.flops_left for work in works) / sum(work.flops_per_second for work in running)
    return max(together, *(work.flops_left / work.flops_per_second for work in running))


def _causes(folder: Path, where: Whereabouts, records: Mapping[str, RunRecord]) -> Iterator[str]:
    """Of a run that finished in one go there is nothing to read: on a network each look costs a millisecond."""
    record = records.get(folder.name)
    is_waiting = where.states[folder.name] is State.WAITING
    was_easy = record is not None and record.status in SETTLED and record.num_resumes == 0
    return iter(()) if is_waiting or was_easy else (str(attempt.cause) for attempt in attempts(folder))


def _lost(rows: Iterable[AskedRun], where: Whereabouts) -> list[Problem]:
    names = _names(rows)
    return [Problem(names[digest], str(AtSlurm.LOST), end) for digest, end in where.lost.items()]


def _damaged(rows: Iterable[AskedRun], damage: Mapping[str, str]) -> list[Problem]:
    names = _names(rows)
    return [Problem(names[digest], DAMAGED, reason) for digest, reason in damage.items()]


def _names(rows: Iterable[AskedRun]) -> dict[str, str]:
    """What every run is called first, by digest."""
    return {row.label.digest: row.label.name for row in reversed([*rows])}
