"""The short convolution with its SiLU on a CPU in float32: a row of channels at a time, forwards and backwards.

Not the definition (`short_convolution.short_convolution_plain` is). Channels are neighbours in memory and move
together; the backward forms each row's sum again rather than keep it. One thread, so that the sums over positions in
the weights' gradient do not depend on the machine.

Shapes: as in `short_convolution.py`.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from k3ablate.kernels.elementary import sigmoid

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

_ONE = numpy.float32(1)


def numba_short_convolution(seen_BSP: Tensor, weight_PW: Tensor) -> Tensor:
    """`short_convolution.short_convolution` for float32 on a CPU."""
    apply: Callable[..., Tensor] = _NumbaShortConvolution.apply
    return apply(seen_BSP, weight_PW.T)


@compiled
def _convolve(seen_SP: Any, weight_WP: Any, t: int, sum_P: Any) -> None:
    """The sum over taps at position t, before SiLU."""
    sum_P[:] = numpy.float32(0)
    for tap in range(weight_WP.shape[0]):
        for p in range(sum_P.shape[0]):
            sum_P[p] += weight_WP[tap, p] * seen_SP[t + tap, p]


@compiled
def _forward(seen_BSP: Any, weight_WP: Any, y_BTP: Any) -> None:
    for b in range(y_BTP.shape[0]):
        for t in range(y_BTP.shape[1]):
            y_P = y_BTP[b, t]
            _convolve(seen_BSP[b], weight_WP, t, y_P)
            for p in range(y_P.shape[0]):
                y_P[p] = y_P[p] * sigmoid(y_P[p])


@compiled
def _backward(seen_BSP: Any, weight_WP: Any, given_BTP: Any, of_seen_BSP: Any, of_weight_WP: Any) -> None:
    """Add to `of_seen` and `of_weight`, the gradients; d silu(x) = s (1 + x (1 - s)) with s = sigmoid(x)."""
    of_sum_P = numpy.empty(given_BTP.shape[2], numpy.float32)
    for b in range(given_BTP.shape[0]):
        for t in range(given_BTP.shape[1]):
            _convolve(seen_BSP[b], weight_WP, t, of_sum_P)
            given_P = given_BTP[b, t]
            for p in range(of_sum_P.shape[0]):
                share = sigmoid(of_sum_P[p])
                of_sum_P[p] = given_P[p] * share * (_ONE + of_sum_P[p] * (_ONE - share))
            for tap in range(weight_WP.shape[0]):
                seen_P, of_seen_P = seen_BSP[b, t + tap], of_seen_BSP[b, t + tap]
                for p in range(of_sum_P.shape[0]):
                    of_seen_P[p] += weight_WP[tap, p] * of_sum_P[p]
                    of_weight_WP[tap, p] += seen_P[p] * of_sum_P[p]


class _NumbaShortConvolution(torch.autograd.Function):
    """The kernels behind autograd."""

    @staticmethod
    def forward(ctx: Any, seen_BSP: Tensor, weight_WP: Tensor) -> Tensor:
        seen_BSP, weight_WP = seen_BSP.contiguous(), weight_WP.contiguous()
        batch, seen, num_channels = seen_BSP.shape
        y_BTP = seen_BSP.new_empty(batch, seen - len(weight_WP) + 1, num_channels)
        _forward(seen_BSP.detach().numpy(), weight_WP.detach().numpy(), y_BTP.numpy())
        ctx.save_for_backward(seen_BSP, weight_WP)
        return y_BTP

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given_BTP: Tensor) -> tuple[Tensor, Tensor]:
        seen_BSP, weight_WP = ctx.saved_tensors
        of_seen_BSP, of_weight_WP = torch.zeros_like(seen_BSP), torch.zeros_like(weight_WP)
        given_BTP = given_BTP.contiguous()
        _backward(seen_BSP.numpy(), weight_WP.numpy(), given_BTP.numpy(), of_seen_BSP.numpy(), of_weight_WP.numpy())
        return of_seen_BSP, of_weight_WP
