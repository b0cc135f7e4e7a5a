"""One worker process, without a launcher's bookkeeping."""

import multiprocessing
from pathlib import Path
from types import ModuleType

import pytest

from k3ablate.jobs.folders import State, prepare
from k3ablate.jobs.worker import Task, work
from k3ablate.training.spec import Execution


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
