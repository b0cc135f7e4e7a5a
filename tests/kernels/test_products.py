"""Is the product in register tiles the product, for every number of rows, columns and terms?"""

import numba
import numpy
import pytest

from k3ablate.kernels.products import matrix_product
from k3ablate.kernels.vector import LANES


@numba.njit
def _transposed_product(a, b, c, add):
    matrix_product(a.T, b, c, add)


@pytest.mark.parametrize("num_columns", [LANES, 2 * LANES, 3 * LANES, 5 * LANES])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 7, 8, 15, 29])
def test_product_is_that_of_numpy(num_rows: int, num_columns: int) -> None:
    generator = numpy.random.default_rng(num_rows)
    for num_terms in (0, 1, 2, 19):
        a = generator.standard_normal((num_rows + 2, num_terms + 3)).astype(numpy.float32)  # more than is asked for
        b = generator.standard_normal((num_terms, num_columns)).astype(numpy.float32)
        expected = a[:num_rows, :num_terms].astype(float) @ b.astype(float)
        c = numpy.full((num_rows, num_columns), numpy.nan, numpy.float32)
        for form, operand in ((matrix_product, a), (_transposed_product, numpy.ascontiguousarray(a.T))):
            c[:] = numpy.nan
            form(operand, b, c, False)
            numpy.testing.assert_allclose(c, expected, rtol=1e-5, atol=1e-5)
            form(operand, b, c, True)
            numpy.testing.assert_allclose(c, 2 * expected, rtol=1e-5, atol=1e-5)


def test_nothing_is_written_outside_the_result() -> None:
    """C is a band of rows of a larger matrix."""
    whole = numpy.full((9, LANES), 7, numpy.float32)
    matrix_product(numpy.ones((5, 3), numpy.float32), numpy.ones((3, LANES), numpy.float32), whole[2:7], False)
    assert (whole[2:7] == 3).all()
    assert (whole[:2] == 7).all()
    assert (whole[7:] == 7).all()


def test_nan_stays_in_its_row_and_column() -> None:
    a, b = numpy.ones((9, 4), numpy.float32), numpy.ones((4, LANES), numpy.float32)
    a[3, 1], b[2, 5] = numpy.nan, numpy.nan
    c = numpy.empty((9, LANES), numpy.float32)
    matrix_product(a, b, c, False)
    expected = numpy.zeros_like(c, bool)
    expected[3], expected[:, 5] = True, True
    assert (numpy.isnan(c) == expected).all()
