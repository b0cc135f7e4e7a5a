"""Where do the cells of a stack of layers lie? Groups of columns, one column per layer, that a narrow page can wrap.

A group is a block of attention residuals, or as many layers of a model that has none.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from k3ablate.report.exhibits import Stack, StackLayer

PITCH = 9  # units from one layer to the next
PLAIN_GROUP = 12  # layers of a group where there are no blocks
WORDS = {
    "kda": "KDA", "mla": "MLA", "gated_mla": "gated MLA", "softmax": "softmax attention", "dense": "dense",
    "moe": "MoE", "latent_moe": "latent MoE", "plain": "plain residual adds",
    "full_attnres": "full attention residuals", "block_attnres": "block attention residuals",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One layer; `x` in units, `mixer` and `feed_forward` are kinds, `words` says all of it."""

    x: int
    mixer: str
    feed_forward: str
    words: str


@dataclass(frozen=True)
class Group:
    """Consecutive layers; `is_block` where they share a block of attention residuals."""

    label: str
    is_block: bool
    columns: tuple[Column, ...]

    @property
    def width(self) -> int:
        """In units."""
        return PITCH * len(self.columns)


def words(kind: str) -> str:
    """A kind as a reader knows it; one that is not known here keeps its name."""
    return WORDS.get(kind, kind.replace("_", " "))


def css_class(kind: str) -> str:
    """Of a cell; a kind that is not known here has the looks of none."""
    return kind if kind in WORDS else "unknown"


def kinds(stacks: Sequence[Stack]) -> tuple[str, ...]:
    """All mixers, then all feed-forwards, for the key."""
    layers = [layer for stack in stacks for layer in stack.layers]
    return tuple(dict.fromkeys([*(layer.mixer for layer in layers), *(layer.feed_forward for layer in layers)]))


def groups(stack: Stack) -> tuple[Group, ...]:
    """All layers, first to last."""
    numbered = list(enumerate(stack.layers, start=1))
    return tuple(_group(list(members)) for _, members in groupby(numbered, _place))


def summary(stack: Stack) -> str:
    """How many layers of each kind."""
    mixers, feed_forwards = (
        Counter(getattr(layer, slot) for layer in stack.layers) for slot in ("mixer", "feed_forward")
    )
    blocks = {layer.block for layer in stack.layers} - {None}
    residual = words(stack.residual) + (f" over {len(blocks)} blocks" if blocks else "")
    parts = [
        ", ".join(f"{number} {words(kind)}" for kind, number in counted.items()) for counted in (mixers, feed_forwards)
    ]
    return f"{len(stack.layers)} decoder layers: {parts[0]}; {parts[1]}; {residual}"


def _place(entry: tuple[int, StackLayer]) -> int:
    """Number of the group of a numbered layer."""
    number, layer = entry
    return (number - 1) // PLAIN_GROUP if layer.block is None else layer.block


def _group(members: list[tuple[int, StackLayer]]) -> Group:
    first, last = members[0], members[-1]
    span = f"{first[0]}–{last[0]}" if len(members) > 1 else f"{first[0]}"
    block = first[1].block
    label = span if block is None else f"block {block + 1} · {span}"
    columns = (
        Column(
            PITCH * index, layer.mixer, layer.feed_forward,
            f"layer {number}: {words(layer.mixer)}, {words(layer.feed_forward)}",
        )
        for index, (number, layer) in enumerate(members)
    )  # fmt: skip
    return Group(label, block is not None, tuple(columns))
