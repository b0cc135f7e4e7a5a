"""Are the gated units those of the specification, and is a dense feed-forward counted as it is built?"""

import pytest
import torch
from torch import Tensor, nn

from k3ablate.config import InputError, parse
from k3ablate.model.balancing import NoBalancing
from k3ablate.model.feedforward import GLU, Dense, SiTUGLU, SwiGLU
from k3ablate.model.slots import Dial


def _grid() -> Tensor:
    return torch.cartesian_prod(torch.linspace(-200, 200, 401), torch.linspace(-200, 200, 401)).double()


def test_swiglu_is_its_formula() -> None:
    gate, up = _grid().unbind(-1)
    torch.testing.assert_close(SwiGLU().combine(gate, up), gate / (1 + torch.exp(-gate)) * up)


def test_situ_is_its_formula_and_stays_below_the_product_of_its_bounds() -> None:
    gate, up = _grid().unbind(-1)
    hidden = SiTUGLU().combine(gate, up)
    torch.testing.assert_close(
        hidden, 4 * torch.tanh(gate / 4) / (1 + torch.exp(-gate)) * 25 * torch.tanh(up / 25), rtol=1e-6, atol=1e-9
    )
    assert 99 < float(hidden.abs().max()) <= 100


def test_situ_is_swiglu_near_zero_and_with_wide_bounds() -> None:
    small = 1e-3 * torch.randn(100, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(SiTUGLU().combine(*small.T), SwiGLU().combine(*small.T), rtol=1e-6, atol=1e-15)
    gate, up = _grid().unbind(-1)
    wide = SiTUGLU(gate_bound=1e6, up_bound=1e6)
    torch.testing.assert_close(wide.combine(gate, up), SwiGLU().combine(gate, up), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("activation", [SwiGLU(), SiTUGLU()], ids=lambda activation: activation.kind)
def test_half_precision_is_rounded_once_at_the_end(activation: SwiGLU | SiTUGLU) -> None:
    gate, up = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0)).bfloat16()
    precise = activation.combine(gate.float(), up.float())
    assert torch.equal(activation.combine(gate, up), precise.bfloat16())


def test_two_shared_experts_are_one_of_twice_the_width() -> None:
    first, second, both = GLU(8, 5, SiTUGLU()), GLU(8, 5, SiTUGLU()), GLU(8, 10, SiTUGLU())
    generator = torch.Generator().manual_seed(0)
    for parameter in (*first.parameters(), *second.parameters()):
        nn.init.normal_(parameter, generator=generator)
    with torch.no_grad():
        both.gate.weight.copy_(torch.cat((first.gate.weight, second.gate.weight)))
        both.up.weight.copy_(torch.cat((first.up.weight, second.up.weight)))
        both.down.weight.copy_(torch.cat((first.down.weight, second.down.weight), dim=1))
    x = torch.randn(2, 3, 8, generator=generator)
    torch.testing.assert_close(both(x), first(x) + second(x))


@pytest.mark.parametrize(("hidden_width", "count"), [(18_432, 396_361_728), (33_792, 726_663_168)])
def test_dense_counts_are_those_of_the_specification(hidden_width: int, count: int) -> None:
    dense = Dense(hidden_width=hidden_width)
    with torch.device("meta"):
        built = dense.build(7168, NoBalancing())
    assert sum(parameter.numel() for parameter in built.parameters()) == count
    assert dense.parameters(7168) == {"dense": count}
    assert dense.active_parameters(7168) == count
    assert dense.flops_per_token(7168) == 2 * count


def test_dense_has_no_auxiliary_loss() -> None:
    built = Dense(hidden_width=4).build(8, NoBalancing())
    y, auxiliary_loss = built(torch.ones(2, 3, 8))
    assert y.shape == (2, 3, 8)
    assert auxiliary_loss.item() == 0


def test_dense_scales_by_the_width_and_stays_exact_at_full_size() -> None:
    dense = Dense(hidden_width=18_432)
    assert dense.scaled(Dial(width_ratio=64 / 7168, multiple=4)).hidden_width == 164
    assert dense.scaled(Dial(width_ratio=1.0, multiple=1000)) == dense


def test_a_bound_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match=r"model: activation\.gate_bound: found 0; "):
        parse(Dense, {"hidden_width": 4, "activation": {"kind": "situ_glu", "gate_bound": 0}}, source="model")
