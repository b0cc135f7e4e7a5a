"""What a disk's refusal means, and that a file has its old or its new content."""

import errno
import os
from pathlib import Path

import pytest

from k3ablate import storage


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
