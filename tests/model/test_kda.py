"""Kimi Delta Attention's module against the formulas written out token by token, its counts and its initial values."""

import math
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from k3ablate.config import InputError, parse
from k3ablate.model.kda import KDA, BoundedSigmoid, KimiDeltaAttention, ShortConvolution, SoftplusDecay
from k3ablate.model.slots import Dial, Initialised

WIDTH, LENGTH = 24, 21
K3_KDA = KDA(num_heads=96)
CONFIGS = [
    pytest.param(KDA(num_heads=3, head_width=8), id="k3"),
    pytest.param(KDA(num_heads=3, head_width=8, decay=SoftplusDecay(), gate="low_rank"), id="kimi_linear"),
    pytest.param(KDA(num_heads=2, head_width=6, decay_rank=5, convolution_width=3), id="odd"),
]


def built(config: KDA, dtype: torch.dtype = torch.float64) -> KimiDeltaAttention:
    """The module: every parameter NaN at first, then filled as a decoder would."""
    module, generator = config.build(WIDTH).to(dtype), Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(math.nan)
        for child in module.modules():
            if isinstance(child, nn.Linear):
                child.weight.normal_(0, 0.3, generator=generator)
            elif isinstance(child, Initialised):
                child.initialise(generator, 0.3)
    return module


def tokens(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, LENGTH, WIDTH, generator=Generator().manual_seed(9), dtype=torch.float64).to(dtype)


def convolved(x_TP: Tensor, convolution: ShortConvolution) -> Tensor:
    """Specification 4.1, step 1: u_t = sum_j w_j u'_{t - (width - 1) + j}, then SiLU."""
    weight_PW = convolution.weight[:, 0]
    width = weight_PW.shape[1]
    rows = []
    for position in range(len(x_TP)):
        taps = [(j, position - (width - 1) + j) for j in range(width)]
        rows.append(sum(weight_PW[:, j] * x_TP[source] for j, source in taps if source >= 0))
    summed = torch.stack(rows)
    return summed * summed.sigmoid()


def written_out(module: KimiDeltaAttention, x_TD: Tensor) -> Tensor:
    """Specification 4.1, steps 1 to 6, one head and one token at a time."""
    config = module.config
    heads = (config.num_heads, config.head_width)
    query, key, value = (
        convolved(projection(x_TD), convolution).view(-1, *heads)
        for projection, convolution in (
            (module.query, module.query_convolution),
            (module.key, module.key_convolution),
            (module.value, module.value_convolution),
        )
    )
    query, key = (u / (u.square().sum(-1, keepdim=True) + 1e-6).sqrt() for u in (query, key))
    strength = module.write_strength(x_TD).sigmoid()
    logits = (module.decay.up(module.decay.down(x_TD)) + module.decay.dt_bias).view(-1, *heads)
    rate = module.decay.A_log.exp()[:, None]
    if isinstance(config.decay, BoundedSigmoid):
        retention = (-5 * (rate * logits).sigmoid()).exp()
    else:
        retention = (1 + logits.exp()) ** -rate  # exp(-rate * softplus)
    found = torch.zeros(len(x_TD), *heads, dtype=x_TD.dtype)
    for head in range(config.num_heads):
        state = torch.zeros(config.head_width, config.head_width, dtype=x_TD.dtype)
        for t in range(len(x_TD)):
            k = key[t, head]
            correction = torch.eye(config.head_width, dtype=x_TD.dtype) - strength[t, head] * torch.outer(k, k)
            state = correction @ torch.diag(retention[t, head]) @ state + strength[t, head] * k.outer(value[t, head])
            found[t, head] = state.T @ query[t, head] / math.sqrt(config.head_width)
    normed = module.norm.weight * found / (found.square().mean(-1, keepdim=True) + config.norm_epsilon).sqrt()
    return module.output(module.gate(x_TD).sigmoid() * normed.flatten(1))


@pytest.mark.parametrize("config", CONFIGS)
def test_written_out(config: KDA):
    module = built(config)
    torch.testing.assert_close(module(tokens())[1], written_out(module, tokens()[1]), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("config", CONFIGS)
def test_float32_equals_float64(config: KDA):
    exact, fast = built(config), built(config)(tokens()).detach()
    torch.testing.assert_close(exact.float()(tokens(torch.float32)).double(), fast, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("config", CONFIGS)
def test_shape_determinism_and_no_parameter_left_out(config: KDA):
    module = built(config, torch.float32)
    output = module(tokens(torch.float32))
    assert output.shape == (2, LENGTH, WIDTH)
    assert torch.equal(output, built(config, torch.float32)(tokens(torch.float32)))
    output.square().sum().backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("config", CONFIGS)
def test_causal(config: KDA):
    module, changed = built(config, torch.float32), tokens(torch.float32)
    changed[:, 11:] += 1
    before, after = module(tokens(torch.float32)), module(changed)
    torch.testing.assert_close(before[:, :11], after[:, :11], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(before[:, 11:], after[:, 11:])


def by_segments(module: KimiDeltaAttention, x_BTD: Tensor, lengths: list[int]) -> Tensor:
    """The module over segments, each from the state that the one before left."""
    state, outputs = module.start(x_BTD), []
    for segment in x_BTD.split(lengths, dim=1):
        output, state = module.resume(segment, state)
        outputs.append(output)
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("lengths", [[1] * LENGTH, [20, 1], [2, 1, 16, 2], [17, 4], [3, 15, 3]], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("config", CONFIGS)
def test_segments_that_hand_the_state_over_equal_the_whole(
    config: KDA, dtype: torch.dtype, tolerance: float, lengths: list[int]
):
    """Outputs and all gradients, through the state too; segments of one are decoding."""
    results = []
    for run in (lambda module, x: module(x), lambda module, x: by_segments(module, x, lengths)):
        module, x = built(config, dtype), tokens(dtype).requires_grad_()
        output = run(module, x)
        results.append([output, *torch.autograd.grad(output.square().sum(), [x, *module.parameters()])])
    for whole, cut in zip(*results, strict=True):
        assert (whole - cut).norm() <= tolerance * whole.norm()


def test_the_state_does_not_grow_and_stays_in_float32_under_autocast():
    module = built(KDA(num_heads=3, head_width=8), torch.float32)
    first = module.start(tokens(torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        _, later = module.resume(tokens(torch.float32), first)
    assert [tensor.shape for tensor in later] == [tensor.shape for tensor in first]
    assert {tensor.dtype for tensor in (*first, *later)} == {torch.float32}


def test_autocast_leaves_the_memory_in_float32(monkeypatch: pytest.MonkeyPatch):
    """In bfloat16 the projections lose digits, the recurrence does not: its inputs arrive in float32."""
    seen: dict[str, Any] = {}

    def spy(*inputs: Tensor) -> tuple[Tensor, None]:
        seen["dtypes"] = {tensor.dtype for tensor in inputs}
        return inputs[2], None

    module = built(KDA(num_heads=3, head_width=8), torch.float32)
    monkeypatch.setattr("k3ablate.model.kda.kda", spy)
    with torch.autocast("cpu", torch.bfloat16):
        module(tokens(torch.float32))
    assert seen["dtypes"] == {torch.float32}


@pytest.mark.parametrize("scale", [0.0, 1e-20, 1e4], ids=str)
@pytest.mark.parametrize("A_log", [-20.0, 5.0], ids=str)
@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_overflows_at_either_end_of_decay_and_input(config: KDA, A_log: float, scale: float):
    """Inputs of zero have no direction to normalise; large ones drive the decay to one end of its range."""
    module, x = built(config, torch.float32), (scale * tokens(torch.float32)).requires_grad_()
    with torch.no_grad():
        module.decay.A_log.fill_(A_log)
    output = module(x)
    output.sum().backward()
    for tensor in (output, x.grad, *(parameter.grad for parameter in module.parameters())):
        assert tensor.isfinite().all()


@pytest.mark.parametrize("config", CONFIGS)
def test_counted_parameters_equal_real_ones(config: KDA):
    assert sum(config.parameters(WIDTH).values()) == sum(p.numel() for p in config.build(WIDTH).parameters())


@pytest.mark.parametrize("config", CONFIGS)
def test_counted_flops_equal_executed_products(config: KDA):
    """Projections and convolutions as torch counts them, and the core by the closed form of specification 5."""
    module = config.build(WIDTH)
    convolutions = [layer for layer in module.modules() if isinstance(layer, ShortConvolution)]
    with FlopCounterMode(display=False) as counter:
        for layer in (layer for layer in module.modules() if isinstance(layer, nn.Linear)):
            layer(torch.zeros(1, layer.in_features))
    taps = sum(2 * layer.weight.numel() for layer in convolutions)
    core = 7 * config.num_heads * config.head_width**2
    assert config.flops_per_token(WIDTH, LENGTH) == pytest.approx(counter.get_total_flops() + taps + core)
    assert config.flops_per_token(WIDTH, LENGTH) == config.flops_per_token(WIDTH, 10 * LENGTH)


@pytest.mark.parametrize("config", CONFIGS)
def test_config_round_trip_and_identity_scaling(config: KDA):
    assert parse(KDA, config.tree(), source="test") == config
    assert config.scaled(Dial(width_ratio=1.0)) == config


def test_full_size_counts():
    """Specification: 443,740,384 live parameters (section 2), 11.01 MFLOP for the recurrence (section 5)."""
    with torch.device("meta"):
        module = K3_KDA.build(7168)
    assert sum(parameter.numel() for parameter in module.parameters()) == 443_740_384
    assert sum(K3_KDA.parameters(7168).values()) == 443_740_384
    inner = 12_288
    projections = 2 * (5 * 7168 * inner + 128 * (7168 + inner) + 7168 * 96) + 24 * inner
    assert K3_KDA.flops_per_token(7168, 8192) - projections == pytest.approx(11.01e6, rel=1e-3)


def test_scaling_keeps_the_inner_width_ratio():
    small = KDA(num_heads=96, decay_rank=128).scaled(Dial(width_ratio=112 / 7168, head_width=16, multiple=2))
    assert (small.num_heads, small.head_width, small.decay_rank) == (12, 16, 2)
    assert K3_KDA.scaled(Dial(width_ratio=112 / 7168, head_width=16)).decay_rank is None


def test_bounded_decay_starts_with_memories_of_2_to_200_tokens():
    """Specification 4.1: with zero logits the first log-decay lies in [-0.476, -0.005]."""
    module = built(KDA(num_heads=40, head_width=16))
    assert torch.equal(module.decay.A_log, torch.zeros(40, dtype=torch.float64))
    log_decay = module.decay(torch.zeros(1, 1, 40, 16, dtype=torch.float64))
    assert -0.476 <= log_decay.min() < -0.4
    assert -0.006 < log_decay.max() <= -0.00499


def test_softplus_decay_starts_at_rate_times_time_step():
    """softplus(dt_bias) is the time step, log-uniform in [1e-3, 1e-1]; A is uniform in [1, 16]."""
    module = built(KDA(num_heads=200, head_width=16, decay=SoftplusDecay()))
    rate = module.decay.A_log.exp()
    assert 1 <= rate.min() < 1.5
    assert 15.5 < rate.max() <= 16
    assert rate.mean().item() == pytest.approx(8.5, abs=1)
    log_decay = module.decay(torch.zeros(1, 1, 200, 16, dtype=torch.float64))
    time_step = (-log_decay / rate[:, None]).log10()
    assert -3 <= time_step.min() < -2.95
    assert -1.05 < time_step.max() <= -1 + 1e-9
    assert time_step.mean().item() == pytest.approx(-2, abs=0.05)


def test_convolution_starts_as_torch_starts_one():
    convolution = ShortConvolution(500, 4)
    convolution.initialise(Generator().manual_seed(0), 0.02)
    assert convolution.weight.abs().max() <= 0.5
    assert convolution.weight.std().item() == pytest.approx(0.5 / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"num_heads": 2, "decay": {"kind": "bounded_sigmoid", "lower_bound": 1.0}}, "lower_bound.*less than 0"),
        ({"num_heads": 2, "decay": {"kind": "clamp"}}, "decay.*unknown kind 'clamp'.*bounded_sigmoid.*softplus"),
        ({"num_heads": 0}, "num_heads.*greater than 0"),
        ({"num_heads": 2, "gate": "none"}, "gate.*full_rank.*low_rank"),
    ],
)
def test_bad_values_are_explained(tree: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        parse(KDA, tree, source="test")
