"""Selection of experts and its histogram on a CPU in float32, one pass over the scores each.

Not the definitions, which are in `routing.py`; the same arithmetic in the same order, so that results are equal and
not merely close. Among equal scores the expert of lower index is chosen. One thread.
"""

from typing import Any

import numba
import numpy
import torch
from torch import Tensor

from k3ablate.kernels.routing import bin_edges

compiled = numba.njit(cache=True, nogil=True, error_model="numpy")


@compiled
def _choose(scores_NE: Any, bias_E: Any, chosen_NA: Any) -> None:
    num_tokens, num_experts = scores_NE.shape
    best_A = numpy.empty(chosen_NA.shape[1], numpy.float32)
    for n in range(num_tokens):
        best_A[:] = -numpy.inf
        chosen_NA[n] = numpy.arange(chosen_NA.shape[1])  # stays so for a token whose scores are not numbers
        for e in range(num_experts):
            score = scores_NE[n, e] + bias_E[e]
            if score > best_A[-1]:
                _insert(score, e, best_A, chosen_NA[n])


@compiled
def _insert(score: Any, expert: int, best_A: Any, chosen_A: Any) -> None:
    """Put an expert in its place among the best so far, dropping the last."""
    place = best_A.shape[0] - 1
    while place > 0 and score > best_A[place - 1]:
        best_A[place] = best_A[place - 1]
        chosen_A[place] = chosen_A[place - 1]
        place -= 1
    best_A[place] = score
    chosen_A[place] = expert


@compiled
def _histogram(scores_NE: Any, bias_E: Any, chosen_NA: Any, lowest: Any, bin_width: Any, counts_EH: Any) -> None:
    num_tokens, num_experts = scores_NE.shape
    last_bin = counts_EH.shape[1] - 1
    is_chosen_E = numpy.zeros(num_experts, numpy.bool_)
    for n in range(num_tokens):
        is_chosen_E[chosen_NA[n]] = True
        cutoff = numpy.float32(-numpy.inf)
        for e in range(num_experts):
            if not is_chosen_E[e]:
                cutoff = max(cutoff, scores_NE[n, e] + bias_E[e])
        is_chosen_E[chosen_NA[n]] = False
        for e in range(num_experts):
            bin_index = int((cutoff - scores_NE[n, e] - lowest) / bin_width)
            counts_EH[e, min(max(bin_index, 0), last_bin)] += 1


def choose(scores_NE: Tensor, bias_E: Tensor, num_active: int) -> Tensor:
    """`routing.choose` for float32 on a CPU."""
    chosen_NA = torch.empty(len(scores_NE), num_active, dtype=torch.int64)
    _choose(scores_NE.contiguous().numpy(), bias_E.numpy(), chosen_NA.numpy())
    return chosen_NA


def distance_histogram(scores_NE: Tensor, bias_E: Tensor, chosen_NA: Tensor, num_bins: int) -> Tensor:
    """`routing.distance_histogram` for float32 on a CPU."""
    lowest, bin_width = (edge.numpy()[()] for edge in bin_edges(bias_E, num_bins))
    counts_EH = torch.zeros(len(bias_E), num_bins, dtype=torch.int64)
    _histogram(
        scores_NE.contiguous().numpy(),
        bias_E.numpy(),
        chosen_NA.contiguous().numpy(),
        lowest,
        bin_width,
        counts_EH.numpy(),
    )
    return counts_EH
