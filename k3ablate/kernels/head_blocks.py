"""How do a head's tokens get from where a model has them into the cache, and back? In blocks of 32, both ways round.

For kernels whose lanes are tokens, such as `causal_attention_numba`: a block holds its rows as they are and transposed.
Operands may have any strides between tokens and heads, but their channels lie next to each other. What is computed with
a block is the kernel's own matter, products of it that of `products.py`.

Shapes: operands BTHD, Q tokens of a block, D channels.
"""

from typing import Any, NamedTuple

import numba
import numpy

from k3ablate.kernels.vector import LANES, load, load_first, multiply, splat, splat_from, store, store_first, transpose

QUERIES = 2 * LANES  # of a block: two vectors side by side, for which `products` has tiles

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

_ZERO, _ONE = numpy.float32(0), numpy.float32(1)
_FLOAT_BYTES = 4


class Block(NamedTuple):
    """The queries of a block, or what belongs to them."""

    rows: Any  # one for each query; D and zeros up to whole vectors
    columns: Any  # DQ, the same transposed
    padded: Any  # `columns` with those of the zeros


@compiled
def zeros(num_rows: int, width: int) -> Any:
    """Room for float32 numbers."""
    return numpy.zeros((num_rows, width), numpy.float32)


@compiled
def whole(number: int, unit: int) -> Any:
    """`number` rounded up to whole units."""
    return (number + unit - 1) // unit * unit


@compiled
def new_block(width: int) -> Any:
    """A block of zeros for D = `width`."""
    padded = zeros(whole(width, LANES), QUERIES)
    return Block(zeros(QUERIES, padded.shape[0]), padded[:width], padded)


@compiled
def to_columns(block: Any) -> None:
    """Fill the columns from the rows."""
    width = block.rows.shape[1]
    for i in range(0, QUERIES, LANES):
        for d in range(0, width, LANES):
            transpose(block.rows, i * width + d, width, block.padded, d * QUERIES + i, QUERIES)


@compiled
def to_rows(block: Any) -> None:
    """Fill the rows from the columns."""
    width = block.rows.shape[1]
    for i in range(0, QUERIES, LANES):
        for d in range(0, width, LANES):
            transpose(block.padded, d * QUERIES + i, QUERIES, block.rows, i * width + d, width)


@compiled
def scale_rows(block: Any, factors_T: Any, start: int, num_rows: int) -> None:
    """Multiply the first rows, each by the factor of its token, in place; the block begins at token `start`."""
    width = block.rows.shape[1]
    for i in range(num_rows):
        for at in range(i * width, (i + 1) * width, LANES):
            store(block.rows, at, multiply(splat_from(factors_T, start + i), load(block.rows, at)))


@compiled
def _move(source: Any, at: int, stride: int, target: Any, to: int, step: int, shape: Any, factor: Any) -> None:
    """`factor` times rows of `source` into `target`, given flat positions of the first row and distances of rows."""
    for row in range(shape[0]):
        for d in range(0, shape[1], LANES):
            numbers = load_first(source, at + row * stride + d, shape[1] - d)
            store_first(target, to + row * step + d, shape[1] - d, multiply(splat(factor), numbers))


@compiled
def _place(operand: Any, b: int, t: int, h: int) -> Any:
    """Flat position of a token's channels, and the distance to the next token's."""
    distance = operand.strides[1] // _FLOAT_BYTES
    return (b * operand.strides[0] + h * operand.strides[2]) // _FLOAT_BYTES + t * distance, distance


@compiled
def take(source: Any, b: int, start: int, h: int, factor: Any, rows: Any, channel: int) -> None:
    """`factor` times tokens from `start` on, as many as there are or `rows` holds, into its columns from `channel`."""
    at, stride = _place(source, b, start, h)
    shape = min(rows.shape[0], source.shape[1] - start), source.shape[3]
    _move(source, at, stride, rows, channel, rows.shape[1], shape, factor)


@compiled
def give(rows: Any, channel: int, factor: Any, target: Any, b: int, start: int, h: int) -> None:
    """The reverse of `take`."""
    to, step = _place(target, b, start, h)
    shape = min(rows.shape[0], target.shape[1] - start), target.shape[3]
    _move(rows, channel, rows.shape[1], target, to, step, shape, factor)


@compiled
def take_block(source: Any, b: int, start: int, h: int, block: Any) -> Any:
    """Fill the rows with tokens from `start` on, and zeros behind the last one; returns how many tokens there are."""
    num_rows = min(QUERIES, source.shape[1] - start)
    if num_rows < QUERIES:
        block.rows[:] = _ZERO
    take(source, b, start, h, _ONE, block.rows, 0)
    return num_rows
