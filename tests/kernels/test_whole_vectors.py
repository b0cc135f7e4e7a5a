"""Do matrices of any width come through whole vectors unchanged, and is nothing written beside them?"""

import numpy
import pytest

from k3ablate.kernels.vector import LANES
from k3ablate.kernels.whole_vectors import narrow, whole, widen, widen_transposed

SHAPES = [(1, 1), (3, 16), (16, 5), (17, 33), (32, 48)]


def _matrix(num_rows: int, num_columns: int) -> numpy.ndarray:
    return numpy.arange(1, num_rows * num_columns + 1, dtype=numpy.float32).reshape(num_rows, num_columns)


def test_whole_is_the_next_multiple() -> None:
    assert [whole(number) for number in (0, 1, LANES, LANES + 1)] == [0, LANES, LANES, 2 * LANES]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_there_and_back(shape: tuple[int, int]) -> None:
    matrix = _matrix(*shape)
    wide = numpy.full((shape[0], whole(shape[1])), numpy.nan, numpy.float32)
    widen(matrix, wide)
    assert (wide[:, : shape[1]] == matrix).all()
    assert (wide[:, shape[1] :] == 0).all()
    around = numpy.full((shape[0] + 2, shape[1]), 7, numpy.float32)
    wide[:, shape[1] :] = numpy.nan
    narrow(wide, around[1:-1])
    assert (around[1:-1] == matrix).all()
    assert (around[[0, -1]] == 7).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_transposed_twice_is_the_same(shape: tuple[int, int]) -> None:
    matrix = _matrix(*shape)
    wide, transposed = (numpy.zeros((whole(a), whole(b)), numpy.float32) for a, b in (shape, shape[::-1]))
    widen_transposed(matrix, wide, transposed)
    expected = numpy.zeros_like(transposed)
    expected[: shape[1], : shape[0]] = matrix.T
    assert (transposed == expected).all()
