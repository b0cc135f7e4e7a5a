"""Is the fused causal attention torch's own, in values and all gradients, and does it see nothing of the future?"""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from k3ablate.kernels import dispatch
from k3ablate.kernels.causal_attention import CausalAttention, causal_attention, causal_attention_plain
from k3ablate.kernels.causal_attention_numba import numba_causal_attention

LENGTHS = [1, 2, 15, 16, 17, 63, 64, 65, 128, 257, 1000]


class Shape(NamedTuple):
    """Of one call: query heads, key heads, and channels."""

    heads: int
    groups: int
    own: int
    shared: int
    value: int


WIDTHS = [
    Shape(2, 2, 8, 0, 8),
    Shape(2, 2, 8, 4, 8),
    Shape(2, 1, 16, 8, 16),
    Shape(1, 1, 32, 0, 32),
    Shape(1, 1, 64, 0, 64),
    Shape(1, 1, 128, 0, 128),
    Shape(4, 2, 5, 2, 3),
    Shape(3, 1, 2, 0, 1),
    Shape(1, 1, 4, 0, 40),
    Shape(1, 1, 0, 6, 2),
    Shape(1, 1, 256, 1, 17),
]


def operands(length: int, shape: Shape, batch: int = 2) -> list[Tensor]:
    """Query, own key, value and shared key in float64."""
    generator = torch.Generator().manual_seed(length)
    sizes = ((shape.heads, shape.own + shape.shared), (shape.groups, shape.own), (shape.groups, shape.value))
    return [
        torch.randn(batch, length, heads, width, generator=generator, dtype=torch.float64)
        for heads, width in (*sizes, (1, shape.shared))
    ]


def results(function: CausalAttention, inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The output and the gradients of a fixed weighing of it."""
    leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs]
    output = function(*leaves)
    weights = torch.linspace(-1, 2, output.numel(), dtype=dtype).sin().view_as(output)
    return [output, *torch.autograd.grad((output * weights).sum(), leaves)]


def assert_equal_forms(inputs: Sequence[Tensor], tolerance: float = 1e-5) -> None:
    expected = results(causal_attention_plain, inputs, torch.float64)
    for one, other in zip(results(numba_causal_attention, inputs, torch.float32), expected, strict=True):
        assert one.shape == other.shape
        # Where a query sees one token only, its gradient is zero but for rounding.
        assert (one - other).norm() <= tolerance * other.norm() + 1e-6


@pytest.mark.parametrize("length", LENGTHS)
def test_numba_equals_plain_in_double_precision_at_any_length(length: int) -> None:
    assert_equal_forms(operands(length, Shape(4, 2, 8, 4, 8)))


@pytest.mark.parametrize("shape", WIDTHS, ids=str)
@pytest.mark.parametrize("length", [17, 130])
def test_numba_equals_plain_in_double_precision_at_any_width(shape: Shape, length: int) -> None:
    assert_equal_forms(operands(length, shape))


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_flat_and_sharp_softmax(scale: float) -> None:
    query, *others = operands(100, Shape(2, 2, 8, 0, 8))
    assert_equal_forms([scale * query, *others], tolerance=3e-5)  # float32 scores of 100 have an error of 1e-5


@pytest.mark.parametrize("shape", [(0, 5, 2, 4), (2, 0, 2, 4)])
def test_nothing_to_attend(shape: tuple[int, ...]) -> None:
    inputs = [torch.zeros(shape, requires_grad=True) for _ in range(3)]
    output = numba_causal_attention(*inputs)
    assert output.shape == shape
    assert all(gradient.shape == shape for gradient in torch.autograd.grad(output.sum(), inputs))


def test_plain_is_softmax_of_scores_written_out() -> None:
    """Values wider than keys, keys shared by two heads each, and a slice that all heads share."""
    query, key, value, shared = operands(9, Shape(4, 2, 3, 1, 10))
    keys = torch.cat([key, shared.expand(-1, -1, 2, -1)], dim=-1)[:, :, [0, 0, 1, 1]]
    scores = torch.einsum("bthk,bshk->bhts", query, keys) / 2
    weights = scores.masked_fill(torch.ones(9, 9).triu(1).bool(), -torch.inf).softmax(-1)
    expected = torch.einsum("bhts,bshv->bthv", weights, value[:, :, [0, 0, 1, 1]])
    torch.testing.assert_close(causal_attention_plain(query, key, value, shared), expected)


def test_operands_that_lie_apart_in_memory() -> None:
    """Key and value side by side, heads before tokens, channels apart, and a gradient that is one number."""
    generator = torch.Generator().manual_seed(0)
    key_value = torch.randn(2, 19, 3, 11, generator=generator)
    views = [
        torch.randn(2, 3, 19, 6, generator=generator).transpose(1, 2),
        *key_value.split([6, 5], dim=-1),
        torch.randn(2, 19, 0, 1, generator=generator).transpose(2, 3),
    ]
    apart = [torch.randn(2, 6, 19, 3, generator=generator).permute(0, 2, 3, 1), *views[1:]]
    for inputs in (views, apart):
        assert_equal_forms(inputs)
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        summed = torch.autograd.grad(numba_causal_attention(*leaves).sum(), leaves)
        expected = torch.autograd.grad(causal_attention_plain(*leaves).sum(), leaves)
        torch.testing.assert_close(summed, expected, rtol=1e-5, atol=1e-5)


def test_nothing_of_the_future_reaches_an_output() -> None:
    before = [tensor.float() for tensor in operands(50, Shape(2, 2, 6, 2, 5))]
    for position in (1, 15, 16, 17, 33, 49):
        after = [tensor.clone() for tensor in before]
        for tensor in after:
            tensor[:, position:] += 3
        outputs = [numba_causal_attention(*inputs) for inputs in (before, after)]
        assert torch.equal(outputs[0][:, :position], outputs[1][:, :position])
        assert (outputs[0][:, position:] != outputs[1][:, position:]).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("which", range(4))
def test_what_is_not_finite_is_seen_and_does_not_reach_earlier_blocks(which: int, bad: float) -> None:
    inputs = [tensor.abs().float() for tensor in operands(70, Shape(2, 1, 4, 4, 8))]
    position = 37
    inputs[which][:, position] = bad
    leaves = [tensor.requires_grad_() for tensor in inputs]
    output = numba_causal_attention(*leaves)
    seen = slice(position, position + 1) if which == 0 else slice(position, None)
    assert not output[:, seen].isfinite().any()
    assert output[:, : position - position % 16].isfinite().all()
    gradients = torch.autograd.grad(output.nan_to_num(posinf=1).sum(), leaves)
    assert any(not gradient.isfinite().all() for gradient in gradients)


def test_the_number_of_threads_changes_no_bit() -> None:
    inputs = operands(40, Shape(4, 2, 8, 4, 8), batch=3)
    expected = results(numba_causal_attention, inputs, torch.float32)
    for num_threads in (2, 5):
        torch.set_num_threads(num_threads)
        try:
            found = results(numba_causal_attention, inputs, torch.float32)
        finally:
            torch.set_num_threads(1)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_dispatch_takes_numba_for_float32_and_torch_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dispatch.VARIABLE, raising=False)
    for dtype, name in ((torch.float32, "numba"), (torch.float64, "torch")):
        causal_attention(*(tensor.to(dtype) for tensor in operands(3, Shape(2, 1, 4, 2, 3))))
        assert dispatch.used()["causal_attention"] == name


def largest_scores(function: CausalAttention, inputs: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    largest_H = torch.full((inputs[0].shape[2],), -torch.inf, dtype=dtype)
    function(*(tensor.to(dtype) for tensor in inputs), largest_H)
    return largest_H


@pytest.mark.parametrize("shape", [Shape(4, 2, 8, 4, 8), Shape(3, 1, 2, 0, 1), Shape(2, 2, 5, 2, 3)], ids=str)
@pytest.mark.parametrize("length", [1, 17, 130, 257])
@pytest.mark.parametrize("sign", [1, -1])
def test_largest_scores_are_those_written_out(length: int, shape: Shape, sign: int) -> None:
    """All negative, too: what pads a block of queries is no score."""
    query, key, value, shared = (tensor.abs() for tensor in operands(length, shape))
    query = sign * query
    repeated = key.repeat_interleave(shape.heads // shape.groups, 2)
    keys = torch.cat([repeated, shared.expand(-1, -1, shape.heads, -1)], dim=-1)
    scores = torch.einsum("bthk,bshk->bhts", query, keys) / query.shape[3] ** 0.5
    expected = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf).amax((0, 2, 3))
    inputs = [query, key, value, shared]
    torch.testing.assert_close(largest_scores(causal_attention_plain, inputs, torch.float64), expected)
    found = largest_scores(numba_causal_attention, inputs, torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", [causal_attention_plain, numba_causal_attention])
def test_who_looks_for_largest_scores_changes_nothing_and_keeps_earlier_ones(function: CausalAttention) -> None:
    inputs = operands(33, Shape(4, 2, 8, 4, 8))
    largest_H = torch.tensor([-9.0, 99.0, -9.0, 99.0])

    def watched(*leaves: Tensor) -> Tensor:
        return function(*leaves, largest_H)

    expected = results(function, inputs, torch.float32)
    assert all(torch.equal(*pair) for pair in zip(results(watched, inputs, torch.float32), expected, strict=True))
    assert largest_H[[1, 3]].tolist() == [99, 99]
    assert (largest_H[[0, 2]] > 0).all()
    assert not largest_H.requires_grad


@pytest.mark.parametrize("function", [causal_attention_plain, numba_causal_attention])
@pytest.mark.parametrize("shape", [(0, 5, 2, 4), (2, 0, 2, 4)])
def test_nothing_to_attend_has_no_largest_score(function: CausalAttention, shape: tuple[int, ...]) -> None:
    largest_H = torch.full((2,), -torch.inf)
    function(*(torch.zeros(shape) for _ in range(3)), None, largest_H)
    assert largest_H.tolist() == [-torch.inf] * 2
