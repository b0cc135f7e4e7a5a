"""How many times faster or slower is one thing than others, in one process, on the same inputs, in turns?

Each benchmark names a subject and what it is compared with. All of them run once per round, one after the other, so
that a machine that slows down slows all of them; the ratio is that of the medians. The table is at the end of the run.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

Call = Callable[[], object]


@dataclass(frozen=True)
class Compared:
    """Seconds of every round of a subject and of what it is compared with."""

    target: str
    seconds: Mapping[str, list[float]] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """One line per comparison: subject / other, and each one's median with the quartiles around it."""
        (subject, own), *others = self.seconds.items()
        for name, seconds in others:
            ratio = statistics.median(own) / statistics.median(seconds)
            yield f"{self.target}: {subject} {_spread(own)} / {name} {_spread(seconds)} = {ratio:.3f}"


@dataclass(frozen=True)
class Added:
    """CPU seconds of every round: of a step, and what a change adds to the part of it that is changed."""

    target: str
    step: list[float] = field(default_factory=list)
    change: list[float] = field(default_factory=list)

    def interval(self) -> tuple[float, float]:
        """95 percent, of the median change as a share of the median step: two of the changes in order."""
        ordered, reach = sorted(self.change), 0.98 * len(self.change) ** 0.5
        low, high = (max(0, round(len(ordered) / 2 - reach)), min(len(ordered) - 1, round(len(ordered) / 2 + reach)))
        return ordered[low] / statistics.median(self.step), ordered[high] / statistics.median(self.step)

    def lines(self) -> Iterator[str]:
        """One line: milliseconds of both, the share and its interval."""
        step, change, (low, high) = statistics.median(self.step), statistics.median(self.change), self.interval()
        share = f"{100 * change / step:.2f} percent [{100 * low:.2f}, {100 * high:.2f}] in {len(self.step)} rounds"
        yield f"{self.target}: adds {1e3 * change:.3g} ms to {1e3 * step:.4g} ms of CPU time, {share}"


RESULTS: list[Compared | Added] = []


def _spread(seconds: list[float]) -> str:
    low, middle, high = statistics.quantiles(seconds, n=4)
    return f"{1e3 * middle:.4g} ms [{1e3 * low:.4g}, {1e3 * high:.4g}]"


@pytest.fixture(name="compare")
def comparison(benchmark: Any, request: pytest.FixtureRequest) -> Callable[..., None]:
    """compare(target, subject=call, others={name: call}, rounds=15)."""

    def compare(target: str, name: str, subject: Call, others: Mapping[str, Call], rounds: int = 15) -> None:
        seconds: dict[str, list[float]] = {name: [], **{other: [] for other in others}}
        for call in (subject, *others.values()):
            call()

        def timed(label: str, call: Call) -> None:
            start = time.perf_counter()
            call()
            seconds[label].append(time.perf_counter() - start)

        def others_in_turn() -> None:
            for label, call in others.items():
                timed(label, call)

        benchmark.group = target
        benchmark.pedantic(lambda: timed(name, subject), setup=others_in_turn, rounds=rounds)
        RESULTS.append(Compared(target, seconds))
        benchmark.extra_info["ratios"] = list(RESULTS[-1].lines())

    return compare


@pytest.fixture(name="adds")
def addition() -> Callable[..., None]:
    """adds(target, step=call, changed=call): whole steps in turns, of which each returns the CPU seconds of one part.

    What differs is in that part, which is timed where it stands: a whole step scatters by more than what is added.
    Rounds go on until the interval is 1 percent of the step wide.
    """

    def adds(target: str, step: Callable[[], float], changed: Callable[[], float], most_rounds: int = 100) -> None:
        result = Added(target)
        step(), changed()
        while len(result.step) < most_rounds:
            start = time.thread_time()
            part = step()
            result.step.append(time.thread_time() - start)
            result.change.append(changed() - part)
            low, high = result.interval()
            if len(result.step) > 20 and high - low < 0.01:
                break
        RESULTS.append(result)

    return adds


@pytest.fixture(name="two_threads")
def with_two_threads() -> Iterator[None]:
    """What the targets of the KDA core are stated for; everything else here runs on one."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The ratios, where any were measured."""
    if not RESULTS:
        return
    terminalreporter.section("ratios of medians [quartiles], additions [intervals of 95 percent]")
    for result in RESULTS:
        for line in result.lines():
            terminalreporter.write_line(line)
