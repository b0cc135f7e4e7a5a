"""The bounded decay of KDA on a CPU in float32: one pass over the logits forwards, one backwards.

Not the definition (`decay.bounded_decay_plain` is). Sixteen channels move together, those of all heads side by side.
One thread, so that the sums over tokens in the gradients of bias and rate do not depend on the machine. With
u = logit + bias, r = exp(A_log), s = sigmoid(r u) and g the gradient of the decay: du = g bound s (1 - s) r, which is
the logit's and, summed over tokens, the bias's; that of A_log is the sum of u du.

Shapes: N tokens (B x T), P channels of all heads together (H x K).
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from k3ablate.kernels.elementary import sigmoids
from k3ablate.kernels.kda_tiles import new_rows
from k3ablate.kernels.vector import LANES, add, fma, load, load_first, multiply, splat, store, store_first, subtract
from k3ablate.kernels.whole_vectors import narrow, widen

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

_ONE = numpy.float32(1)


def numba_bounded_decay(logits_BTHK: Tensor, bias_HK: Tensor, A_log_H: Tensor, lower_bound: float) -> Tensor:
    """`decay.bounded_decay` for float32 on a CPU."""
    apply: Callable[..., Tensor] = _NumbaBoundedDecay.apply
    return apply(logits_BTHK, bias_HK, A_log_H, numpy.float32(lower_bound))


@compiled
def _forward(logits_NP: Any, shift_2P: Any, bound: Any, decay_NP: Any) -> None:
    """`shift` holds biases and rates, a row each."""
    num_channels = logits_NP.shape[1]
    shifts = new_rows(1, 2, num_channels)[0]
    widen(shift_2P, shifts)
    for n in range(logits_NP.shape[0]):
        for p in range(0, num_channels, LANES):
            at, count = n * num_channels + p, num_channels - p
            biased = add(load_first(logits_NP, at, count), load(shifts, p))
            share = sigmoids(multiply(biased, load(shifts, shifts.shape[1] + p)))
            store_first(decay_NP, at, count, multiply(splat(bound), share))


@compiled
def _backward(logits_NP: Any, shift_2P: Any, bound: Any, given_NP: Any, of_logits_NP: Any, of_shift_2P: Any) -> None:
    """Fill the gradients: of logits, and of biases and logarithms of rates, a row each."""
    num_channels = logits_NP.shape[1]
    rows = new_rows(2, 2, num_channels)
    shifts, of_shifts = rows[0], rows[1]
    width = shifts.shape[1]
    widen(shift_2P, shifts)
    for n in range(logits_NP.shape[0]):
        for p in range(0, num_channels, LANES):
            at, count = n * num_channels + p, num_channels - p
            biased, rate = add(load_first(logits_NP, at, count), load(shifts, p)), load(shifts, width + p)
            share = sigmoids(multiply(biased, rate))
            slope = multiply(multiply(share, subtract(splat(_ONE), share)), multiply(splat(bound), rate))
            of_biased = multiply(load_first(given_NP, at, count), slope)
            store_first(of_logits_NP, at, count, of_biased)
            store(of_shifts, p, add(load(of_shifts, p), of_biased))
            store(of_shifts, width + p, fma(of_biased, biased, load(of_shifts, width + p)))
    narrow(of_shifts, of_shift_2P)


class _NumbaBoundedDecay(torch.autograd.Function):
    """The kernels behind autograd."""

    @staticmethod
    def forward(ctx: Any, logits_BTHK: Tensor, bias_HK: Tensor, A_log_H: Tensor, bound: Any) -> Tensor:
        logits_BTHK = logits_BTHK.contiguous()
        shift_2HK = torch.stack([bias_HK, A_log_H.exp()[:, None].expand_as(bias_HK)])
        decay_BTHK = torch.empty_like(logits_BTHK)
        _forward(_rows(logits_BTHK), _rows(shift_2HK), bound, _rows(decay_BTHK))
        ctx.save_for_backward(logits_BTHK, shift_2HK)
        ctx.bound = bound
        return decay_BTHK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given_BTHK: Tensor) -> tuple[Tensor | None, ...]:
        logits_BTHK, shift_2HK = ctx.saved_tensors
        of_logits_BTHK, of_shift_2HK = torch.empty_like(logits_BTHK), torch.empty_like(shift_2HK)
        given = _rows(given_BTHK.contiguous())
        _backward(_rows(logits_BTHK), _rows(shift_2HK), ctx.bound, given, _rows(of_logits_BTHK), _rows(of_shift_2HK))
        of_bias_HK, of_rate_HK = of_shift_2HK
        return of_logits_BTHK, of_bias_HK, of_rate_HK.sum(dim=1), None


def _rows(tensor: Tensor) -> Any:
    """A contiguous tensor as a matrix, its last two axes side by side."""
    return tensor.detach().flatten(-2).view(-1, tensor.shape[-2] * tensor.shape[-1]).numpy()
