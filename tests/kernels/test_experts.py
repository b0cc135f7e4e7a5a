"""Is the fast sum over experts the same function as the loop over experts?"""

import pytest
import torch
from torch import Tensor

from k3ablate.kernels.experts import ExpertWeights, experts, experts_grouped, experts_plain
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
    "all to two experts": (torch.tensor([[2, 4]] * 9), 6),
}


@pytest.mark.parametrize("activation", [SwiGLU(), SiTUGLU()], ids=lambda activation: activation.kind)
@pytest.mark.parametrize(("width", "hidden_width"), [(8, 4), (5, 3), (1, 1)])
@pytest.mark.parametrize("case", CASES)
def test_grouped_equals_plain_in_values_and_gradients(
    case: str, width: int, hidden_width: int, activation: SwiGLU | SiTUGLU
) -> None:
    chosen, num_experts = CASES[case]
    x, weights, *matrices = inputs = _inputs(len(chosen), num_experts, width, hidden_width)
    results = []
    for form in (experts_plain, experts_grouped):
        y = form(x, chosen, weights, ExpertWeights(*matrices), activation.combine)
        results.append((y, *torch.autograd.grad(y.square().sum(), inputs)))
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-4)


def test_plain_is_the_sum_written_out_token_by_token() -> None:
    chosen, num_experts = CASES["spread"]
    x, weights, gate, up, down = (tensor.detach() for tensor in _inputs(len(chosen), num_experts, 8, 4))
    expected = torch.zeros_like(x)
    for token, pair in enumerate(chosen.tolist()):
        for slot, expert in enumerate(pair):
            hidden = SwiGLU().combine(gate[expert] @ x[token], up[expert] @ x[token])
            expected[token] += weights[token, slot] * (down[expert] @ hidden)
    torch.testing.assert_close(
        experts_plain(x, chosen, weights, ExpertWeights(gate, up, down), SwiGLU().combine), expected
    )


def test_an_expert_without_tokens_gets_a_gradient_of_zero() -> None:
    chosen, num_experts = CASES["empty experts"]
    x, weights, *matrices = _inputs(len(chosen), num_experts, 8, 4)
    experts(x, chosen, weights, ExpertWeights(*matrices), SwiGLU().combine).square().sum().backward()
    for matrix in matrices:
        assert matrix.grad is not None
        assert matrix.grad.abs().amax((1, 2)).nonzero().flatten().tolist() == [1, 3, 5]


def test_autocast_lowers_the_products_like_any_other() -> None:
    chosen, num_experts = CASES["spread"]
    x, weights, *matrices = (tensor.detach() for tensor in _inputs(len(chosen), num_experts, 8, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        lowered = experts(x, chosen, weights, ExpertWeights(*matrices), SwiGLU().combine)
    precise = experts(x, chosen, weights, ExpertWeights(*matrices), SwiGLU().combine)
    assert lowered.dtype is torch.bfloat16
    torch.testing.assert_close(lowered.float(), precise, rtol=0.05, atol=0.1 * float(precise.abs().max()))


def test_double_precision_takes_the_float32_weights_of_a_router() -> None:
    chosen, num_experts = CASES["spread"]
    x, weights, *matrices = (tensor.detach() for tensor in _inputs(len(chosen), num_experts, 8, 4))
    doubled = experts(x.double(), chosen, weights, ExpertWeights(*matrices), SwiGLU().combine)
    assert doubled.dtype is torch.float64
    single = experts_plain(x, chosen, weights, ExpertWeights(*matrices), SwiGLU().combine)
    torch.testing.assert_close(doubled.float(), single)
