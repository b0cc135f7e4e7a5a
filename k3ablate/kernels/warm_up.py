"""How do worker processes find their kernels compiled? One small call of each operation, forward and backward.

numba keeps what it compiles on disk, so that this takes seconds once and little afterwards. Without it every worker of
a first grid would compile the same kernels at the same time, inside the time that its run is charged with.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from k3ablate.kernels import attnres, dispatch, experts, routing
from k3ablate.kernels.causal_attention import OPERATION as CAUSAL_ATTENTION
from k3ablate.kernels.causal_attention import causal_attention
from k3ablate.kernels.decay import OPERATION as BOUNDED_DECAY
from k3ablate.kernels.decay import bounded_decay
from k3ablate.kernels.head_norms import GATED_NORM, UNIT_LENGTH, gated_norm, unit_length
from k3ablate.kernels.kda import OPERATION as KDA
from k3ablate.kernels.kda import kda
from k3ablate.kernels.output_gate import OPERATION as OUTPUT_GATE
from k3ablate.kernels.output_gate import output_gate
from k3ablate.kernels.rms_norm import OPERATION as RMS_NORM
from k3ablate.kernels.rms_norm import rms_norm
from k3ablate.kernels.rotary import OPERATION as ROTARY
from k3ablate.kernels.rotary import rotary
from k3ablate.kernels.short_convolution import OPERATION as SHORT_CONVOLUTION
from k3ablate.kernels.short_convolution import short_convolution
from k3ablate.kernels.situ_glu import OPERATION as SITU_GLU
from k3ablate.kernels.situ_glu import situ_glu

OPERATIONS = (
    CAUSAL_ATTENTION, ROTARY, OUTPUT_GATE, KDA, BOUNDED_DECAY, SHORT_CONVOLUTION, UNIT_LENGTH, GATED_NORM, RMS_NORM,
    attnres.OPERATION, routing.CHOOSE, routing.WEIGH, routing.HISTOGRAM, experts.OPERATION, SITU_GLU,
)  # fmt: skip

WIDTH = 16
NUM_EXPERTS = 4
NUM_BINS = 8


def warm_up() -> None:
    """Call every operation with tensors of the kind that training uses on this machine's CPU.

    InputError where K3ABLATE_KERNELS forces what does not exist or run here.
    """
    dispatch.check_forced(OPERATIONS)
    _softmax_attention()
    _linear_attention()
    _residual()
    _routing()
    torch.autograd.backward(rms_norm(_zeros(1, WIDTH), _zeros(WIDTH), 1e-5).sum())
    torch.autograd.backward(situ_glu(_zeros(WIDTH), _zeros(WIDTH), 4.0, 25.0).sum())


def _softmax_attention() -> None:
    query, key, value = (_zeros(1, 2, 1, WIDTH) for _ in range(3))
    found = causal_attention(rotary(query, WIDTH, 1e4), key, value)
    torch.autograd.backward(output_gate(found, value).sum())


def _linear_attention() -> None:
    query, key, value, logits = (_zeros(1, 2, 1, WIDTH) for _ in range(4))
    log_decay = bounded_decay(logits, _zeros(1, WIDTH), _zeros(1), -5.0)
    output_BTHV, _ = kda(query, key, value, log_decay, _zeros(1, 2, 1))
    narrow = _zeros(1, 2, 1, WIDTH // 2)  # two heads share a vector, in a kernel of their own
    torch.autograd.backward(kda(narrow, narrow, narrow, narrow, _zeros(1, 2, 1))[0].sum())
    gated_BTHV = gated_norm(unit_length(output_BTHV), value, _zeros(WIDTH), 1e-5)
    convolved_BTP = short_convolution(_zeros(1, 2, WIDTH), _zeros(1, 1, WIDTH), _zeros(WIDTH, 2))
    torch.autograd.backward(gated_BTHV.sum() + convolved_BTP.sum())


def _residual() -> None:
    readers = attnres.Readers([_zeros(WIDTH)] * 2, [_zeros(WIDTH)] * 2, [_zeros(WIDTH)] * 2, 1e-5, 1e-5)
    torch.autograd.backward(attnres.start(readers, _zeros(1, 2, WIDTH)).started(_zeros(1, 2, WIDTH)).read(1).sum())


def _routing() -> None:
    scores_NE, bias_E = torch.rand(2, NUM_EXPERTS, generator=torch.Generator().manual_seed(0)), torch.zeros(NUM_EXPERTS)
    chosen_NA = routing.choose(scores_NE, bias_E, 2)
    routing.distance_histogram(scores_NE, bias_E, chosen_NA, NUM_BINS)
    weights_NA = routing.weigh(scores_NE, chosen_NA, _zeros(2, WIDTH), _zeros(NUM_EXPERTS, WIDTH), 1.0)
    matrices = experts.ExpertWeights(*(_zeros(NUM_EXPERTS, WIDTH, WIDTH) for _ in range(3)))
    torch.autograd.backward(experts.experts(_zeros(2, WIDTH), chosen_NA, weights_NA, matrices, _HiddenUnit()).sum())


@dataclass(frozen=True)
class _HiddenUnit:
    """An activation that every form of experts takes."""

    bounds: tuple[float, float] = (4.0, 25.0)

    def combine(self, gate: Tensor, up: Tensor) -> Tensor:
        return situ_glu(gate, up, *self.bounds)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, requires_grad=True)
