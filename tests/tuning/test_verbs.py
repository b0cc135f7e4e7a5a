"""`tune` and `fairness` over planted losses: from an experiment to recipes, and from recipes to two multipliers."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas
import pytest

from k3ablate import fairness, optimising, verbs
from k3ablate.answers import number
from k3ablate.cli import main
from k3ablate.config import read_yaml
from k3ablate.experiment import load
from k3ablate.jobs.folders import prepare
from k3ablate.plan import PlanRow
from k3ablate.records import Evaluation, RunRecord, Status
from k3ablate.training.corpus import Corpus

RATE = "training.optimizer.learning_rate"
GAIN = 1.5  # of k3 at its own optimum, at every loss
BEST = {"k2": 1e-2, "k3": 3e-2}  # learning rates at 1e8 FLOPs
EXPONENT = -0.1
EXPERIMENT = """
name: planted
question: Is what was planted found?
expected: yes
stopping: none
exclusion: diverged runs are listed
baseline:
  model: kimi-k2
  data: {source: {kind: files, format: text, train: [train.txt], validation: [validation.txt]}}
  training: cpu
  set: {training.context: 32, training.batch_size: 4, training.validation_tokens: 64}
components:
  attention: {levels: {k2: {}, k3: {model.mixer: {from: kimi-k3}}}}
design: list
arms: [{name: k3, levels: {attention: k3}}]
names: {baseline: k2}
match: none
sizes:
  - {name: xs, width: 32, num_layers: 4, head_width: 16, num_active: 2}
  - {name: s, width: 48, num_layers: 4, head_width: 16, num_active: 2}
  - {name: m, width: 64, num_layers: 4, head_width: 16, num_active: 2}
  - {name: l, width: 96, num_layers: 4, head_width: 16, num_active: 2}
budgets: [{kind: tokens, tokens: 1280}]
seeds: [0, 1]
tuning:
  sizes: [xs, m]
  trials: 9
  sampler: {kind: tpe, startup: 7}
  space: {training.optimizer.learning_rate: {low: 1.0e-3, high: 2.0e-1}}
"""


class FakeCorpus(Corpus):
    """A corpus that is only asked for its name."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), None)  # type: ignore[arg-type]

    @property
    def digest(self) -> str:
        return "c0ffee"


def best_rate(arm: str, flops: float) -> float:
    return float(BEST[arm] * (flops / 1e8) ** EXPONENT)


def planted(row: PlanRow) -> RunRecord:
    """L = 1.7 + (m C / 1e6)^-0.3, times what the distance of the learning rate from its optimum costs."""
    assert row.spec is not None
    arm = "k3" if row.label.arm.startswith("k3") else "k2"
    rate = row.spec.training.optimizer.learning_rate
    noise = 1e-4 * math.sin(1e5 * rate) + 1e-4 * (1 if row.label.seed else -1)
    away = math.log(rate / best_rate(arm, row.flops))
    loss = (1.7 + ((GAIN if arm == "k3" else 1) * row.flops / 1e6) ** -0.3) * (1 + 0.01 * away**2 + noise)
    status = Status.DIVERGED if rate > 0.15 else Status.FINISHED
    return RunRecord(
        digest=row.label.digest,
        status=status,
        reason="" if status is Status.FINISHED else "too fast",
        evaluations={"validation": Evaluation(loss=loss, bits_per_byte=loss, num_tokens=64)}
        if status is Status.FINISHED
        else {},
        num_steps=10,
        tokens=row.tokens,
        flops=row.flops,
        flops_6nd=row.flops,
        active_params=row.counts.active_params,
        total_params=row.counts.total_params,
        wall_seconds=1.0,
        tokens_per_second=1.0,
        corpus="c0ffee",
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an experiment whose runs have the planted losses as soon as they are asked for."""

    def run_grid(rows: Sequence[PlanRow], root: Path, *arguments: object) -> dict[str, RunRecord]:
        found = {}
        for row in rows:
            assert row.spec is not None
            folder = prepare(root, row.spec)
            if folder.record() is None:
                folder.write_record(planted(row))
            found[row.label.digest] = planted(row)
        return found

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("K3ABLATE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("K3ABLATE_TRACKING", "spool")
    for module in (verbs, optimising):
        monkeypatch.setattr(module, "build", lambda recipe, folder, say: FakeCorpus())
        monkeypatch.setattr(module, "check_budget", lambda *arguments: None)
    monkeypatch.setattr(verbs, "known", lambda recipe, folder: FakeCorpus())
    for module in (optimising, fairness):
        monkeypatch.setattr(module.local, "run_grid", run_grid)
        monkeypatch.setattr(module, "warm_up", lambda: None)
    (tmp_path / "planted.yaml").write_text(EXPERIMENT)
    (tmp_path / "own.yaml").write_text(EXPERIMENT.replace("name: planted", "name: own\ntuned: planted"))
    return tmp_path


@pytest.fixture
def k3ablate(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run


def test_tune_writes_the_planted_optima_and_their_law(k3ablate, place: Path) -> None:
    code, out, err = k3ablate("tune", "planted.yaml", "--json")
    assert code == 0, err
    answer = json.loads(out)
    for arm in ("k2", "k3"):
        recipe = read_yaml(place / "recipes" / "tuned" / "planted" / f"{arm}.yaml")
        assert (recipe["corpus"], recipe["seed"], recipe["tuning"]["sampler"]["kind"]) == ("c0ffee", 0, "tpe")
        for size in ("xs", "m"):
            found = recipe["sizes"][size]["paths"][RATE]
            truth = best_rate(arm, recipe["sizes"][size]["baseline_flops"])
            assert found["is_from_curve"]
            assert found["value"] == pytest.approx(truth, rel=0.1 if arm == "k2" else 0.3)
            assert answer["arms"][arm][size]["paths"][RATE]["value"] == pytest.approx(found["value"])
        table = pandas.read_csv(place / "recipes" / "tuned" / "planted" / f"{arm}.csv")
        assert list(table.groupby("size").size()) == [9, 9]
        assert set(table[table[RATE] > 0.15]["status"]) <= {"diverged"}
        assert all((place / "runs" / digest / "record.json").exists() for digest in table["digest"])
    law = read_yaml(place / "recipes" / "tuned" / "planted" / "laws.yaml")["k2"][RATE]
    assert law["exponent"] == pytest.approx(EXPONENT, abs=0.05)
    assert law["exponent_low"] is None


def test_tuning_again_asks_for_nothing_and_writes_the_same(
    k3ablate, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    k3ablate("tune", "planted.yaml")
    files = {path: path.read_bytes() for path in (place / "recipes" / "tuned" / "planted").iterdir()}

    def refuse(*arguments: object) -> None:
        raise AssertionError("everything has been run")

    monkeypatch.setattr(optimising.local, "run_grid", refuse)
    assert k3ablate("tune", "planted.yaml")[0] == 0
    assert {path: path.read_bytes() for path in files} == files


def test_one_arm_at_one_size_leaves_the_others_open_and_more_trials_go_on(k3ablate, place: Path) -> None:
    code, out, _ = k3ablate("tune", "planted.yaml", "--arm", "k2", "--size", "xs")
    assert code == 0
    assert "k3 xs: 0 of 9 trials finished; not tuned yet" in out
    before = pandas.read_csv(place / "recipes" / "tuned" / "planted" / "k2.csv")
    k3ablate("tune", "planted.yaml", "--arm", "k2", "--size", "xs", "--trials", "11")
    after = pandas.read_csv(place / "recipes" / "tuned" / "planted" / "k2.csv")
    assert len(after) == 11
    pandas.testing.assert_frame_equal(after.iloc[:9], before)


def with_records(monkeypatch: pytest.MonkeyPatch, change: Callable[[PlanRow, RunRecord], RunRecord]) -> None:
    """Trials with other records than the planted ones."""
    whole = optimising.local.run_grid

    def changed(rows: Sequence[PlanRow], root: Path, *arguments: object) -> dict[str, RunRecord]:
        records = whole(rows, root)
        return {row.label.digest: change(row, records[row.label.digest]) for row in rows}

    monkeypatch.setattr(optimising.local, "run_grid", changed)


@pytest.mark.parametrize("extend", [[], ["--extend"]])
def test_an_arm_that_diverges_everywhere_keeps_no_other_arm_from_its_recipe(
    k3ablate, place: Path, monkeypatch: pytest.MonkeyPatch, extend: list[str]
) -> None:
    def diverge(row: PlanRow, record: RunRecord) -> RunRecord:
        if row.label.arm.startswith("k3") and row.label.size == "m":
            return record.model_copy(update={"status": Status.DIVERGED, "evaluations": {}, "reason": "nan"})
        return record

    with_records(monkeypatch, diverge)
    if extend:
        k3ablate("tune", "planted.yaml")
    code, out, _ = k3ablate("tune", "planted.yaml", *extend)
    assert code == 1
    assert "k3 m failed: all 9 trials diverged" in out
    assert f"{RATE}: {{low: 5e-06, high: 0.001}}" in out
    recipes = {arm: read_yaml(place / "recipes" / "tuned" / "planted" / f"{arm}.yaml") for arm in ("k2", "k3")}
    assert [list(recipe["sizes"]) for recipe in recipes.values()] == [["xs", "m"], ["xs"]]
    (row,) = json.loads(k3ablate("tune", "planted.yaml", "--json")[1])["problems"]
    assert (row["name"], row["status"]) == ("k3 m", "failed")


@pytest.mark.parametrize("arguments", [["--arm", "k4"], ["--size", "l"], ["--trials", "5"]])
def test_a_name_that_is_none_is_refused_before_a_corpus_is_built(
    k3ablate, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("nothing is to be built")

    monkeypatch.setattr(optimising, "build", refuse)
    assert k3ablate("tune", "planted.yaml", *arguments)[0] == 2


def test_the_outermost_of_choices_is_told_to_take_a_further_one_and_nothing_is_extended(k3ablate, place: Path) -> None:
    rates = "{low: 1.0e-3, high: 2.0e-1}"
    (place / "planted.yaml").write_text(EXPERIMENT.replace(rates, "{choices: [1.0e-3, 4.0e-3]}"))
    out = k3ablate("tune", "planted.yaml")[1]
    assert "AT THE EDGE, best trial: the largest of the choices: write a further one above 0.004" in out
    assert "--extend" not in out
    assert "no optimum lies at an edge that can be moved" in k3ablate("tune", "planted.yaml", "--extend")[1]
    code, out, _ = k3ablate("fairness", "own.yaml")
    assert code == 0
    assert "no claim" not in out
    assert f"k3 (xs {RATE} 0.004, m {RATE} 0.004); write it among the choices" in out


def test_an_optimum_at_the_edge_is_flagged_and_extended_for_every_arm(k3ablate, place: Path) -> None:
    text = EXPERIMENT.replace("{low: 1.0e-3, high: 2.0e-1}", "{low: 1.0e-3, high: 1.6e-2}").replace("[xs, m]", "[xs]")
    (place / "planted.yaml").write_text(text)
    _, out, _ = k3ablate("tune", "planted.yaml")
    assert "AT THE EDGE, `tune --extend` goes on" in out
    code, out, _ = k3ablate("tune", "planted.yaml", "--extend")
    assert code == 0
    assert f"xs: {RATE} widened upwards, for every arm" in out
    recipes = {arm: read_yaml(place / "recipes" / "tuned" / "planted" / f"{arm}.yaml") for arm in ("k2", "k3")}
    for recipe in recipes.values():
        assert sum(recipe["sizes"]["xs"]["trials"].values()) == 9 + 4
        assert recipe["sizes"]["xs"]["space"][RATE]["high"] == pytest.approx(0.064)
    flops = recipes["k3"]["sizes"]["xs"]["baseline_flops"]
    assert recipes["k3"]["sizes"]["xs"]["paths"][RATE]["value"] == pytest.approx(best_rate("k3", flops), rel=0.3)
    assert "no optimum lies at an edge" in k3ablate("tune", "planted.yaml", "--extend")[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--arm", "k4"], "--arm k4: not tuned here; write one of k2, k3"),
        (["--size", "l"], "--size l: not tuned here; write one of xs, m"),
        (["--trials", "0"], "--trials 0: write 1 or more"),
        (["--trials", "5"], "startup 7 is more than trials 5"),
    ],
)
def test_what_cannot_be_tuned_is_refused_with_exit_code_2(k3ablate, arguments: list[str], told: str) -> None:
    code, out, err = k3ablate("tune", "planted.yaml", *arguments)
    assert (code, out) == (2, "")
    assert told in err


def test_an_experiment_without_a_space_says_what_to_write(k3ablate, place: Path) -> None:
    (place / "planted.yaml").write_text(EXPERIMENT[: EXPERIMENT.index("tuning:")])
    code, _, err = k3ablate("tune", "planted.yaml")
    assert code == 2
    assert "nothing to tune; write e.g. tuning:" in err


def test_a_failed_trial_is_reported_with_exit_code_1_and_no_recipe(
    k3ablate, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = optimising.local.run_grid

    def fails(rows: Sequence[PlanRow], root: Path, *arguments: object) -> dict[str, RunRecord]:
        records = whole(rows, root)
        changes = {"status": Status.FAILED, "evaluations": {}, "reason": "ValueError: broken"}
        broken = [row.label.digest for row in rows if row.label.arm == "k3/trial-0"]
        return records | {name: records[name].model_copy(update=changes) for name in broken}

    monkeypatch.setattr(optimising.local, "run_grid", fails)
    code, out, _ = k3ablate("tune", "planted.yaml", "--size", "xs")
    assert code == 1
    assert "k3 xs trial 0 failed: ValueError: broken" in out
    assert not (place / "recipes" / "tuned" / "planted" / "k3.yaml").exists()
    assert (place / "recipes" / "tuned" / "planted" / "k2.yaml").exists()


def test_fairness_reads_the_gain_at_each_ones_own_optimum_and_less_with_shared_settings(k3ablate, place: Path) -> None:
    k3ablate("tune", "planted.yaml")
    code, out, _ = k3ablate("fairness", "own.yaml", "--json")
    assert code == 0
    arms = {arm["arm"]: arm for arm in json.loads(out)["arms"]}
    assert arms["k3"]["own"]["multiplier"] == pytest.approx(GAIN, rel=0.1)
    assert arms["k3"]["shared"]["multiplier"] < 0.9 * arms["k3"]["own"]["multiplier"]
    assert arms["k2"]["own"]["loss"] == arms["k2"]["shared"]["loss"]
    assert {arm["num_trials"] for arm in arms.values()} == {18}
    text = (place / "runs" / "results" / "own" / "fairness.md").read_text()
    assert "trials: 18 for every arm" in text
    written = pandas.read_csv(place / "runs" / "results" / "own" / "fairness.csv").set_index("arm")
    assert written.loc["k3", "own_multiplier"] == arms["k3"]["own"]["multiplier"]


def test_fairness_claims_nothing_in_the_row_of_an_arm_with_other_trials(k3ablate, place: Path) -> None:
    k3ablate("tune", "planted.yaml")
    k3ablate("tune", "planted.yaml", "--arm", "k3", "--size", "xs", "--trials", "11")
    code, out, _ = k3ablate("fairness", "own.yaml")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith(("k2 ", "k3 "))}
    assert "no claim: unequal trials (xs 11 against 9, m 0 against 9)" in rows["k3"]
    assert "no claim" not in rows["k2"]
    written = pandas.read_csv(place / "runs" / "results" / "own" / "fairness.csv").set_index("arm")
    assert written.loc["k3", "no_claim"] == "unequal trials (xs 11 against 9, m 0 against 9)"


def test_fairness_claims_nothing_where_an_optimum_is_at_the_edge_of_a_range(k3ablate, place: Path) -> None:
    narrow = EXPERIMENT.replace("{low: 1.0e-3, high: 2.0e-1}", "{low: 1.0e-3, high: 1.6e-2}")
    (place / "planted.yaml").write_text(narrow)
    k3ablate("tune", "planted.yaml")
    out = k3ablate("fairness", "own.yaml")[1]
    assert "no claim: optimum at the edge of its range" in out
    assert "`k3ablate tune planted --extend` widens it" in out


def test_an_experiment_may_take_its_own_values(k3ablate, place: Path) -> None:
    (place / "planted.yaml").write_text(EXPERIMENT.replace("name: planted", "name: planted\ntuned: planted"))
    code, _, err = k3ablate("plan", "planted.yaml")
    assert code == 2
    assert "nothing is tuned there; `k3ablate tune planted` does that" in err
    assert k3ablate("tune", "planted.yaml")[0] == 0
    out = k3ablate("plan", "planted.yaml")[1]
    assert "tuned at m" in out
    assert "law through xs, m" in out


def test_fairness_with_a_failed_run_says_so_with_exit_code_1(
    k3ablate, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    k3ablate("tune", "planted.yaml")
    whole = fairness.local.run_grid

    def fails(rows: Sequence[PlanRow], root: Path, *arguments: object) -> dict[str, RunRecord]:
        records = whole(rows, root)
        name = next(row.label.digest for row in rows if (row.label.arm, row.label.size) == ("k3", "s"))
        changes = {"status": Status.FAILED, "evaluations": {}, "reason": "ValueError: broken"}
        return records | {name: records[name].model_copy(update=changes)}

    monkeypatch.setattr(fairness.local, "run_grid", fails)
    code, out, _ = k3ablate("fairness", "own.yaml")
    assert code == 1
    assert "k3 s seed 0 failed: ValueError: broken" in out


SWEEP = EXPERIMENT.replace("sizes: [xs, m]", "sizes: [xs@4000000000flops]").replace(
    "budgets: [{kind: tokens, tokens: 1280}]", "budgets: [{kind: flops, flops: 4.0e+9}, {kind: flops, flops: 8.0e+9}]"
)


def train_sweep(place: Path) -> None:
    """Records of every run of the sweep, with the best ratio planted at each budget."""
    rows = verbs.plan_from_known_corpora(load(Path("planted.yaml")), place / "runs").rows
    best = {4e9: 0.15, 8e9: 0.2}
    for row in rows:
        assert row.spec is not None
        ratio = row.tokens / row.counts.active_params
        budget = min(best, key=lambda flops: abs(flops - row.flops))
        loss = 3 + 0.05 * math.log(ratio / best[budget]) ** 2 + 1e-4 * row.label.seed
        found = Evaluation(loss=loss, bits_per_byte=loss, num_tokens=64)
        record = planted(row).model_copy(update={"evaluations": {"validation": found}})
        prepare(place / "runs", row.spec).write_record(record)


def test_a_sweep_at_equal_compute_gives_tokens_per_parameter_and_a_ladder(k3ablate, place: Path) -> None:
    (place / "planted.yaml").write_text(SWEEP)
    code, _, err = k3ablate("isoflop", "planted.yaml")
    assert code == 2
    assert "no run has finished; `k3ablate run planted.yaml`" in err
    train_sweep(place)
    code, out, _ = k3ablate("isoflop", "planted.yaml", "--json")
    answer = json.loads(out)
    assert code == 0
    found = answer["arms"]["k2"]
    assert [one["optimum"]["value"] for one in found] == pytest.approx([0.15, 0.2], rel=0.05)
    assert answer["laws"]["k2"]["exponent"] == pytest.approx(math.log(0.2 / 0.15) / math.log(2), rel=0.2)
    ladder = read_yaml(place / "recipes" / "ladders" / "planted.yaml")
    assert ladder["sizes"] == answer["ladder"]
    assert (ladder["baseline"], list(ladder["laws"])) == ("k2", ["k2"])  # k3's sizes have its best ratio at their edge
    for size in ladder["sizes"]["k2"].values():
        truth = 0.15 * (size["flops"] / 4e9) ** (math.log(0.2 / 0.15) / math.log(2))
        assert size["ratio"] == pytest.approx(truth, rel=0.2)
        assert size["tokens"] == pytest.approx(size["ratio"] * size["active_params"], rel=1e-3)
        assert size["low"] < size["ratio"] < size["high"]


def test_an_experiment_takes_the_ladder_of_a_sweep_and_runs_carry_only_its_tokens(k3ablate, place: Path) -> None:
    (place / "planted.yaml").write_text(SWEEP)
    train_sweep(place)
    assert k3ablate("isoflop", "planted.yaml")[0] == 0
    taking = EXPERIMENT.replace("name: planted", "name: taking").replace("sizes: [xs, m]", "sizes: [xs]")
    budget = "budgets: [{kind: compute_optimal, from: planted}]"
    (place / "taking.yaml").write_text(taking.replace("budgets: [{kind: tokens, tokens: 1280}]", budget))
    rungs = read_yaml(place / "recipes" / "ladders" / "planted.yaml")["sizes"]["k2"]
    rows = verbs.plan_from_known_corpora(load(Path("taking.yaml")), place / "runs").rows
    for row in rows:
        assert row.tokens == -(-rungs[row.label.size]["tokens"] // 128) * 128  # whole steps; the same for both arms
    (place / "stated.yaml").write_text(taking.replace("tokens: 1280", f"tokens: {rungs['m']['tokens']}"))
    stated = verbs.plan_from_known_corpora(load(Path("stated.yaml")), place / "runs").rows
    digests = {(row.label.arm, row.label.size, row.label.seed): row.label.digest for row in rows}
    assert all(digests[row.label.arm, "m", row.label.seed] == row.label.digest
               for row in stated if row.label.size == "m")  # fmt: skip
    for command in ("check", "plan"):
        code, out, err = k3ablate(command, "taking.yaml")
        assert code == 0, err
        assert f"m: {number(rungs['m']['ratio'])} tokens per parameter" in out
        assert "tokens per parameter (law of k2 in the sweep planted, through 4e+09, 8e+09 FLOPs" in out
        beyond = {size for size, one in rungs.items() if one["beyond"] > 1}
        assert beyond
        for size in rungs:
            (line,) = [line for line in out.splitlines() if line.split(":")[0].split(" ")[-1] == size]
            assert ("WARNING" in line) == (size in beyond)
        assert "the baseline is not the one that was swept" not in out
    other = (place / "taking.yaml").read_text().replace("training.batch_size: 4", "training.batch_size: 8")
    (place / "taking.yaml").write_text(other)
    assert "WARNING: the baseline is not the one that was swept in planted" in k3ablate("check", "taking.yaml")[1]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (", from: planted", "no such ladders recipe; write one of (none found); `k3ablate isoflop planted` writes it"),
        (", from: 3", "write {kind: compute_optimal, from: X}"),
        ("", "write {kind: compute_optimal, from: X}"),
    ],
)
def test_a_ladder_that_is_not_there_is_told_with_what_to_write(k3ablate, place: Path, written: str, told: str) -> None:
    budget = f"budgets: [{{kind: compute_optimal{written}}}]"
    (place / "taking.yaml").write_text(EXPERIMENT.replace("budgets: [{kind: tokens, tokens: 1280}]", budget))
    code, _, err = k3ablate("check", "taking.yaml")
    assert code == 2
    assert "budgets.0: " in err
    assert told in err


def test_a_sweep_needs_budgets_in_flops(k3ablate) -> None:
    code, _, err = k3ablate("isoflop", "planted.yaml")
    assert code == 2
    assert "not at equal compute; write budgets of kind flops" in err


def test_fairness_needs_tuned_values(k3ablate) -> None:
    code, _, err = k3ablate("fairness", "planted.yaml")
    assert code == 2
    assert "takes no tuned values; write tuned: X" in err
