"""A launch that is asked to stop, and signals that reach a worker or the process that trains."""

import io
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from k3ablate.jobs.folders import State, prepare
from k3ablate.jobs.local import Crew, Ended, Job, Stop, run_jobs, task_of
from k3ablate.jobs.progress import reporter
from k3ablate.jobs.worker import Trainer
from k3ablate.training import stopping
from k3ablate.training.spec import Execution

PATIENCE_SECONDS = 60.0


@pytest.fixture
def jobs(fake_runs: ModuleType, tmp_path: Path) -> list[Job]:
    rows = [fake_runs.make_row(seed) for seed in range(3)]
    return [Job(task_of(row.label, prepare(tmp_path, row.spec)), row.tokens, row.flops) for row in rows]


def launch(jobs: list[Job], trainer: Trainer, stop: Stop) -> Ended:
    crew = Crew(2, 1, Execution().model_dump_json(), trainer)
    return run_jobs(jobs, crew, reporter(io.StringIO()), stop)


def checkpointed(jobs: list[Job]) -> list[Job]:
    return [job for job in jobs if (job.folder.path / "checkpoints" / "step-1.ckpt").exists()]


def soon(condition: Callable[[], bool]) -> Callable[[], bool]:
    """`condition`, which is asserted to come true."""
    deadline = time.monotonic() + PATIENCE_SECONDS

    def asked() -> bool:
        assert time.monotonic() < deadline, "it did not happen in time"
        return condition()

    return asked


@pytest.mark.slow
def test_runs_stop_after_their_step_and_go_on_later(fake_runs: ModuleType, jobs: list[Job]) -> None:
    ended = launch(jobs, fake_runs.obedient, Stop(soon(lambda: len(checkpointed(jobs)) == 2), PATIENCE_SECONDS))
    assert not ended.records
    assert sorted(job.digest for job in ended.stopped) == sorted(job.digest for job in checkpointed(jobs))
    assert sorted(job.folder.state() for job in jobs) == [State.INTERRUPTED, State.INTERRUPTED, State.WAITING]
    fresh = [job for job in jobs if job not in checkpointed(jobs)]
    fake_runs.note_attempt(fresh[0].task)  # so that it ends at once, too
    ended = launch(jobs, fake_runs.obedient, Stop())
    assert (len(ended.records), ended.stopped) == (3, [])


@pytest.mark.slow
def test_a_worker_that_does_not_listen_is_ended_in_time(fake_runs: ModuleType, jobs: list[Job]) -> None:
    ended = launch(jobs, fake_runs.endless, Stop(soon(lambda: len(checkpointed(jobs)) == 2), seconds=0.1))
    assert len(ended.stopped) == 2
    assert sorted(job.folder.state() for job in jobs) == [State.INTERRUPTED, State.INTERRUPTED, State.WAITING]


@pytest.mark.slow
def test_a_worker_that_somebody_else_stops_costs_nothing_but_time(fake_runs: ModuleType, jobs: list[Job]) -> None:
    def terminate_once() -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not checkpointed(jobs[:1]) and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(int((jobs[0].folder.path / "attempts.txt").read_text()), signal.SIGTERM)

    person = threading.Thread(target=terminate_once)
    person.start()
    ended = launch(jobs[:1], fake_runs.obedient, Stop())
    person.join()
    assert (len(ended.records), ended.stopped) == (1, [])
    assert fake_runs.num_attempts(jobs[0].folder.path) == 2
    assert not (jobs[0].folder.path / "failure.txt").exists()


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_signal_leaves_a_note(number: signal.Signals) -> None:
    previous = {each: signal.getsignal(each) for each in stopping.SIGNALS}
    try:
        stopping.listen()
        assert not stopping.requested()
        os.kill(os.getpid(), number)
        assert stopping.requested()
    finally:
        stopping.deafen()
        for each, handler in previous.items():
            signal.signal(each, handler)
    assert not stopping.requested()
