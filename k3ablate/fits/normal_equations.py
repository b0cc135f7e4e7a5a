"""What does a Newton step solve, and how are its matrices held?

`minimise` works on anything that is `Equations`: a curve with its derivative in a layout of its own, the weighted sums
of products of that derivative, and the step that they give. `Dense` is the plain form for any `Curve`, with a matrix
over all parameters; curves of many arms whose own parameters meet only in the shared ones have `arrow.Arrow`. Nothing
here decides where to search.

Array legend: S starts or draws, N points, V variables, P scaled parameters. Derivatives and matrices of `Equations` are
arrays whose first axis is S; only the equations themselves know their other axes.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from k3ablate.fits.forms import Array

Mask = NDArray[np.bool_]
RIDGE, LEAST_RIDGE = 1e-14, 1e-300  # of the trace, so that a parameter without derivative can be solved for


class Curve(Protocol):
    """What the minimum is searched over: bounds of the scaled parameters, and the curve with its derivative."""

    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds, each [P]."""

    def log_prediction(self, theta_SP: Array, x_NV: Array) -> tuple[Array, Array]:
        """ln L [S, N] and its derivative by the scaled parameters [S, N, P]."""


class Equations(Protocol):
    """A curve together with the normal equations that its derivative gives."""

    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds, each [P]."""

    def log_prediction(self, theta_SP: Array, x_NV: Array) -> tuple[Array, Array]:
        """ln L [S, N] and its derivative."""

    def gradient(self, derivative: Array, factor_SN: Array) -> Array:
        """Sum over the points of factor x derivative [S, P]."""

    def matrix(self, derivative: Array, weight_SN: Array) -> Array:
        """Sum over the points of weight x derivative x derivative; sums of matrices are matrices."""

    def solve(self, matrix: Array, gradient_SP: Array, held_SP: Mask) -> Array:
        """x [S, P] of matrix x = gradient over the parameters that are not held; 0 where they are."""


@dataclass(frozen=True)
class Dense:
    """The plain form: derivative [S, N, P], matrix [S, P, P]."""

    curve: Curve

    def bounds(self) -> tuple[Array, Array]:
        """Those of the curve."""
        return self.curve.bounds()

    def log_prediction(self, theta_SP: Array, x_NV: Array) -> tuple[Array, Array]:
        """Those of the curve."""
        return self.curve.log_prediction(theta_SP, x_NV)

    def gradient(self, derivative: Array, factor_SN: Array) -> Array:
        """[S, P]."""
        return np.asarray((derivative.swapaxes(1, 2) @ factor_SN[..., None])[..., 0])

    def matrix(self, derivative: Array, weight_SN: Array) -> Array:
        """[S, P, P]."""
        return np.asarray((derivative.swapaxes(1, 2) * weight_SN[:, None]) @ derivative)

    def solve(self, matrix: Array, gradient_SP: Array, held_SP: Mask) -> Array:
        """[S, P], by elimination."""
        free_SPP = ~(held_SP[:, :, None] | held_SP[:, None, :])
        identity_PP = np.eye(held_SP.shape[1])
        ridge_S = RIDGE * np.trace(matrix, axis1=1, axis2=2) + LEAST_RIDGE
        held_matrix_SPP = held_SP[:, :, None] * identity_PP
        solvable_SPP = matrix * free_SPP + held_matrix_SPP + ridge_S[:, None, None] * identity_PP
        return np.asarray(np.linalg.solve(solvable_SPP, (gradient_SP * ~held_SP)[..., None])[..., 0])
