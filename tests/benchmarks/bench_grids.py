"""How much CPU time and memory do `plan` and `status` take for 10,000 runs?

Sixteen arms of a factorial at 25 sizes with 25 seeds. Most runs have a record, some have failed, some are interrupted,
some are held by another machine, the rest waits. Each verb runs in a process of its own, and what it takes beyond its
imports is printed.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from k3ablate import verbs
from k3ablate.experiment import load
from k3ablate.jobs.folders import RunFolder, prepare
from k3ablate.plan import PlanRow
from k3ablate.records import Evaluation, RunRecord, Status

ROUNDS = 3
NUM_SIZES, NUM_SEEDS = 25, 25
EXPERIMENT = """
name: large
question: q
expected: e
stopping: s
exclusion: x
baseline:
  model: kimi-k2
  training: cpu
  data:
    source: {{kind: files, format: text, train: [{place}/train.txt], validation: [{place}/validation.txt]}}
components:
  attention: {{levels: {{k2: {{}}, k3: {{model.mixer: {{from: kimi-k3}}}}}}}}
  residual: {{levels: {{k2: {{}}, k3: {{model.residual: {{from: kimi-k3}}}}}}}}
  feed_forward: {{levels: {{k2: {{}}, k3: {{model.feed_forward: {{from: kimi-k3}}}}}}}}
  balancing: {{levels: {{k2: {{}}, k3: {{model.balancing: {{from: kimi-k3}}}}}}}}
design: factorial
names: {{baseline: k2, full: k3}}
match: flops_per_token
budgets: [{{kind: tokens, tokens: 100000}}]
seeds: {seeds}
sizes:
{sizes}
"""
MEASURE = """
import resource, sys, time
from pathlib import Path
from k3ablate import planning, standings, verbs
name, place = sys.argv[1], Path(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
arguments = (2,) if name == "plan" else ()
verb = verbs.plan if name == "plan" else standings.status
verb(str(place / "large.yaml"), place / "runs", *arguments).text()
seconds = time.process_time() - start
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, before / 1024)
"""


def written(place: Path) -> Path:
    """The experiment and its text."""
    for name, num_lines in (("train", 10_000), ("validation", 4000)):
        (place / f"{name}.txt").write_text("\n".join(f"{name} line {line}" for line in range(num_lines)))
    sizes = "\n".join(
        f"  - {{name: s{number}, width: {24 + 8 * number}, num_layers: 4, head_width: 8, num_active: 2}}"
        for number in range(NUM_SIZES)
    )
    path = place / "large.yaml"
    path.write_text(EXPERIMENT.format(place=place, sizes=sizes, seeds=[*range(NUM_SEEDS)]))
    return path


def record(row: PlanRow, status: Status) -> RunRecord:
    is_finished = status is Status.FINISHED
    loss = 2.0 + 10 / row.counts.active_params**0.3 + row.label.seed / 1000
    return RunRecord(
        digest=row.label.digest,
        status=status,
        reason="" if is_finished else "ZeroDivisionError: it broke",
        evaluations={"validation": Evaluation(loss=loss, bits_per_byte=3.0, num_tokens=64)} if is_finished else {},
        num_steps=25,
        tokens=row.tokens,
        flops=row.flops,
        flops_6nd=row.flops,
        active_params=row.counts.active_params,
        total_params=row.counts.total_params,
        wall_seconds=4.0,
        tokens_per_second=64.0,
        corpus="c",
        kernels=dict.fromkeys(("attention", "kda", "experts", "rms_norm", "situ_glu", "routing"), "numba"),
        versions=dict.fromkeys(("python", "torch", "lightning", "numpy", "k3ablate", "code"), "1.2.3.4.5.6.7.8"),
    )


def leave(folder: RunFolder, row: PlanRow, number: int) -> None:
    """What a run leaves, of every kind there is."""
    if number % 10 < 6:
        folder.write_record(record(row, Status.FINISHED))
    elif number % 10 == 6:
        folder.write_failure(record(row, Status.FAILED), "Traceback")
    elif number % 10 < 9:
        (folder.path / "checkpoints").mkdir()
        (folder.path / "checkpoints" / "step-000000010.ckpt").touch()
        (folder.path / "metrics.jsonl").write_text(json.dumps({"step": 9, "tokens": 4000, "loss": 3.0}) + "\n")
    elif number % 100 == 9:
        (folder.path / "lease.json").write_text("{}")  # of another machine


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("large")
    rows = verbs.plan_from_built_corpora(load(written(place)), place / "runs", lambda line: None).rows
    assert len(rows) == 10_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        for number, row in enumerate(rows):
            assert row.spec is not None
            leave(prepare(place / "runs", row.spec), row, number)
    return place


@pytest.mark.parametrize("verb", ["plan", "status"])
def test_ten_thousand_runs(verb: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds, peaks = [], []
    for _ in range(ROUNDS):
        command = [sys.executable, "-c", MEASURE, verb, str(place)]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        seconds.append(float(told[0]))
        peaks.append(float(told[1]))
    with capsys.disabled():
        print(
            f"\n{verb} of 10,000 runs: median {statistics.median(seconds):.2f} s of CPU beyond the imports "
            f"({min(seconds):.2f} to {max(seconds):.2f}), at most {max(peaks):.0f} MiB (of which imports {told[2]})"
        )
