"""What a space may cost at its proxy sizes: every trial within 5 percent of its budget, told before any is trained."""

import re
from pathlib import Path

import pytest

from k3ablate.config import InputError, Tree, read_yaml, write_yaml
from k3ablate.experiment import Experiment, distinct_arms, load, setting
from k3ablate.plan import points, rows_at
from k3ablate.search import RATIO
from k3ablate.tuned import Taken
from k3ablate.tuning.costs import LARGEST_EXCESS, check_costs

DEMO = Path(__file__).parents[2] / "experiments" / "demo.yaml"
CONTEXT = 128  # of the demo
TOKENS = {"kind": "tokens", "tokens": 100_000}
FLOPS = {"kind": "flops", "flops": 2.0e10}


def experiment(tmp_path: Path, space: Tree, budget: Tree = TOKENS, **changes: Tree) -> Experiment:
    path = tmp_path / "changed.yaml"
    tuning = {"sizes": ["s" if RATIO in space else "xs"], "space": space}
    write_yaml({**read_yaml(DEMO), "budgets": [budget], **changes, "tuning": tuning}, path)
    return load(path)


def refusal(*arguments: Tree, **changes: Tree) -> str:
    with pytest.raises(InputError) as caught:
        check_costs(experiment(*arguments, **changes))
    return str(caught.value)


def excess(batch: int, tokens: int = 100_000) -> float:
    step = batch * CONTEXT
    num_steps = next(count for count in range(1, tokens) if count * step >= tokens)
    return num_steps * step / tokens - 1


def test_the_smallest_batch_that_goes_beyond_the_budget_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, {"training.batch_size": {"low": 4, "high": 512, "whole": True}})
    found = re.search(r"size xs\): training.batch_size = (\d+): .*write high: (\d+) or less", message)
    assert found is not None
    first, largest = map(int, found.groups())
    assert excess(first) > LARGEST_EXCESS
    assert all(excess(batch) <= LARGEST_EXCESS for batch in range(4, largest + 1))
    assert largest == first - 1
    check_costs(experiment(tmp_path, {"training.batch_size": {"low": 4, "high": largest, "whole": True}}))


def test_choices_of_batches_are_judged_one_by_one(tmp_path: Path) -> None:
    assert excess(400) < LARGEST_EXCESS
    check_costs(experiment(tmp_path, {"training.batch_size": {"choices": [8, 400]}}))
    message = refusal(tmp_path, {"training.batch_size": {"choices": [8, 300, 400]}})
    assert "training.batch_size = 300" in message
    assert f"{excess(300):.0%} more than the budget of 100,000" in message
    assert "write smaller choices" in message


def test_a_warm_up_longer_than_the_run_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    baseline = {**read_yaml(DEMO)["baseline"], "set": {"training.schedule.warmup_fraction": None,
                                                       "training.schedule.warmup_steps": 2}}  # fmt: skip
    space = {"training.schedule.warmup_steps": {"low": 2, "high": 200, "whole": True}}
    message = refusal(tmp_path, space, baseline=baseline)
    assert "training.schedule.warmup_steps = 200" in message
    assert "the run has 98 steps" in message


EXPERTS = {"model.feed_forward.main.expert_width": {"choices": [2048, 8192]}}


def test_a_model_that_costs_more_is_refused_where_nothing_pays_for_it(tmp_path: Path) -> None:
    message = refusal(tmp_path, EXPERTS, match="none")
    assert "expert_width = 8192: costs" in message
    assert "write match: flops_per_token, or budgets of kind flops" in message
    check_costs(experiment(tmp_path, EXPERTS))
    check_costs(experiment(tmp_path, EXPERTS, FLOPS, match="none"))


def test_every_trial_of_the_ratio_spends_the_same_and_has_its_ratio(tmp_path: Path) -> None:
    found = experiment(tmp_path, {RATIO: {"low": 0.2, "high": 2}}, FLOPS)
    check_costs(found)
    (point,) = (point for point in points(found) if point.name == "s")
    for arm in distinct_arms(found):
        widths = []
        for ratio in (0.2, 0.5, 1.0, 2.0):
            (row, _) = rows_at(found, arm, setting(found, arm), Taken({RATIO: ratio}, {}), point, "c0ffee")
            assert row.spec is not None
            assert row.flops == pytest.approx(2e10, rel=LARGEST_EXCESS)
            assert row.flops == 3 * row.counts.flops_per_token * row.tokens
            assert row.tokens / row.counts.active_params == pytest.approx(ratio, rel=0.15)
            widths.append(row.spec.model.width)
        assert widths == sorted(set(widths), reverse=True)


@pytest.mark.parametrize(
    ("high", "told"),
    [
        (20.0, "take a width beyond"),
        (6.0, "the nearest width may miss them"),
    ],
)
def test_a_ratio_that_no_width_gives_is_refused(tmp_path: Path, high: float, told: str) -> None:
    message = refusal(tmp_path, {RATIO: {"low": 0.5, "high": high}}, FLOPS)
    assert f"{RATIO} = {high}" in message
    assert told in message


def test_a_ratio_that_leaves_too_few_steps_is_refused(tmp_path: Path) -> None:
    message = refusal(tmp_path, {RATIO: {"low": 0.02, "high": 0.1}}, {"kind": "flops", "flops": 2.0e9})
    assert f"{RATIO} = 0.02: leaves" in message
    assert "whole optimizer steps take" in message
