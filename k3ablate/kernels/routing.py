"""Which experts does each token choose, and how far was it from the others? Selection and its histogram.

`choose` is top-k of score plus bias; `distances` and `distance_histogram` are what Quantile Balancing measures
(specification 4.6). No gradient flows through any of them. torch's top-k and counting take longer on a CPU than the
experts' products they serve, hence the numba forms. What is done with the results is `model/moe.py` and
`model/balancing.py`.

Shapes: N tokens, E experts, A active experts of a token, H bins of the histogram.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from k3ablate.kernels import dispatch

# (scores_NE, bias_E, num_active) -> chosen_NA
Choose = Callable[[Tensor, Tensor, int], Tensor]
# (scores_NE, bias_E, chosen_NA, num_bins) -> counts_EH
Histogram = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def choose(scores_NE: Tensor, bias_E: Tensor, num_active: int) -> Tensor:
    """Indices of the `num_active` largest scores + bias of each token, largest first, int64."""
    return dispatch.choose(CHOOSE, scores_NE)(scores_NE, bias_E, num_active)


def choose_plain(scores_NE: Tensor, bias_E: Tensor, num_active: int) -> Tensor:
    """The definition of `choose`."""
    return (scores_NE + bias_E).topk(num_active, dim=-1).indices


def distances(scores_NE: Tensor, bias_E: Tensor, chosen_NA: Tensor) -> Tensor:
    """Each token's cutoff minus each expert's raw score, NE: the bias that lifts the expert to the cutoff.

    The cutoff is the largest biased score that was not chosen, the (A + 1)-th of all.
    """
    rejected_NE = (scores_NE + bias_E).scatter(1, chosen_NA, -math.inf)
    return rejected_NE.amax(1, keepdim=True) - scores_NE


def bin_edges(bias_E: Tensor, num_bins: int) -> tuple[Tensor, Tensor]:
    """Lower end and width of equal bins over [min bias - 1, max bias + 1]: all distances of scores in [0, 1] fit."""
    lowest, highest = bias_E.min() - 1, bias_E.max() + 1
    return lowest, (highest - lowest) / num_bins


def distance_histogram(scores_NE: Tensor, bias_E: Tensor, chosen_NA: Tensor, num_bins: int) -> Tensor:
    """How many tokens' `distances` fall in each bin of each expert, int64, EH."""
    return dispatch.choose(HISTOGRAM, scores_NE)(scores_NE, bias_E, chosen_NA, num_bins)


def distance_histogram_plain(scores_NE: Tensor, bias_E: Tensor, chosen_NA: Tensor, num_bins: int) -> Tensor:
    """The definition of `distance_histogram`."""
    lowest, bin_width = bin_edges(bias_E, num_bins)
    bins_NE = ((distances(scores_NE, bias_E, chosen_NA) - lowest) / bin_width).long().clamp_(0, num_bins - 1)
    bins_NE += num_bins * torch.arange(len(bias_E), device=bins_NE.device)
    return bins_NE.flatten().bincount(minlength=len(bias_E) * num_bins).view(-1, num_bins)


def _load_numba_choose() -> Choose:
    from k3ablate.kernels import routing_numba

    return routing_numba.choose


def _load_numba_histogram() -> Histogram:
    from k3ablate.kernels import routing_numba

    return routing_numba.distance_histogram


CHOOSE: dispatch.Operation[Choose] = dispatch.numba_or_torch("choose_experts", _load_numba_choose, choose_plain)

HISTOGRAM: dispatch.Operation[Histogram] = dispatch.numba_or_torch(
    "balancing_histogram", _load_numba_histogram, distance_histogram_plain
)
