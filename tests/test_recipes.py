"""Recipes are valid as they stand, say what is published, and serve an experiment."""

from pathlib import Path

import pytest

from k3ablate.config import Config, parse
from k3ablate.experiment import Experiment, load
from k3ablate.model.decoder import ModelConfig
from k3ablate.model.sizes import LARGEST_MISMATCH
from k3ablate.plan import expand
from k3ablate.recipes import recipe
from k3ablate.training.optimizers import Muon
from k3ablate.training.schedules import Cosine, WarmupStableDecay, factor
from k3ablate.training.spec import DataRecipe, TrainingConfig

RECIPES = Path(__file__).parent.parent / "recipes"
KINDS: dict[str, type[Config]] = {"model": ModelConfig, "training": TrainingConfig, "data": DataRecipe}
ALL = sorted((kind, path.stem) for kind in KINDS for path in (RECIPES / kind).glob("*.yaml"))

LADDER = """
name: ladder
question: does it plan?
expected: it does
stopping: never
exclusion: none
baseline:
  model: kimi-k2
  data: fineweb-edu
  training: k2
  set: {training.batch_size: 128}
components:
  attention: {levels: {k2: {}, k3: {model.mixer: {from: kimi-k3}}}}
  residual: {levels: {k2: {}, k3: {model.residual: {from: kimi-k3}}}}
  feed_forward: {levels: {k2: {}, k3: {model.feed_forward: {from: kimi-k3}}}}
  optimizer: {levels: {k2: {}, k3: {training.optimizer: {from: k3}}}}
  schedule: {levels: {k2: {}, k3: {training.schedule: {from: k3}}}}
design: one_at_a_time
names: {baseline: k2, full: k3}
sizes: h200
budgets: [{kind: tokens_per_parameter, ratio: 20}]
seeds: [0]
"""


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    path = tmp_path_factory.mktemp("experiments") / "ladder.yaml"
    path.write_text(LADDER)
    return load(path)


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_recipe_is_valid(kind: str, name: str) -> None:
    parse(KINDS[kind], recipe(kind, name), source=f"{kind}/{name}")


def training(name: str) -> TrainingConfig:
    return parse(TrainingConfig, recipe("training", name), source=name)


def test_k2_trains_as_published() -> None:
    k2 = training("k2")
    assert isinstance(k2.optimizer, Muon)
    assert isinstance(k2.schedule, WarmupStableDecay)
    assert k2.optimizer.cut == "whole"
    assert k2.tokens_per_step == pytest.approx(67e6, rel=0.005)
    num_steps = round(15.5e12 / k2.tokens_per_step)
    rates = [k2.optimizer.learning_rate * factor(k2.schedule, step, num_steps) for step in range(0, num_steps, 50)]
    assert rates[0] == pytest.approx(2e-4 / 500)
    constant = [step * 50 for step, rate in enumerate(rates) if rate == 2e-4]
    assert constant[0] == 500
    assert constant[-1] * k2.tokens_per_step == pytest.approx(10e12, rel=0.001)
    assert k2.optimizer.learning_rate * factor(k2.schedule, num_steps - 1, num_steps) == pytest.approx(2e-5, rel=0.001)


def test_k3_cuts_by_head_and_decays_from_its_warm_up_on() -> None:
    k3 = training("k3")
    assert isinstance(k3.optimizer, Muon)
    assert isinstance(k3.schedule, Cosine)
    assert k3.optimizer.cut == "per_head"
    assert k3.schedule.num_warmup(10_000) == 100
    assert k3.tokens_per_step == training("k2").tokens_per_step


def test_the_ladder_for_h200_is_matched_and_fits_into_a_gpu(ladder: Experiment) -> None:
    rows = expand(ladder, lambda _: "c0ffee").rows
    assert max(abs(row.label.mismatch) for row in rows) < LARGEST_MISMATCH / 2
    bytes_of_training = 16 * max(row.counts.total_params for row in rows)  # weights, gradients and two of AdamW
    assert bytes_of_training < 110e9  # of 141
    baseline = [row.flops for row in rows if row.label.arm == "k2"]
    assert max(baseline) / min(baseline) > 100
