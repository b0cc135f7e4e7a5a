"""Runs on several ranks, as a grid starts them: they end together, and what happens to one happens to the run."""

import importlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from k3ablate.config import InputError
from k3ablate.jobs.attempts import Cause, attempts
from k3ablate.jobs.folders import RunFolder, State, corpora_folder
from k3ablate.jobs.local import run_grid
from k3ablate.jobs.progress import reporter
from k3ablate.jobs.ranks import _srun
from k3ablate.plan import PlanRow
from k3ablate.training.spec import Execution

pytestmark = pytest.mark.slow

TWO = Execution(strategy="ddp", num_devices=2, log_every_steps=1, checkpoint_seconds=0.05)
NUM_STEPS = 200


@pytest.fixture
def real_runs(fake_runs: ModuleType) -> ModuleType:
    return importlib.import_module("real_runs")


@pytest.fixture
def row(real_runs: ModuleType, tmp_path: Path) -> PlanRow:
    made: PlanRow = real_runs.make_real_row(tmp_path, NUM_STEPS)
    return made


def ranks_of(folder: RunFolder) -> list[int]:
    """Processes of this machine that are told of the run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue  # it has ended meanwhile
            if "k3ablate.jobs.ranks" in command and str(folder.path) in command:
                found.append(int(entry.name))
    return sorted(found)


GRID = """
import io, pickle, sys
from pathlib import Path
from k3ablate.jobs.local import run_grid
from k3ablate.jobs.progress import reporter
if __name__ == "__main__":
    row, root, execution = pickle.loads(Path(sys.argv[1]).read_bytes())
    print(*(record.status for record in run_grid([row], root, execution, 1, reporter(io.StringIO())).values()))
"""


def start(script: str, row: PlanRow, root: Path) -> subprocess.Popen[str]:
    (root / "row").write_bytes(pickle.dumps((row, root, TWO)))
    (root / "script.py").write_text(script)
    command = [sys.executable, str(root / "script.py"), str(root / "row")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until_it_trains(folder: RunFolder, num_steps: int, process: subprocess.Popen[str]) -> list[int]:
    """Its ranks."""
    deadline = time.monotonic() + 120
    while folder.progress().num_steps < num_steps:
        assert process.poll() is None, (process.communicate(), (folder.path / "log.txt").read_text())
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return ranks_of(folder)


def assert_none_left(folder: RunFolder) -> None:
    deadline = time.monotonic() + 10
    while left := ranks_of(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_rank_that_is_killed_ends_the_attempt_and_the_run_goes_on(row: PlanRow, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / row.label.digest)
    grid = start(GRID, row, tmp_path)
    ranks = until_it_trains(folder, 30, grid)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    output, errors = grid.communicate(timeout=300)
    assert output == "finished\n", errors
    assert_none_left(folder)
    record = folder.record()
    assert record is not None
    assert (record.device, record.num_resumes, record.num_steps) == ("2 x cpu", 1, NUM_STEPS)
    (only,) = attempts(folder.path)
    assert (only.cause, only.detail) == (Cause.WORKER_DIED, "worker died with signal 9")
    steps = [json.loads(line)["step"] for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(NUM_STEPS))


def test_a_request_to_stop_is_handed_on(row: PlanRow, real_runs: ModuleType, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / row.label.digest)
    process = start(real_runs.ATTEMPT, row, tmp_path)
    until_it_trains(folder, 10, process)
    process.send_signal(signal.SIGUSR2)
    output, errors = process.communicate(timeout=120)
    assert "STOPPED" in output, errors
    assert_none_left(folder)
    assert folder.state() is State.INTERRUPTED
    assert folder.saved_steps() == folder.progress().num_steps > 10


def test_a_worker_that_is_killed_leaves_no_rank_behind(row: PlanRow, real_runs: ModuleType, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / row.label.digest)
    process = start(real_runs.ATTEMPT, row, tmp_path)
    until_it_trains(folder, 10, process)
    process.kill()
    process.wait()
    assert_none_left(folder)
    process.communicate()


def test_what_a_rank_says_is_what_the_run_says(row: PlanRow, tmp_path: Path) -> None:
    """A token file that is too short is a person's to mend."""
    assert row.spec is not None
    tokens = corpora_folder(tmp_path) / row.spec.corpus / "train.tokens"
    tokens.write_bytes(tokens.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"train\.tokens"):
        run_grid([row], tmp_path, TWO, 1, reporter(io.StringIO()))
    assert_none_left(RunFolder(tmp_path / row.label.digest))


def test_what_cannot_be_shared_is_said_before_ranks_are_started(row: PlanRow, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"3 ranks .* do not share the 4 sequences"):
        run_grid([row], tmp_path, TWO.model_copy(update={"num_devices": 3}), 1, reporter(io.StringIO()))


def test_nodes_beyond_this_one_need_a_job(row: PlanRow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(InputError, match="num_nodes is 2, and this is no Slurm job"):
        run_grid([row], tmp_path, TWO.model_copy(update={"num_nodes": 2}), 1, reporter(io.StringIO()))


def test_srun_starts_one_task_per_device() -> None:
    command = _srun(Execution(strategy="ddp", num_devices=4, num_nodes=3, num_threads=2))
    for option in ("--nodes=3", "--ntasks=12", "--ntasks-per-node=4", "--cpus-per-task=2", "--kill-on-bad-exit=1"):
        assert option in command
