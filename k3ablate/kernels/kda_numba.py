"""How does the KDA recurrence run at the speed of a CPU's cache? Forward and backward in numba, float32.

One (batch, head) pair at a time, and of its state a tile of 16 value channels, which are the lanes of a vector: columns
of the state do not see each other, so a tile is a recurrence of its own that fits the first-level cache. The state at
the start of every segment of 32 tokens is kept; the backward recomputes the states in between. Operands stay as models
have them, tokens before heads: rearranging them took as long as the recurrence. Pairs are shared out over torch's
threads and do not meet, so that their number changes no bit. `kda.recurrent_kda` is what this must equal; `kda.kda`
chooses between the two.

Compiled code is cached on disk beside this file, or in NUMBA_CACHE_DIR.

Shapes: as in `kda.py`, and P (batch, head) pairs, N tiles of a head, W channels of a tile, S segments.
"""

from typing import Any

import numba
import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from k3ablate.kernels.kda import zero_state
from k3ablate.kernels.threads import share_out
from k3ablate.kernels.vector import LANES, fma, load, multiply, splat, store, total

TILE = LANES  # value channels of a tile
SEGMENT = 32  # tokens between kept states

# Reordered sums vectorise; NaN and infinity keep their meaning, so that a diverged run is seen as one.
compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


def numba_kda(
    query_BTHK: Tensor,
    key_BTHK: Tensor,
    value_BTHV: Tensor,
    log_decay_BTHK: Tensor,
    write_strength_BTH: Tensor,
    initial_state_BHKV: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output_BTHV and final_state_BHKV; arguments as in `kda.py`, on the CPU in float32."""
    value_width = value_BTHV.shape[-1]
    if initial_state_BHKV is None:
        initial_state_BHKV = zero_state(key_BTHK, value_BTHV)
    output_BTHV, state_BHKV = _NumbaKda.apply(  # type: ignore[no-untyped-call]
        query_BTHK,
        key_BTHK,
        _whole_tiles(value_BTHV),
        log_decay_BTHK.exp(),
        write_strength_BTH,
        _whole_tiles(initial_state_BHKV),
    )
    return output_BTHV[..., :value_width], state_BHKV[..., :value_width]


def _whole_tiles(tensor: Tensor) -> Tensor:
    """[..., V] with channels of zeros up to whole tiles; they stay zero."""
    missing = -tensor.shape[-1] % TILE
    return functional.pad(tensor, (0, missing)) if missing else tensor


class _NumbaKda(torch.autograd.Function):
    """The kernels behind autograd. Takes the retention exp(log_decay) and returns its gradient."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        inputs = tuple(tensor.contiguous() for tensor in inputs)
        value_BTHV, initial_BHKV = inputs[2], inputs[5]
        batch, length, num_heads, value_width = value_BTHV.shape
        kept_PNSKW = value_BTHV.new_empty(
            batch * num_heads, value_width // TILE, -(-length // SEGMENT), initial_BHKV.shape[2], TILE
        )
        output_BTHV, state_BHKV = torch.empty_like(value_BTHV), initial_BHKV.clone()
        share_out(_forward, batch * num_heads, *inputs[:5], state_BHKV, kept_PNSKW, output_BTHV)
        ctx.save_for_backward(*inputs[:5], kept_PNSKW)
        return output_BTHV, state_BHKV

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_gradient: Tensor, final_gradient: Tensor) -> tuple[Tensor, ...]:
        *inputs, kept_PNSKW = ctx.saved_tensors
        num_pairs = inputs[0].shape[0] * inputs[0].shape[2]
        state_gradient = final_gradient.clone(memory_format=torch.contiguous_format)
        gradients = [torch.zeros_like(tensor) for tensor in inputs]
        share_out(_backward, num_pairs, *inputs, kept_PNSKW, output_gradient.contiguous(), state_gradient, *gradients)
        return *gradients, state_gradient


@compiled
def _forward(first, last, query, key, value, retention, strength, state, kept, output):  # type: ignore[no-untyped-def]
    """Pairs from `first` up to `last`; `state` holds the initial states and ends as the final ones."""
    num_heads, key_width = key.shape[2:]
    tile = numpy.empty((key_width, TILE), numpy.float32)
    for p in range(first, last):
        b, h = p // num_heads, p % num_heads
        for n in range(kept.shape[1]):
            start, stop = n * TILE, (n + 1) * TILE
            tile[:] = state[b, h, :, start:stop]
            for t in range(value.shape[1]):
                if t % SEGMENT == 0:
                    kept[p, n, t // SEGMENT] = tile
                decay, row = retention[b, t, h], key[b, t, h]
                new = _novelty(tile, row, load(value[b, t, h], start), decay)
                read = _write(tile, row, decay, strength[b, t, h], new, tile, query[b, t, h])
                store(output[b, t, h], start, read)
            state[b, h, :, start:stop] = tile


@compiled
def _backward(  # type: ignore[no-untyped-def]
    first, last, query, key, value, retention, strength, kept, of_output, of_state, of_query, of_key, of_value,
    of_retention, of_strength,
):  # fmt: skip
    """Pairs from `first` up to `last`; `of_x` is the gradient of x, that of the state first of the final one."""
    num_heads, key_width = key.shape[2:]
    states = numpy.empty((SEGMENT + 1, key_width, TILE), numpy.float32)  # before each token of a segment
    news = numpy.empty((SEGMENT, TILE), numpy.float32)
    of_tile = numpy.empty((key_width, TILE), numpy.float32)
    for p in range(first, last):
        b, h = p // num_heads, p % num_heads
        for n in range(kept.shape[1]):
            column = n * TILE
            of_tile[:] = of_state[b, h, :, column : column + TILE]
            for segment in range(kept.shape[2] - 1, -1, -1):
                start, stop = segment * SEGMENT, min((segment + 1) * SEGMENT, value.shape[1])
                states[0] = kept[p, n, segment]
                for t in range(start, stop):
                    r, row, decay = t - start, key[b, t, h], retention[b, t, h]
                    new = _novelty(states[r], row, load(value[b, t, h], column), decay)
                    store(news, r * TILE, new)
                    _write(states[r], row, decay, strength[b, t, h], new, states[r + 1], query[b, t, h])
                for t in range(stop - 1, start - 1, -1):
                    r = t - start
                    of_strength[b, t, h] += _token_backward(
                        query[b, t, h], key[b, t, h], retention[b, t, h], strength[b, t, h],
                        states[r], states[r + 1], news[r], load(of_output[b, t, h], column), of_tile,
                        of_query[b, t, h], of_key[b, t, h], of_value[b, t, h, column : column + TILE],
                        of_retention[b, t, h],
                    )  # fmt: skip
            of_state[b, h, :, column : column + TILE] = of_tile


@compiled
def _novelty(state, key, value, retention):  # type: ignore[no-untyped-def]
    """What the value vector holds beyond what the decayed state recalls for this key."""
    new = value
    for i in range(key.shape[0]):
        new = fma(splat(-key[i] * retention[i]), load(state, i * TILE), new)
    return new


@compiled
def _write(state, key, retention, strength, new, result, query):  # type: ignore[no-untyped-def]
    """Decay and write into `result`, which may be `state`; returns what the query reads there."""
    output = splat(numpy.float32(0))
    for i in range(key.shape[0]):
        decayed = multiply(splat(retention[i]), load(state, i * TILE))
        row = fma(splat(key[i] * strength), new, decayed)
        store(result, i * TILE, row)
        output = fma(splat(query[i]), row, output)
    return output


@compiled
def _token_backward(  # type: ignore[no-untyped-def]
    query, key, retention, strength, state, next_state, new, given, of_state, of_query, of_key, of_value,
    of_retention,
):  # fmt: skip
    """One token in reverse; returns the gradient of its write strength.

    `state` is the one before the token, `given` the gradient of its output.
    """
    of_written = splat(numpy.float32(0))
    for i in range(key.shape[0]):
        of_row = fma(splat(query[i]), given, load(of_state, i * TILE))
        store(of_state, i * TILE, of_row)
        of_written = fma(splat(key[i]), of_row, of_written)
    written = multiply(splat(strength), load(new, 0))
    of_new = multiply(splat(strength), of_written)
    store(of_value, 0, of_new)
    for i in range(key.shape[0]):
        row, of_row = load(state, i * TILE), load(of_state, i * TILE)
        of_decayed = fma(splat(-key[i]), of_new, of_row)
        recalled = multiply(splat(-retention[i]), row)
        of_query[i] += total(multiply(load(next_state, i * TILE), given))
        of_key[i] += total(fma(of_row, written, multiply(recalled, of_new)))
        of_retention[i] += total(multiply(of_decayed, row))
        store(of_state, i * TILE, multiply(splat(retention[i]), of_decayed))
    return total(multiply(of_written, load(new, 0)))
