"""The launcher with runs that cost nothing (`fake_runs`)."""

import io
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from k3ablate.config import InputError
from k3ablate.jobs.attempts import Attempt, Cause, attempts, note_attempt
from k3ablate.jobs.folders import RunFolder, State, prepare
from k3ablate.jobs.leases import Held, held
from k3ablate.jobs.local import run_grid
from k3ablate.jobs.progress import reporter
from k3ablate.jobs.worker import SPIN_COUNT, SPIN_VARIABLE, Trainer
from k3ablate.records import RunRecord, Status
from k3ablate.training.spec import Execution

HERE = Path(__file__).parent
PATIENCE_SECONDS = 60.0


@pytest.fixture
def launch(fake_runs: ModuleType, tmp_path: Path) -> Callable[..., dict[int, RunRecord]]:
    """Run a grid of some seeds; the records by seed."""

    def launch(trainer: Trainer, num_runs: int = 3, num_workers: int = 2) -> dict[int, RunRecord]:
        rows = [fake_runs.make_row(seed) for seed in range(num_runs)]
        records = run_grid(rows, tmp_path, Execution(num_threads=1), num_workers, reporter(io.StringIO()), trainer)
        return {row.label.seed: records[row.label.digest] for row in rows}

    return launch


def folder_of(fake_runs: ModuleType, root: Path, seed: int) -> RunFolder:
    return RunFolder(root / fake_runs.make_spec(seed).digest())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def is_alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process_id}/stat").read_text().split()[2] != "Z"


@pytest.fixture
def start_launcher(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a launcher in a process of its own, which is gone when the test is over; `host`: on a machine of its own.

    On such a machine the kernel's locks do nothing, as on a network file system that keeps them to one machine.
    """
    launchers: list[subprocess.Popen[str]] = []

    def start(trainer: str, num_runs: int, host: str | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / "fake_runs.py"), str(tmp_path), trainer, str(num_runs)]
        environment = os.environ | ({"FAKE_HOST": host} if host else {})
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        launchers.append(subprocess.Popen(command, **pipes, text=True, env=environment))
        return launchers[-1]

    yield start
    for launcher in launchers:
        launcher.kill()
        launcher.communicate()


@pytest.mark.slow
def test_every_run_is_trained_once_by_a_worker_that_stays(fake_runs: ModuleType, launch, tmp_path: Path) -> None:
    records = launch(fake_runs.finish, num_runs=5)
    assert [record.evaluations["validation"].loss for record in records.values()] == [2.0, 2.01, 2.02, 2.03, 2.04]
    folders = [folder_of(fake_runs, tmp_path, seed) for seed in range(5)]
    assert [fake_runs.num_attempts(folder.path) for folder in folders] == [1] * 5
    workers = {(folder.path / "attempts.txt").read_text() for folder in folders}
    assert len(workers) <= 2
    assert f"{os.getpid()}\n" not in workers
    assert (folders[0].path / "log.txt").read_text().splitlines()[-1] == "training k2 s seed 0"


def test_a_settled_grid_starts_no_process(fake_runs: ModuleType, launch, tmp_path: Path, monkeypatch) -> None:
    for seed, status in enumerate([Status.FINISHED, Status.DIVERGED]):
        spec = fake_runs.make_spec(seed)
        prepare(tmp_path, spec).write_record(fake_runs.make_record(spec, status))
    monkeypatch.setattr("multiprocessing.get_context", lambda kind: pytest.fail("a process was about to start"))
    assert [record.status for record in launch(fake_runs.finish, num_runs=2).values()] == ["finished", "diverged"]


@pytest.mark.slow
def test_a_run_that_raises_is_recorded_and_retried_next_time(fake_runs: ModuleType, launch, tmp_path: Path) -> None:
    records = launch(fake_runs.unlucky_raises)
    assert [record.status for record in records.values()] == ["finished", "failed", "finished"]
    assert records[1].reason == "ZeroDivisionError: one seed too many"
    unlucky = folder_of(fake_runs, tmp_path, seed=1)
    assert unlucky.state() is State.FAILED
    assert "in unlucky_raises" in (unlucky.path / "failure.txt").read_text()

    records = launch(fake_runs.finish)
    assert [record.status for record in records.values()] == ["finished"] * 3
    attempts = [fake_runs.num_attempts(folder_of(fake_runs, tmp_path, seed).path) for seed in range(3)]
    assert attempts == [1, 2, 1]
    assert not (unlucky.path / "failure.txt").exists()


@pytest.mark.slow
def test_a_worker_that_dies_once_costs_nothing_but_time(fake_runs: ModuleType, launch, tmp_path: Path) -> None:
    records = launch(fake_runs.unlucky_dies_once)
    assert [record.status for record in records.values()] == ["finished"] * 3
    assert fake_runs.num_attempts(folder_of(fake_runs, tmp_path, seed=1).path) == 2


@pytest.mark.slow
def test_a_worker_that_always_dies_is_given_up(fake_runs: ModuleType, launch, tmp_path: Path) -> None:
    records = launch(fake_runs.unlucky_dies)
    assert [record.status for record in records.values()] == ["finished", "failed", "finished"]
    assert records[1].reason == "worker died with signal 9, 3 times"
    unlucky = folder_of(fake_runs, tmp_path, seed=1)
    assert fake_runs.num_attempts(unlucky.path) == 3
    assert "training k2 s seed 1" in (unlucky.path / "failure.txt").read_text()
    assert held(unlucky.path) is Held.NO


@pytest.mark.slow
def test_deaths_are_counted_on_by_the_next_launcher(fake_runs: ModuleType, launch, tmp_path: Path) -> None:
    unlucky = prepare(tmp_path, fake_runs.make_spec(1))
    for _ in range(2):
        note_attempt(unlucky.path, Attempt(cause=Cause.WORKER_DIED, num_steps=0))
    records = launch(fake_runs.unlucky_dies, num_runs=2)
    assert records[1].reason == "worker died with signal 9, 3 times"
    assert fake_runs.num_attempts(unlucky.path) == 1
    assert [attempt.host for attempt in attempts(unlucky.path)] == ["", "", platform.node()]


@pytest.mark.slow
def test_a_full_disk_stops_the_grid_with_one_message(fake_runs: ModuleType, launch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"last\.ckpt: the disk is full; free some space, or set K3ABLATE_RUNS"):
        launch(fake_runs.unlucky_fills_the_disk)
    assert folder_of(fake_runs, tmp_path, seed=1).record() is None


@pytest.mark.slow
def test_wrong_input_stops_the_grid_with_its_message(fake_runs: ModuleType, launch, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^K3ABLATE_KERNELS: kda=foo: no such kernel.* run again to go on$"):
        launch(fake_runs.unlucky_meets_wrong_input)
    unlucky = folder_of(fake_runs, tmp_path, seed=1)
    assert (unlucky.state(), unlucky.record()) == (State.WAITING, None)
    assert [record.status for record in launch(fake_runs.finish).values()] == ["finished"] * 3


@pytest.mark.slow
def test_threads_are_set_before_libraries_load(launch, fake_runs: ModuleType, monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv(SPIN_VARIABLE, raising=False)
    records = launch(fake_runs.reports_threads, num_runs=1)
    assert records[0].versions == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", SPIN_VARIABLE: SPIN_COUNT}


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [(None, None), ("cn1", "cn2"), ("cn1", "cn1")])
def test_two_launchers_train_nothing_twice(
    fake_runs: ModuleType, start_launcher, tmp_path: Path, hosts: tuple[str | None, str | None]
) -> None:
    launchers = [start_launcher("slow", 4, host) for host in hosts]
    for launcher in launchers:
        _, errors = launcher.communicate(timeout=PATIENCE_SECONDS)
        assert (launcher.returncode, errors) == (0, "")
    folders = [folder_of(fake_runs, tmp_path, seed) for seed in range(4)]
    assert [folder.state() for folder in folders] == [State.FINISHED] * 4
    assert [fake_runs.num_attempts(folder.path) for folder in folders] == [1] * 4


@pytest.mark.slow
def test_a_run_of_a_machine_that_went_away_is_taken_over(fake_runs: ModuleType, start_launcher, tmp_path: Path) -> None:
    folder = folder_of(fake_runs, tmp_path, seed=0)
    lost = start_launcher("endless_once", 1, "cn1")
    wait_until(lambda: (folder.path / "checkpoints" / "step-1.ckpt").exists())
    other = start_launcher("endless_once", 1, "cn2")
    lost.kill()
    _, errors = other.communicate(timeout=PATIENCE_SECONDS)
    assert (other.returncode, errors) == (0, "")
    assert (folder.state(), fake_runs.num_attempts(folder.path)) == (State.FINISHED, 2)


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_launcher_leaves_no_worker_and_a_resumable_state(
    fake_runs: ModuleType, start_launcher, tmp_path: Path, signal_number: signal.Signals
) -> None:
    launcher = start_launcher("endless", 3)
    folders = [folder_of(fake_runs, tmp_path, seed) for seed in range(3)]

    def running() -> list[RunFolder]:
        return [folder for folder in folders if (folder.path / "checkpoints" / "step-1.ckpt").exists()]

    wait_until(lambda: len(running()) == 2)
    workers = [int((folder.path / "attempts.txt").read_text()) for folder in running()]
    assert all(folder.state() is State.RUNNING for folder in running())
    launcher.send_signal(signal_number)
    launcher.communicate(timeout=PATIENCE_SECONDS)
    wait_until(lambda: not any(is_alive(worker) for worker in workers))
    assert sorted(folder.state() for folder in folders) == [State.INTERRUPTED, State.INTERRUPTED, State.WAITING]
