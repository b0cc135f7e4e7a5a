"""How does the KDA recurrence run at the speed of a CPU's cache? Forward in numba, float32; what autograd sees of both.

A head is taken 32 tokens at a time, a segment, and its state 16 value channels at a time, a tile: columns of the state
do not see each other, so a tile is a recurrence of its own that fits the first-level cache. Value channels are the
lanes of a vector, so that recalling and reading are sums over rows. Both are done in the one pass over the state that
decays it and writes to it: a token leaves to the next what the next one's key recalls. With D = exp(log_decay) S the
decayed state: u = value - k D is what is new about the value, S' = D + k (strength u), and the output is q S'. The
values u and the states at the start of each segment are kept for `kda_backward_numba`.

`kda.recurrent_kda` is what this must equal; `kda.kda` chooses between the two. (Batch, head) pairs are shared out over
torch's threads and do not meet, so that their number changes no bit. The heads of a sequence take turns segment by
segment, as their tokens lie side by side. Compiled code is cached on disk beside this file, or in NUMBA_CACHE_DIR.

Shapes: as in `kda.py`, and S segments; N tiles, X numbers of a tile (`kda_tiles`).
"""

from typing import Any

import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from k3ablate.kernels.head_blocks import give, take, whole
from k3ablate.kernels.kda import zero_state
from k3ablate.kernels.kda_backward_numba import backward
from k3ablate.kernels.kda_tiles import (
    SEGMENT,
    compiled,
    exponentiate,
    give_state,
    heads_of,
    new_rows,
    new_tiles,
    take_state,
    transpose_tiles,
)
from k3ablate.kernels.threads import share_out
from k3ablate.kernels.vector import LANES, add, fma, load, multiply, splat, splat_from, store, subtract

_ZERO, _ONE = numpy.float32(0), numpy.float32(1)


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
        num_tiles, tile_size = whole(value_width, LANES) // LANES, whole(key.shape[3], LANES) * LANES
        kept_BSHNX = value.new_empty(batch, -(-length // SEGMENT), num_heads, num_tiles, tile_size)
        new, output, state = torch.empty_like(value), torch.empty_like(value), initial_state.clone()
        operands = query, key, value, log_decay, strength
        share_out(_forward, batch * num_heads, *operands, state, kept_BSHNX, new, output)
        ctx.save_for_backward(query, key, new, log_decay, strength, kept_BSHNX)
        return output, state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_output: Tensor, of_final: Tensor) -> tuple[Tensor, ...]:
        *inputs, kept_BSHNX = ctx.saved_tensors
        of_state = of_final.clone(memory_format=torch.contiguous_format)
        gradients = [*(torch.empty_like(tensor) for tensor in inputs[:4]), torch.zeros_like(inputs[4])]
        num_pairs = of_final.shape[0] * of_final.shape[1]
        share_out(backward, num_pairs, *inputs, kept_BSHNX, of_output.contiguous(), of_state, *gradients)
        return *gradients, of_state


@compiled
def _forward(  # type: ignore[no-untyped-def]
    first, last, query, key, value, log_decay, strength, state, kept, new, output
):
    """Pairs from `first` up to `last`; `state` holds the initial states and ends as the final ones."""
    num_heads, num_keys, num_values = key.shape[2], key.shape[3], value.shape[3]
    keyed, valued = new_rows(4, SEGMENT + 1, num_keys), new_rows(2, SEGMENT, num_values)
    states = new_tiles(num_heads, num_keys, num_values)
    for b in range(first // num_heads, -(-last // num_heads)):
        for h in heads_of(b, num_heads, first, last):
            take_state(state[b, h], states[h])
        for s in range(kept.shape[1]):
            for h in heads_of(b, num_heads, first, last):
                start, stop = s * SEGMENT, min((s + 1) * SEGMENT, key.shape[1])
                transpose_tiles(states[h], kept[b, s, h])
                _take_keys(query, key, log_decay, b, start, h, keyed)
                take(value, b, start, h, _ONE, valued[0], 0)
                for v in range(0, num_values, LANES):
                    if s == 0:
                        _recall(states[h, v // LANES], keyed)
                    _advance(states[h, v // LANES], keyed, valued, v, strength[b, start:stop, h], num_keys)
                give(valued[0], 0, _ONE, new, b, start, h)
                give(valued[1], 0, _ONE, output, b, start, h)
        for h in heads_of(b, num_heads, first, last):
            give_state(states[h], state[b, h])


@compiled
def _take_keys(query, key, log_decay, b, start, h, keyed):  # type: ignore[no-untyped-def]
    """Rows of queries, keys, decays as factors, and keys times decays, which recall; those of the next token also."""
    take(query, b, start, h, _ONE, keyed[0], 0)
    take(key, b, start, h, _ONE, keyed[1], 0)
    take(log_decay, b, start, h, _ONE, keyed[3], 0)
    exponentiate(keyed[3], keyed[2])
    size = keyed[0].size
    for at in range(size, 2 * size, LANES):
        store(keyed, 2 * size + at, multiply(load(keyed, at), load(keyed, size + at)))


@compiled
def _recall(tile_X: Any, keyed: Any) -> None:
    """What the first key recalls of the decayed state."""
    recall, recalls = splat(_ZERO), 3 * keyed[0].size
    for k in range(keyed.shape[2]):
        recall = fma(splat_from(keyed, recalls + k), load(tile_X, k * LANES), recall)
    store(tile_X, tile_X.size - LANES, recall)


@compiled
def _advance(tile_X: Any, keyed: Any, valued: Any, v: int, strength_T: Any, num_keys: int) -> None:
    """Tokens one after the other in the tile of values from `v` on; values become what is new about them."""
    width, size = keyed.shape[2], keyed[0].size
    recall = load(tile_X, tile_X.size - LANES)
    for t in range(strength_T.size):
        place = t * valued.shape[2] + v
        novel = subtract(load(valued, place), recall)
        store(valued, place, novel)
        written = multiply(splat(strength_T[t]), novel)
        # Two sums each, because an addition waits for the one before.
        read, other_read, recall, other_recall = splat(_ZERO), splat(_ZERO), splat(_ZERO), splat(_ZERO)
        for k in range(0, num_keys, 2):
            at = t * width + k
            row = _write(tile_X, k, keyed, at, written)
            read = fma(splat_from(keyed, at), row, read)
            recall = fma(splat_from(keyed, 3 * size + at + width), row, recall)
            row = _write(tile_X, k + 1, keyed, at + 1, written)
            other_read = fma(splat_from(keyed, at + 1), row, other_read)
            other_recall = fma(splat_from(keyed, 3 * size + at + 1 + width), row, other_recall)
        store(valued, valued[0].size + place, add(read, other_read))
        recall = add(recall, other_recall)
    store(tile_X, tile_X.size - LANES, recall)


@compiled
def _write(tile_X: Any, k: int, keyed: Any, at: int, written: Any) -> Any:
    """Decay row k of a tile and write to it."""
    keys, decays = keyed[0].size, 2 * keyed[0].size
    row = fma(splat_from(keyed, decays + at), load(tile_X, k * LANES), multiply(splat_from(keyed, keys + at), written))
    store(tile_X, k * LANES, row)
    return row
