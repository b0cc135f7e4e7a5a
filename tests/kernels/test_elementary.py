"""Are the vectorised functions those of the C library, to the precision of float32?"""

from collections.abc import Callable
from typing import Any

import numba
import numpy
import pytest

from k3ablate.kernels.elementary import exponential, sigmoid, tanh

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
