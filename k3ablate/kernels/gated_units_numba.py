"""What do gated units make of their two projections inside a numba kernel, and what are the gradients?

SwiGLU and SiTU-GLU over one row of X numbers, for a kernel that has both projections in its cache. Not for tensors:
`situ_glu.situ_glu` and torch's own SwiGLU take those. SwiGLU is SiTU-GLU with infinite bounds, and asked for so.
"""

from typing import Any

import numba
import numpy

from k3ablate.kernels.elementary import sigmoid
from k3ablate.kernels.situ_glu_numba import situ, situ_slopes

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

_ONE = numpy.float32(1)


@compiled
def activate(gate_X: Any, up_X: Any, bounds: Any, hidden_X: Any) -> None:
    """Fill `hidden`; `bounds` are (gate_bound, up_bound)."""
    gate_bound, up_bound = bounds[0], bounds[1]
    if min(gate_bound, up_bound) == numpy.inf:
        for x in range(gate_X.shape[0]):
            hidden_X[x] = gate_X[x] * sigmoid(gate_X[x]) * up_X[x]
    else:
        for x in range(gate_X.shape[0]):
            hidden_X[x] = situ(gate_X[x], up_X[x], gate_bound, up_bound)


@compiled
def activate_backward(
    gate_X: Any, up_X: Any, bounds: Any, given_X: Any, hidden_X: Any, of_gate_X: Any, of_up_X: Any
) -> None:
    """Fill `hidden` again, and the gradients of gate and up from `given`, that of hidden."""
    gate_bound, up_bound = bounds[0], bounds[1]
    if min(gate_bound, up_bound) == numpy.inf:
        for x in range(gate_X.shape[0]):
            share = sigmoid(gate_X[x])
            activated = gate_X[x] * share
            hidden_X[x] = activated * up_X[x]
            of_gate_X[x] = given_X[x] * up_X[x] * (share + activated * (_ONE - share))
            of_up_X[x] = given_X[x] * activated
    else:
        for x in range(gate_X.shape[0]):
            hidden, of_gate, of_up = situ_slopes(gate_X[x], up_X[x], gate_bound, up_bound)
            hidden_X[x] = hidden
            of_gate_X[x] = given_X[x] * of_gate
            of_up_X[x] = given_X[x] * of_up
