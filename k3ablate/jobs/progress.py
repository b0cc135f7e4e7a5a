"""How far is the whole grid, and when will it be done? A bar on a terminal, plain lines elsewhere.

The launcher (`local`) hands in a `Standing` about once a second and every run that ended; nothing here looks at run
folders. Everything goes to the stream that is passed in (the command line passes standard error).
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TextIO

from k3ablate.records import PUBLISHED_SET, RunRecord, Status

LINE_SECONDS = 4.0  # plain lines come at most this often, ends in trouble excepted
QUIET_SECONDS = 30.0  # and at least this often
SETTLING_SECONDS = 5.0  # of progress, before an estimate is made of it


@dataclass(frozen=True)
class Standing:
    """Sums over the grid. Work is in training FLOPs, which is what time is spent on."""

    num_runs: int
    num_ended: int
    running: Sequence[str]  # names
    tokens: int  # of all runs, asked for
    tokens_done: int
    flops: float
    flops_done: float
    flops_per_second: float | None  # of all workers together; None while there is too little to go by

    @property
    def seconds_left(self) -> float | None:
        """At the pace so far; None while there is none."""
        return (self.flops - self.flops_done) / self.flops_per_second if self.flops_per_second else None


class Pace:
    """Throughput of one launch, counted from the first progress it makes: imports come before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._before: float | None = None  # FLOPs done before this launch
        self._first: tuple[float, float] | None = None  # time and FLOPs of the first progress

    def flops_per_second(self, flops_done: float) -> float | None:
        """Given the FLOPs done by now; None for the first seconds."""
        now = self._clock()
        if self._before is None:
            self._before = flops_done
        if self._first is None:
            self._first = (now, flops_done) if flops_done > self._before else None
            return None
        seconds, fresh = now - self._first[0], flops_done - self._first[1]
        return fresh / seconds if seconds >= SETTLING_SECONDS and fresh > 0 else None


class Reporter(ABC):
    """Shows the grid's progress; used as a context manager around the whole of it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 -- most streams need nothing
        """Leave the stream as it was."""

    @abstractmethod
    def show(self, standing: Standing) -> None:
        """The grid stands like this now."""

    @abstractmethod
    def ended(self, standing: Standing, name: str, record: RunRecord) -> None:
        """The run called `name` came to an end."""

    @abstractmethod
    def say(self, message: str) -> None:
        """A line of its own."""


class _Lines(Reporter):
    """One line every few seconds at most, for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last = time.monotonic()

    def show(self, standing: Standing) -> None:
        if time.monotonic() - self._last > QUIET_SECONDS:
            share = standing.tokens_done / max(1, standing.tokens)
            self.say(f"{_count(standing)} {len(standing.running)} running, {share:.0%} of the tokens{_left(standing)}")

    def ended(self, standing: Standing, name: str, record: RunRecord) -> None:
        is_last = standing.num_ended == standing.num_runs
        is_quiet = time.monotonic() - self._last > LINE_SECONDS
        if is_quiet or is_last or record.status is not Status.FINISHED:
            self.say(f"{_count(standing)} {name} {outcome(record)}{_left(standing)}")

    def say(self, message: str) -> None:
        print(message, file=self._stream, flush=True)
        self._last = time.monotonic()


class _Bar(Reporter):
    """A bar that stays in place, for people who watch. Runs that do not finish leave a line above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("[{task.fields[ended]}]"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} % of the tokens{task.fields[left]}  {task.description}", markup=False),
            console=Console(file=stream),
        )
        self._task = self._progress.add_task("", ended="", left="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def close(self) -> None:
        self._progress.stop()

    def show(self, standing: Standing) -> None:
        self._progress.update(
            self._task,
            total=standing.tokens,
            completed=standing.tokens_done,
            description=", ".join(standing.running),
            ended=f"{standing.num_ended}/{standing.num_runs}",
            left=_left(standing),
        )

    def ended(self, standing: Standing, name: str, record: RunRecord) -> None:
        if record.status is not Status.FINISHED:
            self.say(f"{name} {outcome(record)}")
        self.show(standing)

    def say(self, message: str) -> None:
        self._progress.console.print(message, markup=False, highlight=False)


def reporter(stream: TextIO) -> Reporter:
    """The reporter that suits `stream`."""
    return _Bar(stream) if stream.isatty() else _Lines(stream)


def outcome(record: RunRecord) -> str:
    """A record in a few words: 'finished loss 2.3101 (18 s)' or 'failed: the reason's first line'."""
    if record.status is Status.FINISHED:
        return f"finished loss {record.evaluations[PUBLISHED_SET].loss:.4f} ({record.wall_seconds:.0f} s)"
    return f"{record.status}: {record.reason.splitlines()[0]}"


def duration(seconds: float) -> str:
    """Seconds as people say them: '40 s', '4 min', '3.2 h'."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _count(standing: Standing) -> str:
    return f"[{standing.num_ended}/{standing.num_runs}]"


def _left(standing: Standing) -> str:
    seconds = standing.seconds_left
    return "" if seconds is None or not seconds else f" · about {duration(seconds)} left"
