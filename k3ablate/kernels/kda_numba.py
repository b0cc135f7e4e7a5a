"""How does the KDA recurrence run at the speed of a CPU's cache? Forward in numba, float32; what autograd sees of both.

A head is taken 32 tokens at a time, a segment, and its state 16 value channels at a time, a tile: columns of the state
do not see each other, so a tile is a recurrence of its own that fits the first-level cache. Value channels are the
lanes of a vector, so that recalling and reading are sums over rows. Both are done in the one pass over the state that
decays it and writes to it: a token leaves to the next what the next one's key recalls. With D = exp(log_decay) S the
decayed state: u = value - k D is what is new about the value, S' = D + k (strength u), and the output is q S'. The
values u and the states at the start of each segment are kept for `kda_backward_numba`. Heads of at most 8 channels
share their vectors: "head" reads "group of heads", and a number of a row is one of each (`turns`).

`kda.recurrent_kda` is what this must equal; `kda.kda` chooses between the two. (Batch, head) pairs are shared out over
torch's threads and do not meet, so that their number changes no bit. The heads of a sequence follow each other segment
by segment, as their tokens lie side by side. Compiled code is cached on disk beside this file, or in NUMBA_CACHE_DIR.

Shapes: as in `kda.py`, and S segments, J groups of heads, g one of them, N tiles, X numbers of a tile (`kda_tiles`).
"""

from typing import Any

import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from k3ablate.kernels.head_blocks import whole
from k3ablate.kernels.kda import zero_state
from k3ablate.kernels.kda_backward_numba import backward
from k3ablate.kernels.kda_tiles import (
    SEGMENT,
    compiled,
    exponentiate,
    give,
    give_state,
    groups_of,
    new_rows,
    new_tiles,
    room,
    take,
    take_state,
    take_strengths,
    transpose_tiles,
)
from k3ablate.kernels.threads import share_out
from k3ablate.kernels.turns import splat_in_turn, turns_of
from k3ablate.kernels.vector import LANES, add, fma, load, multiply, splat, store, subtract

_ZERO = numpy.float32(0)


def numba_kda(
    query_BTHK: Tensor,
    key_BTHK: Tensor,
    value_BTHV: Tensor,
    log_decay_BTHK: Tensor,
    write_strength_BTH: Tensor,
    initial_state_BHKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output_BTHV and final_state_BHKV; arguments as in `kda.py`, on the CPU in float32."""
    if initial_state_BHKV is None:
        initial_state_BHKV = zero_state(key_BTHK, value_BTHV)
    output_BTHV, state_BHKV = _NumbaKda.apply(  # type: ignore[no-untyped-call]
        query_BTHK, key_BTHK, value_BTHV, log_decay_BTHK, write_strength_BTH, initial_state_BHKV
    )
    return output_BTHV, state_BHKV


class _NumbaKda(torch.autograd.Function):
    """The kernels behind autograd."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value, log_decay, strength, initial_state = (tensor.contiguous() for tensor in inputs)
        batch, length, num_heads, value_width = value.shape
        turns = turns_of(max(key.shape[3], value_width))
        num_groups, num_tiles = -(-num_heads // len(turns)), whole(value_width, LANES) // LANES
        tile_size = whole(key.shape[3], LANES // len(turns)) * LANES
        kept_BSJNX = value.new_empty(batch, -(-length // SEGMENT), num_groups, num_tiles, tile_size)
        new, output, state = torch.empty_like(value), torch.empty_like(value), initial_state.clone()
        operands = query, key, value, log_decay, strength
        share_out(_forward, batch * num_groups, turns, *operands, state, kept_BSJNX, new, output)
        ctx.save_for_backward(query, key, new, log_decay, strength, kept_BSJNX)
        ctx.turns = turns
        return output, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_output: Tensor, of_final: Tensor) -> tuple[Tensor, ...]:
        *inputs, kept_BSJNX = ctx.saved_tensors
        of_state = of_final.clone(memory_format=torch.contiguous_format)
        gradients = [torch.empty_like(tensor) for tensor in inputs]
        operands = *inputs, kept_BSJNX, of_output.contiguous()
        num_pairs = kept_BSJNX.shape[0] * kept_BSJNX.shape[2]
        share_out(backward, num_pairs, ctx.turns, *operands, of_state, *gradients)
        return *gradients, of_state


@compiled
def _forward(  # type: ignore[no-untyped-def]
    first, last, turns, query, key, value, log_decay, strength, state, kept, new, output
):
    """Pairs from `first` up to `last`; `state` holds the initial states and ends as the final ones."""
    num_keys, num_values, num_groups = key.shape[3], value.shape[3], kept.shape[2]
    keyed, valued = new_rows(4, SEGMENT + 1, num_keys), new_rows(2, SEGMENT, num_values)
    strengths, states = room(SEGMENT * len(turns)), new_tiles(num_groups, num_values, kept.shape[4])
    for b in range(first // num_groups, -(-last // num_groups)):
        for g in groups_of(b, num_groups, first, last):
            take_state(state, b, g, turns, states[g])
        for s in range(kept.shape[1]):
            start = s * SEGMENT
            for g in groups_of(b, num_groups, first, last):
                transpose_tiles(states[g], turns, kept[b, s, g])
                _take_keys(query, key, log_decay, b, start, g, turns, keyed)
                take(value, b, start, g, turns, valued[0])
                take_strengths(strength, b, start, g, turns, strengths)
                num_tokens = min(SEGMENT, key.shape[1] - start)
                for v in range(0, num_values, LANES):
                    if s == 0:
                        _recall(states[g, v // LANES], turns, keyed)
                    _advance(states[g, v // LANES], turns, keyed, valued, v, strengths, num_tokens, num_keys)
                give(valued[0], new, b, start, g, turns)
                give(valued[1], output, b, start, g, turns)
        for g in groups_of(b, num_groups, first, last):
            give_state(states[g], state, b, g, turns)


@compiled
def _take_keys(query, key, log_decay, b, start, g, turns, keyed):  # type: ignore[no-untyped-def]
    """Rows of queries, keys, decays as factors, and keys times decays, which recall; those of the next token also."""
    take(query, b, start, g, turns, keyed[0])
    take(key, b, start, g, turns, keyed[1])
    take(log_decay, b, start, g, turns, keyed[3])
    exponentiate(keyed[3], keyed[2])
    size = keyed[0].size
    for at in range(size, 2 * size, LANES):
        store(keyed, 2 * size + at, multiply(load(keyed, at), load(keyed, size + at)))


@compiled
def _recall(tile_X: Any, turns: Any, keyed: Any) -> None:
    """What the first key recalls of the decayed state."""
    recall, recalls = splat(_ZERO), 3 * keyed[0].size
    for k in range(keyed.shape[2] // len(turns)):
        recall = fma(splat_in_turn(keyed, recalls + k * len(turns), turns), load(tile_X, k * LANES), recall)
    store(tile_X, tile_X.size - LANES, recall)


@compiled
def _advance(tile_X, turns, keyed, valued, v, strengths, num_tokens, num_keys):  # type: ignore[no-untyped-def]
    """Tokens one after the other in the tile of values from `v` on; values become what is new about them."""
    width, size, step = keyed.shape[2], keyed[0].size, len(turns)
    recall = load(tile_X, tile_X.size - LANES)
    for t in range(num_tokens):
        place = t * valued.shape[2] + v
        novel = subtract(load(valued, place), recall)
        store(valued, place, novel)
        written = multiply(splat_in_turn(strengths, t * step, turns), novel)
        # Two sums each, because an addition waits for the one before.
        read, other_read, recall, other_recall = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
        for k in range(0, num_keys, 2):
            at = t * width + k * step
            row = _write(tile_X, k, turns, keyed, at, written)
            read = fma(splat_in_turn(keyed, at, turns), row, read)
            recall = fma(splat_in_turn(keyed, 3 * size + at + width, turns), row, recall)
            row = _write(tile_X, k + 1, turns, keyed, at + step, written)
            other_read = fma(splat_in_turn(keyed, at + step, turns), row, other_read)
            other_recall = fma(splat_in_turn(keyed, 3 * size + at + step + width, turns), row, other_recall)
        store(valued, valued[0].size + place, add(read, other_read))
        recall = add(recall, other_recall)
    store(tile_X, tile_X.size - LANES, recall)


@compiled
def _write(tile_X: Any, k: int, turns: Any, keyed: Any, at: int, written: Any) -> Any:
    """Decay row k of a tile and write to it."""
    keys, decays = keyed[0].size, 2 * keyed[0].size
    added = multiply(splat_in_turn(keyed, keys + at, turns), written)
    row = fma(splat_in_turn(keyed, decays + at, turns), load(tile_X, k * LANES), added)
    store(tile_X, k * LANES, row)
    return row
