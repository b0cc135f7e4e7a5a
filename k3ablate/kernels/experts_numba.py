"""Routed experts on a CPU in float32: everything between router and sum in one pass forwards and one backwards.

Pairs of token and expert are sorted by expert. An expert's matrices are read once, and its tokens pass through them in
chunks whose numbers stay in the cache. What an expert gives lies in the pair's own row, and each token then sums up its
rows, so that neither the number of threads nor who is first changes a bit. The backward has what the projections gave
in the forward and computes the activations again. `experts.experts_plain` is what this must equal.

Shapes: as in `experts.py`; H and W: F and L up to whole vectors; C: tokens of a chunk.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from k3ablate.kernels.experts import Activation, ExpertWeights
from k3ablate.kernels.gated_units_numba import activate, activate_backward
from k3ablate.kernels.products import matrix_product
from k3ablate.kernels.threads import share_out
from k3ablate.kernels.vector import LANES, fma, load, load_first, multiply, splat, store, store_first, total
from k3ablate.kernels.whole_vectors import narrow, whole, widen, widen_transposed

CHUNK = 64

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


def numba_experts(
    x_NL: Tensor, chosen_NA: Tensor, weights_NA: Tensor, matrices: ExpertWeights, activation: Activation
) -> Tensor:
    """`experts.experts` for float32 on a CPU and an activation that has `bounds`."""
    assert activation.bounds is not None, "an activation without bounds is left to other forms"
    apply: Callable[..., Tensor] = _NumbaExperts.apply
    return apply(x_NL, chosen_NA, weights_NA, *matrices, torch.tensor(activation.bounds))


class _NumbaExperts(torch.autograd.Function):
    """The kernels behind autograd."""

    @staticmethod
    def forward(ctx: Any, x_NL: Tensor, chosen_NA: Tensor, *tensors: Tensor) -> Tensor:
        weights_NA, *matrices, bounds = (tensor.contiguous() for tensor in tensors)
        x_NL, num_pairs, (num_experts, num_hidden, width) = x_NL.contiguous(), chosen_NA.numel(), matrices[0].shape
        starts = torch.zeros(num_experts + 1, dtype=torch.int64)  # of each expert's pairs, and where the last one's end
        pairs_P, rows_P = (torch.empty(num_pairs, dtype=torch.int64) for _ in range(2))
        _sort(chosen_NA.flatten().numpy(), starts.numpy(), pairs_P.numpy(), rows_P.numpy())
        gate_PH, up_PH = (x_NL.new_empty(num_pairs, whole(num_hidden)) for _ in range(2))
        y_PW, y_NL = x_NL.new_empty(num_pairs, whole(width)), torch.empty_like(x_NL)
        inputs = starts, pairs_P, x_NL, weights_NA, *matrices, bounds, gate_PH, up_PH
        share_out(_forward, num_experts, *inputs, y_PW)
        share_out(_sum_up, len(x_NL), rows_P, weights_NA, y_PW, y_NL)
        ctx.save_for_backward(*inputs, rows_P)
        return y_NL

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given_NL: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, rows_P = ctx.saved_tensors
        x_NL, weights_NA, *matrices = inputs[2:7]
        of_x_PW, of_x_NL = x_NL.new_empty(len(rows_P), whole(x_NL.shape[1])), torch.empty_like(x_NL)
        of_weights_NA, *of_matrices = (torch.empty_like(tensor) for tensor in (weights_NA, *matrices))
        share_out(
            _backward, len(matrices[0]), *inputs, given_NL.contiguous(), of_x_PW, of_weights_NA.view(-1), *of_matrices
        )
        share_out(_sum_up, len(x_NL), rows_P, weights_NA, of_x_PW, of_x_NL)
        return of_x_NL, None, of_weights_NA, *of_matrices, None


@compiled
def _sort(chosen_P, starts, pairs_P, rows_P):  # type: ignore[no-untyped-def]
    """Number the pairs by expert and then token: `pairs_P[row]` is the pair of a row, `rows_P[pair]` the row of a pair.

    Row `starts[e]` is the first of expert e, `starts[e + 1]` the first after it.
    """
    for expert in chosen_P:
        starts[expert + 1] += 1
    for e in range(1, starts.shape[0]):
        starts[e] += starts[e - 1]
    free = starts.copy()
    for p in range(chosen_P.shape[0]):
        row = free[chosen_P[p]]
        free[chosen_P[p]] += 1
        pairs_P[row], rows_P[p] = p, row


@compiled
def _forward(  # type: ignore[no-untyped-def]
    first, last, starts, pairs_P, x_NL, weights_NA, gate_EFL, up_EFL, down_ELF, bounds, gate_PH, up_PH, y_PW
):
    """Experts from `first` up to `last`: fill their rows of `gate`, `up` and `y`."""
    (num_hidden, width), whole_width, whole_hidden = gate_EFL.shape[1:], y_PW.shape[1], gate_PH.shape[1]
    wide_HW, wide_WH = _zeros(whole_hidden, whole_width), _zeros(whole_width, whole_hidden)
    gate_WH, up_WH, down_HW = numpy.zeros_like(wide_WH), numpy.zeros_like(wide_WH), numpy.zeros_like(wide_HW)
    x_CW, hidden_CH = _zeros(CHUNK, whole_width), _zeros(CHUNK, whole_hidden)
    for e in range(first, last):
        if starts[e] < starts[e + 1]:
            widen_transposed(gate_EFL[e], wide_HW, gate_WH)
            widen_transposed(up_EFL[e], wide_HW, up_WH)
            widen_transposed(down_ELF[e], wide_WH, down_HW)
        for start in range(starts[e], starts[e + 1], CHUNK):
            rows = slice(start, min(start + CHUNK, starts[e + 1]))
            gate_CH, up_CH = gate_PH[rows], up_PH[rows]
            _gather(x_NL, pairs_P[rows], weights_NA.shape[1], x_CW)
            matrix_product(x_CW, gate_WH[:width], gate_CH, False)
            matrix_product(x_CW, up_WH[:width], up_CH, False)
            activate(gate_CH.ravel(), up_CH.ravel(), bounds, hidden_CH.ravel())
            matrix_product(hidden_CH, down_HW[:num_hidden], y_PW[rows], False)


@compiled
def _backward(  # type: ignore[no-untyped-def]
    first, last, starts, pairs_P, x_NL, weights_NA, gate_EFL, up_EFL, down_ELF, bounds, gate_PH, up_PH,
    given_NL, of_x_PW, of_weights_P, of_gate_EFL, of_up_EFL, of_down_ELF,
):  # fmt: skip
    """Experts from `first` up to `last`: fill the gradients, that of x pair by pair and before its weight."""
    whole_width, whole_hidden, (num_hidden, width) = of_x_PW.shape[1], gate_PH.shape[1], gate_EFL.shape[1:]
    matrices = _zeros(num_hidden, whole_width), _zeros(num_hidden, whole_width), _zeros(width, whole_hidden)
    of_matrices = _zeros(num_hidden, whole_width), _zeros(num_hidden, whole_width), _zeros(width, whole_hidden)
    x_CW, given_CW = _zeros(CHUNK, whole_width), _zeros(CHUNK, whole_width)
    hidden_CH, of_hidden_CH = _zeros(CHUNK, whole_hidden), _zeros(CHUNK, whole_hidden)
    scratch = x_CW, given_CW, hidden_CH, of_hidden_CH, numpy.zeros_like(hidden_CH), numpy.zeros_like(hidden_CH)
    for e in range(first, last):
        if starts[e] < starts[e + 1]:
            widen(gate_EFL[e], matrices[0])
            widen(up_EFL[e], matrices[1])
            widen(down_ELF[e], matrices[2])
        for of_matrix in of_matrices:
            of_matrix[:] = 0
        for start in range(starts[e], starts[e + 1], CHUNK):
            rows = slice(start, min(start + CHUNK, starts[e + 1]))
            _chunk_backward(
                pairs_P[rows], x_NL, weights_NA, matrices, bounds, gate_PH[rows], up_PH[rows],
                given_NL, of_x_PW[rows], of_weights_P, of_matrices, scratch,
            )  # fmt: skip
        narrow(of_matrices[0], of_gate_EFL[e])
        narrow(of_matrices[1], of_up_EFL[e])
        narrow(of_matrices[2], of_down_ELF[e])


@compiled
def _chunk_backward(  # type: ignore[no-untyped-def]
    pairs_C, x_NL, weights_NA, matrices, bounds, gate_CH, up_CH,
    given_NL, of_x_CW, of_weights_P, of_matrices, scratch,
):  # fmt: skip
    """Some tokens of one expert: fill their `of_x` and `of_weights`, add to `of_matrices`."""
    gate_FW, up_FW, down_LH = matrices
    of_gate_FW, of_up_FW, of_down_LH = of_matrices
    x_CW, given_CW, hidden_CH, of_hidden_CH, of_gate_CH, of_up_CH = scratch
    size, num_active = pairs_C.shape[0], weights_NA.shape[1]
    _gather(x_NL, pairs_C, num_active, x_CW)
    _gather(given_NL, pairs_C, num_active, given_CW)
    matrix_product(given_CW, down_LH, of_hidden_CH[:size], False)
    activate_backward(
        gate_CH.ravel(), up_CH.ravel(), bounds, of_hidden_CH.ravel(),
        hidden_CH.ravel(), of_gate_CH.ravel(), of_up_CH.ravel(),
    )  # fmt: skip
    matrix_product(of_gate_CH, gate_FW, of_x_CW, False)
    matrix_product(of_up_CH, up_FW, of_x_CW, True)
    _weigh(pairs_C, weights_NA.ravel(), of_hidden_CH, hidden_CH, x_CW, of_weights_P)
    matrix_product(of_gate_CH.T, x_CW[:size], of_gate_FW, True)
    matrix_product(of_up_CH.T, x_CW[:size], of_up_FW, True)
    matrix_product(given_CW.T, hidden_CH[:size], of_down_LH, True)


@compiled
def _zeros(num_rows, num_columns):  # type: ignore[no-untyped-def]
    return numpy.zeros((num_rows, num_columns), numpy.float32)


@compiled
def _gather(x_NL, pairs_C, num_active, x_CW):  # type: ignore[no-untyped-def]
    """The tokens of pairs."""
    for c in range(pairs_C.shape[0]):
        token = pairs_C[c] // num_active
        for i in range(0, x_CW.shape[1], LANES):
            store(x_CW, c * x_CW.shape[1] + i, load_first(x_NL, token * x_NL.shape[1] + i, x_NL.shape[1] - i))


@compiled
def _weigh(pairs_C, weights_P, of_hidden_CH, hidden_CH, x_CW, of_weights_P):  # type: ignore[no-untyped-def]
    """The gradient of each pair's weight; then multiply `hidden` and `x` by the weight, for gradients of matrices."""
    for c in range(pairs_C.shape[0]):
        weight, product = splat(weights_P[pairs_C[c]]), splat(numpy.float32(0))
        for i in range(c * hidden_CH.shape[1], (c + 1) * hidden_CH.shape[1], LANES):
            product = fma(load(hidden_CH, i), load(of_hidden_CH, i), product)
            store(hidden_CH, i, multiply(weight, load(hidden_CH, i)))
        for i in range(c * x_CW.shape[1], (c + 1) * x_CW.shape[1], LANES):
            store(x_CW, i, multiply(weight, load(x_CW, i)))
        of_weights_P[pairs_C[c]] = total(product)


@compiled
def _sum_up(first, last, rows_P, weights_NA, y_PW, y_NL):  # type: ignore[no-untyped-def]
    """Tokens from `first` up to `last`: y = sum over their pairs of weight x row."""
    num_active, width = weights_NA.shape[1], y_NL.shape[1]
    for n in range(first, last):
        for i in range(0, width, LANES):
            y = splat(numpy.float32(0))
            for a in range(num_active):
                y = fma(splat(weights_NA[n, a]), load(y_PW, rows_P[n * num_active + a] * y_PW.shape[1] + i), y)
            store_first(y_NL, n * width + i, width - i, y)
