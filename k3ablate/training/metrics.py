"""What was measured while a run trained? `metrics.jsonl`: one JSON object per logged step, each step once.

What a store of runs shows is read from there (`outbox`). Validation losses are in the record, not here.
"""

import json
import logging
import math
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from k3ablate.model import ranks
from k3ablate.model.balancing import Balancer
from k3ablate.model.counting import Counts
from k3ablate.model.inspection import Magnitudes
from k3ablate.storage import append_line, write_atomic
from k3ablate.training.callbacks import Clock, StepCallback
from k3ablate.training.module import LanguageModule
from k3ablate.training.spec import RunSpec

logger = logging.getLogger(__name__)

Line = dict[str, Any]  # what one line of the file holds


class MetricsLog(StepCallback):
    """Writes a line every `every` steps and at the last one.

    `step` is 0-based; `tokens`, `flops` (training FLOPs) and `seconds` include it, `loss` is of its batch before the
    update, `tokens_per_second` since the line before, `imbalance` one number per routed layer (largest / mean load).
    Callbacks add what they measured of each layer: `clipping.ClipLogits` how large logits were and what it clipped.
    All is of the whole run; of several ranks the first writes.
    Every `inspect_every`-th line, and the last, also holds what `inspection.Magnitudes` says of the activations of the
    step's forward passes; such a step takes about a tenth longer.
    """

    def __init__(
        self,
        path: Path,
        every: int,
        inspect_every: int,
        spec: RunSpec,
        counts: Counts,
        clock: Clock,
        balancers: list[Balancer],
    ) -> None:
        super().__init__()
        self.path = path
        self.every = every
        self.inspect_every = inspect_every
        self.num_steps = spec.num_steps
        self.tokens_per_step = spec.training.tokens_per_step
        self.counts = counts
        self.clock = clock
        self.balancers = balancers
        self._last = (0, 0.0)  # tokens and time of the line before
        self._magnitudes: Magnitudes | None = None  # of the step being taken, if it is inspected

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop the lines of steps that are about to be taken again."""
        super().on_train_start(trainer, pl_module)
        if ranks.rank() == 0:
            whole_from = keep_lines(self.path, trainer.global_step)
            if whole_from:
                logger.warning("%s was damaged: lines before step %d are missing", self.path, whole_from)
        self._last = (trainer.global_step * self.tokens_per_step, time.monotonic())

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Look at activations from the first micro-batch of a step whose line holds them."""
        assert isinstance(pl_module, LanguageModule)
        if self._magnitudes is None and self._is_inspected(trainer.global_step):
            self._magnitudes = Magnitudes(pl_module.decoder)

    def on_step(self, trainer: Trainer, module: LanguageModule, step: int) -> None:
        """Measure and write, if it is this step's turn."""
        if not self._gets_a_line(step):
            return
        line = self._measure(trainer, module, step)  # of all ranks, by all ranks
        if ranks.rank() > 0:
            return
        append_line(self.path, json.dumps(line, allow_nan=False))

    def _gets_a_line(self, step: int) -> bool:
        return step % self.every == 0 or step + 1 == self.num_steps

    def _is_inspected(self, step: int) -> bool:
        return self._gets_a_line(step) and (step // self.every % self.inspect_every == 0 or step + 1 == self.num_steps)

    def _measure(self, trainer: Trainer, module: LanguageModule, step: int) -> Line:
        tokens = (step + 1) * self.tokens_per_step
        now = time.monotonic()
        (tokens_before, time_before), self._last = self._last, (tokens, now)
        line = {
            "step": step,
            "tokens": tokens,
            "flops": self.counts.training_flops(tokens),
            "seconds": self.clock.seconds,
            "loss": module.loss,
            "auxiliary_loss": module.auxiliary_loss,
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            "gradient_norm": module.gradient_norm.item(),
            "tokens_per_second": (tokens - tokens_before) / max(now - time_before, 1e-9),
        }
        return {name: _finite(value) for name, value in line.items()} | self._by_layer(module)

    def _by_layer(self, module: LanguageModule) -> dict[str, list[float | None]]:
        """What there is one number of for each layer that has it."""
        magnitudes, self._magnitudes = self._magnitudes, None
        lists = {"imbalance": [balancer.imbalance for balancer in self.balancers]}
        lists |= {name: values.tolist() for name, values in module.by_layer.items()}
        lists |= magnitudes.take() if magnitudes else {}
        return {name: [_finite(value) for value in values] for name, values in lists.items()}


def keep_lines(path: Path, num_steps: int) -> int:
    """Cut the file to the lines of the first `num_steps` steps; a line a crash cut off goes too.

    The step before which lines are missing, as far as the file shows: some cannot be read, or it does not begin at
    step 0; else 0. What can be read is kept.
    """
    if not path.exists():
        return 0
    lines: list[Line] = []
    is_cut, whole_from = False, 0
    for raw in path.read_bytes().splitlines():
        line = _parsed(raw)
        if line is not None and line["step"] < num_steps:
            lines.append(line)
            whole_from = line["step"] if is_cut or (len(lines) == 1 and line["step"]) else whole_from
        is_cut = line is None
    write_atomic(path, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))
    return whole_from if lines else num_steps


def _finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None


def _parsed(raw: bytes) -> Line | None:
    try:
        line = json.loads(raw)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("step"), int) else None
