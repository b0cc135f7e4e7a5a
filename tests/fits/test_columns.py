"""Anybody's column names, rows by rule, and the labels that a table of runs may lack."""

import pandas
import pytest

from k3ablate.config import InputError
from k3ablate.fits.columns import Columns, canonical


def theirs() -> pandas.DataFrame:
    return pandas.DataFrame({
        "model": ["plain", "plain", "new", "new"], "rung": ["s", "m", "s", "m"], "C": [1e18, 4e18, 1.1e18, 4.4e18],
        "val": [2.9, 2.6, 2.8, 2.5], "loss": [9.0, 9.0, 9.0, 9.0], "used": [1, 1, 1, 0],
        "kept": [True, True, False, True],
    })  # fmt: skip


NAMED = Columns(arm="model", size="rung", compute="C", loss="val")


def test_their_names_become_ours_and_their_columns_go() -> None:
    table, dropped = canonical(theirs(), NAMED)
    assert dropped == ()
    assert table["arm"].tolist() == ["plain", "plain", "new", "new"]
    assert table["loss"].tolist() == [2.9, 2.6, 2.8, 2.5]
    assert table["flops"].tolist() == [1e18, 4e18, 1.1e18, 4.4e18]
    assert set(table) == {"arm", "size", "seed", "flops", "loss", "used", "kept"}


def test_a_table_with_our_names_stays_as_it_is() -> None:
    table = pandas.DataFrame({"arm": ["a"], "size": ["s"], "seed": [3], "flops": [1.0], "loss": [2.0], "status": ["x"]})
    pandas.testing.assert_frame_equal(canonical(table, Columns())[0], table)


def test_spaces_around_an_arm_are_no_part_of_its_name() -> None:
    spaced = theirs().assign(model=["plain", " plain", "new ", "new"])
    pandas.testing.assert_frame_equal(canonical(spaced, NAMED)[0], canonical(theirs(), NAMED)[0])
    assert canonical(spaced, NAMED, ["model=new"])[0]["arm"].tolist() == ["new", "new"]


def test_a_column_that_stands_twice_is_refused() -> None:
    twice = pandas.concat([theirs(), theirs()[["val"]] + 1], axis=1)
    with pytest.raises(InputError, match="more than one column 'val'; give every column a name of its own"):
        canonical(twice, NAMED)


def test_one_column_may_hold_two_things() -> None:
    table, _ = canonical(pandas.DataFrame({"tokens": [1e9, 2e9], "loss": [3.0, 2.9]}), Columns(compute="tokens"))
    assert table["flops"].tolist() == table["tokens"].tolist() == [1e9, 2e9]


def test_labels_that_are_not_there_are_made_up() -> None:
    table, _ = canonical(pandas.DataFrame({"flops": [1e18, 2e18, 1e18], "loss": [3.0, 2.9, 3.1]}), Columns())
    assert table["arm"].tolist() == ["all"] * 3
    assert table["size"].tolist() == ["1e+18", "2e+18", "1e+18"]
    assert table["seed"].tolist() == [0, 0, 1]


def test_models_of_equal_compute_are_different_sizes() -> None:
    table = pandas.DataFrame({"N": [1, 2, 2], "D": [4, 2, 2], "loss": [3.0, 2.9, 2.8], "flops": [24.0, 24.0, 24.0]})
    labelled, _ = canonical(table, Columns(params="N", tokens="D"))
    assert labelled["size"].tolist() == ["24 1 4", "24 2 2", "24 2 2"]
    assert labelled["seed"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("seeds", [{}, {"seed": [0, 0, 0, 0, 1]}])
def test_runs_of_one_label_on_other_tokens_are_different_sizes(seeds: dict[str, list[int]]) -> None:
    """Not seeds of one size: their spread is no noise."""
    table = pandas.DataFrame({"size": ["s", "s", "m", "m", "m"], "tokens": [1e9, 2e9, 1e9, 2e9, 2e9],
                              "flops": [1.0, 2.0, 3.0, 6.0, 6.0],
                              "loss": [3.0, 2.9, 2.8, 2.7, 2.6], **seeds})  # fmt: skip
    labelled, _ = canonical(table, Columns())
    assert labelled["size"].tolist() == ["s 1000000000", "s 2000000000", "m 1000000000", "m 2000000000", "m 2000000000"]
    assert labelled["seed"].tolist() == [0, 0, 0, 0, 1]


def test_seeds_of_a_size_stay_together_where_one_stopped_early() -> None:
    table = pandas.DataFrame({"size": "s", "seed": [0, 1, 2], "tokens": [1e9, 1e9, 1e8], "loss": 3.0})
    assert canonical(table, Columns())[0]["size"].tolist() == ["s"] * 3


def test_a_rule_about_status_decides_which_runs_count() -> None:
    table = theirs().assign(status=["ok", "ok", "crashed", "ok"])
    assert "status" in canonical(table, NAMED)[0]
    kept, dropped = canonical(table, NAMED, ["status=ok"])
    assert kept.index.tolist() == [0, 1, 3]
    assert "status" not in kept
    assert dropped == ("status=ok: 1 of 4 rows left out",)


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        ("used=1", [0, 1, 2]),
        ("used == 1", [0, 1, 2]),
        ("used!=1", [3]),
        ("C<=1.1e18", [0, 2]),
        ("C<1.1e18", [0]),
        ("C >= 4e18", [1, 3]),
        ("val>2.6", [0, 2]),
        ("model=new", [2, 3]),
        ("model!=new", [0, 1]),
        ("kept=true", [0, 1, 3]),
        ("kept=False", [2]),
    ],
)
def test_rules_keep_rows_under_their_own_numbers(rule: str, kept: list[int]) -> None:
    table, dropped = canonical(theirs(), NAMED, [rule])
    assert table.index.tolist() == kept
    assert dropped == (f"{rule}: {4 - len(kept)} of 4 rows left out",)


def test_every_rule_counts_what_the_ones_before_left() -> None:
    assert canonical(theirs(), NAMED, ["model=new", "used=1"])[1] == (
        "model=new: 2 of 4 rows left out", "used=1: 1 of 2 rows left out",
    )  # fmt: skip


def test_an_empty_cell_obeys_only_a_rule_of_difference() -> None:
    table = theirs().assign(note=["late", None, "early", None], weight=[1.0, None, 2.0, None])
    assert canonical(table, NAMED, ["note!=late"])[0].index.tolist() == [1, 2, 3]
    assert canonical(table, NAMED, ["note=late"])[0].index.tolist() == [0]
    assert canonical(table, NAMED, ["weight!=1"])[0].index.tolist() == [1, 2, 3]
    assert canonical(table, NAMED, ["weight>=1"])[0].index.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("columns", "where", "message"),
    [
        (Columns(compute="useds"), [], r"no column 'useds' for compute; it has .*; did you mean 'used'\?"),
        (Columns(arm="experiment_of_theirs"), [], "no column 'experiment_of_theirs' for arm; it has model, rung, C"),
        (NAMED, ["used"], "--where used: write column=value"),
        (NAMED, ["used="], "--where used=: write column=value"),
        (NAMED, ["use=1"], r"--where use=1: no column 'use'; it has .*; did you mean 'used'\?"),
        (NAMED, ["used=yes"], "its column holds numbers and 'yes' is none; write a number"),
        (NAMED, ["model>new"], "column model holds text, which has no order; write model=value"),
        (NAMED, ["model=New"], "keeps none of 4 rows; model is plain, new"),
    ],
)
def test_refusals_teach(columns: Columns, where: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        canonical(theirs(), columns, where)


def test_a_table_without_a_loss_or_a_size_is_refused() -> None:
    with pytest.raises(InputError, match="no column 'loss' for loss; it has flops"):
        canonical(pandas.DataFrame({"flops": [1.0]}), Columns())
    with pytest.raises(InputError, match="no column tells the size of a run"):
        canonical(pandas.DataFrame({"loss": [1.0]}), Columns())


def test_without_seeds_a_copy_of_a_row_is_no_second_seed() -> None:
    table = pandas.DataFrame({"flops": [1.0, 2.0, 1.0], "val": [3.0, 2.9, 3.0], "loss": [1.0, 2.0, 1.0], "note": None})
    with pytest.raises(
        InputError,
        match=r"row 3 of the data repeats row 1 of the data in every column; remove it, or write a column seed",
    ):
        canonical(table, Columns(loss="val"))
    assert canonical(table.assign(loss=[1.0, 2.0, 3.0]), Columns(loss="val"))[0]["seed"].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (Columns(compute="C", loss="C"), "column 'C' is named for loss and for compute; name one column for each"),
        (Columns(compute="loss"), "column 'loss' is named for loss and for compute"),
        (Columns(params="C", tokens="C"), "column 'C' is named for params and for tokens"),
        (Columns(arm="val", loss="val"), "column 'val' is named for loss and for arm"),
    ],
)
def test_two_things_that_were_named_do_not_lie_in_one_column(columns: Columns, message: str) -> None:
    with pytest.raises(InputError, match=message):
        canonical(theirs(), columns)
