"""One thread for torch and for numpy's BLAS: on small arrays and busy cores more of them cost several times the time.

Processes that tests start inherit the second; workers set both for themselves.
"""

import os

import pytest

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported, by torch or by a test


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
