"""Vectors of sixteen do what numpy does, from any position of an array."""

import numba
import numpy
import pytest

from k3ablate.kernels.vector import (
    LANES,
    add,
    divide,
    fma,
    from_exponent,
    from_lane,
    load,
    load_first,
    multiply,
    splat,
    splat_from,
    store,
    store_first,
    subtract,
    total,
    transpose,
    where_less,
)


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


@numba.njit
def _first(source, offset, count, result):
    """The first numbers of `source` from `offset` on into `result`, and what the other lanes hold."""
    numbers = load_first(source, offset, count)
    store_first(result, offset, count, numbers)
    return total(subtract(numbers, splat(numpy.float32(1))))


@pytest.mark.parametrize("count", [-3, 0, 1, 7, 15, 16, 40])
def test_the_first_of_sixteen(count: int) -> None:
    inside = min(max(count, 0), LANES)
    source, result = numpy.full(3 + inside, 2, numpy.float32), numpy.full(3 + inside, numpy.nan, numpy.float32)
    assert _first(source, 3, count, result) == 2 * inside - LANES  # twos, then zeros, each less one
    assert numpy.isnan(result[:3]).all()
    assert (result[3:] == 2).all()


@numba.njit
def _elementwise(a, b, result):
    store(result, 0, add(load(a, 0), load(b, 0)))
    store(result, LANES, subtract(load(a, 0), load(b, 0)))
    store(result, 2 * LANES, divide(load(a, 0), load(b, 0)))
    store(result, 3 * LANES, where_less(load(a, 0), load(b, 0), load(a, 0), splat(numpy.float32(9))))
    store(result, 4 * LANES, splat_from(b, 5))


def test_each_lane_by_itself() -> None:
    generator = numpy.random.default_rng(1)
    a, b = (generator.standard_normal(LANES).astype(numpy.float32) for _ in range(2))
    a[2], b[3], a[4] = numpy.nan, numpy.nan, b[4]
    result = numpy.empty((5, LANES), numpy.float32)
    _elementwise(a, b, result)
    expected = [a + b, a - b, a / b, numpy.where(a < b, a, 9), numpy.full(LANES, b[5])]
    numpy.testing.assert_array_equal(result, numpy.array(expected, numpy.float32))


@numba.njit
def _chosen(first, result):
    store(result, 0, from_lane(first, splat(numpy.float32(1)), splat(numpy.float32(numpy.nan))))


@pytest.mark.parametrize("first", [-20, 0, 5, 15, 16, 40])
def test_from_a_lane_on(first: int) -> None:
    result = numpy.empty(LANES, numpy.float32)
    _chosen(first, result)
    numpy.testing.assert_array_equal(result == 1, numpy.arange(LANES) >= first)


@numba.njit
def _transposed(source, offset, stride, result, to, step):
    transpose(source, offset, stride, result, to, step)


def test_transpose_of_a_part_of_a_matrix() -> None:
    source = numpy.arange(18 * 21, dtype=numpy.float32).reshape(18, 21)
    result = numpy.full((17, 30), numpy.nan, numpy.float32)
    _transposed(source, 2 * 21 + 4, 21, result, 30 + 9, 30)
    numpy.testing.assert_array_equal(result[1:, 9 : 9 + LANES], source[2:, 4 : 4 + LANES].T)
    assert numpy.isnan(result).sum() == 17 * 30 - LANES * LANES


@numba.njit
def _powers(n, result):
    store(result, 0, from_exponent(add(load(n, 0), splat(numpy.float32(1.5 * 2**23)))))


def test_powers_of_two_from_their_exponents() -> None:
    n, result = numpy.linspace(-126, 127, LANES).round().astype(numpy.float32), numpy.empty(LANES, numpy.float32)
    _powers(n, result)
    numpy.testing.assert_array_equal(result, numpy.float32(2) ** n)
