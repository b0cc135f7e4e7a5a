"""The Slurm that the other tests stand on."""

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slurm


def test_a_job_runs_on_a_node(cluster: Any, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    cluster.command("sbatch", f"--output={output}", "--wrap", "srun echo on $SLURMD_NODENAME")
    cluster.wait_for("the job's end", lambda: not cluster.queue())
    assert output.read_text().split()[0] == "on"
    assert output.read_text().split()[1] in {"node1", "node2", "node3"}
