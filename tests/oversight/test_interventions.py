"""`cancel` and `retry`: what is told to Slurm, what is opened again, and what is left alone."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from threading import Thread
from typing import Any

import pytest

from k3ablate import cli, interventions, standings
from k3ablate.config import InputError
from k3ablate.interventions import Cancelled
from k3ablate.jobs import controller
from k3ablate.jobs.attempts import Cause, attempts
from k3ablate.jobs.controller import Unreachable
from k3ablate.jobs.submissions import locked
from k3ablate.records import Status


def cancel(grid: Any, arm: str | None = None, size: str | None = None) -> Cancelled:
    return interventions.cancel(grid.name, grid.root, arm, size, lambda line: None)


def totals(grid: Any) -> dict[str, int]:
    return dict(standings.status(grid.name, grid.root).totals)


def as_task(monkeypatch: pytest.MonkeyPatch, job: str, index: int) -> None:
    """Let this process be that task."""
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", job)
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", str(index))


def test_queued_and_running_tasks_are_cancelled_and_no_others(
    grid: Any, slurm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_task(monkeypatch, "7", 2)
    grid.submitted("7", [0], [1], [2, 3], [4])
    grid.submitted("9", [5], number=2)
    grid.settle(4)
    grid.train(2)
    slurm.answer(
        "squeue", "6_0|RUNNING|x", "7_0|PENDING|", "7_1|PENDING|", "7_2|RUNNING|", "7_3|COMPLETED|", "9_0|PENDING|"
    )
    with grid.folders[2].claimed():
        answer = cancel(grid)
    assert slurm.calls("scancel") == ["--quiet 7_[0-2]", "--quiet 9_[0]"]
    assert answer.tasks == ["7_0", "7_1", "7_2", "9_0"]
    assert answer.running == ["+attention xs seed 0"]
    assert answer.queued == ["k2 xs seed 0", "k2 xs seed 1", "+attention xs seed 1", "k2 s seed 1"]
    assert (answer.others, answer.elsewhere) == ([], {})
    assert "cancelled 4 tasks: 4 runs were waiting, 1 were running\n" in answer.text()
    assert "+attention xs seed 0: was running; goes on from its last checkpoint" in answer.text()
    assert "`k3ablate submit seen.yaml --cluster RECIPE` goes on with them" in answer.text()

    slurm.answer("squeue")  # the controller has forgotten them, and there is no accounting
    assert totals(grid) == {"waiting": 6, "interrupted": 1, "finished": 1}
    assert cancel(grid).text() == "seen: nothing of it is in Slurm's queue"
    assert len(slurm.calls("scancel")) == 2


def test_what_else_is_in_a_task_is_named(grid: Any, slurm: Any) -> None:
    grid.submitted("7", [0, 2], [3], [1, 5])
    grid.settle(5)
    slurm.answer("squeue", "7_0|PENDING|", "7_1|PENDING|", "7_2|PENDING|")
    answer = cancel(grid, arm="k2", size="xs")
    assert slurm.calls("scancel") == ["--quiet 7_[0,2]"]
    assert answer.queued == ["k2 xs seed 0", "k2 xs seed 1"]
    assert answer.others == ["+attention xs seed 0"]
    assert "in the same tasks, so cancelled too: +attention xs seed 0" in answer.text()


def test_tasks_of_another_experiment_and_runs_outside_slurm_are_left_alone(grid: Any, slurm: Any) -> None:
    grid.submitted("7", [0], experiment="other")
    slurm.answer("squeue", "7_0|PENDING|")
    with grid.folders[1].claimed():
        answer = cancel(grid)
    assert not slurm.calls("scancel")
    assert answer.elsewhere == {
        "k2 xs seed 0": "it is in task 7_0 of experiment other; `k3ablate cancel other` ends that",
        "k2 xs seed 1": "a process that is no task of Slurm's holds it; Ctrl-C ends it there",
    }


def test_runs_of_a_cancelled_task_that_others_hold_are_not_its_own(
    grid: Any, slurm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid.submitted("7", [0, 1, 2, 3])
    slurm.answer("squeue", "7_0|RUNNING|")
    with ExitStack() as stack:
        stack.enter_context(grid.folders[0].claimed())
        as_task(monkeypatch, "8", 5)
        stack.enter_context(grid.folders[1].claimed())
        as_task(monkeypatch, "7", 0)
        stack.enter_context(grid.folders[2].claimed())
        answer = cancel(grid)
    assert (answer.tasks, answer.running, answer.saved) == (["7_0"], ["+attention xs seed 0"], [])
    assert answer.queued == ["+attention xs seed 1"]
    assert answer.elsewhere == {
        "k2 xs seed 0": "a process that is no task of Slurm's holds it; Ctrl-C ends it there",
        "k2 xs seed 1": "job 8_5 of Slurm's holds it, which is no task that this cancels; `scancel 8_5` ends that",
    }
    assert "+attention xs seed 0: was running; starts anew" in answer.text()
    assert "last checkpoint" not in answer.text()


def test_what_was_never_submitted_asks_nobody(grid: Any, slurm: Any) -> None:
    with grid.folders[1].claimed():
        assert [*cancel(grid).elsewhere] == ["k2 xs seed 1"]
    assert not slurm.calls("squeue")
    assert not (grid.root / "jobs").exists()


@pytest.mark.parametrize(
    ("arm", "size", "message"),
    [("k3", None, "--arm k3: there is none; write one of k2, +attention"), (None, "m", "write one of xs, s")],
)
def test_an_arm_or_a_size_that_there_is_not(grid: Any, arm: str | None, size: str | None, message: str) -> None:
    with pytest.raises(InputError) as refused:
        cancel(grid, arm, size)
    assert message in str(refused.value)


@pytest.mark.parametrize("program", ["squeue", "scancel"])
def test_a_slurm_that_does_not_answer_is_no_success(
    grid: Any, slurm: Any, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(controller, "PAUSES", (0.0,))
    grid.submitted("7", [0])
    slurm.answer("squeue", "7_0|PENDING|")
    slurm.refuse(program, "Unable to contact slurm controller")
    said: list[str] = []
    answer = interventions.cancel(grid.name, grid.root, None, None, said.append)
    assert said == ["Slurm does not answer (Unable to contact slurm controller); trying again for about a minute"]
    assert answer.text() == (
        "seen: Slurm does not do it: Unable to contact slurm controller. The same command cancels what is left"
    )
    with pytest.raises(SystemExit) as ended:
        cli.main(["cancel", grid.name])
    assert ended.value.code == cli.FAILED
    slurm.answer("squeue", "7_0|PENDING|")
    assert totals(grid)["queued"] == 1


def test_failed_lost_and_stale_runs_are_open_again_and_nothing_else_is_touched(
    grid: Any, slurm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k3ablate.jobs.leases.STALE_SECONDS", -1.0)
    grid.settle(0)
    grid.settle(1, Status.DIVERGED)
    grid.train(2)
    grid.settle(2, Status.FAILED)
    for _ in range(3):
        grid.attempt(2, Cause.WORKER_DIED)
    grid.submitted("7", [3], [2])
    (grid.folders[4].path / "lease.json").write_text("{}")
    grid.attempt(4, Cause.TIME_LIMIT)
    grid.train(5)
    before = {index: (grid.folders[index].path / "record.json").read_bytes() for index in (0, 1)}
    assert totals(grid) == {
        "finished": 1, "diverged": 1, "failed": 1, "lost": 1, "stale": 1, "interrupted": 1, "waiting": 2,
    }  # fmt: skip
    answer = interventions.retry(grid.name, grid.root)
    assert answer.opened == {"+attention xs seed 0": "failed", "+attention xs seed 1": "lost", "k2 s seed 0": "stale"}
    assert answer.next_command == "k3ablate submit seen.yaml --cluster RECIPE"
    assert answer.text().splitlines()[0] == "seen: 3 runs are open again"
    assert [attempts(grid.folders[index].path) for index in (2, 4)] == [[], []]
    assert grid.folders[2].progress().num_steps == 5, "metrics stay"
    assert before == {index: (grid.folders[index].path / "record.json").read_bytes() for index in (0, 1)}
    assert totals(grid) == {"finished": 1, "diverged": 1, "interrupted": 2, "waiting": 3, "stale": 1}


def test_what_was_never_submitted_goes_on_with_run(grid: Any) -> None:
    grid.settle(0, Status.FAILED)
    assert interventions.retry(grid.name, grid.root).next_command == "k3ablate run seen.yaml"
    again = interventions.retry(grid.name, grid.root)
    assert (again.opened, again.next_command) == ({}, "")
    assert again.text() == "seen: nothing failed, is lost or stale"


def hold(grid: Any) -> object:
    return grid.folders[0].claimed()


def queue(grid: Any) -> object:
    grid.submitted("7", [0])
    return memoryview(b"")  # a context without an effect


@pytest.mark.parametrize(("while_it_is", "reason"), [(hold, "a process is at it"), (queue, "task 7_0 still has it")])
def test_a_failed_run_that_somebody_has_is_left_alone(
    grid: Any, slurm: Any, while_it_is: Callable[[Any], Any], reason: str
) -> None:
    grid.settle(0, Status.FAILED)
    slurm.answer("squeue", "7_0|RUNNING|")
    with while_it_is(grid):
        answer = interventions.retry(grid.name, grid.root)
    assert not answer.opened
    assert reason in answer.left["k2 xs seed 0"]
    assert totals(grid)["failed"] == 1


def test_without_slurm_failed_runs_are_opened_and_what_is_not_known_is_said(grid: Any, slurm: Any) -> None:
    grid.settle(0, Status.FAILED)
    grid.submitted("7", [1])
    slurm.remove("squeue")
    answer = interventions.retry(grid.name, grid.root)
    assert [*answer.opened] == ["k2 xs seed 0"]
    assert "Slurm does not answer" in answer.text()


def test_no_try_begins_long_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, begins = [0.0], []

    def wait(seconds: float) -> None:
        clock[0] += seconds

    def answer_late(command: object) -> str:
        begins.append(clock[0])
        wait(20.0)
        raise Unreachable("Socket timed out")

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setattr(controller, "_once", answer_late)
    with pytest.raises(Unreachable):
        controller.queue()
    assert 1 < len(begins) < 1 + len(controller.PAUSES)
    assert begins[-1] <= controller.PATIENCE_SECONDS


def test_a_script_that_cannot_be_handed_in_is_unreachable_at_last(
    slurm: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "PAUSES", (0.0, 0.0))
    (slurm.folder / "sbatch").write_text("#!/bin/sh\necho Socket timed out on it >&2; exit 1\n")
    (slurm.folder / "sbatch").chmod(0o755)
    said: list[str] = []
    with pytest.raises(Unreachable, match="Socket timed out"):
        controller.submit(tmp_path / "job.sh", "somewhere", say=said.append)
    assert said == ["Slurm does not answer (Socket timed out on it); trying again for about a minute"]


def test_who_waits_for_the_lock_is_not_told_that_the_other_makes_a_submission(grid: Any) -> None:
    said: list[str] = []

    def wait() -> None:
        with locked(grid.root, said.append):
            pass

    with locked(grid.root, said.append):
        other = Thread(target=wait)
        other.start()
        while not said:
            time.sleep(0.01)
    other.join()
    (line,) = said
    assert "another `submit` or `cancel`" in line
    assert "may be waiting for Slurm itself" in line
