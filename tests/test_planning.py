"""The verb `power` over planned tables: its answer in words and numbers, what it refuses."""

import json
import subprocess
import sys

import numpy as np
import pandas
import pytest

import k3ablate
from k3ablate.answers import as_json
from k3ablate.config import InputError
from k3ablate.planning import PowerAnswer, power, tells_noise

HEAVY = ("torch", "lightning", "mlflow", "datasets")


def planned(arms: tuple[str, ...] = ("k2", "+attention", "a/a")) -> pandas.DataFrame:
    return pandas.DataFrame([
        {"arm": arm, "size": f"s{size}", "seed": seed + 100 * (arm == "a/a"), "flops": 10.0 ** (17 + size),
         "attention": "k3" if arm == "+attention" else "k2"}
        for arm in arms for size in range(3) for seed in range(2)
    ])  # fmt: skip


@pytest.fixture(scope="module")
def found() -> PowerAnswer:
    return power(planned(), num_tables=40, num_draws=39, num_choosing=1, name="tiny")


def test_the_answer_says_what_was_planned_assumed_and_simulated(found: PowerAnswer) -> None:
    text = found.text()
    assert text.startswith("tiny: 18 runs of 3 arms, 3 sizes, 2 seeds; baseline k2")
    for piece in ("power at 1.16", "power at 1.25", "a/a (A/A)", "public speed-run", "40 tables", "39 bootstrap draws",
                  "there 1000", "curves: power", "(standard error)", "worth a factor of 1.012 in compute"):  # fmt: skip
        assert piece in text, piece
    assert "no A/A arm" not in text
    assert "no A/A arm" in power(planned(("k2", "+attention")), num_tables=20, num_draws=39, num_choosing=1).text()


def test_the_lines_of_a_plan_hold_the_same_numbers(found: PowerAnswer) -> None:
    first, second = found.short()
    (arm, _) = found.design.arms
    assert f"a multiplier of {arm.smallest:.3f}" in first
    assert "`k3ablate power tiny` simulates more" in first
    assert found.basis.source in second


def test_json_holds_the_same_numbers(found: PowerAnswer) -> None:
    read = json.loads(as_json(found))
    assert read["design"]["arms"][0]["smallest"] == found.design.arms[0].smallest
    assert read["multipliers"] == [1.16, 1.25]
    assert len(read["design"]["arms"][0]["power"]) == 2


def test_a_pilot_takes_the_place_of_assumptions() -> None:
    pilot = planned().assign(loss=lambda rows: 40 * rows["flops"] ** -0.08 * (1 + 0.01 * (rows["seed"] % 2)))
    assert tells_noise(pilot)
    assert not tells_noise(pilot[pilot["seed"] == 0])
    answer = power(planned(), pilot=pilot, num_tables=20, num_draws=39, num_choosing=1, pilot_name="pilot.csv")
    assert answer.basis.degrees_of_freedom == 9
    assert answer.basis.truth.seed_sd == pytest.approx(np.log(1.01) / np.sqrt(2), rel=1e-6)
    assert "(95 percent" in answer.text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"multipliers": [0.9]}, r"--multiplier 0.9: write a number above 1"),
        ({"num_tables": 5}, r"--simulations 5: write 20 or more"),
        ({"baseline": "k1"}, r"no arm 'k1' in the table; write one of k2"),
        ({"pilot": planned().assign(loss=2.0), "loss": 2.0}, r"state no other beside --pilot"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        power(planned(), **options)


def test_the_package_has_the_verb_without_a_training_library() -> None:
    assert k3ablate.power is power
    program = f"import sys, k3ablate.planning; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_pilot_is_of_the_kind_of_noise_that_the_plan_has() -> None:
    pilot = planned().assign(
        loss=lambda rows: 40 * rows["flops"] ** -0.08 * (1 + 0.01 * (rows["seed"] % 2)), varied="data_order"
    )
    found = power(planned().assign(varied="data_order"), pilot=pilot, num_tables=20, num_draws=39, num_choosing=1)
    assert "which vary data_order alone" in found.basis.source
    with pytest.raises(InputError, match="its seeds vary data_order and those of the plan both"):
        power(planned().assign(varied="both"), pilot=pilot, num_tables=20, num_draws=39, num_choosing=1)
