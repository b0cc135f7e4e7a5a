"""Selection of experts, their weights and the histogram on a CPU in float32, one pass over the scores each.

Not the definitions, which are in `routing.py`. Selection and histogram are the same arithmetic in the same order, so
that results are equal and not merely close; among equal scores the expert of lower index is chosen. With s a chosen
score, w its weight, t the sum of the chosen and g the gradient of weights: ds = scale (g - sum(g s) / t) / t, and of
the logit ds s (1 - s). One thread, so that sums over tokens do not depend on the machine.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from k3ablate.kernels.routing import WEIGHT_FLOOR, bin_edges

compiled = numba.njit(cache=True, nogil=True, error_model="numpy")
_reordering = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

_ONE, _FLOOR = numpy.float32(1), numpy.float32(WEIGHT_FLOOR)


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


@_reordering
def _weights(scale: Any, scores_NE: Any, chosen_NA: Any, weights_NA: Any) -> None:
    for n in range(chosen_NA.shape[0]):
        total = _FLOOR
        for expert in chosen_NA[n]:
            total += scores_NE[n, expert]
        for a in range(chosen_NA.shape[1]):
            weights_NA[n, a] = scale * scores_NE[n, chosen_NA[n, a]] / total


@_reordering
def _weights_backward(  # type: ignore[no-untyped-def]
    scale, scores_NE, chosen_NA, x_ND, matrix_ED, given_NA, of_x_ND, of_matrix_ED
):
    """Add to the gradients of x and matrix."""
    for n in range(chosen_NA.shape[0]):
        total, along = _FLOOR, numpy.float32(0)
        for a in range(chosen_NA.shape[1]):
            score = scores_NE[n, chosen_NA[n, a]]
            total += score
            along += given_NA[n, a] * score
        for a in range(chosen_NA.shape[1]):
            e = chosen_NA[n, a]
            slope = scores_NE[n, e] * (_ONE - scores_NE[n, e])
            of_logit = scale * (given_NA[n, a] - along / total) / total * slope
            for d in range(x_ND.shape[1]):
                of_x_ND[n, d] += of_logit * matrix_ED[e, d]
                of_matrix_ED[e, d] += of_logit * x_ND[n, d]


class _NumbaWeigh(torch.autograd.Function):
    """The kernels behind autograd."""

    @staticmethod
    def forward(ctx: Any, scores_NE: Tensor, chosen_NA: Tensor, x_ND: Tensor, matrix_ED: Tensor, scale: Any) -> Tensor:
        inputs = tuple(tensor.contiguous() for tensor in (scores_NE, chosen_NA, x_ND, matrix_ED))
        weights_NA = torch.empty_like(chosen_NA, dtype=torch.float32, memory_format=torch.contiguous_format)
        _weights(scale, inputs[0].numpy(), inputs[1].numpy(), weights_NA.numpy())
        ctx.save_for_backward(*inputs)
        ctx.scale = scale
        return weights_NA

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given_NA: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        of_x_ND, of_matrix_ED = torch.zeros_like(inputs[2]), torch.zeros_like(inputs[3])
        tensors = *inputs, given_NA.contiguous(), of_x_ND, of_matrix_ED
        _weights_backward(ctx.scale, *(tensor.detach().numpy() for tensor in tensors))
        return None, None, of_x_ND, of_matrix_ED, None


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


def weigh(scores_NE: Tensor, chosen_NA: Tensor, x_ND: Tensor, matrix_ED: Tensor, scale: float) -> Tensor:
    """`routing.weigh` for float32 on a CPU; no gradient flows through `scores`."""
    apply: Callable[..., Tensor] = _NumbaWeigh.apply
    return apply(scores_NE.detach(), chosen_NA, x_ND, matrix_ED, numpy.float32(scale))


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
