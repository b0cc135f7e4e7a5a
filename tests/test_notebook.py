"""The notebook runs from its first cell to its last, and computes what the package computes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from k3ablate.fits.analysis import analyse
from k3ablate.records import read_table

ANALYSIS = Path(__file__).parents[1] / "analysis"


@pytest.mark.slow
def test_the_notebook_computes_the_multiplier_of_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error::UserWarning", str(ANALYSIS / "notebook.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    runs = read_table(ANALYSIS / "results" / "demo" / "runs.csv")
    read = analyse(runs, "k2", None, np.random.default_rng(0)).arm("k3").multiplier
    assert read is not None
    assert done.stdout.split() == ["k3", repr(read.value), repr(read.interval.low), repr(read.interval.high)]
    assert not list(tmp_path.iterdir())


def test_every_cell_is_a_handful_of_lines() -> None:
    cells = (ANALYSIS / "notebook.py").read_text().split("@app.cell")[1:]
    assert len(cells) > 8
    assert max(cell.count("\n") for cell in cells) < 16
