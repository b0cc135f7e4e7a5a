"""Real runs on a real Slurm, by the command line: a node that fails without a word costs time and no bit."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3ablate.jobs.attempts import Cause, attempts
from k3ablate.jobs.folders import RunFolder, State

pytestmark = pytest.mark.slurm

PATIENCE_SECONDS = 240.0
EXPERIMENT = """
name: tiny
question: Does a run survive its node?
expected: two finished arms
stopping: a loss above training.divergence_loss
exclusion: none
baseline:
  model: kimi-k2
  data: {source: {kind: files, format: text, train: [train.txt], validation: [validation.txt]}}
  training: cpu
  set: {training.context: 32, training.batch_size: 4, training.validation_tokens: 512}
components:
  rate: {paths: [training.optimizer.learning_rate], levels: {k2: {}, low: {training.optimizer.learning_rate: 1.0e-4}}}
design: list
arms: [{name: low, levels: {rate: low}}]
names: {baseline: k2}
sizes: [{name: xs, width: 24, num_layers: 2, head_width: 8, num_active: 2}]
budgets: [{kind: tokens_per_parameter, ratio: 1}]
seeds: [0]
execution: {checkpoint_seconds: 0.1, log_every_steps: 1}
"""
SETTINGS = {"NO_COLOR": "1", "K3ABLATE_TRACKING": "spool", "K3ABLATE_KERNELS": "torch"}  # nothing to compile
CLUSTER = "{partition: main, minutes: 20, signal_seconds: 30, runs_per_job: 2, tracking: spool}"


@pytest.fixture
def place(cluster: Any, tmp_path: Path) -> Any:
    """A folder with an experiment, a cluster recipe and some text to learn; the queue is empty afterwards."""
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
    (tmp_path / "here.yaml").write_text(CLUSTER)
    words = [f"{first}{second}" for first in "abcdefgh" for second in "aeiou"]
    text = " ".join(words[(7 * index + index // 11) % len(words)] for index in range(50_000))
    (tmp_path / "train.txt").write_text(text)
    (tmp_path / "validation.txt").write_text(text[1001:9001])
    yield tmp_path
    cluster.end_all_jobs()


def k3ablate(place: Path, *arguments: str, root: str = "runs") -> str:
    """What the command prints, which is asserted to succeed."""
    environment = {**os.environ, **SETTINGS, "K3ABLATE_RUNS": str(place / root)}
    done = subprocess.run(
        [sys.executable, "-m", "k3ablate.cli", *arguments],
        cwd=place, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def losses(folder: RunFolder) -> dict[str, float]:
    record = folder.record()
    assert record is not None
    return {name: evaluation.loss for name, evaluation in record.evaluations.items()}


def test_a_run_goes_on_from_the_newest_good_checkpoint_when_its_node_has_failed(place: Path, cluster: Any) -> None:
    k3ablate(place, "run", "tiny.yaml", root="undisturbed")
    k3ablate(place, "submit", "tiny.yaml", "--cluster", "here.yaml")
    (packs,) = (place / "runs" / "jobs").glob("tiny/*/packs.json")
    digests = [run["digest"] for run in json.loads(packs.read_text())["packs"][0]]
    first = RunFolder(place / "runs" / digests[0])

    def checkpoints() -> list[Path]:
        return sorted((first.path / "checkpoints").glob("step-*.ckpt"))

    wait(lambda: len(checkpoints()) == 2)
    node = cluster.command("squeue", "-h", "-o", "%N")
    cluster.fail_node(node)
    newest = checkpoints()[-1]
    newest.write_bytes(newest.read_bytes()[:-200])
    wait(lambda: [RunFolder(place / "runs" / digest).state() for digest in digests] == [State.FINISHED] * 2)
    cluster.start_node(node)
    assert [attempt.cause for attempt in attempts(first.path)] == [Cause.NODE_FAILED]
    assert f"{newest} is damaged" in (first.path / "log.txt").read_text()
    record = first.record()
    assert record is not None
    assert record.num_resumes == 1
    for digest in digests:
        assert losses(RunFolder(place / "runs" / digest)) == losses(RunFolder(place / "undisturbed" / digest))
    assert k3ablate(place, "submit", "tiny.yaml", "--cluster", "here.yaml").startswith("tiny: 0 submitted")
