"""Where do KDA's numba kernels keep the tokens of heads and their states? In rows of whole vectors, and in tiles.

Shared by `kda_numba` and `kda_backward_numba`, which say what is computed with them. A segment of tokens lies in rows
of several kinds (queries, keys, ...), one array for all: numba counts references to each array that a call is given. A
tile is 16 value channels of a state, all its keys; it lies as keys by values in the forward, as values by keys, in
blocks of 16 x 16, in the backward. Heads narrower than a vector go together in groups of G that take turns in its lanes
(`turns`): rows and tiles are those of a group, and for 16 channels read 16 / G of each head.

Shapes: operands BTHX and states BHKV of `kda.py`, g number of a group, N tiles, X numbers of a tile.
"""

from typing import Any

import numba
import numpy

from k3ablate.kernels.elementary import exponential
from k3ablate.kernels.head_blocks import whole
from k3ablate.kernels.turns import load_in_turn, store_in_turn
from k3ablate.kernels.vector import LANES, load, store, transpose

SEGMENT = 32  # tokens between kept states

# Reordered sums vectorise; NaN and infinity keep their meaning, so that a diverged run is seen as one.
compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


@compiled
def room(size: int) -> Any:
    """Zeros from the start of a cache line on: vectors across two lines cost a tenth."""
    numbers = numpy.zeros(size + LANES, numpy.float32)
    first = -(numbers.ctypes.data // numbers.itemsize) % LANES
    return numbers[first : first + size]


@compiled
def new_rows(num_kinds: int, num_rows: int, width: int) -> Any:
    """Room for rows of several kinds, whole vectors each."""
    return room(num_kinds * num_rows * whole(width, LANES)).reshape(num_kinds, num_rows, whole(width, LANES))


@compiled
def new_tiles(num_groups: int, num_values: int, tile_size: int) -> Any:
    """Room for the tiles of several groups, and behind each tile a vector that one token leaves for the next."""
    num_tiles = whole(num_values, LANES) // LANES
    return room(num_groups * num_tiles * (tile_size + LANES)).reshape(num_groups, num_tiles, tile_size + LANES)


@compiled
def groups_of(b: int, num_groups: int, first: int, last: int) -> Any:
    """Which groups of sequence b are among the (batch, group) pairs from `first` up to `last`."""
    return range(max(first - b * num_groups, 0), min(last - b * num_groups, num_groups))


@compiled
def exponentiate(logarithms: Any, result: Any) -> None:
    """Of rows, into others: what fills up the logarithms stays zero from segment to segment."""
    source, target = logarithms.ravel(), result.ravel()
    for i in range(source.size):
        target[i] = exponential(source[i])


@compiled
def take(source_BTHX: Any, b: int, start: int, g: int, turns: Any, rows: Any) -> None:
    """Tokens from `start` on, as many as there are or `rows` holds, and zeros up to whole vectors."""
    _, length, num_heads, width = source_BTHX.shape
    h = g * len(turns)
    at, step = ((b * length + start) * num_heads + h) * width, num_heads * width
    stop = 1 if len(turns) > 1 else width  # known to the compiler: heads that share a vector need no other
    for t in range(min(rows.shape[0], length - start)):
        for x in range(0, stop, LANES):
            numbers = load_in_turn(source_BTHX, at + t * step + x, width, width - x, num_heads - h, turns)
            store(rows, t * rows.shape[1] + x, numbers)


@compiled
def give(rows: Any, target_BTHX: Any, b: int, start: int, g: int, turns: Any) -> None:
    """The reverse of `take`."""
    _, length, num_heads, width = target_BTHX.shape
    h = g * len(turns)
    to, step = ((b * length + start) * num_heads + h) * width, num_heads * width
    stop = 1 if len(turns) > 1 else width
    for t in range(min(rows.shape[0], length - start)):
        for x in range(0, stop, LANES):
            numbers = load(rows, t * rows.shape[1] + x)
            store_in_turn(target_BTHX, to + t * step + x, width, width - x, num_heads - h, turns, numbers)


@compiled
def take_strengths(strength_BTH: Any, b: int, start: int, g: int, turns: Any, strengths: Any) -> None:
    """Fill rows of G numbers. They are no vectors: 64 bytes a token would push the states out of the first cache."""
    _, length, num_heads = strength_BTH.shape
    h = g * len(turns)
    for t in range(min(SEGMENT, length - start)):
        for i in range(min(len(turns), num_heads - h)):
            strengths[t * len(turns) + i] = strength_BTH[b, start + t, h + i]


@compiled
def give_strengths(strengths: Any, strength_BTH: Any, b: int, start: int, g: int, turns: Any) -> None:
    """The reverse of `take_strengths`."""
    _, length, num_heads = strength_BTH.shape
    h = g * len(turns)
    for t in range(min(SEGMENT, length - start)):
        for i in range(min(len(turns), num_heads - h)):
            strength_BTH[b, start + t, h + i] = strengths[t * len(turns) + i]


@compiled
def take_state(state_BHKV: Any, b: int, g: int, turns: Any, tiles_NX: Any) -> None:
    """Fill the tiles, keys by values; where there is no key, zeros: another sequence may have left NaN there."""
    _, num_heads, num_keys, num_values = state_BHKV.shape
    h, distance = g * len(turns), num_keys * num_values
    for v in range(0, num_values, LANES):
        tile_X = tiles_NX[v // LANES]
        tile_X[:] = numpy.float32(0)
        for k in range(num_keys):
            at = (b * num_heads + h) * distance + k * num_values + v
            numbers = load_in_turn(state_BHKV, at, distance, num_values - v, num_heads - h, turns)
            store(tile_X, k * LANES, numbers)


@compiled
def give_state(tiles_NX: Any, state_BHKV: Any, b: int, g: int, turns: Any) -> None:
    """The reverse of `take_state`."""
    _, num_heads, num_keys, num_values = state_BHKV.shape
    h, distance = g * len(turns), num_keys * num_values
    for v in range(0, num_values, LANES):
        for k in range(num_keys):
            to = (b * num_heads + h) * distance + k * num_values + v
            numbers = load(tiles_NX[v // LANES], k * LANES)
            store_in_turn(state_BHKV, to, distance, num_values - v, num_heads - h, turns, numbers)


@compiled
def transpose_tiles(tiles_NX: Any, turns: Any, result_NX: Any) -> None:
    """Keys by values to values by keys, or back; the two may be the same."""
    size, result_size = tiles_NX.shape[1], result_NX.shape[1]
    for n in range(tiles_NX.shape[0]):
        if len(turns) > 1:
            _exchange(tiles_NX[n], turns, result_NX[n])
        else:
            for at in range(0, min(size, result_size) // LANES**2 * LANES**2, LANES**2):
                transpose(tiles_NX, n * size + at, LANES, result_NX, n * result_size + at, LANES)


@compiled
def _exchange(tile_X: Any, turns: Any, result_X: Any) -> None:
    """Transpose the one block of each head in a tile that they share."""
    side = LANES // len(turns)
    for i in range(side):
        for j in range(i + 1):
            for h in range(len(turns)):
                here, there = i * LANES + j * len(turns) + h, j * LANES + i * len(turns) + h
                result_X[here], result_X[there] = tile_X[there], tile_X[here]
