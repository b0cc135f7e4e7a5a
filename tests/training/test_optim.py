"""Updates of a whole decoder against plain definitions, and state that goes on where it stopped."""

import copy
import math

import pytest
import torch
from torch import Generator, Tensor, nn

from k3ablate.config import parse
from k3ablate.model.decoder import Decoder, ModelConfig, initialise
from k3ablate.training.groups import rules
from k3ablate.training.muon import pieces
from k3ablate.training.optim import build_optimizer, set_learning_rate
from k3ablate.training.optimizers import AdamW, AdamWRule, Muon, Role

ADAMW = AdamW(learning_rate=0.01, weight_decay=0.5)
REST = AdamWRule(learning_rate=0.01, weight_decay=0.5)
MUON = Muon(learning_rate=0.02, weight_decay=0.3, momentum=0.9, rest=REST)
PER_HEAD = MUON.model_copy(update={"cut": "per_head"})


def k3_like() -> Decoder:
    """KDA, gated MLA, latent experts and attention residuals: every kind of parameter there is."""
    mla = {"kind": "gated_mla", "num_heads": 2, "query_rank": 6, "key_value_rank": 4}
    widths = {"head_width": 4, "position_width": 2, "value_width": 4}
    experts = {"kind": "latent_moe", "num_experts": 4, "num_active": 2, "expert_width": 6, "latent_width": 8}
    tree = {
        "vocabulary_size": 31,
        "width": 12,
        "num_layers": 2,
        "mixer": {"main": {"kind": "kda", "num_heads": 2, "head_width": 4}, "periodic": {"mixer": mla | widths}},
        "feed_forward": {"main": experts},
        "residual": {"kind": "full_attnres"},
    }
    config = parse(ModelConfig, tree, source="test")
    decoder = Decoder(config)
    initialise(decoder, Generator().manual_seed(0), config.initializer_range)
    return decoder


def fill_gradients(decoder: Decoder, seed: int) -> None:
    draw = Generator().manual_seed(seed)
    for parameter in decoder.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=draw)


def of_role(decoder: Decoder, *roles: Role) -> dict[str, nn.Parameter]:
    parameters = dict(decoder.named_parameters())
    return {rule.name: parameters[rule.name] for rule in rules(decoder, ADAMW) if rule.role in roles}


@pytest.mark.parametrize("decayed", [(Role.MATRIX, Role.HEAD), (Role.VECTOR,), (), tuple(Role)], ids=str)
@pytest.mark.parametrize("config", [ADAMW, MUON], ids=["adamw", "muon"])
def test_what_is_decayed_is_stated_by_role(config: AdamW | Muon, decayed: tuple[Role, ...]) -> None:
    decoder = k3_like()
    before = {name: parameter.detach().clone() for name, parameter in decoder.named_parameters()}
    optimizer = build_optimizer(decoder, config.model_copy(update={"decayed": decayed}))
    for parameter in decoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    by_muon = set(of_role(decoder, Role.MATRIX)) if isinstance(config, Muon) else set()
    shrunk = of_role(decoder, *decayed)
    for name, parameter in decoder.named_parameters():
        decay = (0.02 * 0.3 if name in by_muon else 0.01 * 0.5) if name in shrunk else 0.0
        torch.testing.assert_close(parameter.detach(), before[name] * (1 - decay))


def plain_orthogonalised(matrix: Tensor) -> Tensor:
    """Specification 4.7, one matrix at a time."""
    x = matrix / matrix.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


@pytest.mark.parametrize("config", [MUON, PER_HEAD], ids=["whole", "per_head"])
def test_two_muon_steps_are_the_definition(config: Muon) -> None:
    decoder = k3_like()
    optimizer = build_optimizer(decoder, config)
    matrices = of_role(decoder, Role.MATRIX)
    cuts = {rule.name: rule.cut for rule in rules(decoder, config)}
    expected = {name: parameter.detach().clone() for name, parameter in matrices.items()}
    momenta = {name: torch.zeros_like(weight) for name, weight in expected.items()}
    for seed in (3, 4):
        fill_gradients(decoder, seed)
        for name, parameter in matrices.items():
            momenta[name].mul_(0.9).add_(parameter.grad)
            both = (pieces(tensors[name], cuts[name]) for tensors in (expected, momenta))
            for blocks, directions in zip(*both, strict=True):
                for block, direction in zip(blocks, directions, strict=True):
                    scale = 0.2 * math.sqrt(max(block.shape))
                    block -= 0.02 * (plain_orthogonalised(direction) * scale + 0.3 * block)
        optimizer.step()
    for name, parameter in matrices.items():
        torch.testing.assert_close(parameter.detach(), expected[name], rtol=1e-4, atol=1e-6)


def test_muon_leaves_the_rest_to_adamw() -> None:
    by_muon, by_adamw = k3_like(), k3_like()
    optimizers = [build_optimizer(by_muon, MUON), build_optimizer(by_adamw, ADAMW)]
    for seed in (5, 6):
        for decoder, optimizer in zip((by_muon, by_adamw), optimizers, strict=True):
            fill_gradients(decoder, seed)
            optimizer.step()
    for role in (Role.EMBEDDING, Role.HEAD, Role.VECTOR):
        for ours, theirs in zip(of_role(by_muon, role).values(), of_role(by_adamw, role).values(), strict=True):
            assert torch.equal(ours, theirs)


def test_muon_update_has_the_rms_of_adamw() -> None:
    decoder = k3_like()
    optimizer = build_optimizer(decoder, MUON.model_copy(update={"weight_decay": 0.0}))
    weight = decoder.layers[0].mixer.query.weight
    before = weight.detach().clone()
    fill_gradients(decoder, 7)
    optimizer.step()
    rms = ((weight.detach() - before) / 0.02).square().mean().sqrt()
    assert rms == pytest.approx(0.2, rel=0.25)  # Newton-Schulz ends between 0.7 and 1.2


@pytest.mark.parametrize("config", [ADAMW, MUON, PER_HEAD], ids=["adamw", "muon", "per_head"])
def test_state_round_trip_continues_bit_for_bit(config: AdamW | Muon) -> None:
    decoder = k3_like()
    optimizer = build_optimizer(decoder, config)
    for seed in (8, 9):
        fill_gradients(decoder, seed)
        optimizer.step()
    restored = copy.deepcopy(decoder)
    restored_optimizer = build_optimizer(restored, config)
    restored_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for continued, its_optimizer in ((decoder, optimizer), (restored, restored_optimizer)):
        fill_gradients(continued, 10)
        its_optimizer.step()
    for ours, theirs in zip(decoder.parameters(), restored.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_step_returns_the_loss_of_its_closure() -> None:
    decoder = k3_like()
    optimizer = build_optimizer(decoder, MUON)
    fill_gradients(decoder, 11)
    assert optimizer.step(lambda: 1.5) == 1.5


def test_learning_rates_are_fractions_of_each_groups_peak() -> None:
    optimizer = build_optimizer(k3_like(), MUON)
    set_learning_rate(optimizer, 0.5)
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.005, 0.0025, 0.0025]
