"""One worker process, without a launcher's bookkeeping."""

import multiprocessing
from pathlib import Path
from types import ModuleType

import pytest

from k3ablate.jobs.attempts import Attempt, Cause, attempts, note_attempt
from k3ablate.jobs.folders import RunFolder, State, prepare
from k3ablate.jobs.leases import LEASE_FILE
from k3ablate.jobs.worker import Answer, Outcome, Task, Trainer, attempt, work
from k3ablate.records import Status, write_spec
from k3ablate.training.spec import Execution, RunSpec


@pytest.mark.slow
def test_a_worker_whose_launcher_hung_up_leaves_quietly(
    fake_runs: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = prepare(tmp_path, fake_runs.make_spec(0))
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=work, args=(theirs, 1, Execution().model_dump_json(), fake_runs.finish))
    worker.start()
    theirs.close()
    ours.send(Task(folder, "a run", {}))
    ours.close()  # before there is an answer to hear
    worker.join()
    assert (worker.exitcode, folder.state()) == (0, State.FINISHED)
    assert capfd.readouterr().err == ""


def attempted(folder: RunFolder, trainer: Trainer) -> Answer:
    return attempt(Task(folder, "a run", {}), Execution().model_dump_json(), trainer)


@pytest.mark.parametrize("other", [True, False])
def test_a_run_planned_with_other_code_says_so_in_its_log(
    fake_runs: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], other: bool
) -> None:
    folder = prepare(tmp_path, fake_runs.make_spec(0))
    frozen = folder.frozen()
    if other:
        write_spec(frozen.model_copy(update={"versions": {"code": "0ther"}}), folder.path)
    assert attempted(folder, fake_runs.finish).outcome is Outcome.ENDED
    told = f"planned with code 0ther, goes on with {frozen.versions['code']}\n" if other else ""
    assert capsys.readouterr().out == f"{told}training a run\n"  # which a worker's process sends to the log


def test_a_run_that_was_taken_over_is_left_to_its_new_holder(fake_runs: ModuleType, tmp_path: Path) -> None:
    folder = prepare(tmp_path, fake_runs.make_spec(0))

    def taken_over(spec: RunSpec, task: Task, execution: Execution) -> None:
        lease = folder.path / LEASE_FILE
        lease.write_bytes(lease.read_bytes().replace(b'"token":"', b'"token":"0'))
        fake_runs.finish(spec, task, execution)

    answer = attempted(folder, taken_over)
    assert (answer.outcome, folder.record()) == (Outcome.HELD, None)
    assert "another process took this run over" in answer.message
    assert not (folder.path / "failure.txt").exists()
    assert (folder.path / LEASE_FILE).exists()


def test_a_failure_that_is_tried_again_begins_a_new_count(fake_runs: ModuleType, tmp_path: Path) -> None:
    folder = prepare(tmp_path, fake_runs.make_spec(0))
    folder.write_failure(fake_runs.make_record(fake_runs.make_spec(0), Status.FAILED), "it broke")
    note_attempt(folder.path, Attempt(cause=Cause.WORKER_DIED, num_steps=0))
    assert attempted(folder, fake_runs.finish).outcome is Outcome.ENDED
    assert (folder.state(), attempts(folder.path)) == (State.FINISHED, [])


def test_an_attempt_at_an_open_run_counts_on(fake_runs: ModuleType, tmp_path: Path) -> None:
    folder = prepare(tmp_path, fake_runs.make_spec(0))
    note_attempt(folder.path, Attempt(cause=Cause.WORKER_DIED, num_steps=0))
    attempted(folder, fake_runs.finish)
    assert len(attempts(folder.path)) == 1
