"""What happens around an optimizer step, apart from the step?

Each callback does one thing once per optimizer step (never per micro-batch, never in evaluation): set the learning
rate, keep time, stop what diverges, move balancing, stop when time is up. `run.py` puts them in order. Logging is
`metrics.py`, saving `checkpoints.py`.
"""

import math
import time
from abc import ABC, abstractmethod
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from k3ablate.model.balancing import Balancer
from k3ablate.training import stopping
from k3ablate.training.module import LanguageModule
from k3ablate.training.optim import set_learning_rate
from k3ablate.training.provenance import versions
from k3ablate.training.schedules import factor
from k3ablate.training.spec import TrainingConfig


class Diverged(Exception):  # noqa: N818 - an outcome of a run
    """Training has left the finite, or the bound its specification states."""


class StepCallback(Callback, ABC):
    """A callback whose `on_step` runs once after every optimizer step, however many micro-batches it had."""

    def __init__(self) -> None:
        self._num_seen = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count from where training starts or resumes."""
        self._num_seen = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Call `on_step` if this micro-batch completed an optimizer step."""
        assert isinstance(pl_module, LanguageModule)
        if trainer.global_step > self._num_seen:
            self._num_seen = trainer.global_step
            self.on_step(trainer, pl_module, self._num_seen - 1)

    @abstractmethod
    def on_step(self, trainer: Trainer, module: LanguageModule, step: int) -> None:
        """0-based optimizer step `step` has just been taken; `module` holds what it measured."""


class LearningRate(Callback):
    """The schedule, as a pure function of the step: a resumed run has no scheduler state to restore."""

    def __init__(self, training: TrainingConfig, num_steps: int) -> None:
        self.schedule = training.schedule
        self.num_steps = num_steps

    def on_before_optimizer_step(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        optimizer: Optimizer,
    ) -> None:
        """Set the rate of the step that is about to be taken."""
        set_learning_rate(optimizer, factor(self.schedule, trainer.global_step, self.num_steps))


class Clock(StepCallback):
    """Seconds of training, resumes, the code that took part and the loss of step 0; carried through checkpoints.

    Work that was lost after a checkpoint is not in the seconds. A run that starts from a trunk counts on from its
    seconds, and knows how many they were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first_loss: float | None = None
        self.num_resumes = 0
        self.codes: list[str] = []  # versions of the code that took part, first to last
        self.branched_at = 0  # steps that another run took, which the run started from
        self.seconds_of_trunk = 0.0
        self._seconds_before = 0.0  # as of the checkpoint that training resumed from
        self._is_branching = False
        self._start: float | None = None

    @property
    def seconds(self) -> float:
        """Of training so far, checkpoints and logging included."""
        return self._seconds_before + (time.monotonic() - self._start if self._start is not None else 0.0)

    def branch(self, num_steps: int) -> None:
        """The checkpoint that is loaded next is of another run, after `num_steps`."""
        self.branched_at, self._is_branching = num_steps, True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start."""
        super().on_train_start(trainer, pl_module)
        self._start = time.monotonic()
        code = versions()["code"]
        if self.codes[-1:] != [code]:
            self.codes.append(code)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop: evaluation is not training."""
        self._seconds_before, self._start = self.seconds, None

    def on_step(self, trainer: Trainer, module: LanguageModule, step: int) -> None:
        """Keep the loss of step 0; one that is not finite ends the run, and no record holds it."""
        if step == 0 and math.isfinite(module.loss):
            self.first_loss = module.loss

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint carries."""
        kept = {"seconds": self.seconds, "num_resumes": self.num_resumes, "codes": self.codes}
        branch = {"branched_at": self.branched_at, "seconds_of_trunk": self.seconds_of_trunk}
        return kept | branch | {"first_loss": self.first_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._seconds_before = state_dict["seconds"]
        if self._is_branching:
            self.seconds_of_trunk, self._is_branching = state_dict["seconds"], False
        else:
            self.num_resumes = state_dict["num_resumes"] + 1
            self.branched_at = state_dict.get("branched_at", 0)  # as codes
            self.seconds_of_trunk = state_dict.get("seconds_of_trunk", 0.0)
        self.codes = state_dict.get("codes", [])  # not in checkpoints of before it was kept
        self.first_loss = state_dict["first_loss"]


class StopOnDivergence(StepCallback):
    """Raises Diverged after a step whose loss is NaN, infinite or above the bound."""

    def __init__(self, bound: float) -> None:
        super().__init__()
        self.bound = bound

    def on_step(self, trainer: Trainer, module: LanguageModule, step: int) -> None:
        """Look at the loss; weights that stopped being finite show in the next one."""
        loss = module.loss
        if not math.isfinite(loss):
            raise Diverged(f"training loss {loss} at step {step}")
        if loss > self.bound:
            raise Diverged(f"training loss {loss:.6g} at step {step} is above divergence_loss {self.bound:g}")


class BalancingStep(StepCallback):
    """Moves every balancer once per optimizer step, on the load of its whole batch."""

    def __init__(self, balancers: list[Balancer]) -> None:
        super().__init__()
        self.balancers = balancers

    def on_step(self, trainer: Trainer, module: LanguageModule, step: int) -> None:
        """One update."""
        for balancer in self.balancers:
            balancer.step()


class TimeLimit(StepCallback):
    """Asks training to stop once `seconds` have passed since it started or resumed in this process."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self._start = math.inf

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The limit is on this process, which is what a scheduler limits; the run goes on in another."""
        super().on_train_start(trainer, pl_module)
        self._start = time.monotonic()

    def on_step(self, trainer: Trainer, module: LanguageModule, step: int) -> None:
        """Stop after this step; `SaveCheckpoints` comes later and saves it."""
        if time.monotonic() - self._start > self.seconds:
            trainer.should_stop = True


class StopOnRequest(StepCallback):
    """Asks training to stop once this process has been asked to (`stopping`)."""

    def __init__(self) -> None:
        super().__init__()
        self.was_heard = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signals back that Lightning has taken; it restores them when it is done."""
        super().on_train_start(trainer, pl_module)
        stopping.listen_again()

    def on_step(self, trainer: Trainer, module: LanguageModule, step: int) -> None:
        """Stop after this step; `SaveCheckpoints` comes later and saves it."""
        if stopping.requested():
            self.was_heard = trainer.should_stop = True
