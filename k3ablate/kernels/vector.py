"""How does a numba kernel say that sixteen float32 numbers move together? A vector type and its arithmetic.

numba cannot be told that arrays do not overlap, so LLVM keeps the loops of a recurrence scalar. These intrinsics name
the vector instructions instead: `load` and `store` of 16 neighbours or the first of them, `splat` of one number,
elementwise arithmetic and choice, and `transpose`. LLVM maps them to what the processor has (one AVX-512 register, two
of AVX2, four of NEON). Plain numba code calls them like functions; nothing here knows what is computed. Products of
matrices are in `products.py`.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

LANES = 16

_FLOAT, _INTEGER = ir.FloatType(), ir.IntType(32)
_VECTOR, _INTEGERS = ir.VectorType(_FLOAT, LANES), ir.VectorType(_INTEGER, LANES)
_BOOLEANS = ir.VectorType(ir.IntType(1), LANES)
_LANE_NUMBERS = ir.Constant(_INTEGERS, list(range(LANES)))
_ALIGNMENT = 4  # of a float32: rows of an array start anywhere

Generate = Callable[[Any, Any, Any, Any], Any]  # numba's code generator: context, builder, signature, arguments


class VectorType(types.Type):
    """Sixteen float32 numbers, as numba types them."""

    def __init__(self) -> None:
        super().__init__(name=f"Float32x{LANES}")


vector = VectorType()


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):
    """How LLVM holds one: as a first-class vector."""

    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, _VECTOR)  # type: ignore[no-untyped-call]


def _load(typing_context: Any, array: Any, offset: Any) -> tuple[Any, Generate]:
    """The 16 numbers from flat position `offset` of a C-contiguous float32 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(context, builder, signature.args[0], *arguments), align=_ALIGNMENT)

    return vector(array, types.intp), generate


def _store(typing_context: Any, array: Any, offset: Any, value: Any) -> tuple[Any, Generate]:
    """Write the 16 numbers at flat position `offset` of a C-contiguous float32 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *arguments[:2])
        builder.store(arguments[2], pointer, align=_ALIGNMENT)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


def _load_first(typing_context: Any, array: Any, offset: Any, count: Any) -> tuple[Any, Generate]:
    """The first `count` of 16 numbers, zeros in the other lanes; memory behind the last one is not touched."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *arguments[:2])
        kind = ir.FunctionType(_VECTOR, [pointer.type, _INTEGER, _BOOLEANS, _VECTOR])
        function = _function(builder, kind, f"llvm.masked.load.v{LANES}f32.p0")
        nothing = ir.Constant(_VECTOR, [0.0] * LANES)
        return builder.call(function, [pointer, _INTEGER(_ALIGNMENT), _lanes_before(builder, arguments[2]), nothing])

    return vector(array, types.intp, types.intp), generate


def _store_first(typing_context: Any, array: Any, offset: Any, count: Any, value: Any) -> tuple[Any, Generate]:
    """Write the first `count` lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *arguments[:2])
        kind = ir.FunctionType(ir.VoidType(), [_VECTOR, pointer.type, _INTEGER, _BOOLEANS])
        function = _function(builder, kind, f"llvm.masked.store.v{LANES}f32.p0")
        builder.call(function, [arguments[3], pointer, _INTEGER(_ALIGNMENT), _lanes_before(builder, arguments[2])])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, vector), generate


def _splat(typing_context: Any, number: Any) -> tuple[Any, Generate]:
    """One number in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _in_all_lanes(builder, arguments[0])

    return vector(types.float32), generate


def _splat_from(typing_context: Any, array: Any, offset: Any) -> tuple[Any, Generate]:
    """The number at flat position `offset` of a C-contiguous float32 array in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return _in_all_lanes(builder, builder.load(builder.gep(data, [arguments[1]])))

    return vector(array, types.intp), generate


def _fma(typing_context: Any, a: Any, b: Any, c: Any) -> tuple[Any, Generate]:
    """a * b + c, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        return builder.call(_function(builder, kind, f"llvm.fma.v{LANES}f32"), arguments)

    return vector(vector, vector, vector), generate


def _multiply(typing_context: Any, a: Any, b: Any) -> tuple[Any, Generate]:
    """a * b."""
    return vector(vector, vector), lambda context, builder, signature, arguments: builder.fmul(*arguments)


def _add(typing_context: Any, a: Any, b: Any) -> tuple[Any, Generate]:
    """a + b."""
    return vector(vector, vector), lambda context, builder, signature, arguments: builder.fadd(*arguments)


def _subtract(typing_context: Any, a: Any, b: Any) -> tuple[Any, Generate]:
    """a - b."""
    return vector(vector, vector), lambda context, builder, signature, arguments: builder.fsub(*arguments)


def _divide(typing_context: Any, a: Any, b: Any) -> tuple[Any, Generate]:
    """a / b."""
    return vector(vector, vector), lambda context, builder, signature, arguments: builder.fdiv(*arguments)


def _where_less(typing_context: Any, a: Any, b: Any, value: Any, otherwise: Any) -> tuple[Any, Generate]:
    """`value` in lanes where a < b, `otherwise` in the others: also where a or b is NaN."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", *arguments[:2]), *arguments[2:])

    return vector(vector, vector, vector, vector), generate


def _from_lane(typing_context: Any, first: Any, value: Any, before: Any) -> tuple[Any, Generate]:
    """`value` in the lanes from number `first` on, `before` in those before it; `first` may lie outside 0..15."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(_lanes_before(builder, arguments[0]), arguments[2], arguments[1])

    return vector(types.intp, vector, vector), generate


def _transpose(
    typing_context: Any, array: Any, offset: Any, stride: Any, result: Any, to: Any, step: Any
) -> tuple[Any, Generate]:
    """16 x 16 numbers between C-contiguous float32 arrays: rows at `offset + i stride`, columns at `to + j step`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, offset, stride, result, to, step = arguments
        source = [_pointer(context, builder, signature.args[0], array, offset, stride, row) for row in range(LANES)]
        target = [_pointer(context, builder, signature.args[3], result, to, step, row) for row in range(LANES)]
        rows = [builder.load(pointer, align=_ALIGNMENT) for pointer in source]
        for row, pointer in zip(_transposed(builder, rows), target, strict=True):
            builder.store(row, pointer, align=_ALIGNMENT)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, result, types.intp, types.intp), generate


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Blocks of 8, 4, 2 and 1 off the diagonal change places: four rounds of 16 shuffles."""
    for distance in (8, 4, 2, 1):
        upper = [lane if not lane & distance else lane - distance + LANES for lane in range(LANES)]
        lower = [lane + distance if not lane & distance else lane + LANES for lane in range(LANES)]
        for row in (row for row in range(LANES) if not row & distance):
            pair = rows[row], rows[row + distance]
            for place, lanes in ((row, upper), (row + distance, lower)):
                rows[place] = builder.shuffle_vector(*pair, ir.Constant(_INTEGERS, lanes))
    return rows


def _from_exponent(typing_context: Any, n: Any) -> tuple[Any, Generate]:
    """2^n of numbers whose last bits are the whole number n, -126 to 127: what adding 1.5 * 2^23 to n gives."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        moved = builder.shl(builder.bitcast(arguments[0], _INTEGERS), ir.Constant(_INTEGERS, [23] * LANES))
        return builder.bitcast(builder.add(moved, ir.Constant(_INTEGERS, [127 << 23] * LANES)), _VECTOR)

    return vector(vector), generate


def _total(typing_context: Any, a: Any) -> tuple[Any, Generate]:
    """The sum over lanes, added pairwise."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR])
        function = _function(builder, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
        return builder.call(function, [ir.Constant(_FLOAT, 0.0), arguments[0]], fastmath=("reassoc",))

    return types.float32(vector), generate


def _in_all_lanes(builder: Any, number: Any) -> Any:
    """A vector of the type of `number`."""
    nothing = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(_INTEGER, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_INTEGERS, [0] * LANES))


def _lanes_before(builder: Any, number: Any) -> Any:
    """Whether a lane's own number is below `number`, an intp."""
    return builder.icmp_signed("<", _LANE_NUMBERS, _in_all_lanes(builder, builder.trunc(number, _INTEGER)))


def _function(builder: Any, kind: Any, name: str) -> Any:
    """LLVM's own function of that name, declared in the module being built."""
    return cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]


def _pointer(context: Any, builder: Any, kind: Any, array: Any, offset: Any, stride: Any = None, row: int = 0) -> Any:
    """To the vector at a flat position of an array of type `kind`, `row` strides further on."""
    pointer = builder.gep(context.make_array(kind)(context, builder, array).data, [offset])
    if row:
        pointer = builder.gep(pointer, [builder.mul(stride, ir.Constant(stride.type, row))])
    return builder.bitcast(pointer, _VECTOR.as_pointer())


load: Any = intrinsic(_load)
store: Any = intrinsic(_store)
load_first: Any = intrinsic(_load_first)
store_first: Any = intrinsic(_store_first)
splat: Any = intrinsic(_splat)
splat_from: Any = intrinsic(_splat_from)
fma: Any = intrinsic(_fma)
multiply: Any = intrinsic(_multiply)
add: Any = intrinsic(_add)
subtract: Any = intrinsic(_subtract)
divide: Any = intrinsic(_divide)
where_less: Any = intrinsic(_where_less)
from_lane: Any = intrinsic(_from_lane)
transpose: Any = intrinsic(_transpose)
from_exponent: Any = intrinsic(_from_exponent)
total: Any = intrinsic(_total)
