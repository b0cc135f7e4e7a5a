"""How does causal softmax attention run at the speed of a CPU's cache? Forward and backward in numba, float32.

Not the definition (`causal_attention.causal_attention_plain` is). A block of 32 queries meets all keys up to its own.
Queries are the lanes of a vector: maxima and sums of a softmax then never cross lanes. Scores are products with the
transposed block, and the mask costs something in the last rows only. Of a softmax its largest score and 1 / its sum are
kept; the backward computes the weights again, 64 keys at a time. Operands stay as models have them, in any strides; a
head's keys and values are packed once. (Batch, head) pairs are shared out over torch's threads and do not meet, so that
their number changes no bit.

With k' = k log2(e) / sqrt(K), s = q k', m the largest s of a query, w = 2^(s - m), l the sum of its w, o its output,
and g' the gradient of o divided by l: o = sum w v / l, dv = sum w g', and with u = w (v g' - o g'):
dq = log(2) sum u k', dk = sum u q / sqrt(K). NaN is never the largest score, but its weight is NaN: a diverged run is
seen as one.

On one core with AVX-512, up to 1,024 tokens, forward and backward took 0.4 to 0.5 of torch's time with heads of 8
channels, 0.5 with 32, 0.7 with 128 and 0.8 with 256; at 8,192 tokens 0.6 with 8 and 0.9 with 32, at 4,096 as much as
torch with 128. So no shape is left to torch. Rescaling sums chunk by chunk instead of keeping all scores of a block
gained nothing but at 4,096 tokens with 128 channels, a seventh of the forward.

Shapes: as in `causal_attention.py`, and Q queries of a block, D channels, P (batch, head) pairs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy
import torch
from numba.core import types
from torch import Tensor
from torch.autograd.function import once_differentiable

from k3ablate.kernels.elementary import powers_of_two
from k3ablate.kernels.head_blocks import (
    QUERIES,
    give,
    new_block,
    scale_rows,
    take,
    take_block,
    to_columns,
    to_rows,
    whole,
    zeros,
)
from k3ablate.kernels.products import matrix_product
from k3ablate.kernels.threads import share_out
from k3ablate.kernels.vector import (
    LANES,
    add,
    divide,
    fma,
    from_lane,
    load,
    multiply,
    splat,
    store,
    subtract,
    where_less,
)

CHUNK = 2 * QUERIES  # keys whose weights the backward keeps in the first-level cache; whole blocks

_ZERO, _ONE, _LOWEST = numpy.float32(0), numpy.float32(1), numpy.float32(-numpy.inf)
_LOG_2 = numpy.float32(numpy.log(2))

# One compiled form for operands of any strides: (first, last, four operands, what is kept, results).
_OPERAND, _KEPT = types.Array(types.float32, 4, "A"), types.Array(types.float32, 4, "C")
_FORWARD = types.void(types.intp, types.intp, *[_OPERAND] * 4, _KEPT, _OPERAND)
_BACKWARD = types.void(types.intp, types.intp, *[_OPERAND] * 4, _KEPT, *[_OPERAND] * 6)

compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})


@compiled
def _scale(width: int) -> Any:
    return numpy.float32(1 / numpy.sqrt(width))


@compiled
def _pack(key: Any, shared: Any, value: Any, b: int, g: int, keys: Any, values: Any) -> None:
    """A head's keys, multiplied so that scores are exponents of two, and its values."""
    factor = _scale(keys.shape[1]) / _LOG_2
    take(key, b, 0, g, factor, keys, 0)
    take(shared, b, 0, 0, factor, keys, key.shape[3])
    take(value, b, 0, g, _ONE, values, 0)


@compiled
def _hide_future(scores_NQ: Any, first: int) -> None:
    """Row `first` is the key of the block's first query, and so on."""
    for j in range(QUERIES):
        for i in range(0, QUERIES, LANES):
            at = (first + j) * QUERIES + i
            store(scores_NQ, at, from_lane(j - i, load(scores_NQ, at), splat(_LOWEST)))


@compiled
def _largest(scores_NQ: Any, i: int) -> Any:
    """Of each lane from `i` on; two rows at a time, because each comparison waits for the one before."""
    even, odd = splat(_LOWEST), splat(_LOWEST)
    for j in range(0, scores_NQ.shape[0], 2):
        score, next_score = load(scores_NQ, j * QUERIES + i), load(scores_NQ, (j + 1) * QUERIES + i)
        even, odd = where_less(even, score, score, even), where_less(odd, next_score, next_score, odd)
    return where_less(even, odd, odd, even)


@compiled
def _into_weights(scores_NQ: Any, largest_T: Any, inverse_T: Any, start: int) -> None:
    """Scores become 2^(score - largest) in place; fills the largest ones and 1 / sums of the queries from `start`."""
    for i in range(0, QUERIES, LANES):
        largest, total = _largest(scores_NQ, i), splat(_ZERO)
        for j in range(scores_NQ.shape[0]):
            weight = powers_of_two(subtract(load(scores_NQ, j * QUERIES + i), largest))
            store(scores_NQ, j * QUERIES + i, weight)
            total = add(total, weight)
        store(largest_T, start + i, largest)
        store(inverse_T, start + i, divide(splat(_ONE), total))


@numba.njit(_FORWARD, cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _forward(first: int, last: int, query: Any, key: Any, shared: Any, value: Any, kept: Any, output: Any) -> None:
    """(Batch, head) pairs from `first` up to `last`; `kept` gets largest scores and 1 / sums."""
    length, num_heads, width = query.shape[1:]
    keys, values = zeros(kept.shape[3], width), zeros(kept.shape[3], value.shape[3])
    weights = zeros(kept.shape[3], QUERIES)
    queries, outputs = new_block(width), new_block(value.shape[3])
    for p in range(first, last):
        b, h = p // num_heads, p % num_heads
        _pack(key, shared, value, b, h * key.shape[2] // num_heads, keys, values)
        for start in range(0, length, QUERIES):
            stop = start + QUERIES
            num_rows = take_block(query, b, start, h, queries)
            to_columns(queries)
            matrix_product(keys[:stop], queries.columns, weights[:stop], False)
            _hide_future(weights, start)
            _into_weights(weights[:stop], kept[0, b, h], kept[1, b, h], start)
            matrix_product(values[:stop].T, weights[:stop], outputs.columns, False)
            to_rows(outputs)
            scale_rows(outputs, kept[1, b, h], start, num_rows)
            give(outputs.rows, 0, _ONE, output, b, start, h)


@compiled
def _inner_products(a_DQ: Any, b_DQ: Any, sums_Q: Any) -> None:
    """Of each query's two vectors."""
    for i in range(0, QUERIES, LANES):
        total = splat(_ZERO)
        for d in range(a_DQ.shape[0]):
            total = fma(load(a_DQ, d * QUERIES + i), load(b_DQ, d * QUERIES + i), total)
        store(sums_Q, i, total)


@compiled
def _into_score_gradients(scores_NQ: Any, of_weights_NQ: Any, largest_T: Any, start: int, means_Q: Any) -> None:
    """In place, scores become weights and gradients of weights those of scores."""
    for i in range(0, QUERIES, LANES):
        largest, mean = load(largest_T, start + i), load(means_Q, i)
        for at in range(i, scores_NQ.size, QUERIES):
            weight = powers_of_two(subtract(load(scores_NQ, at), largest))
            store(scores_NQ, at, weight)
            store(of_weights_NQ, at, multiply(weight, subtract(load(of_weights_NQ, at), mean)))


class Head(NamedTuple):
    """Keys and values of a head, packed, and their gradients as far as they are summed."""

    keys: Any
    values: Any
    of_keys: Any
    of_values: Any


@compiled
def _block_backward(
    head: Any, queries: Any, givens: Any, means_Q: Any, largest_T: Any, start: int, weights: Any, of_scores: Any,
    of_queries: Any,
) -> None:  # fmt: skip
    """One block of queries; `weights` and `of_scores` are room for a chunk."""
    for here in range(0, start + QUERIES, CHUNK):
        stop = min(here + CHUNK, start + QUERIES)
        weights_NQ, of_scores_NQ = weights[: stop - here], of_scores[: stop - here]
        matrix_product(head.keys[here:stop], queries.columns, weights_NQ, False)
        matrix_product(head.values[here:stop], givens.columns, of_scores_NQ, False)
        if stop > start:
            _hide_future(weights_NQ, start - here)
        _into_score_gradients(weights_NQ, of_scores_NQ, largest_T, start, means_Q)
        matrix_product(head.keys[here:stop].T, of_scores_NQ, of_queries.columns, here > 0)
        matrix_product(of_scores_NQ, queries.rows, head.of_keys[here:stop], True)
        matrix_product(weights_NQ, givens.rows, head.of_values[here:stop], True)


@numba.njit(_BACKWARD, cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _backward(
    first: int, last: int, query: Any, key: Any, shared: Any, value: Any, kept: Any, output: Any, given: Any,
    of_query: Any, of_key: Any, of_shared: Any, of_value: Any,
) -> None:  # fmt: skip
    """(Batch, key head) pairs from `first` up to `last`; `of_shared` has a gradient for each key head."""
    width, value_width = query.shape[3], value.shape[3]
    num_keys, num_groups, repeats = kept.shape[3], key.shape[2], query.shape[2] // key.shape[2]
    weights, of_scores, means_Q = zeros(CHUNK, QUERIES), zeros(CHUNK, QUERIES), zeros(1, QUERIES)[0]
    queries, of_queries = new_block(width), new_block(width)
    givens, outputs = new_block(value_width), new_block(value_width)
    of_keys, of_values = zeros(num_keys, whole(width, LANES)), zeros(num_keys, whole(value_width, LANES))
    head = Head(zeros(num_keys, width), zeros(num_keys, value_width), of_keys, of_values)
    for p in range(first, last):
        b, g = p // num_groups, p % num_groups
        _pack(key, shared, value, b, g, head.keys, head.values)
        of_keys[:], of_values[:] = _ZERO, _ZERO
        for h in range(g * repeats, (g + 1) * repeats):
            for start in range(0, query.shape[1], QUERIES):
                num_rows = take_block(query, b, start, h, queries)
                take_block(given, b, start, h, givens)
                take_block(output, b, start, h, outputs)
                scale_rows(givens, kept[1, b, h], start, num_rows)
                to_columns(queries)
                to_columns(givens)
                to_columns(outputs)
                _inner_products(givens.columns, outputs.columns, means_Q)
                _block_backward(head, queries, givens, means_Q, kept[0, b, h], start, weights, of_scores, of_queries)
                to_rows(of_queries)
                give(of_queries.rows, 0, _LOG_2, of_query, b, start, h)
        give(of_keys, 0, _scale(width), of_key, b, 0, g)
        give(of_keys, key.shape[3], _scale(width), of_shared, b, 0, g)
        give(of_values, 0, _ONE, of_value, b, 0, g)


class _NumbaAttention(torch.autograd.Function):
    """The kernels behind autograd."""

    @staticmethod
    def forward(ctx: Any, largest_H: Tensor | None, *operands: Tensor) -> Tensor:
        query, key, shared, value = (_channels_together(operand) for operand in operands)
        batch, length, num_heads, _ = query.shape
        output = query.new_empty(batch, length, num_heads, value.shape[3])
        kept = query.new_empty(2, batch, num_heads, -(-length // QUERIES) * QUERIES)
        share_out(_forward, batch * num_heads, query, key, shared, value, kept, output)
        if largest_H is not None and output.numel():
            torch.maximum(largest_H, kept[0, :, :, :length].amax((0, 2)) * float(_LOG_2), out=largest_H)
        ctx.save_for_backward(query, key, shared, value, kept, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        query, key, shared, value, *_ = saved = ctx.saved_tensors  # once: activation checkpointing allows no more
        batch, length, num_groups, _ = key.shape
        of_query, of_key, of_value = (operand.new_empty(operand.shape) for operand in (query, key, value))
        of_shared = key.new_empty(batch, length, num_groups, shared.shape[3])
        gradients = of_query, of_key, of_shared, of_value
        share_out(_backward, batch * num_groups, *saved, _channels_together(given), *gradients)
        return None, of_query, of_key, of_shared.sum(dim=2, keepdim=True), of_value


def _channels_together(operand: Tensor) -> Tensor:
    """Channels next to each other, however tokens and heads lie."""
    return operand if operand.stride(-1) == 1 else operand.contiguous()


def numba_causal_attention(
    query_BTHK: Tensor,
    key_BTGN: Tensor,
    value_BTGV: Tensor,
    shared_key_BT1P: Tensor | None = None,
    largest_H: Tensor | None = None,
) -> Tensor:
    """`causal_attention.causal_attention` for float32 on a CPU."""
    if shared_key_BT1P is None:
        shared_key_BT1P = query_BTHK.new_empty(*query_BTHK.shape[:2], 1, 0)
    apply: Callable[..., Tensor] = _NumbaAttention.apply
    return apply(largest_H, query_BTHK, key_BTGN, shared_key_BT1P, value_BTGV)
