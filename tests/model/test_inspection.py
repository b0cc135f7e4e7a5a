"""Are the weights and magnitudes those of the forward pass, and does looking at them leave it alone?"""

import pytest
import torch
from torch import Generator, Tensor, nn

from k3ablate.config import parse
from k3ablate.kernels import attnres
from k3ablate.model.decoder import Decoder, ModelConfig, initialise
from k3ablate.model.inspection import Magnitudes, mean_read_weights
from k3ablate.model.residual import Read
from k3ablate.recipes import recipe

VOCABULARY, DEPTH = 31, 5
KDA = {"kind": "kda", "num_heads": 2, "head_width": 4}
LATENT = {"kind": "latent_moe", "num_experts": 6, "num_active": 2, "expert_width": 6, "latent_width": 8}


def decoder(residual: dict[str, object]) -> Decoder:
    """K3's pieces, the first layer dense, with queries that are no longer zero."""
    tree = {
        "vocabulary_size": VOCABULARY,
        "width": 12,
        "num_layers": DEPTH,
        "mixer": {"main": KDA},
        "feed_forward": {"main": LATENT, "leading": {"feed_forward": {"kind": "dense", "hidden_width": 8}}},
        "balancing": {"kind": "quantile"},
        "residual": residual,
    }
    built = Decoder(parse(ModelConfig, tree, source="test"))
    initialise(built, Generator().manual_seed(0), 0.3)
    for module in built.modules():
        if isinstance(module, Read):
            nn.init.normal_(module.query_D, std=0.5, generator=Generator().manual_seed(1))
    return built


def tokens() -> Tensor:
    return torch.randint(VOCABULARY, (3, 9), generator=Generator().manual_seed(2))


@pytest.mark.parametrize(
    ("residual", "num_sources"),
    [
        ({"kind": "plain"}, []),
        ({"kind": "full_attnres"}, list(range(1, 2 * DEPTH + 2))),
        # two layers a block: the embedding, then after each mixer that starts a block one source more
        ({"kind": "block_attnres", "num_blocks": 3}, [1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4]),
    ],
    ids=["plain", "full", "block"],
)
def test_every_read_gives_the_mean_weight_of_each_source(residual: dict[str, object], num_sources: list[int]) -> None:
    weights = mean_read_weights(decoder(residual), tokens())
    assert [len(weights_S) for weights_S in weights] == num_sources
    for weights_S in weights:
        torch.testing.assert_close(weights_S.sum(), torch.tensor(1.0))
        assert len(weights_S) == 1 or weights_S.std() > 1e-3  # queries that have learned tell sources apart


def test_the_weights_are_those_that_the_reads_mix_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read, recorded on its way through the kernel, and its weights by the definition."""
    built, seen = decoder({"kind": "full_attnres"}).eval(), []

    def recording(query_D: Tensor, key_weight_D: Tensor, sources: tuple[Tensor, ...], epsilon: float) -> Tensor:
        seen.append(attnres.read_weights(query_D, key_weight_D, sources, epsilon).mean((0, 1)))
        return attnres.read_plain(query_D, key_weight_D, sources, epsilon)

    weights = mean_read_weights(built, tokens())
    monkeypatch.setattr(attnres, "read", recording)
    built(tokens())
    torch.testing.assert_close(weights, [recorded.detach() for recorded in seen])


def test_reading_weights_leaves_a_decoder_in_training_as_it_was() -> None:
    built = decoder({"kind": "full_attnres"}).train()
    biases = [balancer.bias_E.clone() for balancer in built.balancers()]
    mean_read_weights(built, tokens())
    assert built.training
    for balancer, before in zip(built.balancers(), biases, strict=True):
        balancer.step()  # would move on a batch it had been shown
        assert torch.equal(balancer.bias_E, before)
    with pytest.raises(IndexError):
        mean_read_weights(built, tokens() + VOCABULARY)
    assert built.training
    assert not any(module._forward_pre_hooks for module in built.modules())


def test_k3_at_full_size_reads_187_times_and_nine_sources_at_the_end() -> None:
    """Specification 4.4 and 6, counted while the real stream runs, without memory behind it."""
    k3 = parse(ModelConfig, recipe("model", "kimi-k3"), source="kimi-k3")
    with torch.device("meta"):
        stream = k3.residual.build(k3.width, k3.num_layers)
        state = stream.start(torch.empty(1, 1, k3.width))
        num_sources = []
        for read in stream.reads:
            read.register_forward_pre_hook(lambda _, arguments: num_sources.append(len(arguments[0].every)))
        for site in range(2 * k3.num_layers):
            state = stream.write(state, site, stream.read(state, site))
        stream.finish(state)
    assert len(num_sources) == 187
    assert num_sources[-1] == 9
    assert sum(num_sources) == 1_003


@pytest.mark.parametrize("residual", [{"kind": "plain"}, {"kind": "block_attnres"}], ids=["plain", "block"])
def test_magnitudes_are_those_of_what_went_through(residual: dict[str, object]) -> None:
    """Over two forward passes, against copies of every tensor."""
    built = decoder(residual)
    read: dict[nn.Module, list[Tensor]] = {}
    for layer in built.layers:
        layer.mixer_norm.register_forward_pre_hook(lambda module, inputs: read.setdefault(module, []).append(inputs[0]))
    for layer in built.layers[1:]:
        layer.feed_forward.experts.register_forward_hook(
            lambda module, _, output: read.setdefault(module, []).append(output)
        )
    built.norm.register_forward_pre_hook(lambda module, inputs: read.setdefault(module, []).append(inputs[0]))
    magnitudes = Magnitudes(built)
    for batch in (tokens(), tokens()[:1]):
        built(batch)
    taken = magnitudes.take()
    streams = [*(layer.mixer_norm for layer in built.layers), built.norm]
    experts = [layer.feed_forward.experts for layer in built.layers[1:]]
    assert {name: len(values) for name, values in taken.items()} == {
        "stream_rms": DEPTH + 1, "stream_max": DEPTH + 1, "experts_rms": DEPTH - 1, "experts_max": DEPTH - 1,
    }  # fmt: skip
    for place, modules in (("stream", streams), ("experts", experts)):
        for index, module in enumerate(modules):
            values = torch.cat([tensor.flatten() for tensor in read[module]]).double()
            assert taken[f"{place}_rms"][index] == pytest.approx(values.square().mean().sqrt().item(), rel=1e-5)
            assert taken[f"{place}_max"][index] == pytest.approx(values.abs().max().item(), rel=1e-6)


def test_looking_at_magnitudes_changes_no_bit_and_ends_with_take() -> None:
    looked_at, alone = (decoder({"kind": "block_attnres"}) for _ in range(2))
    magnitudes = Magnitudes(looked_at)
    for built in (looked_at, alone):
        built(tokens()).logits_BTV.square().sum().backward()
    magnitudes.take()
    for ours, theirs in zip(looked_at.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in looked_at.modules())


def test_an_explosion_shows() -> None:
    built = decoder({"kind": "plain"})
    with torch.no_grad():
        built.layers[2].feed_forward.experts.down_ELF.mul_(1e4)
        built.layers[3].feed_forward.experts.gate_EFL[:] = torch.nan
    magnitudes = Magnitudes(built)
    built(tokens())
    taken = magnitudes.take()
    assert taken["experts_max"][1] > 1e3 * taken["experts_max"][0]
    assert torch.tensor(taken["experts_rms"][2]).isnan()
    assert torch.tensor(taken["experts_max"][2]).isnan()
