"""Is the fused gate a sigmoid and a product, in values and both gradients?"""

import pytest
import torch
from torch import Tensor

from k3ablate.kernels import dispatch
from k3ablate.kernels.output_gate import OutputGateFunction, output_gate, output_gate_plain
from k3ablate.kernels.output_gate_numba import numba_output_gate


def results(function: OutputGateFunction, found: Tensor, gate: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    leaves = [tensor.to(dtype).requires_grad_() for tensor in (found, gate)]
    gated = function(*leaves)
    return (gated, *torch.autograd.grad((gated * torch.linspace(-1, 2, gated.shape[-1])).sum(), leaves))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("shape", [(1,), (15,), (16,), (3, 17), (2, 5, 33), (0, 4)], ids=str)
def test_numba_equals_plain_in_double_precision(shape: tuple[int, ...], scale: float) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    found, gate = (scale * torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    expected = results(output_gate_plain, found, gate, torch.float64)
    for one, other in zip(results(numba_output_gate, found, gate, torch.float32), expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).norm() <= 3e-6 * other.norm() + 1e-7 * scale  # 1 - sigmoid cancels


def test_operands_that_lie_apart_in_memory() -> None:
    generator = torch.Generator().manual_seed(0)
    found, gate = (torch.randn(7, 6, generator=generator, dtype=torch.float64).T for _ in range(2))
    expected = results(output_gate_plain, found, gate, torch.float64)
    for one, other in zip(results(numba_output_gate, found, gate, torch.float32), expected, strict=True):
        assert (one - other).norm() <= 3e-6 * other.norm()


def test_nan_is_passed_on_and_reaches_no_neighbour() -> None:
    found, gate = torch.ones(40), torch.ones(40)
    found[3], gate[20] = torch.nan, torch.nan
    gated = numba_output_gate(found, gate)
    assert gated.isnan().nonzero().flatten().tolist() == [3, 20]


def test_dispatch_takes_numba_for_float32_and_torch_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    for dtype, name in ((torch.float32, "numba"), (torch.float64, "torch")):
        output_gate(torch.ones(3, dtype=dtype), torch.ones(3, dtype=dtype))
        assert dispatch.used()["output_gate"] == name
