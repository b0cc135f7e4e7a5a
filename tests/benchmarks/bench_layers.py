"""Routed experts against dense ones and a loop, what attention residuals add to a step, and what balancing adds."""

import operator
import time
from collections.abc import Callable

import torch
from steps import Step, built

from k3ablate.config import parse
from k3ablate.kernels import routing
from k3ablate.kernels.experts import Experts, ExpertWeights, experts, experts_grouped, experts_plain
from k3ablate.model.balancing import NoBalancing, Quantile
from k3ablate.model.decoder import ModelConfig
from k3ablate.model.feedforward import GLU, SwiGLU
from k3ablate.model.moe import LatentMoE

TOKENS, LATENT, EXPERT_WIDTH, EXPERTS, ACTIVE = 4096, 64, 64, 64, 4


def test_experts(compare: Callable[..., None]) -> None:
    """Routed experts and a dense unit of ACTIVE times the width: the same products per token."""
    generator = torch.Generator().manual_seed(0)
    x_NL = torch.randn(TOKENS, LATENT, generator=generator, requires_grad=True)
    matrices = [
        torch.randn(EXPERTS, *shape, generator=generator).mul_(0.1).requires_grad_()
        for shape in ((EXPERT_WIDTH, LATENT), (EXPERT_WIDTH, LATENT), (LATENT, EXPERT_WIDTH))
    ]
    scores_NE = torch.rand(TOKENS, EXPERTS, generator=generator)
    chosen_NA = routing.choose(scores_NE, torch.zeros(EXPERTS), ACTIVE)
    weights_NA = torch.full((TOKENS, ACTIVE), 1 / ACTIVE, requires_grad=True)
    given_NL = torch.randn(TOKENS, LATENT, generator=generator)

    def routed(form: Experts) -> Callable[[], object]:
        leaves = [x_NL, weights_NA, *matrices]
        return lambda: torch.autograd.grad(
            form(x_NL, chosen_NA, weights_NA, ExpertWeights(*matrices), SwiGLU()), leaves, given_NL
        )

    dense = GLU(LATENT, ACTIVE * EXPERT_WIDTH, SwiGLU())
    others = {
        "dense GLU": lambda: torch.autograd.grad(dense(x_NL), [x_NL, *dense.parameters()], given_NL),
        "loop over experts": routed(experts_plain),
        "torch's grouped products": routed(experts_grouped),
    }
    compare("experts", "chosen form", routed(experts), others)


def test_attention_residuals(compare: Callable[..., None]) -> None:
    """A step of a 12-layer model of width 128, batch 8 x 128."""

    def step(residual: dict[str, object]) -> Step:
        mixer = {"kind": "softmax", "num_heads": 4, "num_key_value_heads": 4, "head_width": 32}
        tree = {
            "vocabulary_size": 256,
            "width": 128,
            "num_layers": 12,
            "mixer": {"main": mixer},
            "feed_forward": {"main": {"kind": "dense", "hidden_width": 384}},
            "residual": residual,
        }
        return Step(built(parse(ModelConfig, tree, source="benchmark")), batch_size=8, context=128)

    others = {"plain": step({"kind": "plain"}), "block": step({"kind": "block_attnres"})}
    compare("attention residuals", "full", step({"kind": "full_attnres"}), others, rounds=9)


def test_quantile_balancing(adds: Callable[..., None]) -> None:
    """What it adds to forward and backward of one layer: 896 experts, 16 active, width 256, 4,096 tokens.

    Timed are the router's forward, in which both choose their experts and count loads, and the balancer's step.
    """

    def layer(balancing: NoBalancing | Quantile) -> Callable[[], float]:
        moe = LatentMoE(num_experts=896, num_active=16, expert_width=64, latent_width=128)
        module = moe.build(256, balancing)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, std=0.02, generator=torch.Generator().manual_seed(0))
        x_BTD = torch.randn(1, TOKENS, 256, generator=torch.Generator().manual_seed(1))
        routing_seconds = [0.0, 0.0]  # when the router began, when it ended
        module.router.register_forward_pre_hook(lambda *_: operator.setitem(routing_seconds, 0, time.thread_time()))
        module.router.register_forward_hook(lambda *_: operator.setitem(routing_seconds, 1, time.thread_time()))

        def step() -> float:
            module(x_BTD)[0].sum().backward()
            start = time.thread_time()
            module.router.balancer.step()
            return time.thread_time() - start + routing_seconds[1] - routing_seconds[0]

        return step

    adds("quantile balancing", layer(NoBalancing()), layer(Quantile()))
