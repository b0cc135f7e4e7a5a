"""Links against the table of specification section 6, a plain walk, and what the residual streams run."""

import math
from dataclasses import asdict

import pytest

from k3ablate.model.links import link_table, num_links, num_output_links
from k3ablate.model.residual import BlockAttnRes, FullAttnRes


def test_the_table_at_93_layers() -> None:
    by_layer, by_sublayer = link_table(num_layers=93, layers_per_block=12)
    assert asdict(by_layer) == {
        "consumer": "decoder layer",
        "num_consumers": 93,
        "pairs": 4_278,
        "full": 4_371,
        "full_with_output": 4_465,
        "block": 493,
        "block_with_output": 502,
    }
    assert asdict(by_sublayer) == {
        "consumer": "sublayer",
        "num_consumers": 186,
        "pairs": 17_205,
        "full": 17_391,
        "full_with_output": 17_578,
        "block": 994,
        "block_with_output": 1_003,
    }


def test_the_sums_behind_the_table() -> None:
    assert (num_links(7 * 12, 12), num_links(93, 12)) == (413, 413 + 80)
    assert (num_links(7 * 24, 24), num_links(186, 24)) == (833, 833 + 161)
    assert (num_output_links(93, 12), num_output_links(186, 24)) == (9, 9)  # the embedding and eight blocks
    assert num_links(93) + num_output_links(93) == math.comb(95, 2)


def test_16_blocks_would_be_17_sources() -> None:
    """Why the block size counts decoder layers: 12 sublayers to a block would not give the 9 sources of the release."""
    assert num_output_links(186, 12) == 17


@pytest.mark.parametrize("block_size", range(1, 9))
def test_any_depth_is_the_plain_walk(block_size: int) -> None:
    for num_consumers in range(1, 40):
        finished, current, links = 1, 0, 0  # the embedding is finished; consumers in the running block
        for _ in range(num_consumers):
            if current == block_size:
                finished, current = finished + 1, 0
            links += finished + (current > 0)
            current += 1
        assert num_links(num_consumers, block_size) == links
        assert num_output_links(num_consumers, block_size) == finished + 1


@pytest.mark.parametrize("num_layers", [1, 2, 3, 8, 13, 48, 93])
@pytest.mark.parametrize("num_blocks", [1, 2, 5, 8, 93])
def test_what_the_streams_run_is_the_row_of_sublayers(num_layers: int, num_blocks: int) -> None:
    stream = BlockAttnRes(num_blocks=num_blocks)
    row = link_table(num_layers, stream.layers_per_block(num_layers))[1]
    assert row.block_with_output == stream.num_links(num_layers)
    assert row.full_with_output == FullAttnRes().num_links(num_layers)
