"""Is the fused short convolution the one that torch computes, in values and both gradients?"""

import pytest
import torch
from torch import Tensor

from k3ablate.kernels import dispatch
from k3ablate.kernels.short_convolution import (
    ShortConvolutionFunction,
    short_convolution,
    short_convolution_plain,
)
from k3ablate.kernels.short_convolution_numba import numba_short_convolution


def results(function: ShortConvolutionFunction, inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The value and the gradients of a fixed weighing of it."""
    leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    y = function(*leaves)
    return [y, *torch.autograd.grad((y * torch.linspace(-1, 2, y.numel()).view_as(y)).sum(), leaves)]


def inputs(batch: int, length: int, num_channels: int, width: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = ((batch, length, num_channels), (batch, width - 1, num_channels), (num_channels, width))
    x, before, weight = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [3 * x, 3 * before, weight]


@pytest.mark.parametrize("width", [1, 2, 4, 5])
@pytest.mark.parametrize(("batch", "length", "num_channels"), [(1, 1, 1), (2, 15, 17), (1, 33, 72), (3, 2, 16)])
def test_numba_equals_plain_in_double_precision(batch: int, length: int, num_channels: int, width: int) -> None:
    given = inputs(batch, length, num_channels, width)
    expected = results(short_convolution_plain, given, torch.float64)
    for one, other in zip(results(numba_short_convolution, given, torch.float32), expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).norm() <= 3e-6 * other.norm()


def test_by_hand() -> None:
    """Weights 1, 10 over inputs 1, then 2, 3: 21 and 32, and SiLU leaves such numbers as they are."""
    x_BTP, before_BUP = torch.tensor([2.0, 3.0]).view(1, 2, 1), torch.ones(1, 1, 1)
    y_BTP = numba_short_convolution(x_BTP, before_BUP, torch.tensor([[1.0, 10.0]]))
    torch.testing.assert_close(y_BTP.flatten(), torch.tensor([21.0, 32.0]))


def test_nan_reaches_the_positions_that_see_it_and_its_channel_only() -> None:
    x, before, weight = (tensor.float() for tensor in inputs(1, 20, 40, 4))
    x[0, 8, 5], before[0, 1, 30] = torch.nan, torch.nan
    y_BTP = numba_short_convolution(x, before, weight)
    assert y_BTP[0, :, 5].isnan().nonzero().flatten().tolist() == [8, 9, 10, 11]
    assert y_BTP[0, :, 30].isnan().nonzero().flatten().tolist() == [0, 1]
    assert y_BTP.isnan().sum() == 6


def test_dispatch_takes_numba_for_float32_and_torch_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    for dtype, name in ((torch.float32, "numba"), (torch.float64, "torch")):
        short_convolution(*(torch.ones(shape, dtype=dtype) for shape in ((1, 1, 2), (1, 3, 2), (2, 4))))
        assert dispatch.used()["short_convolution"] == name
