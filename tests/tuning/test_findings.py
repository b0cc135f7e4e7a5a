"""From trials to optima, laws and files, and from files back to what an arm gets at a size."""

import math
from pathlib import Path

import numpy as np
import pytest

from k3ablate import verbs
from k3ablate.config import InputError, read_yaml, write_yaml
from k3ablate.experiment import load
from k3ablate.plan import expand
from k3ablate.search import QuasiRandom, Range, Scalar, Tuning
from k3ablate.tuned import Law, TunedArm, TunedPath, TunedSize, TunedValues, file_of, resolved
from k3ablate.tuning import findings
from k3ablate.tuning.laws import laws
from k3ablate.tuning.store import Ended, Trial

DEMO = Path(__file__).parents[2] / "experiments" / "demo.yaml"
RATE, BATCH = "training.optimizer.learning_rate", "training.batch_size"
SPACE = {RATE: Range(low=1e-3, high=1e-1)}


def trial(number: int, rate: float, best: float, batch: int | None = None, worse: float = 0.0) -> Trial:
    if rate > 9e-2:
        return Trial(number, {RATE: rate}, Ended.DIVERGED, None)
    values: dict[str, int | float] = {RATE: rate} | ({} if batch is None else {BATCH: batch})
    return Trial(number, values, Ended.FINISHED, 3 + worse + 0.1 * math.log(rate / best) ** 2)


def sweep(best: float) -> list[Trial]:
    return [trial(number, float(rate), best) for number, rate in enumerate(np.geomspace(1e-3, 1e-1, 9))]


def test_an_optimum_is_read_off_the_curve_and_diverged_trials_are_counted_not_fitted() -> None:
    found = findings.tuned_size(sweep(7e-3), SPACE, None, 1e12)
    assert found.paths[RATE].value == pytest.approx(7e-3, rel=1e-4)
    assert found.curve_loss == pytest.approx(3.0)
    assert found.trials == {"finished": 8, "diverged": 1}
    assert findings.edges(found) == {}


@pytest.mark.parametrize(("best", "edges"), [(2e-4, {RATE: False}), (3.0, {RATE: True})])
def test_an_optimum_beyond_the_range_is_at_an_edge_with_its_side(best: float, edges: dict[str, bool]) -> None:
    assert findings.edges(findings.tuned_size(sweep(best), SPACE, None, 1e12)) == edges


def test_a_study_in_which_everything_diverged_has_no_optimum_and_says_what_to_write() -> None:
    trials = [Trial(number, {RATE: 1e-2}, Ended.DIVERGED, None) for number in range(4)]
    assert not findings.has_loss(trials)
    told = findings.diverged(trials, SPACE)
    assert "all 4 trials diverged" in told
    assert f"write other values in tuning.space: smaller ones, e.g. {RATE}: {{low: 1e-05, high: 0.001}}" in told
    assert "other ones" in findings.diverged(trials, {BATCH: Range(choices=(4, 8))})
    assert findings.has_loss(sweep(7e-3))


@pytest.mark.parametrize(
    ("choices", "best", "told"),
    [
        ((4, 8, 16), 16, "the largest of the choices: write a further one above 16"),
        ((4, 8, 16), 4, "the smallest of the choices: write a further one below 4"),
        ((4, 8, 16), 8, ""),
        (("cosine", "linear"), "cosine", ""),
        ((True, False), False, ""),
        (("none", 1.0), "none", ""),
    ],
)
def test_only_the_outermost_of_numbers_is_at_an_edge_which_takes_a_further_choice(
    choices: tuple[Scalar, ...], best: Scalar, told: str
) -> None:
    trials = [Trial(number, {"path": one}, Ended.FINISHED, 3 + (one != best)) for number, one in enumerate(choices)]
    found = findings.tuned_size(trials, {"path": Range(choices=choices)}, None, 1e12)
    assert found.paths["path"].value == best
    assert found.paths["path"].is_at_edge is bool(told)
    assert told in found.paths["path"].note
    assert findings.edges(found) == {}


def test_a_curve_goes_through_the_trials_with_the_best_choices() -> None:
    rates = np.geomspace(2e-3, 5e-2, 8)
    trials = [
        trial(number, float(rate), 8e-3, batch, worse=0.5 * (batch == 4))
        for number, (rate, batch) in enumerate(zip(rates, [4, 8] * 4, strict=True))
    ]
    space = {**SPACE, BATCH: Range(choices=(4, 8, 16))}
    found = findings.tuned_size(trials, space, None, 1e12)
    assert found.paths[RATE].value == pytest.approx(8e-3, rel=1e-4)
    assert found.paths[BATCH].value == 8
    assert not found.paths[BATCH].is_at_edge


def size_at(flops: float, value: float, width: float = 1.1, is_from_curve: bool = True) -> TunedSize:
    path = TunedPath(value=value, low=value / width, high=value * width, is_from_curve=is_from_curve)
    return TunedSize(baseline_flops=flops, trials={"finished": 12}, best_loss=3, space=SPACE, paths={RATE: path})


def test_a_law_gives_back_the_power_law_it_is_made_from() -> None:
    sizes = {str(flops): size_at(flops, 0.3 * flops**-0.12) for flops in (1e10, 1e11, 1e12, 1e13)}
    law = laws(sizes)[RATE]
    assert law.exponent == pytest.approx(-0.12)
    assert law.at(1e14) == pytest.approx(0.3 * 1e14**-0.12)
    assert law.exponent_low is not None
    assert law.exponent_high is not None
    assert law.exponent_low < -0.12 < law.exponent_high
    assert (law.beyond(1e12), law.beyond(1e14)) == (1, pytest.approx(10))


def test_the_exponents_interval_contains_a_planted_one_in_95_percent_of_draws() -> None:
    generator, flops, error = np.random.default_rng(0), np.geomspace(1e10, 1e13, 4), 0.1
    width, hits = math.exp(1.959964 * error), 0
    for _ in range(1000):
        noise = error * generator.standard_normal(4)
        sizes = {
            str(index): size_at(float(one), float(0.3 * one**-0.12 * np.exp(moved)), width)
            for index, (one, moved) in enumerate(zip(flops, noise, strict=True))
        }
        law = laws(sizes)[RATE]
        assert law.exponent_low is not None
        assert law.exponent_high is not None
        hits += law.exponent_low <= -0.12 <= law.exponent_high
    assert 930 <= hits <= 990  # scatter that looks too large by chance widens some


@pytest.mark.parametrize("target", [1e9, 3e11, 1e16])
def test_a_laws_value_at_a_size_is_within_its_interval_in_95_percent_of_draws(target: float) -> None:
    generator, flops, errors = np.random.default_rng(1), np.geomspace(1e10, 1e13, 4), np.array([0.1, 0.02, 0.05, 0.3])
    hits = 0
    for _ in range(1000):
        noise = errors * generator.standard_normal(4)
        sizes = {
            str(index): size_at(float(one), float(0.3 * one**-0.12 * np.exp(moved)), math.exp(1.959964 * error))
            for index, (one, moved, error) in enumerate(zip(flops, noise, errors, strict=True))
        }
        interval = laws(sizes)[RATE].interval(target)
        assert interval is not None
        hits += interval[0] <= 0.3 * target**-0.12 <= interval[1]
    assert 930 <= hits <= 990


def test_a_laws_interval_is_that_of_weighted_least_squares() -> None:
    flops, errors = np.geomspace(1e10, 1e13, 4), np.array([0.1, 0.02, 0.05, 0.3])
    sizes = {
        str(index): size_at(float(one), float(0.3 * one**-0.12), math.exp(1.959964 * error))
        for index, (one, error) in enumerate(zip(flops, errors, strict=True))
    }
    design = np.stack([np.ones(4), np.log(flops)], axis=1) / errors[:, None]
    for target in (1e9, 3e11, 1e16):
        row = np.array([1, math.log(target)])
        error = math.sqrt(row @ np.linalg.inv(design.T @ design) @ row)
        truth = 0.3 * target**-0.12
        expected = (truth * math.exp(-1.959964 * error), truth * math.exp(1.959964 * error))
        assert laws(sizes)[RATE].interval(target) == pytest.approx(expected, rel=1e-5)


def test_a_law_takes_two_sizes_and_none_at_an_edge_and_through_two_it_has_no_interval() -> None:
    assert laws({"s": size_at(1e10, 0.01)}) == {}
    assert laws({"s": size_at(1e10, 0.01), "m": size_at(1e11, 0.005, is_from_curve=False)}) == {}
    law = laws({"s": size_at(1e10, 0.01), "m": size_at(1e11, 0.005)})[RATE]
    assert law.sizes == ("s", "m")
    assert law.exponent_low is None
    assert law.interval(1e12) is None


def test_a_law_that_is_too_steep_for_numbers_is_none() -> None:
    assert laws({"s": size_at(1e12, 0.001), "m": size_at(1.02e12, 0.1), "l": size_at(1.03e12, 0.9)}) == {}


def test_an_optimum_with_an_open_end_takes_no_part_in_a_law() -> None:
    half = size_at(1e11, 0.005)
    opened = half.paths[RATE].model_copy(update={"high": None})
    assert laws({"s": size_at(1e10, 0.01), "m": half.model_copy(update={"paths": {RATE: opened}})}) == {}


def tuned_arm(arm: str, **sizes: TunedSize) -> TunedArm:
    tuning = Tuning(sizes=("xs",), space=SPACE, sampler=QuasiRandom())
    return TunedArm(experiment="x", arm=arm, setting="0", corpus="c0ffee", seed=0, tuning=tuning, sizes=sizes)


def test_an_arm_gets_what_was_tuned_at_its_size_then_the_law_then_the_nearest_size() -> None:
    arm = tuned_arm("k2", s=size_at(1e10, 0.01), m=size_at(1e11, 0.005))
    law = laws(arm.sizes)
    values = TunedValues(experiment="x", tuned={"k2": arm}, laws={"k2": law})
    assert values.at("k2", "m", 1e11).values == {RATE: 0.005}
    assert values.at("k2", "m", 1e11).origins == {RATE: "tuned at m"}
    between = values.at("k2", "l", 10**10.5)
    assert between.values[RATE] == pytest.approx((0.01 * 0.005) ** 0.5, rel=1e-4)
    assert between.origins == {RATE: "law through s, m: no interval from two sizes"}
    beyond = values.at("k2", "l", 1e12)
    assert beyond.values[RATE] == pytest.approx(0.0025, rel=1e-4)
    assert "WARNING: 10 times beyond what was tuned" in beyond.origins[RATE]
    without = TunedValues(experiment="x", tuned={"k2": arm}).at("k2", "l", 1e12)
    assert without.values == {RATE: 0.005}
    assert "nearest tuned size m" in without.origins[RATE]
    with pytest.raises(InputError, match=r"no values for arm k3, only for k2; `k3ablate tune x`"):
        values.at("k3", "m", 1e11)


def test_a_value_of_a_law_is_shown_with_its_interval_at_that_size() -> None:
    arm = tuned_arm("k2", **{str(flops): size_at(flops, 0.3 * flops**-0.12) for flops in (1e10, 1e11, 1e12)})
    law = laws(arm.sizes)[RATE]
    interval = law.interval(1e13)
    assert interval is not None
    assert interval[0] < law.at(1e13) < interval[1]
    origin = TunedValues(experiment="x", tuned={"k2": arm}, laws={"k2": {RATE: law}}).at("k2", "l", 1e13).origins[RATE]
    assert f": 95 percent {interval[0]:.4g} to {interval[1]:.4g}; WARNING: 10 times beyond" in origin


def test_a_size_of_the_same_name_with_another_budget_is_another_size() -> None:
    values = TunedValues(experiment="x", tuned={"k2": tuned_arm("k2", s=size_at(1e10, 0.01))})
    assert "nearest tuned size s, with 10 times its FLOPs" in values.at("k2", "s", 1e11).origins[RATE]


def test_files_come_back_as_they_were_written(tmp_path: Path) -> None:
    arms = {arm: tuned_arm(arm, s=size_at(1e10, 0.01), m=size_at(1e11, 0.005)) for arm in ("k2", "a/b", "+x=y")}
    by_arm = {arm: laws(tuned.sizes) for arm, tuned in arms.items()}
    for tuned in arms.values():
        findings.write_arm(tuned, findings.table([]), tmp_path)
    findings.write_laws(by_arm, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"k2.yaml", "k2.csv", "a%2Fb.yaml", "+x=y.yaml", "laws.yaml"}
    files = {path.stem: read_yaml(path) for path in tmp_path.glob("*.yaml")}
    values = TunedValues.model_validate(resolved("x", lambda name: files))
    assert dict(values.tuned) == arms
    assert values.laws == by_arm


def experiment_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuned: object, arms: tuple[str, ...]) -> Path:
    """The demo with two arms, taking values that were tuned at xs, in a working folder with its own recipes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes" / "tuned" / "x").mkdir(parents=True)
    for index, arm in enumerate(arms):
        one = tuned_arm(arm, xs=size_at(1.0, 0.01 * (index + 1)))
        write_yaml(one.tree(), tmp_path / "recipes" / "tuned" / "x" / file_of(arm))
    tree = read_yaml(DEMO)
    components = {"attention": tree["components"]["attention"]}
    path = tmp_path / "tuned.yaml"
    write_yaml({**tree, "name": "tuned", "components": components, "tuned": tuned}, path)
    return path


def test_each_arm_of_a_plan_is_at_its_own_values_and_the_twin_at_the_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = load(experiment_at(tmp_path, monkeypatch, "x", ("k2", "+attention")))
    rows = expand(experiment, lambda recipe: "c0ffee").rows
    rates = {row.label.arm: row.spec.training.optimizer.learning_rate for row in rows if row.spec is not None}
    assert rates == {"k2": 0.01, "+attention": 0.02, "a/a": 0.01}
    assert {"nearest tuned size xs" in row.tuned.origins[RATE] for row in rows} == {True}


def test_settings_that_are_shared_are_the_baselines_for_every_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = experiment_at(tmp_path, monkeypatch, {"from": "x", "arms": "baseline"}, ("k2", "+attention"))
    rows = expand(load(path), lambda recipe: "c0ffee").rows
    assert {row.spec.training.optimizer.learning_rate for row in rows if row.spec is not None} == {0.01}


def test_an_arm_that_was_not_tuned_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = experiment_at(tmp_path, monkeypatch, "x", ("k2",))
    with pytest.raises(InputError, match=r"no values for arm \+attention, only for k2"):
        expand(load(path), lambda recipe: "c0ffee")


@pytest.mark.parametrize(
    ("tuned", "told"),
    [("nowhere", "recipes/tuned/nowhere: nothing is tuned there; `k3ablate tune nowhere`"),
     ({"arms": "own"}, "write the name of a tuned experiment"), ({"from": "x", "arms": "all"}, "tuned.arms")],
)  # fmt: skip
def test_a_name_that_tunes_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tuned: object, told: str
) -> None:
    with pytest.raises(InputError, match="tuned") as caught:
        load(experiment_at(tmp_path, monkeypatch, tuned, ("k2",)))
    assert told in str(caught.value)


def test_a_law_needs_positive_numbers() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        Law(coefficient=0, exponent=-0.1, sizes=("s",), smallest=1, largest=2)


def test_check_and_plan_show_values_where_they_come_from_and_what_is_doubtful(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = experiment_at(tmp_path, monkeypatch, "x", ("k2", "+attention"))
    shown = verbs.check(str(path), tmp_path / "runs").text()
    assert "values tuned by x:" in shown
    assert f"k2 s: {RATE} 0.01 (of the nearest tuned size xs" in shown
    assert f"+attention s: {RATE} 0.02 (of the nearest" in shown
    assert "WARNING: k2, +attention: the configuration is not the one that was tuned under this name" in shown
    assert "unequal tuning" not in shown
    planned = verbs.plan(str(path), tmp_path / "runs", 1)
    assert any("0.02 (of the nearest" in note for note in planned.notes)
    uneven = tuned_arm("k2", xs=size_at(1.0, 0.01), s=size_at(2.0, 0.01))
    write_yaml(uneven.tree(), tmp_path / "recipes" / "tuned" / "x" / "k2.yaml")
    assert "WARNING: unequal tuning: trials by arm: k2 24, +attention 12" in verbs.check(str(path), tmp_path).text()
