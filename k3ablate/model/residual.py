"""How does a sublayer get its input from what was written before it: by plain addition, or by attention over depth?

`Plain` is the running sum of pre-norm transformers. `FullAttnRes` reads the embedding and every earlier sublayer
output; `BlockAttnRes` reads the sums of finished blocks and the running sum of the current one. Both follow
specification 4.4 (Attention Residuals, arXiv 2603.15031; K3 report, section 2.2) as the released model runs it: a
read before every mixer, before every feed-forward and at the output. The arithmetic of one read is
`kernels/attnres.py`. Norms in front of sublayers belong to the decoder, which hands them to a stream at its start.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Generator, Tensor, nn

from k3ablate.kernels import attnres
from k3ablate.kernels.attnres import Sources
from k3ablate.model.norms import RMSNorm
from k3ablate.model.slots import Initialised, Read, ResidualConfig, ResidualStream


class Plain(ResidualConfig):
    """The running sum."""

    kind: Literal["plain"] = "plain"

    def scaled(self, num_layers: int) -> Self:
        """Itself."""
        return self

    def parameters(self, width: int, num_layers: int) -> Mapping[str, int]:
        """No groups."""
        return {}

    def num_links(self, num_layers: int) -> int:
        """No reads by attention."""
        return 0

    def build(self, width: int, num_layers: int) -> "PlainStream":
        """The stream, without parameters."""
        return PlainStream(num_layers)


class AttnResConfig(ResidualConfig):
    """What full and block attention residuals share: a query and a key norm per read."""

    norm_epsilon: PositiveFloat = 1e-5

    @abstractmethod
    def block_starts(self, site: int, num_layers: int) -> bool:
        """Whether the output written at `site` starts a new source instead of adding to the last one."""

    def parameters(self, width: int, num_layers: int) -> Mapping[str, int]:
        """A query and a key-norm weight for each of 2 x num_layers sites and the output."""
        return {"attnres": 2 * width * (2 * num_layers + 1)}

    def num_links(self, num_layers: int) -> int:
        """Sources of every read summed, sublayer by sublayer, output read included (specification 6)."""
        num_sources, links = 1, 0
        for site in range(2 * num_layers):
            links += num_sources
            num_sources += self.block_starts(site, num_layers)
        return links + num_sources

    def build(self, width: int, num_layers: int) -> "AttnResStream":
        """The stream with its 2 x num_layers + 1 reads."""
        return AttnResStream(self, width, num_layers)


class FullAttnRes(AttnResConfig):
    """Every sublayer output is a source of its own."""

    kind: Literal["full_attnres"] = "full_attnres"

    def block_starts(self, site: int, num_layers: int) -> bool:
        """At every site."""
        return True

    def scaled(self, num_layers: int) -> Self:
        """Itself."""
        return self


class BlockAttnRes(AttnResConfig):
    """Sublayer outputs are summed over blocks of decoder layers.

    The number of blocks is what carries over between depths (about 8 recover most of the gain, arXiv 2603.15031);
    K3's 93 layers in 8 blocks are its published block size of 12 decoder layers, 24 sublayers.
    """

    kind: Literal["block_attnres"] = "block_attnres"
    num_blocks: PositiveInt = 8

    def layers_per_block(self, num_layers: int) -> int:
        """Decoder layers of every block but the last, which has what is left."""
        return math.ceil(num_layers / self.num_blocks)

    def block_starts(self, site: int, num_layers: int) -> bool:
        """At the mixer of every `layers_per_block`-th layer."""
        return site % (2 * self.layers_per_block(num_layers)) == 0

    def scaled(self, num_layers: int) -> Self:
        """As many blocks, but none that would be empty."""
        return self.replaced("num_blocks", math.ceil(num_layers / self.layers_per_block(num_layers)))


@dataclass(frozen=True)
class Sum:
    """The state of a plain stream."""

    norms: Sequence[RMSNorm]
    value_BTD: Tensor


class SumRead(Read):
    """The sum, behind one consumer's norm."""

    def __init__(self, reader: int) -> None:
        super().__init__()
        self.reader = reader

    def forward(self, state: Sum) -> Tensor:
        """The sum, normalised, BTD."""
        normalised_BTD: Tensor = state.norms[self.reader](state.value_BTD)
        return normalised_BTD

    def mixed(self, state: Sum) -> Tensor:
        """The sum, BTD."""
        return state.value_BTD


class PlainStream(ResidualStream):
    """The state is the sum so far, in the dtype of the embedding."""

    def __init__(self, num_layers: int) -> None:
        super().__init__([SumRead(reader) for reader in range(2 * num_layers + 1)])

    def start(self, embedding_BTD: Tensor, norms: Sequence[RMSNorm]) -> Sum:
        """The embedding."""
        return Sum(norms, embedding_BTD)

    def write(self, state: Sum, site: int, output_BTD: Tensor) -> Sum:
        """The sum and the output."""
        return Sum(state.norms, state.value_BTD + output_BTD.to(state.value_BTD.dtype))


class AttnResRead(Read, Initialised):
    """One consumer's pseudo-query and key norm."""

    def __init__(self, reader: int, width: int, epsilon: float) -> None:
        super().__init__()
        self.reader = reader
        self.query_D = nn.Parameter(torch.empty(width))
        self.key_weight_D = nn.Parameter(torch.empty(width))
        self.epsilon = epsilon

    def initialise(self, generator: Generator, std: float) -> None:
        """Zero query: a read starts as the plain average of its sources (arXiv 2603.15031)."""
        nn.init.zeros_(self.query_D)
        nn.init.ones_(self.key_weight_D)

    def forward(self, state: Sources) -> Tensor:
        """The sources mixed and normalised, BTD."""
        return state.read(self.reader)

    def mixed(self, state: Sources) -> Tensor:
        """The sources mixed, BTD."""
        return state.mixed(self.reader)

    def weights(self, state: Sources) -> Tensor:
        """What `forward` weighs each source with, BTS."""
        return attnres.read_weights(self.query_D, self.key_weight_D, state.every, self.epsilon)


class AttnResStream(ResidualStream):
    """Reads by attention over depth; full and block differ in when a new source starts.

    The first read sees the embedding alone and mixes nothing, whatever its query: the released checkpoint holds that
    pair too, so it exists here, with a gradient of zero.
    """

    def __init__(self, config: AttnResConfig, width: int, num_layers: int) -> None:
        super().__init__([AttnResRead(reader, width, config.norm_epsilon) for reader in range(2 * num_layers + 1)])
        self.config = config
        self.starts = [config.block_starts(site, num_layers) for site in range(2 * num_layers)]

    def start(self, embedding_BTD: Tensor, norms: Sequence[RMSNorm]) -> Sources:
        """The embedding is the first source."""
        assert len({norm.epsilon for norm in norms}) == 1, "the norms in front of sublayers share an epsilon"
        reads = [read for read in self.reads if isinstance(read, AttnResRead)]
        readers = attnres.Readers(
            queries=[read.query_D for read in reads],
            key_weights=[read.key_weight_D for read in reads],
            norm_weights=[norm.weight for norm in norms],
            key_epsilon=self.config.norm_epsilon,
            norm_epsilon=norms[-1].epsilon,
        )
        return attnres.start(readers, embedding_BTD)

    def write(self, state: Sources, site: int, output_BTD: Tensor) -> Sources:
        """Add to the current block, or finish it and start another with this output."""
        output_BTD = output_BTD.to(state.current.dtype)
        return state.started(output_BTD) if self.starts[site] else state.added(output_BTD)
