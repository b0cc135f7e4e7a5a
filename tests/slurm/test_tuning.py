"""Tuning through a real Slurm: the trials of a local study, whoever waits for them and whatever becomes of a task."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pandas
import pytest

from k3ablate.jobs import awaited
from k3ablate.jobs.attempts import Cause
from k3ablate.jobs.progress import reporter

pytestmark = pytest.mark.slurm

PATIENCE_SECONDS = 240.0
EXPERIMENT = """
name: tiny
question: Does tuning fit through a queue?
expected: two recipes
stopping: a loss above training.divergence_loss
exclusion: diverged runs are listed
baseline:
  model: kimi-k2
  data: {source: {kind: files, format: text, train: [train.txt], validation: [validation.txt]}}
  training: cpu
  set: {training.context: 32, training.batch_size: 4, training.validation_tokens: 512}
components:
  decay: {paths: [training.optimizer.weight_decay], levels: {k2: {}, none: {training.optimizer.weight_decay: 0.0}}}
design: one_at_a_time
names: {baseline: k2}
sizes: [{name: xs, width: 24, num_layers: 2, head_width: 8, num_active: 2}]
budgets: [{kind: tokens, tokens: 2560}]
seeds: [0]
tuning:
  sizes: [xs]
  trials: 4
  sampler: {kind: tpe, startup: 3, parallel: 1}
  space: {training.optimizer.learning_rate: {low: 1.0e-3, high: 1.0e-1}}
execution: {log_every_steps: 1}
"""
SETTINGS = {"NO_COLOR": "1", "K3ABLATE_TRACKING": "spool", "K3ABLATE_KERNELS": "torch"}  # nothing to compile
CLUSTER = "{partition: main, minutes: 20, signal_seconds: 30, runs_per_job: 6}"
NUM_TRIALS = 8


@pytest.fixture
def here(cluster: Any, tmp_path: Path) -> Any:
    """A folder with an experiment, a cluster recipe and some text to learn; the queue is empty afterwards."""
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
    (tmp_path / "here.yaml").write_text(CLUSTER)
    words = [f"{first}{second}" for first in "abcdefgh" for second in "aeiou"]
    text = " ".join(words[(7 * index + index // 11) % len(words)] for index in range(50_000))
    (tmp_path / "train.txt").write_text(text)
    (tmp_path / "validation.txt").write_text(text[1001:9001])
    yield tmp_path
    cluster.end_all_jobs()


def tune(here: Path, root: str, *arguments: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, **SETTINGS, "K3ABLATE_RUNS": str(here / root)}
    return subprocess.Popen(
        [sys.executable, "-m", "k3ablate.cli", "tune", "tiny.yaml", "--output", str(here / "tuned" / root), *arguments],
        cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def ended(process: "subprocess.Popen[str]") -> str:
    """What it said on its way, once it has succeeded."""
    _, said = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, said
    return said


def wait(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def records(here: Path, root: str) -> "dict[str, int]":
    return {path.parent.name: path.stat().st_ino for path in (here / root).glob("*/record.json")}


def packed(here: Path) -> list[str]:
    """Every run of every task that was handed in."""
    files = [json.loads(path.read_text()) for path in (here / "queue").glob("jobs/tiny-tuning/*/packs.json")]
    return sorted(run["digest"] for file in files for pack in file["packs"] for run in pack)


def tables(here: Path, root: str) -> list[pandas.DataFrame]:
    measured = ["wall_seconds", "tokens_per_second"]
    found = [pandas.read_csv(path) for path in sorted((here / "tuned" / root).glob("*.csv"))]
    return [table.drop(columns=measured, errors="ignore") for table in found]


@pytest.mark.slow
def test_a_killed_conductor_goes_on_with_the_study_that_a_local_tune_makes(here: Path, cluster: Any) -> None:
    """Killed, while a trial trains; its tasks go on; two that go on with it at once train nothing twice."""
    local = tune(here, "here", "--workers", "1")
    conductor = tune(here, "queue", "--cluster", "here.yaml")
    wait(lambda: records(here, "queue") or conductor.poll() is not None)
    assert conductor.poll() is None, "it ended before it could be killed: nothing was tested"
    conductor.send_signal(signal.SIGKILL)
    conductor.communicate()
    kept = records(here, "queue")
    assert len(kept) < NUM_TRIALS - 2, "the study is not complete"
    assert cluster.queue()
    others = [tune(here, "queue", "--cluster", "here.yaml") for _ in "ab"]
    for other in (local, *others):
        ended(other)
    found = records(here, "queue")
    assert found.keys() == records(here, "here").keys()
    assert len(found) == NUM_TRIALS
    assert {digest: found[digest] for digest in kept} == kept
    assert packed(here) == sorted(found), "each trial was handed in once"
    assert not [*(here / "queue").glob("*/attempts.jsonl")]
    for mine, theirs in zip(tables(here, "queue"), tables(here, "here"), strict=True):
        pandas.testing.assert_frame_equal(mine, theirs)
    recipes = sorted((here / "tuned" / "queue").glob("*.yaml"))
    assert [path.name for path in recipes] == ["+decay.yaml", "k2.yaml", "laws.yaml"]
    for path in recipes:
        assert path.read_text() == (here / "tuned" / "here" / path.name).read_text()


def test_a_task_that_dies_is_submitted_again_by_whoever_waits(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited, "FIRST_LOOK", 0.5)
    monkeypatch.setattr(awaited, "LONGEST_LOOK", 0.5)

    def kill_its_launcher() -> None:
        place.wait(lambda: place.folders(1)[0].saved_steps() == 1)
        worker = int((place.folders(1)[0].path / "attempts.txt").read_text())
        launcher = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(launcher, signal.SIGKILL)

    death = Thread(target=kill_its_launcher)
    death.start()
    said = io.StringIO()
    (record,) = awaited.run_grid(place.rows(1), place.order("endless_once"), reporter(said)).values()
    death.join()
    assert record == place.folders(1)[0].record()
    assert str(record.status) == "finished"
    assert place.num_attempts(1) == [2]
    (attempt,) = place.attempts(0)
    assert (attempt.cause, attempt.num_steps) == (Cause.WORKER_DIED, 1)
    assert f"task {attempt.job} ended without a record (FAILED), its log: " in said.getvalue()
    assert said.getvalue().count(": 1 tasks, 1 runs, in ") == 2


def test_ctrl_c_leaves_the_queue_and_says_what_goes_on_and_what_ends_it(here: Path, cluster: Any) -> None:
    (here / "here.yaml").write_text("{partition: closed, minutes: 20, signal_seconds: 30}")
    waiting = tune(here, "queue", "--cluster", "here.yaml")
    wait(lambda: len(cluster.queue()) == 6 or waiting.poll() is not None)
    waiting.send_signal(signal.SIGINT)
    _, said = waiting.communicate(timeout=PATIENCE_SECONDS)
    assert waiting.returncode == 3, said
    assert "trials that are queued or running go on" in said
    assert "`k3ablate tune tiny.yaml --cluster here.yaml` goes on with the study" in said
    assert "`k3ablate cancel tiny.yaml --tuning` ends them" in said
    assert len(cluster.queue()) == 6
    environment = {**os.environ, **SETTINGS, "K3ABLATE_RUNS": str(here / "queue")}
    command = [sys.executable, "-m", "k3ablate.cli", "cancel", "tiny.yaml", "--tuning"]
    shown = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("tiny-tuning: cancelled 6 tasks: 6 runs were waiting, 0 were running\n")
    assert not cluster.queue()
