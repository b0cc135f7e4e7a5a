"""Expert-parallel traffic by hand, and from the routing of a router that runs."""

import pytest
import torch
from torch import Generator

from k3ablate.config import InputError, parse
from k3ablate.model.balancing import SignUpdate
from k3ablate.model.decoder import ModelConfig
from k3ablate.model.moe import LatentMoE, MoE
from k3ablate.model.traffic import even_routing, even_sources, traffic
from k3ablate.recipes import recipe

WIDTH = 16
PLAIN = MoE(num_experts=4, num_active=2, expert_width=8)
LATENT = LatentMoE(num_experts=4, num_active=2, expert_width=8, latent_width=6)


def test_even_routing_by_hand() -> None:
    found = traffic(LATENT, WIDTH, even_routing(num_experts=4, num_ranks=2))
    assert (found.num_ranks, found.leaving_share, found.worst_load) == (2, 0.5, 1.0)
    # 2 experts a token, half of them away, there and back, 16 or 6 numbers of 2 bytes
    assert (found.full_width, found.full_width_bytes) == (16, 2 * 0.5 * 2 * 16 * 2)
    assert (found.routed_width, found.routed_width_bytes) == (6, 2 * 0.5 * 2 * 6 * 2)


def test_without_a_latent_experts_take_the_full_width() -> None:
    found = traffic(PLAIN, WIDTH, even_routing(num_experts=4, num_ranks=2), bytes_per_number=1)
    assert found.routed_width_bytes == found.full_width_bytes == 2 * 0.5 * 2 * 16


def test_one_rank_sends_nothing() -> None:
    found = traffic(LATENT, WIDTH, even_routing(num_experts=4, num_ranks=1))
    assert (found.leaving_share, found.full_width_bytes, found.worst_load) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("pairs", "leaving_share", "worst_load"),
    [
        ([[3, 1, 0, 0], [0, 0, 2, 2]], 0.0, 1.0),  # every token's experts are at home
        ([[0, 0, 3, 1], [2, 2, 0, 0]], 1.0, 1.0),  # none is
        ([[4, 0, 0, 0], [2, 2, 0, 0]], 0.5, 2.0),  # all on rank 0
        ([[1, 2, 3, 4], [5, 6, 7, 8]], 18 / 36, 22 / 18),  # rank 0 gets 3 + 11, rank 1 gets 7 + 15
    ],
)
def test_counts_by_rank_and_expert(pairs: list[list[int]], leaving_share: float, worst_load: float) -> None:
    found = traffic(LATENT, WIDTH, torch.tensor(pairs))
    assert found.leaving_share == pytest.approx(leaving_share, abs=1e-15)
    assert found.worst_load == pytest.approx(worst_load)
    assert found.routed_width_bytes == pytest.approx(2 * 2 * leaving_share * 6 * 2, abs=1e-12)


def test_counts_by_expert_alone() -> None:
    """Tokens spread evenly: whichever experts are popular, half of the pairs of two ranks leave."""
    found = traffic(LATENT, WIDTH, even_sources(torch.tensor([6, 2, 1, 1]), num_ranks=2))
    assert (found.leaving_share, found.worst_load) == pytest.approx((0.5, 8 / 5))


def test_k3_halves_what_is_sent() -> None:
    config = parse(ModelConfig, recipe("model", "kimi-k3"), source="kimi-k3")
    feed_forward = config.feed_forward.main
    assert isinstance(feed_forward, LatentMoE)
    found = traffic(feed_forward, config.width, even_routing(896, num_ranks=32))
    assert found.leaving_share == pytest.approx(31 / 32)
    assert found.full_width_bytes == pytest.approx(16 * 31 / 32 * 2 * 7168 * 2)
    assert found.routed_width_bytes == pytest.approx(found.full_width_bytes / 2)


def test_counts_of_a_router_that_runs() -> None:
    """Each of two ranks has one sequence; pairs that leave are looked for one by one."""
    num_ranks, length = 2, 50
    router = LATENT.router(WIDTH, SignUpdate()).train()
    torch.nn.init.normal_(router.projection.weight, generator=Generator().manual_seed(0))
    chosen_RTA = router(torch.randn(num_ranks, length, WIDTH, generator=Generator().manual_seed(1))).chosen
    leaving = sum(
        rank != expert // 2
        for rank, tokens in enumerate(chosen_RTA.tolist())
        for experts in tokens
        for expert in experts
    )
    pairs_RE = torch.stack([chosen_TA.flatten().bincount(minlength=4) for chosen_TA in chosen_RTA])
    exact = traffic(LATENT, WIDTH, pairs_RE)
    assert exact.leaving_share == pytest.approx(leaving / chosen_RTA.numel())

    router.balancer.step()
    load_E = router.balancer.load_E
    assert torch.equal(load_E, pairs_RE.sum(0).float())
    from_load = traffic(LATENT, WIDTH, even_sources(load_E, num_ranks))
    heaviest = max(float(load_E[:2].sum()), float(load_E[2:].sum()))
    assert from_load.worst_load == exact.worst_load == pytest.approx(heaviest / length / 2)
    assert from_load.leaving_share == pytest.approx(0.5)


@pytest.mark.parametrize("num_ranks", [0, 3, 8])
def test_ranks_that_cannot_share_experts_equally(num_ranks: int) -> None:
    with pytest.raises(InputError, match=rf"ranks {num_ranks}: 4 experts .* write one of 1, 2, 4"):
        even_routing(num_experts=4, num_ranks=num_ranks)


def test_counts_of_nothing() -> None:
    with pytest.raises(InputError, match="all zero; give those of at least one batch"):
        traffic(LATENT, WIDTH, torch.zeros(2, 4))
