"""What can be swapped in a decoder, and what does each alternative owe the rest?

Three slots: the token mixer, the feed-forward and the residual stream. Each alternative is one frozen config (read
from YAML, told apart by its `kind`) that can be scaled, counted and built, and one torch module. Adding an
alternative is one file in this folder and one line in its union in `decoder.py`.

Shape legend of every file in `model/`:
B batch, T positions, D model width, H heads, K key channels of a head, V value channels of a head, E experts,
A active experts of a token, N tokens (B x T), L latent width, F hidden width of a feed-forward, S residual sources.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from torch import Generator, Tensor, nn

from k3ablate.config import Config

if TYPE_CHECKING:
    from k3ablate.model.norms import RMSNorm


@dataclass(frozen=True)
class Dial:
    """How a reference model shrinks or grows: width-like numbers by one ratio, head and expert counts by their own.

    A head keeps the ratio of inner width to model width; experts keep the ratio of all to active ones
    (specification, section 8), so the number of heads follows from `head_width` and of experts from `num_active`.
    """

    width_ratio: float  # new model width / reference model width
    head_width: int | None = None  # channels of a head; None keeps the reference's
    num_active: int | None = None  # routed experts per token; None keeps the reference's
    multiple: int = 1  # every scaled width is a multiple of this

    def width(self, reference: int) -> int:
        """A width-like number at the new size: nearest multiple, at least one of them."""
        if self.width_ratio == 1.0:
            return reference
        return max(1, round(reference * self.width_ratio / self.multiple)) * self.multiple

    def head(self, reference: int, reference_head: int) -> int:
        """A head's channel count at the new size, in proportion to the reference head."""
        if self.head_width is None:
            return reference
        return max(2, 2 * round(reference * self.head_width / reference_head / 2))  # rotary pairs need even numbers

    def num_heads(self, reference: int, reference_head: int) -> int:
        """Heads at the new size: inner width keeps its ratio to the model width."""
        head_width = self.head_width or reference_head
        return max(1, round(reference * reference_head * self.width_ratio / head_width))


class MixerConfig(Config):
    """A token mixer: attention in any form. Mixes positions, causally."""

    @abstractmethod
    def scaled(self, dial: Dial) -> Self:
        """The same mixer at another size."""

    @abstractmethod
    def parameters(self, width: int) -> Mapping[str, int]:
        """Parameter count by named group, e.g. {'projections': ..., 'norms': ...}; sums to the module's own count."""

    @abstractmethod
    def flops(self, width: int, context: int) -> Mapping[str, float]:
        """Forward FLOPs per token by structure ('projections', 'cores'), 2 per multiply-add (specification 5).

        A core is counted at the causal average over `context`.
        """

    def flops_per_token(self, width: int, context: int) -> float:
        """Forward FLOPs per token of the whole mixer."""
        return sum(self.flops(width, context).values())

    @abstractmethod
    def build(self, width: int) -> "Mixer":
        """The torch module, uninitialised: `initialise` fills every parameter."""


class HeadCut(NamedTuple):
    """How the rows of a projection belong to heads: one head after the other, each with these blocks in this order."""

    num_heads: int
    rows: tuple[int, ...]  # of each block of a head


class Mixer(nn.Module):
    """x_BTD -> y_BTD, causal. The caller normalises the input and owns the residual."""

    @abstractmethod
    def head_cuts(self) -> Mapping[nn.Module, HeadCut]:
        """Projections to queries, keys and values, which per-head Muon cuts along heads; it leaves all others whole."""

    @abstractmethod
    def forward(self, x_BTD: Tensor) -> Tensor:
        """Mix positions of x_BTD; position t of the result depends on positions up to t."""


class BalancingConfig(Config):
    """How experts are kept evenly loaded. `Routed` feed-forwards hand it their router scores."""

    @abstractmethod
    def build(self, num_experts: int, num_active: int) -> nn.Module:
        """A `balancing.Balancer`."""


class FeedForwardConfig(Config):
    """A feed-forward: dense or routed. Mixes channels, token by token."""

    @property
    @abstractmethod
    def is_routed(self) -> bool:
        """Whether there is a router for balancing to act on."""

    @abstractmethod
    def scaled(self, dial: Dial) -> Self:
        """The same feed-forward at another size."""

    @abstractmethod
    def parameters(self, width: int) -> Mapping[str, int]:
        """Parameter count by named group ('router', 'latent', 'shared_experts', 'routed_experts', 'dense')."""

    @abstractmethod
    def active_parameters(self, width: int) -> int:
        """Weights that multiply one token's activations: shared and top-k routed experts, router included."""

    @abstractmethod
    def flops(self, width: int) -> Mapping[str, float]:
        """Forward FLOPs per token by the groups of `parameters`, 2 per multiply-add (specification 5)."""

    def flops_per_token(self, width: int) -> float:
        """Forward FLOPs per token of the whole feed-forward."""
        return sum(self.flops(width).values())

    @abstractmethod
    def build(self, width: int, balancing: BalancingConfig) -> "FeedForward":
        """The torch module, uninitialised; a dense one ignores `balancing` (which is then of kind none)."""


class FeedForward(nn.Module):
    """x_BTD -> (y_BTD, auxiliary loss as a scalar; zero where balancing has none)."""

    @abstractmethod
    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Mix channels of x_BTD; the second value joins the training objective only."""


class ResidualConfig(Config):
    """How sublayers read what came before them and hand back their output."""

    @abstractmethod
    def scaled(self, num_layers: int) -> Self:
        """The same stream at a depth of `num_layers`."""

    @abstractmethod
    def parameters(self, width: int, num_layers: int) -> Mapping[str, int]:
        """Parameter count by named group."""

    @abstractmethod
    def num_links(self, num_layers: int) -> int:
        """(source, consumer) pairs of all reads, output read included; 0 where nothing is read by attention."""

    def flops_per_token(self, width: int, num_layers: int) -> float:
        """Forward FLOPs per token of all reads, 6 x width per link: score, square, weighted sum (specification 5)."""
        return 6.0 * width * self.num_links(num_layers)

    @abstractmethod
    def build(self, width: int, num_layers: int) -> "ResidualStream":
        """The torch module, uninitialised."""


class Read(nn.Module):
    """What one sublayer, or the head, gets of a stream; a module of its own so that hooks see the state it is given."""

    @abstractmethod
    def forward(self, state: Any) -> Tensor:
        """Normalised, BTD."""

    @abstractmethod
    def mixed(self, state: Any) -> Tensor:
        """What `forward` normalises, BTD, for those who look on: it may have to be computed again."""


class ResidualStream(nn.Module):
    """The slot behind four verbs. Site 2l is the mixer of layer l, site 2l + 1 its feed-forward.

    State is passed along, never kept on the module, so one stream serves any number of forward passes. Whatever reads
    a stream has a norm in front of it. The norms belong to the readers and are applied here, since that may be
    cheapest where the input is made.
    """

    def __init__(self, reads: Sequence[Read]) -> None:
        super().__init__()
        self.reads = nn.ModuleList(reads)  # of every site, then of the head

    @abstractmethod
    def start(self, embedding_BTD: Tensor, norms: "Sequence[RMSNorm]") -> Any:
        """The state before the first layer; one norm for each of `reads`."""

    def read(self, state: Any, site: int) -> Tensor:
        """Normalised input x_BTD of the sublayer at `site`."""
        x_BTD: Tensor = self.reads[site](state)
        return x_BTD

    @abstractmethod
    def write(self, state: Any, site: int, output_BTD: Tensor) -> Any:
        """The state after the sublayer at `site` handed back its output."""

    def finish(self, state: Any) -> Tensor:
        """Normalised input x_BTD of the head."""
        x_BTD: Tensor = self.reads[-1](state)
        return x_BTD


class Initialised(nn.Module):
    """A module with parameters of its own that a plain normal draw would get wrong."""

    @abstractmethod
    def initialise(self, generator: Generator, std: float) -> None:
        """Fill the module's own parameters and buffers (not its children's), in place."""
