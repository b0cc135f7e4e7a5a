"""Do a head's tokens come into blocks and back, from wherever they lie?"""

from typing import Any

import numba
import numpy
import pytest
import torch

from k3ablate.kernels.head_blocks import QUERIES, give, new_block, scale_rows, take_block, to_columns, to_rows, whole

Array = numpy.ndarray[Any, Any]


@numba.njit
def there_and_back(source: Any, b: int, h: int, factors_T: Any, target: Any) -> Any:
    """Every token times its factor, by way of the columns; returns the columns of the last block."""
    block = new_block(source.shape[3])
    for start in range(0, source.shape[1], QUERIES):
        num_rows = take_block(source, b, start, h, block)
        to_columns(block)
        last = block.columns.copy()
        block.rows[:] = numpy.nan
        to_rows(block)
        scale_rows(block, factors_T, start, num_rows)
        give(block.rows, 0, numpy.float32(2), target, b, start, h)
    return last


@pytest.mark.parametrize("width", [1, 16, 33])
@pytest.mark.parametrize("length", [31, 32, 70])
def test_tokens_come_back_as_they_went(length: int, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    source = torch.randn(3, 2, length, width + 2, generator=generator).transpose(1, 2)[..., 1:-1].numpy()
    target = numpy.full((length, 2, 3, width), numpy.nan, numpy.float32).transpose(2, 0, 1, 3)
    factors_T = numpy.arange(1, length + 1, dtype=numpy.float32)
    columns = there_and_back(source, 2, 1, factors_T, target)
    numpy.testing.assert_array_equal(target[2, :, 1], 2 * factors_T[:, None] * source[2, :, 1])
    assert numpy.isnan(target).sum() == 5 * length * width
    expected = numpy.zeros((width, QUERIES), numpy.float32)
    start = (length - 1) // QUERIES * QUERIES
    expected[:, : length - start] = source[2, start:, 1].T
    numpy.testing.assert_array_equal(columns, expected)


def test_whole_units() -> None:
    assert [whole(number, 16) for number in (0, 1, 16, 17)] == [0, 16, 16, 32]
