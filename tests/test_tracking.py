"""The store sees each run once, each step once and nothing that is not finite; without a store a run loses nothing."""

import logging
import math
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k3ablate import tracking
from k3ablate.records import Evaluation, RunRecord, Status
from k3ablate.tracking import NoTracking, Tracker, prepare, tracking_uri

# MLflow 3.17 asks SQLAlchemy 2.1 for something by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")

DIGEST = "0123456789abcdef"
PARAMETERS = {"training.optimizer.kind": "adamw", "model.width": "64"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "BATCH_SECONDS", 0.05)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with a prepared store; preparing takes a second, so tests share it."""
    root = tmp_path_factory.mktemp("runs")
    assert prepare(tracking_uri(root))
    return root


@pytest.fixture
def finished(tmp_path: Path) -> tuple[RunRecord, Path]:
    record = RunRecord(
        digest=DIGEST,
        status=Status.FINISHED,
        evaluations={"validation": Evaluation(loss=1.5, bits_per_byte=2.0, num_tokens=10)},
        num_steps=20,
        tokens=100,
        flops=1e6,
        flops_6nd=1e6,
        active_params=10,
        total_params=20,
        wall_seconds=3.0,
        tokens_per_second=33.0,
        corpus="c",
    )
    path = tmp_path / "record.json"
    path.write_text(record.model_dump_json())
    return record, path


def rows(root: Path, query: str) -> list[tuple[object, ...]]:
    """What the store's own tables hold."""
    with sqlite3.connect(root / "mlflow.db") as database:
        return database.execute(query).fetchall()


def steps_of(root: Path, digest: str, metric: str) -> list[object]:
    query = (
        "SELECT metrics.step FROM metrics JOIN tags ON tags.run_uuid = metrics.run_uuid "
        f"WHERE tags.key = 'digest' AND tags.value = '{digest}' AND metrics.key = '{metric}' ORDER BY metrics.step"
    )
    return [step for (step,) in rows(root, query)]


def test_the_store_is_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example:5000")
    assert tracking_uri(tmp_path) == "http://tracking.example:5000"


def test_one_run_with_its_values_results_and_record(prepared: Path, finished: tuple[RunRecord, Path]) -> None:
    record, path = finished
    tracker = Tracker(tracking_uri(prepared), name="kda small", tags={"arm": "kda"})
    tracker.start(DIGEST, PARAMETERS)
    for step in range(700):  # two batches of MLflow's size
        tracker.log(step, {"loss": 5.0 - step / 1000, "gradient_norm": 1.0})
    tracker.finish(record, path)
    assert steps_of(prepared, DIGEST, "loss") == list(range(700))
    run = f"run_uuid = (SELECT run_uuid FROM tags WHERE key = 'digest' AND value = '{DIGEST}')"
    assert rows(prepared, f"SELECT name, status FROM runs WHERE {run}") == [("kda small", "FINISHED")]
    assert dict(rows(prepared, f"SELECT key, value FROM params WHERE {run}")) == PARAMETERS
    tags = dict(rows(prepared, f"SELECT key, value FROM tags WHERE {run}"))
    assert (tags["arm"], tags["status"]) == ("kda", "finished")
    final = dict(rows(prepared, f"SELECT key, value FROM metrics WHERE key LIKE 'final/%' AND {run}"))
    assert final["final/validation/loss"] == 1.5
    [artifact] = (prepared / "mlartifacts").rglob("record.json")
    assert artifact.read_bytes() == path.read_bytes()


def test_a_resumed_run_goes_on_and_no_step_comes_twice(prepared: Path, finished: tuple[RunRecord, Path]) -> None:
    record, path = finished
    for first, last in ((0, 7), (4, 12)):  # crashed after step 6, resumed from a checkpoint at 4
        tracker = Tracker(tracking_uri(prepared))
        tracker.start("resumed", PARAMETERS)
        for step in range(first, last):
            tracker.log(step, {"loss": float(step)})
        if last == 7:
            tracker.interrupt()
        else:
            tracker.finish(record, path)
    assert steps_of(prepared, "resumed", "loss") == list(range(12))
    assert rows(prepared, "SELECT COUNT(*) FROM tags WHERE key = 'digest' AND value = 'resumed'") == [(1,)]


def test_an_interrupted_run_says_so(prepared: Path) -> None:
    tracker = Tracker(tracking_uri(prepared))
    tracker.start("interrupted", {})
    tracker.interrupt()
    query = "SELECT status FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid "
    query += "WHERE tags.key = 'digest' AND tags.value = 'interrupted'"
    assert rows(prepared, query) == [("KILLED",)]


def test_what_is_not_finite_is_never_sent(prepared: Path) -> None:
    tracker = Tracker(tracking_uri(prepared))
    tracker.start("not finite", {})
    tracker.log(0, {"loss": 1.0, "gradient_norm": math.inf})
    tracker.log(1, {"loss": math.nan, "gradient_norm": 2.0})
    tracker.interrupt()
    assert steps_of(prepared, "not finite", "loss") == [0]
    assert steps_of(prepared, "not finite", "gradient_norm") == [1]


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "sqlite:////proc/nowhere/mlflow.db", "nonsense://x"])
def test_a_store_out_of_reach_costs_one_warning(
    uri: str, finished: tuple[RunRecord, Path], caplog: pytest.LogCaptureFixture
) -> None:
    record, path = finished
    tracker = Tracker(uri, closing_seconds=30.0)
    tracker.start(DIGEST, PARAMETERS)
    for step in range(5):
        tracker.log(step, {"loss": 1.0})
        time.sleep(0.06)  # several batches fail
    tracker.finish(record, path)
    ours = [entry for entry in caplog.records if entry.name == "k3ablate.tracking"]
    assert [entry.levelno for entry in ours] == [logging.WARNING]
    assert ours[0].message.startswith(f"tracking: {uri} cannot be used, runs go on without it (")
    assert "\n" not in ours[0].message


def test_preparing_a_store_out_of_reach_says_no(caplog: pytest.LogCaptureFixture) -> None:
    assert not prepare("http://127.0.0.1:9")
    assert len(caplog.records) == 1


def test_closing_waits_only_so_long(
    finished: tuple[RunRecord, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "_client", lambda uri: time.sleep(2.0))
    tracker = Tracker("http://tracking.example", closing_seconds=0.1)
    tracker.start(DIGEST, {})
    start = time.monotonic()
    tracker.finish(*finished)
    assert time.monotonic() - start < 1.0
    assert caplog.messages == ["tracking: http://tracking.example did not answer within 0.1 s; left behind"]


def test_tracking_can_be_left_out(finished: tuple[RunRecord, Path], tmp_path: Path) -> None:
    tracker = NoTracking()
    tracker.start(DIGEST, PARAMETERS)
    tracker.log(0, {"loss": 1.0})
    tracker.finish(*finished)
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


CHILD = """
import sys
from k3ablate.tracking import Tracker
tracker = Tracker(sys.argv[1], closing_seconds=60.0)
tracker.start(sys.argv[2], {})
for step in range(50):
    tracker.log(step, {"loss": 1.0})
tracker.interrupt()
"""


@pytest.mark.slow
def test_processes_share_a_prepared_store(prepared: Path) -> None:
    digests = [f"process {number}" for number in range(4)]
    command = [sys.executable, "-c", CHILD, tracking_uri(prepared)]
    children = [subprocess.Popen([*command, digest], stderr=subprocess.PIPE, text=True) for digest in digests]
    said = [child.communicate()[1] for child in children]
    assert said == [""] * len(digests)  # no warning of ours, no announcement of MLflow's
    for digest in digests:
        assert steps_of(prepared, digest, "loss") == list(range(50))
