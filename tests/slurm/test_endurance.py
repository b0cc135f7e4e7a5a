"""A weekend in three minutes: a grid of 24 real runs on a real Slurm to which everything happens that can.

Workers are killed, a task is requeued, another meets its time limit, an array is cancelled, the controller starts anew.
In the end every run has finished once, with the very bits of a grid that nobody disturbed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from k3ablate.jobs import controller
from k3ablate.jobs.attempts import Cause, attempts
from k3ablate.jobs.folders import RunFolder
from k3ablate.jobs.holders import read_holder
from k3ablate.records import RunRecord, Status

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

PATIENCE_SECONDS = 600.0
NUM_RUNS, NUM_STEPS = 24, 48
EXPERIMENT = """
name: NAME
question: Does a grid survive a weekend?
expected: 24 finished runs
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
budgets: [{kind: tokens, tokens: TOKENS}]
seeds: SEEDS
execution: {checkpoint_seconds: 0.4, log_every_steps: 1}
"""
ALL, SOME = "all.yaml", "some.yaml"  # the second has two of the first's runs, under a time limit of their own
CLUSTERS = {
    "long.yaml": "{partition: main, minutes: 60, signal_seconds: 30, runs_per_job: 4, max_running: 2}",
    "short.yaml": "{partition: main, minutes: 2, signal_seconds: 60, runs_per_job: 2}",  # warned after 30 to 60 s
}
SETTINGS = {"NO_COLOR": "1", "K3ABLATE_TRACKING": "spool", "K3ABLATE_KERNELS": "torch"}  # nothing to compile
MAX_ENDED = 3  # runs in tasks that Slurm ends, by the cancel and the requeue: it may not leave time to note why
MAX_KILLS = 2  # of one run: three at one step would be its own fault


class Weekend:
    """The grid below `place / "runs"`, what happens to it, and what was seen of its records."""

    def __init__(self, place: Path, cluster: Any) -> None:
        self.place = place
        self.cluster = cluster
        self.random = random.Random(24)
        self.kills: Counter[str] = Counter()
        self.records: dict[str, tuple[int, int]] = {}  # digest -> its record's inode and time
        self.stopped: int | None = None  # a worker that takes a very long step until its task is warned

    def k3ablate(self, *arguments: str, root: str = "runs") -> str:
        """What the command prints, which is asserted to succeed."""
        environment = {**os.environ, **SETTINGS, "K3ABLATE_RUNS": str(self.place / root)}
        done = subprocess.run(
            [sys.executable, "-m", "k3ablate.cli", *arguments],
            cwd=self.place, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self, experiment: str = ALL) -> Any:
        """As `status --json` tells it, with the states of all cells together."""
        told = json.loads(self.k3ablate("status", experiment, "--json"))
        totals: Counter[str] = Counter()
        for by_size in told["counts"].values():
            for states in by_size.values():
                totals.update(states)
        return {**told, "totals": totals}

    def folders(self, root: str = "runs") -> dict[str, RunFolder]:
        """Every run, by digest."""
        return {path.parent.name: RunFolder(path.parent) for path in (self.place / root).glob("*/spec.json")}

    def note_records(self) -> int:
        """How many runs have ended; a record that was there before is still the same file."""
        for digest, folder in self.folders().items():
            path = folder.path / "record.json"
            if path.exists():
                found = path.stat()
                assert self.records.setdefault(digest, (found.st_ino, found.st_mtime_ns)) == (
                    found.st_ino,
                    found.st_mtime_ns,
                ), f"{digest} was trained twice"
        return len(self.records)

    def workers(self) -> dict[str, int]:
        """Processes of this cluster's tasks that train a run with a checkpoint, by the run's digest."""
        return {
            digest: process
            for digest, folder in self.folders().items()
            if folder.saved_steps() and (process := self._holder(folder)) is not None
        }

    def _holder(self, folder: RunFolder) -> int | None:
        try:
            holder = read_holder((folder.path / "lease.json").read_bytes())
            settings = Path(f"/proc/{holder.pid}/environ").read_bytes() if holder is not None else b""
        except (FileNotFoundError, ProcessLookupError):
            return None
        is_ours = f"SLURM_CONF={self.cluster.environment['SLURM_CONF']}".encode() in settings.split(b"\0")
        return holder.pid if holder is not None and is_ours and b"SLURM_ARRAY_JOB_ID=" in settings else None

    def kill_a_worker(self, *spared: str) -> None:
        """SIGKILL one at random, and wait until its launcher knows."""
        digest, process = self.wait(lambda: self._victim(spared))
        folder = self.folders()[digest]
        before = len(attempts(folder.path))
        os.kill(process, signal.SIGKILL)
        self.kills[digest] += 1
        self.wait(lambda: len(attempts(folder.path)) > before or folder.record() is not None)

    def _victim(self, spared: tuple[str, ...]) -> tuple[str, int] | None:
        found = [
            (digest, process)
            for digest, process in sorted(self.workers().items())
            if digest not in spared and self.kills[digest] < MAX_KILLS
        ]
        return self.random.choice(found) if found else None

    def wait(self, condition: Callable[[], Any]) -> Any:
        """What `condition` says once that is true."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := condition()):
            assert time.monotonic() < deadline, self.everything()
            self.note_records()
            self._end_the_long_step()
            time.sleep(0.05)
        return found

    def requeue_a_task(self, job: str) -> str | None:
        """One of `job` that runs, at random; None where there is none at the moment."""
        running = [task.split()[0] for task in self.cluster.queue() if task.endswith(" RUNNING")]
        ours = [task for task in running if task.startswith(f"{job}_")]
        if not ours:
            return None
        chosen = self.random.choice(ours)
        self.cluster.command("scontrol", "requeue", chosen)
        return chosen

    def begin_a_long_step(self, digests: set[str]) -> str:
        """One of these runs does not go on until Slurm warns its task of the time limit; the run's digest."""
        digest, self.stopped = self.wait(lambda: next((w for w in self.workers().items() if w[0] in digests), None))
        os.kill(self.stopped, signal.SIGSTOP)
        return digest

    def _end_the_long_step(self) -> None:
        if self.stopped is not None and is_signalled(self.stopped, signal.SIGUSR2):
            with suppress(ProcessLookupError):  # its launcher may have lost patience
                os.kill(self.stopped, signal.SIGCONT)
            self.stopped = None

    def everything(self) -> str:
        """For a failure: queue, logs of tasks, ends of the runs' logs."""
        paths = sorted((self.place / "runs").glob("jobs/*/*/logs/*"))
        logs = [f"--- {path}\n{path.read_text()}" for path in paths]
        return "\n".join(["it did not happen in time", *self.cluster.queue(), *logs, self.cluster.logs()])


@pytest.fixture
def weekend(cluster: Any, tmp_path: Path) -> Iterator[Weekend]:
    """Two experiments, two cluster recipes and some text to learn; the queue is empty afterwards."""
    pieces = {"TOKENS": str(NUM_STEPS * 32 * 4)}
    for file, name, seeds in ((ALL, "all", range(NUM_RUNS // 2)), (SOME, "some", range(1))):
        text = EXPERIMENT.replace("NAME", name).replace("SEEDS", str([*seeds])).replace("TOKENS", pieces["TOKENS"])
        (tmp_path / file).write_text(text)
    for name, recipe in CLUSTERS.items():
        (tmp_path / name).write_text(recipe)
    words = [f"{first}{second}" for first in "abcdefgh" for second in "aeiou"]
    text = " ".join(words[(7 * index + index // 11) % len(words)] for index in range(50_000))
    (tmp_path / "train.txt").write_text(text)
    (tmp_path / "validation.txt").write_text(text[1001:9001])
    yield Weekend(tmp_path, cluster)
    cluster.end_all_jobs()


def is_signalled(process: int, number: int) -> bool:
    """Whether a stopped process has this signal waiting for it, or is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return True
    pending = sum(int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd:", "ShdPnd:")))
    return bool(pending >> (number - 1) & 1)


def job_of(said: str) -> str:
    """'job 7: ...' -> '7'."""
    return said.removeprefix("job ").partition(":")[0]


def losses(folder: RunFolder) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


def record_of(folder: RunFolder) -> RunRecord:
    record = folder.record()
    assert record is not None
    return record


def test_a_grid_finishes_whatever_happens_to_it(weekend: Weekend) -> None:
    weekend.k3ablate("run", ALL, "--workers", "2", root="undisturbed")
    limited = job_of(weekend.k3ablate("submit", SOME, "--cluster", "short.yaml"))
    of_limited = {*weekend.folders()}
    assert len(of_limited) == 2
    cancelled = job_of(weekend.k3ablate("submit", ALL, "--cluster", "long.yaml"))
    assert weekend.status()["totals"].keys() <= {"queued", "running", "finished"}

    slow = weekend.begin_a_long_step(of_limited)
    weekend.kill_a_worker(*of_limited)
    assert f"k3ablate submit {ALL}" in weekend.k3ablate("cancel", ALL)
    weekend.wait(lambda: not any(task.startswith(f"{cancelled}_") for task in weekend.cluster.queue()))
    assert weekend.status()["totals"].keys() <= {"interrupted", "waiting", "finished", "running", "queued"}
    again = job_of(weekend.k3ablate("submit", ALL, "--cluster", "long.yaml"))

    weekend.kill_a_worker(*of_limited)
    weekend.cluster.stop_daemon("slurmctld")
    weekend.kill_a_worker(*of_limited)
    assert "Slurm does not answer" in weekend.status()["note"]
    weekend.cluster.start_controller()
    requeued = weekend.wait(lambda: weekend.requeue_a_task(again))
    weekend.kill_a_worker(*of_limited)
    while weekend.note_records() < NUM_RUNS:
        weekend.wait(lambda: weekend.note_records() == NUM_RUNS or not weekend.cluster.queue())
        weekend.k3ablate("submit", ALL, "--cluster", "long.yaml")

    check(weekend, slow, limited)
    told = controller.facts(requeued)
    assert told is not None
    assert told.num_restarts == 1
    assert weekend.k3ablate("submit", ALL, "--cluster", "long.yaml").startswith("all: 0 submitted, 0 queued before, 24")


def check(weekend: Weekend, slow: str, limited: str) -> None:
    """Every run finished, once, as if nothing had happened."""
    undisturbed, runs = weekend.folders("undisturbed"), weekend.folders()
    assert runs.keys() == undisturbed.keys()
    assert len(runs) == NUM_RUNS
    for digest, folder in runs.items():
        found, expected = record_of(folder), record_of(undisturbed[digest])
        assert (found.status, found.num_steps) == (Status.FINISHED, NUM_STEPS)
        assert found.evaluations == expected.evaluations, "bit for bit"
        assert losses(folder) == losses(undisturbed[digest])
        assert [step for step, _ in losses(folder)] == [*range(NUM_STEPS)], "each step once"
    noted = [attempt.cause for folder in runs.values() for attempt in attempts(folder.path)]
    assert 1 <= noted.count(Cause.WORKER_DIED) <= weekend.kills.total()
    assert {Cause.WORKER_DIED, Cause.TIME_LIMIT, Cause.REQUESTED} <= {*noted}
    assert (Cause.TIME_LIMIT, f"{limited}_0") in [(a.cause, a.job) for a in attempts(runs[slow].path)]
    resumes = sum(record_of(folder).num_resumes for folder in runs.values())
    assert 3 <= resumes <= len(noted) + MAX_ENDED, "nothing was trained again without a reason"
    assert weekend.status()["totals"] == {"finished": NUM_RUNS}
