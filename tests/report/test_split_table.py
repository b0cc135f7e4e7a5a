"""Printed splits: what is printed adds up, intervals that contain 1 say so, gaps in the design are named."""

import csv
import io
import itertools
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3ablate.fits.attribution import split
from k3ablate.fits.coalitions import Design, design
from k3ablate.fits.forms import Array
from k3ablate.fits.split import Coalition, effect
from k3ablate.fits.split_analysis import AnalysedSplit, Check
from k3ablate.report import markdown
from k3ablate.report.sheet import render_csv
from k3ablate.report.split_notes import cell
from k3ablate.report.split_table import render_text, sheet, write_split
from k3ablate.report.style import places_of, signed_decimals

COMPONENTS = ("attention", "residual", "balancing")
FULL = "attention+residual+balancing"


def table(*arms: tuple[str, ...]) -> dict[str, dict[str, str]]:
    return {"+".join(changed) or "k2": dict.fromkeys(changed, "k3") for changed in arms}


FACTORIAL = table(*(arm for size in range(4) for arm in itertools.combinations(COMPONENTS, size)))
ONE_AT_A_TIME = table((), *((name,) for name in COMPONENTS), COMPONENTS)


def gains(planned: Design, seed: int = 0) -> dict[Coalition, Array]:
    """ln m at random but for balancing, which brings nothing, with narrow draws."""
    generator = np.random.default_rng(seed)
    attention, residual = generator.uniform(0.1, 0.9, size=2)
    values = {}
    for coalition in planned.arms:
        value = attention * ("attention=k3" in coalition) + residual * ("residual=k3" in coalition)
        values[coalition] = value + np.concatenate([[0.0], 1e-3 * generator.normal(size=40) * bool(coalition)])
    return values


def analysed(changed: Mapping[str, Mapping[str, str]], seed: int = 0, claimed: float | None = None) -> AnalysedSplit:
    planned = design(changed, "k2")
    again = effect(np.concatenate([[0.01], np.linspace(-0.1, 0.1, 41)]))
    return AnalysedSplit(
        baseline="k2", form="power", form_reason="power, as asked for", elsewhere="untested", loss=2.5, compute=3e18,
        beyond={"k2": 1.0, "attention": 1.4}, split=split(planned, gains(planned, seed), {}, claimed),
        other_targets=(), checks=(Check("a/a", "k2", again, contains_one=True),), warnings=("warning of a curve",),
    )  # fmt: skip


def printed(text: str, column: str) -> dict[str, Decimal]:
    """Row -> number under the heading `column`, as it stands on the terminal."""
    lines = text.split("\n\n")[1].splitlines()
    start = lines[0].index(column)
    end = next((i for i in range(start, len(lines[1])) if lines[1][i] == " "), len(lines[1]))
    cells = {line[: lines[1].index(" ")].strip(): line[start:end].strip() for line in lines[2:]}
    return {name: Decimal(text.removesuffix(" %")) for name, text in cells.items() if text not in ("", "-")}


@pytest.mark.parametrize("changed", [FACTORIAL, ONE_AT_A_TIME], ids=["factorial", "one at a time"])
@pytest.mark.parametrize("claimed", [None, 2.5])
@pytest.mark.parametrize("seed", range(5))
def test_printed_logarithms_and_shares_add_up_to_the_last_digit(
    changed: dict[str, dict[str, str]], claimed: float | None, seed: int
) -> None:
    found = analysed(changed, seed, claimed)
    text = render_text(found, [])
    for column in ("ln m", "share"):
        numbers = printed(text, column)
        whole = numbers.pop("whole, claimed" if claimed else f"whole, {FULL}")
        numbers.pop(FULL, None)
        assert len(numbers) == len(found.split.parts)
        assert sum(numbers.values()) == whole


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=8), st.integers(1, 6))
def test_rounded_parts_add_up_and_none_moves_by_a_whole_unit(values: list[float], places: int) -> None:
    total = float(np.sum(values))
    shown = [Decimal(text) for text in signed_decimals(values, total, places)]
    assert sum(shown) == Decimal(f"{round(total * 10**places) / 10**places:.{places}f}")
    unit = Decimal(10) ** -places
    assert all(
        abs(number - Decimal(value)) < unit * Decimal("1.000001") for number, value in zip(shown, values, strict=True)
    )


def test_an_interval_that_contains_one_is_said_plainly() -> None:
    text = render_text(analysed(FACTORIAL), [])
    verdicts = {line.split()[0]: line for line in text.split("\n\n")[1].splitlines()[2:]}
    assert verdicts["balancing"].endswith("not told from 1")
    assert verdicts["attention"].endswith("gain")
    assert "interactions told from 1: none" in text


def test_a_remainder_that_is_only_rounding_reads_as_nothing_and_widens_no_column() -> None:
    """As many terms as arms leave nothing over, but sums of floats leave 1e-16 with an interval on one side of 0."""
    found = analysed(table((), ("attention",), ("residual",), ("attention", "residual")))
    noise = effect(np.concatenate([[1.2e-16], np.linspace(1e-17, 3e-16, 41)]))
    part = replace(found.split.parts[0], name="left over", effect=noise, share=0.0)
    lines = render_text(replace(found, split=replace(found.split, parts=(*found.split.parts, part))), ()).splitlines()
    (line,) = (line for line in lines if line.startswith("left over"))
    assert line.split()[2:] == ["-", "-", "1.00", "+0.0000", "+0.0", "%", "nothing"]
    assert (noise.told_from_one, noise.is_nothing) == (False, True)
    small = effect(np.concatenate([[1e-6], np.linspace(5e-7, 2e-6, 41)]))
    assert (small.told_from_one, small.is_nothing) == (True, False)


def test_where_it_is_read_and_what_checks_it_stand_with_the_numbers() -> None:
    text = render_text(analysed(FACTORIAL), ["FLOPs: counted"])
    assert "read at loss 2.5000 (compute 3e+18 of k2), extrapolated for 1 of 2 arms by up to 1.40x, from power" in text
    assert "read outside the measured range: attention 1.40x" in text
    assert "check: a/a has the levels of k2 and stands at 1.01" in text
    assert "warning of a curve" in text
    assert text.endswith("- FLOPs: counted")


def test_a_partial_design_prints_no_shapley_value_and_says_what_is_missing() -> None:
    text = render_text(analysed(ONE_AT_A_TIME), [])
    assert "Shapley (95 %)" not in text
    assert "no Shapley values, which need all 8 arms" in text
    assert "not in the table (3): attention + residual; attention + balancing; residual + balancing" in text
    assert "told only together: attention x residual, attention x balancing, residual x balancing" in text


def test_markdown_escapes_and_holds_the_same_numbers() -> None:
    text = markdown.render(sheet(analysed(FACTORIAL), ["a_b"], "experiment split_me"))
    assert "a\\_b" in text
    assert "| balancing |" in text
    assert "| verdict |" in text
    assert "not told from 1" in text
    assert text.endswith("Provenance: experiment split\\_me\n")


def test_the_csv_holds_every_number_at_full_precision() -> None:
    found = analysed(FACTORIAL, claimed=2.5)
    rows = list(csv.DictReader(io.StringIO(render_csv(sheet(found, [], "of a test").records))))
    parts = [row for row in rows if row["kind"] == "part (shapley)"]
    assert [row["name"] for row in parts] == [*COMPONENTS, "unattributed"]
    assert sum(float(row["log"]) for row in parts) == pytest.approx(np.log(2.5), abs=1e-12)
    assert sum(float(row["share"]) for row in parts) == pytest.approx(1.0, abs=1e-12)
    first = found.split.components[0].first_in
    assert first is not None
    assert float(rows[0]["factor"]) == first.factor
    assert {row["provenance"] for row in rows} == {"of a test"}
    assert {row["kind"] for row in rows} >= {"first in", "last in", "last in over first in", "interaction"}


def test_written_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    found = analysed(FACTORIAL)
    first = [path.read_bytes() for path in write_split(found, ["note"], tmp_path / "split")]
    assert first == [path.read_bytes() for path in write_split(found, ["note"], tmp_path / "split")]


@pytest.mark.parametrize(
    ("log", "half_width", "shown"),
    [
        (0.0, 0.3, "1.00 (0.74 to 1.35)"),
        (0.004, 0.003, "1.0040 (1.0010 to 1.0070)"),
        (0.1003, 0.1, "1.1055 (1.0003 to 1.2218)"),
        (3.0, 0.1, "20.1 (18.2 to 22.2)"),
    ],
)
def test_factors_show_two_digits_of_their_interval(log: float, half_width: float, shown: str) -> None:
    assert cell(effect(np.concatenate([[log], log + np.linspace(-half_width, half_width, 1001) / 0.95]))) == shown


def test_places_of_an_interval_without_width() -> None:
    assert (places_of(0.0, 2), places_of(float("inf"), 2), places_of(1e-9, 2)) == (2, 2, 6)
