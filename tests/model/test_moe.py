"""Do routed feed-forwards compute and count what the specification says?"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from k3ablate.config import InputError, parse
from k3ablate.model.balancing import NoBalancing, SignUpdate
from k3ablate.model.moe import LatentMoE, MoE, RoutedConfig, RoutedFeedForward
from k3ablate.model.slots import Dial, Initialised

K2 = MoE(num_experts=384, num_active=8, expert_width=2048)
K3 = LatentMoE(num_experts=896, num_active=16, expert_width=3072, latent_width=3584)
SMALL = MoE(num_experts=8, num_active=3, expert_width=5)
SMALL_LATENT = LatentMoE(num_experts=8, num_active=3, expert_width=5, latent_width=6)
WIDTH = 12


def _built(config: RoutedConfig) -> RoutedFeedForward:
    built = config.build(WIDTH, SignUpdate())
    generator = torch.Generator().manual_seed(0)
    for module in built.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, generator=generator)
        elif isinstance(module, Initialised):
            module.initialise(generator, 1.0)
    nn.init.normal_(built.router.balancer.bias_E, std=0.3, generator=generator)
    return built


def _x() -> Tensor:
    return torch.randn(2, 4, WIDTH, generator=torch.Generator().manual_seed(1))


def _one_token(config: RoutedConfig, built: RoutedFeedForward, x_D: Tensor) -> Tensor:
    """Specification 4.5 for one token."""
    combine = config.activation.combine
    scores = torch.sigmoid(built.router.projection.weight @ x_D)
    chosen = (scores + built.router.balancer.bias_E).argsort(descending=True)[: config.num_active].tolist()
    enter = built.enter(x_D)
    experts = built.experts
    routed = torch.zeros_like(enter)
    for expert in chosen:
        hidden = combine(experts.gate_EFL[expert] @ enter, experts.up_EFL[expert] @ enter)
        weight = config.routed_scale * scores[expert] / scores[chosen].sum()
        routed = routed + weight * (experts.down_ELF[expert] @ hidden)
    if isinstance(config, LatentMoE):
        _, up = built.leave
        if config.latent_norm == "rms":
            routed = functional.rms_norm(routed, routed.shape, eps=config.norm_epsilon)
        routed = up(routed)
    shared = built.shared_experts
    return shared.down(combine(shared.gate(x_D), shared.up(x_D))) + routed


@pytest.mark.parametrize(
    "config", [SMALL, SMALL_LATENT, SMALL_LATENT.model_copy(update={"latent_norm": "none"})], ids=str
)
def test_forward_is_the_specification(config: RoutedConfig) -> None:
    built = _built(config)
    y, _ = built(_x())
    expected = torch.stack([_one_token(config, built, token) for token in _x().flatten(0, 1)]).view_as(y)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)


def test_bias_chooses_but_does_not_weigh() -> None:
    router = _built(SMALL).router
    router.balancer.bias_E.zero_()
    router.balancer.bias_E[5] = 10.0
    routing = router(_x())
    scores = torch.sigmoid(router.projection(_x()))
    assert (routing.chosen == 5).any(-1).all()
    own = scores.gather(-1, routing.chosen)
    torch.testing.assert_close(routing.weights, 2.827 * own / own.sum(-1, keepdim=True))


@pytest.mark.parametrize(("config", "scale"), [(SMALL, 2.827), (SMALL_LATENT, 1.0)], ids=["k2", "k3"])
def test_weights_sum_to_the_scale_of_the_release(config: RoutedConfig, scale: float) -> None:
    """Specification 1.1: raw scores renormalised, times 2.827 in K2 and 1.0 in K3; also where all scores underflow."""
    router = _built(config).router
    torch.testing.assert_close(router(_x()).weights.sum(-1), torch.full((2, 4), scale))
    with torch.no_grad():
        router.projection.weight.mul_(1e3)
    assert router(_x()).weights.isfinite().all()


def test_router_is_float32_under_autocast() -> None:
    router = _built(SMALL).router
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered = router(_x())
    assert lowered.weights.dtype is torch.float32
    assert torch.equal(lowered.weights, router(_x()).weights)


def test_latent_norm_removes_the_routed_scale() -> None:
    y, _ = _built(SMALL_LATENT)(_x())
    scaled, _ = _built(SMALL_LATENT.model_copy(update={"routed_scale": 7.0}))(_x())
    torch.testing.assert_close(scaled, y, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "config", [K2, K3, SMALL, SMALL_LATENT], ids=lambda config: f"{config.kind}{config.num_experts}"
)
def test_counted_groups_are_the_built_ones(config: RoutedConfig) -> None:
    with torch.device("meta"):
        built = config.build(7168, NoBalancing())
    size = lambda module: sum(parameter.numel() for parameter in module.parameters())  # noqa: E731
    groups = {
        "router": size(built.router) + built.router.balancer.bias_E.numel(),
        "latent": size(built.enter) + size(built.leave),
        "shared_experts": size(built.shared_experts),
        "routed_experts": size(built.experts),
    }
    assert config.parameters(7168) == {group: count for group, count in groups.items() if count}


def test_k2_counts_are_those_of_the_specification() -> None:
    groups = K2.parameters(7168)
    assert 60 * groups["router"] == 165_173_760
    assert 60 * groups["shared_experts"] == 2_642_411_520
    assert 60 * groups["routed_experts"] == 1_014_686_023_680
    assert K2.active_parameters(7168) == groups["router"] + 9 * 44_040_192
    assert K2.flops_per_token(7168) == pytest.approx(798e6, rel=1e-3)


def test_k3_counts_are_those_of_the_specification() -> None:
    groups = dict(K3.parameters(7168))
    routed = groups.pop("routed_experts")
    assert routed == 896 * 33_030_144
    assert sum(groups.values()) == 189_927_808
    assert K3.active_parameters(7168) == 189_927_808 + 16 * 33_030_144
    assert K3.flops_per_token(7168) == pytest.approx(1437e6, rel=1e-3)


def test_scaling_keeps_ratios_and_is_exact_at_full_size() -> None:
    full = Dial(width_ratio=1.0, multiple=1000)
    assert (K2.scaled(full), K3.scaled(full)) == (K2, K3)
    small = Dial(width_ratio=64 / 7168, num_active=2, multiple=4)
    assert K2.scaled(small) == MoE(num_experts=96, num_active=2, expert_width=20)
    assert K3.scaled(small) == LatentMoE(num_experts=112, num_active=2, expert_width=28, latent_width=32)


def test_every_parameter_gets_a_gradient_and_the_bias_none() -> None:
    built = _built(SMALL_LATENT)
    y, auxiliary_loss = built(_x())
    (y.square().sum() + auxiliary_loss).backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in built.parameters())
    assert not built.router.balancer.bias_E.requires_grad


@pytest.mark.parametrize(
    ("num_active", "message"),
    [(8, "leaves nothing to choose; write num_active below 8"), (1, "no gradient and never learn; write at least 2")],
)
def test_a_router_without_a_choice_is_refused(num_active: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(MoE, {"num_experts": 8, "num_active": num_active, "expert_width": 4}, source="model")
