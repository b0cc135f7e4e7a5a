"""Do whole decoders stand in the relation that the specification states, whatever their sublayers are?"""

import pytest
import torch
from torch import Generator, Tensor

from k3ablate.config import override, parse
from k3ablate.model.decoder import Decoder, ModelConfig, initialise
from k3ablate.model.sizes import Size, scaled
from k3ablate.recipes import recipe

VOCABULARY = 61
SIZE = Size(name="tiny", width=24, num_layers=9, head_width=8, num_active=2)


def logits(model: str, residual: dict[str, object], norm_epsilon: float) -> Tensor:
    """Of a recipe at a tiny size, freshly initialised, in float64."""
    tree = scaled(parse(ModelConfig, recipe("model", model), source=model), SIZE, VOCABULARY).tree()
    for path, value in {"residual": residual, "norm_epsilon": norm_epsilon}.items():
        tree = override(tree, path, value, source="test")
    config = parse(ModelConfig, tree, source="test")
    decoder = Decoder(config).double()
    initialise(decoder, Generator().manual_seed(0), config.initializer_range)
    tokens_BT = torch.randint(VOCABULARY, (2, 19), generator=Generator().manual_seed(1))
    with torch.no_grad():
        return decoder.eval()(tokens_BT).logits_BTV


@pytest.mark.parametrize("residual", [{"kind": "full_attnres"}, {"kind": "block_attnres", "num_blocks": 3}], ids=str)
@pytest.mark.parametrize("model", ["kimi-k2", "kimi-k3"])
def test_at_initialisation_attention_residuals_are_the_plain_pre_norm_network(
    model: str, residual: dict[str, object]
) -> None:
    """Specification 4.4, epsilon aside: each norm sees the running sum divided by the number of sources."""
    epsilon = 1e-24
    plain = logits(model, {"kind": "plain"}, epsilon)
    mixed = logits(model, residual, epsilon)
    assert plain.abs().max() > 1e-3
    # Routers work in float32, and so do what they weigh: beyond them agreement ends at single precision.
    torch.testing.assert_close(mixed, plain, rtol=1e-5, atol=1e-6)
