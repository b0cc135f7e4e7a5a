"""How does a numba loop take exponentials of sixteen numbers at once? Functions of one number that LLVM vectorises.

numba calls the C library for `exp` and `tanh`, one number at a time, which costs more than all the rest of a gate.
These are polynomials and ratios of them instead, within a few units in the last place of float32, and a loop that calls
them becomes vector code. NaN stays NaN; arguments beyond the range of float32 give its limits (a smallest number, not
zero).
"""

from typing import Any

import numba
import numpy
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from k3ablate.kernels.vector import add, divide, fma, from_exponent, multiply, splat, subtract, where_less

# Rounding in `exponential` is an addition and a subtraction of one large number, which reassociation would remove.
_exact_order = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})

_ONE = numpy.float32(1)
_LOWEST, _HIGHEST = numpy.float32(-87.3), numpy.float32(88.3)
_LOWEST_POWER, _HIGHEST_POWER = numpy.float32(-126), numpy.float32(127)
_ROUNDER = numpy.float32(1.5 * 2**23)  # adding it leaves no digits after the point
_PER_LOG2 = numpy.float32(1 / numpy.log(2))
# log 2 in two parts, the first short enough that n times it is exact (Cody and Waite 1980).
_LOG2_HIGH = numpy.float32(355 / 512)
_LOG2_LOW = numpy.float32(numpy.log(2) - 355 / 512)
_EXPONENT_OF_ONE, _MANTISSA_BITS = numpy.int32(127 << 23), numpy.int32(23)
_TAYLOR = tuple(numpy.float32(1 / factorial) for factorial in (1, 1, 2, 6, 24, 120, 720, 5040))
# tanh x = x P(x^2) / Q(x^2) for |x| < 8.3, relative error 1e-8: least squares, reweighted until no error stands out,
# as published rational approximations are made. Beyond, the limit is as near as a float32 gets.
_TANH_ABOVE = tuple(map(numpy.float32, (1, 0.134258731, 0.00354917162, 2.15085082e-05, 1.46482172e-08)))
_TANH_BELOW = tuple(map(numpy.float32, (1, 0.46759198, 0.0260799609, 0.000337395331, 8.29510432e-07)))
_TANH_END = numpy.float32(8.3)


def _fitted_powers() -> tuple[numpy.float32, ...]:
    """Coefficients of 2^r for |r| < 1/2, fitted at Chebyshev nodes."""
    nodes = 0.5 * numpy.cos(numpy.pi * (numpy.arange(200) + 0.5) / 200)
    fitted = numpy.polynomial.Polynomial.fit(nodes, numpy.exp2(nodes), 6)
    return tuple(numpy.float32(coefficient) for coefficient in fitted.convert().coef)


_POWERS = _fitted_powers()


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
def sigmoids(x: Any) -> Any:
    """`sigmoid` of the sixteen numbers of a vector."""
    power = multiply(x, splat(-_PER_LOG2))
    power = where_less(splat(_HIGHEST_POWER), power, splat(_HIGHEST_POWER), power)  # leaves NaN alone
    return divide(splat(_ONE), add(splat(_ONE), powers_of_two(power)))


@_exact_order
def tanh(x: Any) -> Any:
    """tanh(x), relative error included: near zero it is x."""
    square = x * x
    above = _TANH_ABOVE[4]
    above = above * square + _TANH_ABOVE[3]
    above = above * square + _TANH_ABOVE[2]
    above = above * square + _TANH_ABOVE[1]
    above = above * square + _TANH_ABOVE[0]
    below = _TANH_BELOW[4]
    below = below * square + _TANH_BELOW[3]
    below = below * square + _TANH_BELOW[2]
    below = below * square + _TANH_BELOW[1]
    below = below * square + _TANH_BELOW[0]
    ratio = x * above / below
    ratio = _ONE if x > _TANH_END else ratio  # comparisons that leave NaN alone
    return -_ONE if x < -_TANH_END else ratio
