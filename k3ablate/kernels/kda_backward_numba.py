"""How do gradients of the KDA recurrence run at the speed of a CPU's cache? In numba, float32, tokens in reverse.

Key channels are the lanes of a vector here, value channels the rows: gradients of query, key and decay are then sums
over rows. What is summed over lanes is the gradient of what was written, once per row and token, sixteen rows together.
States in between those that the forward kept are computed again from what it wrote. As in the forward, one pass over
the gradient of the state ends with one token and begins with the one before it, and heads that share vectors go
together.

With D = exp(log_decay) S the decayed state, u what is new about the value, w = strength u written to it, S' = D + k w,
output q S', and G the gradient of S', that of the output included: dw = k G, du = strength dw, dD = G - k du,
dq = D do + k (w do), dk = G w - D du, dlog_decay = D dD summed over values, and the gradient of S, exp(log_decay) dD.

`kda_numba` is the forward, and what `kda.kda` calls. Shapes and rows: there and in `kda_tiles`.
"""

from typing import Any

import numpy

from k3ablate.kernels.kda_tiles import (
    SEGMENT,
    compiled,
    exponentiate,
    give,
    give_state,
    give_strengths,
    groups_of,
    new_rows,
    new_tiles,
    room,
    take,
    take_state,
    take_strengths,
    transpose_tiles,
)
from k3ablate.kernels.lanes import totals
from k3ablate.kernels.turns import splat_in_turn, total_in_turn
from k3ablate.kernels.vector import LANES, add, fma, load, multiply, splat, store, store_first, subtract

_ZERO = numpy.float32(0)


@compiled
def backward(  # type: ignore[no-untyped-def]
    first, last, turns, query, key, new, log_decay, strength, kept, given, of_state, of_query, of_key, of_value,
    of_log_decay, of_strength,
):  # fmt: skip
    """Pairs from `first` up to `last`; `of_x` is the gradient of x, that of the state first of the final one."""
    num_keys, num_values, num_groups, size = key.shape[3], new.shape[3], kept.shape[2], kept.shape[4]
    keyed, valued = new_rows(7, SEGMENT + 1, num_keys), new_rows(4, SEGMENT + 1, num_values)
    strengths, of_strengths = room(SEGMENT * len(turns)), room(SEGMENT * len(turns) + LANES)
    of_states, parts = new_tiles(num_groups, num_values, size), room(size)
    states = room(SEGMENT * size).reshape(SEGMENT, size)
    for b in range(first // num_groups, -(-last // num_groups)):
        for g in groups_of(b, num_groups, first, last):
            take_state(of_state, b, g, turns, of_states[g])
            transpose_tiles(of_states[g], turns, of_states[g])
        for s in range(kept.shape[1] - 1, -1, -1):
            start, num_tokens = s * SEGMENT, min(SEGMENT, key.shape[1] - s * SEGMENT)
            for g in groups_of(b, num_groups, first, last):
                _take_keys(query, key, log_decay, b, start, g, turns, keyed)
                take_strengths(strength, b, start, g, turns, strengths)
                of_strengths[:] = _ZERO
                _take_values(new, given, strengths, b, start, g, turns, valued)
                for v in range(0, num_values, LANES):
                    of_tile, height = of_states[g, v // LANES], min(LANES, num_values - v)
                    _recompute(kept[b, s, g, v // LANES], turns, keyed, valued, v, height, num_tokens, states)
                    if start + num_tokens == key.shape[1]:
                        _begin(of_tile, turns, keyed, valued, v, height, num_tokens, parts)
                    _reverse(
                        states, of_tile, turns, keyed, valued, v, height, num_tokens, strengths, of_strengths, parts
                    )
                give(keyed[4, 1:], of_query, b, start, g, turns)
                give(keyed[5, 1:], of_key, b, start, g, turns)
                give(keyed[6, 1:], of_log_decay, b, start, g, turns)
                give(valued[3, 1:], of_value, b, start, g, turns)
                give_strengths(of_strengths, of_strength, b, start, g, turns)
        for g in groups_of(b, num_groups, first, last):
            transpose_tiles(of_states[g], turns, of_states[g])
            give_state(of_states[g], of_state, b, g, turns)


@compiled
def _take_keys(query, key, log_decay, b, start, g, turns, keyed):  # type: ignore[no-untyped-def]
    """Rows of queries, keys, decays as factors and as logarithms, and zeros for the gradients."""
    _take_with_previous(query, b, start, g, turns, keyed[0])
    _take_with_previous(key, b, start, g, turns, keyed[1])
    _take_with_previous(log_decay, b, start, g, turns, keyed[3])
    exponentiate(keyed[3], keyed[2])
    for at in range(4 * keyed[0].size, keyed.size, LANES):
        store(keyed, at, splat(_ZERO))


@compiled
def _take_values(new, given, strengths, b, start, g, turns, valued):  # type: ignore[no-untyped-def]
    """Rows of what was new, what of it was written, and gradients of outputs; those of the new ones come later."""
    _take_with_previous(new, b, start, g, turns, valued[0])
    _take_with_previous(given, b, start, g, turns, valued[2])
    width, size = valued.shape[2], valued[0].size
    for t in range(SEGMENT):
        factor = splat_in_turn(strengths, t * len(turns), turns)
        for at in range((t + 1) * width, (t + 2) * width, LANES):
            store(valued, size + at, multiply(factor, load(valued, at)))


@compiled
def _take_with_previous(source: Any, b: int, start: int, g: int, turns: Any, rows: Any) -> None:
    """Tokens from the one before `start` on; before the first one there are zeros."""
    if start:
        take(source, b, start - 1, g, turns, rows)
    else:
        rows[0] = _ZERO
        take(source, b, start, g, turns, rows[1:])


@compiled
def _recompute(kept_X, turns, keyed, valued, v, height, num_tokens, states_TX):  # type: ignore[no-untyped-def]
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
                row = multiply(key, splat_in_turn(valued, written + j * len(turns), turns))
                row = fma(decay, load(states_TX, before + j * LANES), row)
                store(states_TX, before + size + j * LANES, row)


@compiled
def _begin(of_tile_X, turns, keyed, valued, v, height, row, parts_X):  # type: ignore[no-untyped-def]
    """What the output of the last token, in `row`, gives to the gradient of the state; leaves that of w."""
    width, keys = keyed.shape[2], keyed[0].size
    given = 2 * valued[0].size + row * valued.shape[2] + v
    for k in range(0, width, LANES):
        query, key = load(keyed, row * width + k), load(keyed, keys + row * width + k)
        for j in range(height):
            at = (k + j) * LANES
            of_row = fma(query, splat_in_turn(valued, given + j * len(turns), turns), load(of_tile_X, at))
            store(of_tile_X, at, of_row)
            store(parts_X, at, multiply(key, of_row))
    store(of_tile_X, parts_X.size, _sums(parts_X, turns))


@compiled
def _sums(parts_X: Any, turns: Any) -> Any:
    """Of all key channels, a value channel in each lane."""
    summed, block = totals(parts_X, 0, turns), LANES * (LANES // len(turns))
    for at in range(block, parts_X.size, block):
        summed = add(summed, totals(parts_X, at, turns))
    return summed


@compiled
def _reverse(  # type: ignore[no-untyped-def]
    states_TX, of_tile_X, turns, keyed, valued, v, height, num_tokens, strengths, of_strengths, parts_X
):
    """Tokens from the last to the first in the tile of values from `v` on; tiles add up in gradients of keys."""
    width, keys, decays = keyed.shape[2], keyed[0].size, 2 * keyed[0].size
    step, size = valued.shape[2], valued[0].size
    of_written = load(of_tile_X, parts_X.size)
    for t in range(num_tokens - 1, -1, -1):
        place, new = t * len(turns), (t + 1) * step + v
        written, given, of_new = new + size, new + 2 * size, new + 3 * size
        store(valued, of_new, multiply(splat_in_turn(strengths, place, turns), of_written))
        along_new = total_in_turn(multiply(of_written, load(valued, new)), turns)
        store_first(of_strengths, place, len(turns), add(load(of_strengths, place), along_new))
        along_key = total_in_turn(multiply(load(valued, written), load(valued, given)), turns)
        for k in range(0, width, LANES):
            at = (t + 1) * width + k
            key, decay = load(keyed, keys + at), load(keyed, decays + at)
            query_before, key_before = load(keyed, at - width), load(keyed, keys + at - width)
            by_given, by_new, by_written, of_decay = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
            for j in range(height):
                i, there = j * len(turns), (k + j) * LANES
                row, of_row = load(states_TX, t * parts_X.size + there), load(of_tile_X, there)
                by_given = fma(splat_in_turn(valued, given + i, turns), row, by_given)
                by_new = fma(splat_in_turn(valued, of_new + i, turns), row, by_new)
                by_written = fma(splat_in_turn(valued, written + i, turns), of_row, by_written)
                of_decayed = subtract(of_row, multiply(key, splat_in_turn(valued, of_new + i, turns)))
                of_decay = fma(of_decayed, row, of_decay)
                added = multiply(query_before, splat_in_turn(valued, given - step + i, turns))
                of_row = fma(decay, of_decayed, added)
                store(of_tile_X, there, of_row)
                store(parts_X, there, multiply(key_before, of_row))
            _add_to(keyed, 4 * keys + at, fma(key, along_key, multiply(decay, by_given)))
            _add_to(keyed, 5 * keys + at, subtract(by_written, multiply(decay, by_new)))
            _add_to(keyed, 6 * keys + at, multiply(decay, of_decay))
        of_written = _sums(parts_X, turns)
    store(of_tile_X, parts_X.size, of_written)


@compiled
def _add_to(rows: Any, at: int, numbers: Any) -> None:
    store(rows, at, add(load(rows, at), numbers))
