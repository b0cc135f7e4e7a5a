"""Do whole decoders stand in the relation that the specification states, whatever their sublayers are?"""

import pytest
import torch
from torch import Generator, Tensor, nn

from k3ablate.config import override, parse
from k3ablate.kernels import attnres
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


def written_out(decoder: Decoder, tokens_BT: Tensor) -> Tensor:
    """Logits from the modules of a decoder: each sublayer behind its own norm, of the sum or a mix of all outputs."""
    written = [decoder.embedding(tokens_BT)]

    def mixed(site: int) -> Tensor:
        read = decoder.residual.reads[site]
        if not list(read.parameters()):
            return sum(written)
        return attnres.read_plain(read.query_D, read.key_weight_D, written, read.epsilon)

    for index, layer in enumerate(decoder.layers):
        written.append(layer.mixer(layer.mixer_norm(mixed(2 * index))))
        written.append(layer.feed_forward(layer.feed_forward_norm(mixed(2 * index + 1)))[0])
    return decoder.head(decoder.norm(mixed(2 * len(decoder.layers))))


@pytest.mark.parametrize("kind", ["plain", "full_attnres"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_sublayer_reads_behind_its_own_norm(kind: str, dtype: torch.dtype) -> None:
    tree = scaled(parse(ModelConfig, recipe("model", "kimi-k3"), source="kimi-k3"), SIZE, VOCABULARY).tree()
    tree = override(tree, "residual", {"kind": kind}, source="test")
    decoder = Decoder(parse(ModelConfig, tree, source="test")).to(dtype)
    initialise(decoder, Generator().manual_seed(0), 0.1)
    generator = Generator().manual_seed(1)
    for parameter in (*decoder.residual.parameters(), *(norm.weight for norm in decoder.norms())):
        nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
    tokens_BT = torch.randint(VOCABULARY, (2, 19), generator=generator)
    with torch.no_grad():
        torch.testing.assert_close(
            decoder.eval()(tokens_BT).logits_BTV, written_out(decoder, tokens_BT), rtol=1e-4, atol=1e-4
        )
