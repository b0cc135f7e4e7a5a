"""Every parameter in one role, updates against plain definitions, schedules against known values."""

import copy
import math

import pytest
import torch
from torch import Generator, Tensor, nn

from k3ablate.config import parse
from k3ablate.model.decoder import Decoder, ModelConfig, initialise
from k3ablate.training.optim import (
    Role,
    build_optimizer,
    factor,
    orthogonalise,
    roles,
    set_learning_rate,
)
from k3ablate.training.spec import AdamW, Constant, Cosine, Linear, Muon, WarmupStableDecay

ADAMW = AdamW(learning_rate=0.01, weight_decay=0.5)
MUON = Muon(learning_rate=0.02, weight_decay=0.3, momentum=0.9, rest=ADAMW)


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


def names_of(decoder: Decoder, parameters: list[nn.Parameter]) -> set[str]:
    names = {id(parameter): name for name, parameter in decoder.named_parameters()}
    return {names[id(parameter)] for parameter in parameters}


def test_every_parameter_has_one_role() -> None:
    decoder = k3_like()
    sorted_parameters = roles(decoder)
    found = [id(parameter) for parameters in sorted_parameters.values() for parameter in parameters]
    assert sorted(found) == sorted(id(parameter) for parameter in decoder.parameters())


def test_roles_follow_what_a_parameter_does() -> None:
    decoder = k3_like()
    sorted_parameters = roles(decoder)
    assert names_of(decoder, sorted_parameters[Role.EMBEDDING]) == {"embedding.weight"}
    assert names_of(decoder, sorted_parameters[Role.HEAD]) == {"head.weight"}
    vectors = names_of(decoder, sorted_parameters[Role.VECTOR])
    matrices = names_of(decoder, sorted_parameters[Role.MATRIX])
    for word in ("A_log", "dt_bias", "norm", "query_D", "convolution"):
        holders = {name for name, _ in decoder.named_parameters() if word in name}
        assert holders, f"the model of this test has no {word}"
        assert holders <= vectors
    assert all(dict(decoder.named_parameters())[name].ndim in (2, 3) for name in matrices)
    stacks = {name for name, parameter in decoder.named_parameters() if parameter.ndim == 3 and "convol" not in name}
    assert stacks
    assert stacks <= matrices


def test_adamw_decays_matrices_and_head_only() -> None:
    decoder = k3_like()
    sorted_parameters = roles(decoder)
    before = {name: parameter.detach().clone() for name, parameter in decoder.named_parameters()}
    optimizer = build_optimizer(decoder, ADAMW)
    for parameter in decoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    decayed = names_of(decoder, sorted_parameters[Role.MATRIX] + sorted_parameters[Role.HEAD])
    for name, parameter in decoder.named_parameters():
        expected = before[name] * (1 - 0.01 * 0.5) if name in decayed else before[name]
        torch.testing.assert_close(parameter.detach(), expected)


def plain_orthogonalised(matrix: Tensor) -> Tensor:
    """Specification 4.7, one matrix at a time."""
    x = matrix / matrix.norm()
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


@pytest.mark.parametrize("shape", [(7, 3), (3, 7), (5, 5), (1, 4)])
def test_newton_schulz_is_the_definition_matrix_by_matrix(shape: tuple[int, int]) -> None:
    matrices = torch.randn(3, *shape, generator=Generator().manual_seed(1))
    expected = torch.stack([plain_orthogonalised(matrix) for matrix in matrices])
    torch.testing.assert_close(orthogonalise(matrices), expected, rtol=1e-4, atol=1e-5)


def test_newton_schulz_brings_singular_values_near_one_and_leaves_zero() -> None:
    matrices = torch.randn(2, 16, 24, generator=Generator().manual_seed(2))
    values = torch.linalg.svdvals(orthogonalise(matrices))
    assert values.min() > 0.6
    assert values.max() < 1.3
    assert torch.equal(orthogonalise(torch.zeros(1, 3, 2)), torch.zeros(1, 3, 2))


def test_two_muon_steps_are_the_definition() -> None:
    decoder = k3_like()
    optimizer = build_optimizer(decoder, MUON)
    matrices = roles(decoder)[Role.MATRIX]
    expected = [parameter.detach().clone() for parameter in matrices]
    momenta = [torch.zeros_like(parameter) for parameter in expected]
    for seed in (3, 4):
        fill_gradients(decoder, seed)
        for parameter, weight, momentum in zip(matrices, expected, momenta, strict=True):
            momentum.mul_(0.9).add_(parameter.grad)
            pairs = zip(weight.view(-1, *weight.shape[-2:]), momentum.view(-1, *weight.shape[-2:]), strict=True)
            for matrix, direction in pairs:
                scale = 0.2 * math.sqrt(max(matrix.shape))
                matrix -= 0.02 * (plain_orthogonalised(direction) * scale + 0.3 * matrix)
        optimizer.step()
    for parameter, weight in zip(matrices, expected, strict=True):
        torch.testing.assert_close(parameter.detach(), weight, rtol=1e-4, atol=1e-6)


def test_muon_leaves_the_rest_to_adamw() -> None:
    by_muon, by_adamw = k3_like(), k3_like()
    optimizers = [build_optimizer(by_muon, MUON), build_optimizer(by_adamw, ADAMW)]
    for seed in (5, 6):
        for decoder, optimizer in zip((by_muon, by_adamw), optimizers, strict=True):
            fill_gradients(decoder, seed)
            optimizer.step()
    for role in (Role.EMBEDDING, Role.HEAD, Role.VECTOR):
        for ours, theirs in zip(roles(by_muon)[role], roles(by_adamw)[role], strict=True):
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


@pytest.mark.parametrize("config", [ADAMW, MUON], ids=["adamw", "muon"])
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


def test_cosine_known_values() -> None:
    schedule = Cosine(warmup_fraction=0.1, final_fraction=0.2)
    values = [factor(schedule, step, 100) for step in (0, 4, 9, 10, 55, 99)]
    last = 0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi * 89 / 90))
    assert values == pytest.approx([0.1, 0.5, 1.0, 1.0, 0.6, last])


def test_warmup_stable_decay_known_values() -> None:
    schedule = WarmupStableDecay(warmup_fraction=0.02, decay_fraction=0.4, final_fraction=0.1)
    values = [factor(schedule, step, 100) for step in (0, 1, 2, 60, 80)]
    assert values == pytest.approx([0.5, 1.0, 1.0, 1.0, 0.55])


def test_linear_and_constant_known_values() -> None:
    assert [factor(Linear(warmup_fraction=0.0), step, 11) for step in (0, 1, 6)] == pytest.approx([1.0, 1.0, 0.5])
    assert [factor(Constant(warmup_fraction=0.5), step, 8) for step in (0, 3, 7)] == [0.25, 1.0, 1.0]


@pytest.mark.parametrize("schedule", [Cosine(), WarmupStableDecay(), Linear(), Constant()])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 50, 997])
def test_schedules_rise_to_the_peak_and_never_rise_again(schedule: object, num_steps: int) -> None:
    values = [factor(schedule, step, num_steps) for step in range(num_steps)]
    peak = values.index(1.0)
    assert values[: peak + 1] == sorted(values[: peak + 1])
    assert values[peak:] == sorted(values[peak:], reverse=True)
    assert min(values) > 0  # no step is wasted
