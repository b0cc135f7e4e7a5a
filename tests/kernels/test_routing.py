"""Are selection and histogram the same in every implementation, to the last count?"""

import pytest
import torch
from torch import Tensor

from k3ablate.kernels import routing, routing_numba

# tokens, experts, active
SHAPES = [(1, 3, 2), (7, 5, 4), (300, 33, 3), (64, 16, 8)]


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


def test_among_equals_numba_takes_the_first() -> None:
    chosen = routing_numba.choose(torch.full((2, 5), 0.5), torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0]), 3)
    assert chosen.tolist() == [[2, 0, 1]] * 2


def test_scores_that_are_not_numbers_still_choose_experts_that_exist() -> None:
    chosen = routing_numba.choose(torch.full((2, 5), torch.nan), torch.zeros(5), 3)
    assert chosen.tolist() == [[0, 1, 2]] * 2


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
