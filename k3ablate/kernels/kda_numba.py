"""How does the KDA recurrence run at the speed of a CPU's cache? Forward and backward in numba, float32.

One (batch, head) pair at a time, and of its state a tile of 16 value channels: columns of the state do not see each
other, so a tile is a recurrence of its own that fits the first-level cache. The state at the start of every segment
of 32 tokens is kept; the backward recomputes the states in between. One thread, by plain loops: runs go side by side
in worker processes. `kda.recurrent_kda` is what this must equal; `kda.kda` chooses between the two.

Compiled code is cached on disk beside this file, or in NUMBA_CACHE_DIR.

Shapes: as in `kda.py`, and P (batch, head) pairs, N tiles of a head, W channels of a tile, S segments.
"""

from typing import Any, TypeAlias

import numba
import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

TILE = 16  # value channels of a tile; a constant, so that loops over it become vector instructions
SEGMENT = 32  # tokens between kept states

Array: TypeAlias = NDArray[numpy.float32]

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
        _forward(*_arrays(*inputs[:5], state_PNKW, kept_PNSKW, output_PNTW))
        ctx.save_for_backward(*inputs[:5], kept_PNSKW)
        return output_PNTW, state_PNKW

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, output_gradient: Tensor, final_gradient: Tensor) -> tuple[Tensor, ...]:
        *inputs, kept_PNSKW = ctx.saved_tensors
        state_gradient = final_gradient.clone(memory_format=torch.contiguous_format)
        gradients = [torch.zeros_like(tensor) for tensor in inputs]
        _backward(*_arrays(*inputs, kept_PNSKW, output_gradient.contiguous(), state_gradient, *gradients))
        return *gradients, state_gradient


def _arrays(*tensors: Tensor) -> list[Array]:
    return [tensor.detach().numpy() for tensor in tensors]


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
    new = numpy.empty(TILE, numpy.float32)
    for t in range(value.shape[0]):
        if t % SEGMENT == 0:
            kept[t // SEGMENT] = state
        _novelty(state, key[t], value[t], retention[t], new)
        _write(state, key[t], retention[t], strength[t], new, state)
        _read(state, query[t], output[t])


@compiled
def _backward(  # type: ignore[no-untyped-def]
    query, key, value, retention, strength, kept, of_output, of_state, of_query, of_key, of_value, of_retention,
    of_strength,
):  # fmt: skip
    """Every pair and tile; `of_x` is the gradient of x. `of_state` is of the final states, then of the initial ones."""
    for p in range(value.shape[0]):
        for n in range(value.shape[1]):
            _backward_tile(
                query[p], key[p], value[p, n], retention[p], strength[p], kept[p, n], of_output[p, n], of_state[p, n],
                of_query[p], of_key[p], of_value[p, n], of_retention[p], of_strength[p],
            )  # fmt: skip


@compiled
def _backward_tile(  # type: ignore[no-untyped-def]
    query, key, value, retention, strength, kept, of_output, of_state, of_query, of_key, of_value, of_retention,
    of_strength,
):  # fmt: skip
    states = numpy.empty((SEGMENT + 1, key.shape[1], TILE), numpy.float32)  # before each token of a segment
    news = numpy.empty((SEGMENT, TILE), numpy.float32)
    for segment in range(kept.shape[0] - 1, -1, -1):
        start = segment * SEGMENT
        stop = min(start + SEGMENT, value.shape[0])
        states[0] = kept[segment]
        for t in range(start, stop):
            r = t - start
            _novelty(states[r], key[t], value[t], retention[t], news[r])
            _write(states[r], key[t], retention[t], strength[t], news[r], states[r + 1])
        for t in range(stop - 1, start - 1, -1):
            r = t - start
            of_strength[t] += _token_backward(
                query[t], key[t], retention[t], strength[t], states[r], news[r], of_output[t], of_state,
                of_query[t], of_key[t], of_value[t], of_retention[t],
            )  # fmt: skip


@compiled
def _novelty(state, key, value, retention, new):  # type: ignore[no-untyped-def]
    """What the value holds beyond what the decayed state recalls for this key."""
    for j in range(TILE):
        new[j] = value[j]
    for i in range(key.shape[0]):
        weight = key[i] * retention[i]
        for j in range(TILE):
            new[j] -= weight * state[i, j]


@compiled
def _write(state, key, retention, strength, new, result):  # type: ignore[no-untyped-def]
    for i in range(key.shape[0]):
        weight = key[i] * strength
        for j in range(TILE):
            result[i, j] = retention[i] * state[i, j] + weight * new[j]


@compiled
def _read(state, query, output):  # type: ignore[no-untyped-def]
    for j in range(TILE):
        output[j] = 0
    for i in range(query.shape[0]):
        for j in range(TILE):
            output[j] += query[i] * state[i, j]


@compiled
def _token_backward(  # type: ignore[no-untyped-def]
    query, key, retention, strength, state, new, of_output, of_state, of_query, of_key, of_value, of_retention
):
    """One token in reverse; returns the gradient of its write strength. `state` is the one before the token."""
    of_written = numpy.zeros(TILE, numpy.float32)
    for i in range(key.shape[0]):
        for j in range(TILE):
            of_state[i, j] += query[i] * of_output[j]
            of_written[j] += key[i] * of_state[i, j]
    of_strength = numpy.float32(0)
    for j in range(TILE):
        of_strength += of_written[j] * new[j]
        of_value[j] = strength * of_written[j]
    for i in range(key.shape[0]):
        of_query_i = numpy.float32(0)
        of_key_i = numpy.float32(0)
        of_retention_i = numpy.float32(0)
        for j in range(TILE):
            decayed = retention[i] * state[i, j]
            written = strength * new[j]
            of_query_i += (decayed + key[i] * written) * of_output[j]
            of_key_i += of_state[i, j] * written - decayed * of_value[j]
            of_decayed = of_state[i, j] - key[i] * of_value[j]
            of_retention_i += of_decayed * state[i, j]
            of_state[i, j] = retention[i] * of_decayed
        of_query[i] += of_query_i
        of_key[i] += of_key_i
        of_retention[i] += of_retention_i
    return of_strength
