"""One rule for every tensor: its role by what it does, its cut by its heads, its decay as stated."""

import functools
import math
from pathlib import Path

import pytest
import torch
from torch import nn

from k3ablate.config import parse, read_yaml
from k3ablate.model.decoder import Decoder, ModelConfig
from k3ablate.training.groups import Rule, rules
from k3ablate.training.muon import Blocks
from k3ablate.training.optimizers import AdamW, AdamWRule, Muon, Role

RECIPES = Path(__file__).resolve().parents[2] / "recipes" / "model"
ADAMW = AdamW(learning_rate=0.01)
PER_HEAD = Muon(learning_rate=0.02, cut="per_head", rest=AdamWRule(learning_rate=0.01))
WHOLE = PER_HEAD.model_copy(update={"cut": "whole"})


@functools.cache
def published(name: str) -> Decoder:
    """At its full size, without memory."""
    return built(parse(ModelConfig, read_yaml(RECIPES / f"{name}.yaml"), source="test"))


def built(config: ModelConfig) -> Decoder:
    with torch.device("meta"):
        return Decoder(config)


def by_name(found: list[Rule]) -> dict[str, Rule]:
    return {rule.name: rule for rule in found}


@pytest.mark.parametrize("name", ["kimi-k2", "kimi-k3"])
@pytest.mark.parametrize("config", [ADAMW, WHOLE, PER_HEAD], ids=["adamw", "whole", "per_head"])
def test_every_tensor_of_the_published_models_has_one_rule(name: str, config: AdamW | Muon) -> None:
    decoder = published(name)
    found = rules(decoder, config)
    assert [rule.name for rule in found] == [parameter_name for parameter_name, _ in decoder.named_parameters()]
    for rule in found:
        assert rule.update == ("muon" if config is not ADAMW and rule.role is Role.MATRIX else "adamw")
        covered = sum(blocks.number * blocks.rows * blocks.columns for blocks in rule.cut)
        assert covered == (math.prod(rule.shape) if rule.update == "muon" else 0)


def test_roles_follow_what_a_parameter_does() -> None:
    """By name here, and by owner in the package."""
    found = by_name(rules(published("kimi-k3"), ADAMW))
    roles = {role: {name for name, rule in found.items() if rule.role is role} for role in Role}
    assert roles[Role.EMBEDDING] == {"embedding.weight"}
    assert roles[Role.HEAD] == {"head.weight"}
    for word in ("A_log", "dt_bias", "norm", "query_D", "key_weight_D", "convolution"):
        holders = {name for name in found if word in name}
        assert holders, f"the model of this test has no {word}"
        assert holders <= roles[Role.VECTOR]
    maps = {name for name, rule in found.items() if len(rule.shape) > 1 and "convolution" not in name}
    assert roles[Role.MATRIX] == maps - {"embedding.weight", "head.weight"}


def test_per_head_cuts_of_k3_at_full_size() -> None:
    """Specification 4.7: KDA blocks of 128 rows, MLA queries of 192, keys and values of 128; all else whole."""
    found = by_name(rules(published("kimi-k3"), PER_HEAD))
    kda, mla, moe = "layers.0.mixer", "layers.3.mixer", "layers.1.feed_forward"
    for name in ("query", "key", "value"):
        assert found[f"{kda}.{name}.weight"].cut == (Blocks(96, 128, 7168, 0.2 * math.sqrt(7168)),)
    assert found[f"{mla}.query_up.weight"].cut == (Blocks(96, 192, 1536, 0.2 * math.sqrt(1536)),)
    assert found[f"{mla}.key_value_up.weight"].cut == (Blocks(96, 128, 512, 0.2 * math.sqrt(512)),) * 2
    for name in (f"{kda}.gate", f"{kda}.output", f"{mla}.query_down", f"{mla}.key_value_down", f"{mla}.gate"):
        rule = found[f"{name}.weight"]
        assert rule.cut == (Blocks.of(1, *rule.shape),)
    assert found[f"{moe}.experts.gate_EFL"].cut == (Blocks(896, 3072, 3584, 0.2 * math.sqrt(3584)),)


def test_whole_cuts_nothing_but_stacks() -> None:
    for rule in rules(published("kimi-k2"), WHOLE):
        assert [blocks.number for blocks in rule.cut] == (
            [] if rule.update == "adamw" else [math.prod(rule.shape[:-2])]
        )


def test_rates_and_decays_are_those_of_the_update() -> None:
    config = Muon(
        learning_rate=0.02,
        weight_decay=0.3,
        decayed=(Role.EMBEDDING, Role.MATRIX),
        rest=AdamWRule(learning_rate=0.01, weight_decay=0.4),
    )
    stated = {rule.role: (rule.learning_rate, rule.weight_decay) for rule in rules(published("kimi-k2"), config)}
    assert stated == {
        Role.MATRIX: (0.02, 0.3),
        Role.HEAD: (0.01, 0.0),
        Role.EMBEDDING: (0.01, 0.4),
        Role.VECTOR: (0.01, 0.0),
    }


def test_what_is_decayed_enters_a_digest_one_way() -> None:
    swapped = AdamW(learning_rate=0.01, decayed=(Role.HEAD, Role.MATRIX, Role.HEAD))
    assert swapped.digest() == ADAMW.digest()
    assert parse(AdamW, swapped.tree(), source="test") == ADAMW


SMALL = parse(
    ModelConfig,
    {
        "vocabulary_size": 11,
        "width": 8,
        "num_layers": 1,
        "mixer": {"main": {"kind": "kda", "num_heads": 2, "head_width": 4}},
        "feed_forward": {"main": {"kind": "dense", "hidden_width": 8}},
    },
    source="test",
)


class Scaling(nn.Module):
    """Owns a matrix, and nobody has said what it does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, 2))


def test_a_matrix_of_an_unknown_owner_is_refused() -> None:
    decoder = built(SMALL)
    decoder.layers[0].mixer.register_module("extra", Scaling())
    with pytest.raises(AssertionError, match=r"Scaling owns \[3, 2\], of no known role"):
        rules(decoder, ADAMW)


def test_a_parameter_of_two_modules_is_refused() -> None:
    decoder = built(SMALL)
    decoder.head.weight = decoder.embedding.weight
    with pytest.raises(AssertionError, match="two modules"):
        rules(decoder, ADAMW)
