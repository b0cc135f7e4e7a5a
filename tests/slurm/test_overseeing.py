"""What `status` and `cancel` say and do while a real Slurm carries runs out."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from k3ablate.jobs import controller
from k3ablate.jobs.folders import State
from k3ablate.jobs.submissions import Submission
from k3ablate.jobs.whereabouts import Lookout, whereabouts

pytestmark = pytest.mark.slurm


def states(place: Any, num_runs: int, lookout: Lookout | None = None) -> list[str]:
    digests = [row.label.digest for row in place.rows(num_runs)]
    found = whereabouts(place.root, digests, lookout or Lookout(place.root))
    return [str(found.states[digest]) for digest in digests]


def test_queued_tasks_that_are_cancelled_are_not_lost(place: Any) -> None:
    (handed,) = place.submit(3, "finish", partition="closed").handed
    assert states(place, 4) == ["queued", "queued", "queued", "waiting"]
    submission = Submission(handed.folder)
    submission.close([(handed.job, 0), (handed.job, 2)])
    controller.cancel(handed.job, [0, 2])  # the longest run is first
    assert states(place, 3) == ["waiting", "queued", "waiting"]
    controller.cancel(handed.job, [0, 1, 2])  # twice is harmless
    assert not place.cluster.queue()
    assert states(place, 3) == ["waiting", "lost", "waiting"]  # nobody said why, and there is no accounting


def test_a_cancelled_task_leaves_a_checkpoint_and_is_not_requeued(place: Any) -> None:
    (handed,) = place.submit(1, "obedient").handed
    place.wait(lambda: states(place, 1) == ["running"] and place.folders(1)[0].saved_steps() == 1)
    controller.cancel(handed.job, [0])
    place.wait_for_states(State.INTERRUPTED)
    place.wait_for_empty_queue()
    assert states(place, 1) == ["interrupted"]
    assert place.num_attempts(1) == [1]


def test_a_task_that_was_killed_leaves_its_runs_lost_until_they_are_submitted_again(place: Any) -> None:
    (handed,) = place.submit(1, "endless_once").handed
    place.wait(lambda: place.folders(1)[0].saved_steps() == 1)
    worker = int((place.folders(1)[0].path / "attempts.txt").read_text())
    launcher = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(launcher, signal.SIGKILL)
    place.wait_for_empty_queue()
    digest = place.rows(1)[0].label.digest
    found = whereabouts(place.root, [digest], Lookout(place.root))
    assert str(found.states[digest]) == "lost"
    assert f"task {handed.job}_0 ended: FAILED" in found.lost[digest]
    place.submit(1, "endless_once")
    place.wait_for_states(State.FINISHED)


def test_while_the_controller_is_away_the_folders_are_shown(place: Any) -> None:
    place.submit(1, "obedient")
    place.wait(lambda: states(place, 1) == ["running"])
    place.submit(2, "finish", partition="closed")
    lookout = Lookout(place.root)
    assert states(place, 2, lookout) == ["running", "queued"]
    place.cluster.stop_daemon("slurmctld")
    try:
        assert states(place, 2, lookout) == ["running", "waiting"]
        assert "Slurm does not answer" in lookout.note
    finally:
        place.cluster.start_controller()
    assert states(place, 2) == ["running", "queued"]
