"""How does a numba kernel say that sixteen float32 numbers move together? A vector type and its arithmetic.

numba cannot be told that arrays do not overlap, so LLVM keeps the loops of a recurrence scalar. These intrinsics name
the vector instructions instead: `load` and `store` of 16 neighbours, `splat` of one number, and elementwise arithmetic.
LLVM maps them to what the processor has (one AVX-512 register, two of AVX2, four of NEON). Plain numba code calls them
like functions; nothing here knows what is computed.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, models, register_model

LANES = 16

_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
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
        return builder.load(_address(context, builder, signature, arguments), align=_ALIGNMENT)

    return vector(array, types.intp), generate


def _store(typing_context: Any, array: Any, offset: Any, value: Any) -> tuple[Any, Generate]:
    """Write the 16 numbers at flat position `offset` of a C-contiguous float32 array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _address(context, builder, signature, arguments), align=_ALIGNMENT)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


def _splat(typing_context: Any, number: Any) -> tuple[Any, Generate]:
    """One number in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        nothing = ir.Constant(_VECTOR, ir.Undefined)
        first = builder.insert_element(nothing, arguments[0], ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(first, nothing, lanes)

    return vector(types.float32), generate


def _fma(typing_context: Any, a: Any, b: Any, c: Any) -> tuple[Any, Generate]:
    """a * b + c, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        return builder.call(_function(builder, kind, f"llvm.fma.v{LANES}f32"), arguments)

    return vector(vector, vector, vector), generate


def _multiply(typing_context: Any, a: Any, b: Any) -> tuple[Any, Generate]:
    """a * b."""
    return vector(vector, vector), lambda context, builder, signature, arguments: builder.fmul(*arguments)


def _total(typing_context: Any, a: Any) -> tuple[Any, Generate]:
    """The sum over lanes, added pairwise."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR])
        function = _function(builder, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
        return builder.call(function, [ir.Constant(_FLOAT, 0.0), arguments[0]], fastmath=("reassoc",))

    return types.float32(vector), generate


def _function(builder: Any, kind: Any, name: str) -> Any:
    """LLVM's own function of that name, declared in the module being built."""
    return cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]


def _address(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The first two arguments, an array and a flat position in it, as a pointer to a vector."""
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), _VECTOR.as_pointer())


load: Any = intrinsic(_load)
store: Any = intrinsic(_store)
splat: Any = intrinsic(_splat)
fma: Any = intrinsic(_fma)
multiply: Any = intrinsic(_multiply)
total: Any = intrinsic(_total)
