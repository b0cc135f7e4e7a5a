"""Are the fused norms of heads the functions written out, in values and all gradients?"""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from k3ablate.kernels import dispatch, head_norms, head_norms_numba

Forms = tuple[Callable[..., Tensor], Callable[..., Tensor]]
UNIT_LENGTH: Forms = (
    lambda x: head_norms_numba.unit_length(x, 0.3, 1e-6),
    lambda x: head_norms.unit_length_plain(x, 0.3, 1e-6),
)
GATED_NORM: Forms = (
    lambda x, gate, weight: head_norms_numba.gated_norm(x, gate, weight, 1e-5),
    lambda x, gate, weight: head_norms.gated_norm_plain(x, gate, weight, 1e-5),
)


def results(function: Callable[..., Tensor], inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The value and the gradients of a fixed weighing of it with respect to every input."""
    leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    y = function(*leaves)
    return [y, *torch.autograd.grad((y * torch.linspace(-1, 2, y.numel()).view_as(y)).sum(), leaves)]


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def assert_equal_forms(forms: Forms, inputs: Sequence[Tensor]) -> None:
    numba_form, plain = forms
    expected = results(plain, inputs, torch.float64)
    for one, other in zip(results(numba_form, inputs, torch.float32), expected, strict=True):
        assert (one - other).norm() <= 3e-6 * other.norm()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 3, 1, 15), (1, 5, 3, 8), (2, 7, 2, 33), (1, 2, 1, 128)])
def test_numba_equals_plain_in_double_precision(shape: tuple[int, ...], scale: float) -> None:
    x = scale * normal(*shape)
    assert_equal_forms(UNIT_LENGTH, [x])
    assert_equal_forms(GATED_NORM, [x, 3 * normal(*shape).flip(1), normal(shape[-1])])


def test_heads_of_zeros_stay_zero_with_finite_gradients() -> None:
    zeros = torch.zeros(1, 2, 3, 8)
    for result in results(UNIT_LENGTH[0], [zeros], torch.float32):
        assert result.isfinite().all()
    for result in results(GATED_NORM[0], [zeros, zeros, torch.ones(8)], torch.float32):
        assert result.isfinite().all()
    assert not UNIT_LENGTH[0](zeros).any()


def test_operands_that_lie_apart_in_memory() -> None:
    x = normal(2, 3, 5, 8).transpose(1, 2)
    assert_equal_forms(UNIT_LENGTH, [x])
    assert_equal_forms(GATED_NORM, [x, normal(2, 3, 5, 8).transpose(1, 2), normal(8)])


def test_nan_is_passed_on_and_stays_in_its_head() -> None:
    x = torch.ones(1, 2, 3, 8)
    x[0, 1, 2, 4] = torch.nan
    for y in (UNIT_LENGTH[0](x), GATED_NORM[0](x, torch.ones_like(x), torch.ones(8))):
        assert y[0, 1, 2].isnan().all()
        assert y.isnan().sum() == 8


def test_dispatch_takes_numba_for_float32_and_torch_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    for dtype, name in ((torch.float32, "numba"), (torch.float64, "torch")):
        x = torch.ones(1, 1, 1, 8, dtype=dtype)
        head_norms.gated_norm(head_norms.unit_length(x), x, x.flatten(), 1e-5)
        assert dispatch.used()["gated_norm"] == dispatch.used()["unit_length"] == name
