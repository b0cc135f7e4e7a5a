"""One thread for torch: on small tensors and busy cores more of them make tests ten times slower."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
