"""The forward loop of Attention Residuals on a CPU in float32: write to a source, read all of them, normalise.

Not the definition (`attnres.Sources.read` is), not what autograd sees (`attnres_autograd.py` is), and not for other
devices or dtypes; the way back is `attnres_backward_numba.py`. It goes once over the tokens, over all sources of a
reader, and leaves tensors where they are. What takes the time is to fetch a token's rows from beyond the cache: 26 to
33 us for 512 KiB. Hence rows of many tensors in turns, those of a few tokens later asked for early, and the norm while
the mix lies in the cache.

For one token, with k = query * key weight of a reader, v a source and r = 1 / rms(v): e = r (k . v), p = softmax(e)
over sources, y = sum p v. The reader gets w y / rms(y), where w is the weight of its norm.

Tokens are shared out over threads in parts whose number depends on shapes only. Shapes: as in `attnres.py`, and L = 16
tokens of a tile.
"""

from typing import Any

import numpy

from k3ablate.kernels.attnres_rows import (
    ONE,
    PAIR,
    add_pairs,
    add_products,
    add_scaled,
    at,
    compiled,
    dot,
    inlined,
    load_pair,
    multiply_pairs,
    scaled,
    store_pair,
    total_of,
    zeros,
)
from k3ablate.kernels.elementary import exponential
from k3ablate.kernels.vector import LANES


@compiled
def write_and_read(
    first: int, last: int, part: int, sources_S2: Any, current: int, output: int, key: int, epsilon: Any,
    norm_weight: int, norm_epsilon: Any, num_tokens: int, width: int, weights: int, mixed: int, norm_scale: int,
    normalised: int,
) -> None:  # fmt: skip
    """For parts from `first` up to `last`, finish the last source, then mix all of them for one reader and normalise.

    A row of `sources` has the addresses of a value, ND, and its scale 1 / rms, N; the last scale is a result, and the
    last value is too, current + output, unless `current` is 0. `weights` SN, `mixed` ND, its `norm_scale` 1 / rms, N,
    and `normalised` ND are results.
    """
    num_sources = sources_S2.shape[0]
    value, scale = sources_S2[num_sources - 1, 0], sources_S2[num_sources - 1, 1]
    weights_SL = numpy.zeros((num_sources, LANES), numpy.float32)
    for start in range(first * part, min(last * part, num_tokens), LANES):
        stop = min(start + LANES, num_tokens)
        if current:
            _add(current, output, start * width, stop * width, value)
        for n in range(start, stop):
            at(scale)[n] = _one_over_rms(dot(value, n * width, value, n * width, width), width, epsilon)
            for s in range(num_sources):
                product = dot(sources_S2[s, 0], n * width, key, 0, width)
                weights_SL[s, n - start] = at(sources_S2[s, 1])[n] * product
        _softmax(weights_SL)
        for n in range(start, stop):
            squares = _mix(sources_S2, weights_SL, n - start, n * width, width, mixed)
            at(norm_scale)[n] = _one_over_rms(squares, width, norm_epsilon)
            _normalise(at(norm_scale)[n], norm_weight, mixed, n * width, width, normalised)
            for s in range(num_sources):
                at(weights)[s * num_tokens + n] = weights_SL[s, n - start]


@compiled
def _softmax(scores_SL: Any) -> None:
    """In place, lane by lane."""
    top_L, total_L = scores_SL[0].copy(), numpy.zeros(LANES, numpy.float32)
    for s in range(1, scores_SL.shape[0]):
        for lane in range(LANES):
            score = scores_SL[s, lane]
            top_L[lane] = score if score > top_L[lane] else top_L[lane]
    for s in range(scores_SL.shape[0]):
        for lane in range(LANES):
            scores_SL[s, lane] = exponential(scores_SL[s, lane] - top_L[lane])
            total_L[lane] += scores_SL[s, lane]
    for s in range(scores_SL.shape[0]):
        for lane in range(LANES):
            scores_SL[s, lane] /= total_L[lane]


@inlined
def _mix(sources_S2: Any, weights_SL: Any, lane: int, row: int, width: int, mixed: int) -> Any:
    """The mix of one token; returns the sum of its squares."""
    squares = zeros()
    for d in range(0, width, PAIR):
        sums = zeros()
        for s in range(sources_S2.shape[0]):
            sums = add_scaled(weights_SL[s, lane], load_pair(sources_S2[s, 0], row + d, width - d), sums)
        store_pair(mixed, row + d, width - d, sums)
        squares = add_products(sums, sums, squares)
    return total_of(squares)


@compiled
def _normalise(factor: Any, weight: int, mixed: int, row: int, width: int, normalised: int) -> None:
    """factor * weight * mixed, of one token."""
    for d in range(0, width, PAIR):
        count = width - d
        unit = scaled(factor, load_pair(mixed, row + d, count))
        store_pair(normalised, row + d, count, multiply_pairs(unit, load_pair(weight, d, count)))


@compiled
def _add(a: int, b: int, start: int, stop: int, result: int) -> None:
    for x in range(start, stop, PAIR):
        store_pair(result, x, stop - x, add_pairs(load_pair(a, x, stop - x), load_pair(b, x, stop - x)))


@compiled
def _one_over_rms(squares: Any, width: int, epsilon: Any) -> Any:
    return ONE / numpy.sqrt(squares / numpy.float32(width) + epsilon)
