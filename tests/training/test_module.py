"""The loss is the plain cross-entropy of the whole batch; what balancing adds stays apart."""

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor

from k3ablate.model.decoder import Decoder, initialise
from k3ablate.training.module import LanguageModule, cross_entropy
from k3ablate.training.spec import RunSpec

AUXILIARY = {"kind": "auxiliary_loss", "coefficient": 0.5}


@pytest.fixture(name="tokens_BT")
def tokens() -> Tensor:
    return torch.randint(256, (4, 17), generator=Generator().manual_seed(0))


def language_module(spec: RunSpec) -> LanguageModule:
    decoder = Decoder(spec.model)
    initialise(decoder, Generator().manual_seed(1), 0.3)
    return LanguageModule(decoder, spec.training)


def plain_loss(logits_BTV: Tensor, targets_BT: Tensor) -> float:
    """-log of the probability of each target, one by one."""
    total = 0.0
    for logits_TV, targets_T in zip(logits_BTV.double(), targets_BT, strict=True):
        for logits_V, target in zip(logits_TV, targets_T, strict=True):
            total -= (logits_V[target] - logits_V.exp().sum().log()).item()
    return total / targets_BT.numel()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy_is_in_nats_and_single_precision(dtype: torch.dtype) -> None:
    logits_BTV = torch.randn(2, 3, 5, generator=Generator().manual_seed(2)).to(dtype)
    targets_BT = torch.tensor([[0, 1, 2], [3, 4, 0]])
    loss = cross_entropy(logits_BTV, targets_BT)
    assert loss.dtype is torch.float32
    assert loss.item() == pytest.approx(plain_loss(logits_BTV, targets_BT), rel=1e-6)


def test_the_loss_leaves_out_what_balancing_adds(tiny_spec: Callable[..., RunSpec], tokens_BT: Tensor) -> None:
    module = language_module(tiny_spec(model__balancing=AUXILIARY, training__micro_batch_size=4))
    objective = module.training_step(tokens_BT, 0).item()
    output = module.decoder(tokens_BT[:, :-1])
    assert output.auxiliary_loss.item() > 0
    assert module.loss == pytest.approx(plain_loss(output.logits_BTV, tokens_BT[:, 1:]), rel=1e-6)
    assert module.auxiliary_loss == pytest.approx(output.auxiliary_loss.item())
    assert objective == pytest.approx(module.loss + module.auxiliary_loss)


def test_the_loss_of_a_step_is_the_mean_over_its_micro_batches(
    tiny_spec: Callable[..., RunSpec], tokens_BT: Tensor
) -> None:
    whole = language_module(tiny_spec(training__micro_batch_size=4))
    whole.training_step(tokens_BT, 0)
    split = language_module(tiny_spec(training__micro_batch_size=2))
    for micro_batch_BT in (tokens_BT.flip(0) % 7)[:2], (tokens_BT.flip(0) % 7)[2:]:  # a step before
        split.training_step(micro_batch_BT, 0)
    before = split.loss
    for micro_batch_BT in tokens_BT.split(2):
        split.training_step(micro_batch_BT, 0)
    assert split.loss == pytest.approx(whole.loss, rel=1e-6)
    assert split.loss != before


@pytest.mark.parametrize(("limit", "expected"), [(0.01, 0.01), (1e9, None), (None, None)])
def test_gradients_are_clipped_by_global_norm_and_the_norm_is_kept(
    limit: float | None, expected: float | None, tiny_spec: Callable[..., RunSpec], tokens_BT: Tensor
) -> None:
    module = language_module(tiny_spec())
    module.training_step(tokens_BT, 0).backward()
    before = torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).norm().item()
    module.configure_gradient_clipping(torch.optim.SGD(module.parameters()), limit)
    after = torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).norm().item()
    assert module.gradient_norm.item() == pytest.approx(before, rel=1e-5)
    assert after == pytest.approx(expected or before, rel=1e-3)
