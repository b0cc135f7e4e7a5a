"""The evidence board: every claim beside the arm that changes that component alone, its verdict, and no more."""

import csv
import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas
import pytest

from k3ablate.fits.analysis import Analysis, analyse
from k3ablate.fits.solve import Interval
from k3ablate.fits.split_analysis import split_analysis
from k3ablate.report import html, latex, markdown
from k3ablate.report.board import Board, Entry, board, sheet
from k3ablate.report.evidence import claims
from k3ablate.report.sheet import render_csv
from k3ablate.report.split_notes import cell
from k3ablate.report.verdicts import RULES

COMPONENTS = ("attention", "residual", "feed_forward", "balancing")
GAINS = {"attention": 1.16, "residual": 1.25, "feed_forward": 1.3, "balancing": 0.8}


def planted(components: tuple[str, ...] = COMPONENTS, level: str = "k3", noise: float = 1e-4) -> Analysis:
    """Each component alone and all together, with the planted gains, five sizes, two seeds, and an A/A arm."""
    generator = np.random.default_rng(3)
    arms = {"k2": (), "k3": components, "a/a": ()} | {f"+{name}": (name,) for name in components}
    rows = [
        {"arm": arm, "size": f"s{size}", "seed": seed, "status": "finished", "reason": "",
         "flops": 10.0 ** (18 + size / 2),
         "loss": 30 * (np.prod([GAINS[name] for name in changed]) * 10.0 ** (18 + size / 2)) ** -0.06
         * np.exp(noise * generator.standard_normal())}
        | {name: level if name in changed else "k2" for name in components}
        for arm, changed in arms.items() for size in range(5) for seed in (0, 1)
    ]  # fmt: skip
    return analyse(pandas.DataFrame(rows), "k2", "power", np.random.default_rng(0), num_draws=200)


def changed(analysis: Analysis, arm: str, interval: Interval) -> Analysis:
    """The analysis with another interval of one arm."""
    found = analysis.arm(arm)
    assert found.multiplier is not None
    value = float(np.sqrt(interval.low * interval.high))
    other = replace(
        found, multiplier=replace(found.multiplier, value=value, interval=interval, beyond=1.0, warnings=())
    )
    return replace(analysis, arms=tuple(other if one.arm == arm else one for one in analysis.arms))


def by_name(found: Board) -> dict[str, Entry]:
    return {entry.name: entry for entry in found.entries}


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    analysis = planted()
    for arm, gain in GAINS.items():
        analysis = changed(analysis, f"+{arm}", Interval(gain / 1.02, gain * 1.02))
    return changed(changed(analysis, "k3", Interval(1.45, 1.55)), "a/a", Interval(0.99, 1.01))


def test_every_claim_stands_beside_its_arm_with_the_verdict_of_its_interval(analysis: Analysis) -> None:
    found = by_name(board(claims(), analysis))
    judged = {name: (entry.arm.arm if entry.arm else None, entry.judged.verdict) for name, entry in found.items()}
    assert judged == {
        "KDA hybrid": ("+attention", "consistent"),
        "gated MLA": (None, "not measured"),
        "Block AttnRes": ("+residual", "consistent"),
        "Stable LatentMoE": ("+feed_forward", "consistent"),
        "quantile balancing": ("+balancing", "contradicts at this scale"),
        "recipe": (None, "not measured"),
        "K2 to K3": ("k3", "cannot tell at this scale"),
    }
    assert found["K2 to K3"].judged.reason == "less than claimed, but the claim covers recipe too"


def test_an_a_a_interval_without_one_leaves_no_verdict(analysis: Analysis) -> None:
    broken = changed(analysis, "a/a", Interval(1.02, 1.05))
    verdicts = {entry.judged.verdict for entry in board(claims(), broken).entries}
    assert verdicts == {"cannot tell at this scale", "not measured"}
    notes = sheet(board(claims(), broken), "").notes
    assert "A/A: a/a does not contain 1 (1.02 to 1.05)" in notes


def test_without_runs_nothing_is_measured() -> None:
    found = board(claims(), None)
    assert {entry.judged.verdict for entry in found.entries} == {"not measured"}
    assert {entry.judged.reason for entry in found.entries} == {"no runs were given"}
    for text in (markdown.render(sheet(found, "p")), latex.render(sheet(found, "p")), html.page(sheet(found, "p"))):
        assert "Runs in no fit" not in text
        assert "this scale: runs of" not in text


def test_runs_without_a_finished_one_are_not_measured(analyses: Callable[..., Analysis]) -> None:
    analysis = analyses(unfinished=["k2", "k3", "kda", "again"])
    found = by_name(board(claims(), analysis))
    assert found["K2 to K3"].judged.verdict == "not measured"
    assert found["attention=kda"].judged.verdict == "no claim to judge"
    assert "again s0" not in markdown.render(sheet(board(claims(), analysis), "p"))
    assert "Runs in no fit: 24" in markdown.render(sheet(board(claims(), analysis), "p"))


@pytest.mark.parametrize(
    ("level", "name"), [("k3", "Block AttnRes"), ("block-8", "Block AttnRes"), ("full", "residual=full")]
)
def test_a_level_that_no_claim_is_about_is_listed_without_a_verdict(level: str, name: str) -> None:
    found = board(claims(), planted(("residual",), level))
    assert {entry.name for entry in found.entries if entry.arm and entry.arm.arm == "+residual"} == {name}
    verdict = by_name(found)[name].judged.verdict
    assert (verdict == "no claim to judge") == (level == "full")


def test_effects_of_the_split_stand_beside_first_in() -> None:
    analysis = planted(("attention", "residual"))
    split = split_analysis(analysis)
    found = by_name(board(claims(), analysis, split))
    (attention, residual) = split.split.components
    assert attention.last_in is not None
    assert (found["KDA hybrid"].effects, found["Block AttnRes"].effects) == (attention, residual)
    published = sheet(board(claims(), analysis, split), "p")
    row = next(cells for cells in published.grids[1].rows if cells[0] == "KDA hybrid")
    assert row[5:7] == (cell(attention.last_in), cell(attention.part))
    assert any(f"read at loss {split.loss:.4f}; part: shapley" in note for note in published.notes)


def test_the_board_tells_rules_scale_checks_and_the_condition(analysis: Analysis) -> None:
    text = markdown.render(sheet(board(claims(), analysis), "experiment demo"))
    plain = text.replace("\\", "").replace("&lt;", "<")
    for rule in RULES:
        assert rule in plain
    assert "this scale: runs of 1e+18 to 1e+20 FLOPs (0.012 to 1.2 PFLOP/s-days)" in plain
    assert "L < 100; K3 has 93: holds" in plain
    for who in ("ReplaySSM", "authors of Gated DeltaNet ", "authors of Gated Attention", "NVIDIA"):
        assert who in plain
    assert "| Block AttnRes | residual | Block Attention Residuals, against plain residual adds | 1.25 |" in plain
    assert "| nobody | self-cited |" in plain
    assert plain.endswith("Provenance: experiment demo\n")


def test_records_hold_every_digit(analysis: Analysis) -> None:
    found = board(claims(), analysis)
    rows = list(csv.DictReader(io.StringIO(render_csv(sheet(found, "p").records))))
    assert len(rows) == len(found.entries)
    read = analysis.arm("+residual").multiplier
    assert read is not None
    row = next(row for row in rows if row["claim"] == "Block AttnRes")
    numbers = [float(row[name]) for name in ("multiplier", "multiplier_low", "multiplier_high", "read_at_loss")]
    assert numbers == [read.value, read.interval.low, read.interval.high, read.loss]
    assert (row["claimed_factor"], row["grade"], row["verdict"]) == ("1.25", "self-cited", "consistent")


def test_one_number_that_does_not_hold_is_not_judged(analyses: Callable[..., Analysis]) -> None:
    analysis = analyses(form="shared_exponent", steeper=0.02)
    judged = by_name(board(claims(), analysis))["K2 to K3"].judged
    assert (judged.verdict, judged.reason) == ("cannot tell at this scale", "one number does not hold")
