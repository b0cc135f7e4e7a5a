"""How much of what heads found is let through? A sigmoid gate for each channel, in one pass.

K3's gated MLA multiplies so before its output projection (specification 4.2). KDA's gate comes with its norm, in
`head_norms.py`. The plain form is the definition.
"""

from collections.abc import Callable

from torch import Tensor

from k3ablate.kernels import dispatch

# (found, gate) -> gated, of one shape
OutputGateFunction = Callable[[Tensor, Tensor], Tensor]


def output_gate(found: Tensor, gate: Tensor) -> Tensor:
    """sigmoid(gate) * found, any shape."""
    assert found.shape == gate.shape, "a gate for each channel"
    return dispatch.choose(OPERATION, gate)(found, gate)


def output_gate_plain(found: Tensor, gate: Tensor) -> Tensor:
    """The definition of `output_gate`."""
    return gate.sigmoid() * found


def _load_numba() -> OutputGateFunction:
    from k3ablate.kernels.output_gate_numba import numba_output_gate

    return numba_output_gate


OPERATION: dispatch.Operation[OutputGateFunction] = dispatch.numba_or_torch(
    "output_gate", _load_numba, output_gate_plain
)
