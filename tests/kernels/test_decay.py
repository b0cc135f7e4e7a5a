"""Is the fused decay the function written out, in values and the gradients of logits, bias and rate?"""

import math

import pytest
import torch
from torch import Tensor

from k3ablate.kernels import dispatch
from k3ablate.kernels.decay import BoundedDecayFunction, bounded_decay, bounded_decay_plain
from k3ablate.kernels.decay_numba import numba_bounded_decay

BOUND = -5.0


def results(function: BoundedDecayFunction, inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The value and the gradients of a fixed weighing of it."""
    leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    decay = function(leaves[0], leaves[1], leaves[2], BOUND)
    weights = torch.linspace(-1, 2, decay.numel(), dtype=dtype).view_as(decay)
    return [decay, *torch.autograd.grad((decay * weights).sum(), leaves)]


def inputs(batch: int, length: int, num_heads: int, num_keys: int, scale: float) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    shapes = ((batch, length, num_heads, num_keys), (num_heads, num_keys), (num_heads,))
    logits, bias, rate = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return [scale * logits, bias, rate]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 10.0])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 15, 3, 8), (1, 17, 13, 8), (3, 2, 1, 33), (2, 5, 2, 128)], ids=str)
def test_numba_equals_plain_in_double_precision(shape: tuple[int, int, int, int], scale: float) -> None:
    given = inputs(*shape, scale)
    expected = results(bounded_decay_plain, given, torch.float64)
    for one, other in zip(results(numba_bounded_decay, given, torch.float32), expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).norm() <= 3e-6 * other.norm() + 1e-6 * scale  # 1 - sigmoid cancels


def test_by_hand() -> None:
    """Logit 1 and bias log 3 - 1 at rate 1: -5 x 3/4; at rate 2: -5 x 9/10."""
    bias_HK, A_log_H = torch.full((2, 1), math.log(3) - 1), torch.tensor([0.0, math.log(2)])
    decay_BTHK = numba_bounded_decay(torch.ones(1, 1, 2, 1), bias_HK, A_log_H, BOUND)
    torch.testing.assert_close(decay_BTHK.flatten(), torch.tensor([-3.75, -4.5]))


def test_both_extremes_are_reached_with_finite_gradients() -> None:
    logits_BTHK = torch.tensor([-1e30, -200.0, 200.0, 1e30]).view(1, 4, 1, 1)
    decay, *gradients = results(numba_bounded_decay, [logits_BTHK, torch.zeros(1, 1), torch.zeros(1)], torch.float32)
    torch.testing.assert_close(decay.flatten(), torch.tensor([0.0, 0.0, BOUND, BOUND]))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_logits_that_lie_apart_in_memory() -> None:
    given = inputs(2, 5, 3, 8, 1.0)
    given[0] = given[0].transpose(0, 1)
    expected = results(bounded_decay_plain, given, torch.float64)
    for one, other in zip(results(numba_bounded_decay, given, torch.float32), expected, strict=True):
        assert (one - other).norm() <= 3e-6 * other.norm()


def test_nan_is_passed_on_and_reaches_no_neighbour() -> None:
    given = [tensor.float() for tensor in inputs(1, 3, 2, 20, 1.0)]
    given[0][0, 1, 1, 7] = torch.nan
    decay = numba_bounded_decay(given[0], given[1], given[2], BOUND)
    assert decay.isnan().nonzero().tolist() == [[0, 1, 1, 7]]


def test_dispatch_takes_numba_for_float32_and_torch_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    for dtype, name in ((torch.float32, "numba"), (torch.float64, "torch")):
        bounded_decay(*(torch.ones(shape, dtype=dtype) for shape in ((1, 1, 2, 3), (2, 3), (2,))), BOUND)
        assert dispatch.used()["bounded_decay"] == name
