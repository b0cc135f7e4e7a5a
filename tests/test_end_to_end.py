"""From one YAML file to a published table with nothing faked: real workers, real training, a real store."""

import csv
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXPERIMENT = """
name: tiny
question: Does everything fit together?
expected: two finished arms, and one that diverges
stopping: a loss above training.divergence_loss
exclusion: diverged runs are listed
baseline:
  model: kimi-k2
  data: {source: {kind: files, format: text, train: [train.txt], validation: [validation.txt]}}
  training: cpu
  set: {training.context: 32, training.batch_size: 4, training.validation_tokens: 512}
components:
  attention: {levels: {k2: {}, k3: {model.mixer: {from: kimi-k3}}}}
  rate: {paths: [training.optimizer.learning_rate], levels: {k2: {}, wild: {training.optimizer.learning_rate: 1.0e+9}}}
design: list
arms:
  - {name: k3, levels: {attention: k3}}
  - {name: wild, levels: {rate: wild}}
names: {baseline: k2}
sizes:
  - {name: xs, width: 24, num_layers: 2, head_width: 8, num_active: 2}
  - {name: s, width: 40, num_layers: 2, head_width: 8, num_active: 2}
budgets: [{kind: tokens_per_parameter, ratio: RATIO}]
seeds: [0, 1]
execution: {checkpoint_seconds: 0.2, log_every_steps: 1}
"""
SHORT, MIDDLE, LONG = 0.3, 1.0, 3.0  # tokens per parameter; runs of the last are never waited for

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the experiment and some text to learn."""
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT.replace("RATIO", str(SHORT)))
    for file, ratio in (("middle.yaml", MIDDLE), ("long.yaml", LONG)):
        (tmp_path / file).write_text(EXPERIMENT.replace("RATIO", str(ratio)).replace("[0, 1]", "[0]"))
    words = [f"{first}{second}" for first in "abcdefgh" for second in "aeiou"]
    text = " ".join(words[(7 * index + index // 11) % len(words)] for index in range(200_000))
    (tmp_path / "train.txt").write_text(text)
    (tmp_path / "validation.txt").write_text(text[1001:9001])
    return tmp_path


@pytest.fixture
def k3ablate(place: Path) -> Run:
    """The command line as a process of its own."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments), cwd=place, env=settings(environment), capture_output=True, text=True, timeout=300
        )

    return run


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "k3ablate.cli", *arguments]


def settings(changes: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in {"MLFLOW_TRACKING_URI", "K3ABLATE_RUNS"}}
    return {**kept, "NO_COLOR": "1", **changes}


def losses(place: Path, runs: str) -> dict[str, float | None]:
    """Loss of every run as its record on disk has it, by digest."""
    records = [json.loads(path.read_text()) for path in (place / runs).glob("*/record.json")]
    return {
        record["digest"]: record["evaluations"].get("validation", {}).get("loss") if record["evaluations"] else None
        for record in records
    }


def test_yaml_to_table_and_nothing_twice(k3ablate: Run, place: Path) -> None:
    ran = k3ablate("run", "tiny.yaml")
    assert ran.returncode == 0, ran.stderr
    assert "tiny: 8 finished, 4 diverged" in ran.stderr
    assert len(losses(place, "runs")) == 12
    first = k3ablate("report", "tiny.yaml")
    assert first.returncode == 0, first.stderr
    results = place / "runs" / "results" / "tiny"
    markdown = (results / "table.md").read_text()
    assert markdown.count("| wild | ") == 1 + 4  # its row, and its four diverged runs
    assert "diverged" in markdown
    rows = list(csv.DictReader((results / "table.csv").read_text().splitlines()))
    assert [row["arm"] for row in rows] == ["k2", "k3", "wild"]
    assert float(rows[1]["multiplier_low"]) < float(rows[1]["multiplier"]) < float(rows[1]["multiplier_high"])
    before = {path: path.stat().st_mtime_ns for path in (place / "runs").glob("*/record.json")}
    again = k3ablate("run", "tiny.yaml")
    assert again.returncode == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert k3ablate("report", "tiny.yaml").stdout == first.stdout
    assert (results / "table.md").read_text() == markdown


def test_a_killed_launcher_changes_no_bit(k3ablate: Run, place: Path) -> None:
    assert k3ablate("run", "middle.yaml", K3ABLATE_RUNS="undisturbed").returncode == 0
    launcher = subprocess.Popen(
        command("run", "middle.yaml"), cwd=place, env=settings({"K3ABLATE_RUNS": "killed"}), stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not list((place / "killed").glob("*/checkpoints/step-*.ckpt")):
        assert launcher.poll() is None, "it ended before it could be killed: nothing was tested"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    resumed = k3ablate("run", "middle.yaml", K3ABLATE_RUNS="killed")
    assert resumed.returncode == 0, resumed.stderr
    assert losses(place, "killed") == losses(place, "undisturbed")
    records = [json.loads(path.read_text()) for path in (place / "killed").glob("*/record.json")]
    assert max(record["num_resumes"] for record in records) == 1


def marked(mark: str) -> list[str]:
    """The command lines of processes that have `mark` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it ended meanwhile
            continue
    return found


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at the table of processes")
def test_ctrl_c_leaves_nothing_running_and_a_grid_that_goes_on(k3ablate: Run, place: Path) -> None:
    launcher = subprocess.Popen(
        command("run", "long.yaml", "--workers", "2"), cwd=place, env=settings({"MARK": str(place)}),
        stderr=subprocess.PIPE, text=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while len({path.parent for path in (place / "runs").glob("*/checkpoints/step-*.ckpt")}) < 2:
        assert launcher.poll() is None, "it ended before it could be interrupted: nothing was tested"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert len(marked(str(place))) >= 3  # the launcher and its workers
    launcher.send_signal(signal.SIGINT)
    _, told = launcher.communicate(timeout=60)
    assert (launcher.returncode, told.splitlines()[-1]) == (3, "interrupted; the same command goes on from here")
    assert marked(str(place)) == []
    standing = json.loads(k3ablate("status", "long.yaml", "--json").stdout)["counts"]
    states = [state for sizes in standing.values() for counts in sizes.values() for state in counts]
    assert states.count("interrupted") == 2
    assert {"running", "stale", "failed"}.isdisjoint(states)
    assert not list((place / "runs").glob("*/attempts.jsonl"))  # nobody's fault


def test_a_store_out_of_reach_costs_no_run_and_gets_all_of_them_later(k3ablate: Run, place: Path) -> None:
    ran = k3ablate("run", "tiny.yaml", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("cannot be used, runs go on without it") == 1
    assert sum(loss is not None for loss in losses(place, "runs").values()) == 8
    syncs = [
        subprocess.Popen(command("sync", "tiny.yaml"), cwd=place, env=settings({}), stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [sync.communicate()[0] for sync in syncs]
    assert [sync.returncode for sync in syncs] == [0, 0], said
    stored = query(place, "SELECT COUNT(*), COUNT(DISTINCT value) FROM tags WHERE key = 'digest'")
    assert stored == [(12, 12)]
    lines = sum(len(path.read_text().splitlines()) for path in (place / "runs").glob("*/metrics.jsonl"))
    assert query(place, "SELECT COUNT(*) FROM metrics WHERE key = 'tokens'") == [(lines,)]
    assert k3ablate("collect", "tiny.yaml").returncode == 0
    here = (place / "runs" / "results" / "tiny" / "runs.csv").read_bytes()
    store = f"sqlite:///{place / 'runs' / 'mlflow.db'}"
    there = k3ablate("collect", "tiny", "--from", "mlflow", "--uri", store, K3ABLATE_RUNS="elsewhere")
    assert there.returncode == 0, there.stderr
    assert (place / "elsewhere" / "results" / "tiny" / "runs.csv").read_bytes() == here


def query(place: Path, text: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(place / "runs" / "mlflow.db")) as database:
        return database.execute(text).fetchall()
