"""What is the model, and how do its pieces fit together? `ModelConfig` with its unions, and the `Decoder`.

The decoder has no branch on any component: it asks the residual stream for each sublayer's input and hands back the
output. Adding a mixer, feed-forward or stream is one file beside this one and one line in a union here.
"""

from typing import Annotated, NamedTuple, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Generator, Tensor, nn

from k3ablate.config import Config
from k3ablate.model.attention import MLA, GatedMLA, Softmax
from k3ablate.model.balancing import AuxiliaryLoss, Balancer, NoBalancing, Quantile, SignUpdate
from k3ablate.model.feedforward import Dense
from k3ablate.model.kda import KDA
from k3ablate.model.moe import LatentMoE, MoE
from k3ablate.model.residual import BlockAttnRes, FullAttnRes, Plain
from k3ablate.model.slots import Initialised

MixerUnion = Annotated[Softmax | MLA | GatedMLA | KDA, Field(discriminator="kind")]
FeedForwardUnion = Annotated[Dense | MoE | LatentMoE, Field(discriminator="kind")]
BalancingUnion = Annotated[NoBalancing | AuxiliaryLoss | SignUpdate | Quantile, Field(discriminator="kind")]
ResidualUnion = Annotated[Plain | FullAttnRes | BlockAttnRes, Field(discriminator="kind")]


class PeriodicMixer(Config):
    """A second mixer in every `period`-th layer and in the last one (K3: gated MLA among KDA, 3:1)."""

    mixer: MixerUnion
    period: PositiveInt = Field(default=4, ge=2)


class MixerPattern(Config):
    """Which mixer each layer has."""

    main: MixerUnion
    periodic: PeriodicMixer | None = None

    def at(self, layer: int, num_layers: int) -> MixerUnion:
        """The mixer of 0-based `layer`."""
        if self.periodic and ((layer + 1) % self.periodic.period == 0 or layer == num_layers - 1):
            return self.periodic.mixer
        return self.main


class LeadingFeedForward(Config):
    """Another feed-forward in the first `num_layers` layers (K2, K3: one dense layer)."""

    feed_forward: FeedForwardUnion
    num_layers: PositiveInt = 1


class FeedForwardPattern(Config):
    """Which feed-forward each layer has."""

    main: FeedForwardUnion
    leading: LeadingFeedForward | None = None

    def at(self, layer: int) -> FeedForwardUnion:
        """The feed-forward of 0-based `layer`."""
        if self.leading and layer < self.leading.num_layers:
            return self.leading.feed_forward
        return self.main


class ModelConfig(Config):
    """A decoder-only language model, every dimension written out."""

    vocabulary_size: PositiveInt
    width: PositiveInt
    num_layers: PositiveInt
    mixer: MixerPattern
    feed_forward: FeedForwardPattern
    balancing: BalancingUnion = NoBalancing()
    residual: ResidualUnion = Plain()
    norm_epsilon: PositiveFloat = 1e-5
    initializer_range: PositiveFloat = 0.02

    @model_validator(mode="after")
    def _balancing_needs_a_router(self) -> Self:
        if self.balancing.kind != "none" and not self.feed_forward.main.is_routed:
            raise ValueError(
                f"balancing is {self.balancing.kind!r} but feed_forward.main is {self.feed_forward.main.kind!r}, "
                "which has no router; write balancing: {kind: none} or a routed feed-forward"
            )
        return self
