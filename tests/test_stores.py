"""Stores that are crowded, or go away in the middle: nothing is lost, nothing comes twice, nobody dies."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from k3ablate.mlflow_store import DIGEST_TAG, STATUS_TAG, Store
from k3ablate.tracking import Delivery, Watched, deliver, prepare

pytestmark = [
    pytest.mark.slow,
    # MLflow 3.17 asks SQLAlchemy 2.1 for something by its old name.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"),
]

MANY_RUNS = Path(__file__).with_name("many_runs.py")
DEBIAN_PACKAGES = Path("/usr/lib/python3/dist-packages")
NUM_STEPS = 50  # of each of its runs


def follow(root: Path, num_processes: int, uri: str) -> "subprocess.Popen[str]":
    """Processes that each leave a run and follow it; prints the exit codes that are not 0."""
    command = [sys.executable, str(MANY_RUNS), str(root), str(num_processes)]
    environment = {name: value for name, value in os.environ.items() if name != "K3ABLATE_TRACKING"}
    environment["MLFLOW_TRACKING_URI"] = uri
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def assert_everything_is_there_once(store: Store, num_runs: int) -> None:
    runs = store.client.search_runs([store.experiment_id], f"tags.{STATUS_TAG} = 'diverged'", max_results=1000)
    assert len(runs) == len({run.data.tags[DIGEST_TAG] for run in runs}) == num_runs
    for run in runs:
        history = store.client.get_metric_history(run.info.run_id, "loss")
        assert [(entry.step, entry.value) for entry in history] == [(step, 5 - step / 100) for step in range(NUM_STEPS)]


def test_64_processes_share_a_prepared_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = tmp_path / "runs"
    root.mkdir()
    assert prepare(root, "demo", b"{}")
    uri = f"sqlite:///{root / 'mlflow.db'}"
    processes = follow(root, 64, uri)
    died, said = processes.communicate()
    assert (died, said) == ("[]\n", "")
    assert_everything_is_there_once(Store(uri), 64)


class Server:
    """A tracking server that can be taken away."""

    def __init__(self, folder: Path, backend: str) -> None:
        self.port = free_port(20_000)
        self.uri = f"http://127.0.0.1:{self.port}"
        self.folder = folder
        self.backend = backend
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "mlflow", "server", "--port", str(self.port), "--workers", "1",
            "--backend-store-uri", self.backend, "--artifacts-destination", str(self.folder / "artifacts"),
        ]  # fmt: skip
        environment = os.environ | {
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # nine more processes
            "PYTHONPATH": str(self.folder),  # where a database's driver may lie
        }
        with (self.folder / "server.txt").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 120
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "server.txt").read_text()
            assert time.monotonic() < deadline, "the server does not start"
            time.sleep(0.2)

    def stop(self, how: signal.Signals) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, how)  # its own session: the server and its workers
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False


def free_port(first: int) -> int:
    """Below those that connections go out from: a client that tries one of these again and again may meet itself."""
    for port in range(first + os.getpid() % 4_000, first + 5_000):
        with socket.socket() as free:
            if free.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError("no free port")


class Database:
    """A PostgreSQL of one's own, as Debian installs it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="k3ablate-postgres-"))  # pytest's own is closed to other users
        self.port = free_port(25_000)
        self.uri = f"postgresql+psycopg2://postgres@127.0.0.1:{self.port}/postgres"
        if os.geteuid() == 0:  # as which it refuses to run
            shutil.chown(self.folder, "postgres")

    def start(self) -> None:
        self._run("initdb", "--auth", "trust", "--username", "postgres", "--no-sync")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off -k {self.folder}"
        self._run("pg_ctl", "--wait", "--log", str(self.folder / "log.txt"), "--options", options, "start")

    def stop(self) -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self._run("pg_ctl", "--wait", "--mode", "immediate", "stop")
        shutil.rmtree(self.folder)

    def _run(self, program: str, *arguments: str) -> None:
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        command = [*user, str(found_programs() / program), "--pgdata", str(self.folder / "data"), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder)


def found_programs() -> Path:
    """Where PostgreSQL's programs are; skips the test where they are not."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not places:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql python3-psycopg2")
    return places[-1]


def driver() -> str:
    """A folder to import psycopg2 from, Debian's if there is no other; skips the test where there is none."""
    for spec in (importlib.util.find_spec("psycopg2"), PathFinder.find_spec("psycopg2", [str(DEBIAN_PACKAGES)])):
        if spec is not None and spec.origin is not None:
            return str(Path(spec.origin).parent)
    pytest.skip("psycopg2 is not installed: apt-get install python3-psycopg2")


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    database = None
    server = Server(tmp_path, f"sqlite:///{tmp_path / 'server.db'}")
    if request.param == "postgresql":
        found_programs()
        (tmp_path / "psycopg2").symlink_to(driver())
        database = Database()
        server.backend = database.uri
    try:
        if database is not None:
            database.start()
        yield server
    finally:
        server.stop(signal.SIGKILL)
        if database is not None:
            database.stop()


def test_a_server_that_starts_again_in_the_middle_loses_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    root = tmp_path / "runs"
    root.mkdir()
    assert prepare(root, "demo", b"{}")
    processes = follow(root, 4, server.uri)
    store = Store(server.uri)
    deadline = time.monotonic() + 120
    while not store.runs():
        assert time.monotonic() < deadline, "no run has begun"
        time.sleep(0.1)
    server.stop(signal.SIGKILL)
    server.start()
    died, _ = processes.communicate()
    assert died == "[]\n"
    # What the runs could not send themselves is what `sync` sends.
    found = [deliver(store, folder, Watched(folder.name)) for folder in sorted(root.glob("0*"))]
    assert len(found) == 4
    assert_everything_is_there_once(store, 4)
    assert store.plan("demo") == b"{}"
    assert [deliver(store, folder, Watched(folder.name)) for folder in root.glob("0*")] == [Delivery.NOTHING_NEW] * 4
