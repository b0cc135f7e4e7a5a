"""Real tuning with nothing faked: killed in the middle it goes on without repeating, and the result is used."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas
import pytest

pytestmark = pytest.mark.slow

EXPERIMENT = """
name: tiny
question: Does tuning fit together?
expected: two recipes
stopping: a loss above training.divergence_loss
exclusion: diverged runs are listed
baseline:
  model: kimi-k2
  data: {source: {kind: files, format: text, train: [train.txt], validation: [validation.txt]}}
  training: cpu
  set: {training.context: 32, training.batch_size: 4, training.validation_tokens: 512}
components:
  attention: {levels: {k2: {}, k3: {model.mixer: {from: kimi-k3}}}}
design: one_at_a_time
names: {baseline: k2}
sizes: [{name: xs, width: 24, num_layers: 2, head_width: 8, num_active: 2}]
budgets: [{kind: tokens, tokens: 2560}]
seeds: [0]
tuning:
  sizes: [xs]
  trials: 5
  sampler: {kind: tpe, startup: 4, parallel: 1}
  space: {training.optimizer.learning_rate: {low: 1.0e-3, high: 1.0e-1}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    words = [f"{first}{second}" for first in "abcdefgh" for second in "aeiou"]
    text = " ".join(words[(7 * index + index // 11) % len(words)] for index in range(50_000))
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
    (tmp_path / "train.txt").write_text(text)
    (tmp_path / "validation.txt").write_text(text[1001:9001])
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "k3ablate.cli", *arguments]


def test_a_killed_tune_goes_on_and_a_plan_takes_what_it_found(place: Path) -> None:
    settings = {**os.environ, "K3ABLATE_RUNS": "runs", "K3ABLATE_TRACKING": "spool", "NO_COLOR": "1"}
    tuning = subprocess.Popen(
        command("tune", "tiny.yaml", "--workers", "2"), cwd=place, env=settings, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 240
    while len(before := list((place / "runs").glob("*/record.json"))) < 2:
        assert tuning.poll() is None, "it ended before it could be killed: nothing was tested"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    tuning.send_signal(signal.SIGKILL)
    tuning.wait()
    kept = {path: path.stat().st_mtime_ns for path in before}
    resumed = subprocess.run(
        command("tune", "tiny.yaml", "--workers", "2"),
        cwd=place, env=settings, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    tables = [pandas.read_csv(place / "recipes" / "tuned" / "tiny" / f"{arm}.csv") for arm in ("k2", "+attention")]
    assert [list(table["status"]) for table in tables] == [["finished"] * 5] * 2
    rates = [list(table["training.optimizer.learning_rate"]) for table in tables]
    assert rates[0][:4] == rates[1][:4]
    assert len(list((place / "runs").glob("*/record.json"))) == len({digest for t in tables for digest in t["digest"]})
    (place / "own.yaml").write_text(EXPERIMENT.replace("name: tiny", "name: own\ntuned: tiny"))
    shown = subprocess.run(
        command("check", "own.yaml"), cwd=place, env=settings, capture_output=True, text=True, timeout=120, check=True
    )
    assert "+attention xs: training.optimizer.learning_rate" in shown.stdout
    assert "tuned at xs" in shown.stdout
