"""Each callback by itself, on a trainer that only counts: what it does, when, and what a checkpoint carries of it."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from torch import Generator

from k3ablate.model.decoder import Decoder, initialise
from k3ablate.training import callbacks
from k3ablate.training.callbacks import (
    BalancingStep,
    Clock,
    Diverged,
    LearningRate,
    StepCallback,
    StopOnDivergence,
    TimeLimit,
)
from k3ablate.training.module import LanguageModule
from k3ablate.training.optim import build_optimizer
from k3ablate.training.schedules import factor
from k3ablate.training.spec import RunSpec


@dataclass
class Counting:
    """What callbacks use of a Trainer."""

    global_step: int = 0
    should_stop: bool = False


@dataclass
class Noting(StepCallback):
    """Remembers the steps it was called for."""

    steps: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def on_step(self, trainer: object, module: LanguageModule, step: int) -> None:
        self.steps.append(step)


@pytest.fixture
def module(tiny_spec: Callable[..., RunSpec]) -> LanguageModule:
    spec = tiny_spec()
    decoder = Decoder(spec.model)
    initialise(decoder, Generator().manual_seed(0), 0.02)
    return LanguageModule(decoder, spec.training)


def measured(module: LanguageModule, loss: float) -> LanguageModule:
    module._losses = [torch.tensor([loss, 0.0])]
    return module


def run_micro_batches(callback: StepCallback, trainer: Counting, module: LanguageModule, num: int, each: int) -> None:
    """`num` micro-batches, `each` of which make a step."""
    for index in range(num):
        trainer.global_step += (index + 1) % each == 0
        callback.on_train_batch_end(trainer, module, None, None, index)


def test_once_per_optimizer_step_from_where_training_starts(module: LanguageModule) -> None:
    callback, trainer = Noting(), Counting(global_step=7)
    callback.on_train_start(trainer, module)
    run_micro_batches(callback, trainer, module, num=9, each=3)
    assert callback.steps == [7, 8, 9]


def test_the_rate_is_that_of_the_step_about_to_be_taken(
    module: LanguageModule, tiny_spec: Callable[..., RunSpec]
) -> None:
    spec = tiny_spec()
    optimizer = build_optimizer(module.decoder, spec.training.optimizer)
    callback = LearningRate(spec.training, num_steps=10)
    for step in (0, 4, 9):
        callback.on_before_optimizer_step(Counting(global_step=step), module, optimizer)
        expected = 0.01 * factor(spec.training.schedule, step, 10)
        assert {group["lr"] for group in optimizer.param_groups} == {expected}


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (math.nan, "training loss nan at step 3"),
        (math.inf, "training loss inf at step 3"),
        (20.5, "training loss 20.5 at step 3 is above divergence_loss 20"),
    ],
)
def test_divergence_is_raised_with_step_and_value(loss: float, reason: str, module: LanguageModule) -> None:
    callback = StopOnDivergence(20.0)
    callback.on_step(Counting(), measured(module, 19.9), 2)
    with pytest.raises(Diverged, match=f"^{reason}$"):
        callback.on_step(Counting(), measured(module, loss), 3)


def test_balancing_moves_once_per_step_on_all_its_micro_batches(module: LanguageModule) -> None:
    balancers = module.decoder.balancers()
    callback, trainer = BalancingStep(balancers), Counting()
    callback.on_train_start(trainer, module)
    tokens_BT = torch.randint(256, (4, 16), generator=Generator().manual_seed(1))
    for index, micro_batch_BT in enumerate(tokens_BT.split(2)):
        module.decoder(micro_batch_BT)
        trainer.global_step = index
        callback.on_train_batch_end(trainer, module, None, None, index)
        moved = [balancer.bias_E.abs().max().item() > 0 for balancer in balancers]
        assert moved == [index == 1] * 2
    assert [balancer.load_E.sum().item() for balancer in balancers] == [4 * 16 * 2] * 2


def test_the_clock_keeps_every_code_that_took_part(module: LanguageModule, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: dict[str, object] | None = None
    for code in ("a", "a", "b", "b", "a"):
        monkeypatch.setattr(callbacks, "versions", lambda code=code: {"code": code})
        clock = Clock()
        if saved is not None:
            clock.load_state_dict(saved)
        clock.on_train_start(Counting(), module)
        saved = clock.state_dict()
    assert clock.codes == ["a", "b", "a"]


def test_the_clock_goes_on_from_a_checkpoint(module: LanguageModule) -> None:
    clock, trainer = Clock(), Counting()
    clock.on_train_start(trainer, module)
    clock.on_step(trainer, measured(module, 5.5), 0)
    time.sleep(0.01)
    clock.on_step(trainer, measured(module, 4.5), 1)
    saved = clock.state_dict()
    resumed = Clock()
    resumed.load_state_dict(saved)
    assert resumed.seconds == saved["seconds"] >= 0.01
    assert (resumed.first_loss, resumed.num_resumes) == (5.5, 1)
    resumed.on_train_start(trainer, module)
    time.sleep(0.01)
    resumed.on_train_end(trainer, module)
    stopped = resumed.seconds
    assert stopped >= saved["seconds"] + 0.01
    assert resumed.seconds == stopped


def test_the_time_limit_counts_from_where_this_process_started(module: LanguageModule) -> None:
    patient, hurried = TimeLimit(3600.0), TimeLimit(0.0)
    for callback, is_stopped in ((patient, False), (hurried, True)):
        trainer = Counting()
        callback.on_train_start(trainer, module)
        time.sleep(0.001)
        callback.on_step(trainer, module, 0)
        assert trainer.should_stop is is_stopped
