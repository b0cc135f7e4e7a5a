"""How do many small gated linear units, each on its own tokens, add up to one output? The products of routed experts.

`experts` computes y = sum over a token's chosen experts of weight x down(combine(gate x, up x)). `experts_plain` is
the definition: a loop over experts. The numba form (`experts_numba.py`) is for CPUs; measured on one core it took 0.4
to 0.5 of the time of torch's grouped products, which took less than padded batches, slices of the sorted tokens, or a
loop behind its own autograd function. The grouped form is for GPUs. Who chooses experts and weights is
`model/moe.py`.

Shapes: N tokens, A active experts of a token, E experts, L input width, F hidden width, P pairs (N x A) by expert.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from k3ablate.kernels import dispatch


class Activation(Protocol):
    """What a hidden unit makes of its two projections."""

    @property
    def bounds(self) -> tuple[float, float] | None:
        """For kernels with the activation inside: SiTU-GLU's bounds of gate and up, infinite ones for SwiGLU.

        None for every other activation, which only the forms in torch take.
        """

    def combine(self, gate: Tensor, up: Tensor) -> Tensor:
        """Hidden activation from the two projections, elementwise; zero where both are zero."""


class ExpertWeights(NamedTuple):
    """Stacked matrices of all experts."""

    gate: Tensor  # EFL
    up: Tensor  # EFL
    down: Tensor  # ELF


# (x_NL, chosen_NA, weights_NA, matrices, activation) -> y_NL
Experts = Callable[[Tensor, Tensor, Tensor, ExpertWeights, Activation], Tensor]


def experts(
    x_NL: Tensor, chosen_NA: Tensor, weights_NA: Tensor, matrices: ExpertWeights, activation: Activation
) -> Tensor:
    """Weighted sum of each token's chosen experts, y_NL in the dtype of the products (autocast's where it is on)."""
    device = x_NL.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_NL.dtype
    matrices = ExpertWeights(*(matrix.to(dtype) for matrix in matrices))
    form = dispatch.choose(_forms(activation), x_NL.to(dtype))
    return form(x_NL.to(dtype), chosen_NA, weights_NA, matrices, activation)


def experts_plain(
    x_NL: Tensor, chosen_NA: Tensor, weights_NA: Tensor, matrices: ExpertWeights, activation: Activation
) -> Tensor:
    """The definition of `experts`: one expert after the other."""
    y_NL = torch.zeros_like(x_NL, dtype=torch.promote_types(x_NL.dtype, weights_NA.dtype))
    for expert, (gate_FL, up_FL, down_LF) in enumerate(zip(*matrices, strict=True)):
        tokens, slots = (chosen_NA == expert).nonzero(as_tuple=True)
        own_x = x_NL[tokens]
        own_y = activation.combine(own_x @ gate_FL.T, own_x @ up_FL.T) @ down_LF.T
        y_NL = y_NL.index_add(0, tokens, own_y * weights_NA[tokens, slots, None])
    return y_NL.to(x_NL.dtype)


def experts_grouped(
    x_NL: Tensor, chosen_NA: Tensor, weights_NA: Tensor, matrices: ExpertWeights, activation: Activation
) -> Tensor:
    """`experts` by torch's grouped products, on pairs of token and expert sorted by expert."""
    num_experts, width = matrices.gate.shape[0], matrices.gate.shape[2]
    pairs_P = chosen_NA.flatten().argsort(stable=True)
    tokens_P = pairs_P // chosen_NA.shape[1]
    ends_E = chosen_NA.flatten().bincount(minlength=num_experts).cumsum(0).to(torch.int32)
    aligned = ExpertWeights(*(_aligned(_aligned(matrix, -1), -2) for matrix in matrices))
    x_PL = _aligned(x_NL.index_select(0, tokens_P), -1)
    both_PF = functional.grouped_mm(x_PL, torch.cat((aligned.gate, aligned.up), 1).mT, offs=ends_E)
    hidden_PF = activation.combine(*both_PF.chunk(2, dim=-1))
    y_PL = functional.grouped_mm(hidden_PF, aligned.down.mT, offs=ends_E)[:, :width]
    weighted_PL = y_PL * weights_NA.flatten().index_select(0, pairs_P).unsqueeze(-1)
    return torch.zeros_like(x_NL, dtype=weights_NA.dtype).index_add(0, tokens_P, weighted_PL).to(x_NL.dtype)


def _aligned(tensor: Tensor, dim: int) -> Tensor:
    """`tensor` with zeros after the end of `dim`, so that it fills whole 16 bytes: grouped products demand it."""
    missing = -tensor.shape[dim] % (16 // tensor.element_size())
    return functional.pad(tensor, (0, 0) * (-dim - 1) + (0, missing)) if missing else tensor


def _forms(activation: Activation) -> "dispatch.Operation[Experts]":
    """`OPERATION`, without the kernel where that lacks the activation."""
    if activation.bounds is not None:
        return OPERATION
    return dispatch.Operation(OPERATION.name, OPERATION.implementations[1:])


def _grouped_suits(tensor: Tensor) -> bool:
    return dispatch.on_cpu_in_float32(tensor) or (dispatch.on_cuda(tensor) and tensor.dtype is torch.bfloat16)


def _load_numba() -> Experts:
    from k3ablate.kernels.experts_numba import numba_experts

    return numba_experts


OPERATION: dispatch.Operation[Experts] = dispatch.Operation(
    "experts",
    (
        dispatch.Implementation("numba", dispatch.on_cpu_in_float32, _load_numba),
        dispatch.Implementation("grouped", _grouped_suits, lambda: experts_grouped),
        dispatch.Implementation("torch", dispatch.anywhere, lambda: experts_plain),
    ),
)
