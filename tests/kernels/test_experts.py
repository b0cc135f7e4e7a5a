"""Is the fast sum over experts the same function as the loop over experts?"""

import pytest
import torch
from torch import Tensor

from k3ablate.kernels import dispatch
from k3ablate.kernels.experts import (
    Activation,
    Experts,
    ExpertWeights,
    experts,
    experts_grouped,
    experts_plain,
)
from k3ablate.kernels.experts_numba import numba_experts
from k3ablate.model.feedforward import SiTUGLU, SwiGLU


def _inputs(num_tokens: int, num_experts: int, width: int, hidden_width: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(num_tokens)
    shapes = [(num_tokens, width), (num_tokens, 2), *[(num_experts, hidden_width, width)] * 2]
    shapes.append((num_experts, width, hidden_width))
    return [torch.randn(*shape, generator=generator, requires_grad=True) for shape in shapes]


def _spread(num_tokens: int, num_experts: int) -> Tensor:
    scores = torch.rand(num_tokens, num_experts, generator=torch.Generator().manual_seed(3))
    return scores.topk(2, dim=-1).indices


CASES = {
    "spread": (_spread(50, 6), 6),
    "one token": (_spread(1, 6), 6),
    "empty experts": (torch.tensor([[3, 1], [1, 5], [5, 3]]), 7),
    "all to two experts, more than one chunk": (torch.tensor([[2, 4]] * 150), 6),
}
WIDTHS = [(8, 4), (5, 3), (1, 1), (16, 32), (24, 20), (70, 33)]
ACTIVATIONS = [SwiGLU(), SiTUGLU()]


def _results(
    form: Experts, case: str, widths: tuple[int, int], activation: Activation, dtype: torch.dtype
) -> list[Tensor]:
    """y and the gradients of its sum of squares: of x, weights, gate, up and down."""
    chosen, num_experts = CASES[case]
    x, weights, *matrices = inputs = [tensor.to(dtype) for tensor in _inputs(len(chosen), num_experts, *widths)]
    y = form(x, chosen, weights, ExpertWeights(*matrices), activation)
    return [y, *torch.autograd.grad(y.square().sum(), inputs)]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda activation: activation.kind)
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", [numba_experts, experts_grouped])
def test_fast_forms_equal_plain_in_values_and_gradients(
    form: Experts, case: str, widths: tuple[int, int], activation: Activation
) -> None:
    expected = _results(experts_plain, case, widths, activation, torch.float64)
    for fast, exact in zip(_results(form, case, widths, activation, torch.float32), expected, strict=True):
        assert (fast - exact).norm() <= 1e-5 * exact.norm()


@pytest.mark.parametrize("case", CASES)
def test_threads_change_no_bit(case: str) -> None:
    alone = _results(numba_experts, case, (24, 20), SiTUGLU(), torch.float32)
    torch.set_num_threads(3)
    try:
        shared = _results(numba_experts, case, (24, 20), SiTUGLU(), torch.float32)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))


def test_operands_may_lie_in_any_order() -> None:
    chosen, num_experts = CASES["spread"]
    inputs = [tensor.detach() for tensor in _inputs(len(chosen), num_experts, 8, 4)]
    turned = [tensor.mT.contiguous().mT.requires_grad_() for tensor in inputs]
    results = []
    for x, weights, *matrices in (inputs, turned):
        y = numba_experts(x, chosen.T.contiguous().T, weights, ExpertWeights(*matrices), SwiGLU())
        results.append(y.detach())
    y.sum().backward()
    assert torch.equal(*results)
    assert all(tensor.grad is not None for tensor in turned)


def test_no_tokens_give_no_rows_and_gradients_of_zero() -> None:
    x, weights, *matrices = _inputs(0, 5, 8, 4)
    y = numba_experts(x, torch.empty(0, 2, dtype=torch.int64), weights, ExpertWeights(*matrices), SwiGLU())
    y.sum().backward()
    assert y.shape == (0, 8)
    assert all((matrix.grad == 0).all() for matrix in matrices)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda activation: activation.kind)
def test_what_is_no_number_is_seen_by_its_token_alone(activation: Activation) -> None:
    """And in gradients, by all that this token touches: a run that diverges must not look as if it went on."""
    chosen, num_experts = CASES["spread"]
    x, weights, *matrices = _inputs(len(chosen), num_experts, 24, 20)
    with torch.no_grad():
        x[7, 3] = torch.nan
    y = numba_experts(x, chosen, weights, ExpertWeights(*matrices), activation)
    assert y.isnan().all(1).nonzero().flatten().tolist() == [7]
    assert y.isnan().any(1).sum() == 1
    y.sum().backward()
    for tensor in (x, weights):
        assert tensor.grad.isnan().any(1).nonzero().flatten().tolist() == [7]
    for matrix in matrices:
        assert matrix.grad.isnan().any((1, 2)).nonzero().flatten().tolist() == sorted(chosen[7].tolist())


def test_an_activation_that_the_kernel_lacks_is_left_to_torch() -> None:
    class Product:
        """gate x up."""

        bounds = None

        def combine(self, gate: Tensor, up: Tensor) -> Tensor:
            return gate * up

    chosen, num_experts = CASES["spread"]
    x, weights, *matrices = _inputs(len(chosen), num_experts, 8, 4)
    arguments = x, chosen, weights, ExpertWeights(*matrices)
    dispatch.forget_used()
    torch.testing.assert_close(experts(*arguments, Product()), experts_plain(*arguments, Product()))
    assert dispatch.used()["experts"] == "grouped"
    experts(*arguments, SwiGLU())
    assert dispatch.used()["experts"] == "numba"


def test_plain_is_the_sum_written_out_token_by_token() -> None:
    chosen, num_experts = CASES["spread"]
    x, weights, gate, up, down = (tensor.detach() for tensor in _inputs(len(chosen), num_experts, 8, 4))
    expected = torch.zeros_like(x)
    for token, pair in enumerate(chosen.tolist()):
        for slot, expert in enumerate(pair):
            hidden = SwiGLU().combine(gate[expert] @ x[token], up[expert] @ x[token])
            expected[token] += weights[token, slot] * (down[expert] @ hidden)
    torch.testing.assert_close(experts_plain(x, chosen, weights, ExpertWeights(gate, up, down), SwiGLU()), expected)


def test_an_expert_without_tokens_gets_a_gradient_of_zero() -> None:
    chosen, num_experts = CASES["empty experts"]
    x, weights, *matrices = _inputs(len(chosen), num_experts, 8, 4)
    experts(x, chosen, weights, ExpertWeights(*matrices), SwiGLU()).square().sum().backward()
    for matrix in matrices:
        assert matrix.grad is not None
        assert matrix.grad.abs().amax((1, 2)).nonzero().flatten().tolist() == [1, 3, 5]


def test_autocast_lowers_the_products_like_any_other() -> None:
    chosen, num_experts = CASES["spread"]
    x, weights, *matrices = (tensor.detach() for tensor in _inputs(len(chosen), num_experts, 8, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered = experts(x, chosen, weights, ExpertWeights(*matrices), SwiGLU())
    precise = experts(x, chosen, weights, ExpertWeights(*matrices), SwiGLU())
    assert lowered.dtype is torch.bfloat16
    torch.testing.assert_close(lowered.float(), precise, rtol=0.05, atol=0.1 * float(precise.abs().max()))


def test_double_precision_takes_the_float32_weights_of_a_router() -> None:
    chosen, num_experts = CASES["spread"]
    x, weights, *matrices = (tensor.detach() for tensor in _inputs(len(chosen), num_experts, 8, 4))
    doubled = experts(x.double(), chosen, weights, ExpertWeights(*matrices), SwiGLU())
    assert doubled.dtype is torch.float64
    single = experts_plain(x, chosen, weights, ExpertWeights(*matrices), SwiGLU())
    torch.testing.assert_close(doubled.float(), single)
