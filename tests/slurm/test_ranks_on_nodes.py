"""One run on two nodes: srun starts its ranks beside the step of the worker that holds it."""

import importlib
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from k3ablate.jobs.folders import RunFolder
from k3ablate.training.spec import Execution

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

NUM_STEPS = 40
ON_TWO_NODES = Execution(strategy="ddp", num_devices=1, num_nodes=2, log_every_steps=1)
JOB = """#!/bin/sh
#SBATCH --nodes=2 --ntasks-per-node=1 --cpus-per-task=2 --output={log}
srun --nodes=1 --ntasks=1 --cpus-per-task=2 {python} {script} {row}
"""


def test_two_nodes_train_one_run(cluster: Any, fake_runs: ModuleType, tmp_path: Path) -> None:
    real_runs = importlib.import_module("real_runs")
    row = real_runs.make_real_row(tmp_path, NUM_STEPS)
    files = {name: tmp_path / name for name in ("log", "script", "row")}
    files["script"].write_text(real_runs.ATTEMPT)
    files["row"].write_bytes(pickle.dumps((row, tmp_path, ON_TWO_NODES)))
    job = tmp_path / "job.sh"
    job.write_text(JOB.format(python=sys.executable, **files))
    cluster.command("sbatch", "--wait", str(job), check=False)
    folder = RunFolder(tmp_path / row.label.digest)
    log = files["log"].read_text()
    assert "ENDED" in log, log
    record = folder.record()
    assert record is not None
    assert (record.reason, record.device, record.num_steps) == ("", "2 x cpu", NUM_STEPS)
    assert record.evaluations["validation"].num_tokens == 64
