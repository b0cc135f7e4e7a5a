import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from k3ablate import cli, doctor
from k3ablate.doctor import Machine, examine, measure_gflops, memory_bytes

SPEEDS = {torch.float32: 60.0, torch.bfloat16: 3.0}


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """Examine without measuring, on a machine whose speeds are known."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(doctor, "measure_gflops", SPEEDS.__getitem__)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return lambda root=tmp_path: examine(root)


def test_facts_are_the_systems_own(look: Callable[..., Machine], tmp_path: Path) -> None:
    machine = look()
    assert machine.num_cores == len(os.sched_getaffinity(0))
    assert machine.libraries["torch"] == torch.__version__
    assert machine.runs == str(tmp_path)
    assert machine.disk_free_bytes == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert machine.gpu is None
    assert machine.problems == ()


def test_slow_bfloat16_is_advised_against(look: Callable[..., Machine]) -> None:
    assert "precision: float32; bfloat16 is emulated here, 20 times slower" in look().allows


def test_fast_bfloat16_is_offered_for_large_products(look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPEEDS, torch.bfloat16, 240.0)
    assert any("only for large products, which it makes 4.0 times faster" in line for line in look().allows)


def test_a_folder_that_cannot_be_written_is_a_problem_and_nothing_is_created(look, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (problem,) = look(tmp_path / "file" / "runs").problems
    assert problem == f"{tmp_path / 'file' / 'runs'}: cannot be written; set K3ABLATE_RUNS to a folder that can"
    assert look(tmp_path / "new").problems == ()
    assert not (tmp_path / "new").exists()


def test_too_little_memory_for_the_workers_is_a_problem(look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "default_workers", lambda: 64)
    monkeypatch.setattr(doctor, "memory_bytes", lambda: 8 * 1024**3)
    assert look().problems == ("8.0 GiB of memory for 64 workers; use --workers 8",)


def test_too_little_disk_is_a_problem(look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DEMO_BYTES", 1 << 60)
    (problem,) = look().problems
    assert "the demo may not fit" in problem


def test_the_store_is_named_and_not_made(look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert look().tracking == f"sqlite:///{tmp_path}/mlflow.db, made by the first run"
    assert not (tmp_path / "mlflow.db").exists()
    (tmp_path / "mlflow.db").touch()
    assert look().tracking == f"sqlite:///{tmp_path}/mlflow.db, there"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    assert look().tracking.startswith("http://elsewhere (from MLFLOW_TRACKING_URI")


def test_a_kernel_cache_that_cannot_be_written_says_what_to_set(look, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert look().numba_cache == f"{tmp_path}, writable"
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert look().numba_cache.endswith("not writable: numba tries the user's cache folder; set NUMBA_CACHE_DIR")


def test_a_missing_library_is_named_as_missing(look, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import PackageNotFoundError

    def version(name: str) -> str:
        if name == "numba":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("importlib.metadata.version", version)
    machine = look()
    assert (machine.libraries["numba"], machine.libraries["mlflow"]) == ("missing", "1.0")
    assert machine.kernels == "torch only; numba is missing"


def test_measuring_leaves_the_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MEASURE_SECONDS", 0.0)
    before = torch.get_num_threads()
    assert measure_gflops(torch.float32) > 0
    assert torch.get_num_threads() == before


def test_memory_is_at_most_what_the_machine_has() -> None:
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    memory = memory_bytes()
    assert memory is not None
    assert 0 < memory <= int(total.split()[1]) * 1024 * 1.01


def test_json_and_text_hold_the_same(look, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("K3ABLATE_RUNS", str(tmp_path))
    with pytest.raises(SystemExit, match="0"):
        cli.main(["doctor", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert (answer["fp32_gflops"], answer["bf16_gflops"]) == (60.0, 3.0)
    text = look().text()
    for line in (*answer["allows"], answer["kernels"], answer["tracking"], "60.0 GFLOP/s"):
        assert line in text
