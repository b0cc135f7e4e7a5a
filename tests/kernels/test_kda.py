"""The recurrence against an independent one, and every fast form against the recurrence."""

import functools
import itertools
import warnings
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from k3ablate.kernels import dispatch
from k3ablate.kernels.kda import KdaFunction, chunked_kda, kda, recurrent_kda
from k3ablate.kernels.kda_numba import numba_kda

LENGTHS = (1, 15, 16, 17, 32, 63, 257)
CUTS = (1, 1, 15, 16, 17, 40)  # lengths of segments
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
FAST_FORMS = [
    pytest.param(chunked_kda, torch.float64, id="chunked-float64"),
    pytest.param(chunked_kda, torch.float32, id="chunked-float32"),
    pytest.param(numba_kda, torch.float32, id="numba-float32"),
]
every_fast_form = pytest.mark.parametrize(("function", "dtype"), FAST_FORMS)


def kda_inputs(
    length: int, key_width: int = 16, value_width: int = 24, batch: int = 2, num_heads: int = 3
) -> list[Tensor]:
    """Query, key, value, log-decay in (-5, 0), write strength and initial state, in float64."""
    generator = torch.Generator().manual_seed(length)

    def normal(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=generator, dtype=torch.float64)

    keys = (length, num_heads, key_width)
    query, key = (functional.normalize(normal(*keys), dim=-1) for _ in range(2))
    log_decay = -5 * (normal(*keys) - 1).sigmoid()
    strength = normal(length, num_heads).sigmoid()
    state = normal(num_heads, key_width, value_width)
    return [query, key, normal(length, num_heads, value_width), log_decay, strength, state]


EXTREMES = list(itertools.product([-5.0, -1e-6, 0.0, -60.0], [0.0, 0.5, 1.0]))  # log-decay and write strength


def inputs_at_extremes(length: int) -> list[Tensor]:
    """A batch of the same inputs, each with one log-decay and one write strength of EXTREMES throughout."""
    batch = [tensor.repeat(len(EXTREMES), *[1] * (tensor.ndim - 1)) for tensor in kda_inputs(length, batch=1)]
    for index, (log_decay, strength) in enumerate(EXTREMES):
        batch[3][index], batch[4][index] = log_decay, strength
    return batch


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


@functools.cache
def expected_at_extremes(length: int) -> list[Tensor]:
    """As `expected_at`, for `inputs_at_extremes(length)`."""
    return results_and_gradients(recurrent_kda, inputs_at_extremes(length), torch.float64)


def assert_close(actual: Iterable[Tensor], expected: Iterable[Tensor], tolerance: float) -> None:
    """Each tensor within `tolerance` of the norm of the expected one; what its dtype cannot hold may be zero."""
    for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
        assert one.isfinite().all()
        error, norm = (one.double() - other.double()).norm().item(), other.double().norm().item()
        assert error <= tolerance * max(norm, torch.finfo(one.dtype).tiny), f"tensor {index}: {error} of {norm}"


def cut(function: KdaFunction) -> KdaFunction:
    """`function` over segments of CUTS, each starting from the state of the one before."""

    def by_segments(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        *sequences, state = inputs
        outputs = []
        for segment in zip(*(tensor.split(CUTS, dim=1) for tensor in sequences), strict=True):
            output, state = function(*segment, state)
            outputs.append(output)
        return torch.cat(outputs, dim=1), state

    return by_segments


def public_kda(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The public plain implementation, which works in float32; its import warns about a missing GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fla.ops.kda.naive import naive_recurrent_kda
    return naive_recurrent_kda(*inputs[:5], scale=1.0, initial_state=inputs[5], output_final_state=True)


def test_recurrence_equals_public_one_in_results_and_gradients():
    actual, expected = (
        results_and_gradients(function, kda_inputs(37), torch.float32) for function in (recurrent_kda, public_kda)
    )
    assert_close(actual, expected, 1e-6)


def test_recurrence_by_hand():
    """One head, one key channel: 4 is remembered at 1/2, recalled as 2, corrected half-way towards 6."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    output, state = recurrent_kda(3 * one, one, 6 * one, (one / 2).log(), one[..., 0] / 2, 4 * one)
    assert state.item() == pytest.approx(4)
    assert output.item() == pytest.approx(12)


@pytest.mark.parametrize("length", LENGTHS)
@every_fast_form
def test_fast_equals_recurrence(function: KdaFunction, dtype: torch.dtype, length: int):
    assert_close(results_and_gradients(function, kda_inputs(length), dtype), expected_at(length), TOLERANCE[dtype])


@pytest.mark.parametrize("length", LENGTHS)
@every_fast_form
def test_fast_equals_recurrence_at_extremes(function: KdaFunction, dtype: torch.dtype, length: int):
    actual = results_and_gradients(function, inputs_at_extremes(length), dtype)
    expected = expected_at_extremes(length)
    for index in range(len(EXTREMES)):
        assert_close((one[index] for one in actual), (other[index] for other in expected), TOLERANCE[dtype])


@pytest.mark.parametrize("width", [16, 32, 64, 128])
@every_fast_form
def test_fast_equals_recurrence_for_a_batch_of_one_in_heads_of(function: KdaFunction, dtype: torch.dtype, width: int):
    """The first head with decays as they come, the others at both extremes."""
    inputs = kda_inputs(63, width, width, batch=1, num_heads=3)
    inputs[3][:, :, 1], inputs[3][:, :, 2] = -5.0, -1e-6
    expected = results_and_gradients(recurrent_kda, inputs, torch.float64)
    actual = results_and_gradients(function, inputs, dtype)
    heads = [2, 1, 2, 2, 2, 2, 2, 1]  # axis of output, final state, and the gradients of all inputs
    for head in range(3):
        assert_close(
            (tensor.select(axis, head) for tensor, axis in zip(actual, heads, strict=True)),
            (tensor.select(axis, head) for tensor, axis in zip(expected, heads, strict=True)),
            TOLERANCE[dtype],
        )


@pytest.mark.parametrize(("key_width", "value_width"), [(2, 1), (3, 5), (6, 16), (20, 33)])
@every_fast_form
def test_fast_equals_recurrence_at_odd_widths(
    function: KdaFunction, dtype: torch.dtype, key_width: int, value_width: int
):
    inputs = kda_inputs(40, key_width, value_width)
    expected = results_and_gradients(recurrent_kda, inputs, torch.float64)
    assert_close(results_and_gradients(function, inputs, dtype), expected, TOLERANCE[dtype])


@pytest.mark.parametrize("width", [4, 8, 12, 16, 24])
@pytest.mark.parametrize("num_heads", [2, 13])
@every_fast_form
def test_fast_equals_recurrence_where_heads_share_a_vector(
    function: KdaFunction, dtype: torch.dtype, width: int, num_heads: int
):
    """Each head of 13 at another extreme or with decays as they come, so that the last vector has lanes to spare."""
    inputs = kda_inputs(37, width, width, num_heads=num_heads)
    for head, (log_decay, strength) in zip(range(1, num_heads), EXTREMES, strict=False):
        inputs[3][:, :, head], inputs[4][:, :, head] = log_decay, strength
    expected = results_and_gradients(recurrent_kda, inputs, torch.float64)
    actual = results_and_gradients(function, inputs, dtype)
    axes = [2, 1, 2, 2, 2, 2, 2, 1]  # of heads, in output, final state, and the gradients of all inputs
    for head in range(num_heads):
        assert_close(
            (tensor.select(axis, head) for tensor, axis in zip(actual, axes, strict=True)),
            (tensor.select(axis, head) for tensor, axis in zip(expected, axes, strict=True)),
            TOLERANCE[dtype],
        )


@pytest.mark.parametrize("length", LENGTHS)
def test_numba_equals_recurrence_where_heads_share_a_vector_at(length: int):
    inputs = kda_inputs(length, 7, 8, num_heads=5)
    expected = results_and_gradients(recurrent_kda, inputs, torch.float64)
    assert_close(results_and_gradients(numba_kda, inputs, torch.float32), expected, TOLERANCE[torch.float32])


@pytest.mark.parametrize("broken", range(6))
def test_numba_keeps_nan_to_its_head(broken: int):
    """NaN in one operand of the second of five heads, of which four share a vector."""
    inputs = kda_inputs(40, 4, 4, num_heads=5)
    before = results_and_gradients(numba_kda, inputs, torch.float32)
    axes = [2, 1, 2, 2, 2, 2, 2, 1]  # of heads
    inputs[broken].select(axes[2 + broken], 1).fill_(torch.nan)
    after = results_and_gradients(numba_kda, inputs, torch.float32)
    assert after[0][:, :, 1].isnan().any()
    others = torch.tensor([0, 2, 3, 4])
    for tensor, was, axis in zip(after, before, axes, strict=True):
        assert torch.equal(tensor.index_select(axis, others), was.index_select(axis, others))


@every_fast_form
def test_fast_equals_recurrence_with_one_key_written_over_and_over(function: KdaFunction, dtype: torch.dtype):
    """The hardest system a chunk can pose: each write undoes the one before."""
    inputs = kda_inputs(70)
    inputs[3].fill_(-1e-3)
    inputs[4].fill_(1.0)
    inputs[1] = inputs[1][:, :1].expand_as(inputs[1])
    expected = results_and_gradients(recurrent_kda, inputs, torch.float64)
    assert_close(results_and_gradients(function, inputs, dtype), expected, TOLERANCE[dtype])


@every_fast_form
def test_fast_equals_recurrence_where_channels_forget_at_once_or_never(function: KdaFunction, dtype: torch.dtype):
    """Decays far apart side by side, also beyond what the softplus form reaches, and tokens without key and query."""
    inputs = kda_inputs(70)
    decays = torch.tensor([0.0, -1e-3, -5.0, -60.0, -1e4], dtype=torch.float64)
    inputs[3] = decays[torch.randint(5, inputs[3].shape, generator=torch.Generator().manual_seed(0))]
    inputs[0][:, 20:25], inputs[1][:, 22:27] = 0, 0
    inputs[2] *= 1e4
    expected = results_and_gradients(recurrent_kda, inputs, torch.float64)
    assert_close(results_and_gradients(function, inputs, dtype), expected, TOLERANCE[dtype])


@pytest.mark.parametrize("function", [recurrent_kda, chunked_kda, numba_kda])
def test_no_initial_state_is_zeros(function: KdaFunction):
    *inputs, state = (tensor.float() for tensor in kda_inputs(20))
    for with_none, with_zeros in zip(function(*inputs, None), function(*inputs, 0 * state), strict=True):
        assert torch.equal(with_none, with_zeros)


@every_fast_form
def test_segments_that_hand_the_state_over_equal_the_whole(function: KdaFunction, dtype: torch.dtype):
    length = sum(CUTS)
    assert_close(results_and_gradients(cut(function), kda_inputs(length), dtype), expected_at(length), TOLERANCE[dtype])


@pytest.mark.parametrize("function", [chunked_kda, numba_kda])
def test_causal(function: KdaFunction):
    *inputs, state = (tensor.float() for tensor in kda_inputs(50))
    changed = [torch.cat([tensor[:, :21], 0.5 * tensor[:, 21:]], dim=1) for tensor in inputs]
    before, after = function(*inputs, state)[0], function(*changed, state)[0]
    assert torch.equal(before[:, :21], after[:, :21])
    assert not torch.allclose(before[:, 21:], after[:, 21:])


@pytest.mark.parametrize("width", [8, 16])
def test_the_number_of_threads_changes_no_bit(width: int):
    """Three threads take parts that begin inside a sequence; heads of 8 go by twos."""
    inputs = kda_inputs(40, width, width, num_heads=7)
    alone = results_and_gradients(numba_kda, inputs, torch.float32)
    for num_threads in (2, 3):
        torch.set_num_threads(num_threads)
        try:
            shared = results_and_gradients(numba_kda, inputs, torch.float32)
        finally:
            torch.set_num_threads(1)
        for one, other in zip(alone, shared, strict=True):
            assert torch.equal(one, other)


def test_numba_passes_nan_on():
    inputs = [tensor.float() for tensor in kda_inputs(40)]
    inputs[2][0, 3, 0, 0] = torch.nan
    output, _ = numba_kda(*inputs)
    assert output[0, 3:, 0, 0].isnan().all()
    assert output[0, :3].isfinite().all()


@pytest.mark.parametrize("broken", range(6))
def test_numba_keeps_nan_to_its_sequence(broken: int):
    """NaN in one operand of the first of two sequences, whose rooms for widths of 3 and 5 the second one takes over."""
    inputs = kda_inputs(40, key_width=3, value_width=5)
    inputs[broken][0] = torch.nan
    together = results_and_gradients(numba_kda, inputs, torch.float32)
    leaves = [tensor[1:].float().requires_grad_() for tensor in inputs]
    output, state = numba_kda(*leaves)
    assert torch.equal(together[0][1:], output)
    assert torch.equal(together[1][1:], state)
    assert all(gradient[1].isfinite().all() for gradient in together[2:])


def test_dispatch_takes_numba_for_float32_and_torch_otherwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    inputs = kda_inputs(5)
    kda(*(tensor.float() for tensor in inputs))
    assert dispatch.used()["kda"] == "numba"
    kda(*inputs)
    assert dispatch.used()["kda"] == "torch"
