"""Which experts does each token choose, with what weights, and how far was it from the others?

`choose` is top-k of score plus bias, `weigh` renormalises the raw scores of the chosen (specification 4.5), `distances`
and `distance_histogram` are what Quantile Balancing measures (specification 4.6). A gradient flows through `weigh`
alone. torch's top-k and counting take longer on a CPU than the experts' products they serve, and its gradient of
weights as long as the scores themselves; hence the numba forms. What is done with the results is `model/moe.py` and
`model/balancing.py`.

Shapes: N tokens, D model width, E experts, A active experts of a token, H bins of the histogram.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from k3ablate.kernels import dispatch

# Keeps the renormalisation finite when every chosen score underflows (specification 4.5).
WEIGHT_FLOOR = 1e-20

# (scores_NE, bias_E, num_active) -> chosen_NA
Choose = Callable[[Tensor, Tensor, int], Tensor]
# (scores_NE, chosen_NA, x_ND, matrix_ED, scale) -> weights_NA
Weigh = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
# (scores_NE, bias_E, chosen_NA, num_bins) -> counts_EH
Histogram = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def choose(scores_NE: Tensor, bias_E: Tensor, num_active: int) -> Tensor:
    """Indices of the `num_active` largest scores + bias of each token, largest first, int64."""
    return dispatch.choose(CHOOSE, scores_NE)(scores_NE, bias_E, num_active)


def choose_plain(scores_NE: Tensor, bias_E: Tensor, num_active: int) -> Tensor:
    """The definition of `choose`."""
    return (scores_NE + bias_E).topk(num_active, dim=-1).indices


def weigh(scores_NE: Tensor, chosen_NA: Tensor, x_ND: Tensor, matrix_ED: Tensor, scale: float) -> Tensor:
    """Raw scores of the chosen, renormalised to the sum `scale`; the scores are sigmoid(x matrix^T).

    All but A of a token's E scores have no part in its weights. Forms may give the gradient to `x` and `matrix` past
    `scores`, which spares the dense products of its zeros.
    """
    return dispatch.choose(WEIGH, scores_NE)(scores_NE, chosen_NA, x_ND, matrix_ED, scale)


def weigh_plain(scores_NE: Tensor, chosen_NA: Tensor, x_ND: Tensor, matrix_ED: Tensor, scale: float) -> Tensor:  # noqa: ARG001
    """The definition of `weigh`; the gradient flows through `scores`."""
    own_NA = scores_NE.gather(-1, chosen_NA)
    return scale * own_NA / (own_NA.sum(-1, keepdim=True) + WEIGHT_FLOOR)


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
    """How many tokens' `distances` fall in each bin of each expert, int32, EH."""
    return dispatch.choose(HISTOGRAM, scores_NE)(scores_NE, bias_E, chosen_NA, num_bins)


def distance_histogram_plain(scores_NE: Tensor, bias_E: Tensor, chosen_NA: Tensor, num_bins: int) -> Tensor:
    """The definition of `distance_histogram`."""
    lowest, bin_width = bin_edges(bias_E, num_bins)
    bins_NE = ((distances(scores_NE, bias_E, chosen_NA) - lowest) / bin_width).long().clamp_(0, num_bins - 1)
    bins_NE += num_bins * torch.arange(len(bias_E), device=bins_NE.device)
    return bins_NE.flatten().bincount(minlength=len(bias_E) * num_bins).view(-1, num_bins).int()


def _load_numba_choose() -> Choose:
    from k3ablate.kernels import routing_numba

    return routing_numba.choose


def _load_numba_weigh() -> Weigh:
    from k3ablate.kernels import routing_numba

    return routing_numba.weigh


def _load_numba_histogram() -> Histogram:
    from k3ablate.kernels import routing_numba

    return routing_numba.distance_histogram


CHOOSE: dispatch.Operation[Choose] = dispatch.numba_or_torch("choose_experts", _load_numba_choose, choose_plain)

WEIGH: dispatch.Operation[Weigh] = dispatch.numba_or_torch("weigh_experts", _load_numba_weigh, weigh_plain)

HISTOGRAM: dispatch.Operation[Histogram] = dispatch.numba_or_torch(
    "balancing_histogram", _load_numba_histogram, distance_histogram_plain
)
