"""How do tokens look each other up by softmax? Grouped-query attention, K2's MLA, and K3's gated MLA without positions.

`Softmax` is the plain reference that everybody knows; `MLA` compresses queries, keys and values to low ranks and
rotates a slice of them (K2); `GatedMLA` leaves the slice unrotated and gates the output (K3). Formulas: specification
4.2; tensors: section 2. No cache for decoding here: this is for training.

Shape legend: `slots.py`, and R channels of a latent, P channels of the position slice, G key and value heads.
"""

from collections.abc import Mapping
from typing import Literal, Self

import torch
from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from k3ablate.kernels.causal_attention import causal_attention
from k3ablate.kernels.output_gate import output_gate
from k3ablate.kernels.rotary import rotary
from k3ablate.model.norms import RMSNorm
from k3ablate.model.slots import Dial, HeadCut, Mixer, MixerConfig


class Softmax(MixerConfig):
    """Causal softmax attention with rotary positions; several query heads may share a key and value head."""

    kind: Literal["softmax"] = "softmax"
    num_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_width: PositiveInt
    rotary_base: PositiveFloat = 10000.0

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.num_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads {self.num_key_value_heads} does not divide num_heads {self.num_heads}; "
                "write a divisor of it"
            )
        _check_even("head_width", self.head_width)
        return self

    def scaled(self, dial: Dial) -> Self:
        """Query heads by the dial; key and value heads keep their share as nearly as a divisor can."""
        num_heads = dial.num_heads(self.num_heads, self.head_width)
        wanted = self.num_key_value_heads * num_heads / self.num_heads
        divisors = [number for number in range(1, num_heads + 1) if num_heads % number == 0]
        return self.model_copy(
            update={
                "num_heads": num_heads,
                "num_key_value_heads": min(divisors, key=lambda divisor: abs(divisor - wanted)),
                "head_width": dial.head(self.head_width, self.head_width),
            }
        )

    def parameters(self, width: int) -> Mapping[str, int]:
        """Queries and output for every head, keys and values for the shared ones."""
        return {"projections": 2 * width * self.head_width * (self.num_heads + self.num_key_value_heads)}

    def flops(self, width: int, context: int) -> Mapping[str, float]:
        """Projections, and the core at the causal average: H (T + 1) (K + V)."""
        core = self.num_heads * (context + 1) * 2 * self.head_width
        return {"projections": 2 * self.parameters(width)["projections"], "cores": core}

    def build(self, width: int) -> "SoftmaxAttention":
        """The torch module, uninitialised."""
        return SoftmaxAttention(self, width)


class LatentMixerConfig(MixerConfig):
    """What K2's and K3's multi-head latent attention share."""

    num_heads: PositiveInt
    query_rank: PositiveInt
    key_value_rank: PositiveInt
    head_width: PositiveInt = 128  # of a query or key, without the position slice
    position_width: PositiveInt = 64  # the slice whose keys all heads share
    value_width: PositiveInt = 128

    def scaled(self, dial: Dial) -> Self:
        """Heads and their three widths by the head dial, ranks in proportion to the model width."""
        return self.model_copy(
            update={
                "num_heads": dial.num_heads(self.num_heads, self.head_width),
                "query_rank": dial.width(self.query_rank),
                "key_value_rank": dial.width(self.key_value_rank),
                "head_width": dial.head(self.head_width, self.head_width),
                "position_width": dial.head(self.position_width, self.head_width),
                "value_width": dial.head(self.value_width, self.head_width),
            }
        )

    def parameters(self, width: int) -> Mapping[str, int]:
        """The low-rank projections with the output's, and the norms of both latents."""
        query = self.query_rank * (width + self.num_heads * self.query_width)
        key_value = width * (self.key_value_rank + self.position_width)
        key_value += self.key_value_rank * self.num_heads * (self.head_width + self.value_width)
        output = self.inner_width * width
        return {"projections": query + key_value + output, "norms": self.query_rank + self.key_value_rank}

    def flops(self, width: int, context: int) -> Mapping[str, float]:
        """Every matrix once, and the core at the causal average: H (T + 1) (d_n + d_s + d_v); norms are left out."""
        matrices = sum(count for group, count in self.parameters(width).items() if group != "norms")
        core = self.num_heads * (context + 1) * (self.query_width + self.value_width)
        return {"projections": 2 * matrices, "cores": core}

    @property
    def query_width(self) -> int:
        """Channels of a head's query: without and with position."""
        return self.head_width + self.position_width

    @property
    def inner_width(self) -> int:
        """Channels of all heads' values together."""
        return self.num_heads * self.value_width


class MLA(LatentMixerConfig):
    """K2's multi-head latent attention: rotary on the position slice, no gate."""

    kind: Literal["mla"] = "mla"
    rotary_base: PositiveFloat = 50000.0
    norm_epsilon: PositiveFloat = 1e-6

    @model_validator(mode="after")
    def _slice_can_rotate(self) -> Self:
        _check_even("position_width", self.position_width)
        return self

    def build(self, width: int) -> "LatentAttention":
        """The torch module, uninitialised."""
        return LatentAttention(self, width, self.norm_epsilon, Rotary(self.position_width, self.rotary_base))


class GatedMLA(LatentMixerConfig):
    """K3's: the slice is there but not rotated, and a full-rank sigmoid gate acts on the output."""

    kind: Literal["gated_mla"] = "gated_mla"
    norm_epsilon: PositiveFloat = 1e-5

    def parameters(self, width: int) -> Mapping[str, int]:
        """As without a gate, and the gate."""
        return {**super().parameters(width), "gate": width * self.inner_width}

    def build(self, width: int) -> "GatedLatentAttention":
        """The torch module, uninitialised."""
        return GatedLatentAttention(self, width)


class Rotary(nn.Module):
    """Positions in the last `width` channels of queries and keys."""

    def __init__(self, width: int, base: float) -> None:
        super().__init__()
        self.width, self.base = width, base

    def forward(self, x_BTHK: Tensor) -> Tensor:
        """x_BTHK at positions 0..T-1, in its own dtype."""
        return rotary(x_BTHK, self.width, self.base)


class SoftmaxAttention(Mixer):
    """The module of `Softmax`."""

    def __init__(self, config: Softmax, width: int) -> None:
        super().__init__()
        self.config = config
        inner, shared = config.num_heads * config.head_width, config.num_key_value_heads * config.head_width
        self.query = nn.Linear(width, inner, bias=False)
        self.key = nn.Linear(width, shared, bias=False)
        self.value = nn.Linear(width, shared, bias=False)
        self.output = nn.Linear(inner, width, bias=False)
        self.rotation = Rotary(config.head_width, config.rotary_base)

    def head_cuts(self) -> Mapping[nn.Module, HeadCut]:
        """Queries by query heads, keys and values by those they share."""
        queries = HeadCut(self.config.num_heads, (self.config.head_width,))
        shared = HeadCut(self.config.num_key_value_heads, (self.config.head_width,))
        return {self.query: queries, self.key: shared, self.value: shared}

    def forward(self, x_BTD: Tensor) -> Tensor:
        """x_BTD -> y_BTD."""
        width = self.config.head_width
        query_BTHK, key_BTGK, value_BTGV = (
            projection(x_BTD).unflatten(-1, (-1, width)) for projection in (self.query, self.key, self.value)
        )
        attended = causal_attention(self.rotation(query_BTHK), self.rotation(key_BTGK), value_BTGV)
        y_BTD: Tensor = self.output(attended.flatten(2))
        return y_BTD


class LatentAttention(Mixer):
    """Multi-head latent attention; `rotation` acts on the position slices, the last channels of queries and keys.

    `largest_logit_H`, where somebody has set it, is raised by every pass in training to each head's largest logit.
    """

    def __init__(self, config: LatentMixerConfig, width: int, norm_epsilon: float, rotation: nn.Module) -> None:
        super().__init__()
        self.config = config
        heads, query_rank, key_value_rank = config.num_heads, config.query_rank, config.key_value_rank
        self.query_down = nn.Linear(width, query_rank, bias=False)
        self.query_norm = RMSNorm(query_rank, norm_epsilon)
        self.query_up = nn.Linear(query_rank, heads * config.query_width, bias=False)
        self.key_value_down = nn.Linear(width, key_value_rank + config.position_width, bias=False)
        self.key_value_norm = RMSNorm(key_value_rank, norm_epsilon)
        self.key_value_up = nn.Linear(key_value_rank, heads * (config.head_width + config.value_width), bias=False)
        self.output = nn.Linear(config.inner_width, width, bias=False)
        self.rotation = rotation
        self.largest_logit_H: Tensor | None = None

    def head_cuts(self) -> Mapping[nn.Module, HeadCut]:
        """A head's query with its position slice, its key and its value; the projections to latents belong to none."""
        config = self.config
        return {
            self.query_up: HeadCut(config.num_heads, (config.query_width,)),
            self.key_value_up: HeadCut(config.num_heads, (config.head_width, config.value_width)),
        }

    def forward(self, x_BTD: Tensor) -> Tensor:
        """x_BTD -> y_BTD."""
        y_BTD: Tensor = self.output(self.attend(x_BTD))
        return y_BTD

    def attend(self, x_BTD: Tensor) -> Tensor:
        """What the heads found, side by side: [B, T, H * V]."""
        config = self.config
        query_BTHK = self.query_up(self.query_norm(self.query_down(x_BTD))).unflatten(-1, (config.num_heads, -1))
        latent_BTR, position_BTP = self.key_value_down(x_BTD).split([config.key_value_rank, config.position_width], -1)
        key_value = self.key_value_up(self.key_value_norm(latent_BTR)).unflatten(-1, (config.num_heads, -1))
        key_BTHK, value_BTHV = key_value.split([config.head_width, config.value_width], dim=-1)
        shared_BT1P = self.rotation(position_BTP[:, :, None])
        largest_H = self.largest_logit_H if self.training else None
        return causal_attention(self.rotation(query_BTHK), key_BTHK, value_BTHV, shared_BT1P, largest_H).flatten(2)

    @torch.no_grad()
    def scale_logits(self, factor_H: Tensor) -> None:
        """Multiply all logits of each head by its factor, in place in the weights (specification 4.7, QK-Clip).

        Query and key share it by its root; the position slice, whose keys belong to all heads, takes it by the query.
        """
        config, factor_H11 = self.config, factor_H[:, None, None]
        query_HKR = self.query_up.weight.view(config.num_heads, config.query_width, -1)
        key_value_HCR = self.key_value_up.weight.view(config.num_heads, config.head_width + config.value_width, -1)
        query_HKR[:, : config.head_width] *= factor_H11.sqrt()
        key_value_HCR[:, : config.head_width] *= factor_H11.sqrt()
        query_HKR[:, config.head_width :] *= factor_H11


class GatedLatentAttention(LatentAttention):
    """y = W_o [sigmoid(W_g x) * what the heads found], without positions (K3 report, equation 7)."""

    def __init__(self, config: GatedMLA, width: int) -> None:
        super().__init__(config, width, config.norm_epsilon, rotation=nn.Identity())
        self.gate = nn.Linear(width, config.inner_width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """x_BTD -> y_BTD."""
        y_BTD: Tensor = self.output(output_gate(self.attend(x_BTD), self.gate(x_BTD)))
        return y_BTD


def _check_even(name: str, width: int) -> None:
    if width % 2:
        raise ValueError(f"{name} is {width}, and rotary positions turn pairs of channels; write an even number")
