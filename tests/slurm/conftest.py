"""The one Slurm of the tests in this folder, and what they share."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="session")
def _search_path() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for folder in ("slurm", "jobs"):
            patch.syspath_prepend(str(Path(__file__).parent.parent / folder))
        yield


@pytest.fixture(scope="session")
def fake_runs(_search_path: None) -> ModuleType:
    """The stand-in runs of the launcher's tests."""
    return importlib.import_module("fake_runs")


@pytest.fixture(scope="session")
def cluster(_search_path: None) -> Iterator[Any]:
    """A real Slurm, `virtual_cluster.VirtualCluster`; skips with the reason where there can be none."""
    virtual_cluster = importlib.import_module("virtual_cluster")
    virtual_cluster.skip_without(virtual_cluster.missing())
    started = virtual_cluster.VirtualCluster()
    try:
        started.start()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", started.environment["SLURM_CONF"])
            patch.setenv("PATH", started.environment["PATH"])
            yield started
    finally:
        started.stop()


@pytest.fixture
def place(cluster: Any, fake_runs: ModuleType, tmp_path: Path) -> Iterator[Any]:
    """Fake runs to submit, and a queue that is empty when the test is over."""
    grids = importlib.import_module("fake_grid")
    yield grids.FakeGrid(cluster, fake_runs, tmp_path / "runs")
    cluster.end_all_jobs()
