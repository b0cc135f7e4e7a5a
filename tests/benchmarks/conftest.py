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


RESULTS: list[Compared] = []


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
    terminalreporter.section("ratios of medians [quartiles]")
    for result in RESULTS:
        for line in result.lines():
            terminalreporter.write_line(line)
