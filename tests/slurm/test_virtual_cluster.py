"""The Slurm that the other tests stand on."""

import importlib
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slurm
def test_a_job_runs_on_a_node(cluster: Any, tmp_path: Path) -> None:
    output = tmp_path / "output.txt"
    cluster.command("sbatch", f"--output={output}", "--wrap", "srun echo on $SLURMD_NODENAME")
    cluster.wait_for("the job's end", lambda: not cluster.queue())
    assert output.read_text().split()[0] == "on"
    assert output.read_text().split()[1] in {"node1", "node2", "node3"}


@pytest.mark.usefixtures("_search_path")
@pytest.mark.parametrize("name", ["CI", "K3ABLATE_REQUIRE_SLURM"])
def test_without_slurm_tests_are_skipped_with_the_reason_but_fail_where_they_must_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual_cluster = importlib.import_module("virtual_cluster")
    for variable in virtual_cluster.REQUIRING:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(virtual_cluster, "DAEMONS", ("no-such-daemon",))
    reason = virtual_cluster.missing()
    assert reason == "no no-such-daemon here; apt-get install munge slurmctld slurmd slurm-client"
    with pytest.raises(pytest.skip.Exception, match="no no-such-daemon here"):
        virtual_cluster.skip_without(reason)
    virtual_cluster.skip_without(None)
    monkeypatch.setenv(name, "1")
    with pytest.raises(AssertionError, match=f"{name} is set, so the tests marked slurm must run: no no-such-daemon"):
        virtual_cluster.skip_without(reason)
    virtual_cluster.skip_without(None)
