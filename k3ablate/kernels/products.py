"""How does a numba kernel multiply small matrices? C = A B in tiles that stay in registers, float32.

A call of torch's product takes a few microseconds, as long as the product of 20 rows with an expert's matrix, and a
library rearranges operands that lie in the cache already. `matrix_product` reads them as they lie: numbers of A one by
one, in any layout (a transposed view costs nothing), rows of B and C sixteen numbers at a time. So B and C are
C-contiguous and their rows whole vectors; who has other widths pads them to a multiple of `vector.LANES`. On one core
it ran at 100 to 150 GFLOP/s from 8 x 20 x 32 to 256 x 64 x 128, torch.mm at 8 to 135. Larger products belong there.
Tiles are as large as the registers that numba compiles for: without AVX-512 the large ones took twice as long.
"""

from collections.abc import Callable
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, registry, types
from numba.extending import intrinsic

from k3ablate.kernels.vector import LANES, Generate

compiled = numba.njit(cache=True, nogil=True, error_model="numpy")
# Put into its caller: as a call of its own, numba counted references to three arrays around it, 6 percent of a product.
inlined = numba.njit(error_model="numpy", inline="always")

# 32 registers of one vector each; elsewhere there are 16 halves or 32 quarters of one.
WIDE_REGISTERS = "+avx512f" in registry.cpu_target.target_context.codegen().magic_tuple()[2]

_FLOAT, _VECTOR = ir.FloatType(), ir.VectorType(ir.FloatType(), LANES)


class _Matrix:
    """Addresses and loads of a 2-D array inside LLVM code."""

    def __init__(self, context: Any, builder: Any, numba_type: Any, value: Any) -> None:
        array = context.make_array(numba_type)(context, builder, value)
        self.builder = builder
        self.start = array.data
        self.num_rows, self.num_columns = cgutils.unpack_tuple(builder, array.shape)  # type: ignore[no-untyped-call]
        self.strides = cgutils.unpack_tuple(builder, array.strides)  # type: ignore[no-untyped-call]

    def address(self, row: Any, column: Any, kind: Any) -> Any:
        """A pointer to what lies at (row, column), read as `kind`."""
        offset = self.builder.add(*map(self.builder.mul, (row, column), self.strides))
        address = cgutils.pointer_add(self.builder, self.start, offset)  # type: ignore[no-untyped-call]
        return self.builder.bitcast(address, kind.as_pointer())

    def in_all_lanes(self, row: Any, column: Any) -> Any:
        """The number at (row, column), sixteen times."""
        nothing, first = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(ir.IntType(32), 0)
        number = self.builder.load(self.address(row, column, _FLOAT))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(self.builder.insert_element(nothing, number, first), nothing, lanes)


def _tile(num_rows: int, num_vectors: int) -> Any:
    """The intrinsic for `num_rows` rows and `num_vectors` vectors of C: all of its sums are kept in registers."""

    def tile(typing_context: Any, a: Any, b: Any, c: Any, row: Any, column: Any, add: Any) -> tuple[Any, Generate]:  # noqa: ARG001
        """C = A B at (row, column), or C += A B."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            a, b, c = (_Matrix(context, builder, *pair) for pair in zip(signature.args[:3], arguments[:3], strict=True))
            row, column, add = arguments[3:]
            rows = [builder.add(row, row.type(r)) for r in range(num_rows)]
            columns = [builder.add(column, column.type(v * LANES)) for v in range(num_vectors)]
            places = [c.address(r, v, _VECTOR) for r in rows for v in columns]
            sums = [_sum_from(builder, place, add) for place in places]
            fma = _fma(builder)
            with cgutils.for_range(builder, b.num_rows) as loop:
                right = [builder.load(b.address(loop.index, v, _VECTOR), align=4) for v in columns]
                left = [a.in_all_lanes(r, loop.index) for r in rows]
                pairs = ((x, y) for x in left for y in right)
                for total, pair in zip(sums, pairs, strict=True):
                    builder.store(fma(*pair, builder.load(total)), total)
            for total, place in zip(sums, places, strict=True):
                builder.store(builder.load(total), place, align=4)
            return context.get_dummy_value()

        return types.void(a, b, c, row, column, add), generate

    return intrinsic(tile)


def _sum_from(builder: Any, place: Any, add: Any) -> Any:
    """A variable, which LLVM makes a register, that starts as zeros or, to be added to, as what is at `place`."""
    start = builder.select(add, builder.load(place, align=4), ir.Constant(_VECTOR, [0.0] * LANES))
    return cgutils.alloca_once_value(builder, start)  # type: ignore[no-untyped-call]


def _fma(builder: Any) -> Callable[..., Any]:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    name = f"llvm.fma.v{LANES}f32"
    function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
    return lambda *operands: builder.call(function, operands)


_eight_by_two, _four_by_two, _two_by_two, _one_by_two = (_tile(rows, 2) for rows in (8, 4, 2, 1))
_eight_by_one, _four_by_one, _two_by_one, _one_by_one = (_tile(rows, 1) for rows in (8, 4, 2, 1))


@compiled
def matrix_product(a: Any, b: Any, c: Any, add: bool) -> None:
    """C = A B, or C += A B, for the rows of C, which A has at least, and the rows of B, which are A's columns."""
    column = 0
    while WIDE_REGISTERS and column + 2 * LANES <= c.shape[1]:
        _two_vectors(a, b, c, column, add)
        column += 2 * LANES
    while column < c.shape[1]:
        _one_vector(a, b, c, column, add)
        column += LANES


@inlined
def _two_vectors(a: Any, b: Any, c: Any, column: Any, add: Any) -> None:
    row = 0
    while row + 8 <= c.shape[0]:
        _eight_by_two(a, b, c, row, column, add)
        row += 8
    if row + 4 <= c.shape[0]:
        _four_by_two(a, b, c, row, column, add)
        row += 4
    if row + 2 <= c.shape[0]:
        _two_by_two(a, b, c, row, column, add)
        row += 2
    if row < c.shape[0]:
        _one_by_two(a, b, c, row, column, add)


@inlined
def _one_vector(a: Any, b: Any, c: Any, column: Any, add: Any) -> None:
    row = 0
    while WIDE_REGISTERS and row + 8 <= c.shape[0]:
        _eight_by_one(a, b, c, row, column, add)
        row += 8
    while row + 4 <= c.shape[0]:
        _four_by_one(a, b, c, row, column, add)
        row += 4
    if row + 2 <= c.shape[0]:
        _two_by_one(a, b, c, row, column, add)
        row += 2
    if row < c.shape[0]:
        _one_by_one(a, b, c, row, column, add)
