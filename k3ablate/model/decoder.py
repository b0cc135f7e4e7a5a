"""What is the model, and how do its pieces fit together? `ModelConfig` with its unions, and the `Decoder`.

The decoder has no branch on any component: it asks the residual stream for each sublayer's input and hands back the
output. Adding a mixer, feed-forward or stream is one file beside this one and one line in a union here.
"""

import hashlib
from typing import Annotated, Any, NamedTuple, Self

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Generator, Tensor, nn

from k3ablate.config import Config
from k3ablate.model.attention import MLA, GatedMLA, Softmax
from k3ablate.model.balancing import AuxiliaryLoss, Balancer, NoBalancing, Quantile, SignUpdate
from k3ablate.model.feedforward import Dense
from k3ablate.model.kda import KDA
from k3ablate.model.moe import LatentMoE, MoE
from k3ablate.model.norms import RMSNorm
from k3ablate.model.residual import BlockAttnRes, FullAttnRes, Plain
from k3ablate.model.slots import Initialised, ResidualStream

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

    def layers(self) -> list[tuple[MixerUnion, FeedForwardUnion]]:
        """Mixer and feed-forward of every layer, first to last."""
        return [
            (self.mixer.at(layer, self.num_layers), self.feed_forward.at(layer)) for layer in range(self.num_layers)
        ]


class DecoderOutput(NamedTuple):
    """Logits over the vocabulary and what balancing adds to the training objective (never to the reported loss)."""

    logits_BTV: Tensor
    auxiliary_loss: Tensor


class Layer(nn.Module):
    """One pre-norm decoder layer: a mixer and a feed-forward with a norm in front of each, which the stream applies."""

    def __init__(self, config: ModelConfig, mixer: MixerUnion, feed_forward: FeedForwardUnion) -> None:
        super().__init__()
        balancing = config.balancing if feed_forward.is_routed else NoBalancing()
        self.mixer_norm = RMSNorm(config.width, config.norm_epsilon)
        self.mixer = mixer.build(config.width)
        self.feed_forward_norm = RMSNorm(config.width, config.norm_epsilon)
        self.feed_forward = feed_forward.build(config.width, balancing)

    def forward(self, stream: ResidualStream, state: Any, index: int) -> tuple[Any, Tensor]:
        """The stream's state after layer `index`, and the feed-forward's auxiliary loss."""
        state = stream.write(state, 2 * index, self.mixer(stream.read(state, 2 * index)))
        y_BTD, auxiliary_loss = self.feed_forward(stream.read(state, 2 * index + 1))
        return stream.write(state, 2 * index + 1, y_BTD), auxiliary_loss


class Decoder(nn.Module):
    """tokens_BT -> DecoderOutput. Parameters hold nothing meaningful until `initialise` has filled them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.layers = nn.ModuleList(Layer(config, mixer, feed_forward) for mixer, feed_forward in config.layers())
        self.residual: ResidualStream = config.residual.build(config.width, config.num_layers)
        self.norm = RMSNorm(config.width, config.norm_epsilon)
        self.head = nn.Linear(config.width, config.vocabulary_size, bias=False)

    def forward(self, tokens_BT: Tensor) -> DecoderOutput:
        """Logits of the next token at every position of tokens_BT (int64)."""
        embedding_BTD = self.embedding(tokens_BT)
        state = self.residual.start(embedding_BTD, self.norms())
        auxiliary_loss = embedding_BTD.new_zeros((), dtype=torch.float32)
        for index, layer in enumerate(self.layers):
            state, added_loss = layer(self.residual, state, index)
            auxiliary_loss = auxiliary_loss + added_loss
        return DecoderOutput(self.head(self.residual.finish(state)), auxiliary_loss)

    def norms(self) -> list[RMSNorm]:
        """Those of all that read the residual stream, in their order: two of each layer, then the head's."""
        layers = [layer for layer in self.layers if isinstance(layer, Layer)]
        return [*(norm for layer in layers for norm in (layer.mixer_norm, layer.feed_forward_norm)), self.norm]

    def balancers(self) -> list[Balancer]:
        """The balancers of all routed layers, first to last."""
        return [module for module in self.modules() if isinstance(module, Balancer)]


@torch.no_grad()
def initialise(decoder: Decoder, generator: Generator, std: float) -> None:
    """Fill every parameter and buffer in place; linear maps and the embedding are normal with deviation `std`.

    Each module draws from a stream named after its place, so a swapped component leaves all others as they were and
    arms of one seed start from the same weights wherever they share a shape.
    """
    base = int(torch.randint(2**62, (), generator=generator))
    for name, module in decoder.named_modules():
        stream = Generator().manual_seed(base ^ int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big"))
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.normal_(0.0, std, generator=stream)
        elif isinstance(module, Initialised):
            module.initialise(stream, std)
