"""A grid of eight runs that nobody trains, and a Slurm of shell scripts that answer what a test writes."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from k3ablate import verbs
from k3ablate.experiment import load
from k3ablate.jobs.attempts import Attempt, Cause, note_attempt
from k3ablate.jobs.folders import RunFolder, prepare
from k3ablate.jobs.packs import PackedRun, PackFile
from k3ablate.jobs.submissions import Submission
from k3ablate.records import Evaluation, RunRecord, Status
from k3ablate.standings import Standings, look
from k3ablate.training.corpus import Corpus

EXPERIMENT = """
name: seen
question: Where is everything?
expected: here
stopping: none
exclusion: none
baseline:
  model: kimi-k2
  data: {source: {kind: files, format: text, train: [train.txt], validation: [validation.txt]}}
  training: cpu
  set: {training.context: 32, training.batch_size: 4, training.validation_tokens: 64}
components:
  attention: {levels: {k2: {}, k3: {model.mixer: {from: kimi-k3}}}}
design: one_at_a_time
names: {baseline: k2}
match: flops_per_token
sizes:
  - {name: xs, width: 32, num_layers: 4, head_width: 16, num_active: 2}
  - {name: s, width: 48, num_layers: 4, head_width: 16, num_active: 2}
budgets: [{kind: tokens, tokens: 1280}]
seeds: [0, 1]
"""
SCRIPT = """#!/bin/sh
echo "{name} $*" >> {folder}/calls
if [ -e {folder}/{name}.error ]; then cat {folder}/{name}.error >&2; exit 1; fi
cat {folder}/{name}.answer
"""


class FakeCorpus(Corpus):
    """A corpus that is only asked for its name."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), None)  # type: ignore[arg-type]

    @property
    def digest(self) -> str:
        return "c0ffee"


class FakeSlurm:
    """What squeue, sacct and scancel say, and how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("squeue", "sacct", "scancel"):
            self.answer(name, "")
            (folder / name).write_text(SCRIPT.format(name=name, folder=folder))
            (folder / name).chmod(0o755)
        self.refuse("sacct", "Slurm accounting storage is disabled")

    def answer(self, name: str, *lines: str) -> None:
        (self.folder / f"{name}.error").unlink(missing_ok=True)
        (self.folder / f"{name}.answer").write_text("".join(f"{line}\n" for line in lines))

    def refuse(self, name: str, message: str) -> None:
        (self.folder / f"{name}.error").write_text(message)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    def calls(self, name: str) -> list[str]:
        log = self.folder / "calls"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


class Grid:
    """The runs of `seen.yaml` by number: xs then s; k2 seeds 0 and 1, then +attention seeds 0 and 1."""

    name = "seen.yaml"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.experiment = load(Path(self.name))
        self.rows = verbs.plan_from_known_corpora(self.experiment, root).rows
        self.folders = [prepare(root, row.spec) for row in self.rows if row.spec is not None]

    def submitted(self, job: str, *packs: Sequence[int], experiment: str = "seen", number: int = 1) -> Submission:
        """The array `job` with a task per pack of runs."""
        submission = Submission(self.root / "jobs" / experiment / f"{number:04d}")
        packed = tuple(tuple(self._packed(index) for index in pack) for pack in packs)
        file = PackFile(experiment=experiment, execution={}, num_threads=1, stop_seconds=1, packs=packed)
        submission.write(file, "#!/bin/sh\n")
        submission.note_job(job, f"0-{len(packs) - 1}")
        return submission

    def _packed(self, index: int) -> PackedRun:
        row = self.rows[index]
        return PackedRun(digest=row.label.digest, name=row.label.name, tags={}, tokens=row.tokens, flops=row.flops)

    def train(self, index: int, tokens: int = 640, tokens_per_second: float = 64.0) -> RunFolder:
        """Leave what a run leaves that ended after a checkpoint."""
        folder = self.folders[index]
        (folder.path / "checkpoints").mkdir(exist_ok=True)
        (folder.path / "checkpoints" / "step-000000005.ckpt").touch()
        line = {"step": 4, "tokens": tokens, "tokens_per_second": tokens_per_second}
        (folder.path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        return folder

    def settle(self, index: int, status: Status = Status.FINISHED, reason: str = "on purpose") -> RunFolder:
        """Leave a record; a loss only where it finished."""
        row, folder = self.rows[index], self.folders[index]
        is_finished = status is Status.FINISHED
        evaluation = Evaluation(loss=2.0, bits_per_byte=3.0, num_tokens=64)
        record = RunRecord(
            digest=row.label.digest, status=status, reason="" if is_finished else reason,
            evaluations={"validation": evaluation} if is_finished else {}, num_steps=10, tokens=row.tokens,
            flops=row.flops, flops_6nd=row.flops, active_params=row.counts.active_params,
            total_params=row.counts.total_params, wall_seconds=4.0, tokens_per_second=64.0, corpus="c0ffee",
        )  # fmt: skip
        folder.write_record(record)
        return folder

    def attempt(self, index: int, cause: Cause, job: str = "") -> None:
        note_attempt(self.folders[index].path, Attempt(cause=cause, num_steps=5, job=job))

    def look(self, lookout: Any) -> Standings:
        return look(self.experiment.name, self.rows, self.root, lookout)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """The only Slurm that can be found, and the shell that it needs."""
    fake = FakeSlurm(tmp_path / "bin")
    for program in ("cat", "sh"):
        (fake.folder / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", str(fake.folder))
    return fake


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Grid:
    """Eight waiting runs whose corpus is known without being built."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("K3ABLATE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    Path(Grid.name).write_text(EXPERIMENT)
    monkeypatch.setattr(verbs, "known", lambda recipe, folder: FakeCorpus())
    monkeypatch.setattr(verbs, "check_budget", lambda *arguments: None)
    return Grid(tmp_path / "runs")
