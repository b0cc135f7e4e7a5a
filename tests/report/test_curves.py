"""Both forms of every arm stand in one file, with intervals, diagnostics and the reason for every refusal."""

import csv
from collections.abc import Callable
from pathlib import Path

from k3ablate.fits.analysis import Analysis
from k3ablate.report.curves import rows, write_curves


def test_every_arm_has_a_row_for_every_form(analysis: Analysis) -> None:
    assert [(row["arm"], row["form"]) for row in rows(analysis)] == [
        (arm.arm, form) for arm in analysis.arms for form in ("power", "power_floor")
    ]


def test_numbers_are_those_of_the_fits(analysis: Analysis, tmp_path: Path) -> None:
    with write_curves(analysis, tmp_path / "curves.csv").open(encoding="utf-8", newline="") as file:
        written = {(row["arm"], row["form"]): row for row in csv.DictReader(file)}
    for arm in analysis.arms:
        for form, fitted in arm.fits.items():
            row = written[arm.arm, form]
            assert float(row["objective"]) == fitted.objective
            assert int(row["num_points"]) == fitted.num_points
            for name, value in fitted.values.items():
                interval = fitted.intervals[name]
                assert (float(row[name]), float(row[f"{name}_low"])) == (value, interval.low)
                assert interval.low <= value <= interval.high
        for form, reason in arm.no_fit.items():
            assert written[arm.arm, form]["refused"] == reason
            assert written[arm.arm, form]["a"] == ""


def test_without_a_finished_run_every_form_is_refused_with_the_reason(
    analyses: Callable[..., Analysis], tmp_path: Path
) -> None:
    path = write_curves(analyses(unfinished=["k2", "k3", "kda", "again"]), tmp_path / "curves.csv")
    with path.open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["arm"] for row in written[::2]] == ["k2", "k3", "kda", "again"]
    assert {row["refused"] for row in written} == {"no run of this arm finished"}


def test_three_sizes_have_a_power_curve_and_a_reason_against_a_floor(analysis: Analysis) -> None:
    of_k3 = {row["form"]: row for row in rows(analysis) if row["arm"] == "k3"}
    assert of_k3["power"]["refused"] == ""
    assert of_k3["power"]["E"] == ""
    assert str(of_k3["power_floor"]["refused"]).startswith("power_floor: undetermined: 3 different compute values")
