"""What a disk's refusal means, and that a file has its old or its new content."""

import errno
import os
from pathlib import Path
from typing import IO

import pytest

from k3ablate import storage
from k3ablate.config import InputError


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.ENAMETOOLONG, "name a shorter one by K3ABLATE_RUNS"),
        (errno.ELOOP, "mend them, or name another place by K3ABLATE_RUNS"),
        (errno.EIO, "set K3ABLATE_RUNS to a folder on another disk"),
        (errno.EFBIG, "raise `ulimit -f`"),
    ],
)
def test_a_refusal_says_where_and_what_to_do(number: int, remedy: str) -> None:
    message = storage.problem(OSError(number, os.strerror(number), "/somewhere/runs"))
    assert message is not None
    assert message.startswith("/somewhere/runs: ")
    assert remedy in message


def test_refusals_of_this_file_system_are_known(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for root, problem in (("x" * 300, "this path is too long"), ("circle/runs", "symbolic links lead in a circle")):
        with pytest.raises(OSError, match=root[:5]) as caught:
            storage.require_writable(tmp_path / root)
        assert problem in str(storage.problem(caught.value))


@pytest.mark.parametrize(("content", "written"), [("é\n", b"\xc3\xa9\n"), (b"\xff\x00", b"\xff\x00")])
def test_text_is_written_as_utf_8_and_bytes_as_they_are(tmp_path: Path, content: str | bytes, written: bytes) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    storage.write_atomic(path, content)
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (written, [path])


def test_writers_of_one_number_on_two_machines_do_not_meet(tmp_path: Path) -> None:
    path, before = tmp_path / "spec.json", {}

    def write(file: IO[bytes]) -> None:
        before["names"] = sorted(entry.name for entry in tmp_path.iterdir())
        storage.write_atomic(path, "theirs")  # at the same time, by a process that has this one's number
        file.write(b"ours")

    storage.replace_file(path, write)
    assert path.read_text() == "ours"
    assert list(tmp_path.iterdir()) == [path]
    assert [name.endswith(".tmp") for name in before["names"]] == [True]


def test_a_line_is_added_apart_from_one_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for content, expected in ((None, "é\n"), ("", "é\n"), ("a\n", "a\né\n"), ("a\nb", "a\nb\né\n")):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_text(content)
        storage.append_line(path, "é")
        assert path.read_text(encoding="utf-8") == expected


def test_a_line_on_a_full_disk_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No space left.*full") as caught:
        storage.append_line(Path("/dev/full"), "line")
    assert str(storage.problem(caught.value)).startswith("/dev/full: the disk is full")


def test_the_time_of_a_file_system_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "now").touch()
    now = storage.server_time(tmp_path)
    assert now is not None
    assert abs(now - (tmp_path / "now").stat().st_mtime) < 60
    assert [path.name for path in tmp_path.iterdir()] == ["now"]
    assert storage.server_time(tmp_path / "absent") is None


def test_a_guard_is_asked_before_what_lies_below_its_folder_is_written(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "ab").mkdir()

    def refuse() -> None:
        raise InputError("not yours")

    with storage.guarded(tmp_path / "a", refuse):
        with pytest.raises(InputError, match="not yours"):
            storage.write_atomic(tmp_path / "a" / "file", "late")
        storage.write_atomic(tmp_path / "ab" / "file", "another folder")
        assert list((tmp_path / "a").iterdir()) == []
    storage.write_atomic(tmp_path / "a" / "file", "early")
