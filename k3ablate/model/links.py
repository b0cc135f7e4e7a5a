"""How many links over depth does a decoder have? Closed forms for any depth and block size (specification, section 6).

A link is one pair of a source and a consumer for which the consumer's softmax has an entry; the embedding is a source.
A consumer is a sublayer, which is what the released model runs, or a whole decoder layer, which is how its report
speaks. What a configuration runs is `num_links` of the residual streams; this is the arithmetic beside it.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class LinkCounts:
    """Links of the full form and of blocks at one grain, without and with those of the output's own read."""

    consumer: str
    num_consumers: int
    pairs: int  # unordered pairs among the consumers
    full: int
    full_with_output: int
    block: int
    block_with_output: int


def num_links(num_consumers: int, block_size: int = 1) -> int:
    """Links into `num_consumers` in blocks of `block_size`, the last with what is left; 1 is the full form.

    Block n, from 1, with s consumers: each reads the embedding and n - 1 finished blocks, and all but the first the
    running sum too. That is n s + (s - 1).
    """
    sizes = [min(block_size, num_consumers - start) for start in range(0, num_consumers, block_size)]
    return sum(block * size + size - 1 for block, size in enumerate(sizes, start=1))


def num_output_links(num_consumers: int, block_size: int = 1) -> int:
    """Links of the output's own read: the embedding and every block, the last one whole or not."""
    return math.ceil(num_consumers / block_size) + 1


def link_table(num_layers: int, layers_per_block: int) -> list[LinkCounts]:
    """One row where a consumer is a decoder layer, one where it is a sublayer, of which a layer has two."""
    return [
        _link_counts("decoder layer", num_layers, layers_per_block),
        _link_counts("sublayer", 2 * num_layers, 2 * layers_per_block),
    ]


def _link_counts(consumer: str, num_consumers: int, block_size: int) -> LinkCounts:
    full, block = num_links(num_consumers), num_links(num_consumers, block_size)
    return LinkCounts(
        consumer=consumer,
        num_consumers=num_consumers,
        pairs=math.comb(num_consumers, 2),
        full=full,
        full_with_output=full + num_output_links(num_consumers),
        block=block,
        block_with_output=block + num_output_links(num_consumers, block_size),
    )
