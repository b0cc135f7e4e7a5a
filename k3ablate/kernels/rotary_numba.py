"""Rotary positions on a CPU in float32: one pass over the heads, forwards and, with angles negated, backwards.

Not the definition (`rotary.rotary_plain` is). Cosines and sines of a length are computed once and kept outside the
model, for the few lengths that training and validation have. One thread: the pass takes as long as a copy.

Shapes: B batch, T positions, H heads, K channels, of which the last ones are turned, Q pairs of those.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numba
import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


@lru_cache(maxsize=8)
def _table(length: int, num_pairs: int, base: float) -> tuple[Any, Any]:
    """Cosines and sines, each TQ."""
    angles_TQ = numpy.arange(length)[:, None] * base ** -(numpy.arange(num_pairs) / num_pairs)
    return numpy.cos(angles_TQ).astype(numpy.float32), numpy.sin(angles_TQ).astype(numpy.float32)


@compiled
def _turn(x_BTHK: Any, cosine_TQ: Any, sine_TQ: Any, direction: Any, y_BTHK: Any) -> None:
    """Fill `y`; direction 1 turns, -1 turns back."""
    batch, length, num_heads, width = x_BTHK.shape
    num_pairs = cosine_TQ.shape[1]
    first = width - 2 * num_pairs
    for b in range(batch):
        for t in range(length):
            for h in range(num_heads):
                x_K, y_K = x_BTHK[b, t, h], y_BTHK[b, t, h]
                for k in range(first):
                    y_K[k] = x_K[k]
                for q in range(num_pairs):
                    one, other = x_K[first + q], x_K[first + num_pairs + q]
                    cosine, sine = cosine_TQ[t, q], direction * sine_TQ[t, q]
                    y_K[first + q] = one * cosine - other * sine
                    y_K[first + num_pairs + q] = other * cosine + one * sine


class _NumbaRotary(torch.autograd.Function):
    """The kernel behind autograd. Nothing is kept: turning back needs only the angles."""

    @staticmethod
    def forward(ctx: Any, x_BTHK: Tensor, width: int, base: float) -> Tensor:
        ctx.table = _table(x_BTHK.shape[1], width // 2, base)
        return _turned(x_BTHK, ctx.table, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None, None]:
        return _turned(given, ctx.table, -1), None, None


def _turned(x_BTHK: Tensor, table: tuple[Any, Any], direction: int) -> Tensor:
    x_BTHK = x_BTHK.detach().contiguous()
    y_BTHK = torch.empty_like(x_BTHK)
    _turn(x_BTHK.numpy(), *table, numpy.float32(direction), y_BTHK.numpy())
    return y_BTHK


def numba_rotary(x_BTHK: Tensor, width: int, base: float) -> Tensor:
    """`rotary.rotary` for float32 on a CPU."""
    apply: Callable[..., Tensor] = _NumbaRotary.apply
    return apply(x_BTHK, width, base)
