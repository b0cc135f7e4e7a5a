"""Are the weights and magnitudes those of the forward pass, and does looking at them leave it alone?"""

import pytest
import torch
from torch import Generator, Tensor, nn

from k3ablate.config import parse
from k3ablate.kernels import attnres
from k3ablate.kernels.attnres import Sources
from k3ablate.kernels.rms_norm import rms_norm_plain
from k3ablate.model.decoder import Decoder, ModelConfig, initialise
from k3ablate.model.feedforward import GLU, SwiGLU
from k3ablate.model.inspection import PLACES, Magnitudes, counted_pairs, mean_read_weights, routed_hidden
from k3ablate.model.moe import Experts, Router, Routing
from k3ablate.model.norms import RMSNorm
from k3ablate.model.residual import AttnResRead, Sum
from k3ablate.model.slots import Read
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
        if isinstance(module, AttnResRead):
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


def test_the_weights_are_those_that_the_reads_mix_with() -> None:
    """What each read gave out is its sources, weighed so, behind the norm of the reader."""
    built, seen = decoder({"kind": "full_attnres"}).eval(), []

    def note(read: AttnResRead, arguments: tuple[Sources], output_BTD: Tensor) -> None:
        weights_BTS = attnres.read_weights(read.query_D, read.key_weight_D, arguments[0].every, read.epsilon)
        mixed_BTD = (weights_BTS.unsqueeze(-2) * torch.stack(arguments[0].every, -1)).sum(-1)
        norm = built.norms()[read.reader]
        torch.testing.assert_close(output_BTD, rms_norm_plain(mixed_BTD, norm.weight, norm.epsilon))
        seen.append(weights_BTS.mean((0, 1)).detach())

    weights = mean_read_weights(built, tokens())
    for read in built.residual.reads:
        read.register_forward_hook(note)
    built(tokens())
    torch.testing.assert_close(weights, seen)


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
        norms = [RMSNorm(k3.width, k3.norm_epsilon) for _ in stream.reads]
        state = stream.start(torch.empty(1, 1, k3.width), norms)
        num_sources = []
        for read in stream.reads:
            read.register_forward_pre_hook(lambda _, arguments: num_sources.append(len(arguments[0].every)))
        for site in range(2 * k3.num_layers):
            state = stream.write(state, site, stream.read(state, site))
        stream.finish(state)
    assert len(num_sources) == 187
    assert num_sources[-1] == 9
    assert sum(num_sources) == 1_003


def test_pairs_are_those_that_the_routers_chose() -> None:
    """Over two forward passes, one of them in training, against one choice after the other."""
    built, noted = decoder({"kind": "plain"}), []
    routers = [module for module in built.modules() if isinstance(module, Router)]
    alone = built.eval()(tokens()).logits_BTV
    with counted_pairs(built) as pairs:
        counted = built(tokens()).logits_BTV
        for router in routers:
            router.register_forward_hook(lambda _, inputs, decision: noted.append(decision.chosen.flatten().tolist()))
        built.train()(tokens()[:1])
    assert torch.equal(alone, counted)
    built.eval()(tokens())
    chosen = [noted[layer] + noted[layer + len(routers)] for layer in range(len(routers))]
    assert [pairs_E.tolist() for pairs_E in pairs] == [[choices.count(e) for e in range(6)] for choices in chosen]
    assert [pairs_E.sum().item() for pairs_E in pairs] == [2 * (3 + 1) * 9] * (DEPTH - 1)


def test_nothing_is_counted_after_the_block_even_where_it_breaks() -> None:
    built = decoder({"kind": "plain"})
    with pytest.raises(IndexError), counted_pairs(built):
        built(tokens() + VOCABULARY)
    assert not any(module._forward_hooks for module in built.modules())


@pytest.mark.parametrize("residual", [{"kind": "plain"}, {"kind": "block_attnres"}], ids=["plain", "block"])
def test_magnitudes_are_those_of_what_went_through(residual: dict[str, object]) -> None:
    """Over two forward passes, against copies of every tensor."""
    built = decoder(residual)
    seen: dict[str, dict[nn.Module, list[Tensor]]] = {place: {} for place in PLACES}

    def keep(place: str, module: nn.Module, x: Tensor) -> None:
        seen[place].setdefault(module, []).append(x.detach().flatten())

    for module in built.modules():
        if isinstance(module, Experts):
            module.register_forward_hook(lambda module, _, output: keep("experts", module, output))
            module.register_forward_pre_hook(lambda module, inputs: keep("hidden", module, by_pair(module, *inputs)))
        elif isinstance(module, GLU):
            module.down.register_forward_pre_hook(lambda module, inputs: keep("glu_hidden", module, inputs[0]))
    for read in built.residual.reads[::2]:
        read.register_forward_pre_hook(lambda module, inputs: keep("stream", module, before_norm(module, *inputs)))
    magnitudes = Magnitudes(built)
    for batch in (tokens(), tokens()[:1]):
        built(batch)
    taken = magnitudes.take()
    num_layers = dict.fromkeys(PLACES, DEPTH - 1) | {"stream": DEPTH + 1, "glu_hidden": DEPTH}
    assert {name: len(values) for name, values in taken.items()} == {
        f"{place}_{kind}": number for place, number in num_layers.items() for kind in ("rms", "max")
    }
    for place in PLACES:
        for index, parts in enumerate(seen[place].values()):  # in the order they ran: that of the layers
            values = torch.cat(parts).double()
            assert taken[f"{place}_rms"][index] == pytest.approx(values.square().mean().sqrt().item(), rel=1e-5)
            assert taken[f"{place}_max"][index] == pytest.approx(values.abs().max().item(), rel=1e-5)


def before_norm(read: Read, state: Sum | Sources) -> Tensor:
    """The mix by definition, or the sum."""
    if isinstance(state, Sum):
        return state.value_BTD
    return attnres.read_plain(read.query_D, read.key_weight_D, state.every, read.epsilon)


def by_pair(experts: Experts, x_BTL: Tensor, decision: Routing) -> Tensor:
    """The hidden activation by definition, one pair of token and expert after the other."""
    hidden = []
    for x_L, chosen_A in zip(x_BTL.flatten(0, 1), decision.chosen.flatten(0, 1), strict=True):
        for expert in chosen_A:
            gate_F, up_F = experts.gate_EFL[expert] @ x_L, experts.up_EFL[expert] @ x_L
            hidden.append(experts.activation.combine(gate_F, up_F))
    return torch.stack(hidden)


def test_the_hidden_activation_by_hand() -> None:
    """Expert e multiplies by e + 1 in its gate and by 10 in its up-projection; expert 1 is never chosen."""
    experts = Experts(3, width=1, hidden_width=2, activation=SwiGLU())
    with torch.no_grad():
        experts.gate_EFL.copy_(torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1).expand(3, 2, 1))
        experts.up_EFL.fill_(10.0)
    decision = Routing(torch.tensor([[[2, 0], [0, 2]]]), torch.full((1, 2, 2), 0.5), torch.zeros(()))
    hidden_PF = routed_hidden(experts, torch.tensor([[[1.0], [-2.0]]]), decision)
    gates_P, ups_P = torch.tensor([1.0, -2.0, 3.0, -6.0]), torch.tensor([10.0, -20.0, 10.0, -20.0])  # by expert
    torch.testing.assert_close(hidden_PF, (gates_P * ups_P / (1 + (-gates_P).exp()))[:, None].expand(4, 2))
    assert not hidden_PF.requires_grad


def test_the_hidden_activation_is_that_of_the_precision_around_it() -> None:
    built, noted = decoder({"kind": "plain"}), []
    experts = built.layers[1].feed_forward.experts
    experts.register_forward_pre_hook(lambda module, inputs: noted.append(routed_hidden(module, *inputs)))
    with torch.autocast("cpu", torch.bfloat16):
        built(tokens())
    assert noted[0].dtype is torch.bfloat16


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
    assert taken["hidden_max"][1] < 1e3 * taken["hidden_max"][0]  # it is behind the hidden activation
    for place in ("experts", "hidden"):
        assert torch.tensor([taken[f"{place}_rms"][2], taken[f"{place}_max"][2]]).isnan().all()
