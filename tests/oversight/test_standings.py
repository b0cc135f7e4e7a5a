"""`status` and `status --watch`: states by arm and size, pace, expected end, and what went wrong."""

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from k3ablate import cli, standings, watching
from k3ablate.answers import as_json
from k3ablate.jobs.attempts import Cause
from k3ablate.jobs.whereabouts import Lookout
from k3ablate.records import Status
from k3ablate.standings import Standings, status

HOSTILE = "[bold red]Broke[/] :bomb: \x1b[2J{x}\x07\nand so on"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_work(grid: Any, held: ExitStack) -> None:
    """One run has finished, one failed, two run with half done, one is queued, three wait."""
    grid.settle(0)
    grid.settle(4, Status.FAILED, "Broke: so\nit did")
    for index, speed in ((1, 32.0), (2, 64.0)):
        held.enter_context(grid.train(index, tokens_per_second=speed).claimed())
    grid.submitted("7", [3])


def test_pace_end_and_attempts(grid: Any, slurm: Any) -> None:
    with ExitStack() as held:
        at_work(grid, held)
        slurm.answer("squeue", "7_0|PENDING|")
        grid.attempt(1, Cause.WORKER_DIED)
        grid.attempt(3, Cause.TIME_LIMIT)
        grid.attempt(4, Cause.WORKER_DIED)
        found = status(grid.name, grid.root)
    assert found.counts == {
        "k2": {"xs": {"finished": 1, "running": 1}, "s": {"failed": 1, "waiting": 1}},
        "+attention": {"xs": {"running": 1, "queued": 1}, "s": {"waiting": 2}},
    }
    assert found.tokens_per_second == {"k2": {"xs": 32.0}, "+attention": {"xs": 64.0}}
    assert (found.tokens, found.tokens_done) == (8 * 1280, 1280 + 1280 + 640 + 640)
    costs = [row.flops / row.tokens for row in grid.rows]
    left = 640 * (costs[1] + costs[2]) + 1280 * (costs[3] + costs[5] + costs[6] + costs[7])
    assert found.seconds_left == pytest.approx(left / (32 * costs[1] + 64 * costs[2]), rel=1e-12)
    assert found.attempts == {"worker_died": 2, "time_limit": 1}
    lines = found.text().splitlines()
    assert " ".join(lines[2].split()) == "k2 1 finished, 1 running (32 tokens/s) 1 failed, 1 waiting"
    assert lines[-3].startswith("seen: 1 finished, 2 running, 1 failed, 3 waiting, 1 queued; 38% of the tokens, 96 tok")
    assert lines[-2:] == ["attempts that settled nothing: 2 worker died, 1 time limit", "k2 s seed 0 failed: Broke: so"]
    told = json.loads(as_json(found))
    assert told["seconds_left"] == found.seconds_left
    assert told["problems"] == [{"name": "k2 s seed 0", "status": "failed", "reason": "Broke: so"}]


def test_one_slow_run_holds_up_the_end(grid: Any, slurm: Any) -> None:
    for index in range(1, 8):
        grid.settle(index)
    with grid.train(0, tokens=1270, tokens_per_second=0.5).claimed():
        assert status(grid.name, grid.root).seconds_left == pytest.approx(20)
        with grid.train(7, tokens=0, tokens_per_second=1e9).claimed():
            pass
        grid.folders[7].forget_failure()
        with grid.folders[7].claimed():  # fast as it is, the other one needs its 20 s
            assert status(grid.name, grid.root).seconds_left == pytest.approx(20)


def test_what_has_ended_has_no_pace_and_no_end(grid: Any, slurm: Any) -> None:
    for index in range(8):
        grid.settle(index, Status.DIVERGED if index == 3 else Status.FINISHED)
    found = status(grid.name, grid.root)
    assert (found.is_over, found.seconds_left, found.note) == (True, None, "")
    assert found.text().splitlines()[-2:] == [
        "seen: 7 finished, 1 diverged",
        "+attention xs seed 1 diverged: on purpose",
    ]


def test_lost_runs_are_named_with_their_end_and_a_silent_slurm_is_told(grid: Any, slurm: Any) -> None:
    grid.submitted("7", [0])
    slurm.answer("squeue", "7_0|TIMEOUT|")
    assert "k2 xs seed 0 lost: task 7_0 ended: TIMEOUT; its log: " in status(grid.name, grid.root).text()
    slurm.refuse("squeue", "Unable to contact slurm controller\x1b[2J")
    last = status(grid.name, grid.root).text().splitlines()[-1]
    assert last.startswith("Slurm does not answer (Unable to contact slurm controller?[2J)")


def test_a_damaged_run_is_named_and_the_others_are_shown(grid: Any, slurm: Any) -> None:
    for index in (0, 1, 2):
        grid.settle(index)
    grid.submitted("7", [3])
    slurm.answer("squeue", "7_0|COMPLETED|")
    (grid.folders[1].path / "record.json").write_text('{"digest"')
    for index in (2, 3):  # one that has ended, and one that Slurm calls completed
        (grid.folders[index].path / "spec.json").write_bytes((grid.folders[0].path / "spec.json").read_bytes())
    found = status(grid.name, grid.root)
    assert found.totals == {"finished": 1, "damaged": 3, "waiting": 4}
    reasons = [problem.reason for problem in found.problems]
    assert [problem.status for problem in found.problems] == ["damaged"] * 3
    assert reasons[0].startswith(f"{grid.folders[1].path}/record.json: not the record of a run")
    assert reasons[0].endswith("delete it to run again")
    for reason in reasons[1:]:
        assert f"spec.json: holds the specification of run {grid.folders[0].digest}" in reason
    assert "lost" not in found.text()
    for index in range(4, 8):
        grid.settle(index)
    assert status(grid.name, grid.root).is_over


def test_of_many_problems_people_see_the_first(grid: Any, slurm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standings, "MAX_PROBLEMS", 3)
    for index in range(5):
        grid.settle(index, Status.FAILED)
    found = status(grid.name, grid.root)
    assert found.details()[3:] == ["... and 2 more; --json has them all"]
    assert len(json.loads(as_json(found))["problems"]) == 5


def test_text_of_runs_is_shown_and_never_rendered(grid: Any, slurm: Any) -> None:
    grid.settle(0, Status.FAILED, HOSTILE)
    expected = "k2 xs seed 0 failed: [bold red]Broke[/] :bomb: ?[2J{x}?"
    found = status(grid.name, grid.root)
    assert expected in found.text()
    for stream in (Terminal(), io.StringIO()):
        with watching.screen(stream) as screen:
            screen.show(found)
        assert expected in stream.getvalue()
        assert "\x1b[2J" not in stream.getvalue()
        assert "\x07" not in stream.getvalue()


def test_a_table_on_a_terminal_and_news_elsewhere(grid: Any, slurm: Any) -> None:
    lookout = Lookout(grid.root)
    terminal, pipe = Terminal(), io.StringIO()
    with watching.screen(terminal) as table, watching.screen(pipe) as lines:
        for _ in range(2):
            for screen in (table, lines):
                screen.show(grid.look(lookout))
        grid.settle(0, Status.FAILED, "so it was")
        for _ in range(2):
            for screen in (table, lines):
                screen.show(grid.look(lookout))
    told = [line.partition(" ")[2] for line in pipe.getvalue().splitlines()]
    assert told == [
        "seen: 8 waiting; 0% of the tokens",
        "seen: 1 failed, 7 waiting; 12% of the tokens",
        "k2 xs seed 0 failed: so it was",
    ]
    first, _, later = terminal.getvalue().partition("Ctrl-C ends")
    assert "1 failed" not in first
    assert "so it was" in later


class Watcher(watching.Screen):
    """Keeps what it is shown, and lets things happen after each look."""

    def __init__(self, *then: Callable[[], object]) -> None:
        self.seen: list[Standings] = []
        self.then = [*then]

    def show(self, standings: Standings) -> None:
        self.seen.append(standings)
        if self.then:
            self.then.pop(0)()


def test_watching_asks_once_a_look_and_ends_with_the_last_run(grid: Any, slurm: Any) -> None:
    grid.submitted("7", [0, 1, 2, 3, 4, 5, 6, 7])
    slurm.answer("squeue", "7_0|RUNNING|")
    watcher = Watcher(
        lambda: [grid.settle(index) for index in range(7)],
        lambda: [grid.settle(7, Status.FAILED), slurm.answer("squeue", "7_0|COMPLETED|")],
    )
    found = watching.watch(grid.name, grid.root, 0.0, watcher)
    assert [dict(standings.totals) for standings in watcher.seen] == [
        {"queued": 8}, {"finished": 7, "queued": 1}, {"finished": 7, "failed": 1}
    ]  # fmt: skip
    assert found is watcher.seen[-1]
    assert len(slurm.calls("squeue")) == 3


def test_watching_goes_on_without_an_answer(grid: Any, slurm: Any) -> None:
    grid.submitted("7", [0])
    slurm.refuse("squeue", "Connection refused")
    watcher = Watcher(lambda: None, lambda: [grid.settle(index) for index in range(8)])
    assert watching.watch(grid.name, grid.root, 0.0, watcher).is_over
    assert len(slurm.calls("squeue")) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--watch", "--json"], "write one of them"),
        (["--watch", "--every", "0.5"], "--every 0.5: seconds between two looks; write 1 or more"),
        (["--watch", "--every", "nan"], "write 1 or more"),
    ],
)
def test_options_that_do_not_fit(
    grid: Any, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["status", grid.name, *options])
    assert stopped.value.code == cli.WRONG_INPUT
    assert message in capsys.readouterr().err


def broken_pipe(text: str) -> int:
    raise BrokenPipeError


@pytest.fixture
def watcher(grid: Any) -> Iterator[subprocess.Popen[str]]:
    """`status --watch` as a process of its own that takes Ctrl-C, as in the foreground of a terminal."""
    for name in ("train", "validation"):
        Path(f"{name}.txt").write_text("no corpus is built of it")
    program = (
        "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from k3ablate.cli import main\nmain(['status', 'seen.yaml', '--watch', '--every', '1'])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


def test_watching_ends_when_nobody_reads(grid: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[bool] = []
    monkeypatch.setattr(sys.stdout, "write", broken_pipe)
    monkeypatch.setattr(cli, "_drop_output", lambda: dropped.append(True))
    with pytest.raises(SystemExit) as stopped:
        cli.main(["status", grid.name, "--watch"])
    assert (stopped.value.code, dropped) == (cli.DONE, [True])


@pytest.mark.slow
def test_ctrl_c_ends_watching_with_its_own_code(watcher: subprocess.Popen[str]) -> None:
    process = watcher
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=30)
    assert "seen: 8 waiting" in first
    assert (process.returncode, rest) == (cli.INTERRUPTED, "")
    assert "Traceback" not in errors
