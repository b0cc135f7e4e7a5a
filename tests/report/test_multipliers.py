"""m(C) stands in a file of its own, and in the table where there is no single number."""

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from k3ablate.fits.analysis import Analysis
from k3ablate.report import markdown
from k3ablate.report.multipliers import COLUMNS, rows, write_multipliers
from k3ablate.report.notes import notes
from k3ablate.report.tables import Provenance, render_text, sheet


def test_rows_are_the_curves_of_the_analysis(analysis: Analysis, tmp_path: Path) -> None:
    with write_multipliers(analysis, tmp_path / "multipliers.csv").open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["arm"] for row in written[:: len(written) // 3]] == ["k3", "kda", "again"]
    line = analysis.arm("k3").multiplier_curve
    assert line is not None
    of_k3 = [row for row in written if row["arm"] == "k3"]
    np.testing.assert_array_equal([float(row["multiplier"]) for row in of_k3], line.value_G)
    np.testing.assert_array_equal([float(row["multiplier_low"]) for row in of_k3], line.low_G)
    for row in of_k3:
        ratio = float(row["baseline_flops"]) / float(row["arm_flops"])
        assert float(row["multiplier"]) == pytest.approx(ratio)
        assert float(row["baseline_pflop_s_days"]) * 8.64e19 == pytest.approx(float(row["baseline_flops"]))


def test_without_curves_the_file_has_its_head(analyses: Callable[..., Analysis], tmp_path: Path) -> None:
    assert rows(analyses(num_sizes=1)) == []
    written = write_multipliers(analyses(num_sizes=1), tmp_path / "multipliers.csv").read_text()
    assert written == ",".join(COLUMNS) + "\n"


def test_a_rejected_shared_form_shows_the_curve_and_no_number(
    analyses: Callable[..., Analysis], provenance: Provenance
) -> None:
    analysis = analyses(form="shared_exponent", steeper=0.02)
    line = analysis.arm("k3").multiplier_curve
    assert line is not None
    text = markdown.render(sheet(analysis, provenance))
    (k3,) = (row for row in text.splitlines() if row.startswith("| k3 |"))
    assert f"| m(C) {line.value_G[0]:.2f} to {line.value_G[-1]:.2f} |" in k3
    assert f"| {line.loss_G[0]:.4f} to {line.loss_G[-1]:.4f} | measured | - |" in k3
    flat = " ".join(render_text(analysis, provenance).split())
    assert "power for every arm, because shared_exponent, as asked for, is rejected" in flat
    told = "k3, kda, again: no multiplier: shared_exponent, as asked for, is rejected: one exponent for 4 arms"
    assert flat.count(told) == 1


def test_a_rejected_common_exponent_is_told_beside_numbers_at_one_loss(analyses: Callable[..., Analysis]) -> None:
    analysis = analyses(form="power", steeper=0.02)
    assert analysis.arm("k3").multiplier is not None
    (told,) = (note for note in notes(analysis) if "one exponent for 4 arms" in note)
    assert told.startswith("without a floor, one exponent for 4 arms is rejected against one each: F(3, ")
    assert "AICc " in told
    assert "loss at the largest size, left out of the fits, is off by " in told
    assert told.endswith("multipliers.csv has m(C)")


def test_what_was_not_tested_says_why_once(analyses: Callable[..., Analysis]) -> None:
    told = "\n".join(notes(analyses(unfinished=["k3", "kda", "again"])))
    assert "one exponent for all arms was not tested: parallel curves: 1 of 4 arms with two sizes or more" in told
    assert "\n".join(notes(analyses(num_sizes=1))).count("not tested") == 0


def test_the_correction_says_for_how_many_arms(analysis: Analysis) -> None:
    (told,) = (note for note in notes(analysis) if note.startswith("p: "))
    assert told.endswith("Holm's correction for 2 arms against one baseline")
