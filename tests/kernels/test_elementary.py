"""Are the vectorised functions those of the C library, to the precision of float32?"""

from collections.abc import Callable
from typing import Any

import numba
import numpy
import pytest

from k3ablate.kernels.elementary import exponential, powers_of_two, sigmoid, sigmoids, tanh
from k3ablate.kernels.vector import LANES, load, store

Array = numpy.ndarray[Any, Any]


def mapped(function: Any, x_X: Array) -> Array:
    """`function` of every number, in a loop that LLVM may vectorise, as kernels call it."""

    @numba.njit(error_model="numpy", fastmath={"reassoc", "contract", "nsz"})  # type: ignore[untyped-decorator]
    def loop(x_X: Any, y_X: Any) -> None:
        for x in range(x_X.shape[0]):
            y_X[x] = function(x_X[x])

    y_X = numpy.empty_like(x_X)
    loop(x_X, y_X)
    return y_X


EXACT: dict[Any, Callable[[Array], Array]] = {
    exponential: numpy.exp,
    sigmoid: lambda x: 1 / (1 + numpy.exp(-x)),
    tanh: numpy.tanh,
}
every_function = pytest.mark.parametrize("function", EXACT, ids=lambda function: function.__name__)


@every_function
def test_within_a_few_units_of_the_last_place(function: Any) -> None:
    small_X = 10.0 ** numpy.linspace(-30, 0, 5001)
    x_X = numpy.concatenate([numpy.linspace(-87, 87, 70000), small_X, -small_X]).astype(numpy.float32)
    exact_X = EXACT[function](x_X.astype(numpy.float64))
    assert numpy.max(numpy.abs(mapped(function, x_X) - exact_X) / numpy.abs(exact_X)) < 5 * 2**-24


@every_function
def test_limits_and_nan(function: Any) -> None:
    x_X = numpy.array([numpy.nan, numpy.inf, -numpy.inf, 0.0] * 16, numpy.float32)
    y_X = mapped(function, x_X).reshape(16, 4)
    limits = {exponential: (1e38, 0, 1), sigmoid: (1, 0, 0.5), tanh: (1, -1, 0)}
    assert numpy.isnan(y_X[:, 0]).all()
    at_infinity, at_minus_infinity, at_zero = limits[function]
    assert (y_X[:, 1] >= at_infinity).all()
    assert numpy.allclose(y_X[:, 2], at_minus_infinity, atol=1e-37)
    assert (y_X[:, 3] == at_zero).all()


@numba.njit
def _powers(x_X: Any, y_X: Any) -> None:
    for x in range(0, x_X.shape[0], LANES):
        store(y_X, x, powers_of_two(load(x_X, x)))


def test_powers_of_two_of_vectors() -> None:
    x_X = numpy.linspace(-140, 127, LANES * 5000).astype(numpy.float32)
    y_X = numpy.empty_like(x_X)
    _powers(x_X, y_X)
    normal_X = x_X >= -126
    exact_X = 2.0 ** x_X.astype(numpy.float64)
    assert numpy.max(numpy.abs(y_X / exact_X - 1)[normal_X]) < 5 * 2**-24
    assert not y_X[~normal_X].any()


def test_powers_of_two_of_whole_numbers_nan_and_minus_infinity() -> None:
    x_X = numpy.array([0, 1, -126, 127, numpy.nan, -numpy.inf, -1e30, 0.5] * 2, numpy.float32)
    y_X = numpy.empty_like(x_X)
    _powers(x_X, y_X)
    expected_X = numpy.array([1, 2, 2.0**-126, 2.0**127, numpy.nan, 0, 0, 2**0.5] * 2, numpy.float32)
    numpy.testing.assert_array_almost_equal_nulp(y_X[~numpy.isnan(x_X)], expected_X[~numpy.isnan(x_X)], nulp=1)
    assert numpy.isnan(y_X[numpy.isnan(x_X)]).all()


@numba.njit
def _sigmoids(x_X: Any, y_X: Any) -> None:
    for x in range(0, x_X.shape[0], LANES):
        store(y_X, x, sigmoids(load(x_X, x)))


def test_sigmoids_of_vectors() -> None:
    """Rounding x / log 2 costs exp(-x) as many units of the last place as x / log 2 has ones: x of them."""
    x_X = numpy.linspace(-87, 87, LANES * 5000).astype(numpy.float32)
    y_X = numpy.empty_like(x_X)
    _sigmoids(x_X, y_X)
    exact_X = EXACT[sigmoid](x_X.astype(numpy.float64))
    allowed_X = (5 + 2 * numpy.abs(numpy.minimum(x_X, 0))) * 2**-24
    assert (numpy.abs(y_X / exact_X - 1) < allowed_X).all()


def test_sigmoids_at_the_limits_and_of_nan() -> None:
    x_X = numpy.array([0, numpy.inf, -numpy.inf, -1e30, 1e30, numpy.nan, 200, -200] * 2, numpy.float32)
    y_X = numpy.empty_like(x_X)
    _sigmoids(x_X, y_X)
    limits_X = numpy.array([0.5, 1, 0, 0, 1, numpy.nan, 1, 0] * 2, numpy.float32)
    numpy.testing.assert_allclose(y_X, limits_X, rtol=0, atol=1e-37)
