"""Are the biases found by alternating quantiles the prices of the balanced linear program?"""

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.optimize import linprog
from torch import Tensor

from k3ablate.kernels import routing
from k3ablate.model.assignment import balanced_bias
from k3ablate.model.balancing import Quantile

# tokens, experts, active, how much more popular each expert is than the next
PROBLEMS = [(256, 8, 2, 0.0), (256, 8, 2, 1.0), (320, 16, 3, 0.3), (250, 16, 2, 0.3), (192, 64, 4, 0.05)]
every_problem = pytest.mark.parametrize(("num_tokens", "num_experts", "num_active", "skew"), PROBLEMS)


def scores_of(num_tokens: int, num_experts: int, skew: float, seed: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(num_tokens if seed is None else seed)
    logits = torch.randn(num_tokens, num_experts, generator=generator, dtype=torch.float64)
    return (logits - skew * torch.arange(num_experts)).sigmoid()


def best_total(scores_NE: Tensor, num_active: int) -> float:
    """The most score of any (fractional) assignment with `num_active` experts a token and even loads."""
    num_tokens, num_experts = scores_NE.shape
    of_token = sparse.kron(sparse.eye(num_tokens), np.ones((1, num_experts)))
    of_expert = sparse.kron(np.ones((1, num_tokens)), sparse.eye(num_experts))
    fair_load = num_tokens * num_active / num_experts
    solution = linprog(
        -scores_NE.numpy().ravel(),
        A_eq=sparse.vstack([of_token, of_expert]).tocsr(),
        b_eq=np.concatenate([np.full(num_tokens, num_active), np.full(num_experts, fair_load)]),
        bounds=(0, 1),
    )
    assert solution.success
    return -float(solution.fun)


def assigned(scores_NE: Tensor, bias_E: Tensor, num_active: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the bias assigns: chosen experts NA, load E, and per expert the tokens whose next choice it would be."""
    chosen_NA = routing.choose_plain(scores_NE, bias_E, num_active + 1)
    counts = [chosen.flatten().bincount(minlength=len(bias_E)) for chosen in chosen_NA.split([num_active, 1], dim=1)]
    return chosen_NA[:, :-1], counts[0], counts[1]


@every_problem
def test_total_score_is_that_of_the_linear_program_and_loads_are_even(
    num_tokens: int, num_experts: int, num_active: int, skew: float
) -> None:
    scores_NE = scores_of(num_tokens, num_experts, skew)
    fair_load = num_tokens * num_active / num_experts
    bias_E = balanced_bias(scores_NE, num_active)
    chosen_NA, load_E, next_E = assigned(scores_NE, bias_E, num_active)
    total = scores_NE.gather(1, chosen_NA).sum().item()
    assert total == pytest.approx(best_total(scores_NE, num_active), rel=1e-3)
    assert ((load_E - fair_load).abs() < 1).all()
    assert ((load_E - fair_load).abs() <= next_E).all()
    assert bias_E.mean().item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("num_tokens", "num_experts", "num_active", "skew"), [*PROBLEMS[:3], (250, 16, 2, 0.3), (250, 8, 2, 1.0)]
)
def test_the_prices_are_those_of_the_linear_program_whether_or_not_it_splits_tokens(
    num_tokens: int, num_experts: int, num_active: int, skew: float, seed: int
) -> None:
    """By duality: the best scores with prices added, which are centred, sum to the program's total."""
    scores_NE = scores_of(num_tokens, num_experts, skew, seed)
    bias_E = balanced_bias(scores_NE, num_active)
    chosen_NA, load_E, next_E = assigned(scores_NE, bias_E, num_active)
    value = (scores_NE + bias_E).gather(1, chosen_NA).sum().item()
    assert value == pytest.approx(best_total(scores_NE, num_active), rel=1e-4)
    assert ((load_E - num_tokens * num_active / num_experts).abs() <= next_E).all()


@every_problem
def test_the_exact_balancer_reaches_the_prices_of_the_linear_program(
    num_tokens: int, num_experts: int, num_active: int, skew: float
) -> None:
    """The value of its bias as prices is within .1 percent of the best; loads differ by ties at the cutoffs."""
    scores_NE = scores_of(num_tokens, num_experts, skew)
    balancer = Quantile(estimator="exact").build(num_experts, num_active).double()
    for _ in range(20):
        before_E = balancer.bias_E.clone()
        chosen_NA, *_ = assigned(scores_NE, before_E, num_active)
        balancer.observe(scores_NE[None], chosen_NA[None])
        balancer.step()
    chosen_NA, *_ = assigned(scores_NE, balancer.bias_E, num_active)
    total = (scores_NE + balancer.bias_E).gather(1, chosen_NA).sum().item()  # the bias is centred: the prices' value
    assert total == pytest.approx(best_total(scores_NE, num_active), rel=1e-3)

    # With the cutoffs that the last step saw: above its bias at most the fair load, and the ties fill the rest.
    distances_NE = routing.distances(scores_NE, before_E, assigned(scores_NE, before_E, num_active)[0])
    price_E = balancer.bias_E + (distances_NE.sort(0).values[num_tokens * num_active // num_experts]).mean()
    fair_load = num_tokens * num_active / num_experts
    assert ((distances_NE < price_E - 1e-9).sum(0) <= fair_load).all()
    assert ((distances_NE <= price_E + 1e-9).sum(0) >= fair_load).all()
