"""The store sees each run once, each step once and nothing that is not finite; without a store a run loses nothing."""

import json
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from k3ablate import tracking
from k3ablate.config import InputError, digest
from k3ablate.mlflow_store import DIGEST_TAG, Store
from k3ablate.records import (
    Evaluation,
    FrozenSpec,
    RoutedPairs,
    RunRecord,
    Status,
    write_record,
    write_routing,
    write_spec,
)
from k3ablate.tracking import Delivery, NoTracking, Tracker, Watched, deliver, prepare, tracking_uri

# MLflow 3.17 asks SQLAlchemy 2.1 for something by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")

KDA = Watched("kda small", {"arm": "kda"})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "BATCH_SECONDS", 0.05)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("K3ABLATE_TRACKING", raising=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with a prepared store; preparing takes a second, so tests share it."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert prepare(root, "demo", b"{}")
    return root


@pytest.fixture(scope="module")
def store(root: Path) -> Store:
    return Store(f"sqlite:///{root / 'mlflow.db'}")


@pytest.fixture
def folder(root: Path, request: pytest.FixtureRequest) -> Path:
    """Of a run that no other test has."""
    spec = {"model": {"width": 64}, "test": request.node.name}
    folder = root / digest(spec)
    (folder / "checkpoints").mkdir(parents=True)
    write_spec(FrozenSpec(digest=folder.name, spec=spec, versions={}), folder)
    return folder


def train(folder: Path, steps: range, slope: float = 1.0) -> None:
    """Log what a run that resumes at the first of `steps` logs, and leave a checkpoint after half of them."""
    path = folder / "metrics.jsonl"
    before = path.read_text().splitlines(keepends=True)[: steps.start] if path.exists() else []
    lines = [
        json.dumps({"step": step, "seconds": step / 10, "loss": 5.0 - slope * step / 1000, "gradient_norm": 1.0}) + "\n"
        for step in steps
    ]
    path.write_text("".join([*before, *lines]))
    (folder / "checkpoints" / f"step-{(steps.start + steps.stop) // 2:09d}.ckpt").touch()


def settle(folder: Path, status: Status = Status.FINISHED, loss: float = 1.5) -> RunRecord:
    is_finished = status is Status.FINISHED
    record = RunRecord(
        digest=folder.name, status=status, num_steps=20, tokens=100, flops=1e6, flops_6nd=1e6, active_params=10,
        total_params=20, wall_seconds=3.0, tokens_per_second=33.0, corpus="c", reason="" if is_finished else "why",
        evaluations={"validation": Evaluation(loss=loss, bits_per_byte=2.0, num_tokens=10)} if is_finished else {},
    )  # fmt: skip
    write_record(record, folder)
    return record


def rows(root: Path, query: str) -> list[tuple[object, ...]]:
    """What the store's own tables hold."""
    with sqlite3.connect(root / "mlflow.db") as database:
        return database.execute(query).fetchall()


def of_run(folder: Path, query: str) -> list[tuple[object, ...]]:
    """What they hold of the one run of `folder` that is not deleted."""
    runs = rows(
        folder.parent,
        "SELECT runs.run_uuid FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid WHERE tags.key = 'digest' "
        f"AND tags.value = '{folder.name}' AND runs.lifecycle_stage = 'active'",
    )
    [(run,)] = runs
    return rows(folder.parent, query.format(run=f"run_uuid = '{run}'"))


def losses(folder: Path) -> list[tuple[object, ...]]:
    """Steps and losses in the order in which they were sent."""
    return of_run(folder, "SELECT step, value FROM metrics WHERE key = 'loss' AND {run} ORDER BY rowid")


def tags(folder: Path) -> dict[object, object]:
    return dict(of_run(folder, "SELECT key, value FROM tags WHERE {run}"))  # type: ignore[arg-type]


def test_the_store_is_where_the_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracking_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example:5000")
    assert tracking_uri(tmp_path) == "http://tracking.example:5000"


def test_one_run_with_its_values_results_and_files(store: Store, folder: Path) -> None:
    train(folder, range(700))  # two batches of MLflow's size
    record = settle(folder)
    write_routing(RoutedPairs(digest=folder.name, validation="validation", num_tokens=8, pairs=[[3, 5]]), folder)
    assert deliver(store, folder, KDA) is Delivery.SENT
    assert [step for step, _ in losses(folder)] == list(range(700))
    assert of_run(folder, "SELECT name, status, end_time - start_time FROM runs WHERE {run}") == [
        ("kda small", "FINISHED", 3000)
    ]
    assert dict(of_run(folder, "SELECT key, value FROM params WHERE {run}"))["model.width"] == "64"
    assert (tags(folder)["arm"], tags(folder)["status"]) == ("kda", "finished")
    final = dict(of_run(folder, "SELECT key, value FROM metrics WHERE key LIKE 'final/%' AND {run}"))
    assert final["final/validation/loss"] == 1.5
    [(artifacts,)] = of_run(folder, "SELECT artifact_uri FROM runs WHERE {run}")
    for name in ("spec.json", "metrics.jsonl", "routing.json", "record.json"):
        assert Path(str(artifacts).removeprefix("file://"), name).read_bytes() == (folder / name).read_bytes()
    assert store.records([folder.name, "absent"]) == {folder.name: record}
    before = rows(folder.parent, "SELECT COUNT(*) FROM metrics")
    assert deliver(store, folder, KDA) is Delivery.NOTHING_NEW
    assert rows(folder.parent, "SELECT COUNT(*) FROM metrics") == before


def test_a_resumed_run_stays_one_run_and_each_step_has_the_resumed_value(store: Store, folder: Path) -> None:
    train(folder, range(10))  # a checkpoint at 5, then killed
    deliver(store, folder, KDA)
    [(run,)] = of_run(folder, "SELECT run_uuid FROM runs WHERE {run}")
    assert [step for step, _ in losses(folder)] == list(range(5))
    train(folder, range(5, 20), slope=2.0)
    deliver(store, folder, KDA)
    settle(folder)
    deliver(store, folder, KDA)
    assert losses(folder) == [(step, 5.0 - (1 + (step >= 5)) * step / 1000) for step in range(20)]
    assert of_run(folder, "SELECT run_uuid FROM runs WHERE {run}") == [(run,)]


def test_a_run_that_took_steps_again_that_were_sent_is_sent_anew(store: Store, folder: Path) -> None:
    train(folder, range(10))
    deliver(store, folder, KDA)  # up to the checkpoint at 5, which turns out damaged
    train(folder, range(2, 10), slope=2.0)
    settle(folder)
    deliver(store, folder, KDA)
    assert losses(folder) == [(step, 5.0 - (1 + (step >= 2)) * step / 1000) for step in range(10)]
    train(folder, range(10), slope=3.0)  # the folder was deleted to train again
    settle(folder, loss=1.25)
    deliver(store, folder, KDA)
    assert losses(folder) == [(step, 5.0 - 3 * step / 1000) for step in range(10)]
    assert of_run(folder, "SELECT value FROM metrics WHERE key = 'final/validation/loss' AND {run}") == [(1.25,)]


def test_a_run_that_is_tried_again_is_not_failed_meanwhile(store: Store, folder: Path) -> None:
    train(folder, range(10))
    settle(folder, Status.FAILED)
    deliver(store, folder, KDA)
    assert of_run(folder, "SELECT status FROM runs WHERE {run}") == [("FAILED",)]
    assert (tags(folder)["status"], tags(folder)["reason"]) == ("failed", "why")
    assert store.records([folder.name])[folder.name].status is Status.FAILED
    (folder / "record.json").unlink()
    deliver(store, folder, Watched("kda small", is_running=True))
    assert of_run(folder, "SELECT status FROM runs WHERE {run}") == [("RUNNING",)]
    assert "status" not in tags(folder)
    assert store.records([folder.name]) == {}
    settle(folder)
    deliver(store, folder, KDA)
    assert store.records([folder.name])[folder.name].status is Status.FINISHED


def test_a_run_that_ends_while_it_is_sent_is_sent_whole(store: Store, folder: Path) -> None:
    train(folder, range(10))
    record = settle(folder)
    assert deliver(store, folder, Watched("kda small", is_running=True)) is Delivery.SENT
    assert store.records([folder.name]) == {folder.name: record}
    assert deliver(store, folder, KDA) is Delivery.NOTHING_NEW


def test_an_older_copy_of_the_folder_takes_nothing_back(store: Store, folder: Path) -> None:
    train(folder, range(10))
    settle(folder)
    deliver(store, folder, KDA)
    (folder / "record.json").unlink()
    train(folder, range(4))
    assert deliver(store, folder, KDA) is Delivery.AHEAD
    assert len(losses(folder)) == 10


def test_two_runs_that_two_machines_made_of_one_become_one(store: Store, folder: Path) -> None:
    train(folder, range(10))
    for _ in range(2):
        store.create("copy", {DIGEST_TAG: folder.name})
    assert [deliver(store, folder, KDA) for _ in range(2)] == [Delivery.SENT, Delivery.NOTHING_NEW]
    assert [step for step, _ in losses(folder)] == list(range(5))


def test_several_senders_at_once_send_one_run(store: Store, folder: Path) -> None:
    train(folder, range(200))
    settle(folder)
    found: list[Delivery] = []
    threads = [threading.Thread(target=lambda: found.append(deliver(store, folder, KDA))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [Delivery.NOTHING_NEW] * 3 + [Delivery.SENT]
    assert [step for step, _ in losses(folder)] == list(range(200))


def test_a_record_that_was_changed_in_the_store_is_refused(store: Store, folder: Path) -> None:
    settle(folder)
    deliver(store, folder, KDA)
    [(artifacts,)] = of_run(folder, "SELECT artifact_uri FROM runs WHERE {run}")
    path = Path(str(artifacts).removeprefix("file://"), "record.json")
    content = path.read_text()
    path.write_text(content.replace("1.5", "1.4"))
    with pytest.raises(InputError, match=r"record\.json was changed in the store: .*; delete that run in the store"):
        store.records([folder.name])
    run = store.run_of(DIGEST_TAG, folder.name)
    assert run is not None
    store.send_files(run, {"record.json": content.replace(folder.name, "0" * 16).encode()})
    with pytest.raises(InputError, match=f"holds the record of run {'0' * 16}, this is run {folder.name}"):
        store.records([folder.name])
    store.send_files(run, {"record.json": b"[]"})
    with pytest.raises(InputError, match=r"record\.json is not the record of a run"):
        store.records([folder.name])


def test_a_run_is_delivered_while_it_trains(store: Store, folder: Path) -> None:
    tracker = Tracker(store.uri, folder, "live", {"arm": "kda"})
    tracker.start()
    train(folder, range(10))
    deadline = time.monotonic() + 30
    while not rows(folder.parent, f"SELECT 1 FROM tags WHERE key = 'digest' AND value = '{folder.name}'"):
        assert time.monotonic() < deadline, "nothing was sent"
        time.sleep(0.05)
    tracker.interrupt()
    assert [step for step, _ in losses(folder)] == list(range(5))
    assert of_run(folder, "SELECT name, status FROM runs WHERE {run}") == [("live", "KILLED")]
    train(folder, range(5, 20))
    tracker = Tracker(store.uri, folder, "live")
    tracker.start()
    deliver(store, folder, KDA)  # another process that syncs
    settle(folder)
    tracker.finish()
    assert [step for step, _ in losses(folder)] == list(range(20))
    assert of_run(folder, "SELECT name, status FROM runs WHERE {run}") == [("live", "FINISHED")]


@pytest.mark.parametrize("uri", ["http://127.0.0.1:9", "sqlite:////proc/nowhere/mlflow.db", "nonsense://x"])
def test_a_store_out_of_reach_costs_one_warning(uri: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = Tracker(uri, folder, closing_seconds=30.0)
    tracker.start()
    for step in range(5):
        train(folder, range(step, step + 1))
        time.sleep(0.06)  # several deliveries fail
    settle(folder)
    tracker.finish()
    ours = [entry for entry in caplog.records if entry.name == "k3ablate.tracking"]
    assert [entry.levelno for entry in ours] == [logging.WARNING]
    said = f"tracking: {uri} cannot be used, runs go on without it and `k3ablate sync` sends them later ("
    assert ours[0].message.startswith(said)
    assert "\n" not in ours[0].message


def test_preparing_a_store_out_of_reach_says_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert not prepare(tmp_path, "demo", b"{}")
    assert len(caplog.records) == 1


def test_closing_waits_only_so_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "deliver", lambda *arguments: time.sleep(2.0))
    tracker = Tracker("http://tracking.example", folder, closing_seconds=0.1)
    tracker.start()
    start = time.monotonic()
    tracker.finish()
    assert time.monotonic() - start < 1.0
    said = "tracking: http://tracking.example did not answer within 0.1 s; `k3ablate sync` sends the rest"
    assert caplog.messages == [said]


def test_a_run_that_is_stopped_waits_for_a_moment_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking, "INTERRUPT_SECONDS", 0.1)
    monkeypatch.setattr(tracking, "deliver", lambda *arguments: time.sleep(2.0))
    tracker = Tracker("http://user:secret@tracking.example", folder)
    tracker.start()
    start = time.monotonic()
    tracker.interrupt()
    assert time.monotonic() - start < 1.0
    [said] = caplog.messages
    assert said.startswith("tracking: http://...@tracking.example did not answer within 0.1 s")


def test_tracking_can_wait_for_sync(folder: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(tracking.tracker(root, folder, "kda", {}), Tracker)
    monkeypatch.setenv("K3ABLATE_TRACKING", "spool")
    assert type(tracking.tracker(root, folder, "kda", {})) is NoTracking
    monkeypatch.setenv("K3ABLATE_TRACKING", "later")
    with pytest.raises(InputError, match="K3ABLATE_TRACKING: found 'later'; write one of live, spool"):
        tracking.tracker(root, folder, "kda", {})


def test_the_labels_of_an_experiment_are_replaced(store: Store, root: Path) -> None:
    assert store.plan("unknown") is None
    assert [store.keep_plan(root, "other", content) for content in (b"1", b"1", b"2")] == [True, False, True]
    assert store.plan("other") == b"2"
    assert store.plan("demo") == b"{}"


@pytest.mark.slow
def test_a_run_that_waits_for_sync_imports_no_mlflow(folder: Path) -> None:
    script = (
        "import sys, pathlib\nfrom k3ablate import tracking\nfolder = pathlib.Path(sys.argv[1])\n"
        "found = tracking.tracker(folder.parent, folder, 'kda', {})\n"
        "found.start()\nfound.finish()\nprint('mlflow' in sys.modules)"
    )
    environment = os.environ | {"K3ABLATE_TRACKING": "spool"}
    command = [sys.executable, "-c", script, str(folder)]
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout == "False\n"
