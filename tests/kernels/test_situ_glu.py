"""Is the fused activation the function written out, in values and both gradients?"""

import pytest
import torch
from torch import Tensor

from k3ablate.kernels import dispatch
from k3ablate.kernels.situ_glu import SiTUGLUFunction, situ_glu, situ_glu_plain
from k3ablate.kernels.situ_glu_numba import numba_situ_glu

BOUNDS = (4.0, 25.0)


def results(function: SiTUGLUFunction, gate: Tensor, up: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (gate, up)]
    hidden = function(*leaves, *BOUNDS)
    return (hidden, *torch.autograd.grad((hidden * torch.linspace(-1, 2, hidden.shape[-1])).sum(), leaves))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 60.0])
@pytest.mark.parametrize("shape", [(1,), (15,), (3, 17), (2, 5, 33), (0, 4)])
def test_numba_equals_plain_in_double_precision(shape: tuple[int, ...], scale: float) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    gate, up = (scale * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = results(situ_glu_plain, gate, up, torch.float64)
    for one, other in zip(results(numba_situ_glu, gate, up, torch.float32), expected, strict=True):
        assert (one - other).norm() <= 1e-6 * other.norm() + 1e-8 * scale**2  # 1 - tanh^2 cancels


def test_halves_of_one_product_are_taken_as_they_are() -> None:
    both = torch.randn(6, 14, generator=torch.Generator().manual_seed(0))
    gate, up = both.chunk(2, dim=-1)
    for one, other in zip(
        results(numba_situ_glu, gate, up, torch.float32),
        results(situ_glu_plain, gate, up, torch.float32),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_nan_is_passed_on_and_reaches_no_neighbour() -> None:
    gate, up = torch.ones(40), torch.ones(40)
    gate[3], up[20] = torch.nan, torch.nan
    for result in results(numba_situ_glu, gate, up, torch.float32):
        assert result.isnan().nonzero().flatten().tolist() == [3, 20]


def test_dispatch_takes_numba_for_float32_and_torch_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    for dtype, name in ((torch.float32, "numba"), (torch.float64, "torch")):
        situ_glu(torch.ones(3, dtype=dtype), torch.ones(3, dtype=dtype), *BOUNDS)
        assert dispatch.used()["situ_glu"] == name
