"""How does a numba loop take exponentials of sixteen numbers at once? Functions of one number that LLVM vectorises.

numba calls the C library for `exp` and `tanh`, one number at a time, which costs more than all the rest of a gate.
These are polynomials instead, within a few units in the last place of float32, and a loop that calls them becomes
vector code. NaN stays NaN; arguments beyond the range of float32 give its limits (a smallest number, not zero).
"""

from typing import Any

import numba
import numpy
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from k3ablate.kernels.vector import add, fma, from_exponent, multiply, splat, subtract, where_less

# Rounding in `exponential` is an addition and a subtraction of one large number, which reassociation would remove.
_exact_order = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})

_ONE = numpy.float32(1)
_LOWEST, _HIGHEST = numpy.float32(-87.3), numpy.float32(88.3)
_LOWEST_POWER = numpy.float32(-126)
_ROUNDER = numpy.float32(1.5 * 2**23)  # adding it leaves no digits after the point
_PER_LOG2 = numpy.float32(1 / numpy.log(2))
# log 2 in two parts, the first short enough that n times it is exact (Cody and Waite 1980).
_LOG2_HIGH = numpy.float32(355 / 512)
_LOG2_LOW = numpy.float32(numpy.log(2) - 355 / 512)
_EXPONENT_OF_ONE, _MANTISSA_BITS = numpy.int32(127 << 23), numpy.int32(23)
_TAYLOR = tuple(numpy.float32(1 / factorial) for factorial in (1, 1, 2, 6, 24, 120, 720, 5040))
_SMALL = numpy.float32(1)  # below it tanh has a polynomial of its own: 1 - 2 / (1 + exp 2x) would cancel


def _fitted_tanh() -> tuple[numpy.float32, ...]:
    """Coefficients of (tanh x / x - 1) / x^2 in x^2 for |x| < 1, fitted at Chebyshev nodes."""
    nodes = 0.5 * (1.01 + numpy.cos(numpy.pi * (numpy.arange(200) + 0.5) / 200))
    fitted = numpy.polynomial.Polynomial.fit(nodes**2, (numpy.tanh(nodes) / nodes - 1) / nodes**2, 7)
    return tuple(numpy.float32(coefficient) for coefficient in fitted.convert().coef)


def _fitted_powers() -> tuple[numpy.float32, ...]:
    """Coefficients of 2^r for |r| < 1/2, fitted at Chebyshev nodes."""
    nodes = 0.5 * numpy.cos(numpy.pi * (numpy.arange(200) + 0.5) / 200)
    fitted = numpy.polynomial.Polynomial.fit(nodes, numpy.exp2(nodes), 6)
    return tuple(numpy.float32(coefficient) for coefficient in fitted.convert().coef)


_TANH, _POWERS = _fitted_tanh(), _fitted_powers()


def _same_bits(kind: Any, result: Any, name: str) -> Any:
    """An intrinsic that reads the bits of one type as another."""

    def bits(typing_context: Any, number: Any) -> Any:  # noqa: ARG001 - numba's signature
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
            return builder.bitcast(arguments[0], result[1])

        return result[0](kind), generate

    bits.__name__ = name
    return intrinsic(bits)


_bits_of: Any = _same_bits(types.float32, (types.int32, ir.IntType(32)), "bits_of")
_from_bits: Any = _same_bits(types.int32, (types.float32, ir.FloatType()), "from_bits")


@_exact_order
def exponential(x: Any) -> Any:
    """exp(x) = 2^n exp(r), |r| <= log(2) / 2."""
    inside = x
    inside = _LOWEST if inside < _LOWEST else inside  # comparisons that leave NaN alone
    inside = _HIGHEST if inside > _HIGHEST else inside
    shifted = inside * _PER_LOG2 + _ROUNDER
    n = shifted - _ROUNDER
    r = (inside - n * _LOG2_HIGH) - n * _LOG2_LOW
    series = _TAYLOR[7]
    series = series * r + _TAYLOR[6]
    series = series * r + _TAYLOR[5]
    series = series * r + _TAYLOR[4]
    series = series * r + _TAYLOR[3]
    series = series * r + _TAYLOR[2]
    series = series * r + _TAYLOR[1]
    series = series * r + _TAYLOR[0]
    return series * _from_bits(numpy.int32((_bits_of(shifted) << _MANTISSA_BITS) + _EXPONENT_OF_ONE))


@_exact_order
def powers_of_two(x: Any) -> Any:
    """2^x = 2^n 2^r, |r| <= 1/2, of the sixteen numbers of a vector, each at most 127; zero below -126."""
    shifted = add(x, splat(_ROUNDER))
    r = subtract(x, subtract(shifted, splat(_ROUNDER)))
    series = fma(splat(_POWERS[6]), r, splat(_POWERS[5]))
    series = fma(series, r, splat(_POWERS[4]))
    series = fma(series, r, splat(_POWERS[3]))
    series = fma(series, r, splat(_POWERS[2]))
    series = fma(series, r, splat(_POWERS[1]))
    series = fma(series, r, splat(_POWERS[0]))
    powers = multiply(series, from_exponent(shifted))
    return where_less(x, splat(_LOWEST_POWER), splat(numpy.float32(0)), powers)


@_exact_order
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return _ONE / (_ONE + exponential(-x))


@_exact_order
def tanh(x: Any) -> Any:
    """tanh(x), relative error included: near zero it is x."""
    square = x * x
    series = _TANH[7]
    series = series * square + _TANH[6]
    series = series * square + _TANH[5]
    series = series * square + _TANH[4]
    series = series * square + _TANH[3]
    series = series * square + _TANH[2]
    series = series * square + _TANH[1]
    series = series * square + _TANH[0]
    near = x + x * (square * series)
    far = _ONE - (_ONE + _ONE) / (_ONE + exponential(x + x))
    return near if abs(x) < _SMALL else far
