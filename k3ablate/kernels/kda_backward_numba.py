"""How do gradients of the KDA recurrence run at the speed of a CPU's cache? In numba, float32, tokens in reverse.

Key channels are the lanes of a vector here, value channels the rows: gradients of query, key and decay are then sums
over rows. What is summed over lanes is the gradient of what was written, once per row and token, sixteen rows together.
States in between those that the forward kept are computed again from what it wrote. As in the forward, one pass over
the gradient of the state ends with one token and begins with the one before it.

With D = exp(log_decay) S the decayed state, u what is new about the value, w = strength u written to it, S' = D + k w,
output q S', and G the gradient of S', that of the output included: dw = k G, du = strength dw, dD = G - k du,
dq = D do + k (w do), dk = G w - D du, dlog_decay = D dD summed over values, and the gradient of S, exp(log_decay) dD.

`kda_numba` is the forward, and what `kda.kda` calls. Shapes and rows: there and in `kda_tiles`.
"""

from typing import Any

import numpy

from k3ablate.kernels.head_blocks import give, take
from k3ablate.kernels.kda_tiles import (
    SEGMENT,
    compiled,
    exponentiate,
    give_state,
    heads_of,
    new_rows,
    new_tiles,
    room,
    take_state,
    transpose_tiles,
)
from k3ablate.kernels.lanes import totals
from k3ablate.kernels.vector import LANES, add, fma, load, multiply, splat, splat_from, store, subtract, total

_ZERO, _ONE = numpy.float32(0), numpy.float32(1)


@compiled
def backward(  # type: ignore[no-untyped-def]
    first, last, query, key, new, log_decay, strength, kept, given, of_state, of_query, of_key, of_value,
    of_log_decay, of_strength,
):  # fmt: skip
    """Pairs from `first` up to `last`; `of_x` is the gradient of x, that of the state first of the final one."""
    num_heads, num_keys, num_values = key.shape[2], key.shape[3], new.shape[3]
    keyed, valued = new_rows(7, SEGMENT + 1, num_keys), new_rows(4, SEGMENT + 1, num_values)
    of_states = new_tiles(num_heads, num_keys, num_values)
    size = of_states.shape[2] - LANES
    states, parts = room(SEGMENT * size).reshape(SEGMENT, size), room(size)
    for b in range(first // num_heads, -(-last // num_heads)):
        for h in heads_of(b, num_heads, first, last):
            take_state(of_state[b, h], of_states[h])
            transpose_tiles(of_states[h], of_states[h])
        for s in range(kept.shape[1] - 1, -1, -1):
            for h in heads_of(b, num_heads, first, last):
                start, stop = s * SEGMENT, min((s + 1) * SEGMENT, key.shape[1])
                strength_T, of_strength_T = strength[b, start:stop, h], of_strength[b, start:stop, h]
                _take_keys(query, key, log_decay, b, start, h, keyed)
                _take_values(new, given, strength_T, b, start, h, valued)
                for v in range(0, num_values, LANES):
                    n, height = v // LANES, min(LANES, num_values - v)
                    _recompute(kept[b, s, h, n], keyed, valued, v, height, stop - start, states)
                    if stop == key.shape[1]:
                        _begin(of_states[h, n], keyed, valued, v, height, stop - start, parts)
                    _reverse(states, of_states[h, n], keyed, valued, v, height, strength_T, of_strength_T, parts)
                give(keyed[4, 1:], 0, _ONE, of_query, b, start, h)
                give(keyed[5, 1:], 0, _ONE, of_key, b, start, h)
                give(keyed[6, 1:], 0, _ONE, of_log_decay, b, start, h)
                give(valued[3, 1:], 0, _ONE, of_value, b, start, h)
        for h in heads_of(b, num_heads, first, last):
            transpose_tiles(of_states[h], of_states[h])
            give_state(of_states[h], of_state[b, h])


@compiled
def _take_keys(query, key, log_decay, b, start, h, keyed):  # type: ignore[no-untyped-def]
    """Rows of queries, keys, decays as factors and as logarithms, and zeros for the gradients."""
    _take_with_previous(query, b, start, h, keyed[0])
    _take_with_previous(key, b, start, h, keyed[1])
    _take_with_previous(log_decay, b, start, h, keyed[3])
    exponentiate(keyed[3], keyed[2])
    for at in range(4 * keyed[0].size, keyed.size, LANES):
        store(keyed, at, splat(_ZERO))


@compiled
def _take_values(new, given, strength_T, b, start, h, valued):  # type: ignore[no-untyped-def]
    """Rows of what was new, what of it was written, and gradients of outputs; those of the new ones come later."""
    _take_with_previous(new, b, start, h, valued[0])
    _take_with_previous(given, b, start, h, valued[2])
    width, size = valued.shape[2], valued[0].size
    for t in range(strength_T.size):
        for at in range((t + 1) * width, (t + 2) * width, LANES):
            store(valued, size + at, multiply(splat(strength_T[t]), load(valued, at)))


@compiled
def _take_with_previous(source: Any, b: int, start: int, h: int, rows: Any) -> None:
    """Tokens from the one before `start` on; before the first one there are zeros."""
    if start:
        take(source, b, start - 1, h, _ONE, rows, 0)
    else:
        rows[0] = _ZERO
        take(source, b, start, h, _ONE, rows[1:], 0)


@compiled
def _recompute(kept_X, keyed, valued, v, height, num_tokens, states_TX):  # type: ignore[no-untyped-def]
    """Fill the states before each token of a tile from the one kept."""
    width, keys, decays = keyed.shape[2], keyed[0].size, 2 * keyed[0].size
    size = states_TX.shape[1]
    for at in range(0, size, LANES):
        store(states_TX, at, load(kept_X, at))
    for t in range(1, num_tokens):
        written = valued[0].size + t * valued.shape[2] + v
        for k in range(0, width, LANES):
            key, decay = load(keyed, keys + t * width + k), load(keyed, decays + t * width + k)
            before = (t - 1) * size + k * LANES
            for j in range(height):
                row = multiply(key, splat_from(valued, written + j))
                row = fma(decay, load(states_TX, before + j * LANES), row)
                store(states_TX, before + size + j * LANES, row)


@compiled
def _begin(of_tile_X, keyed, valued, v, height, row, parts_X):  # type: ignore[no-untyped-def]
    """What the output of the last token, in `row`, gives to the gradient of the state; leaves that of w."""
    width, keys = keyed.shape[2], keyed[0].size
    given = 2 * valued[0].size + row * valued.shape[2] + v
    for k in range(0, width, LANES):
        query, key = load(keyed, row * width + k), load(keyed, keys + row * width + k)
        for j in range(height):
            at = (k + j) * LANES
            of_row = fma(query, splat_from(valued, given + j), load(of_tile_X, at))
            store(of_tile_X, at, of_row)
            store(parts_X, at, multiply(key, of_row))
    store(of_tile_X, parts_X.size, _sums(parts_X))


@compiled
def _sums(parts_X: Any) -> Any:
    """Of all key channels, a value channel in each lane."""
    summed = totals(parts_X, 0)
    for at in range(LANES**2, parts_X.size, LANES**2):
        summed = add(summed, totals(parts_X, at))
    return summed


@compiled
def _reverse(  # type: ignore[no-untyped-def]
    states_TX, of_tile_X, keyed, valued, v, height, strength_T, of_strength_T, parts_X
):
    """Tokens from the last to the first in the tile of values from `v` on; tiles add up in gradients of keys."""
    width, keys, decays = keyed.shape[2], keyed[0].size, 2 * keyed[0].size
    step, size = valued.shape[2], valued[0].size
    of_written = load(of_tile_X, parts_X.size)
    for t in range(strength_T.size - 1, -1, -1):
        new = (t + 1) * step + v
        written, given, of_new = new + size, new + 2 * size, new + 3 * size
        store(valued, of_new, multiply(splat(strength_T[t]), of_written))
        of_strength_T[t] += total(multiply(of_written, load(valued, new)))
        along_key = splat(total(multiply(load(valued, written), load(valued, given))))
        for k in range(0, width, LANES):
            at = (t + 1) * width + k
            key, decay = load(keyed, keys + at), load(keyed, decays + at)
            query_before, key_before = load(keyed, at - width), load(keyed, keys + at - width)
            by_given, by_new, by_written, of_decay = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
            for j in range(height):
                there = (k + j) * LANES
                row, of_row = load(states_TX, t * parts_X.size + there), load(of_tile_X, there)
                by_given = fma(splat_from(valued, given + j), row, by_given)
                by_new = fma(splat_from(valued, of_new + j), row, by_new)
                by_written = fma(splat_from(valued, written + j), of_row, by_written)
                of_decayed = subtract(of_row, multiply(key, splat_from(valued, of_new + j)))
                of_decay = fma(of_decayed, row, of_decay)
                of_row = fma(decay, of_decayed, multiply(query_before, splat_from(valued, given - step + j)))
                store(of_tile_X, there, of_row)
                store(parts_X, there, multiply(key_before, of_row))
            _add_to(keyed, 4 * keys + at, fma(key, along_key, multiply(decay, by_given)))
            _add_to(keyed, 5 * keys + at, subtract(by_written, multiply(decay, by_new)))
            _add_to(keyed, 6 * keys + at, multiply(decay, of_decay))
        of_written = _sums(parts_X)
    store(of_tile_X, parts_X.size, of_written)


@compiled
def _add_to(rows: Any, at: int, numbers: Any) -> None:
    store(rows, at, add(load(rows, at), numbers))
