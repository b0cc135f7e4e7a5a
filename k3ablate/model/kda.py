"""What surrounds the recurrence of Kimi Delta Attention? Projections, short convolutions, decay, norm and gate.

A linear-time token mixer: each head keeps a matrix as its memory, forgets per key channel and corrects what it
recalls. The recurrence itself, short convolutions, the bounded decay and norms of heads run in `kernels/`. Formulas and
initial values: specification 4.1; tensors: section 2. `BoundedSigmoid` is K3's decay, `SoftplusDecay` Kimi Linear's.

`forward` takes whole sequences; `resume` goes on from the state of an earlier segment, down to one token at a time.

Shape legend: `slots.py`, and P channels of all heads together (H x K; value heads are as wide as key heads), U
positions that a convolution looks back.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Generator, Tensor, nn
from torch.nn import functional

from k3ablate.config import Config
from k3ablate.kernels.decay import bounded_decay
from k3ablate.kernels.head_norms import gated_norm, unit_length
from k3ablate.kernels.kda import kda
from k3ablate.kernels.short_convolution import short_convolution
from k3ablate.model.norms import RMSNorm, at_least_float32, full_precision
from k3ablate.model.slots import Dial, HeadCut, Initialised, Mixer, MixerConfig

TIME_STEPS = (1e-3, 1e-1)  # range of the initial decay's time step
TIME_STEP_FLOOR = 1e-4


class DecayConfig(Config):
    """How decay logits become a log-decay."""

    @abstractmethod
    def log_decay(self, logits_BTHK: Tensor, bias_HK: Tensor, A_log_H: Tensor) -> Tensor:
        """Natural log-decay_BTHK, at most 0, of z = logits + bias."""

    @abstractmethod
    def initialise(self, A_log_H: Tensor, generator: Generator) -> None:
        """Fill A_log in place."""


class BoundedSigmoid(DecayConfig):
    """K3: g = lower_bound * sigmoid(exp(A) z), in (lower_bound, 0); A_log starts at 0 (K3 report, equation 5)."""

    kind: Literal["bounded_sigmoid"] = "bounded_sigmoid"
    lower_bound: float = Field(default=-5.0, lt=0)

    def log_decay(self, logits_BTHK: Tensor, bias_HK: Tensor, A_log_H: Tensor) -> Tensor:
        """Natural log-decay_BTHK in (lower_bound, 0)."""
        return bounded_decay(logits_BTHK, bias_HK, A_log_H, self.lower_bound)

    def initialise(self, A_log_H: Tensor, generator: Generator) -> None:
        """Zeros."""
        nn.init.zeros_(A_log_H)


class SoftplusDecay(DecayConfig):
    """Kimi Linear: g = -exp(A) softplus(z), unbounded below; A_log starts at log U(1, 16)."""

    kind: Literal["softplus"] = "softplus"

    def log_decay(self, logits_BTHK: Tensor, bias_HK: Tensor, A_log_H: Tensor) -> Tensor:
        """Natural log-decay_BTHK, below 0."""
        return -A_log_H.exp()[:, None] * functional.softplus(logits_BTHK + bias_HK)

    def initialise(self, A_log_H: Tensor, generator: Generator) -> None:
        """log U(1, 16)."""
        with torch.no_grad():
            A_log_H.uniform_(1.0, 16.0, generator=generator).log_()


DecayUnion = Annotated[BoundedSigmoid | SoftplusDecay, Field(discriminator="kind")]


class KDA(MixerConfig):
    """Kimi Delta Attention."""

    kind: Literal["kda"] = "kda"
    num_heads: PositiveInt
    head_width: PositiveInt = 128  # of keys and of values
    decay: DecayUnion = BoundedSigmoid()
    decay_rank: PositiveInt | None = None  # None: the head width
    gate: Literal["full_rank", "low_rank"] = "full_rank"  # K3 or Kimi Linear (rank of a head width)
    convolution_width: PositiveInt = 4
    norm_epsilon: PositiveFloat = 1e-5

    @property
    def inner_width(self) -> int:
        """Channels of all heads together."""
        return self.num_heads * self.head_width

    def scaled(self, dial: Dial) -> Self:
        """Heads by the head dial, a stated decay rank in proportion to the model width."""
        return self.model_copy(
            update={
                "num_heads": dial.num_heads(self.num_heads, self.head_width),
                "head_width": dial.head(self.head_width, self.head_width),
                "decay_rank": None if self.decay_rank is None else dial.width(self.decay_rank),
            }
        )

    def parameters(self, width: int) -> Mapping[str, int]:
        """Query, key, value and output; decay; write strength; gate; convolutions; the norm's one weight."""
        inner, decay_rank = self.inner_width, self.decay_rank or self.head_width
        gate = width * inner if self.gate == "full_rank" else self.head_width * (width + inner)
        return {
            "projections": 4 * width * inner,
            "decay": decay_rank * (width + inner) + inner + self.num_heads,
            "write_strength": width * self.num_heads,
            "gate": gate,
            "convolutions": 3 * inner * self.convolution_width,
            "norms": self.head_width,
        }

    def flops(self, width: int, context: int) -> Mapping[str, float]:
        """Projections with convolutions, and the recurrence, 7 H K V (specification 5); independent of `context`.

        The recurrence is the definition. What a chunked kernel multiplies beyond it (23 percent at K3's size and
        C = 64, several times as much for heads of 16) is that kernel's choice, like masked tiles of softmax attention.
        """
        parameters = self.parameters(width)
        elementwise = self.inner_width + self.num_heads + parameters["norms"]  # dt_bias, A_log: no products
        core = 7 * self.num_heads * self.head_width**2
        return {"projections": 2 * (sum(parameters.values()) - elementwise), "cores": core}

    def build(self, width: int) -> "KimiDeltaAttention":
        """The torch module, uninitialised."""
        return KimiDeltaAttention(self, width)


class ShortConvolution(Initialised):
    """Depthwise causal convolution over a few positions, then SiLU; tap j sees position t - (width - 1) + j."""

    def __init__(self, num_channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_channels, 1, width))

    def initialise(self, generator: Generator, std: float) -> None:
        """Uniform in +-1 / sqrt(width)."""
        bound = self.weight.shape[-1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound, generator=generator)

    def forward(self, x_BTP: Tensor, before_BUP: Tensor) -> tuple[Tensor, Tensor]:
        """x_BTP and the inputs just before it -> y_BTP and the last inputs so far, in float32 at least."""
        x_BTP, num_before = at_least_float32(x_BTP), before_BUP.shape[1]
        y_BTP = short_convolution(x_BTP, before_BUP, self.weight[:, 0])
        last_BSP = torch.cat([before_BUP, x_BTP[:, max(0, x_BTP.shape[1] - num_before) :]], dim=1)
        return y_BTP, last_BSP[:, last_BSP.shape[1] - num_before :]


class Decay(Initialised):
    """Log-decay per head and key channel from a low-rank map of the input."""

    def __init__(self, config: KDA, width: int) -> None:
        super().__init__()
        self.config = config
        rank = config.decay_rank or config.head_width
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, config.inner_width, bias=False)
        self.A_log = nn.Parameter(torch.empty(config.num_heads))
        self.dt_bias = nn.Parameter(torch.empty(config.inner_width))

    def initialise(self, generator: Generator, std: float) -> None:
        """dt_bias is the inverse softplus of a log-uniform time step; A_log as the decay's form wants it."""
        self.config.decay.initialise(self.A_log, generator)
        low, high = (math.log(time_step) for time_step in TIME_STEPS)
        with torch.no_grad():
            time_step = self.dt_bias.uniform_(low, high, generator=generator).exp().clamp(min=TIME_STEP_FLOOR)
            self.dt_bias.copy_(time_step + (-(-time_step).expm1()).log())

    def logits(self, x_BTD: Tensor) -> Tensor:
        """The low-rank map without its bias: x_BTD -> [B, T, P]."""
        logits_BTP: Tensor = self.up(self.down(x_BTD))
        return logits_BTP

    def forward(self, logits_BTHK: Tensor) -> Tensor:
        """Logits of `logits`, by heads -> log_decay_BTHK, in float32 at least."""
        bias_HK = self.dt_bias.view(logits_BTHK.shape[2:])
        return self.config.decay.log_decay(at_least_float32(logits_BTHK), bias_HK, self.A_log)


class KdaState(NamedTuple):
    """All that a segment of a sequence needs of what came before it; its size does not grow with the length."""

    query_BUP: Tensor  # the last inputs of each convolution
    key_BUP: Tensor
    value_BUP: Tensor
    memory_BHKV: Tensor


class KimiDeltaAttention(Mixer):
    """y = W_o [sigmoid(W_g x) * RMSNorm(o)] per head, o from the recurrence (K3 report, equation 6)."""

    def __init__(self, config: KDA, width: int) -> None:
        super().__init__()
        self.config = config
        inner = config.inner_width
        self.query, self.key, self.value = (nn.Linear(width, inner, bias=False) for _ in range(3))
        self.query_convolution, self.key_convolution, self.value_convolution = (
            ShortConvolution(inner, config.convolution_width) for _ in range(3)
        )
        self.decay = Decay(config, width)
        self.write_strength = nn.Linear(width, config.num_heads, bias=False)
        self.norm = RMSNorm(config.head_width, config.norm_epsilon)  # applied together with the gate
        self.gate = nn.Linear(width, inner, bias=False) if config.gate == "full_rank" else _low_rank_gate(config, width)
        self.output = nn.Linear(inner, width, bias=False)

    def head_cuts(self) -> Mapping[nn.Module, HeadCut]:
        """Queries, keys and values; decay, write strength and gates belong to none."""
        heads = HeadCut(self.config.num_heads, (self.config.head_width,))
        return {self.query: heads, self.key: heads, self.value: heads}

    def forward(self, x_BTD: Tensor) -> Tensor:
        """x_BTD -> y_BTD."""
        y_BTD, _ = self.resume(x_BTD, self.start(x_BTD))
        return y_BTD

    def start(self, x_BTD: Tensor) -> KdaState:
        """The state before the first position of sequences like x_BTD: zeros."""
        config, (batch, _, _) = self.config, x_BTD.shape
        like = at_least_float32(x_BTD)
        before_BUP = like.new_zeros(batch, config.convolution_width - 1, config.inner_width)
        memory_BHKV = like.new_zeros(batch, config.num_heads, config.head_width, config.head_width)
        return KdaState(before_BUP, before_BUP, before_BUP, memory_BHKV)

    def resume(self, x_BTD: Tensor, state: KdaState) -> tuple[Tensor, KdaState]:
        """x_BTD, which goes on where `state` was left -> y_BTD and the state after it."""
        query, key, value = self.query(x_BTD), self.key(x_BTD), self.value(x_BTD)
        decay_BTP, strength_BTH, gate_BTP = self.decay.logits(x_BTD), self.write_strength(x_BTD), self.gate(x_BTD)
        with full_precision(x_BTD):
            query_BTP, query_BUP = self.query_convolution(query, state.query_BUP)
            key_BTP, key_BUP = self.key_convolution(key, state.key_BUP)
            value_BTP, value_BUP = self.value_convolution(value, state.value_BUP)
            read_BTHV, memory_BHKV = kda(
                unit_length(self._heads(query_BTP), self.config.head_width**-0.5),
                unit_length(self._heads(key_BTP)),
                self._heads(value_BTP),
                self.decay(self._heads(decay_BTP)),
                at_least_float32(strength_BTH).sigmoid(),
                state.memory_BHKV,
            )
            gate_BTHV = at_least_float32(self._heads(gate_BTP))
            gated_BTHV = gated_norm(read_BTHV, gate_BTHV, self.norm.weight, self.norm.epsilon)
        y_BTD: Tensor = self.output(gated_BTHV.flatten(2))
        return y_BTD, KdaState(query_BUP, key_BUP, value_BUP, memory_BHKV)

    def _heads(self, x_BTP: Tensor) -> Tensor:
        return x_BTP.reshape(*x_BTP.shape[:2], self.config.num_heads, self.config.head_width)


def _low_rank_gate(config: KDA, width: int) -> nn.Module:
    rank = config.head_width
    return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, config.inner_width, bias=False))
