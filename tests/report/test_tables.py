"""The published table holds every number, every excluded run and the provenance, in the same bytes each time."""

import csv
import html
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from k3ablate.fits.analysis import Analysis
from k3ablate.fits.solve import Interval
from k3ablate.report import markdown, sheet
from k3ablate.report.notes import notes
from k3ablate.report.style import probability
from k3ablate.report.tables import HEADINGS, Provenance, render_text, write_tables
from k3ablate.report.tables import sheet as published


def render_markdown(analysis: Analysis, provenance: Provenance) -> str:
    return markdown.render(published(analysis, provenance))


def render_csv(analysis: Analysis, provenance: Provenance) -> str:
    return sheet.render_csv(published(analysis, provenance).records)


def rows_of(text: str) -> list[list[str]]:
    """Cells of the first table of a Markdown text."""
    lines = next(block for block in text.split("\n\n") if block.startswith("|")).splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_markdown_has_one_row_per_arm_with_its_numbers(analysis: Analysis, provenance: Provenance) -> None:
    header, _, *body = rows_of(render_markdown(analysis, provenance))
    assert header == list(HEADINGS)
    assert [cells[0] for cells in body] == ["k2", "k3", "kda", "again"]
    read = analysis.arm("k3").multiplier
    assert read is not None
    k3 = body[1]
    assert k3[1] == "attention=kda, residual=block"
    assert k3[2] == "6"
    assert k3[4] == f"{read.value:.2f} ({read.interval.low:.2f} to {read.interval.high:.2f})"
    assert (k3[5], k3[6]) == (f"{read.loss:.4f}", "measured")
    corrected = analysis.arm("k3").holm_p_value
    assert corrected is not None
    assert html.unescape(k3[7]) == f"{probability(read.p_value)} ({probability(corrected)})"
    assert "(" not in body[3][7]
    assert any(note.startswith("curve of k3: power: A ") for note in published(analysis, provenance).notes)
    assert body[0][1] == "baseline"
    assert body[3][1] == "none (A/A)"


def test_every_output_lists_the_diverged_run_and_its_reason(analysis: Analysis, provenance: Provenance) -> None:
    assert "| again | s2 | 6 | diverged | loss above 30 at step 12 |" in render_markdown(analysis, provenance)
    assert "again s2 seed 6: diverged: loss above 30 at step 12" in render_text(analysis, provenance)
    assert "s2 seed 6: diverged: loss above 30 at step 12" in render_csv(analysis, provenance)


def test_every_output_has_the_provenance(analysis: Analysis, provenance: Provenance) -> None:
    for render in (render_markdown, render_csv, render_text):
        flat = " ".join(render(analysis, provenance).split())
        assert "experiment demo (0123456789abcdef); corpus c0ffee" in flat
        assert "command: k3ablate demo" in flat
    dated = replace(provenance, date="2026-01-02")
    assert all("; newest record 2026-01-02" in text for text in (dated.line(), render_markdown(analysis, dated)))


def test_csv_keeps_every_digit(analysis: Analysis, provenance: Provenance) -> None:
    parsed = list(csv.DictReader(io.StringIO(render_csv(analysis, provenance))))
    read, largest = analysis.arm("k3").multiplier, analysis.arm("k3").largest
    assert read is not None
    assert largest is not None
    assert float(parsed[1]["multiplier"]) == read.value
    assert float(parsed[1]["multiplier_high"]) == read.interval.high
    assert float(parsed[1]["p_value"]) == read.p_value
    assert float(parsed[1]["holm_p_value"]) == analysis.arm("k3").holm_p_value
    assert float(parsed[1]["read_at_arm_flops"]) == read.arm_compute
    assert float(parsed[1]["loss"]) == largest.loss
    assert parsed[0]["multiplier"] == ""


def test_written_files_are_the_same_bytes_twice(
    analyses: Callable[..., Analysis], provenance: Provenance, tmp_path: Path
) -> None:
    first = write_tables(analyses(), provenance, tmp_path / "one" / "table")
    second = write_tables(analyses(), provenance, tmp_path / "two" / "table")
    assert [path.name for path in first] == ["table.md", "table.csv", "table.tex", "table.html"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_terminal_text_stays_narrow(analyses: Callable[..., Analysis], provenance: Provenance) -> None:
    long_name = "an-arm-with-a-very-long-name-" * 6
    text = render_text(analyses(renamed={"kda": long_name}), provenance)
    assert max(len(line) for line in text.splitlines()) < 120
    assert "\x1b" not in text


def test_markup_in_names_is_shown_and_not_run(analyses: Callable[..., Analysis], provenance: Provenance) -> None:
    name = "a|b</script>[bold]*x*"
    strange = analyses(renamed={"kda": name})
    text = render_markdown(strange, provenance)
    assert r"a\|b&lt;/script&gt;\[bold\]\*x\*" in text
    assert "</script>" not in text
    assert name in render_text(strange, provenance).replace("\n", "") or "[bold]" in render_text(strange, provenance)
    assert name in render_csv(strange, provenance)


def test_one_size_shows_losses_and_says_that_there_is_no_curve(
    analyses: Callable[..., Analysis], provenance: Provenance
) -> None:
    single = analyses(num_sizes=1)
    _, _, *body = rows_of(render_markdown(single, provenance))
    assert [cells[4] for cells in body] == ["1", "none", "none", "none"]
    assert all("(s0)" in cells[3] for cells in body)
    for output in (render_markdown(single, provenance), render_text(single, provenance), "\n".join(notes(single))):
        assert output.count("one size, no curve") == 1
    assert not any("curve of" in note for note in published(single, provenance).notes)


@pytest.mark.parametrize("num_sizes", [1, 3])
def test_an_arm_without_a_finished_run_says_so(
    analyses: Callable[..., Analysis], provenance: Provenance, num_sizes: int
) -> None:
    analysis = analyses(num_sizes=num_sizes, unfinished=["kda"])
    _, _, *body = rows_of(render_markdown(analysis, provenance))
    assert body[2] == ["kda", "attention=kda", "0", "-", "none", *["-"] * 4]
    assert "curve of kda: none: no run of this arm finished" in published(analysis, provenance).notes
    assert "kda: no multiplier: no run of this arm finished" in notes(analysis)
    assert "kda s0 seed 1: diverged: loss above 30 at step 12" in render_text(analysis, provenance)


def test_without_a_finished_run_every_arm_and_every_reason_is_listed(
    analyses: Callable[..., Analysis], provenance: Provenance
) -> None:
    analysis = analyses(unfinished=["k2", "k3", "kda", "again"])
    text = render_markdown(analysis, provenance)
    _, _, *body = rows_of(text)
    assert [cells[0] for cells in body] == ["k2", "k3", "kda", "again"]
    assert {tuple(cells[2:]) for cells in body} == {("0", "-", "none", "-", "-", "-", "-")}
    assert text.count("none: no run of this arm finished") == 4
    assert text.count("| diverged | loss above 30 at step 12 |") == 24
    assert "Runs in no fit: 24" in render_text(analysis, provenance)
    told = "curves: no run finished, so there is nothing to fit; every run is listed with its reason"
    assert [note for note in notes(analysis) if "finished" in note] == [told]
    parsed = list(csv.DictReader(io.StringIO(render_csv(analysis, provenance))))
    assert {(row["loss"], row["multiplier"], row["no_multiplier"]) for row in parsed} == {
        ("", "", "no run of this arm finished")
    }


def test_extreme_intervals_keep_digits_at_both_ends(analysis: Analysis, provenance: Provenance) -> None:
    read = analysis.arm("k3").multiplier
    assert read is not None
    wide = replace(analysis.arm("k3"), multiplier=replace(read, value=2.5, interval=Interval(3.24e-5, 1.452e176)))
    only = replace(analysis, arms=(analysis.arm("k2"), wide))
    _, _, *body = rows_of(render_markdown(only, provenance))
    assert body[1][4] == "2.50 (3.2e-05 to 1.45e+176)"
    assert any("k3 lies between 3.2e-05 and 1.45e+176" in note for note in notes(only))


@pytest.mark.parametrize(("high", "told"), [(2.9, False), (3.3, True)])
def test_wide_intervals_are_called_wide(analysis: Analysis, high: float, told: bool) -> None:
    """The rule: an upper end more than 1.2 times its lower end."""
    read = analysis.arm("k3").multiplier
    assert read is not None
    changed = replace(analysis.arm("k3"), multiplier=replace(read, interval=Interval(2.5, high)))
    only = replace(analysis, arms=(analysis.arm("k2"), changed))
    assert any("intervals are wide" in note and "k3 lies between 2.50 and" in note for note in notes(only)) == told


def test_extrapolation_and_warnings_stay_with_the_number(analysis: Analysis, provenance: Provenance) -> None:
    read = analysis.arm("k3").multiplier
    assert read is not None
    far = replace(read, beyond=3.2, warnings=("curve: E at a bound",), unreachable_share=0.08)
    changed = replace(analysis, arms=(analysis.arm("k2"), replace(analysis.arm("k3"), multiplier=far)))
    _, _, *body = rows_of(render_markdown(changed, provenance))
    assert body[1][6] == "extrapolated 3.20x"
    assert "k3: curve: E at a bound" in notes(changed)
    assert any("in 8.0% of the draws" in note for note in notes(changed))
