"""Where do KDA's numba kernels keep a head's tokens and its state? In rows of whole vectors, and in tiles.

Shared by `kda_numba` and `kda_backward_numba`, which say what is computed with them. A segment of tokens lies in rows
of several kinds (queries, keys, ...), one array for all: numba counts references to each array that a call is given. A
tile is 16 value channels of a state, all its keys; it lies as keys by values in the forward, as values by keys, in
blocks of 16 x 16, in the backward.

Shapes: KV state of a head, N tiles, X numbers of a tile.
"""

from typing import Any

import numba
import numpy

from k3ablate.kernels.elementary import exponential
from k3ablate.kernels.head_blocks import whole
from k3ablate.kernels.vector import LANES, load, load_first, store, store_first, transpose

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
def new_tiles(num_heads: int, num_keys: int, num_values: int) -> Any:
    """Room for the tiles of several heads, and behind each tile a vector that one token leaves for the next."""
    num_tiles, size = whole(num_values, LANES) // LANES, whole(num_keys, LANES) * LANES
    return room(num_heads * num_tiles * (size + LANES)).reshape(num_heads, num_tiles, size + LANES)


@compiled
def heads_of(b: int, num_heads: int, first: int, last: int) -> Any:
    """Which heads of sequence b are among the (batch, head) pairs from `first` up to `last`."""
    return range(max(first - b * num_heads, 0), min(last - b * num_heads, num_heads))


@compiled
def exponentiate(logarithms: Any, result: Any) -> None:
    """Of rows, into others: what fills up the logarithms stays zero from segment to segment."""
    source, target = logarithms.ravel(), result.ravel()
    for i in range(source.size):
        target[i] = exponential(source[i])


@compiled
def take_state(state_KV: Any, tiles_NX: Any) -> None:
    """Fill the tiles, keys by values; where there is no key, zeros: another sequence may have left NaN there."""
    num_keys, num_values = state_KV.shape
    for v in range(0, num_values, LANES):
        tile_X = tiles_NX[v // LANES]
        tile_X[:] = numpy.float32(0)
        for k in range(num_keys):
            store(tile_X, k * LANES, load_first(state_KV, k * num_values + v, num_values - v))


@compiled
def give_state(tiles_NX: Any, state_KV: Any) -> None:
    """The reverse of `take_state`."""
    num_keys, num_values = state_KV.shape
    for v in range(0, num_values, LANES):
        tile_X = tiles_NX[v // LANES]
        for k in range(num_keys):
            store_first(state_KV, k * num_values + v, num_values - v, load(tile_X, k * LANES))


@compiled
def transpose_tiles(tiles_NX: Any, result_NX: Any) -> None:
    """Keys by values to values by keys, or back; the two may be the same."""
    size, result_size = tiles_NX.shape[1], result_NX.shape[1]
    for n in range(tiles_NX.shape[0]):
        for at in range(0, min(size, result_size) // LANES**2 * LANES**2, LANES**2):
            transpose(tiles_NX, n * size + at, LANES, result_NX, n * result_size + at, LANES)
