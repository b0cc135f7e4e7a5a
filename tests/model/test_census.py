"""Both ways of counting agree, and a difference between them is named."""

from collections.abc import Mapping

import pytest

from k3ablate.config import parse
from k3ablate.model.attention import MLA, Softmax
from k3ablate.model.census import census, checked, num_parameters, num_visited
from k3ablate.model.counting import count
from k3ablate.model.decoder import ModelConfig
from k3ablate.model.feedforward import Dense
from k3ablate.model.residual import FullAttnRes
from k3ablate.recipes import recipe

K2 = parse(ModelConfig, recipe("model", "kimi-k2"), source="kimi-k2")
K3 = parse(ModelConfig, recipe("model", "kimi-k3"), source="kimi-k3")
CONFIGS = {
    "k2": K2,
    "k3": K3,
    "softmax": K2.replaced("mixer.main", Softmax(num_heads=64, num_key_value_heads=8, head_width=128).tree()),
    "dense": parse(
        ModelConfig,
        K2.tree() | {"feed_forward": {"main": Dense(hidden_width=18432).tree()}, "balancing": {"kind": "none"}},
        source="dense",
    ),
    "full": K3.replaced("residual", FullAttnRes().tree()),
    "latent without a norm": K3.replaced("feed_forward.main.latent_norm", "none"),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_built_modules_hold_what_the_closed_form_counts(config: ModelConfig) -> None:
    counts, found = checked(config, context=1)
    assert found.groups == counts.groups == count(config, context=1).groups
    assert found.active_params == counts.active_params
    assert num_parameters(found.decoder) == counts.total_params


def test_trillions_of_parameters_take_no_memory() -> None:
    decoder = census(K3).decoder
    assert {tensor.device.type for tensor in (*decoder.parameters(), *decoder.buffers())} == {"meta"}
    assert num_parameters(decoder) == 2_779_484_478_208 - 69 * 32  # specification 3, without what pads the file


def test_a_token_meets_its_own_experts_only() -> None:
    layer = census(K3).decoder.layers[-1]
    idle = (896 - 16) * 33_030_144  # specification 2: parameters of one routed expert
    assert num_parameters(layer) - num_visited(layer) == idle


def test_a_difference_names_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    true = MLA.parameters

    def short(mixer: MLA, width: int) -> Mapping[str, int]:
        return {**true(mixer, width), "norms": 0}

    monkeypatch.setattr(MLA, "parameters", short)
    with pytest.raises(AssertionError, match=r"mla_mixers: .* counts 6,168,444,928, .* hold 6,168,569,856"):
        checked(K2, context=1)
