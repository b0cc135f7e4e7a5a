"""What happens to a task that is warned, preempted or cancelled: its runs go on, and no other's."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from k3ablate.jobs.attempts import Cause
from k3ablate.jobs.dispatch import Outcome
from k3ablate.jobs.folders import State

pytestmark = pytest.mark.slurm


def job_of(outcome: Outcome) -> str:
    (handed,) = outcome.handed
    assert handed.job is not None
    return handed.job


def wait_until_training(place: Any, *seeds: int) -> None:
    folders = place.folders(max(seeds) + 1)
    place.wait(lambda: all((folders[seed].path / "checkpoints" / "step-1.ckpt").exists() for seed in seeds))


def parent_of(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[1])


def noted_jobs(outcome: Outcome) -> list[str]:
    return sorted(path.name for path in (outcome.handed[0].folder / "jobs").iterdir())


def test_a_task_that_gets_a_signal_goes_back_into_the_queue_and_no_other_task_does(place: Any) -> None:
    outcome = place.submit(3, "obedient")
    job = job_of(outcome)
    wait_until_training(place, 0, 1, 2)
    place.cluster.command("scancel", "--signal=USR2", f"{job}_2")  # the last: its own job has the array's number
    place.cluster.command("scancel", "--signal=TERM", f"{job}_1")  # all there is of a preemption on many clusters
    place.wait_for_states(State.FINISHED, State.FINISHED, State.RUNNING)
    assert place.num_attempts(3) == [2, 2, 1]
    noted = [(attempt.cause, attempt.num_steps, attempt.job) for seed in (0, 1) for attempt in place.attempts(seed)]
    assert noted == [(Cause.TIME_LIMIT, 1, f"{job}_2"), (Cause.PREEMPTED, 1, f"{job}_1")]
    assert noted_jobs(outcome) == [job]

    place.cluster.command("scancel", job)
    place.wait_for_states(State.FINISHED, State.FINISHED, State.INTERRUPTED)
    place.wait_for_empty_queue()
    assert place.num_attempts(3) == [2, 2, 1]
    (attempt,) = place.attempts(seed=2)
    assert attempt.cause is Cause.REQUESTED


def test_a_task_outlives_a_controller_that_starts_anew_and_goes_on_as_a_new_job(place: Any) -> None:
    outcome = place.submit(1, "obedient", requeue=False)
    job = job_of(outcome)
    wait_until_training(place, 0)
    place.cluster.stop_daemon("slurmctld")
    worker = int((place.folders(1)[0].path / "attempts.txt").read_text())
    os.kill(parent_of(worker), signal.SIGUSR2)  # as Slurm would warn it
    place.wait(lambda: place.states(1) == [State.INTERRUPTED])
    place.cluster.start_controller()
    place.wait(lambda: len(noted_jobs(outcome)) == 2)
    assert not place.submit(1, "obedient", requeue=False).handed, "the new job is known"
    place.wait_for_states(State.FINISHED)
    assert place.num_attempts(1) == [2]
    assert (place.attempts(seed=0)[0].cause, place.attempts(seed=0)[0].job) == (Cause.TIME_LIMIT, f"{job}_0")
    assert f"goes on as {noted_jobs(outcome)[1]}_0" in place.logs()


def test_preempted_tasks_go_on(place: Any) -> None:
    requeued = place.submit(1, "obedient", partition="yielding")
    to_be_cancelled = place.submit(2, "obedient", partition="cancelling")
    without_requeue = place.submit(3, "obedient", partition="cancelling", requeue=False)
    wait_until_training(place, 0, 1, 2)
    place.cluster.command("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    place.wait_for_states(*[State.FINISHED] * 3)
    assert place.num_attempts(3) == [2] * 3
    noted = [(attempt.cause, attempt.num_steps) for seed in range(3) for attempt in place.attempts(seed)]
    assert noted == [(Cause.PREEMPTED, 1)] * 3
    assert [len(noted_jobs(outcome)) for outcome in (requeued, to_be_cancelled, without_requeue)] == [1, 1, 2]


def test_a_pack_is_warned_of_its_time_limit_and_what_is_left_of_it_goes_on(place: Any) -> None:
    job = job_of(place.submit(3, "last_is_obedient", runs_per_job=3, minutes=1, signal_seconds=50))
    place.wait_for_states(*[State.FINISHED] * 3)
    assert place.num_attempts(3) == [2, 1, 1]
    (attempt,) = place.attempts(seed=0)
    assert (attempt.cause, attempt.job) == (Cause.TIME_LIMIT, f"{job}_0")
    assert f"time limit: task {job}_0 is in the queue again" in place.logs()
