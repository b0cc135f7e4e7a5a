"""Are heads turned by their positions, in one pass as in torch?"""

import pytest
import torch
from torch import Tensor

from k3ablate.kernels import dispatch
from k3ablate.kernels.rotary import rotary, rotary_plain
from k3ablate.kernels.rotary_numba import numba_rotary

BASE = 100.0


def heads(length: int, width: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, length, 3, width, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("width", "turned"), [(8, 8), (12, 4), (6, 2), (40, 24), (5, 0)])
@pytest.mark.parametrize("length", [1, 33, 17, 2000])  # a shorter one after a longer
def test_numba_equals_plain_in_double_precision(length: int, width: int, turned: int) -> None:
    x, given = heads(length, width), heads(length, width, seed=1)
    expected_x = x.clone().requires_grad_()
    expected = rotary_plain(expected_x, turned, BASE)
    (expected_gradient,) = torch.autograd.grad(expected, expected_x, given)
    fast_x = x.float().requires_grad_()
    fast = numba_rotary(fast_x, turned, BASE)
    (gradient,) = torch.autograd.grad(fast, fast_x, given.float())
    torch.testing.assert_close(fast.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-6, atol=1e-6)
    assert torch.equal(fast[..., : width - turned], x.float()[..., : width - turned])


def test_plain_is_a_product_with_unit_complex_numbers() -> None:
    x, position = heads(30, 10), 29
    pairs = torch.complex(x[:, position, :, 4:7], x[:, position, :, 7:])
    angles = position * BASE ** (-torch.arange(3, dtype=torch.float64) / 3)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    expected = torch.cat([x[:, position, :, :4], turned.real, turned.imag], dim=-1)
    torch.testing.assert_close(rotary_plain(x, 6, BASE)[:, position], expected)


def test_heads_that_lie_apart_in_memory() -> None:
    x = heads(9, 16).float()[..., 3:9]
    torch.testing.assert_close(numba_rotary(x, 4, BASE), rotary_plain(x, 4, BASE))


def test_tables_made_without_gradients_serve_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    x = heads(21, 4).float().requires_grad_()
    with torch.inference_mode():
        expected = rotary(x, 4, 77.0)
    turned = rotary(x, 4, 77.0)
    turned.square().sum().backward()
    assert torch.equal(turned, expected)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * x.detach())  # turning keeps lengths


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_result_has_the_dtype_of_its_input(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    assert rotary(heads(3, 4).to(dtype), 2, BASE).dtype is dtype
    assert dispatch.used()["rotary"] == ("numba" if dtype is torch.float32 else "torch")
