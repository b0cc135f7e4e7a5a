"""The contract that every member of every union keeps: whoever adds a member gets these tests for it."""

import math
from functools import partial
from typing import get_args

import pytest
import torch
from torch import Generator
from torch.utils.checkpoint import checkpoint

from k3ablate.config import Config, parse
from k3ablate.kernels import dispatch
from k3ablate.model.counting import count
from k3ablate.model.decoder import (
    BalancingUnion,
    Decoder,
    FeedForwardUnion,
    MixerUnion,
    ModelConfig,
    ResidualUnion,
    initialise,
)
from k3ablate.model.feedforward import ActivationUnion
from k3ablate.model.kda import KDA, DecayUnion
from k3ablate.model.moe import LatentMoE
from k3ablate.training.optim import build_optimizer
from k3ablate.training.optimizers import AdamW, AdamWRule, Muon

VOCABULARY, WIDTH, DEPTH, CONTEXT = 61, 24, 3, 19

# Small dimensions for the fields that have no default, whichever member they stand in.
SMALL = {
    "num_heads": 3,
    "num_key_value_heads": 1,
    "head_width": 8,
    "position_width": 4,
    "value_width": 8,
    "query_rank": 12,
    "key_value_rank": 8,
    "hidden_width": 32,
    "num_experts": 8,
    "num_active": 2,
    "expert_width": 16,
    "latent_width": 12,
    "num_blocks": 2,
}
ADAMW = AdamW(learning_rate=0.1)
MUON = Muon(learning_rate=0.1, rest=AdamWRule(learning_rate=0.1))
PER_HEAD = MUON.model_copy(update={"cut": "per_head"})
ROUTED = {"kind": "moe", "num_experts": 8, "num_active": 2, "expert_width": 16}


def members(union: object) -> list[type[Config]]:
    """The config classes of an Annotated union."""
    return list(get_args(get_args(union)[0]))


def small(member: type[Config]) -> dict[str, object]:
    """A small instance of a union member as a tree."""
    chosen = {name: SMALL[name] for name in member.model_fields if name in SMALL}
    return {"kind": member.model_fields["kind"].default, **chosen}


def model(**slots: object) -> ModelConfig:
    """A small model around the given slots."""
    tree = {
        "vocabulary_size": VOCABULARY,
        "width": WIDTH,
        "num_layers": DEPTH,
        "mixer": {"main": {"kind": "softmax", "num_heads": 3, "num_key_value_heads": 1, "head_width": 8}},
        "feed_forward": {"main": ROUTED},
        **slots,
    }
    return parse(ModelConfig, tree, source="test")


CASES = {
    **{f"mixer-{m.__name__}": model(mixer={"main": small(m)}) for m in members(MixerUnion)},
    **{f"feed_forward-{m.__name__}": model(feed_forward={"main": small(m)}) for m in members(FeedForwardUnion)},
    **{f"balancing-{m.__name__}": model(balancing=small(m)) for m in members(BalancingUnion)},
    **{f"residual-{m.__name__}": model(residual=small(m)) for m in members(ResidualUnion)},
    **{f"decay-{m.__name__}": model(mixer={"main": small(KDA) | {"decay": small(m)}}) for m in members(DecayUnion)},
    **{
        f"activation-{m.__name__}-{owner.__name__}": model(
            feed_forward={"main": small(owner) | {"activation": small(m)}}
        )
        for m in members(ActivationUnion)
        for owner in members(FeedForwardUnion)
    },
    "low_rank_gate": model(mixer={"main": small(KDA) | {"gate": "low_rank"}}),
    "latent_without_norm": model(feed_forward={"main": small(LatentMoE) | {"latent_norm": "none"}}),
    "exact_quantile": model(balancing={"kind": "quantile", "estimator": "exact", "momentum": 0.5}),
}
every_case = pytest.mark.parametrize("config", CASES.values(), ids=CASES.keys())


def built(config: ModelConfig, seed: int = 0) -> Decoder:
    decoder = Decoder(config)
    initialise(decoder, Generator().manual_seed(seed), config.initializer_range)
    return decoder


def tokens(batch_size: int = 2) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch_size, CONTEXT), generator=Generator().manual_seed(7))


@every_case
def test_config_round_trip(config: ModelConfig) -> None:
    assert parse(ModelConfig, config.tree(), source="again") == config


@every_case
def test_counted_parameters_equal_real_ones(config: ModelConfig) -> None:
    decoder = Decoder(config)
    biases = sum(balancer.bias_E.numel() for balancer in decoder.balancers())
    real = sum(parameter.numel() for parameter in decoder.parameters()) + biases
    assert count(config, CONTEXT).total_params == real


@every_case
def test_initialisation_reaches_everything_and_is_reproducible(config: ModelConfig) -> None:
    first, second = Decoder(config), Decoder(config)
    for decoder in (first, second):
        with torch.no_grad():
            for parameter in decoder.parameters():
                parameter.fill_(math.nan)
        initialise(decoder, Generator().manual_seed(3), config.initializer_range)
    for (name, one), two in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.isfinite(one).all(), name
        assert torch.equal(one, two), name


@every_case
def test_step_zero_loss_is_near_the_uniform_one(config: ModelConfig) -> None:
    logits = built(config)(tokens(8)).logits_BTV
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens(8).flatten())
    assert float(loss.detach()) == pytest.approx(math.log(VOCABULARY), rel=0.02)


@every_case
def test_causality(config: ModelConfig) -> None:
    decoder = built(config).eval()
    original = tokens()
    changed = original.clone()
    changed[:, 11:] = (changed[:, 11:] + 1) % VOCABULARY
    with torch.no_grad():
        before, after = decoder(original).logits_BTV, decoder(changed).logits_BTV
    torch.testing.assert_close(before[:, :11], after[:, :11], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(before[:, 11:], after[:, 11:], rtol=1e-4, atol=1e-6)


def gradients(decoder: Decoder) -> dict[str, torch.Tensor]:
    """Of the training objective, by parameter."""
    output = decoder(tokens())
    loss = torch.nn.functional.cross_entropy(output.logits_BTV.flatten(0, 1), tokens().flatten())
    (loss + output.auxiliary_loss).backward()
    return {name: parameter.grad for name, parameter in decoder.named_parameters()}


@every_case
def test_gradients_reach_every_parameter(config: ModelConfig) -> None:
    """Away from the initial values, where queries of zero hide the key norms. The first read has nothing to choose."""
    decoder, generator = built(config), Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    for name, gradient in gradients(decoder).items():
        assert gradient.isfinite().all(), name
        assert gradient.any() or name.startswith("residual.reads.0."), name


@every_case
def test_fast_kernels_equal_plain_ones(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = []
    for kernels in ("auto", "torch"):
        monkeypatch.setenv(dispatch.VARIABLE, kernels)
        decoder = built(config)
        outcomes.append({"logits": decoder(tokens()).logits_BTV} | gradients(decoder))
    for name, plain in outcomes[1].items():
        assert (outcomes[0][name] - plain).norm() <= 1e-4 * plain.norm() + 1e-9, name


@every_case
def test_every_layer_may_be_computed_again_in_the_backward(config: ModelConfig) -> None:
    """Activation checkpointing: the same gradients, to the bit."""
    expected, recomputed = gradients(built(config)), built(config)
    for layer in recomputed.layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    for name, gradient in gradients(recomputed).items():
        assert torch.equal(gradient, expected[name]), name


@every_case
@pytest.mark.parametrize("optimizer", [ADAMW, MUON, PER_HEAD], ids=["adamw", "muon", "per_head"])
def test_every_parameter_is_in_one_optimizer_group_and_only_matrices_decay(
    config: ModelConfig, optimizer: AdamW | Muon
) -> None:
    """Told apart by shape here, and by owner in the package: all maps and experts, no look-up, filter or vector."""
    decoder = Decoder(config)
    names = {id(parameter): name for name, parameter in decoder.named_parameters()}
    groups = build_optimizer(decoder, optimizer).param_groups
    grouped = [[names[id(parameter)] for parameter in group["params"]] for group in groups]
    assert sorted(name for group in grouped for name in group) == sorted(names.values())
    parameters = dict(decoder.named_parameters())
    maps = {name for name, parameter in parameters.items() if parameter.ndim > 1 and "convolution" not in name}
    maps.remove("embedding.weight")
    decayed = {name for names, group in zip(grouped, groups, strict=True) if group["weight_decay"] for name in names}
    assert decayed == maps
    if isinstance(optimizer, Muon):
        assert set(grouped[0]) == maps - {"head.weight"}


@every_case
def test_forward_is_deterministic(config: ModelConfig) -> None:
    one, two = built(config), built(config)
    assert torch.equal(one(tokens()).logits_BTV, two(tokens()).logits_BTV)


def test_swapped_slot_leaves_the_other_weights_alone() -> None:
    plain = built(CASES["residual-Plain"]).state_dict()
    block = built(CASES["residual-BlockAttnRes"]).state_dict()
    shared = plain.keys() & block.keys()
    assert "layers.0.mixer_norm.weight" in shared
    assert "embedding.weight" in shared
    assert all(torch.equal(plain[name], block[name]) for name in shared)
