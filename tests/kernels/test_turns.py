"""Do heads that share a vector stay apart in it, and come out of it as they went in?"""

from typing import Any

import numba
import numpy
import pytest

from k3ablate.kernels.turns import load_in_turn, splat_in_turn, store_in_turn, total_in_turn, turns_of
from k3ablate.kernels.vector import LANES, load, store

Array = numpy.ndarray[Any, Any]
SHARED = [(1, 9), (1, 16), (1, 20), (2, 8), (2, 5), (4, 4), (4, 1)]  # heads in a vector and their width


@numba.njit
def _there(source: Any, at: int, distance: int, width: int, num_heads: int, turns: Any, result: Any) -> None:
    store(result, 0, load_in_turn(source, at, distance, width, num_heads, turns))


@numba.njit
def _back(numbers: Any, target: Any, at: int, distance: int, width: int, num_heads: int, turns: Any) -> None:
    store_in_turn(target, at, distance, width, num_heads, turns, load(numbers, 0))


def _in_turn(heads: Array) -> Array:
    """What a vector holds of heads, one in each row: their first numbers, as many as there is room for, then zeros."""
    filled = numpy.zeros((len(heads), LANES // len(heads)), numpy.float32)
    width = min(filled.shape[1], heads.shape[1])
    filled[:, :width] = heads[:, :width]
    return filled.T.ravel()


@pytest.mark.parametrize(("size", "width"), SHARED)
def test_heads_go_into_a_vector_and_back(size: int, width: int) -> None:
    """The last of them may be missing: then nothing of its memory is read or written."""
    distance, turns = width + 3, tuple(range(size))
    for num_heads in range(1, size + 2):
        source = numpy.random.default_rng(width).standard_normal((size, distance)).astype(numpy.float32)
        heads = numpy.where(numpy.arange(size)[:, None] < num_heads, source[:, 1 : 1 + width], 0)
        vector = numpy.empty(LANES, numpy.float32)
        _there(source, 1, distance, width, num_heads, turns, vector)
        numpy.testing.assert_array_equal(vector, _in_turn(heads))

        target = numpy.full((size, distance), numpy.nan, numpy.float32)
        _back(vector, target, 1, distance, width, num_heads, turns)
        inside = numpy.zeros(target.shape, bool)
        inside[:num_heads, 1 : 1 + min(width, LANES)] = True
        numpy.testing.assert_array_equal(target[inside], source[inside])
        assert numpy.isnan(target[~inside]).all()


@numba.njit
def _across(array: Any, offset: int, turns: Any, result: Any) -> None:
    store(result, 0, splat_in_turn(array, offset, turns))
    store(result, LANES, total_in_turn(load(array, offset), turns))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_number_of_each_head_and_the_sum_of_each_in_all_of_its_lanes(size: int) -> None:
    array = numpy.random.default_rng(size).standard_normal(LANES + 3).astype(numpy.float32)
    array[3 + LANES - 1], result = numpy.nan, numpy.empty((2, LANES), numpy.float32)
    _across(array, 3, tuple(range(size)), result)
    numpy.testing.assert_array_equal(result[0], numpy.tile(array[3 : 3 + size], LANES // size))
    sums = array[3:].reshape(-1, size).astype(float).sum(0)
    numpy.testing.assert_allclose(result[1], numpy.tile(sums, LANES // size), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("width", "size"), [(1, 4), (4, 4), (5, 2), (8, 2), (9, 1), (12, 1), (16, 1), (24, 1), (128, 1)]
)
def test_as_many_heads_share_a_vector_as_fit_by_fours_or_twos(width: int, size: int) -> None:
    assert turns_of(width) == tuple(range(size))
