"""The table of records as files. Records in their folders are tested with `jobs.folders`."""

import errno
import os
from pathlib import Path

import pandas
import pytest

from k3ablate.records import read_table, write_table

FRAME = pandas.DataFrame({"arm": ["k2", 'é, "quoted"\nin lines'], "loss": [1 / 3, None]})


def test_a_table_is_read_back_with_every_digit(tmp_path: Path) -> None:
    for path in write_table(FRAME, tmp_path / "results" / "runs"):
        pandas.testing.assert_frame_equal(read_table(path), FRAME, check_exact=True)


@pytest.mark.parametrize("full_after", [0, 1])
def test_a_full_disk_leaves_the_tables_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_after: int
) -> None:
    files = write_table(FRAME, tmp_path / "runs")
    before = [path.read_bytes() for path in files]
    allowed = iter(range(full_after))

    def full(descriptor: int) -> None:
        if next(allowed, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_table(FRAME, tmp_path / "runs")
    assert caught.value.filename == str(files[full_after])
    assert [path.read_bytes() for path in files] == before
    assert sorted(tmp_path.iterdir()) == sorted(files)
