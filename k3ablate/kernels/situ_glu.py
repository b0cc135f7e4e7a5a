"""What is the hidden activation of SiTU-GLU, computed in one pass over its two projections?

Elementwise (specification 4.3), of float32 tensors or wider; lower precisions are the caller's to raise. torch makes
nine passes of it and as many backwards. SwiGLU has no kernel: torch's two passes take as long as one of numba's.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from k3ablate.kernels import dispatch

# (gate, up, gate_bound, up_bound) -> hidden, of one shape
SiTUGLUFunction = Callable[[Tensor, Tensor, float, float], Tensor]


def situ_glu(gate: Tensor, up: Tensor, gate_bound: float, up_bound: float) -> Tensor:
    """gate_bound tanh(gate / gate_bound) sigmoid(gate) * up_bound tanh(up / up_bound), any shape."""
    assert gate.shape == up.shape, "gate and up share one shape"
    return dispatch.choose(OPERATION, gate)(gate, up, gate_bound, up_bound)


def situ_glu_plain(gate: Tensor, up: Tensor, gate_bound: float, up_bound: float) -> Tensor:
    """The definition of `situ_glu`."""
    bounded_gate = gate_bound * torch.tanh(gate / gate_bound)
    bounded_up = up_bound * torch.tanh(up / up_bound)
    return bounded_gate * torch.sigmoid(gate) * bounded_up


def _load_numba() -> SiTUGLUFunction:
    from k3ablate.kernels.situ_glu_numba import numba_situ_glu

    return numba_situ_glu


OPERATION: dispatch.Operation[SiTUGLUFunction] = dispatch.numba_or_torch("situ_glu", _load_numba, situ_glu_plain)
