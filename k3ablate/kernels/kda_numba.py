"""How does the KDA recurrence run at the speed of a CPU's cache? Forward and backward in numba, float32.

One (batch, head) pair at a time, and of its state a tile of 16 value channels, which are the lanes of a vector: columns
of the state do not see each other, so a tile is a recurrence of its own that fits the first-level cache. The state at
the start of every segment of 32 tokens is kept; the backward recomputes the states in between. Pairs are shared out
over torch's threads and do not meet, so that their number changes no bit. `kda.recurrent_kda` is what this must equal;
`kda.kda` chooses between the two.

Compiled code is cached on disk beside this file, or in NUMBA_CACHE_DIR.

Shapes: as in `kda.py`, and P (batch, head) pairs, N tiles of a head, W channels of a tile, S segments.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

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
    batch, length, num_heads, value_width = value_BTHV.shape
    if initial_state_BHKV is None:
        initial_state_BHKV = value_BTHV.new_zeros(batch, num_heads, key_BTHK.shape[-1], value_width)
    output_PNTW, state_PNKW = _NumbaKda.apply(  # type: ignore[no-untyped-call]
        _pairs(query_BTHK),
        _pairs(key_BTHK),
        _tiles(_pairs(value_BTHV)),
        _pairs(log_decay_BTHK).exp(),
        _pairs(write_strength_BTH[..., None])[..., 0],
        _tiles(initial_state_BHKV.flatten(0, 1)),
    )
    output_PTV, state_PKV = (_untiled(tensor, value_width) for tensor in (output_PNTW, state_PNKW))
    output_BHTV = output_PTV.reshape(batch, num_heads, length, value_width)
    return output_BHTV.transpose(1, 2), state_PKV.reshape_as(initial_state_BHKV)


def _pairs(tensor_BTHX: Tensor) -> Tensor:
    """BTHX -> PTX: a pair's tokens one after the other."""
    return tensor_BTHX.transpose(1, 2).flatten(0, 1)


def _tiles(tensor_PXV: Tensor) -> Tensor:
    """PXV -> PNXW, with channels of zeros up to whole tiles; they stay zero."""
    padded = functional.pad(tensor_PXV, (0, -tensor_PXV.shape[-1] % TILE))
    num_pairs, length, width = padded.shape
    return padded.view(num_pairs, length, width // TILE, TILE).transpose(1, 2)


def _untiled(tensor_PNXW: Tensor, value_width: int) -> Tensor:
    return tensor_PNXW.transpose(1, 2).flatten(2)[..., :value_width]


class _NumbaKda(torch.autograd.Function):
    """The kernels behind autograd. Takes the retention exp(log_decay) and returns its gradient."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        inputs = tuple(tensor.contiguous() for tensor in inputs)
        value_PNTW, initial_PNKW = inputs[2], inputs[5]
        num_pairs, num_tiles, length, _ = value_PNTW.shape
        kept_PNSKW = value_PNTW.new_empty(num_pairs, num_tiles, -(-length // SEGMENT), *initial_PNKW.shape[2:])
        output_PNTW, state_PNKW = torch.empty_like(value_PNTW), initial_PNKW.clone()
        _share_out(_forward, *inputs[:5], state_PNKW, kept_PNSKW, output_PNTW)
        ctx.save_for_backward(*inputs[:5], kept_PNSKW)
        return output_PNTW, state_PNKW

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_gradient: Tensor, final_gradient: Tensor) -> tuple[Tensor, ...]:
        *inputs, kept_PNSKW = ctx.saved_tensors
        state_gradient = final_gradient.clone(memory_format=torch.contiguous_format)
        gradients = [torch.zeros_like(tensor) for tensor in inputs]
        _share_out(_backward, *inputs, kept_PNSKW, output_gradient.contiguous(), state_gradient, *gradients)
        return *gradients, state_gradient


def _share_out(kernel: Callable[..., None], *tensors: Tensor) -> None:
    """Call `kernel` on parts of the pairs, one part for each of torch's threads."""
    parts = zip(*(tensor.detach().chunk(torch.get_num_threads()) for tensor in tensors), strict=True)
    arrays = [[tensor.numpy() for tensor in part] for part in parts]
    if len(arrays) == 1:
        kernel(*arrays[0])
        return
    with ThreadPoolExecutor(len(arrays)) as threads:  # the compiled code holds no lock
        for call in [threads.submit(kernel, *part) for part in arrays]:
            call.result()


@compiled
def _forward(query, key, value, retention, strength, state, kept, output):  # type: ignore[no-untyped-def]
    """Every pair and tile; `state` holds the initial states and ends as the final ones."""
    for p in range(value.shape[0]):
        for n in range(value.shape[1]):
            _forward_tile(
                query[p], key[p], value[p, n], retention[p], strength[p], state[p, n], kept[p, n], output[p, n]
            )


@compiled
def _forward_tile(query, key, value, retention, strength, state, kept, output):  # type: ignore[no-untyped-def]
    for t in range(value.shape[0]):
        if t % SEGMENT == 0:
            kept[t // SEGMENT] = state
        new = _novelty(state, key[t], load(value, t * TILE), retention[t])
        store(output, t * TILE, _write(state, key[t], retention[t], strength[t], new, state, query[t]))


@compiled
def _backward(  # type: ignore[no-untyped-def]
    query, key, value, retention, strength, kept, of_output, of_state, of_query, of_key, of_value, of_retention,
    of_strength,
):  # fmt: skip
    """Every pair and tile; `of_x` is the gradient of x. `of_state` is of the final states, then of the initial ones."""
    states = numpy.empty((SEGMENT + 1, key.shape[2], TILE), numpy.float32)  # before each token of a segment
    news = numpy.empty((SEGMENT, TILE), numpy.float32)
    for p in range(value.shape[0]):
        for n in range(value.shape[1]):
            for segment in range(kept.shape[2] - 1, -1, -1):
                start, stop = segment * SEGMENT, min((segment + 1) * SEGMENT, value.shape[2])
                states[0] = kept[p, n, segment]
                _recompute(
                    query[p, start:stop], key[p, start:stop], value[p, n, start:stop], retention[p, start:stop],
                    strength[p, start:stop], states, news,
                )  # fmt: skip
                for t in range(stop - 1, start - 1, -1):
                    r = t - start
                    of_strength[p, t] += _token_backward(
                        query[p, t], key[p, t], retention[p, t], strength[p, t], states[r], states[r + 1], news[r],
                        of_output[p, n, t], of_state[p, n],
                        of_query[p, t], of_key[p, t], of_value[p, n, t], of_retention[p, t],
                    )  # fmt: skip


@compiled
def _recompute(query, key, value, retention, strength, states, news):  # type: ignore[no-untyped-def]
    """States and novelties of one segment again."""
    for t in range(value.shape[0]):
        new = _novelty(states[t], key[t], load(value, t * TILE), retention[t])
        store(news, t * TILE, new)
        _write(states[t], key[t], retention[t], strength[t], new, states[t + 1], query[t])


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
    query, key, retention, strength, state, next_state, new, of_output, of_state, of_query, of_key, of_value,
    of_retention,
):  # fmt: skip
    """One token in reverse; returns the gradient of its write strength. `state` is the one before the token."""
    given = load(of_output, 0)
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
