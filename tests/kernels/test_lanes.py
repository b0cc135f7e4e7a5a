"""Searching in a vector finds what numpy finds."""

import numba
import numpy
import pytest

from k3ablate.kernels.lanes import first_lane, highest, lanes_at_least, store_whole, totals
from k3ablate.kernels.vector import LANES, load, store


@numba.njit
def _searched(a, b, whole, offset):
    store_whole(whole, offset, load(a, 0))
    lanes = lanes_at_least(load(a, 0), load(b, 0))
    return highest(load(a, 0)), lanes, first_lane(lanes)


def test_lanes_are_found() -> None:
    a = numpy.random.default_rng(0).standard_normal(LANES).astype(numpy.float32) * 10
    b = numpy.roll(a, 1)
    b[:2], b[5] = a[:2] + 1, a[5]
    a[15], b[15] = -numpy.inf, numpy.nan
    whole = numpy.full(LANES + 3, 77, numpy.int32)
    top, lanes, first = _searched(numpy.where(a == -numpy.inf, -3.7, a).astype(numpy.float32), b, whole, 2)
    assert top == a.max()
    assert [lane for lane in range(LANES) if lanes >> lane & 1] == numpy.flatnonzero(a >= b).tolist()
    assert first == numpy.flatnonzero(a >= b)[0] >= 2
    assert lanes >> 5 & 1, "equal is at least"
    assert whole.tolist() == [77, 77, *numpy.trunc(a[:15]).astype(int).tolist(), -3, 77]


def test_infinities_are_ordered() -> None:
    a = numpy.full(LANES, -numpy.inf, numpy.float32)
    a[9] = 3
    top, lanes, first = _searched(a, numpy.full(LANES, 3, numpy.float32), numpy.empty(LANES, numpy.int32), 0)
    assert (top, lanes, first) == (3, 1 << 9, 9)
    assert _searched(a, a, numpy.empty(LANES, numpy.int32), 0)[1] == (1 << LANES) - 1


@numba.njit
def _totals(a, offset, turns, result):
    store(result, 0, totals(a, offset, turns))


@pytest.mark.parametrize("num_heads", [1, 2, 4])
def test_totals_are_those_of_the_vectors_in_order_for_each_head(num_heads: int) -> None:
    a = numpy.random.default_rng(0).standard_normal(LANES * LANES + 3).astype(numpy.float32)
    a[3 + 3 * LANES + 11], a[2], a[3 + LANES * LANES // num_heads :] = numpy.nan, numpy.inf, numpy.inf
    result = numpy.empty(LANES, numpy.float32)
    _totals(a, 3, tuple(range(num_heads)), result)
    vectors = a[3 : 3 + LANES * LANES // num_heads].astype(float).reshape(-1, LANES // num_heads, num_heads)
    numpy.testing.assert_allclose(result, vectors.sum(1).ravel(), rtol=1e-5, atol=1e-6)
