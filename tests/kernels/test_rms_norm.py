"""Is the fused RMSNorm torch's own, in values and both gradients?"""

import pytest
import torch
from torch import Tensor

from k3ablate.kernels import dispatch
from k3ablate.kernels.rms_norm import RmsNormFunction, rms_norm, rms_norm_plain
from k3ablate.kernels.rms_norm_numba import numba_rms_norm


def results(function: RmsNormFunction, x: Tensor, weight_D: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The value and the gradients of a fixed weighing of it."""
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (x, weight_D)]
    y = function(*leaves, 1e-5)
    return [y, *torch.autograd.grad((y * torch.linspace(-1, 2, y.numel()).view_as(y)).sum(), leaves)]


def assert_equal_forms(x: Tensor, weight_D: Tensor) -> None:
    expected = results(rms_norm_plain, x, weight_D, torch.float64)
    for one, other in zip(results(numba_rms_norm, x, weight_D, torch.float32), expected, strict=True):
        assert (one - other).norm() <= 3e-6 * other.norm()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("shape", [(2,), (1, 15), (3, 17), (2, 5, 40), (2, 3, 2, 33), (0, 4)])
def test_numba_equals_plain_in_double_precision(shape: tuple[int, ...], scale: float) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    x, weight_D = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in (shape, shape[-1:]))
    assert_equal_forms(scale * x, weight_D)


def test_rows_that_lie_apart_in_memory() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight_D = torch.randn(6, 20, generator=generator), torch.randn(12, generator=generator)
    assert_equal_forms(x[:, 3:15], weight_D)


def test_zeros_stay_zero_with_finite_gradients() -> None:
    y, *gradients = results(numba_rms_norm, torch.zeros(3, 8), torch.ones(8), torch.float32)
    assert not y.any()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_nan_is_passed_on_and_stays_in_its_row() -> None:
    x = torch.ones(3, 40)
    x[1, 7] = torch.nan
    assert numba_rms_norm(x, torch.ones(40), 1e-5).isnan().all(dim=1).tolist() == [False, True, False]


def test_dispatch_takes_numba_for_float32_and_torch_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    for dtype, name in ((torch.float32, "numba"), (torch.float64, "torch")):
        rms_norm(torch.ones(1, 8, dtype=dtype), torch.ones(8, dtype=dtype), 1e-5)
        assert dispatch.used()["rms_norm"] == name
