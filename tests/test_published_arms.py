"""Does every arm of every published experiment change what is trained, and not only what it is called?

Arms are built at the width of their baseline, without matching: there a swap that reached no module, no balancer and
no update leaves the same weights behind.
"""

import functools
import hashlib
from pathlib import Path

import pytest
import torch
from torch import Generator, nn

from k3ablate.experiment import Setting, load, make_arms, setting
from k3ablate.model.attention import GatedLatentAttention, LatentAttention
from k3ablate.model.balancing import HistogramQuantileBalancer, SignUpdateBalancer
from k3ablate.model.decoder import Decoder, initialise
from k3ablate.model.feedforward import GLU, DenseFeedForward, SiTUGLU, SwiGLU
from k3ablate.model.kda import KimiDeltaAttention
from k3ablate.model.moe import Experts, RoutedFeedForward
from k3ablate.model.residual import AttnResStream, PlainStream
from k3ablate.model.sizes import Size, scaled
from k3ablate.training.module import cross_entropy
from k3ablate.training.optim import build_optimizer, set_learning_rate
from k3ablate.training.schedules import factor

EXPERIMENTS = sorted((Path(__file__).parent.parent / "experiments").glob("*.yaml"))
every_experiment = pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
DEMO = Path(__file__).parent.parent / "experiments" / "demo.yaml"
NUM_STEPS = 3


def built(chosen: Setting, size: Size) -> Decoder:
    config = scaled(chosen.model, size, chosen.data.vocabulary_size)
    decoder = Decoder(config)
    initialise(decoder, Generator().manual_seed(0), config.initializer_range)
    return decoder


def trained(chosen: Setting, size: Size) -> str:
    """Digest of all weights and biases, with their names, after a few steps on fixed tokens."""
    decoder = built(chosen, size)
    optimizer = build_optimizer(decoder, chosen.training.optimizer)
    tokens_BT = torch.randint(chosen.data.vocabulary_size, (2, 17), generator=Generator().manual_seed(1))
    for step in range(NUM_STEPS):
        set_learning_rate(optimizer, factor(chosen.training.schedule, step, NUM_STEPS))
        output = decoder(tokens_BT[:, :-1])
        optimizer.zero_grad()
        (cross_entropy(output.logits_BTV, tokens_BT[:, 1:]) + output.auxiliary_loss).backward()
        optimizer.step()
        for balancer in decoder.balancers():
            balancer.step()
    digest = hashlib.sha256()
    for name, tensor in decoder.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + tensor.numpy().tobytes())
    return digest.hexdigest()


trained_once = functools.cache(trained)


@every_experiment
def test_every_arm_trains_to_other_weights_than_every_other(path: Path) -> None:
    experiment = load(path)
    arms = [arm for arm in make_arms(experiment) if arm.name != experiment.names.replicate]
    settings = {arm.name: setting(experiment, arm) for arm in arms}
    outcomes = {name: (trained_once(chosen, experiment.sizes[0]), chosen.data) for name, chosen in settings.items()}
    assert len(set(outcomes.values())) == len(arms), outcomes  # an arm of another text may update weights alike


@every_experiment
def test_the_twin_of_the_baseline_changes_nothing_but_seeds(path: Path) -> None:
    experiment = load(path)
    names = (experiment.names.baseline, experiment.names.replicate)
    assert len({setting(experiment, arm) for arm in make_arms(experiment) if arm.name in names}) == 1


def test_equal_settings_train_to_equal_weights() -> None:
    """Or else the outcomes above would differ whatever the arms are."""
    experiment = load(DEMO)
    for arm in make_arms(experiment)[:2]:
        first, second = (trained(setting(experiment, arm), experiment.sizes[0]) for _ in range(2))
        assert first == second


def test_a_swap_reaches_every_layer_that_has_the_slot() -> None:
    """K2 and K3 of the demo, module by module: four layers, the first with a dense feed-forward."""
    experiment = load(DEMO)
    arms = {arm.name: built(setting(experiment, arm), experiment.sizes[0]) for arm in make_arms(experiment)}
    for name, mixers, enter, balancer, activation, residual in (
        ("k2", [LatentAttention] * 4, nn.Identity, SignUpdateBalancer, SwiGLU, PlainStream),
        (
            "k3", [KimiDeltaAttention] * 3 + [GatedLatentAttention], nn.Linear, HistogramQuantileBalancer, SiTUGLU,
            AttnResStream,
        ),
    ):  # fmt: skip
        decoder = arms[name]
        assert [type(layer.mixer) for layer in decoder.layers] == mixers
        assert [type(layer.feed_forward) for layer in decoder.layers] == [DenseFeedForward] + [RoutedFeedForward] * 3
        assert [type(layer.feed_forward.enter) for layer in decoder.layers[1:]] == [enter] * 3
        assert [type(found) for found in decoder.balancers()] == [balancer] * 3
        units = [module for module in decoder.modules() if isinstance(module, GLU | Experts)]
        assert [type(unit.activation) for unit in units] == [activation] * 7  # one dense, three of each kind
        assert type(decoder.residual) is residual
