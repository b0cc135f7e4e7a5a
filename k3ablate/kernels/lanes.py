"""How does a numba kernel look into the sixteen lanes of a vector? The largest, bounds, sums, whole numbers.

For searching, counting and many sums at once; arithmetic, loads, stores and the sum of one vector are in `vector.py`.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from k3ablate.kernels.vector import LANES, Generate, vector

_FLOAT, _VECTOR = ir.FloatType(), ir.VectorType(ir.FloatType(), LANES)
_INTEGERS = ir.VectorType(ir.IntType(32), LANES)

# ruff: noqa: ARG001 - numba fixes the signatures of intrinsics


def _highest(typing_context: Any, a: Any) -> tuple[Any, Generate]:
    """The largest number, of lanes that are all numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, name = ir.FunctionType(_FLOAT, [_VECTOR]), f"llvm.vector.reduce.fmax.v{LANES}f32"
        function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
        return builder.call(function, arguments, fastmath=("nnan",))

    return types.float32(vector), generate


def _lanes_at_least(typing_context: Any, a: Any, b: Any) -> tuple[Any, Generate]:
    """Bit i is set where a >= b in lane i."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(builder.fcmp_ordered(">=", *arguments), ir.IntType(LANES))
        return builder.zext(bits, ir.IntType(64))

    return types.int64(vector, vector), generate


def _first_lane(typing_context: Any, bits: Any) -> tuple[Any, Generate]:
    """The number of the lowest bit that is set, of one at least."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


def _store_whole(typing_context: Any, array: Any, offset: Any, a: Any) -> tuple[Any, Generate]:
    """Write the numbers without their fractions at flat position `offset` of a C-contiguous int32 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), _INTEGERS.as_pointer())
        builder.store(builder.fptosi(arguments[2], _INTEGERS), pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


def _totals(typing_context: Any, array: Any, offset: Any, turns: Any) -> tuple[Any, Generate]:
    """Sums over 16 / G vectors that follow each other from flat position `offset` of a float32 array.

    In lane i G + h stands what vector i has in the lanes of head h (`turns`); with G = 1, all of it. Halves of two
    vectors change places and are added, up to four times over: a fourth of the work of 16 single sums.
    """
    num_rows = LANES // turns.count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        first = builder.bitcast(builder.gep(data, [arguments[1]]), _VECTOR.as_pointer())
        rows = [builder.load(builder.gep(first, [ir.IntType(32)(row)]), align=4) for row in range(num_rows)]
        while len(rows) > 1:
            distance = LANES // 2 * len(rows) // num_rows
            kept = [lane if not lane & distance else lane + LANES for lane in range(LANES)]
            moved = [lane ^ distance if not lane & distance else (lane ^ distance) + LANES for lane in range(LANES)]
            sides = [ir.Constant(_INTEGERS, lanes) for lanes in (kept, moved)]
            pairs = zip(rows[: len(rows) // 2], rows[len(rows) // 2 :], strict=True)
            rows = [builder.fadd(*(builder.shuffle_vector(*pair, lanes) for lanes in sides)) for pair in pairs]
        return rows[0]

    return vector(array, types.intp, turns), generate


highest: Any = intrinsic(_highest)
lanes_at_least: Any = intrinsic(_lanes_at_least)
first_lane: Any = intrinsic(_first_lane)
store_whole: Any = intrinsic(_store_whole)
totals: Any = intrinsic(_totals)
