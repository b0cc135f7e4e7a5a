"""What is kept of a trained model at work, against the modules' own outputs."""

import pytest
import torch
from torch import Generator, Tensor

from k3ablate.config import parse
from k3ablate.model.decoder import Decoder, ModelConfig, initialise
from k3ablate.model.feedforward import GLU
from k3ablate.model.inspection import mean_read_weights
from k3ablate.model.specimens import GLU_HIDDEN, ROUTED_HIDDEN, look, magnitude_edges

MODEL = {
    "vocabulary_size": 61,
    "width": 24,
    "num_layers": 3,
    "mixer": {"main": {"kind": "softmax", "num_heads": 3, "num_key_value_heads": 1, "head_width": 8}},
    "feed_forward": {
        "main": {"kind": "latent_moe", "num_experts": 8, "num_active": 2, "expert_width": 16, "latent_width": 12},
        "leading": {"feed_forward": {"kind": "dense", "hidden_width": 32}},
    },
    "residual": {"kind": "block_attnres", "num_blocks": 3},
}


@pytest.fixture
def decoder() -> Decoder:
    config = parse(ModelConfig, MODEL, source="test")
    built = Decoder(config)
    initialise(built, Generator().manual_seed(0), 0.5)
    return built


def tokens() -> Tensor:
    return torch.randint(61, (2, 19), generator=Generator().manual_seed(7))


def test_what_is_seen_is_what_the_modules_did(decoder: Decoder) -> None:
    decisions, hidden = [], []
    for layer in decoder.layers[1:]:
        layer.feed_forward.router.register_forward_hook(lambda _, inputs, decision: decisions.append(decision))
    decoder.layers[0].feed_forward.glu.down.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0]))
    seen = look(decoder, tokens())
    assert len(seen.chosen) == len(seen.weights) == 2
    for chosen, weights, decision in zip(seen.chosen, seen.weights, decisions[-2:], strict=True):
        assert torch.equal(chosen, decision.chosen)
        assert torch.equal(weights, decision.weights)
    expected = [weights_S.tolist() for weights_S in mean_read_weights(decoder, tokens())]
    assert seen.read_weights == expected
    assert [len(weights) for weights in expected] == [1, 2, 2, 3, 3, 4, 4]


def test_magnitudes_are_counted_once_each_in_their_bins(decoder: Decoder) -> None:
    hidden: list[Tensor] = []
    for layer in decoder.layers:
        for glu in (module for module in layer.modules() if isinstance(module, GLU)):
            glu.down.register_forward_pre_hook(lambda _, inputs: hidden.append(inputs[0].abs().flatten()))
    seen = look(decoder, tokens())
    values = torch.cat(hidden[len(hidden) // 2 :]).double()  # `look` runs twice, once for the reads
    edges = torch.tensor(magnitude_edges(), dtype=torch.float64)
    expected = torch.histogram(values.clamp(edges[0], edges[-1] * (1 - 1e-12)), edges).hist
    assert (seen.magnitudes[GLU_HIDDEN] - expected).abs().sum() <= 2  # a value on an edge may fall on either side
    assert int(seen.magnitudes[ROUTED_HIDDEN].sum()) == 2 * tokens().numel() * 2 * 16
    assert len(edges) == len(seen.magnitudes[ROUTED_HIDDEN]) + 1


def test_looking_changes_nothing(decoder: Decoder) -> None:
    decoder.train()
    before = decoder(tokens()).logits_BTV
    look(decoder, tokens())
    assert decoder.training
    assert torch.equal(decoder(tokens()).logits_BTV, before)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in decoder.modules())
