"""Write-ahead logging where it is safe, and only there."""

import sqlite3
from pathlib import Path

import pytest

from k3ablate import sqlite_files
from k3ablate.sqlite_files import ease_writing, file_of, file_system


def mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *lines: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text("".join(f"{line} rw 0 0\n" for line in lines))
    monkeypatch.setattr(sqlite_files, "MOUNTS", mounts)


def test_the_file_is_what_the_address_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert file_of("sqlite:////a/mlflow.db") == Path("/a/mlflow.db")
    assert file_of("sqlite:///mlflow.db") == tmp_path / "mlflow.db"
    assert file_of("http://mlflow.db") is None


def test_the_innermost_mount_counts_and_the_last_on_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(
        monkeypatch, tmp_path, "/dev/a / ext4", "server:/x /scratch nfs4", "/dev/b /scratch/own xfs",
        "auto /late autofs", "server:/late /late lustre", "/dev/c /with\\040space btrfs",
    )  # fmt: skip
    kinds = {"/home/x": "ext4", "/scratch/x": "nfs4", "/scratch/own/x": "xfs", "/scratches/x": "ext4"}
    kinds |= {"/late/x": "lustre", "/with space/x": "btrfs"}
    assert {place: file_system(Path(place)) for place in kinds} == kinds


@pytest.mark.parametrize(("kind", "mode"), [("ext4", "wal"), ("nfs4", "delete"), ("fuse.sshfs", "delete")])
def test_a_log_is_written_ahead_on_own_disks_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, mode: str
) -> None:
    mounted(monkeypatch, tmp_path, f"somewhere / {kind}")
    ease_writing(tmp_path / "mlflow.db")
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == (mode,)


def test_without_a_list_of_mounts_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_files, "MOUNTS", tmp_path / "absent")
    assert file_system(tmp_path) is None
