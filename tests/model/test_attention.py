"""Softmax attention, MLA and gated MLA against plainly written-out forms, and their counts against published ones."""

import math

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from k3ablate.config import InputError, parse
from k3ablate.model.attention import MLA, GatedMLA, Rotary, Softmax
from k3ablate.model.norms import RMSNorm
from k3ablate.model.slots import Dial, Initialised, Mixer, MixerConfig

WIDTH, LENGTH = 24, 19
LATENT = {"num_heads": 3, "query_rank": 10, "key_value_rank": 6, "head_width": 8, "position_width": 4, "value_width": 6}
K2_MLA = MLA(num_heads=64, query_rank=1536, key_value_rank=512)
K3_MLA = GatedMLA(num_heads=96, query_rank=1536, key_value_rank=512)
CONFIGS = [
    pytest.param(Softmax(num_heads=4, num_key_value_heads=2, head_width=6), id="softmax"),
    pytest.param(MLA(**LATENT), id="mla"),
    pytest.param(GatedMLA(**LATENT), id="gated_mla"),
]


def built(config: MixerConfig) -> Mixer:
    """The module in float64: every parameter NaN at first, then filled as a decoder would."""
    module, generator = config.build(WIDTH).double(), Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(math.nan)
        for child in module.modules():
            if isinstance(child, nn.Linear):
                child.weight.normal_(0, 0.3, generator=generator)
            elif isinstance(child, Initialised):
                child.initialise(generator, 0.3)
    return module


def tokens() -> Tensor:
    return torch.randn(2, LENGTH, WIDTH, generator=Generator().manual_seed(9), dtype=torch.float64)


def norm(x: Tensor, layer: RMSNorm) -> Tensor:
    return layer.weight * x / (x.square().mean(-1, keepdim=True) + layer.epsilon).sqrt()


def rotated(x: Tensor, position: int, base: float) -> Tensor:
    """A vector at a position, as complex numbers times unit ones."""
    half = x.shape[-1] // 2
    angles = position * base ** (-torch.arange(half, dtype=torch.float64) / half)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


@pytest.mark.parametrize("config", CONFIGS)
def test_shape_determinism_and_no_parameter_left_out(config: MixerConfig):
    module = built(config)
    output = module(tokens())
    assert output.shape == (2, LENGTH, WIDTH)
    assert torch.equal(output, built(config)(tokens()))
    output.square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("config", CONFIGS)
def test_causal(config: MixerConfig):
    module, changed = built(config), tokens()
    changed[:, 11:] += 1
    before, after = module(tokens()), module(changed)
    torch.testing.assert_close(before[:, :11], after[:, :11], rtol=1e-10, atol=1e-12)
    assert not torch.allclose(before[:, 11:], after[:, 11:])


@pytest.mark.parametrize("config", CONFIGS)
def test_counted_parameters_equal_real_ones(config: MixerConfig):
    assert sum(config.parameters(WIDTH).values()) == sum(p.numel() for p in config.build(WIDTH).parameters())


@pytest.mark.parametrize("config", CONFIGS)
def test_counted_flops_equal_executed_products(config: MixerConfig):
    """The projections' as torch counts them; the core's is what is left, a closed form over the causal average."""
    linear = [layer for layer in config.build(WIDTH).modules() if isinstance(layer, nn.Linear)]
    with FlopCounterMode(display=False) as counter:
        for layer in linear:
            layer(torch.zeros(1, layer.in_features))
    # scores and weighted sum of a query at position t (from 1): 2 H t (K + V), averaged over 1..T
    widths = config.num_heads * (
        2 * config.head_width if isinstance(config, Softmax) else config.query_width + config.value_width
    )
    core = sum(2 * widths * position for position in range(1, LENGTH + 1)) / LENGTH
    assert config.flops_per_token(WIDTH, LENGTH) == counter.get_total_flops() + core


@pytest.mark.parametrize("config", CONFIGS)
def test_config_round_trip_and_identity_scaling(config: MixerConfig):
    assert parse(type(config), config.tree(), source="test") == config
    assert config.scaled(Dial(width_ratio=1.0)) == config


def test_softmax_written_out():
    config = Softmax(num_heads=4, num_key_value_heads=2, head_width=6, rotary_base=100.0)
    module, x = built(config), tokens()[0]
    expected = torch.zeros(LENGTH, 4, 6, dtype=torch.float64)
    query, key, value = (layer(x).unflatten(-1, (-1, 6)) for layer in (module.query, module.key, module.value))
    for head in range(4):
        for now in range(LENGTH):
            turned = rotated(query[now, head], now, 100.0)
            scores = [turned @ rotated(key[then, head // 2], then, 100.0) / math.sqrt(6) for then in range(now + 1)]
            expected[now, head] = torch.stack(scores).softmax(0) @ value[: now + 1, head // 2]
    torch.testing.assert_close(module(tokens())[0], module.output(expected.flatten(1)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("config", CONFIGS[1:])
def test_latent_attention_in_absorbed_form(config: MLA | GatedMLA):
    """Scores against the latent itself: the key half folded into the query, the value half after the sum."""
    module, x = built(config), tokens()[0]
    query = module.query_up(norm(module.query_down(x), module.query_norm)).view(LENGTH, 3, 12)
    latent, position = module.key_value_down(x).split([6, 4], dim=-1)
    latent = norm(latent, module.key_value_norm)
    to_key, to_value = module.key_value_up.weight.view(3, 14, 6).split([8, 6], dim=1)
    found = torch.zeros(LENGTH, 3, 6, dtype=torch.float64)
    for now in range(LENGTH):
        content, slice_now, slices = query[now, :, :8], query[now, :, 8:], position[: now + 1]
        if isinstance(config, MLA):
            slice_now = rotated(slice_now, now, config.rotary_base)
            slices = torch.stack([rotated(position[then], then, config.rotary_base) for then in range(now + 1)])
        absorbed = torch.einsum("hk,hkr->hr", content, to_key)
        weights = ((absorbed @ latent[: now + 1].T + slice_now @ slices.T) / math.sqrt(12)).softmax(-1)
        found[now] = torch.einsum("hvr,hr->hv", to_value, weights @ latent[: now + 1])
    gate = module.gate(x).sigmoid() if isinstance(config, GatedMLA) else 1.0
    expected = module.output(gate * found.flatten(1))
    torch.testing.assert_close(module(tokens())[0], expected, rtol=1e-6, atol=1e-6)


def test_gated_mla_sees_no_positions():
    """Without positions, the last token's output does not depend on the order of those before it."""
    module = built(GatedMLA(**LATENT))
    shuffled = tokens()
    shuffled[:, :-1] = shuffled[:, torch.randperm(LENGTH - 1, generator=Generator().manual_seed(1))]
    torch.testing.assert_close(module(tokens())[:, -1], module(shuffled)[:, -1])


def test_rotary_keeps_lengths_and_depends_on_distance_only():
    generator = Generator().manual_seed(2)
    query, key = (torch.randn(8, generator=generator).expand(1, 30, 1, 8) for _ in range(2))
    turned_query, turned_key = (Rotary(8, 100.0)(tensor)[0, :, 0] for tensor in (query, key))
    torch.testing.assert_close(turned_query.norm(dim=-1), query[0, :, 0].norm(dim=-1))
    products = turned_query @ turned_key.T
    torch.testing.assert_close(products.diagonal(-7), products[7, 0].expand(23), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(products[7, 0], products[0, 7])


def test_norm_is_a_root_mean_square_in_float32():
    layer = RMSNorm(8, 1e-5)
    layer.initialise(Generator(), 0.02)
    x = torch.randn(3, 8, generator=Generator().manual_seed(0))
    torch.testing.assert_close(layer(x), norm(x, layer))
    assert layer(x.bfloat16()).dtype is torch.bfloat16
    torch.testing.assert_close(layer(x.bfloat16()), functional.normalize(x.bfloat16().float()).mul(8**0.5).bfloat16())


@pytest.mark.parametrize(("config", "published"), [(K2_MLA, 101_124_096), (K3_MLA, 232_196_096)])
def test_full_size_counts(config: MLA | GatedMLA, published: int):
    """Specification, section 2: K2's and K3's released tensors."""
    with torch.device("meta"):
        module = config.build(7168)
    assert sum(parameter.numel() for parameter in module.parameters()) == published
    assert sum(config.parameters(7168).values()) == published


def test_full_size_core_flops():
    """Specification, section 5: 20,480 (T + 1) for K2 and 30,720 (T + 1) for K3."""
    for config, per_position in ((K2_MLA, 20_480), (K3_MLA, 30_720)):
        assert config.flops_per_token(7168, 4096) - config.flops_per_token(7168, 4095) == per_position


def test_scaling_keeps_ratios():
    small = K3_MLA.scaled(Dial(width_ratio=112 / 7168, head_width=16, multiple=4))
    assert (small.num_heads, small.head_width, small.position_width, small.value_width) == (12, 16, 8, 16)
    assert (small.query_rank, small.key_value_rank) == (24, 8)


def test_scaled_key_value_heads_divide():
    config = Softmax(num_heads=64, num_key_value_heads=8, head_width=128)
    for width in range(64, 1024, 48):
        scaled = config.scaled(Dial(width_ratio=width / 8192, head_width=16))
        assert parse(Softmax, scaled.tree(), source="test") == scaled


@pytest.mark.parametrize(
    ("config_class", "tree", "message"),
    [
        (Softmax, {"num_heads": 6, "num_key_value_heads": 4, "head_width": 8}, "4 does not divide num_heads 6"),
        (Softmax, {"num_heads": 6, "num_key_value_heads": 3, "head_width": 7}, "head_width is 7.*even number"),
        (MLA, {**LATENT, "position_width": 5}, "position_width is 5.*even number"),
    ],
)
def test_sizes_that_do_not_fit(config_class: type[MixerConfig], tree: dict[str, int], message: str):
    with pytest.raises(InputError, match=message):
        parse(config_class, tree, source="test")
