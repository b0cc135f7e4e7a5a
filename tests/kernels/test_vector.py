"""Vectors of sixteen do what numpy does, from any position of an array."""

import numba
import numpy

from k3ablate.kernels.vector import LANES, fma, load, multiply, splat, store, total


@numba.njit
def _combined(a, b, offset, factor, result):
    """result = factor * a + b * b from `offset` on; returns the sum of the sixteen."""
    squares = multiply(load(b, offset), load(b, offset))
    combined = fma(splat(factor), load(a, offset), squares)
    store(result, offset, combined)
    return total(combined)


def test_arithmetic_is_elementwise_and_touches_sixteen_numbers() -> None:
    generator = numpy.random.default_rng(0)
    a, b = (generator.standard_normal((3, 17)).astype(numpy.float32) for _ in range(2))
    for offset in (0, 1, 17, 3 * 17 - LANES):
        result = numpy.full_like(a, numpy.nan)
        summed = _combined(a, b, offset, numpy.float32(0.3), result)
        inside = slice(offset, offset + LANES)
        expected = numpy.float32(0.3) * a.ravel()[inside].astype(float) + b.ravel()[inside].astype(float) ** 2
        numpy.testing.assert_allclose(result.ravel()[inside], expected, rtol=1e-6)
        assert numpy.isnan(numpy.delete(result.ravel(), numpy.arange(offset, offset + LANES))).all()
        numpy.testing.assert_allclose(summed, expected.sum(), rtol=1e-5)


def test_nan_and_infinity_pass_through() -> None:
    a = numpy.zeros(LANES, numpy.float32)
    a[3], a[7] = numpy.nan, numpy.inf
    result = numpy.empty_like(a)
    assert numpy.isnan(_combined(a, numpy.ones_like(a), 0, numpy.float32(1), result))
    assert numpy.isnan(result[3])
    assert numpy.isinf(result[7])
