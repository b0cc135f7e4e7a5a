"""The short convolution with its SiLU on a CPU in float32: sixteen channels at a time, forwards and backwards.

Not the definition (`short_convolution.short_convolution_plain` is). Channels are neighbours in memory and move
together. Some positions at a time are copied to where they are whole vectors, behind the inputs that they look back to:
a loop over taps then asks for no borders. The backward forms each sum again rather than keep it. One thread, so that
the sums over positions in the weights' gradient do not depend on the machine.

Shapes: as in `short_convolution.py`; S rows of the positions at hand and of the U before them.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from k3ablate.kernels.elementary import sigmoids
from k3ablate.kernels.kda_tiles import room
from k3ablate.kernels.vector import LANES, fma, load, load_first, multiply, splat, store, store_first, subtract
from k3ablate.kernels.whole_vectors import narrow, whole, widen

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
# Put into its callers before numba sees arrays handed over, whose references it would count in the innermost loop.
_inlined = numba.njit(error_model="numpy", inline="always")

_ZERO, _ONE = numpy.float32(0), numpy.float32(1)
_POSITIONS = 32  # at a time: all that is held of them stays in the first cache up to some hundred channels


def numba_short_convolution(x_BTP: Tensor, before_BUP: Tensor, weight_PW: Tensor) -> Tensor:
    """`short_convolution.short_convolution` for float32 on a CPU."""
    apply: Callable[..., Tensor] = _NumbaShortConvolution.apply
    return apply(x_BTP, before_BUP, weight_PW.T)


@compiled
def _new_rows(num_rows: int, num_channels: int) -> Any:
    """Zeros in rows of whole vectors."""
    return room(num_rows * whole(num_channels)).reshape(num_rows, whole(num_channels))


@compiled
def _look_back(x_TP: Any, before_UP: Any, start: int, seen_SP: Any) -> None:
    """Fill `seen` from U positions before `start` on, as far as there are positions."""
    num_before = before_UP.shape[0]
    if start < num_before:
        widen(before_UP[start:], seen_SP)
    first, last = max(start - num_before, 0), min(start - num_before + seen_SP.shape[0], x_TP.shape[0])
    widen(x_TP[first:last], seen_SP[max(num_before - start, 0) :])


@_inlined
def _over_taps(rows_SP: Any, weight_WP: Any, first: int, step: int, p: int) -> Any:
    """Sum of sixteen channels from p on: each tap times its row, `first` and every `step` from there on."""
    width = weight_WP.shape[1]
    summed = splat(_ZERO)
    for tap in range(weight_WP.shape[0]):
        summed = fma(load(weight_WP, tap * width + p), load(rows_SP, (first + step * tap) * width + p), summed)
    return summed


@compiled
def _forward(x_BTP: Any, before_BUP: Any, weight_WP: Any, y_BTP: Any) -> None:
    num_before, (_, length, num_channels) = before_BUP.shape[1], x_BTP.shape
    seen_SP, taps_WP = _new_rows(num_before + _POSITIONS, num_channels), _new_rows(num_before + 1, num_channels)
    widen(weight_WP, taps_WP)
    for b in range(x_BTP.shape[0]):
        y_TP = y_BTP[b]
        for start in range(0, length, _POSITIONS):
            _look_back(x_BTP[b], before_BUP[b], start, seen_SP)
            for t in range(start, min(start + _POSITIONS, length)):
                for p in range(0, num_channels, LANES):
                    summed = _over_taps(seen_SP, taps_WP, t - start, 1, p)
                    y = multiply(summed, sigmoids(summed))
                    store_first(y_TP, t * num_channels + p, num_channels - p, y)


@compiled
def _backward(
    x_BTP: Any, before_BUP: Any, weight_WP: Any, given_BTP: Any, of_x_BTP: Any, of_before_BUP: Any, of_weight_WP: Any
) -> None:
    """Fill the gradients. Each input is seen by positions up to U after it, so there are U more rows to end with."""
    num_before, (_, length, num_channels) = before_BUP.shape[1], x_BTP.shape
    num_rows = num_before + _POSITIONS
    seen_SP, of_sum_SP = _new_rows(num_rows, num_channels), _new_rows(num_rows, num_channels)
    taps_WP, of_taps_WP = _new_rows(num_before + 1, num_channels), _new_rows(num_before + 1, num_channels)
    widen(weight_WP, taps_WP)
    for b in range(x_BTP.shape[0]):
        of_sum_SP[:num_before] = _ZERO
        for start in range(0, num_before + length, _POSITIONS):
            stop = start + _POSITIONS
            given_TP = given_BTP[b, start : min(stop, length)]
            _look_back(x_BTP[b], before_BUP[b], start, seen_SP)
            _through_activation(seen_SP, taps_WP, given_TP, of_sum_SP[num_before:])
            _weigh_positions(seen_SP, of_sum_SP[num_before:], given_TP.shape[0], of_taps_WP)
            num_early = min(max(num_before - start, 0), _POSITIONS)
            _add_seers(of_sum_SP, taps_WP, num_before, of_before_BUP[b, start : start + num_early])
            first = start + num_early - num_before
            _add_seers(of_sum_SP, taps_WP, num_before + num_early, of_x_BTP[b, first : stop - num_before])
            for row in range(num_before):
                of_sum_SP[row] = of_sum_SP[_POSITIONS + row]
    narrow(of_taps_WP, of_weight_WP)


@compiled
def _through_activation(seen_SP: Any, taps_WP: Any, given_TP: Any, of_sum_SP: Any) -> None:
    """Fill gradients of sums, zeros behind the last position; d silu(x) = s (1 + x (1 - s)) with s = sigmoid(x)."""
    width, num_channels, one = seen_SP.shape[1], given_TP.shape[1], splat(_ONE)
    for t in range(given_TP.shape[0]):
        for p in range(0, width, LANES):
            summed = _over_taps(seen_SP, taps_WP, t, 1, p)
            share = sigmoids(summed)
            slope = multiply(share, fma(summed, subtract(one, share), one))
            given = load_first(given_TP, t * num_channels + p, num_channels - p)
            store(of_sum_SP, t * width + p, multiply(given, slope))
    of_sum_SP[given_TP.shape[0] :] = _ZERO


@compiled
def _weigh_positions(seen_SP: Any, of_sum_SP: Any, num_positions: int, of_taps_WP: Any) -> None:
    """Add to the gradients of taps."""
    width = seen_SP.shape[1]
    for tap in range(of_taps_WP.shape[0]):
        for p in range(0, width, LANES):
            of_tap = load(of_taps_WP, tap * width + p)
            for t in range(num_positions):
                of_tap = fma(load(seen_SP, (t + tap) * width + p), load(of_sum_SP, t * width + p), of_tap)
            store(of_taps_WP, tap * width + p, of_tap)


@compiled
def _add_seers(of_sum_SP: Any, taps_WP: Any, first: int, of_seen_SP: Any) -> None:
    """Fill gradients of inputs, of which number i is the last that row `first + i` of the sums sees."""
    num_channels = of_seen_SP.shape[1]
    for row in range(of_seen_SP.shape[0]):
        for p in range(0, num_channels, LANES):
            of_seen = _over_taps(of_sum_SP, taps_WP, first + row, -1, p)
            store_first(of_seen_SP, row * num_channels + p, num_channels - p, of_seen)


class _NumbaShortConvolution(torch.autograd.Function):
    """The kernels behind autograd."""

    @staticmethod
    def forward(ctx: Any, x_BTP: Tensor, before_BUP: Tensor, weight_WP: Tensor) -> Tensor:
        x_BTP, before_BUP, weight_WP = x_BTP.contiguous(), before_BUP.contiguous(), weight_WP.contiguous()
        y_BTP = torch.empty_like(x_BTP)
        x, before, weight = (tensor.detach().numpy() for tensor in (x_BTP, before_BUP, weight_WP))
        _forward(x, before, weight, y_BTP.numpy())
        ctx.save_for_backward(x_BTP, before_BUP, weight_WP)
        return y_BTP

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given_BTP: Tensor) -> tuple[Tensor, ...]:
        saved = ctx.saved_tensors  # once: activation checkpointing allows no more
        gradients = tuple(torch.empty_like(tensor) for tensor in saved)
        x, before, weight = (tensor.numpy() for tensor in saved)
        of_x, of_before, of_weight = (tensor.numpy() for tensor in gradients)
        _backward(x, before, weight, given_BTP.contiguous().numpy(), of_x, of_before, of_weight)
        return gradients
