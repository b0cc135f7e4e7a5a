"""Norms of single heads on a CPU in float32: one pass over the heads each, forwards and backwards.

Not the definitions, which are in `head_norms.py`. One thread, so that the sum over heads in a weight's gradient does
not depend on the machine. Derivatives, for n = r x with r = 1 / norm(x) and g the gradient of n: dx = r (g - n c),
c the sum of g n for `unit_length` and its mean for `gated_norm`.

Shapes: M heads of all tokens (B x T x H), K channels of a head.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from k3ablate.kernels.elementary import sigmoid, sigmoids
from k3ablate.kernels.kda_tiles import new_rows
from k3ablate.kernels.vector import (
    LANES,
    add,
    fma,
    load,
    load_first,
    multiply,
    splat,
    store,
    store_first,
    subtract,
    total,
)
from k3ablate.kernels.whole_vectors import narrow, widen

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

_ZERO, _ONE = numpy.float32(0), numpy.float32(1)


def unit_length(x_BTHK: Tensor, scale: float, epsilon: float) -> Tensor:
    """`head_norms.unit_length` for float32 on a CPU."""
    apply: Callable[..., Tensor] = _UnitLength.apply
    return apply(x_BTHK, numpy.float32(scale), numpy.float32(epsilon))


def gated_norm(x_BTHK: Tensor, gate_BTHK: Tensor, weight_K: Tensor, epsilon: float) -> Tensor:
    """`head_norms.gated_norm` for float32 on a CPU."""
    apply: Callable[..., Tensor] = _GatedNorm.apply
    return apply(x_BTHK, gate_BTHK, weight_K, numpy.float32(epsilon))


@compiled
def _dot(a_K: Any, b_K: Any) -> Any:
    total = numpy.float32(0)
    for k in range(a_K.shape[0]):
        total += a_K[k] * b_K[k]
    return total


@compiled
def _unit_forward(x_MK: Any, scale: Any, epsilon: Any, y_MK: Any) -> None:
    for m in range(x_MK.shape[0]):
        factor = scale / numpy.sqrt(_dot(x_MK[m], x_MK[m]) + epsilon)
        for k in range(x_MK.shape[1]):
            y_MK[m, k] = factor * x_MK[m, k]


@compiled
def _unit_backward(x_MK: Any, scale: Any, epsilon: Any, given_MK: Any, of_x_MK: Any) -> None:
    for m in range(x_MK.shape[0]):
        squares = _dot(x_MK[m], x_MK[m]) + epsilon
        factor, along = scale / numpy.sqrt(squares), _dot(given_MK[m], x_MK[m]) / squares
        for k in range(x_MK.shape[1]):
            of_x_MK[m, k] = factor * (given_MK[m, k] - along * x_MK[m, k])


@compiled
def _root_mean_square(x_K: Any, epsilon: Any) -> Any:
    return numpy.sqrt(_dot(x_K, x_K) / numpy.float32(x_K.shape[0]) + epsilon)


@compiled
def _gated_forward(x_MK: Any, gate_MK: Any, weight_K: Any, epsilon: Any, y_MK: Any) -> None:
    for m in range(x_MK.shape[0]):
        factor = _ONE / _root_mean_square(x_MK[m], epsilon)
        for k in range(x_MK.shape[1]):
            y_MK[m, k] = sigmoid(gate_MK[m, k]) * weight_K[k] * (factor * x_MK[m, k])


@compiled
def _gated_backward(
    x_MK: Any,
    gate_MK: Any,
    weight_1K: Any,
    epsilon: Any,
    given_MK: Any,
    of_x_MK: Any,
    of_gate_MK: Any,
    of_weight_1K: Any,
) -> None:
    """Fill the gradients; `of_x` is the gradient of x. In vectors by name: plain loops over so many arrays are not."""
    num_channels, one = x_MK.shape[1], splat(_ONE)
    rows = new_rows(3, 1, num_channels)
    weights, of_weights, shares = rows[0], rows[1], rows[2]
    widen(weight_1K, weights)
    for m in range(x_MK.shape[0]):
        squares, products = splat(_ZERO), splat(_ZERO)
        for k in range(0, num_channels, LANES):
            at, count = m * num_channels + k, num_channels - k
            x, share = load_first(x_MK, at, count), sigmoids(load_first(gate_MK, at, count))
            store(shares, k, share)
            of_unit = multiply(load_first(given_MK, at, count), multiply(share, load(weights, k)))
            squares, products = fma(x, x, squares), fma(of_unit, x, products)
        factor = _ONE / numpy.sqrt(total(squares) / numpy.float32(num_channels) + epsilon)
        along = splat(factor * factor * (total(products) / numpy.float32(num_channels)))
        for k in range(0, num_channels, LANES):
            at, count = m * num_channels + k, num_channels - k
            x, share, weight = load_first(x_MK, at, count), load(shares, k), load(weights, k)
            through = multiply(load_first(given_MK, at, count), share)
            weighed = multiply(through, multiply(splat(factor), x))
            store(of_weights, k, add(load(of_weights, k), weighed))
            store_first(of_gate_MK, at, count, multiply(multiply(weighed, weight), subtract(one, share)))
            of_x = multiply(splat(factor), subtract(multiply(through, weight), multiply(along, x)))
            store_first(of_x_MK, at, count, of_x)
    narrow(of_weights, of_weight_1K)


class _UnitLength(torch.autograd.Function):
    """The kernels of `unit_length` behind autograd."""

    @staticmethod
    def forward(ctx: Any, x_BTHK: Tensor, scale: Any, epsilon: Any) -> Tensor:
        x_BTHK = x_BTHK.contiguous()
        y_BTHK = torch.empty_like(x_BTHK)
        _unit_forward(_heads(x_BTHK), scale, epsilon, _heads(y_BTHK))
        ctx.save_for_backward(x_BTHK)
        ctx.constants = scale, epsilon
        return y_BTHK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given_BTHK: Tensor) -> tuple[Tensor, None, None]:
        (x_BTHK,) = ctx.saved_tensors
        scale, epsilon = ctx.constants
        of_x_BTHK = torch.empty_like(x_BTHK)
        _unit_backward(_heads(x_BTHK), scale, epsilon, _heads(given_BTHK.contiguous()), _heads(of_x_BTHK))
        return of_x_BTHK, None, None


class _GatedNorm(torch.autograd.Function):
    """The kernels of `gated_norm` behind autograd."""

    @staticmethod
    def forward(ctx: Any, x_BTHK: Tensor, gate_BTHK: Tensor, weight_K: Tensor, epsilon: Any) -> Tensor:
        x_BTHK, gate_BTHK, weight_K = x_BTHK.contiguous(), gate_BTHK.contiguous(), weight_K.contiguous()
        y_BTHK = torch.empty_like(x_BTHK)
        _gated_forward(_heads(x_BTHK), _heads(gate_BTHK), weight_K.detach().numpy(), epsilon, _heads(y_BTHK))
        ctx.save_for_backward(x_BTHK, gate_BTHK, weight_K)
        ctx.epsilon = epsilon
        return y_BTHK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given_BTHK: Tensor) -> tuple[Tensor | None, ...]:
        x_BTHK, gate_BTHK, weight_K = ctx.saved_tensors
        of_x_BTHK, of_gate_BTHK = torch.empty_like(x_BTHK), torch.empty_like(gate_BTHK)
        of_weight_K = torch.empty_like(weight_K)
        _gated_backward(
            _heads(x_BTHK),
            _heads(gate_BTHK),
            _heads(weight_K),
            ctx.epsilon,
            _heads(given_BTHK.contiguous()),
            _heads(of_x_BTHK),
            _heads(of_gate_BTHK),
            _heads(of_weight_K),
        )
        return of_x_BTHK, of_gate_BTHK, of_weight_K, None


def _heads(tensor_BTHK: Tensor) -> Any:
    """A contiguous tensor as an array MK."""
    return tensor_BTHK.detach().view(-1, tensor_BTHK.shape[-1]).numpy()
