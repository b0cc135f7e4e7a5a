"""`count --optimizer`: every tensor under its rule, in the table as in the JSON."""

import json
from pathlib import Path

import pytest

from k3ablate import cli
from k3ablate.config import InputError
from k3ablate.counting import count_model

TRAINING = """
optimizer:
  kind: muon
  learning_rate: 2.0e-2
  cut: per_head
  rest: {learning_rate: 8.0e-3, weight_decay: 0.3}
  qk_clip: {threshold: 100}
schedule: {kind: cosine}
"""
SOFTMAX = """
vocabulary_size: 31
width: 8
num_layers: 3
mixer: {main: {kind: softmax, num_heads: 4, num_key_value_heads: 2, head_width: 2}}
feed_forward: {main: {kind: dense, hidden_width: 12}}
"""


@pytest.fixture(autouse=True)
def _recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("muon.yaml").write_text(TRAINING)
    Path("softmax.yaml").write_text(SOFTMAX)


def test_the_table_has_a_row_for_tensors_that_differ_by_their_layer_only() -> None:
    updates = count_model("softmax.yaml", optimizer="muon.yaml").updates
    assert updates is not None
    rows = [line.split() for line in updates.text().splitlines() if ".weight " in line]
    assert ["layers.*.mixer.key.weight", "3", "[4,", "8]", "matrix", "muon", "2", "x", "[2,", "8]", "0.5657", "0.02",
            "0.1"] in rows  # fmt: skip
    assert [
        "layers.*.mixer.output.weight",
        "3",
        "[8,",
        "8]",
        "matrix",
        "muon",
        "whole",
        "0.5657",
        "0.02",
        "0.1",
    ] in rows
    assert ["layers.*.mixer_norm.weight", "3", "[8]", "vector", "adamw", "-", "-", "0.008", "0"] in rows
    assert ["head.weight", "1", "[31,", "8]", "head", "adamw", "-", "-", "0.008", "0.3"] in rows
    assert sum(int(row[1]) for row in rows) == len(updates.rules)


def test_json_has_every_tensor(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["count", "kimi-k3", "--optimizer", "muon.yaml", "--json"])
    answer = json.loads(capsys.readouterr().out)
    updates = answer["updates"]
    rules = {rule["name"]: rule for rule in updates["rules"]}
    assert rules["layers.3.mixer.key_value_up.weight"] == {
        "name": "layers.3.mixer.key_value_up.weight",
        "shape": [24576, 512],
        "role": "matrix",
        "update": "muon",
        "cut": [{"number": 96, "rows": 128, "columns": 512, "scale": pytest.approx(4.5255, rel=1e-4)}] * 2,
        "learning_rate": 0.02,
        "weight_decay": 0.1,
    }
    sizes = dict.fromkeys(rules, 1)
    for name, rule in rules.items():
        for size in rule["shape"]:
            sizes[name] *= size
    num_biases = 92 * 896  # of balancing: counted, and moved by no optimizer
    assert sum(sizes.values()) + num_biases == answer["total_params"]
    assert (updates["qk_clip_threshold"], updates["num_latent_layers"]) == (100.0, 24)


@pytest.mark.parametrize(
    ("model", "recipe", "words"),
    [
        ("kimi-k3", "muon.yaml", "QK-clip at 100, head by head in 24 layers with MLA"),
        ("softmax.yaml", "muon.yaml", "QK-clip at 100: no layer has MLA, so that nothing is ever clipped"),
        ("softmax.yaml", "cpu", "logits are not clipped"),
    ],
)
def test_whose_logits_are_clipped_is_said(model: str, recipe: str, words: str) -> None:
    assert words in count_model(model, optimizer=recipe).text()


def test_without_the_option_nothing_is_said() -> None:
    counted = count_model("softmax.yaml")
    assert counted.updates is None
    assert "updates by" not in counted.text()


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(InputError, match=r"recipes/training/muno.yaml: no such training recipe; write one of cpu"):
        count_model("softmax.yaml", optimizer="muno")
