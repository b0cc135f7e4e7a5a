"""What stays in float32 when everything around it is lowered to bfloat16? Specification 8, last line."""

from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from k3ablate.config import parse
from k3ablate.kernels import attnres, routing
from k3ablate.model import kda, norms
from k3ablate.model.decoder import Decoder, ModelConfig, initialise
from k3ablate.model.feedforward import SiTUGLU
from k3ablate.model.kda import Decay, ShortConvolution
from k3ablate.model.moe import Router
from k3ablate.model.norms import RMSNorm

VOCABULARY = 31
Dtypes = set[torch.dtype]


@pytest.fixture(name="k3")
def k3_like() -> Decoder:
    """KDA, gated MLA, latent experts and attention residuals."""
    mla = {"kind": "gated_mla", "num_heads": 2, "query_rank": 6, "key_value_rank": 4}
    widths = {"head_width": 4, "position_width": 2, "value_width": 4}
    experts = {"kind": "latent_moe", "num_experts": 4, "num_active": 2, "expert_width": 6, "latent_width": 8}
    tree = {
        "vocabulary_size": VOCABULARY,
        "width": 12,
        "num_layers": 2,
        "mixer": {"main": {"kind": "kda", "num_heads": 2, "head_width": 4}, "periodic": {"mixer": mla | widths}},
        "feed_forward": {"main": experts},
        "balancing": {"kind": "quantile"},
        "residual": {"kind": "full_attnres"},
    }
    decoder = Decoder(parse(ModelConfig, tree, source="test"))
    initialise(decoder, Generator().manual_seed(0), 0.3)
    return decoder


def run(decoder: Decoder) -> Tensor:
    tokens_BT = torch.randint(VOCABULARY, (2, 9), generator=Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        logits_BTV: Tensor = decoder(tokens_BT).logits_BTV
    return logits_BTV


def outputs_of(decoder: Decoder, kind: type[nn.Module]) -> Dtypes:
    """Dtypes of all tensors that modules of `kind` give out in one forward pass."""
    found: Dtypes = set()

    def note(module: nn.Module, inputs: object, output: Any) -> None:
        tensors = output if isinstance(output, tuple) else (output,)
        found.update(tensor.dtype for tensor in tensors if tensor.is_floating_point())

    handles = [module.register_forward_hook(note) for module in decoder.modules() if isinstance(module, kind)]
    assert handles, f"the model of this test has no {kind.__name__}"
    run(decoder)
    for handle in handles:
        handle.remove()
    return found


def arguments_of(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, decoder: Decoder) -> Dtypes:
    """Dtypes of all floating tensors that the function `owner.name` is called with in one forward pass."""
    found: Dtypes = set()
    plain = getattr(owner, name)

    def note(*arguments: Any, **options: Any) -> Any:
        tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
        found.update(tensor.dtype for tensor in tensors if tensor.is_floating_point())
        return plain(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, note)
        run(decoder)
    return found


def test_matrix_products_are_lowered_so_that_this_file_tests_something(k3: Decoder) -> None:
    assert torch.bfloat16 in outputs_of(k3, nn.Linear)
    assert run(k3).dtype is torch.bfloat16


@pytest.mark.parametrize("kind", [ShortConvolution, Decay, Router], ids=lambda kind: kind.__name__)
def test_modules_that_work_in_float32(kind: type[nn.Module], k3: Decoder) -> None:
    assert outputs_of(k3, kind) == {torch.float32}


@pytest.mark.parametrize(
    ("owner", "name"),
    [(kda, "short_convolution"), (kda, "gated_norm"), (norms, "rms_norm"), (routing, "choose")],
    ids=["convolution", "gated_norm", "norm", "router_scores"],
)
def test_functions_that_get_float32(owner: object, name: str, k3: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert arguments_of(monkeypatch, owner, name, k3) == {torch.float32}


def test_scores_of_reads_are_those_of_float32_sources(k3: Decoder) -> None:
    """Sources stay in float32 though sublayers hand back bfloat16, and so do scores and weights."""
    read = k3.residual.reads[-1]
    seen: list[Any] = []
    handle = read.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    run(k3)
    handle.remove()
    assert {source.dtype for source in seen[0].every} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        lowered = attnres.read_weights(read.query_D, read.key_weight_D, seen[0].every, read.epsilon)
    assert torch.equal(lowered, attnres.read_weights(read.query_D, read.key_weight_D, seen[0].every, read.epsilon))


def test_norms_and_situ_compute_in_float32_whatever_comes_in() -> None:
    """On bfloat16 input, the result is that of float32 arithmetic, rounded once."""
    x = 3 * torch.randn(64, 32, generator=Generator().manual_seed(2)).bfloat16()
    norm, activation = RMSNorm(32, 1e-5), SiTUGLU()
    norm.initialise(Generator(), 0.02)
    with torch.autocast("cpu", torch.bfloat16):
        normalised, combined = norm(x), activation.combine(x, x.flip(0))
    assert torch.equal(normalised, norm(x.float()).bfloat16())
    assert torch.equal(combined, activation.combine(x.float(), x.float().flip(0)).bfloat16())


def test_parameters_gradients_and_biases_are_float32(k3: Decoder) -> None:
    run(k3).float().square().mean().backward()
    for balancer in k3.balancers():
        balancer.step()
        assert balancer.bias_E.dtype is torch.float32
    for name, parameter in k3.named_parameters():
        assert parameter.dtype is torch.float32, name
        assert parameter.grad.dtype is torch.float32, name
        assert parameter.grad.isfinite().all(), name
