import io
from pathlib import Path

import pytest

from k3ablate.jobs import progress
from k3ablate.jobs.progress import Pace, Standing, duration, outcome, reporter
from k3ablate.records import Evaluation, RunRecord, Status


def make_standing(**changes: object) -> Standing:
    values: dict[str, object] = {
        "num_runs": 42,
        "num_ended": 12,
        "running": ["k3 s seed 0"],
        "tokens": 1000,
        "tokens_done": 250,
        "flops": 4e9,
        "flops_done": 1e9,
        "flops_per_second": 12.5e6,
    }
    return Standing(**(values | changes))  # type: ignore[arg-type]


def make_record(status: Status) -> RunRecord:
    is_finished = status is Status.FINISHED
    return RunRecord(
        digest="0" * 16,
        status=status,
        reason="" if is_finished else "first line\nsecond line",
        evaluations={"validation": Evaluation(loss=2.31, bits_per_byte=3.3, num_tokens=9)} if is_finished else {},
        num_steps=1,
        tokens=1,
        flops=1.0,
        flops_6nd=1.0,
        active_params=1,
        total_params=1,
        wall_seconds=18.2,
        tokens_per_second=1.0,
        corpus="c",
    )


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_left_is_work_left_over_pace() -> None:
    assert make_standing().seconds_left == 240.0
    assert make_standing(flops_per_second=None).seconds_left is None


def test_the_pace_counts_from_the_first_progress_of_this_launch() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.flops_per_second(1e9) is None  # done by an earlier launch
    clock.now += 30  # imports
    assert pace.flops_per_second(1e9) is None
    assert pace.flops_per_second(1.1e9) is None
    clock.now += 4
    assert pace.flops_per_second(1.5e9) is None  # too early to say
    clock.now += 6
    assert pace.flops_per_second(2.1e9) == pytest.approx(1e8)


def test_a_finished_run_is_one_line_with_the_time_left() -> None:
    stream = io.StringIO()
    lines = reporter(stream)
    lines.ended(make_standing(num_ended=42), "k3 s1 seed 0", make_record(Status.FINISHED))
    assert stream.getvalue() == "[42/42] k3 s1 seed 0 finished loss 2.3100 (18 s) · about 4 min left\n"


def test_lines_are_rare_but_trouble_and_the_end_are_always_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 1e9)
    stream = io.StringIO()
    lines = reporter(stream)
    lines.ended(make_standing(num_ended=1), "a", make_record(Status.FINISHED))
    lines.show(make_standing())
    assert stream.getvalue() == ""
    lines.ended(make_standing(num_ended=2), "b", make_record(Status.DIVERGED))
    lines.ended(make_standing(num_ended=42, flops_per_second=None), "c", make_record(Status.FINISHED))
    assert stream.getvalue().splitlines() == [
        "[2/42] b diverged: first line · about 4 min left",
        "[42/42] c finished loss 2.3100 (18 s)",
    ]


def test_a_silent_grid_says_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    stream = io.StringIO()
    reporter(stream).show(make_standing())
    assert stream.getvalue() == "[12/42] 1 running, 25% of the tokens · about 4 min left\n"


def test_a_terminal_gets_a_bar_that_names_what_runs(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with reporter(stream) as bar:
        bar.show(make_standing())
        bar.ended(make_standing(num_ended=13), "b [s]", make_record(Status.FAILED))
    shown = stream.getvalue()
    assert "[13/42]" in shown
    assert "b [s] failed: first line" in shown
    assert "second line" not in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (5399, "90 min"), (5400, "1.5 h"), (360_000, "100.0 h")],
)
def test_durations_read_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_an_outcome_is_one_line() -> None:
    assert outcome(make_record(Status.FINISHED)) == "finished loss 2.3100 (18 s)"
    assert outcome(make_record(Status.OUT_OF_TIME)) == "out_of_time: first line"
