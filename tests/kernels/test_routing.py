"""Are selection and histogram the same in every implementation, to the last count?"""

import pytest
import torch
from torch import Tensor

from k3ablate.kernels import routing, routing_numba
from k3ablate.kernels.routing import Weigh

# tokens, experts, active
SHAPES = [(1, 3, 2), (7, 5, 4), (300, 33, 3), (64, 16, 8), (129, 96, 2), (50, 17, 16), (20, 40, 21)]


def _scores_and_bias(num_tokens: int, num_experts: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)
    scores = torch.rand(num_tokens, num_experts, generator=generator)
    bias = torch.randn(num_experts, generator=generator)
    return scores, bias - bias.mean()


@pytest.mark.parametrize(("num_tokens", "num_experts", "num_active"), SHAPES)
def test_numba_chooses_what_top_k_chooses(num_tokens: int, num_experts: int, num_active: int) -> None:
    scores, bias = _scores_and_bias(num_tokens, num_experts)
    chosen = routing_numba.choose(scores, bias, num_active)
    assert torch.equal(chosen, routing.choose_plain(scores, bias, num_active))


@pytest.mark.parametrize(("num_tokens", "num_experts", "num_active"), SHAPES)
def test_among_equals_numba_takes_the_first(num_tokens: int, num_experts: int, num_active: int) -> None:
    scores, _ = _scores_and_bias(num_tokens, num_experts)
    few, none = (4 * scores).round() / 4, torch.zeros(num_experts)
    chosen = routing_numba.choose(few, none, num_active)
    assert torch.equal(chosen, few.argsort(dim=1, descending=True, stable=True)[:, :num_active])


def test_bias_decides_among_equal_scores() -> None:
    chosen = routing_numba.choose(torch.full((2, 5), 0.5), torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]), 3)
    assert chosen.tolist() == [[2, 0, 1]] * 2


def test_scores_that_are_not_numbers_still_choose_experts_that_exist() -> None:
    chosen = routing_numba.choose(torch.full((2, 5), torch.nan), torch.zeros(5), 3)
    assert chosen.tolist() == [[0, 1, 2]] * 2


def _weights_and_gradients(form: Weigh, shape: tuple[int, int, int], dtype: torch.dtype) -> list[Tensor]:
    """Of sigmoid scores, weighed by a given gradient: weights, and gradients of x and of the router's matrix."""
    num_tokens, num_experts, num_active = shape
    generator = torch.Generator().manual_seed(num_tokens)
    x, matrix = (torch.randn(rows, 7, generator=generator).to(dtype).requires_grad_() for rows in shape[:2])
    scores = (x @ matrix.T).sigmoid()
    chosen = routing.choose_plain(scores.detach(), torch.zeros(num_experts, dtype=dtype), num_active)
    weights = form(scores, chosen, x, matrix, 2.827)
    given = torch.randn(num_tokens, num_active, generator=generator).to(dtype)
    return [weights, *torch.autograd.grad(weights, (x, matrix), given)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numba_weighs_as_torch_does_and_so_does_its_gradient(shape: tuple[int, int, int]) -> None:
    expected = _weights_and_gradients(routing.weigh_plain, shape, torch.float64)
    for fast, exact in zip(_weights_and_gradients(routing_numba.weigh, shape, torch.float32), expected, strict=True):
        assert (fast - exact).norm() <= 1e-5 * exact.norm()
    torch.testing.assert_close(expected[0].sum(1), torch.full(shape[:1], 2.827, dtype=torch.float64))


def test_scores_that_all_underflow_weigh_nothing_and_stay_finite() -> None:
    scores, x, matrix = torch.zeros(2, 5), torch.ones(2, 3, requires_grad=True), torch.ones(5, 3, requires_grad=True)
    weights = routing_numba.weigh(scores, torch.tensor([[0, 1], [3, 2]]), x, matrix, 2.827)
    assert (weights == 0).all()
    weights.sum().backward()
    assert (x.grad == 0).all()
    assert (matrix.grad == 0).all()


def test_a_score_that_is_not_a_number_spoils_its_own_token() -> None:
    scores, x, matrix = torch.full((3, 5), 0.5), torch.ones(3, 3, requires_grad=True), torch.ones(5, 3)
    scores[1, 4] = torch.nan
    weights = routing_numba.weigh(scores, torch.tensor([[4, 1], [0, 4], [2, 3]]), x, matrix, 1.0)
    assert weights.isnan().all(1).tolist() == [False, True, False]
    weights.square().sum().backward()
    assert x.grad.isnan().all(1).tolist() == [False, True, False]


@pytest.mark.parametrize("num_bins", [1, 10, 1000])
@pytest.mark.parametrize(("num_tokens", "num_experts", "num_active"), SHAPES)
def test_numba_counts_what_torch_counts(num_tokens: int, num_experts: int, num_active: int, num_bins: int) -> None:
    scores, bias = _scores_and_bias(num_tokens, num_experts)
    chosen = routing.choose_plain(scores, bias, num_active)
    counts = routing_numba.distance_histogram(scores, bias, chosen, num_bins)
    assert torch.equal(counts, routing.distance_histogram_plain(scores, bias, chosen, num_bins))
    assert counts.sum(1).tolist() == [num_tokens] * num_experts


def test_distances_are_cutoff_minus_score() -> None:
    scores, bias = _scores_and_bias(20, 6)
    distances = routing.distances(scores, bias, routing.choose_plain(scores, bias, 2))
    third_largest = torch.stack([sorted(row)[-3] for row in (scores + bias)])
    torch.testing.assert_close(distances, third_largest[:, None] - scores)
    lowest, bin_width = routing.bin_edges(bias, 10)
    assert lowest <= distances.min()
    assert distances.max() <= lowest + 10 * bin_width
