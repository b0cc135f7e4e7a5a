"""What does a feed-forward compute, and how large is a dense one? Gated linear units, SwiGLU and SiTU-GLU.

`GLU` is the unit (specification 4.3), used alone in `Dense` and as the shared experts of `moe.py`. Routed experts and
their router are in `moe.py`.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from k3ablate.config import Config
from k3ablate.kernels.situ_glu import situ_glu
from k3ablate.model.norms import at_least_float32
from k3ablate.model.slots import BalancingConfig, Dial, FeedForward, FeedForwardConfig


class SwiGLU(Config):
    """silu(gate) * up (Shazeer 2020, arXiv 2002.05202)."""

    kind: Literal["swiglu"] = "swiglu"

    @property
    def bounds(self) -> tuple[float, float]:
        """Of gate and up, where SiTU-GLU has its own: infinite."""
        return math.inf, math.inf

    def combine(self, gate: Tensor, up: Tensor) -> Tensor:
        """Hidden activation from the two projections, any shape; computed in float32, returned as it came."""
        return (functional.silu(at_least_float32(gate)) * at_least_float32(up)).to(gate.dtype)


class SiTUGLU(Config):
    """SwiGLU with both factors softly bounded: no coordinate exceeds gate_bound x up_bound (K3 report, 2.3.2)."""

    kind: Literal["situ_glu"] = "situ_glu"
    gate_bound: PositiveFloat = 4.0
    up_bound: PositiveFloat = 25.0

    @property
    def bounds(self) -> tuple[float, float]:
        """Of gate and up."""
        return self.gate_bound, self.up_bound

    def combine(self, gate: Tensor, up: Tensor) -> Tensor:
        """Hidden activation from the two projections, any shape; computed in float32, returned as it came."""
        hidden = situ_glu(at_least_float32(gate), at_least_float32(up), self.gate_bound, self.up_bound)
        return hidden.to(gate.dtype)


ActivationUnion = Annotated[SwiGLU | SiTUGLU, Field(discriminator="kind")]


class GLU(nn.Module):
    """down(combine(gate(x), up(x))), without biases: ...D -> ...D."""

    def __init__(self, width: int, hidden_width: int, activation: SwiGLU | SiTUGLU) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden_width, bias=False)
        self.up = nn.Linear(width, hidden_width, bias=False)
        self.down = nn.Linear(hidden_width, width, bias=False)
        self.activation = activation

    def forward(self, x_BTD: Tensor) -> Tensor:
        """x_BTD -> y_BTD."""
        y_BTD: Tensor = self.down(self.activation.combine(self.gate(x_BTD), self.up(x_BTD)))
        return y_BTD


def glu_parameters(width: int, hidden_width: int) -> int:
    """Weights of one GLU: gate, up and down."""
    return 3 * width * hidden_width


class Dense(FeedForwardConfig):
    """One GLU for every token."""

    kind: Literal["dense"] = "dense"
    hidden_width: PositiveInt
    activation: ActivationUnion = SwiGLU()

    @property
    def is_routed(self) -> bool:
        """No router."""
        return False

    def scaled(self, dial: Dial) -> Self:
        """Hidden width in proportion to the model width."""
        return self.replaced("hidden_width", dial.width(self.hidden_width))

    def parameters(self, width: int) -> Mapping[str, int]:
        """One group, 'dense'."""
        return {"dense": glu_parameters(width, self.hidden_width)}

    def active_parameters(self, width: int) -> int:
        """All of them."""
        return glu_parameters(width, self.hidden_width)

    def flops(self, width: int) -> Mapping[str, float]:
        """6 x width x hidden width."""
        return {"dense": 2.0 * glu_parameters(width, self.hidden_width)}

    def build(self, width: int, balancing: BalancingConfig) -> "DenseFeedForward":
        """The GLU behind the feed-forward interface."""
        return DenseFeedForward(GLU(width, self.hidden_width, self.activation))


class DenseFeedForward(FeedForward):
    """A GLU as a feed-forward: x_BTD -> (y_BTD, zero)."""

    def __init__(self, glu: GLU) -> None:
        super().__init__()
        self.glu = glu

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """x_BTD -> (y_BTD, zero)."""
        return self.glu(x_BTD), torch.zeros((), device=x_BTD.device)
