"""How does a numba kernel look into the sixteen lanes of a vector? The largest, which ones pass a bound, whole numbers.

For searching and counting; arithmetic, loads and stores are in `vector.py`.
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


highest: Any = intrinsic(_highest)
lanes_at_least: Any = intrinsic(_lanes_at_least)
first_lane: Any = intrinsic(_first_lane)
store_whole: Any = intrinsic(_store_whole)
