"""How is each head brought to unit size, before the recurrence of KDA and after it? Two operations of one pass each.

`unit_length` is for queries and keys, `gated_norm` for what the heads read (specification 4.1, steps 1 and 6). The
plain forms are the definitions. Norms over a whole layer are `model/norms.py`.

Shapes: B batch, T positions, H heads, K channels of a head.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from k3ablate.kernels import dispatch

# (x_BTHK, scale, epsilon) -> y_BTHK
UnitLength = Callable[[Tensor, float, float], Tensor]
# (x_BTHK, gate_BTHK, weight_K, epsilon) -> y_BTHK
GatedNorm = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def unit_length(x_BTHK: Tensor, scale: float = 1.0, epsilon: float = 1e-6) -> Tensor:
    """scale * x / sqrt(sum(x^2) + epsilon) over the last axis."""
    return dispatch.choose(UNIT_LENGTH, x_BTHK)(x_BTHK, scale, epsilon)


def unit_length_plain(x_BTHK: Tensor, scale: float, epsilon: float) -> Tensor:
    """The definition of `unit_length`."""
    return scale * (x_BTHK * (x_BTHK.square().sum(dim=-1, keepdim=True) + epsilon).rsqrt())


def gated_norm(x_BTHK: Tensor, gate_BTHK: Tensor, weight_K: Tensor, epsilon: float) -> Tensor:
    """sigmoid(gate) * weight * x / sqrt(mean(x^2) + epsilon), each head by itself: the norm first, the gate after."""
    assert x_BTHK.shape == gate_BTHK.shape, "a gate for each channel"
    return dispatch.choose(GATED_NORM, x_BTHK)(x_BTHK, gate_BTHK, weight_K, epsilon)


def gated_norm_plain(x_BTHK: Tensor, gate_BTHK: Tensor, weight_K: Tensor, epsilon: float) -> Tensor:
    """The definition of `gated_norm`."""
    return torch.sigmoid(gate_BTHK) * functional.rms_norm(x_BTHK, weight_K.shape, weight_K, epsilon)


def _load_numba_unit_length() -> UnitLength:
    from k3ablate.kernels import head_norms_numba

    return head_norms_numba.unit_length


def _load_numba_gated_norm() -> GatedNorm:
    from k3ablate.kernels import head_norms_numba

    return head_norms_numba.gated_norm


UNIT_LENGTH: dispatch.Operation[UnitLength] = dispatch.numba_or_torch(
    "unit_length", _load_numba_unit_length, unit_length_plain
)

GATED_NORM: dispatch.Operation[GatedNorm] = dispatch.numba_or_torch(
    "gated_norm", _load_numba_gated_norm, gated_norm_plain
)
