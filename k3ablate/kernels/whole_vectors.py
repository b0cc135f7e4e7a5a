"""How does a matrix whose rows end within a vector get into a numba kernel, and back? With zeros up to whole vectors.

Kernels that read a matrix many times make it wide once, and from then on load and store nothing but whole vectors, as
`products.py` demands. All arrays are float32 and C-contiguous. Who touches a row once uses `vector.load_first`.
"""

from typing import Any

import numba

from k3ablate.kernels.vector import LANES, load, load_first, store, store_first, transpose

compiled = numba.njit(cache=True, nogil=True, error_model="numpy")


@compiled
def whole(number: int) -> Any:
    """The next multiple of a vector's lanes."""
    return (number + LANES - 1) // LANES * LANES


@compiled
def widen(matrix: Any, wide: Any) -> None:
    """Copy a matrix into the first rows of a wide one, and zeros behind them."""
    num_columns = matrix.shape[1]
    for i in range(matrix.shape[0]):
        for j in range(0, wide.shape[1], LANES):
            store(wide, i * wide.shape[1] + j, load_first(matrix, i * num_columns + j, num_columns - j))


@compiled
def narrow(wide: Any, matrix: Any) -> None:
    """Copy what a matrix has room for from a wide one."""
    num_columns = matrix.shape[1]
    for i in range(matrix.shape[0]):
        for j in range(0, wide.shape[1], LANES):
            store_first(matrix, i * num_columns + j, num_columns - j, load(wide, i * wide.shape[1] + j))


@compiled
def widen_transposed(matrix: Any, wide: Any, transposed: Any) -> None:
    """Copy the transpose of a matrix into a wide one; `wide` has room for the matrix and whole vectors of rows too.

    Rows of `wide` that the matrix lacks hold zeros and keep them.
    """
    widen(matrix, wide)
    num_rows, num_columns = wide.shape
    for i in range(0, num_rows, LANES):
        for j in range(0, num_columns, LANES):
            transpose(wide, i * num_columns + j, num_columns, transposed, j * num_rows + i, num_rows)
