"""How do heads narrower than a vector share its sixteen lanes? They take turns: lane i G + h is number i of head h.

G heads in turn are to a kernel one head whose numbers are groups of G neighbours: what goes to all lanes is such a
group over and over, and what is summed over lanes is summed for each head. G is the length of a tuple `turns`, which is
part of its type: numba compiles a kernel once for each G, and heads as wide as a vector, G = 1, pay nothing for others.
Vectors are in `vector.py`, sums of many at once in `lanes.totals`.
"""

from collections.abc import Sequence
from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from k3ablate.kernels.vector import LANES, Generate, load_first, store_first, vector

_FLOAT, _INTEGER = ir.FloatType(), ir.IntType(32)
_VECTOR, _INTEGERS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INTEGER, LANES)

compiled = numba.njit(cache=True, nogil=True, error_model="numpy")

# ruff: noqa: ARG001, ARG005 - numba fixes the signatures of intrinsics


def turns_of(width: int) -> tuple[int, ...]:
    """0 to G - 1 for heads of `width` channels: four of them share a vector, or two, or each has its own."""
    return tuple(range(4 if width <= LANES // 4 else 2 if width <= LANES // 2 else 1))


@compiled
def load_in_turn(array: Any, at: int, distance: int, width: int, num_heads: int, turns: Any) -> Any:
    """Up to `width` numbers of each head, one head `distance` behind the other; zeros behind them and the last head.

    Where a head has its own vectors `width` may be more than one of them holds.
    """
    first = load_first(array, at, width)
    if len(turns) == 1:
        return first
    second = load_first(array, at + distance, width if num_heads > 1 else 0)
    if len(turns) == 2:
        return _alternating(first, second)
    third = load_first(array, at + 2 * distance, width if num_heads > 2 else 0)
    fourth = load_first(array, at + 3 * distance, width if num_heads > 3 else 0)
    return _alternating(_alternating(first, third), _alternating(second, fourth))


@compiled
def store_in_turn(array: Any, at: int, distance: int, width: int, num_heads: int, turns: Any, numbers: Any) -> None:
    """The reverse of `load_in_turn`: what is behind the numbers of a head, and absent heads, stay as they are."""
    if len(turns) == 1:
        store_first(array, at, width, numbers)
        return
    even, odd = _evens(numbers), _odds(numbers)
    if len(turns) == 2:
        store_first(array, at, width, even)
        store_first(array, at + distance, width if num_heads > 1 else 0, odd)
        return
    store_first(array, at, width, _evens(even))
    store_first(array, at + distance, width if num_heads > 1 else 0, _evens(odd))
    store_first(array, at + 2 * distance, width if num_heads > 2 else 0, _odds(even))
    store_first(array, at + 3 * distance, width if num_heads > 3 else 0, _odds(odd))


def _splat_in_turn(typing_context: Any, array: Any, offset: Any, turns: Any) -> tuple[Any, Generate]:
    """The G numbers from flat position `offset` of a C-contiguous float32 array, over and over."""
    # A pair is loaded as one number: only then is it a single instruction.
    number = {1: _FLOAT, 2: ir.DoubleType(), 4: ir.VectorType(_FLOAT, 4)}[turns.count]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), number.as_pointer())
        group = builder.load(pointer, align=4)
        if turns.count == 4:
            return builder.shuffle_vector(group, group, ir.Constant(_INTEGERS, [0, 1, 2, 3] * 4))
        size = LANES // turns.count
        nothing = ir.Constant(ir.VectorType(number, size), ir.Undefined)
        first = builder.insert_element(nothing, group, _INTEGER(0))
        zeros = ir.Constant(ir.VectorType(_INTEGER, size), [0] * size)
        return builder.bitcast(builder.shuffle_vector(first, nothing, zeros), _VECTOR)

    return vector(array, types.intp, turns), generate


def _total_in_turn(typing_context: Any, a: Any, turns: Any) -> tuple[Any, Generate]:
    """The sum over the lanes of each head, in all of its lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = arguments[0]
        for distance in (distance for distance in (8, 4, 2, 1) if distance >= turns.count):
            others = _shuffled(builder, [numbers], [lane ^ distance for lane in range(LANES)])
            numbers = builder.fadd(numbers, others)
        return numbers

    return vector(vector, turns), generate


def _alternating_lanes(typing_context: Any, a: Any, b: Any) -> tuple[Any, Generate]:
    """The first eight numbers of both, one of each at a time."""
    lanes = [lane // 2 + LANES * (lane % 2) for lane in range(LANES)]
    return vector(vector, vector), lambda context, builder, signature, two: _shuffled(builder, two, lanes)


def _even_lanes(typing_context: Any, a: Any) -> tuple[Any, Generate]:
    """The numbers of even lanes, and behind them those of odd ones."""
    lanes = [*range(0, LANES, 2), *range(1, LANES, 2)]
    return vector(vector), lambda context, builder, signature, one: _shuffled(builder, one, lanes)


def _odd_lanes(typing_context: Any, a: Any) -> tuple[Any, Generate]:
    """The numbers of odd lanes, and behind them those of even ones."""
    lanes = [*range(1, LANES, 2), *range(0, LANES, 2)]
    return vector(vector), lambda context, builder, signature, one: _shuffled(builder, one, lanes)


def _shuffled(builder: Any, vectors: Sequence[Any], lanes: list[int]) -> Any:
    """Lanes of one vector or of two, those of the second counted on from 16."""
    return builder.shuffle_vector(vectors[0], vectors[-1], ir.Constant(_INTEGERS, lanes))


splat_in_turn: Any = intrinsic(_splat_in_turn)
total_in_turn: Any = intrinsic(_total_in_turn)
_alternating: Any = intrinsic(_alternating_lanes)
_evens: Any = intrinsic(_even_lanes)
_odds: Any = intrinsic(_odd_lanes)
