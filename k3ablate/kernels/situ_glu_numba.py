"""SiTU-GLU's hidden activation on a CPU in float32: one pass forwards, one backwards, nothing kept but the inputs.

Not the definition (`situ_glu.situ_glu_plain` is) and not for other devices or dtypes. Tensors of any shape are read as
one row of X numbers, so that loops are long. One thread.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from k3ablate.kernels.elementary import sigmoid, tanh

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
# Put into its callers before LLVM sees it: compiled first, it has a branch inside, and loops that call it stay scalar.
_inlined = numba.njit(error_model="numpy", inline="always")

_ONE = numpy.float32(1)


def numba_situ_glu(gate: Tensor, up: Tensor, gate_bound: float, up_bound: float) -> Tensor:
    """`situ_glu.situ_glu` for float32 on a CPU."""
    apply: Callable[..., Tensor] = _NumbaSiTUGLU.apply
    return apply(gate, up, numpy.float32(gate_bound), numpy.float32(up_bound))


@_inlined
def situ(gate: Any, up: Any, gate_bound: Any, up_bound: Any) -> Any:
    """One hidden number."""
    bounded_gate = gate_bound * tanh(gate * (_ONE / gate_bound))  # a loop divides once, before it starts
    bounded_up = up_bound * tanh(up * (_ONE / up_bound))
    return bounded_gate * sigmoid(gate) * bounded_up


@_inlined
def situ_slopes(gate: Any, up: Any, gate_bound: Any, up_bound: Any) -> Any:
    """One hidden number, and its derivatives in gate and up: d tanh = 1 - tanh^2, d sigmoid = sigmoid (1 - sigmoid)."""
    share = sigmoid(gate)
    gate_tanh, up_tanh = tanh(gate * (_ONE / gate_bound)), tanh(up * (_ONE / up_bound))
    activated, bounded_up = gate_bound * gate_tanh * share, up_bound * up_tanh
    slope = share * (_ONE - gate_tanh * gate_tanh) + activated * (_ONE - share)
    return activated * bounded_up, slope * bounded_up, activated * (_ONE - up_tanh * up_tanh)


@compiled
def _forward(gate_X: Any, up_X: Any, gate_bound: Any, up_bound: Any, hidden_X: Any) -> None:
    for x in range(gate_X.shape[0]):
        hidden_X[x] = situ(gate_X[x], up_X[x], gate_bound, up_bound)


@compiled
def _backward(
    gate_X: Any, up_X: Any, gate_bound: Any, up_bound: Any, given_X: Any, of_gate_X: Any, of_up_X: Any
) -> None:
    """`of_x` is the gradient of x."""
    for x in range(gate_X.shape[0]):
        _, of_gate, of_up = situ_slopes(gate_X[x], up_X[x], gate_bound, up_bound)
        of_gate_X[x] = given_X[x] * of_gate
        of_up_X[x] = given_X[x] * of_up


class _NumbaSiTUGLU(torch.autograd.Function):
    """The kernels behind autograd."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, gate_bound: Any, up_bound: Any) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        hidden = torch.empty_like(gate)
        _forward(_row(gate), _row(up), gate_bound, up_bound, _row(hidden))
        ctx.save_for_backward(gate, up)
        ctx.bounds = gate_bound, up_bound
        return hidden

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        of_gate, of_up = torch.empty_like(gate), torch.empty_like(up)
        gate_bound, up_bound = ctx.bounds
        _backward(_row(gate), _row(up), gate_bound, up_bound, _row(given.contiguous()), _row(of_gate), _row(of_up))
        return of_gate, of_up, None, None


def _row(tensor: Tensor) -> Any:
    """All numbers of a contiguous tensor."""
    return tensor.detach().view(-1).numpy()
