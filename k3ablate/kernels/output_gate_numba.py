"""The sigmoid gate on a CPU in float32: one pass forwards, one backwards, nothing kept but the inputs.

Not the definition (`output_gate.output_gate_plain` is). Tensors of any shape are read as one row of X numbers, sixteen
at a time. One thread.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from k3ablate.kernels.elementary import sigmoids
from k3ablate.kernels.vector import LANES, load_first, multiply, splat, store_first, subtract

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

_ONE = numpy.float32(1)


def numba_output_gate(found: Tensor, gate: Tensor) -> Tensor:
    """`output_gate.output_gate` for float32 on a CPU."""
    apply: Callable[..., Tensor] = _NumbaOutputGate.apply
    return apply(found, gate)


@compiled
def _forward(found_X: Any, gate_X: Any, gated_X: Any) -> None:
    size = gate_X.shape[0]
    for x in range(0, size, LANES):
        share = sigmoids(load_first(gate_X, x, size - x))
        store_first(gated_X, x, size - x, multiply(share, load_first(found_X, x, size - x)))


@compiled
def _backward(found_X: Any, gate_X: Any, given_X: Any, of_found_X: Any, of_gate_X: Any) -> None:
    """`of_x` is the gradient of x."""
    size, one = gate_X.shape[0], splat(_ONE)
    for x in range(0, size, LANES):
        share = sigmoids(load_first(gate_X, x, size - x))
        through = multiply(share, load_first(given_X, x, size - x))
        store_first(of_found_X, x, size - x, through)
        slope = multiply(subtract(one, share), load_first(found_X, x, size - x))
        store_first(of_gate_X, x, size - x, multiply(through, slope))


class _NumbaOutputGate(torch.autograd.Function):
    """The kernels behind autograd."""

    @staticmethod
    def forward(ctx: Any, found: Tensor, gate: Tensor) -> Tensor:
        found, gate = found.contiguous(), gate.contiguous()
        gated = torch.empty_like(gate)
        _forward(_row(found), _row(gate), _row(gated))
        ctx.save_for_backward(found, gate)
        return gated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, Tensor]:
        found, gate = ctx.saved_tensors
        of_found, of_gate = torch.empty_like(found), torch.empty_like(gate)
        _backward(_row(found), _row(gate), _row(given.contiguous()), _row(of_found), _row(of_gate))
        return of_found, of_gate


def _row(tensor: Tensor) -> Any:
    """All numbers of a contiguous tensor."""
    return tensor.detach().view(-1).numpy()
