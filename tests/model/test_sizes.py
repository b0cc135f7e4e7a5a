"""Sizes keep the ratios of section 8 of the specification and match what they say they match."""

import pytest

from k3ablate.config import InputError, parse
from k3ablate.model.decoder import ModelConfig
from k3ablate.model.sizes import Size, cost, matched, scaled
from k3ablate.recipes import recipe

K2 = parse(ModelConfig, recipe("model", "kimi-k2"), source="kimi-k2")
K3 = parse(ModelConfig, recipe("model", "kimi-k3"), source="kimi-k3")
TINY = Size(name="tiny", width=64, num_layers=8, head_width=16, num_active=2)


@pytest.mark.parametrize("reference", [K2, K3], ids=["k2", "k3"])
def test_the_reference_size_is_the_reference(reference: ModelConfig) -> None:
    size = Size(name="full", width=reference.width, num_layers=reference.num_layers)
    assert scaled(reference, size, reference.vocabulary_size) == reference


def test_tiny_k2_has_k2_ratios() -> None:
    model = scaled(K2, TINY, 256)
    mixer, feed_forward = model.mixer.main, model.feed_forward.main
    assert (mixer.num_heads, mixer.head_width, mixer.position_width, mixer.value_width) == (5, 16, 8, 16)
    assert mixer.num_heads * 16 / 64 == pytest.approx(1.143, rel=0.1)
    assert mixer.query_rank == pytest.approx(0.214 * 64, abs=2)
    assert mixer.key_value_rank == pytest.approx(0.071 * 64, abs=2)
    assert (feed_forward.num_experts, feed_forward.num_active, feed_forward.num_shared) == (96, 2, 1)
    assert feed_forward.expert_width == pytest.approx(0.286 * 64, abs=2)
    assert model.feed_forward.leading.feed_forward.hidden_width == pytest.approx(9 * 0.286 * 64, abs=2)


def test_tiny_k3_has_k3_ratios() -> None:
    model = scaled(K3, TINY, 256)
    mixer, feed_forward = model.mixer.main, model.feed_forward.main
    assert [kind.kind for kind, _ in model.layers()] == 2 * ["kda", "kda", "kda", "gated_mla"]
    assert mixer.num_heads * mixer.head_width / 64 == pytest.approx(1.714, rel=0.05)
    assert (feed_forward.num_experts, feed_forward.num_active, feed_forward.num_shared) == (112, 2, 2)
    assert feed_forward.latent_width == 32
    assert feed_forward.expert_width / feed_forward.latent_width == pytest.approx(0.857, abs=0.07)
    assert model.residual.kind == "block_attnres"
    assert model.residual.num_blocks == 8


def test_fewer_layers_than_blocks_give_one_block_a_layer() -> None:
    shallow = TINY.model_copy(update={"num_layers": 5})
    assert scaled(K3, shallow, 256).residual.num_blocks == 5


@pytest.mark.parametrize("matching", ["flops_per_token", "active_parameters"])
def test_matching_finds_the_nearest_width(matching: str) -> None:
    target = scaled(K2, TINY, 256)
    model = matched(K3, TINY, 256, target, matching, context=128)
    goal = cost(target, matching, 128)
    here = abs(cost(model, matching, 128) / goal - 1)
    for width in (model.width - 1, model.width + 1):
        neighbour = scaled(K3, TINY.model_copy(update={"width": width}), 256)
        assert abs(cost(neighbour, matching, 128) / goal - 1) >= here


def test_a_match_out_of_reach_is_refused() -> None:
    coarse = Size(name="coarse", width=64, num_layers=4, head_width=32, num_active=2, multiple=64)
    with pytest.raises(InputError, match=r"size coarse: no width brings flops_per_token within 10% .* match: none"):
        matched(K3, coarse, 256, scaled(K2, coarse, 256), "flops_per_token", context=128)
