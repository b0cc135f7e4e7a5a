"""The loops of Attention Residuals on a CPU in float32: `write_and_read` forwards, `collect` backwards.

Not the definition (`attnres.read_plain` is), not what autograd sees (`attnres_autograd.py` is), and not for other
devices or dtypes. Both go once over the tokens, over all sources of a reader or all readers of a source, and leave
tensors where they are. What takes the time is to fetch a token's rows from beyond the cache: 26 to 33 us for 512 KiB.
Hence rows of many tensors in turns, and those of a few tokens later are asked for early.

For one token, with k = query * key weight of a reader, v a source and r = 1 / rms(v): e = r (k . v), p = softmax(e)
over sources, and the reader gets y = sum p v. For g, the gradient of y, that of a score is de = p (g . v - g . y), so a
source needs of a reader only g, p and the number g . y. Over the readers of a source, with u = sum r de k, its
gradient is dv = sum p g + u - (r^2 / D) (u . v) v; over the sources of a reader and tokens, dk = sum r de v.

Tensors come as addresses, any number of them in one compiled kernel; making arrays of them took as long as a small
read. Tokens are shared out over threads in parts whose number depends on shapes only; sums over the tokens of a part,
in a key's gradient, are added up afterwards, so that the number of threads changes no bit.

Shapes: as in `attnres.py`, and L = 16 tokens of a tile, P parts.
"""

from typing import Any

import numba
import numpy
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from k3ablate.kernels.elementary import exponential
from k3ablate.kernels.vector import LANES, add, fma, load, load_first, splat, store, store_first, total

PAIR = 2 * LANES  # numbers that a loop over channels takes at a time
TOKENS_AHEAD = 4
TOKENS_SUMMED = 128  # one after the other in a key's gradient: float32 sums of thousands lose digits
NUMBERS_OF_PART = 2**16  # of each tensor, at least: fewer are not worth a thread
MOST_PARTS = 32

# Reordered sums become vector code; NaN and infinity keep their meaning, so that a diverged run is seen as one.
compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
# Put into the caller: around a call of its own numba counts references to arrays, for every token.
inlined = numba.njit(error_model="numpy", inline="always")

_ZERO, _ONE = numpy.float32(0), numpy.float32(1)
_FLOAT, _INTEGER = ir.FloatType(), ir.IntType(32)

# ruff: noqa: ARG001 - numba fixes the signatures of intrinsics


def _typed_pointer(typing_context: Any, address: Any) -> Any:
    """An address as a float32 pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _FLOAT.as_pointer())

    return types.CPointer(types.float32)(types.intp), generate  # type: ignore[no-untyped-call]


def _line_ahead(typing_context: Any, address: Any, number: Any) -> Any:
    """Ask for the cache line of a number of those from an address on; it need not exist."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.gep(builder.inttoptr(arguments[0], _FLOAT.as_pointer()), [arguments[1]])
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, *[_INTEGER] * 3])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        for_reading, keep, data = _INTEGER(0), _INTEGER(3), _INTEGER(1)
        builder.call(function, [pointer, for_reading, keep, data])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), generate


_pointer: Any = intrinsic(_typed_pointer)
_prefetch: Any = intrinsic(_line_ahead)


def parts_of(num_tokens: int, width: int) -> tuple[int, int]:
    """How many parts the tokens make, and how many tokens a part has: whole tiles, fewer in the last."""
    wanted = max(1, min(num_tokens * width // NUMBERS_OF_PART, MOST_PARTS))
    tokens = max(1, -(-num_tokens // (wanted * LANES))) * LANES
    return -(-num_tokens // tokens), tokens


@compiled
def write_and_read(
    first: int, last: int, part: int, sources_S2: Any, current: int, output: int, key: int, epsilon: Any,
    num_tokens: int, width: int, mixed: int, weights: int,
) -> None:  # fmt: skip
    """For parts from `first` up to `last`, finish the last source, then mix all of them for one reader.

    A row of `sources` has the addresses of a value, ND, and its scale 1 / rms, N; the last scale is a result, and the
    last value is too, current + output, unless `current` is 0. `mixed` ND and `weights` SN are results.
    """
    num_sources = sources_S2.shape[0]
    value, scale = sources_S2[num_sources - 1, 0], sources_S2[num_sources - 1, 1]
    weights_SL = numpy.zeros((num_sources, LANES), numpy.float32)
    for start in range(first * part, min(last * part, num_tokens), LANES):
        stop = min(start + LANES, num_tokens)
        if current:
            _add(current, output, start * width, stop * width, value)
        for n in range(start, stop):
            _at(scale)[n] = _one_over_rms(value, n * width, width, epsilon)
            for s in range(num_sources):
                product = _dot(sources_S2[s, 0], n * width, key, 0, width)
                weights_SL[s, n - start] = _at(sources_S2[s, 1])[n] * product
        _softmax(weights_SL)
        for n in range(start, stop):
            _mix(sources_S2, weights_SL, n - start, n * width, width, mixed)
            for s in range(num_sources):
                _at(weights)[s * num_tokens + n] = weights_SL[s, n - start]


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
def _mix(sources_S2: Any, weights_SL: Any, lane: int, row: int, width: int, mixed: int) -> None:
    for d in range(0, width, PAIR):
        sums = _zeros()
        for s in range(sources_S2.shape[0]):
            sums = _add_scaled(weights_SL[s, lane], _load(sources_S2[s, 0], row + d, width - d), sums)
        _store(mixed, row + d, width - d, sums)


@compiled
def collect(
    first: int, last: int, part: int, links_R4: Any, mixed: int, value: int, scale: int, keys: int, given: int,
    num_tokens: int, width: int, of_value: int, of_keys_PRD: Any,
) -> None:  # fmt: skip
    """For parts from `first` up to `last`, the gradient of a source, ND, and what that adds to those of readers' keys.

    A row of `links` has the addresses of g of a reader, ND, of its weights for this source and of its products g . y,
    N each, and the reader's number, by which its key is found. `mixed` is y of the first reader, whose products are
    results then; `given` is a gradient of the value that arrives from elsewhere. Both may be 0.
    """
    num_readers = links_R4.shape[0]
    weights_R, of_products_R = numpy.empty((2, num_readers), numpy.float32)
    sums_RD = numpy.empty((num_readers, width), numpy.float32)
    for p in range(first, last):
        of_keys_PRD[p] = _ZERO
        stop = min((p + 1) * part, num_tokens)
        for start in range(p * part, stop, TOKENS_SUMMED):
            sums_RD[:] = _ZERO
            for n in range(start, min(start + TOKENS_SUMMED, stop)):
                row, scale_n = n * width, _at(scale)[n]
                if mixed:
                    _at(links_R4[0, 2])[n] = _dot(mixed, row, links_R4[0, 0], row, width)
                for r in range(num_readers):
                    product = _dot(links_R4[r, 0], row, value, row, width) - _at(links_R4[r, 2])[n]
                    weights_R[r] = _at(links_R4[r, 1])[n]
                    of_products_R[r] = scale_n * weights_R[r] * product
                along_keys = _spread(
                    links_R4, weights_R, of_products_R, row, width, value, keys, given, of_value, sums_RD.ctypes.data
                )
                factor = -scale_n * scale_n / numpy.float32(width) * along_keys
                _add_row(factor, value, of_value, row, width)
            of_keys_PRD[p] += sums_RD


@compiled
def add_up(of_own_keys_PRD: Any, links_R4: Any, of_keys_RD: Any) -> None:
    """Add what `collect` found, part by part, to the gradients of all keys."""
    for p in range(of_own_keys_PRD.shape[0]):
        for r in range(links_R4.shape[0]):
            of_keys_RD[links_R4[r, 3]] += of_own_keys_PRD[p, r]


@inlined
def _spread(
    links_R4: Any, weights_R: Any, of_products_R: Any, row: int, width: int, value: int, keys: int, given: int,
    of_value: int, sums: int,
) -> Any:  # fmt: skip
    """Of one token, dv without its last term, and dk reader by reader, added to `sums`; returns u . v."""
    along = _zeros()
    for d in range(0, width, PAIR):
        count, value_d = width - d, _load(value, row + d, width - d)
        direct, along_keys = _load(given, row + d, count) if given else _zeros(), _zeros()
        for r in range(links_R4.shape[0]):
            key, of_key, of_product = links_R4[r, 3] * width + d, r * width + d, of_products_R[r]
            direct = _add_scaled(weights_R[r], _load(links_R4[r, 0], row + d, count), direct)
            along_keys = _add_scaled(of_product, _load(keys, key, count), along_keys)
            _store(sums, of_key, count, _add_scaled(of_product, value_d, _load(sums, of_key, count)))
        _store(of_value, row + d, count, (add(direct[0], along_keys[0]), add(direct[1], along_keys[1])))
        along = _add_products(along_keys, value_d, along)
    return total(add(along[0], along[1]))


@compiled
def _add_row(factor: Any, a: int, result: int, row: int, width: int) -> None:
    """result += factor * a, of one token."""
    for d in range(row, row + width, PAIR):
        count = row + width - d
        _store(result, d, count, _add_scaled(factor, _load(a, d, count), _load(result, d, count)))


@compiled
def _at(address: int) -> Any:
    """The numbers from an address on. How many there are is not known here: nothing checks an index."""
    return carray(_pointer(address), (1,))


@compiled
def _load(address: int, start: int, count: int) -> Any:
    """A pair of vectors from number `start` on, zeros behind the `count`-th number."""
    if count >= PAIR:
        return load(_at(address), start), load(_at(address), start + LANES)
    return load_first(_at(address), start, count), load_first(_at(address), start + LANES, count - LANES)


@compiled
def _store(address: int, start: int, count: int, pair: Any) -> None:
    """The first `count` numbers of a pair."""
    if count >= PAIR:
        store(_at(address), start, pair[0])
        store(_at(address), start + LANES, pair[1])
    else:
        store_first(_at(address), start, count, pair[0])
        store_first(_at(address), start + LANES, count - LANES, pair[1])


@compiled
def _zeros() -> Any:
    return splat(_ZERO), splat(_ZERO)


@compiled
def _add_scaled(factor: Any, pair: Any, sums: Any) -> Any:
    return fma(splat(factor), pair[0], sums[0]), fma(splat(factor), pair[1], sums[1])


@compiled
def _add_products(a: Any, b: Any, sums: Any) -> Any:
    return fma(a[0], b[0], sums[0]), fma(a[1], b[1], sums[1])


@compiled
def _add(a: int, b: int, start: int, stop: int, result: int) -> None:
    for x in range(start, stop, PAIR):
        _store(result, x, stop - x, _add_scaled(_ONE, _load(a, x, stop - x), _load(b, x, stop - x)))


@compiled
def _dot(a: int, a_start: int, b: int, b_start: int, width: int) -> Any:
    """The product of two rows of `width` numbers; asks for the row that is due in a few tokens at `a`."""
    sums = _zeros()
    for d in range(0, width, PAIR):
        ahead = a_start + d + TOKENS_AHEAD * width
        _prefetch(a, ahead)
        _prefetch(a, ahead + LANES)
        sums = _add_products(_load(a, a_start + d, width - d), _load(b, b_start + d, width - d), sums)
    return total(add(sums[0], sums[1]))


@compiled
def _one_over_rms(value: int, row: int, width: int, epsilon: Any) -> Any:
    return _ONE / numpy.sqrt(_dot(value, row, value, row, width) / numpy.float32(width) + epsilon)
