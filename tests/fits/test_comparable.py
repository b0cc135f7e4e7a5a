"""Which logs may be compared: steps taken again, what is refused, what is left out, what stays beside the numbers."""

import numpy as np
import pandas
import pytest

from k3ablate.config import InputError
from k3ablate.fits.comparable import loss_column, read_groups
from k3ablate.fits.logged_runs import LogColumns, read_run


def log(num_steps: int = 200, every: int = 5, scale: float = 4.0, **facts: object) -> pandas.DataFrame:
    steps = np.arange(0, num_steps, every)
    tokens = (steps + 1) * 1024
    frame = pandas.DataFrame({"step": steps, "tokens": tokens, "flops": 6e6 * tokens, "seconds": 0.1 * (steps + 1.0)})
    return frame.assign(loss=1.5 + scale * (steps + 1.0) ** -0.25, **facts)


def read(frame: pandas.DataFrame, **columns: str):
    return read_run("run", frame, LogColumns(**columns), window=0.0)


def test_a_resumed_log_has_each_step_once_with_the_later_value() -> None:
    before, after = log(150), log(200)
    after = after[after["step"] >= 100].assign(loss=9.0, seconds=lambda rows: rows["seconds"] + 50)
    found = read(pandas.concat([before, after], ignore_index=True))
    tokens = found.curve.spent["tokens"]
    assert tokens.tolist() == log(200)["tokens"].tolist()
    assert (found.curve.loss_N[tokens > 100 * 1024] == 9.0).all()
    assert (found.curve.loss_N[tokens <= 100 * 1024] == log(100)["loss"]).all()
    assert found.num_dropped == 10


def test_a_resumed_log_on_other_steps_keeps_nothing_of_the_branch_that_was_lost() -> None:
    after = log(200)[lambda rows: rows["step"] >= 100].assign(step=lambda rows: rows["step"] + 2)
    after = after.assign(tokens=(after["step"] + 1) * 1024, flops=(after["step"] + 1) * 6e9)
    steps = read(pandas.concat([log(150), after], ignore_index=True)).curve.spent["tokens"] / 1024 - 1
    assert sorted(set(steps) & {105, 110, 145}) == []
    assert {95, 100, 102, 107} <= set(steps)


def test_rows_without_a_loss_are_left_out_and_counted() -> None:
    frame = log()
    frame.loc[frame["step"] % 2 == 1, "loss"] = np.nan
    found = read(frame)
    assert (len(found.curve.loss_N), found.num_dropped, found.status) == (20, 20, "")


def test_a_run_that_ends_without_finite_losses_has_diverged() -> None:
    frame = log()
    frame.loc[frame["step"] >= 150, "loss"] = [np.inf] + [np.nan] * 9
    found = read(frame)
    assert (found.status, found.reason) == ("diverged", "no finite loss from step 150 on")


def test_names_of_columns_may_be_anybodys() -> None:
    theirs = log().rename(columns={"step": "it", "tokens": "seen", "flops": "C", "loss": "nats", "seconds": "wall"})
    names = {"step": "it", "tokens": "seen", "compute": "C", "loss": "nats", "seconds": "wall"}
    found, ours = read(theirs, **names), read(log())
    assert {axis: values.tolist() for axis, values in found.curve.spent.items()} == {
        axis: values.tolist() for axis, values in ours.curve.spent.items()
    }
    assert found.curve.spent["hours"][0] == pytest.approx(0.1 / 3600)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (log().drop(columns="tokens"), r"run: no column 'tokens'.*--tokens: steps of unknown batches do not compare"),
        (log().drop(columns="loss"), "run: no column 'loss'.*--y"),
        (log().assign(loss="low"), "column loss does not hold numbers"),
        (log().assign(loss=np.nan), "no row has a finite loss"),
        (log().assign(tokens=1024), "tokens do not grow along the run.*rows in the order of logging"),
        (log().assign(step=lambda rows: rows["step"].where(rows["step"] != 50)), "row 10: step nan; write a number"),
    ],
)  # fmt: skip
def test_logs_that_do_not_serve_are_refused(frame: pandas.DataFrame, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(frame)


def groups(*frames: pandas.DataFrame, **columns: str):
    return read_groups({f"run{i}": [frame] for i, frame in enumerate(frames)}, LogColumns(**columns), window=0.0)


@pytest.mark.parametrize("column", ["corpus", "validation", "metric", "loss_unit", "tokens_unit", "context"])
def test_losses_of_different_kinds_do_not_compare(column: str) -> None:
    with pytest.raises(InputError, match=rf"2 values of {column} \(1, 2\); losses of more than one {column} do not"):
        groups(log(**{column: 1}), log(**{column: 2}))


def warm_up(num_steps: int, num_warm_up: int) -> pandas.DataFrame:
    frame = log(num_steps, every=1)
    return frame.assign(learning_rate=np.minimum(1.0, (frame["step"] + 1) / num_warm_up))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (log(20, every=1), "run1: too early to rank: 20 optimizer steps, and a curve counts from 50 on"),
        (log(1), "run1: too early to rank: 1 optimizer steps"),
        (warm_up(300, 400), r"run1: too early to rank: its learning rate still rises .*\(300 steps, 307,200 tokens\)"),
        (warm_up(300, 260), "run1: too early to rank: 40 optimizer steps after its warm-up"),
        (
            log(49, every=1).drop(columns="step"),
            "49 logged losses, which count as steps here .name the column .*--step",
        ),
    ],
)
def test_what_is_too_early_is_not_ranked(frame: pandas.DataFrame, message: str) -> None:
    with pytest.raises(InputError, match=message):
        groups(log(), frame)


def test_what_has_just_begun_to_count_is_ranked() -> None:
    (_, late), _ = groups(log(), warm_up(310, 260))
    assert late.runs[0].num_steps_after_warm_up == 50
    (_, few), _ = groups(log(), log(1000, every=250))
    assert few.runs[0].num_steps == 751


def test_diverged_runs_are_left_out_with_their_reason() -> None:
    frames = {"a": [log(seed=0)], "b": [log(seed=0), log(seed=1, status="diverged", reason="loss 31 at step 70")]}
    (_, group), (gone,) = read_groups(frames, LogColumns(), 0.0)
    assert group.seeds == [0]
    assert gone.text() == "b seed 1: diverged: loss 31 at step 70"
    with pytest.raises(InputError, match=r"b: every run diverged \(loss 31 at step 70\)"):
        read_groups(frames | {"b": frames["b"][1:]}, LogColumns(), 0.0)


def test_one_frame_may_hold_several_seeds_but_each_once() -> None:
    both = pandas.concat([log(seed=0), log(seed=1)], ignore_index=True)
    (first, _), _ = groups(both, log(seed=1))
    assert first.seeds == [0, 1]
    with pytest.raises(InputError, match="run0: seed 1 stands there twice"):
        read_groups({"run0": [both, log(seed=1)], "run1": [log()]}, LogColumns(), 0.0)


def cautions(*frames: pandas.DataFrame) -> str:
    return "\n".join(groups(*frames)[0][-1].cautions)


def test_budgets_batches_devices_and_unfinished_runs_are_cautions() -> None:
    assert cautions(log(budget=204_800), log(budget=204_800, status="finished")) == (
        "run1: finished after 98% of its 204,800 tokens"
    )
    assert cautions(log(200, every=1), log(200, every=1)) == ""
    other = cautions(log(200, every=1), log(400, every=1))
    assert "budgets differ (204,800 tokens of run0, 409,600 of run1)" in other
    assert "schedule is in another phase" in other
    assert "not finished after 50% of its 409,600 tokens" in cautions(log(), log(200, every=1, budget=409_600))
    doubled = log(200, every=1).assign(tokens=lambda rows: rows["tokens"] * 2)
    assert "batches of 1,024 to 2,048 tokens" in cautions(log(400, every=1), doubled)
    assert "different devices (cpu, gpu)" in cautions(log(device="cpu"), log(device="gpu"))


def test_hours_that_begin_again_are_not_compared_and_it_is_said() -> None:
    begun_again = log().assign(seconds=lambda rows: rows["seconds"].where(rows["step"] < 100, 1.0))
    (first, second), _ = groups(log(), begun_again)
    assert (first.has("hours"), second.has("hours"), second.has("flops")) == (True, False, True)
    assert "run1: hours do not grow along the run (row 20), so that they are not compared" in second.cautions


def test_validation_losses_are_taken_where_all_logged_them() -> None:
    both, training = log(validation_loss=3.0), log()
    assert loss_column([both, both]) == "validation_loss"
    assert loss_column([both, training]) == "loss"
