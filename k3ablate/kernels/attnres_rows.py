"""How do the loops of Attention Residuals go along rows of any number of tensors? By address, two vectors at a time.

A compiled kernel takes as many tensors as it is given addresses of; to make arrays of them took as long as a small
read. What is computed along the rows is in `attnres_numba.py` and `attnres_backward_numba.py`; operations that take a
few tensors get them as arrays, and vectors from `vector.py`.
"""

from typing import Any

import numba
import numpy
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from k3ablate.kernels.vector import LANES, add, fma, load, load_first, multiply, splat, store, store_first, total

PAIR = 2 * LANES  # numbers that a loop over channels takes at a time
TOKENS_AHEAD = 4
NUMBERS_OF_PART = 2**16  # of each tensor, at least: fewer are not worth a thread
MOST_PARTS = 32

# Reordered sums become vector code; NaN and infinity keep their meaning, so that a diverged run is seen as one.
compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
# Put into the caller: around a call of its own numba counts references to arrays, for every token.
inlined = numba.njit(error_model="numpy", inline="always")

ZERO, ONE = numpy.float32(0), numpy.float32(1)
_FLOAT, _INTEGER = ir.FloatType(), ir.IntType(32)

# ruff: noqa: ARG001 - numba fixes the signatures of intrinsics


def parts_of(num_tokens: int, width: int) -> tuple[int, int]:
    """How many parts the tokens make, and how many tokens a part has: whole tiles, fewer in the last."""
    wanted = max(1, min(num_tokens * width // NUMBERS_OF_PART, MOST_PARTS))
    tokens = max(1, -(-num_tokens // (wanted * LANES))) * LANES
    return -(-num_tokens // tokens), tokens


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


@compiled
def at(address: int) -> Any:
    """The numbers from an address on. How many there are is not known here: nothing checks an index."""
    return carray(_pointer(address), (1,))


@compiled
def load_pair(address: int, start: int, count: int) -> Any:
    """A pair of vectors from number `start` on, zeros behind the `count`-th number."""
    if count >= PAIR:
        return load(at(address), start), load(at(address), start + LANES)
    return load_first(at(address), start, count), load_first(at(address), start + LANES, count - LANES)


@compiled
def store_pair(address: int, start: int, count: int, pair: Any) -> None:
    """The first `count` numbers of a pair."""
    if count >= PAIR:
        store(at(address), start, pair[0])
        store(at(address), start + LANES, pair[1])
    else:
        store_first(at(address), start, count, pair[0])
        store_first(at(address), start + LANES, count - LANES, pair[1])


@compiled
def zeros() -> Any:
    """A pair."""
    return splat(ZERO), splat(ZERO)


@compiled
def add_pairs(a: Any, b: Any) -> Any:
    """a + b."""
    return add(a[0], b[0]), add(a[1], b[1])


@compiled
def multiply_pairs(a: Any, b: Any) -> Any:
    """a * b."""
    return multiply(a[0], b[0]), multiply(a[1], b[1])


@compiled
def scaled(factor: Any, pair: Any) -> Any:
    """factor * pair."""
    return multiply(splat(factor), pair[0]), multiply(splat(factor), pair[1])


@compiled
def add_scaled(factor: Any, pair: Any, sums: Any) -> Any:
    """sums + factor * pair."""
    return fma(splat(factor), pair[0], sums[0]), fma(splat(factor), pair[1], sums[1])


@compiled
def add_products(a: Any, b: Any, sums: Any) -> Any:
    """sums + a * b."""
    return fma(a[0], b[0], sums[0]), fma(a[1], b[1], sums[1])


@compiled
def total_of(pair: Any) -> Any:
    """The sum of all its numbers."""
    return total(add(pair[0], pair[1]))


@compiled
def ask_ahead(address: int, start: int, width: int) -> None:
    """Ask for the pair that is due at `start` a few tokens later."""
    ahead = start + TOKENS_AHEAD * width
    _prefetch(address, ahead)
    _prefetch(address, ahead + LANES)


@compiled
def dot(a: int, a_start: int, b: int, b_start: int, width: int) -> Any:
    """The product of two rows of `width` numbers; asks for the row that is due in a few tokens at `a`."""
    sums = zeros()
    for d in range(0, width, PAIR):
        ask_ahead(a, a_start + d, width)
        sums = add_products(load_pair(a, a_start + d, width - d), load_pair(b, b_start + d, width - d), sums)
    return total_of(sums)


@compiled
def add_row(factor: Any, a: int, result: int, row: int, width: int) -> None:
    """result += factor * a, of one token."""
    for d in range(row, row + width, PAIR):
        count = row + width - d
        store_pair(result, d, count, add_scaled(factor, load_pair(a, d, count), load_pair(result, d, count)))
