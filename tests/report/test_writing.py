"""Whatever is published is replaced in one step: a full disk leaves what was there before, and is told by its file."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from k3ablate.fits.analysis import Analysis
from k3ablate.report.curves import write_curves
from k3ablate.report.figures import loss_picture
from k3ablate.report.pictures import write
from k3ablate.report.tables import Provenance, write_tables

Write = Callable[[Analysis, Provenance, Path], Sequence[Path]]

WRITERS: dict[str, Write] = {
    "tables": lambda analysis, provenance, folder: write_tables(analysis, provenance, folder / "table"),
    "curves": lambda analysis, provenance, folder: (write_curves(analysis, folder / "curves.csv"),),
    "figure": lambda analysis, provenance, folder: write(loss_picture(analysis), folder),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_full_disk_leaves_what_was_there(
    analysis: Analysis, provenance: Provenance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write
) -> None:
    files = write(analysis, provenance, tmp_path)
    before = [path.read_bytes() for path in files]

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write(analysis, provenance, tmp_path)
    assert caught.value.filename == str(files[0])
    assert [path.read_bytes() for path in files] == before
    assert sorted(tmp_path.iterdir()) == sorted(files)
