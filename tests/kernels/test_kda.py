"""The recurrence against an independent one, and every fast form against the recurrence."""

import functools
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from k3ablate.kernels import dispatch
from k3ablate.kernels.kda import KdaFunction, chunked_kda, kda, recurrent_kda
from k3ablate.kernels.kda_numba import numba_kda

LENGTHS = (1, 15, 16, 17, 32, 63, 257)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
FAST_FORMS = [
    pytest.param(chunked_kda, torch.float64, id="chunked-float64"),
    pytest.param(chunked_kda, torch.float32, id="chunked-float32"),
    pytest.param(numba_kda, torch.float32, id="numba-float32"),
]


def kda_inputs(length: int, key_width: int = 16, value_width: int = 24) -> list[Tensor]:
    """Query, key, value, log-decay in (-5, 0), write strength and initial state, in float64."""
    generator = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=generator, dtype=torch.float64)

    query, key = (functional.normalize(normal(length, 3, key_width), dim=-1) for _ in range(2))
    log_decay = -5 * (normal(length, 3, key_width) - 1).sigmoid()
    strength = normal(length, 3).sigmoid()
    return [query, key, normal(length, 3, value_width), log_decay, strength, normal(3, key_width, value_width)]


def results_and_gradients(function: KdaFunction, inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Output, final state, and the gradients of a fixed weighing of both with respect to every input."""
    leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    results = function(*leaves)
    weighed = sum((result * torch.linspace(-1, 2, result.numel()).view_as(result)).sum() for result in results)
    return [*results, *torch.autograd.grad(weighed, leaves)]


@functools.cache
def expected_at(length: int) -> list[Tensor]:
    """Results and gradients of the definition in float64, for the inputs of `kda_inputs(length)`."""
    return results_and_gradients(recurrent_kda, kda_inputs(length), torch.float64)


def assert_close(actual: list[Tensor], expected: list[Tensor], tolerance: float, smallest: float = 0.0) -> None:
    """Each tensor within `tolerance` of the expected one, relative to its norm or, where that is less, `smallest`."""
    for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
        error, norm = (one.double() - other.double()).norm().item(), other.double().norm().item()
        assert error <= tolerance * max(norm, smallest), f"tensor {index}: error {error}, norm {norm}"


def naive_recurrent_kda() -> Callable[..., tuple[Tensor, Tensor]]:
    """The public plain implementation; its import warns about a missing GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fla.ops.kda.naive import naive_recurrent_kda as function
    return function


def test_recurrence_equals_public_one():
    inputs = [tensor.float() for tensor in kda_inputs(37)]
    expected = naive_recurrent_kda()(*inputs[:5], scale=1.0, initial_state=inputs[5], output_final_state=True)
    assert_close(list(recurrent_kda(*inputs)), list(expected), 1e-6)


def test_recurrence_by_hand():
    """One head, one key channel: 4 is remembered at 1/2, recalled as 2, corrected half-way towards 6."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    output, state = recurrent_kda(3 * one, one, 6 * one, (one / 2).log(), one[..., 0] / 2, 4 * one)
    assert state.item() == pytest.approx(4)
    assert output.item() == pytest.approx(12)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(("function", "dtype"), FAST_FORMS)
def test_fast_equals_recurrence(function: KdaFunction, dtype: torch.dtype, length: int):
    assert_close(results_and_gradients(function, kda_inputs(length), dtype), expected_at(length), TOLERANCE[dtype])


@pytest.mark.parametrize("log_decay", [-5.0, -1e-6, 0.0, -60.0])
@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("function", "dtype"), FAST_FORMS)
def test_fast_equals_recurrence_at_extremes(
    function: KdaFunction, dtype: torch.dtype, log_decay: float, strength: float
):
    inputs = kda_inputs(50)
    inputs[3], inputs[4] = torch.full_like(inputs[3], log_decay), torch.full_like(inputs[4], strength)
    expected = results_and_gradients(recurrent_kda, inputs, torch.float64)
    # Some results vanish here, to 1e-150 and less, and an exponent of -80 in float32 is good to 5e-6 only.
    assert_close(results_and_gradients(function, inputs, dtype), expected, 3 * TOLERANCE[dtype], smallest=0.1)


@pytest.mark.parametrize(("key_width", "value_width"), [(2, 1), (6, 16), (20, 33)])
@pytest.mark.parametrize(("function", "dtype"), FAST_FORMS)
def test_fast_equals_recurrence_at_odd_widths(
    function: KdaFunction, dtype: torch.dtype, key_width: int, value_width: int
):
    inputs = kda_inputs(40, key_width, value_width)
    expected = results_and_gradients(recurrent_kda, inputs, torch.float64)
    assert_close(results_and_gradients(function, inputs, dtype), expected, TOLERANCE[dtype])


@pytest.mark.parametrize("function", [recurrent_kda, chunked_kda, numba_kda])
def test_no_initial_state_is_zeros(function: KdaFunction):
    *inputs, state = (tensor.float() for tensor in kda_inputs(20))
    for with_none, with_zeros in zip(function(*inputs, None), function(*inputs, 0 * state), strict=True):
        assert torch.equal(with_none, with_zeros)


@pytest.mark.parametrize("function", [chunked_kda, numba_kda])
def test_two_halves_equal_the_whole(function: KdaFunction):
    *inputs, state = (tensor.float() for tensor in kda_inputs(90))
    whole, final = function(*inputs, state)
    first, between = function(*(tensor[:, :41] for tensor in inputs), state)
    second, last = function(*(tensor[:, 41:] for tensor in inputs), between)
    assert_close([torch.cat([first, second], dim=1), last], [whole, final], 1e-5)


@pytest.mark.parametrize("function", [chunked_kda, numba_kda])
def test_causal(function: KdaFunction):
    *inputs, state = (tensor.float() for tensor in kda_inputs(50))
    changed = [torch.cat([tensor[:, :21], 0.5 * tensor[:, 21:]], dim=1) for tensor in inputs]
    before, after = function(*inputs, state)[0], function(*changed, state)[0]
    assert torch.equal(before[:, :21], after[:, :21])
    assert not torch.allclose(before[:, 21:], after[:, 21:])


def test_numba_passes_nan_on():
    inputs = [tensor.float() for tensor in kda_inputs(40)]
    inputs[2][0, 3, 0, 0] = torch.nan
    output, _ = numba_kda(*inputs)
    assert output[0, 3:, 0, 0].isnan().all()
    assert output[0, :3].isfinite().all()


def test_dispatch_takes_numba_for_float32_and_torch_otherwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    inputs = kda_inputs(5)
    kda(*(tensor.float() for tensor in inputs))
    assert dispatch.used()["kda"] == "numba"
    kda(*inputs)
    assert dispatch.used()["kda"] == "torch"
