"""Which tables are taken, which are refused, and that nothing is dropped in silence."""

from collections.abc import Callable

import numpy as np
import pandas
import pytest

from k3ablate.config import InputError
from k3ablate.fits.observations import check_arm, observations, usable

Tables = Callable[..., pandas.DataFrame]


def test_rows_become_points_and_levels(planted_table: Tables) -> None:
    seen = observations(planted_table())
    assert list(seen.points) == ["k2", "k3", "kda", "again"]
    assert [point.size for point in seen.points["k2"]] == ["s0", "s0", "s1", "s1", "s2", "s2"]
    assert seen.levels["k3"] == {"attention": "kda", "residual": "block"}
    assert seen.excluded == ()


def test_unfinished_runs_are_listed_with_their_reasons(planted_table: Tables, diverged: Tables) -> None:
    table = diverged(planted_table(), 7)
    table.loc[0, ["status", "reason"]] = ["out_of_time", "stopped after 2 h"]
    seen = observations(table)
    assert [(run.arm, run.size, run.status, run.reason) for run in seen.excluded] == [
        ("k2", "s0", "out_of_time", "stopped after 2 h"),
        ("k3", "s0", "diverged", "loss above 30 at step 12"),
    ]
    assert len(seen.points["k2"]) == len(seen.points["k3"]) == 5


def test_anybodys_columns_are_enough() -> None:
    table = pandas.DataFrame(
        {"arm": ["a"] * 3, "size": [1, 2, 3], "seed": 0, "loss": [3.0, 2.5, 2.2], "flops": [1, 2, 3]}
    )
    seen = observations(table)
    assert [point.size for point in seen.points["a"]] == ["1", "2", "3"]
    assert seen.levels == {"a": {}}


def test_free_text_columns_are_not_components(planted_table: Tables) -> None:
    table = planted_table()
    table["host"] = [f"node{index % 3}" for index in range(len(table))]
    table["loss:ood"] = 3.0
    assert set(observations(table).levels["k2"]) == {"attention", "residual"}


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("loss", 3, np.nan, r"k2 s1 seed 1: finished with loss nan; a positive, finite loss is needed"),
        ("loss", 3, 0.0, r"finished with loss 0.0"),
        ("loss", 3, -2.0, r"finished with loss -2.0"),
        ("loss", 3, np.inf, r"finished with loss inf"),
        ("flops", 0, 0.0, r"k2 s0 seed 0: finished with flops 0.0"),
        (
            "digest",
            1,
            "k2-0-0",
            r"digest k2-0-0 stands 2 times \(k2 s0 seed 0 and k2 s0 seed 1\); keep one row per run",
        ),
        ("seed", 1, 0, r"arm k2, size s0, seed 0 stands more than once"),
        ("corpus", 5, "other", r"2 values of corpus \(c0ffee, other\); losses of more than one corpus do not compare"),
        ("validation", 5, "ood", r"2 values of validation \(ood, validation\)"),
        (
            "status",
            2,
            "crashed",
            r"row 3 of the data: status 'crashed'; write one of diverged, failed, finished, out_of_time, or",
        ),
        ("arm", 4, None, r"row 5 of the data: no arm"),
        ("seed", 4, 0.5, r"row 5 of the data: seed 0.5; write a whole number"),
    ],
)
def test_refused_tables(planted_table: Tables, column: str, row: int, value: object, message: str) -> None:
    table = planted_table().astype({"seed": float})
    table.loc[row, column] = value  # type: ignore[call-overload]
    with pytest.raises(InputError, match=message):
        observations(table)


@pytest.mark.parametrize("column", ["metric", "unit", "loss_unit", "units_of_flops", "flops_convention"])
def test_columns_that_hold_one_value_or_do_not_compare(planted_table: Tables, column: str) -> None:
    table = planted_table()
    assert observations(table.assign(**{column: "one"})).excluded == ()
    table[column] = ["one"] * (len(table) - 1) + ["other"]
    message = rf"2 values of {column} \(one, other\).*keep the rows of one \(--where {column}=one\)"
    with pytest.raises(InputError, match=message):
        observations(table)


@pytest.mark.parametrize(
    "column",
    ["validation_set", "val_set", "eval_set", "eval_dataset", "evaluation_set", "validation_data", "tokenizer",
     "vocabulary", "Val-Set", "Evaluation Set", "valSet", "TOKENISER", "vocab", "held-out set", "test_set_name"],
)  # fmt: skip
@pytest.mark.parametrize("labels", [("a", "b"), (1, 2)])
def test_mixed_validation_sets_and_tokenizers_are_refused_under_any_usual_name(
    planted_table: Tables, column: str, labels: tuple[object, object]
) -> None:
    table = planted_table()
    assert observations(table.assign(**{column: labels[0]})).excluded == ()
    table[column] = [labels[index % 2] for index in range(len(table))]
    rule = f"'{column}={labels[0]}'" if " " in column else f"{column}={labels[0]}"
    with pytest.raises(InputError, match=rf"2 values of {column} .*do not compare.*\(--where {rule}\)"):
        observations(table)


def test_losses_and_counts_beside_them_are_no_validation_set(planted_table: Tables) -> None:
    table = planted_table()
    counts = {name: range(len(table)) for name in ("val_tokens", "eval_steps", "vocab_size")}
    losses = dict.fromkeys(("val_loss", "eval", "validation_set", "test_data"), table["loss"])
    assert observations(table.assign(**counts, **losses)).excluded == ()


def test_numbers_are_no_labels(planted_table: Tables) -> None:
    """Somebody's hidden units are no unit, and their column of validation losses is no validation set."""
    table = planted_table()
    assert observations(table.assign(hidden_units=range(len(table)), metric=table["loss"])).excluded == ()


def test_numbers_of_any_form_are_checked_under_the_tables_own_names(planted_table: Tables) -> None:
    table = planted_table()
    found = usable(table, ("loss", "active_params", "tokens"))
    assert found.finished["tokens"].dtype == np.float64
    assert found.arms == ("k2", "k3", "kda", "again")
    table["tokens"] = table["tokens"].astype(float)
    table.loc[9, "tokens"] = np.nan
    with pytest.raises(
        InputError, match=r"row 10 of the data: .* with D nan; .* number in the tokens column D .*--where"
    ):
        usable(table, ("loss", "tokens"), {"tokens": "D"})
    with pytest.raises(InputError, match="no column N, D; it has"):
        usable(table.drop(columns=["tokens", "active_params"]), ("active_params", "tokens"),
               {"tokens": "D", "active_params": "N"})  # fmt: skip


def test_spaces_around_an_arm_are_no_part_of_its_name(planted_table: Tables) -> None:
    table = planted_table()
    spaced = table.assign(arm=[f" {arm} " if index % 2 else arm for index, arm in enumerate(table["arm"])])
    assert observations(spaced) == observations(table)
    with pytest.raises(InputError, match="row 1 of the data: no arm"):
        observations(table.assign(arm=" "))


def test_missing_columns_and_rows_are_refused(planted_table: Tables) -> None:
    table = planted_table()
    with pytest.raises(InputError, match="no column seed, flops; it has digest, experiment"):
        observations(table.drop(columns=["seed", "flops"]))
    with pytest.raises(InputError, match="table: no rows"):
        observations(table.iloc[:0])


def test_a_table_without_a_finished_run_keeps_its_arms_and_every_reason(planted_table: Tables) -> None:
    table = planted_table().assign(status="diverged", reason="NaN at step 3", loss=np.nan, flops=np.nan)
    seen = observations(table)
    assert seen.points == {"k2": (), "k3": (), "kda": (), "again": ()}
    assert seen.levels["k3"] == {"attention": "kda", "residual": "block"}
    assert len(seen.excluded) == len(table)
    assert {(run.status, run.reason) for run in seen.excluded} == {("diverged", "NaN at step 3")}


def test_unknown_baseline_is_refused_with_the_nearest_arm() -> None:
    with pytest.raises(InputError, match=r"no arm 'k22' in the table; did you mean 'k2'\? write one of k2, k3"):
        check_arm("k22", {"k2": 0, "k3": 0})


@pytest.mark.parametrize("column", ["validation", "corpus", "metric", "unit"])
@pytest.mark.parametrize("labels", [(1, 2), (1.0, 2.0), (True, False)])
def test_labels_may_be_numbers(planted_table: Tables, column: str, labels: tuple[object, object]) -> None:
    table = planted_table()
    table[column] = [labels[index % 2] for index in range(len(table))]
    with pytest.raises(InputError, match=f"2 values of {column} "):
        observations(table)


@pytest.mark.parametrize("column", ["validation", "corpus", "metric", "unit", "loss_unit"])
@pytest.mark.parametrize("empty", [None, np.nan, "", " "])
def test_a_label_on_some_rows_only_tells_nothing_of_the_others(
    planted_table: Tables, column: str, empty: object
) -> None:
    table = planted_table()
    table[column] = pandas.Series(["one", *[empty] * (len(table) - 1)], dtype=object)
    message = (
        rf"row 2 of the data: no {column}, which is one on others .{len(table) - 1} of {len(table)} fin.*{column}=one"
    )
    with pytest.raises(InputError, match=message):
        observations(table)
    assert observations(table.assign(**{column: empty})).excluded == ()
    unfinished = table.assign(status=["finished", *["failed"] * (len(table) - 1)])
    assert len(observations(unfinished).points["k2"]) == 1


def test_at_most_six_rows_of_a_digest_are_named(planted_table: Tables) -> None:
    with pytest.raises(InputError, match="digest a stands ") as caught:
        observations(planted_table().assign(digest="a"))
    assert str(caught.value).count(" seed ") == 6
    assert "...)" in str(caught.value)


def test_rows_of_an_arm_have_one_order_whatever_the_table_has(planted_table: Tables, diverged: Tables) -> None:
    table = diverged(diverged(planted_table(), 7), 9)
    seen, other = observations(table), observations(table.sample(frac=1, random_state=1))
    assert seen.points == other.points
    assert list(seen.by_name().points) == list(other.by_name().points) == sorted(seen.points)
    assert seen.excluded == other.excluded
    assert len(seen.excluded) == 2


def test_runs_of_several_corpora_compare_where_they_share_a_validation_set(planted_table: Tables) -> None:
    """As data recipes make them; a set that is not known to be the same is not taken for it."""
    frame = planted_table()
    frame["corpus"] = np.where(frame["arm"] == frame["arm"].iloc[0], "raw", "curated")
    assert frame["corpus"].nunique() == 2
    assert observations(frame.assign(validation_content="c0ffee")).points.keys() == set(frame["arm"])
    for contents in (None, frame["corpus"], ["c0ffee"] * (len(frame) - 1) + [None]):
        with pytest.raises(InputError, match=r"2 values of corpus \(curated, raw\); losses of more than one corpus"):
            observations(frame.assign(validation_content=contents))
