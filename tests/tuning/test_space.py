"""What a study tries first, and which spaces are refused with what to write."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from k3ablate.config import InputError, Tree, read_yaml, write_yaml
from k3ablate.experiment import load
from k3ablate.search import Range, Tuning
from k3ablate.tuning.space import band, point, widened

DEMO = Path(__file__).parents[2] / "experiments" / "demo.yaml"
RATE = "training.optimizer.learning_rate"
RATES = {"low": 1.0e-3, "high": 1.0e-1}


def tuning(space: Mapping[str, Tree], **more: Tree) -> Tuning:
    return Tuning.model_validate({"sizes": ["xs"], "space": space, **more})


def refusal(tmp_path: Path, block: Tree, **changes: Tree) -> str:
    path = tmp_path / "changed.yaml"
    write_yaml({**read_yaml(DEMO), **changes, "tuning": block}, path)
    with pytest.raises(InputError) as caught:
        load(path)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["random", "quasi_random", "tpe"])
def test_points_are_a_function_of_seed_and_number_and_lie_in_the_range(kind: str) -> None:
    def first(seed: int, count: int) -> list[object]:
        block = tuning({RATE: RATES, "training.batch_size": {"choices": [4, 8]}}, sampler={"kind": kind, "seed": seed})
        return [point(block, number) for number in range(count)]

    assert first(0, 8) == first(0, 8)
    assert first(0, 8) != first(1, 8)
    assert first(0, 3) == first(0, 8)[:3]
    for one in first(0, 8):
        assert isinstance(one, dict)
        assert 1e-3 <= one[RATE] <= 1e-1
        assert one["training.batch_size"] in (4, 8)


def test_tpe_learns_after_its_first_trials() -> None:
    assert [point(tuning({RATE: RATES}), number) is None for number in (0, 7, 8, 11)] == [False, False, True, True]


def test_a_grid_has_its_ends_and_even_steps() -> None:
    block = tuning({RATE: RATES}, sampler={"kind": "grid"}, trials=5)
    values = [point(block, number)[RATE] for number in range(5)]  # type: ignore[index]
    assert values[0] == 1e-3
    assert values[-1] == 1e-1
    assert np.diff(np.log(values)) == pytest.approx(np.log(100) / 4, rel=1e-4)
    both = {RATE: {**RATES, "points": 2}, "training.batch_size": {"choices": [4, 8, 16]}}
    block = tuning(both, sampler={"kind": "grid"}, trials=6)
    assert len({tuple(point(block, number).values()) for number in range(6)}) == 6  # type: ignore[union-attr]


def test_widening_adds_half_the_width_on_one_side() -> None:
    one = Range(low=1, high=100)
    up, down = widened(one, is_upwards=True), widened(one, is_upwards=False)
    assert up.ends == (1, 1000)
    assert down.ends == (0.1, 100)
    assert band(one, up, 2) == pytest.approx([316.228, 1000])
    assert band(one, down, 2) == pytest.approx([0.316228, 0.1])
    assert widened(Range(low=0, high=0.2, scale="linear"), is_upwards=False).ends == (0, 0.2)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"space": {"training.optimizer.learning_rat": RATES}}, "did you mean 'learning_rate'?"),
        ({"space": {RATE: {"low": 1.0, "high": 0.1}}}, "this range is empty; write low < high"),
        ({"space": {RATE: {"low": 0.1, "high": 0.1}}}, "this range is empty; write low < high"),
        ({"space": {RATE: {"low": 0.0, "high": 0.1}}}, "touches or crosses zero; write scale: linear"),
        ({"space": {RATE: {"low": -1.0, "high": 0.1}}}, "touches or crosses zero; write scale: linear"),
        ({"space": {RATE: {"low": -1.0, "high": 0.1, "scale": "linear"}}}, f"{RATE} = -1.0"),
        ({"space": {"training.optimizer.beta1": {"low": 0.1, "high": 1.0, "scale": "linear"}}}, "beta1 = 1.0"),
        ({"space": {"training.batch_size": {"low": 4.5, "high": 8.0}}}, "batch_size = 4.5 lies in the range"),
        ({"space": {"training.batch_size": {"low": 4.5, "high": 8, "whole": True}}}, "write whole numbers"),
        ({"space": {RATE: {"choices": [0.1]}}}, "two or more"),
        ({"space": {RATE: {}}}, "write low and high"),
        ({"space": {"model.width": {"low": 8, "high": 16, "whole": True}}}, "comes from `sizes`"),
        ({"space": {"data.source": {"choices": [1, 2]}}}, "data.source = 1"),
        ({"space": {RATE: RATES}, "sizes": ["xl"]}, "no size 'xl'; write some of xs, s, m"),
        ({"space": {RATE: RATES}, "trials": 0}, "trials"),
        ({"space": {RATE: RATES}, "trials": 4}, "sampler.startup 8 is more than trials 4"),
        ({"space": {RATE: RATES}, "sampler": {"kind": "gird"}}, "write one of 'tpe'"),
        ({"space": {RATE: {**RATES, "points": 3}}, "sampler": {"kind": "grid"}}, "the grid has 3 points"),
        ({"space": {RATE: RATES, "training.optimizer": {"choices": [1, 2]}}}, "lies below training.optimizer"),
    ],
)
def test_a_space_that_cannot_be_is_refused_with_what_to_write(tmp_path: Path, block: Tree, told: str) -> None:
    message = refusal(tmp_path, {"sizes": ["xs"], **block})
    assert "tuning" in message
    assert told in message


def test_a_space_must_not_undo_what_an_arm_changes(tmp_path: Path) -> None:
    components = {"batch": {"paths": ["training.batch_size"], "levels": {"k2": {}, "k3": {"training.batch_size": 16}}}}
    block = {"sizes": ["xs"], "space": {"training.batch_size": {"choices": [4, 8]}}}
    message = refusal(tmp_path, block, components=components)
    assert "training.batch_size is all that arm +batch changes" in message


def test_a_range_of_whole_numbers_is_told_before_a_trial_tries_a_fraction(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"sizes": ["xs"], "space": {"training.batch_size": {"low": 4, "high": 16}}})
    assert "training.batch_size = 4.3" in message
    assert "takes whole numbers only; write whole: true" in message


def test_a_whole_range_that_an_arm_takes_only_in_part_is_told_to_be_choices(tmp_path: Path) -> None:
    baseline = {**read_yaml(DEMO)["baseline"], "set": {"training.batch_size": 8, "training.micro_batch_size": 4}}
    block = {"sizes": ["xs"], "space": {"training.batch_size": {"low": 4, "high": 16, "whole": True}}}
    message = refusal(tmp_path, block, baseline=baseline)
    assert "training.batch_size = 5" in message
    assert "or write choices" in message


@pytest.mark.parametrize(
    ("path", "values", "reason"),
    [
        ("training.context", [32, 64], "measured at this context"),
        ("training.validation_tokens", [1024, 2048], "measured on other text"),
        ("training.precision", ["float32", "bfloat16"], "is computed in it"),
        ("training.divergence_loss", [10.0, 20.0], "which trials count"),
        ("data.tokenizer.kind", ["bytes", "bpe"], "cut into other tokens"),
        ("data.source.validation", ["asyncio", "email"], "measured on other text"),
    ],
)
def test_what_the_loss_is_measured_on_or_with_is_no_path_of_a_space(
    tmp_path: Path, path: str, values: list[Tree], reason: str
) -> None:
    message = refusal(tmp_path, {"sizes": ["xs"], "space": {path: {"choices": values}}})
    assert f"tuning.space: {path}: " in message
    assert reason in message
    assert "Input should be" not in message


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"space": {RATE: {"low": float("nan"), "high": 0.1}}}, f"tuning.space.{RATE}.low: found nan; "),
        ({"space": {RATE: {"low": 0.1, "high": float("inf")}}}, f"tuning.space.{RATE}.high: found inf; "),
        ({"space": {RATE: {"choices": [0.1, float("inf")]}}}, f"tuning.space.{RATE}.choices: found [0.1, inf]; "),
        ({"space": {RATE: RATES}, "trials": float("inf")}, "tuning.trials: found inf; "),
        ({"space": {}}, "tuning.space: nothing to tune; write training.optimizer.learning_rate: {low"),
        ({"space": None}, "tuning.space: found None; nothing to tune; write"),
        ({"space": {RATE: RATES}, "sizes": []}, "tuning.sizes: found []; nothing to tune; write a proxy size"),
    ],
)
def test_numbers_that_are_none_and_an_empty_space_give_one_message_with_what_to_write(
    tmp_path: Path, block: Tree, told: str
) -> None:
    message = refusal(tmp_path, {"sizes": ["xs"], **block})
    assert told in message
    assert "write" in message
    assert "\n" not in message
    assert "should" not in message


def test_data_are_choices_because_each_is_a_corpus(tmp_path: Path) -> None:
    path = "data.source.rules.least_documented"
    message = refusal(tmp_path, {"sizes": ["xs"], "space": {path: {"low": 0.1, "high": 0.5}}})
    assert "each value is another corpus" in message
    assert "write choices" in message


@pytest.mark.parametrize("kind", ["tokens", "tokens_per_parameter"])
def test_tokens_per_parameter_are_tuned_at_equal_compute_only(tmp_path: Path, kind: str) -> None:
    budget = {"kind": kind, "tokens" if kind == "tokens" else "ratio": 20}
    block = {"sizes": ["xs"], "space": {"budgets.tokens_per_parameter": {"low": 5, "high": 80}}}
    message = refusal(tmp_path, block, budgets=[budget])
    assert f"size xs has a budget of kind {kind}, by which more tokens per parameter are more compute" in message
    assert "write budgets of kind flops" in message


@pytest.mark.parametrize("one", [{"low": -1, "high": 4, "scale": "linear"}, {"choices": ["a", "b"]}])
def test_tokens_per_parameter_are_numbers_above_0(tmp_path: Path, one: Tree) -> None:
    block = {"sizes": ["xs"], "space": {"budgets.tokens_per_parameter": one}}
    message = refusal(tmp_path, block, budgets=[{"kind": "flops", "flops": 1.0e9}])
    assert "write numbers above 0" in message
