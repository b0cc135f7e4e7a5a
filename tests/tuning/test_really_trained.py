"""Several paths tuned at once and a fairness report, over runs that are really trained, against their files."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from k3ablate.answers import plain
from k3ablate.config import read_yaml
from k3ablate.fits.analysis import analyse

pytestmark = pytest.mark.slow

EXPERIMENT = """
name: tiny
question: Are several paths tuned at once, and is the comparison fair?
expected: two recipes
stopping: a loss above training.divergence_loss
exclusion: diverged runs are listed
baseline:
  model: kimi-k2
  data: {source: {kind: files, format: text, train: [train.txt], validation: [validation.txt]}}
  training: cpu
  set: {training.context: 32, training.batch_size: 4, training.validation_tokens: 512}
components:
  attention: {levels: {k2: {}, k3: {model.mixer: {from: kimi-k3}}}}
design: list
arms: [{name: k3, levels: {attention: k3}}]
names: {baseline: k2}
match: none
sizes: [{name: xs, width: 24, num_layers: 2, head_width: 8, num_active: 2}]
budgets: [{kind: tokens, tokens: 1280}, {kind: tokens, tokens: 2560}, {kind: tokens, tokens: 5120}]
seeds: [0]
"""
TUNING = """
tuning:
  sizes: [xs@1280t]
  trials: 13
  sampler: {kind: quasi_random}
  space:
    training.optimizer.learning_rate: {low: 2.0e-3, high: 5.0e-2}
    training.optimizer.weight_decay: {low: 0.0, high: 0.4, scale: linear}
    training.batch_size: {choices: [4, 8]}
"""
SIZE = "xs@1280t"
PATHS = ("training.optimizer.learning_rate", "training.optimizer.weight_decay", "training.batch_size")


@dataclass(frozen=True)
class Trained:
    """A working folder with everything in it, and what the commands answered."""

    place: Path
    tuned: Mapping[str, Any]
    fair: Mapping[str, Any]
    plans: Mapping[str, list[Mapping[str, Any]]]  # rows of the arms at their own values, and at the baseline's

    def read(self, digest: str, file: str) -> Any:
        return json.loads((self.place / "runs" / digest / file).read_text())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    place = tmp_path_factory.mktemp("tiny")
    words = [f"{first}{second}" for first in "abcdefgh" for second in "aeiou"]
    text = " ".join(words[(7 * index + index // 11) % len(words)] for index in range(50_000))
    (place / "train.txt").write_text(text)
    (place / "validation.txt").write_text(text[1001:9001])
    (place / "tiny.yaml").write_text(EXPERIMENT + TUNING)
    (place / "own.yaml").write_text(EXPERIMENT.replace("name: tiny", "name: own\ntuned: tiny"))
    shared = "name: shared\ntuned: {from: tiny, arms: baseline}"
    (place / "shared.yaml").write_text(EXPERIMENT.replace("name: tiny", shared))
    tuned = answer(place, "tune", "tiny.yaml", "--workers", "2")
    fair = answer(place, "fairness", "own.yaml", "--workers", "2")
    plans = {name: answer(place, "plan", f"{name}.yaml")["rows"] for name in ("own", "shared")}
    return Trained(place, tuned, fair, plans)


def answer(place: Path, *arguments: str) -> Any:
    settings = {**os.environ, "K3ABLATE_RUNS": "runs", "K3ABLATE_TRACKING": "spool", "NO_COLOR": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "k3ablate.cli", *arguments, "--json"],
        cwd=place, env=settings, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def below(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree[key]
    return tree


def test_every_path_has_its_optimum_and_the_trials_are_what_their_runs_say(trained: Trained) -> None:
    for arm in ("k2", "k3"):
        paths = read_yaml(trained.place / "recipes" / "tuned" / "tiny" / f"{arm}.yaml")["sizes"][SIZE]["paths"]
        assert list(paths) == list(PATHS)
        assert 2e-3 <= paths[PATHS[0]]["value"] <= 5e-2
        assert 0 <= paths[PATHS[1]]["value"] <= 0.4
        trials = pandas.read_csv(trained.place / "recipes" / "tuned" / "tiny" / f"{arm}.csv")
        assert len(trials) == 13
        for trial in trials.to_dict("records"):
            spec, record = (trained.read(trial["digest"], file) for file in ("spec.json", "record.json"))
            assert {path: below(spec["spec"], path) for path in PATHS} == {path: trial[path] for path in PATHS}
            assert record["evaluations"]["validation"]["loss"] == trial["loss"]
        best = trials.loc[trials["loss"].idxmin()]
        assert paths[PATHS[2]]["value"] == best[PATHS[2]]
        answered = trained.tuned["arms"][arm][SIZE]
        assert answered["best_loss"] == best["loss"]
        for path in PATHS[:2]:
            assert paths[path]["is_from_curve"] or paths[path]["value"] == best[path]


def test_the_runs_of_an_experiment_carry_what_was_tuned_for_their_arm_or_for_the_baseline(trained: Trained) -> None:
    recipes = {arm: read_yaml(trained.place / "recipes" / "tuned" / "tiny" / f"{arm}.yaml") for arm in ("k2", "k3")}
    for plan, rows in trained.plans.items():
        assert len(rows) == 6
        for row in rows:
            source = row["arm"] if plan == "own" else "k2"
            paths = recipes[source]["sizes"][SIZE]["paths"]
            spec = trained.read(row["digest"], "spec.json")
            assert {path: below(spec["spec"], path) for path in PATHS} == {path: paths[path]["value"] for path in PATHS}
            assert trained.read(row["digest"], "record.json")["tokens"] == row["tokens"]


def table(trained: Trained, rows: list[Mapping[str, Any]]) -> pandas.DataFrame:
    """The columns that curves are fitted to, from the files of the runs."""
    found = []
    for row in rows:
        record = trained.read(row["digest"], "record.json")
        kept = {key: record[key] for key in ("status", "flops", "active_params", "total_params", "tokens")}
        loss = record["evaluations"]["validation"]["loss"]
        found.append({**{key: row[key] for key in ("arm", "size", "seed", "digest")}, **kept, "loss": loss})
    return pandas.DataFrame(found)


def test_fairness_says_what_the_records_of_both_grids_say(trained: Trained) -> None:
    arms = {one["arm"]: one for one in trained.fair["arms"]}
    assert set(arms) == {"k2", "k3"}
    for kind, plan in (("shared", "shared"), ("own", "own")):
        frame = table(trained, trained.plans[plan])
        read = {one.arm: one for one in analyse(frame, "k2", None, np.random.default_rng(0)).arms}
        for arm, found in arms.items():
            largest = frame[(frame["arm"] == arm) & (frame["size"] == "xs@5120t")]
            assert found[kind]["loss"] == pytest.approx(float(largest["loss"].iloc[0]), rel=1e-12)
            multiplier = read[arm].multiplier
            told = [found[kind][key] for key in ("multiplier", "low", "high")]
            if multiplier is None:
                assert told == [None, None, None]
                assert found[kind]["no_multiplier"] == read[arm].no_multiplier
            else:
                interval = multiplier.interval
                assert told == plain([multiplier.value, interval.low, interval.high])  # an open end is null
    assert {one["num_trials"] for one in arms.values()} == {13}
    assert arms["k2"]["own"] == arms["k2"]["shared"]
    differs = trained.tuned["arms"]["k2"][SIZE]["paths"] != trained.tuned["arms"]["k3"][SIZE]["paths"]
    assert (arms["k3"]["own"]["loss"] != arms["k3"]["shared"]["loss"]) == differs
