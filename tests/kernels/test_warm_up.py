"""After a warm-up a training step compiles nothing: every numba kernel has its signature already."""

import importlib
from pkgutil import iter_modules

import pytest
import torch
from numba.core.dispatcher import Dispatcher
from torch import Generator

from k3ablate import kernels
from k3ablate.config import InputError, parse
from k3ablate.kernels import (
    attnres_numba,
    causal_attention_numba,
    decay_numba,
    dispatch,
    experts_numba,
    head_norms_numba,
    kda_numba,
    output_gate_numba,
    rms_norm_numba,
    rotary_numba,
    routing_numba,
    short_convolution_numba,
    situ_glu_numba,
)
from k3ablate.kernels.warm_up import OPERATIONS, warm_up
from k3ablate.model.decoder import Decoder, ModelConfig, initialise
from k3ablate.model.sizes import Size, scaled
from k3ablate.recipes import recipe

MODULES = (
    attnres_numba,
    causal_attention_numba,
    decay_numba,
    experts_numba,
    head_norms_numba,
    kda_numba,
    output_gate_numba,
    rms_norm_numba,
    rotary_numba,
    routing_numba,
    short_convolution_numba,
    situ_glu_numba,
)


def num_compiled() -> dict[str, int]:
    """Compiled signatures of every kernel of the numba files."""
    functions = {f"{module.__name__}.{name}": value for module in MODULES for name, value in vars(module).items()}
    return {name: len(value.signatures) for name, value in functions.items() if isinstance(value, Dispatcher)}


def test_every_operation_of_the_package_is_known() -> None:
    modules = [importlib.import_module(f"{kernels.__name__}.{found.name}") for found in iter_modules(kernels.__path__)]
    defined = {
        value.name: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, dispatch.Operation)
    }
    assert defined == {operation.name: operation for operation in OPERATIONS}


@pytest.mark.parametrize("forced", ["foo", "experts=triton", "foo=numba"])
def test_what_cannot_be_forced_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, forced: str) -> None:
    monkeypatch.setenv("K3ABLATE_KERNELS", forced)
    with pytest.raises(InputError, match=r"K3ABLATE_KERNELS: .*(no such kernel|no such operation); write "):
        warm_up()


@pytest.mark.parametrize("forced", ["numba", "torch"])
def test_one_kernel_can_be_forced_for_everything(monkeypatch: pytest.MonkeyPatch, forced: str) -> None:
    monkeypatch.setenv("K3ABLATE_KERNELS", forced)
    dispatch.forget_used()
    warm_up()
    assert dispatch.used() == {operation.name: forced for operation in OPERATIONS}


def test_a_step_compiles_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("K3ABLATE_KERNELS", raising=False)
    warm_up()
    before = num_compiled()
    for module in MODULES:  # callees are compiled into them, and rotary has one kernel for both ways
        assert sum(count for name, count in before.items() if name.startswith(f"{module.__name__}."))
    reference = parse(ModelConfig, recipe("model", "kimi-k3"), source="kimi-k3")
    config = scaled(reference, Size(name="x", width=24, num_layers=4, head_width=8, num_active=2), 256)
    decoder = Decoder(config)
    initialise(decoder, Generator().manual_seed(0), 0.02)
    decoder(torch.zeros(2, 33, dtype=torch.long)).logits_BTV.square().sum().backward()
    for balancer in decoder.balancers():
        balancer.step()
    assert dispatch.used()["kda"] == "numba"
    assert num_compiled() == before
