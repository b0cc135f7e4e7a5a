"""RMSNorm on a CPU in float32: a row at a time, forwards and backwards, nothing kept but the input.

Not the definition (`rms_norm.rms_norm_plain` is). One thread, so that the sum over rows in the weight's gradient does
not depend on the machine. With r = 1 / rms(x), n = r x and g the gradient of n: dx = r (g - n mean(g n)).

Shapes: N rows (tokens), D channels.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


def numba_rms_norm(x: Tensor, weight_D: Tensor, epsilon: float) -> Tensor:
    """`rms_norm.rms_norm` for float32 on a CPU."""
    apply: Callable[..., Tensor] = _NumbaRmsNorm.apply
    return apply(x, weight_D, numpy.float32(epsilon))


@compiled
def _factor(x_D: Any, epsilon: Any) -> Any:
    """1 / rms."""
    squares = numpy.float32(0)
    for d in range(x_D.shape[0]):
        squares += x_D[d] * x_D[d]
    return numpy.float32(1) / numpy.sqrt(squares / numpy.float32(x_D.shape[0]) + epsilon)


@compiled
def _forward(x_ND: Any, weight_D: Any, epsilon: Any, y_ND: Any) -> None:
    for n in range(x_ND.shape[0]):
        factor = _factor(x_ND[n], epsilon)
        for d in range(x_ND.shape[1]):
            y_ND[n, d] = factor * x_ND[n, d] * weight_D[d]


@compiled
def _backward(x_ND: Any, weight_D: Any, epsilon: Any, given_ND: Any, of_x_ND: Any, of_weight_D: Any) -> None:
    """Fill `of_x` and add to `of_weight`, the gradients."""
    for n in range(x_ND.shape[0]):
        factor = _factor(x_ND[n], epsilon)
        product = numpy.float32(0)
        for d in range(x_ND.shape[1]):
            product += given_ND[n, d] * weight_D[d] * x_ND[n, d]
        along = factor * factor * product / numpy.float32(x_ND.shape[1])
        for d in range(x_ND.shape[1]):
            of_weight_D[d] += given_ND[n, d] * factor * x_ND[n, d]
            of_x_ND[n, d] = factor * (given_ND[n, d] * weight_D[d] - along * x_ND[n, d])


class _NumbaRmsNorm(torch.autograd.Function):
    """The kernels behind autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_D: Tensor, epsilon: Any) -> Tensor:
        x, weight_D = x.contiguous(), weight_D.contiguous()
        y = torch.empty_like(x)
        _forward(_rows(x), weight_D.detach().numpy(), epsilon, _rows(y))
        ctx.save_for_backward(x, weight_D)
        ctx.epsilon = epsilon
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight_D = ctx.saved_tensors
        of_x, of_weight_D = torch.empty_like(x), torch.zeros_like(weight_D)
        _backward(_rows(x), weight_D.numpy(), ctx.epsilon, _rows(given.contiguous()), _rows(of_x), of_weight_D.numpy())
        return of_x, of_weight_D, None


def _rows(x: Tensor) -> Any:
    """A contiguous tensor as an array ND."""
    return x.detach().view(-1, x.shape[-1]).numpy()
