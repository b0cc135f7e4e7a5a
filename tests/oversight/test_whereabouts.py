"""What a run's folder and Slurm's queue say together of where it is."""

from pathlib import Path
from typing import Any

import pytest

from k3ablate.config import InputError
from k3ablate.jobs import controller, whereabouts
from k3ablate.jobs.attempts import Cause
from k3ablate.jobs.controller import Unreachable, queue, read_indices, written_indices
from k3ablate.jobs.folders import State
from k3ablate.jobs.submissions import submissions
from k3ablate.jobs.whereabouts import AtSlurm, Lookout, tasks_of_runs
from k3ablate.records import Status

LEASE_OF_ANOTHER_MACHINE = "{}"


def states(grid: Any, lookout: Lookout) -> list[str]:
    digests = [row.label.digest for row in grid.rows]
    found = whereabouts.whereabouts(grid.root, digests, lookout)
    return [str(found.states[digest]) for digest in digests]


def ends(grid: Any, lookout: Lookout) -> list[str]:
    digests = [row.label.digest for row in grid.rows]
    return [*whereabouts.whereabouts(grid.root, digests, lookout).lost.values()]


def leave(grid: Any, state: State) -> None:
    """Let the first run's folder show `state`."""
    if state is State.INTERRUPTED:
        grid.train(0)
    elif state is State.STALE:
        (grid.folders[0].path / "lease.json").write_text(LEASE_OF_ANOTHER_MACHINE)
    elif state is not State.WAITING:
        grid.settle(0, Status(state))


@pytest.mark.parametrize(
    ("folder", "task", "shown"),
    [
        (State.WAITING, "PENDING", "queued"),
        (State.WAITING, "RUNNING", "queued"),  # its task is at another run, or starts up
        (State.WAITING, "CANCELLED", "waiting"),
        (State.WAITING, "FAILED", "lost"),
        (State.WAITING, "COMPLETED", "lost"),
        (State.WAITING, None, "lost"),
        (State.INTERRUPTED, "PENDING", "queued"),
        (State.INTERRUPTED, "REQUEUED", "queued"),
        (State.INTERRUPTED, "CANCELLED", "interrupted"),
        (State.INTERRUPTED, "NODE_FAIL", "lost"),
        (State.INTERRUPTED, None, "lost"),
        (State.OUT_OF_TIME, "PENDING", "queued"),
        (State.OUT_OF_TIME, None, "out_of_time"),
        (State.STALE, "RUNNING", "stale"),
        (State.STALE, "PENDING", "queued"),
        (State.STALE, None, "stale"),
        (State.FINISHED, "RUNNING", "finished"),
        (State.FINISHED, None, "finished"),
        (State.FAILED, "RUNNING", "failed"),
        (State.DIVERGED, None, "diverged"),
    ],
)
def test_folder_and_queue_together(
    grid: Any, slurm: Any, monkeypatch: pytest.MonkeyPatch, folder: State, task: str | None, shown: str
) -> None:
    monkeypatch.setattr("k3ablate.jobs.leases.STALE_SECONDS", -1.0)
    leave(grid, folder)
    assert states(grid, Lookout(grid.root)) == [str(folder), *["waiting"] * 7]
    assert not slurm.calls("squeue"), "nothing was submitted, so nobody is asked"
    grid.submitted("7", [0])
    slurm.answer("squeue", *([f"7_0|{task}|somebody's"] if task else []))
    assert states(grid, Lookout(grid.root)) == [shown, *["waiting"] * 7]


def test_a_run_that_is_held_runs_whatever_slurm_says(grid: Any, slurm: Any) -> None:
    grid.submitted("7", [0])
    slurm.answer("squeue", "7_0|FAILED|")
    with grid.folders[0].claimed():
        assert states(grid, Lookout(grid.root))[0] == "running"


def test_the_newest_task_of_a_run_counts(grid: Any, slurm: Any) -> None:
    first = grid.submitted("9", [0], [1], [2])
    grid.submitted("100", [1, 2], number=2)
    first.note_job("101", "2")  # of that array's third task, which went on as a new job
    slurm.answer("squeue", "9_0|FAILED|", "9_1|FAILED|", "9_2|FAILED|", "100_0|NODE_FAIL|", "101_2|PENDING|")
    assert states(grid, Lookout(grid.root))[:3] == ["lost", "lost", "queued"]
    assert [end.partition(";")[0] for end in ends(grid, Lookout(grid.root))] == [
        "task 9_0 ended: FAILED",
        "task 100_0 ended: NODE_FAIL",
    ]


def test_a_job_whose_id_was_never_noted_is_known_by_its_comment(grid: Any, slurm: Any) -> None:
    submission = grid.submitted("7", [0], [1])
    (submission.folder / "jobs" / "7").unlink()
    slurm.answer("squeue", f"8_1|PENDING|{submission.folder}")
    assert states(grid, Lookout(grid.root))[:2] == ["waiting", "queued"]


def test_what_a_person_stopped_is_not_lost(grid: Any, slurm: Any) -> None:
    submission = grid.submitted("7", [0], [1], [2])
    grid.train(0)
    grid.attempt(0, Cause.REQUESTED, job="7_0")
    grid.train(1)
    grid.attempt(1, Cause.REQUESTED, job="6_0")  # an earlier one
    submission.close([("7", 2)])
    assert states(grid, Lookout(grid.root))[:3] == ["interrupted", "lost", "waiting"]


def test_a_controller_that_is_away_is_asked_less_and_less_often(
    grid: Any, slurm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(whereabouts.time, "monotonic", lambda: clock[0])
    grid.submitted("7", [0], [1])
    grid.train(1)
    slurm.refuse("squeue", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    lookout = Lookout(grid.root)
    asked = []
    for second in range(0, 300, 10):
        clock[0] = 1000.0 + second
        assert states(grid, lookout)[:2] == ["waiting", "interrupted"]
        assert "Slurm does not answer" in lookout.note
        assert "Unable to contact slurm controller" in lookout.note
        if len(slurm.calls("squeue")) > len(asked):
            asked.append(second)
    assert asked == [0, 30, 90, 210]
    slurm.answer("squeue", "7_0|PENDING|", "7_1|RUNNING|")
    clock[0] += 600
    assert states(grid, lookout)[:2] == ["queued", "queued"]
    assert lookout.note == ""


def test_where_there_is_no_slurm_the_folders_are_shown(grid: Any, slurm: Any) -> None:
    grid.submitted("7", [0])
    slurm.remove("squeue")
    lookout = Lookout(grid.root)
    assert states(grid, lookout)[0] == "waiting"
    assert "squeue: no such command" in lookout.note


def test_accounting_tells_how_tasks_ended_that_the_queue_has_forgotten(grid: Any, slurm: Any) -> None:
    grid.submitted("7", [0], [1], [2], [3], [4], [5])
    slurm.answer("squeue", "7_5|FAILED|")
    slurm.answer(
        "sacct", "7_0|NODE_FAIL|0:0", "7_1|FAILED|1:0", "7_2|OUT_OF_MEMORY|0:9", "7_3|CANCELLED by 0|0:0",
        "7_[4]|CANCELLED by 1000|0:0",
    )  # fmt: skip
    lookout = Lookout(grid.root)
    assert states(grid, lookout)[:6] == ["lost", "lost", "lost", "waiting", "waiting", "lost"]
    log = grid.root / "jobs" / "seen" / "0001" / "logs"
    assert ends(grid, lookout) == [
        f"task 7_0 ended: NODE_FAIL; its log: {log}/7_0_0_log.out",
        f"task 7_1 ended: FAILED with exit code 1; its log: {log}/7_1_0_log.out",
        f"task 7_2 ended: OUT_OF_MEMORY with signal 9; its log: {log}/7_2_0_log.out",
        f"task 7_5 ended: FAILED; its log: {log}/7_5_0_log.out",
    ]
    assert len(slurm.calls("sacct")) == 1, "what has ended stays as it is"
    assert slurm.calls("sacct")[0].endswith("--jobs=7")


@pytest.mark.parametrize("message", ["Slurm accounting storage is disabled", "Problem talking: Connection refused"])
def test_without_accounting_nobody_knows_how(grid: Any, slurm: Any, message: str) -> None:
    grid.submitted("7", [0])
    slurm.refuse("sacct", message)
    lookout = Lookout(grid.root)
    assert states(grid, lookout)[0] == "lost"
    assert ends(grid, lookout)[0].startswith("task 7_0 ended: nobody knows how")
    assert len(slurm.calls("sacct")) == 1
    slurm.remove("sacct")
    assert states(grid, Lookout(grid.root))[0] == "lost"


def test_what_others_write_into_their_jobs_is_no_task_of_ours(slurm: Any) -> None:
    slurm.answer("squeue", "7_0|PENDING|a|b", "second line of a comment", "|||", "8|RUNNING|", "9_[1-3%2]|PENDING|x")
    assert [(task.job, task.index, task.comment) for task in queue()] == [
        ("7", 0, "a|b"),
        ("8", None, ""),
        ("9", None, "x"),
    ]


@pytest.mark.parametrize(("indices", "text"), [([0], "0"), ([3, 0, 1, 2], "0-3"), ([7, 1, 0, 9, 8, 4], "0-1,4,7-9")])
def test_indices_are_written_as_slurm_reads_them(indices: list[int], text: str) -> None:
    assert written_indices(indices) == text
    assert read_indices(text) == set(indices)


def test_one_question_has_one_try(slurm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.refuse("squeue", "Socket timed out on send/recv operation")
    with pytest.raises(Unreachable):
        queue(pauses=())
    assert len(slurm.calls("squeue")) == 1
    monkeypatch.setattr(controller, "PAUSES", (0.0, 0.0))
    with pytest.raises(Unreachable):
        queue()
    assert len(slurm.calls("squeue")) == 1 + 3


def test_names_for_people_are_those_of_the_states() -> None:
    assert {str(state) for state in State}.isdisjoint(str(state) for state in AtSlurm)


def test_a_damaged_pack_file_is_named_and_hides_no_other(grid: Any, slurm: Any) -> None:
    path: Path = grid.submitted("7", [0]).pack_path
    grid.submitted("8", [1], number=2)
    slurm.answer("squeue", "7_0|PENDING|", "8_0|PENDING|")
    path.write_text(path.read_text()[:50])
    lookout = Lookout(grid.root)
    assert states(grid, lookout)[:2] == ["waiting", "queued"]
    assert lookout.note.count(f"{path}: damaged") == 1
    with pytest.raises(InputError, match=r"packs\.json: damaged"):  # what cancels or submits must know every task
        tasks_of_runs(submissions(grid.root), [])
