"""What does the site show that a reader can turn? Plain numbers of models and runs, gathered elsewhere and handed in.

Nothing here computes, but for `uniform_routing`, which is an illustration and says so. What is None or
empty is a sentence on the site that says how to get it. Layers and blocks count from 0 here and from 1 on the site.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RoutedToken:
    """One token as its tokenizer shows it, and the experts it went to, the heaviest first."""

    text: str
    experts: tuple[int, ...]
    weights: tuple[float, ...]  # of the same experts


@dataclass(frozen=True)
class Routing:
    """Which experts of one routed layer real tokens chose, and how often all tokens of a validation set chose each."""

    name: str  # what a reader picks it by: "k3, size s, layer 5"
    source: str  # one sentence: which run on which text, or that it is drawn
    pairs: tuple[int, ...]  # by expert, tokens that chose it
    tokens: tuple[RoutedToken, ...]  # in the order of their text
    num_active: int
    num_shared: int = 0
    is_drawn: bool = False  # no model's: an illustration

    @property
    def num_experts(self) -> int:
        """Routed ones."""
        return len(self.pairs)


@dataclass(frozen=True)
class StackLayer:
    """One decoder layer by the kinds of its slots: kda, gated_mla, mla, softmax; dense, moe, latent_moe."""

    mixer: str
    feed_forward: str
    block: int | None  # of attention residuals, from 0; None with plain adds


@dataclass(frozen=True)
class Stack:
    """A model's layers, first to last."""

    name: str
    residual: str  # plain, full_attnres, block_attnres
    layers: tuple[StackLayer, ...]


@dataclass(frozen=True)
class LinkGrid:
    """Links over depth, those of the output's own read included, by depth and block size in decoder layers.

    `full[n - 1]`: of n layers; `block[n - 1][s - 1]`: of n layers in blocks of s.
    """

    consumer: str  # sublayer (what the model runs) or decoder layer (how the report speaks)
    full: tuple[int, ...]
    block: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Links:
    """The grids, that of sublayers first, and where the sliders start."""

    grids: tuple[LinkGrid, ...]
    num_layers: int
    layers_per_block: int


@dataclass(frozen=True)
class TokenHops:
    """One token that lies on a rank, and its experts."""

    text: str
    rank: int
    experts: tuple[int, ...]


@dataclass(frozen=True)
class Parallel:
    """One routed layer on ranks that hold equal shares of its experts, in order; bytes per token, both ways."""

    name: str
    source: str
    num_experts: int
    full_width: int
    full_width_bytes: float
    routed_width: int
    routed_width_bytes: float
    bytes_per_number: int
    leaving_share: float  # of pairs of a token and an expert, those on another rank
    loads: tuple[float, ...]  # by rank, pairs over the mean
    tokens: tuple[TokenHops, ...]

    @property
    def num_ranks(self) -> int:
        """Ranks."""
        return len(self.loads)


@dataclass(frozen=True)
class GroupGrowth:
    """Parameters of one named group in either model; 0 where it has none."""

    group: str
    before: int
    after: int


@dataclass(frozen=True)
class Growth:
    """From one model to another, by the groups of the counter."""

    before: str
    after: str
    groups: tuple[GroupGrowth, ...]


@dataclass(frozen=True)
class ReadWeights:
    """Mean weights of every attention-residual read of a run over its sources; each read's sum to 1."""

    name: str
    source: str  # one sentence: which run, which tokens
    reads: tuple[str, ...]  # "layer 1 mixer", ..., "output"
    sources: tuple[str, ...]  # "embedding", "block 1", ...; the longest read has all
    weights: tuple[tuple[float, ...], ...]  # of each read, as many as it has sources


@dataclass(frozen=True)
class Curve:
    """A function, point by point."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Histogram:
    """How activations of a run are spread; `edges` has one more number than `counts`."""

    name: str  # which run and arm
    activation: str  # swiglu, situ_glu
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Activations:
    """SwiGLU and SiTU-GLU as functions, and what runs with either had at one stated place."""

    source: str  # one sentence: what is measured, in which runs
    x_label: str  # of the functions: "gate"
    y_label: str  # "hidden activation where up = 1"
    curves: tuple[Curve, ...]
    measured: str  # what the histograms count: "hidden activation of the shared experts"
    histograms: tuple[Histogram, ...] = ()


@dataclass(frozen=True)
class Score:
    """One published cell; `setting` is empty, or says with or without tools."""

    category: str
    benchmark: str
    model: str
    setting: str
    score: float


@dataclass(frozen=True)
class Standing:
    """A vendor's published scores with their source; nothing of it is measured here."""

    source: str
    scores: tuple[Score, ...]


@dataclass(frozen=True)
class Exhibits:
    """Everything that is shown interactively."""

    routing: tuple[Routing, ...] = ()  # a reader switches between them
    stacks: tuple[Stack, ...] = ()  # side by side, the model in question first
    links: Links | None = None
    parallel: tuple[Parallel, ...] = ()
    growth: Growth | None = None
    read_weights: tuple[ReadWeights, ...] = ()
    activations: Activations | None = None
    standing: Standing | None = None


def uniform_routing(name: str, num_experts: int, num_active: int, num_tokens: int, seed: int) -> Routing:
    """Every expert as likely as every other, for a size of which no run is at hand; the same seed, the same draw."""
    generator = np.random.default_rng(seed)
    chosen = [generator.choice(num_experts, num_active, replace=False).tolist() for _ in range(num_tokens)]
    counts = np.bincount(np.array(chosen).ravel(), minlength=num_experts)
    tokens = [
        RoutedToken(f"token {number}", tuple(experts), (1 / num_active,) * num_active)
        for number, experts in enumerate(chosen, start=1)
    ]
    return Routing(
        name=name,
        source=f"Illustration: {num_tokens} tokens, experts drawn uniformly with seed {seed}; no model chose them.",
        pairs=tuple(counts.tolist()),
        tokens=tuple(tokens),
        num_active=num_active,
        is_drawn=True,
    )
