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
        ({"space": {"training.batch_size": {"low": 4.5, "high": 8.0}}}, "batch_size = 4.5"),
        ({"space": {"training.batch_size": {"low": 4.5, "high": 8, "whole": True}}}, "write whole numbers"),
        ({"space": {RATE: {"choices": [0.1]}}}, "two or more"),
        ({"space": {RATE: {}}}, "write low and high"),
        ({"space": {"model.width": {"low": 8, "high": 16, "whole": True}}}, "comes from `sizes`"),
        ({"space": {"data.source": {"choices": [1, 2]}}}, "paths begin with model or training"),
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
