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

from k3ablate.kernels.lanes import first_lane, highest, lanes_at_least, store_whole
from k3ablate.kernels.routing import WEIGHT_FLOOR, bin_edges
from k3ablate.kernels.vector import (
    LANES,
    add,
    divide,
    fma,
    load,
    load_first,
    splat,
    store,
    store_first,
    subtract,
    where_less,
)
from k3ablate.kernels.whole_vectors import whole

compiled = numba.njit(cache=True, nogil=True, error_model="numpy")
_reordering = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

_ONE, _FLOOR, _LOWEST = numpy.float32(1), numpy.float32(WEIGHT_FLOOR), numpy.float32(-numpy.inf)
BLOCK = 64  # tokens


@compiled
def _choose(scores_NE: Any, bias_E: Any, chosen_NA: Any) -> None:
    num_active = chosen_NA.shape[1]
    bias_W = _with_lowest(bias_E)
    biased_W, best_A = numpy.empty_like(bias_W), numpy.empty(num_active, numpy.float32)
    for n in range(scores_NE.shape[0]):
        bound = splat(_reached(_biased(scores_NE, n, bias_W, biased_W), num_active))
        for a in range(num_active):
            best_A[a], chosen_NA[n, a] = _LOWEST, a  # stays so for a token whose scores are not numbers
        for first in range(0, biased_W.shape[0], LANES):
            lanes = lanes_at_least(load(biased_W, first), bound)
            while lanes:
                e = first + first_lane(lanes)
                lanes &= lanes - 1  # without the lowest bit
                if biased_W[e] > best_A[-1]:
                    _insert(biased_W[e], e, best_A, chosen_NA[n])


@compiled
def _with_lowest(bias_E: Any) -> Any:
    """Biases of whole vectors of experts, W; those that do not exist are never chosen."""
    bias_W = numpy.full(whole(bias_E.shape[0]), _LOWEST)
    bias_W[: bias_E.shape[0]] = bias_E
    return bias_W


@compiled
def _biased(scores_NE: Any, n: int, bias_W: Any, biased_W: Any) -> Any:
    """Fill `biased` with the scores + bias of token n; returns the largest of each lane."""
    num_experts, top = scores_NE.shape[1], splat(_LOWEST)
    for first in range(0, bias_W.shape[0], LANES):
        score = load_first(scores_NE, n * num_experts + first, num_experts - first)
        biased = add(score, load(bias_W, first))
        store(biased_W, first, biased)
        top = where_less(top, biased, biased, top)
    return top


@compiled
def _reached(top: Any, num_active: int) -> Any:
    """A bound that `num_active` numbers reach at least, from the largest of each lane: the last of as many lanes."""
    if num_active > LANES:
        return _LOWEST
    for _ in range(num_active - 1):
        top = where_less(top, splat(highest(top)), top, splat(_LOWEST))
    return highest(top)


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
    """Fill the gradient of x, and add to that of the matrix."""
    width, of_logits_A = x_ND.shape[1], numpy.empty(chosen_NA.shape[1], numpy.float32)
    for n in range(chosen_NA.shape[0]):
        _of_logits(scale, scores_NE[n], chosen_NA[n], given_NA[n], of_logits_A)
        for d in range(0, width, LANES):
            x, of_x = load_first(x_ND, n * width + d, width - d), splat(numpy.float32(0))
            for a in range(of_logits_A.shape[0]):
                place, of_logit = chosen_NA[n, a] * width + d, splat(of_logits_A[a])
                of_x = fma(of_logit, load_first(matrix_ED, place, width - d), of_x)
                of_row = fma(of_logit, x, load_first(of_matrix_ED, place, width - d))
                store_first(of_matrix_ED, place, width - d, of_row)
            store_first(of_x_ND, n * width + d, width - d, of_x)


@_reordering
def _of_logits(scale: Any, scores_E: Any, chosen_A: Any, given_A: Any, of_logits_A: Any) -> None:
    total, along = _FLOOR, numpy.float32(0)
    for a in range(chosen_A.shape[0]):
        total += scores_E[chosen_A[a]]
        along += given_A[a] * scores_E[chosen_A[a]]
    for a in range(chosen_A.shape[0]):
        score = scores_E[chosen_A[a]]
        of_logits_A[a] = scale * (given_A[a] - along / total) / total * score * (_ONE - score)


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
        of_x_ND, of_matrix_ED = torch.empty_like(inputs[2]), torch.zeros_like(inputs[3])
        tensors = *inputs, given_NA.contiguous(), of_x_ND, of_matrix_ED
        _weights_backward(ctx.scale, *(tensor.detach().numpy() for tensor in tensors))
        return None, None, of_x_ND, of_matrix_ED, None


@compiled
def _histogram(scores_NE: Any, bias_E: Any, chosen_NA: Any, lowest: Any, bin_width: Any, counts_WH: Any) -> None:
    """Tokens in blocks whose scores stay in the cache, and experts lane by lane, so that few counters are in use.

    `counts` has rows for whole vectors of experts; those that do not exist count something, which nobody reads.
    """
    num_tokens, num_experts = scores_NE.shape
    cutoffs_N, bins_NL = numpy.empty(BLOCK, numpy.float32), numpy.empty((BLOCK, LANES), numpy.int32)
    for start in range(0, num_tokens, BLOCK):
        stop = min(start + BLOCK, num_tokens)
        _find_cutoffs(scores_NE[start:stop], bias_E, chosen_NA[start:stop], cutoffs_N)
        for first in range(0, num_experts, LANES):
            _find_bins(scores_NE[start:stop], first, cutoffs_N, lowest, bin_width, counts_WH.shape[1], bins_NL)
            for n in range(stop - start):
                for lane in range(LANES):
                    counts_WH[first + lane, numpy.uint32(bins_NL[n, lane])] += 1


@compiled
def _find_bins(  # type: ignore[no-untyped-def]
    scores_NE, first, cutoffs_N, lowest, bin_width, num_bins, bins_NL
):
    """Bins of sixteen experts from `first` on.

    Of all tokens before any is counted: to read one bin just after the vector was stored took as long as counting it.
    """
    num_experts = scores_NE.shape[1]
    zero, last = splat(numpy.float32(0)), splat(numpy.float32(num_bins - 1))
    for n in range(scores_NE.shape[0]):
        score = load_first(scores_NE, n * num_experts + first, num_experts - first)
        place = divide(subtract(subtract(splat(cutoffs_N[n]), score), splat(lowest)), splat(bin_width))
        place = where_less(place, last, place, last)  # also where it is not a number
        store_whole(bins_NL, n * LANES, where_less(place, zero, zero, place))


@compiled
def _find_cutoffs(scores_NE: Any, bias_E: Any, chosen_NA: Any, cutoffs_N: Any) -> None:
    """The largest biased score of each token that was not chosen."""
    bias_W = _with_lowest(bias_E)
    biased_W = numpy.empty_like(bias_W)
    for n in range(scores_NE.shape[0]):
        _biased(scores_NE, n, bias_W, biased_W)
        for expert in chosen_NA[n]:
            biased_W[expert] = _LOWEST
        top = splat(_LOWEST)
        for first in range(0, biased_W.shape[0], LANES):
            biased = load(biased_W, first)
            top = where_less(top, biased, biased, top)
        cutoffs_N[n] = highest(top)


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
    counts_WH = torch.zeros(whole(len(bias_E)), num_bins, dtype=torch.int32)
    _histogram(
        scores_NE.contiguous().numpy(),
        bias_E.numpy(),
        chosen_NA.contiguous().numpy(),
        lowest,
        bin_width,
        counts_WH.numpy(),
    )
    return counts_WH[: len(bias_E)]
