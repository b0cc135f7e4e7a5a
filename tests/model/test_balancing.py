"""Do balancers count once, move as the specification says, and even out the load?"""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from k3ablate.config import InputError, parse
from k3ablate.kernels import routing
from k3ablate.model.balancing import AuxiliaryLoss, Balancer, NoBalancing, Quantile, SignUpdate
from k3ablate.model.moe import MoE
from k3ablate.model.slots import BalancingConfig

NUM_EXPERTS, NUM_ACTIVE = 16, 3
EVERY_KIND = [NoBalancing(), AuxiliaryLoss(), SignUpdate(), Quantile(), Quantile(estimator="exact")]


def _scores(num_tokens: int = 4096, skew: float = 0.0, seed: int = 0) -> Tensor:
    """Router scores of one long sequence, 1TE; `skew` favours experts of low index."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, num_tokens, NUM_EXPERTS, generator=generator)
    return torch.sigmoid(logits - skew * torch.arange(NUM_EXPERTS))


def _chosen(balancer: Balancer, scores: Tensor) -> Tensor:
    return (scores + balancer.bias_E).topk(balancer.num_active, dim=-1).indices


def _train(balancer: Balancer, scores: Tensor, num_steps: int) -> list[float]:
    """Imbalance of each step on the same scores."""
    imbalances = []
    for _ in range(num_steps):
        balancer.observe(scores, _chosen(balancer, scores))
        balancer.step()
        imbalances.append(balancer.imbalance)
    return imbalances


def _quantile_by_sorting(scores: Tensor, bias: Tensor, num_active: int) -> Tensor:
    """Specification 4.6, word for word."""
    scores = scores.flatten(0, 1)
    num_tokens, num_experts = scores.shape
    cutoff = (scores + bias).sort(dim=1, descending=True).values[:, num_active]
    margins = (scores - cutoff[:, None]).sort(dim=0, descending=True).values
    raw = -margins[num_tokens * num_active // num_experts]
    return raw - raw.mean()


def test_exact_quantile_is_the_specification() -> None:
    balancer = Quantile(estimator="exact").build(NUM_EXPERTS, NUM_ACTIVE)
    for seed in range(3):
        scores = _scores(skew=0.2, seed=seed)
        expected = _quantile_by_sorting(scores, balancer.bias_E, NUM_ACTIVE)
        _train(balancer, scores, 1)
        torch.testing.assert_close(balancer.bias_E, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_bins", [50, 1000])
def test_histogram_is_within_one_bin_of_exact(num_bins: int) -> None:
    scores = _scores(num_tokens=20_000, skew=0.2)
    histogram = Quantile(num_bins=num_bins).build(NUM_EXPERTS, NUM_ACTIVE)
    exact = Quantile(estimator="exact").build(NUM_EXPERTS, NUM_ACTIVE)
    for _ in range(3):
        exact.bias_E.copy_(histogram.bias_E)
        bin_width = float(histogram.bias_E.max() - histogram.bias_E.min() + 2) / num_bins
        for balancer in (histogram, exact):
            _train(balancer, scores, 1)
        # each is centred by its own mean, which may be off by as much again
        assert float((histogram.bias_E - exact.bias_E).abs().max()) < 2 * bin_width
        distances = histogram.bias_E - exact.bias_E
        assert float(distances.max() - distances.min()) < bin_width


@settings(deadline=None)
@given(
    seed=strategies.integers(0, 2**32),
    num_tokens=strategies.integers(1, 40),
    num_active=strategies.integers(1, NUM_EXPERTS - 1),
    num_bins=strategies.sampled_from([1, 7, 1000]),
)
def test_histogram_before_centring_is_within_one_bin_of_the_quantile_however_few_the_tokens(
    seed: int, num_tokens: int, num_active: int, num_bins: int
) -> None:
    """The ceil(fair load)-th smallest distance; the exact estimator takes it, or the next if the load is whole."""
    scores = _scores(num_tokens, skew=0.2, seed=seed)
    balancer = Quantile(num_bins=num_bins).build(NUM_EXPERTS, num_active)
    balancer.bias_E.normal_(std=0.3, generator=torch.Generator().manual_seed(seed))
    chosen = _chosen(balancer, scores)
    balancer.observe(scores, chosen)
    fair_load = num_tokens * num_active / NUM_EXPERTS
    distances = routing.distances(scores[0], balancer.bias_E, chosen[0])
    expected = distances.kthvalue(math.ceil(fair_load), dim=0).values
    _, bin_width = routing.bin_edges(balancer.bias_E, num_bins)
    assert (balancer._quantile(fair_load) - expected).abs().max() <= bin_width + 1e-6


def test_histogram_interpolates_inside_the_bin() -> None:
    """Two experts and one choice of each token, written out: distances 0.3, 0.1, -0.1 and their negatives."""
    balancer = Quantile(num_bins=4).build(2, 1)
    scores = torch.tensor([[[0.4, 0.7], [0.4, 0.5], [0.5, 0.4]]])
    balancer.observe(scores, _chosen(balancer, scores))
    balancer.step()
    # range [-1, 1], width 0.5, fair load 1.5, reached at ceil = 2: expert 0 has distances -0.1 | 0.3, 0.1 in bins
    # 1 and 2: 0 + (1.5 - 1) / 2 * 0.5 = 0.125; expert 1 has -0.3, -0.1 in bin 1: -0.5 + 1.5 / 2 * 0.5 = -0.125
    torch.testing.assert_close(balancer.bias_E, torch.tensor([0.125, -0.125]))


@pytest.mark.parametrize("estimator", ["exact", "histogram"])
def test_quantile_evens_out_a_heavy_overload_in_five_updates(estimator: str) -> None:
    balancer = Quantile(estimator=estimator, num_bins=1000).build(64, 4)
    generator = torch.Generator().manual_seed(0)
    popularity = torch.linspace(1, -1, 64)
    scores = torch.sigmoid(0.1 * torch.randn(1, 8192, 64, generator=generator) + popularity)
    imbalances = _train(balancer, scores, 6)
    assert imbalances[0] > 13
    assert imbalances[5] < 1.1


def test_momentum_mixes_the_old_bias_in() -> None:
    scores = _scores(skew=0.2)
    fresh = Quantile(estimator="exact").build(NUM_EXPERTS, NUM_ACTIVE)
    smooth = Quantile(estimator="exact", momentum=0.75).build(NUM_EXPERTS, NUM_ACTIVE)
    for balancer in (fresh, smooth):
        _train(balancer, scores, 1)
    torch.testing.assert_close(smooth.bias_E, 0.25 * fresh.bias_E)


def test_sign_update_moves_by_the_rate_and_is_centred() -> None:
    balancer = SignUpdate(rate=0.01).build(4, 2)
    chosen = torch.tensor([[[0, 1], [0, 1], [0, 2], [0, 3]]])  # loads 4, 2, 1, 1 around a mean of 2
    balancer.observe(torch.full((1, 4, 4), 0.5), chosen)
    balancer.step()
    expected = 0.01 * torch.tensor([-1.0, 0.0, 1.0, 1.0])
    torch.testing.assert_close(balancer.bias_E, expected - expected.mean())
    assert balancer.load_E.tolist() == [4, 2, 1, 1]
    assert balancer.imbalance == 2.0


def test_sign_update_evens_out_the_load() -> None:
    imbalances = _train(SignUpdate(rate=0.01).build(NUM_EXPERTS, NUM_ACTIVE), _scores(skew=0.1), 60)
    assert imbalances[0] > 1.8
    assert imbalances[-1] < 1.15


def test_auxiliary_loss_is_the_sequence_wise_formula() -> None:
    balancer = AuxiliaryLoss(coefficient=0.5).build(NUM_EXPERTS, NUM_ACTIVE)
    scores = _scores(num_tokens=60, skew=0.2).view(4, 15, NUM_EXPERTS)
    chosen = _chosen(balancer, scores)
    losses = []
    for sequence, choices in zip(scores, chosen, strict=True):
        fraction = choices.flatten().bincount(minlength=NUM_EXPERTS) * NUM_EXPERTS / (NUM_ACTIVE * 15)
        losses.append((fraction * (sequence / sequence.sum(-1, keepdim=True)).mean(0)).sum())
    torch.testing.assert_close(balancer.observe(scores, chosen), 0.5 * torch.stack(losses).mean())


def test_auxiliary_loss_pulls_down_scores_of_loaded_experts_only_through_probabilities() -> None:
    balancer = AuxiliaryLoss().build(NUM_EXPERTS, NUM_ACTIVE)
    scores = _scores(num_tokens=300, skew=0.2).requires_grad_()
    balancer.observe(scores, _chosen(balancer, scores.detach())).backward()
    balancer.step()
    pull = scores.grad.mean((0, 1))
    assert torch.equal(pull.argsort(), balancer.load_E.argsort())


def test_an_even_load_costs_exactly_the_coefficient() -> None:
    balancer = AuxiliaryLoss(coefficient=0.01).build(4, 2)
    chosen = torch.tensor([[[0, 1], [2, 3]]])
    assert balancer.observe(torch.full((1, 2, 4), 0.3), chosen).item() == pytest.approx(0.01)


@pytest.mark.parametrize("config", EVERY_KIND, ids=str)
def test_micro_batches_move_the_bias_like_one_batch(config: BalancingConfig) -> None:
    whole, split = (config.build(NUM_EXPERTS, NUM_ACTIVE) for _ in range(2))
    for seed in range(3):
        scores = _scores(num_tokens=1000, skew=0.2, seed=seed)
        whole.observe(scores, _chosen(whole, scores))
        for piece in scores.split([300, 600, 100], dim=1):
            split.observe(piece, _chosen(split, piece))
        whole.step()
        split.step()
        assert torch.equal(whole.load_E, split.load_E)
        assert torch.equal(whole.bias_E, split.bias_E)
    assert whole.load_E.sum() == 1000 * NUM_ACTIVE


@pytest.mark.parametrize("config", EVERY_KIND, ids=str)
def test_bias_stays_centred_and_only_some_kinds_move_it(config: BalancingConfig) -> None:
    balancer = config.build(NUM_EXPERTS, NUM_ACTIVE)
    _train(balancer, _scores(skew=0.2), 4)
    assert float(balancer.bias_E.mean()) == pytest.approx(0, abs=1e-6)
    assert bool(balancer.bias_E.any()) == (config.kind in ("sign_update", "quantile"))


@pytest.mark.parametrize("config", EVERY_KIND, ids=str)
def test_evaluation_and_idle_steps_change_nothing(config: BalancingConfig) -> None:
    moe, x = _small_moe(config)
    balancer = moe.router.balancer
    moe(x)
    balancer.step()
    before = {name: buffer.clone() for name, buffer in balancer.named_buffers()}
    moe.eval()
    _, auxiliary_loss = moe(x)
    balancer.step()
    assert auxiliary_loss.item() == 0
    for name, buffer in balancer.named_buffers():
        assert torch.equal(buffer, before[name])


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("config", EVERY_KIND, ids=str)
def test_recomputation_counts_once_and_keeps_gradients(config: BalancingConfig, use_reentrant: bool) -> None:
    outcomes = []
    for recompute in (False, True):
        moe, x = _small_moe(config)
        y, auxiliary_loss = checkpoint(moe, x, use_reentrant=use_reentrant) if recompute else moe(x)
        (y.square().sum() + auxiliary_loss).backward()
        moe.router.balancer.step()
        gradients = [parameter.grad for parameter in moe.parameters()]
        outcomes.append([x.grad, *gradients, moe.router.balancer.load_E, moe.router.balancer.bias_E])
    assert outcomes[0][-2].sum() == x.shape[0] * x.shape[1] * NUM_ACTIVE
    torch.testing.assert_close(outcomes[1], outcomes[0])


@pytest.mark.parametrize("config", EVERY_KIND, ids=str)
def test_a_checkpoint_goes_on_with_the_same_bits(config: BalancingConfig) -> None:
    whole, resumed = (config.build(NUM_EXPERTS, NUM_ACTIVE) for _ in range(2))
    _train(whole, _scores(skew=0.2), 2)
    resumed.load_state_dict(whole.state_dict())
    imbalances = [_train(balancer, _scores(skew=0.2, seed=1), 2) for balancer in (whole, resumed)]
    assert imbalances[0] == imbalances[1]
    assert torch.equal(whole.bias_E, resumed.bias_E)


def test_only_the_bias_is_in_a_checkpoint() -> None:
    for config in EVERY_KIND:
        assert list(config.build(NUM_EXPERTS, NUM_ACTIVE).state_dict()) == ["bias_E"]


def test_initialise_clears_a_module_built_without_memory() -> None:
    with torch.device("meta"):
        balancer = Quantile().build(NUM_EXPERTS, NUM_ACTIVE)
    balancer = balancer.to_empty(device="cpu")
    balancer.initialise(torch.Generator(), 0.02)
    assert not balancer.bias_E.any()
    assert math.isnan(balancer.imbalance)


def test_momentum_of_one_is_refused() -> None:
    with pytest.raises(InputError, match="balancing: momentum: found 1; "):
        parse(Quantile, {"momentum": 1}, source="balancing")


ONE_OF_TWO_RANKS = """
import sys
import torch
from torch import distributed
from k3ablate.config import InputError
from k3ablate.model.balancing import NoBalancing, Quantile, SignUpdate

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
scores, chosen = torch.load(f"{folder}/batch.pt")
balancers = [config.build(scores.shape[-1], chosen.shape[-1]) for config in (NoBalancing(), SignUpdate(), Quantile())]
for balancer in balancers:
    balancer.observe(scores.split([300, 700], dim=1)[rank], chosen.split([300, 700], dim=1)[rank])
    balancer.step()
torch.save([(balancer.load_E, balancer.bias_E) for balancer in balancers], f"{folder}/rank{rank}.pt")
try:
    Quantile(estimator="exact").build(scores.shape[-1], chosen.shape[-1]).observe(scores, chosen)
except InputError as error:
    assert "write histogram" in str(error)
else:
    raise SystemExit("the exact estimator took half a batch for the whole")
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_count_as_one(tmp_path: Path) -> None:
    scores = _scores(num_tokens=1000, skew=0.2)
    alone = [config.build(NUM_EXPERTS, NUM_ACTIVE) for config in (NoBalancing(), SignUpdate(), Quantile())]
    chosen = _chosen(alone[0], scores)
    torch.save((scores, chosen), tmp_path / "batch.pt")
    ranks = [subprocess.Popen([sys.executable, "-c", ONE_OF_TWO_RANKS, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [process.wait(timeout=120) for process in ranks] == [0, 0]
    for balancer in alone:
        balancer.observe(scores, chosen)
        balancer.step()
    for rank in range(2):
        for balancer, (load, bias) in zip(alone, torch.load(tmp_path / f"rank{rank}.pt"), strict=True):
            assert torch.equal(load, balancer.load_E)
            assert torch.equal(bias, balancer.bias_E)


def _small_moe(config: BalancingConfig) -> tuple[nn.Module, Tensor]:
    moe = MoE(num_experts=NUM_EXPERTS, num_active=NUM_ACTIVE, expert_width=4).build(8, config)
    generator = torch.Generator().manual_seed(0)
    for parameter in moe.parameters():
        nn.init.normal_(parameter, generator=generator)
    return moe, torch.randn(2, 5, 8, generator=generator).requires_grad_()
