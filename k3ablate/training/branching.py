"""How does a run go on from what another run has trained? Checkpoints of trunks, and the newest that serves a run.

A checkpoint of a trunk holds what one of a run holds, and the lines of metrics until then, so that a run that starts
from it ends with the bits, and with the curve, of one that trained everything itself. Which runs share a trunk is
`trunks.py`.
"""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

from k3ablate.model import ranks
from k3ablate.storage import write_atomic
from k3ablate.training.callbacks import StepCallback
from k3ablate.training.checkpoints import checkpoint_name, newest
from k3ablate.training.module import LanguageModule
from k3ablate.training.trunks import Trunk, wanted_steps

TRUNK_KEY = "trunk"
METRICS_KEY = "metrics"


def start_from(folder: Path, found: Trunk, metrics: Path) -> Path | None:
    """The newest good checkpoint of the trunk in `folder` that lies on a run's way, with its lines put in `metrics`.

    None where there is none. InputError for one of another trunk.
    """
    path = newest(folder, found.digest, key=TRUNK_KEY, most_steps=found.num_steps)
    if path is not None:
        kept = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        write_atomic(metrics, kept[METRICS_KEY])
    return path


class SaveTrunk(StepCallback):
    """Saves the trunk where runs part from it, unless another run has. Comes late among callbacks: it saves all others.

    Where a plan says so, and with `keeps_own` where this run's decay begins, for budgets that are added later. Whoever
    comes first writes; two that write at once write the same, each in one step.
    """

    def __init__(self, folder: Path, found: Trunk, metrics: Path, *, keeps_own: bool) -> None:
        super().__init__()
        self.folder = folder
        self.trunk = found
        self.metrics = metrics
        wanted = wanted_steps(folder, found) | ({found.num_steps} if keeps_own else set())
        self.steps = ranks.of_first(wanted)  # another process may see a folder later
        self._is_saving = False

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Name the trunk, and add what a run logged on it; ordinary checkpoints are left as they are."""
        if self._is_saving:
            is_first = ranks.rank() == 0
            checkpoint[TRUNK_KEY] = self.trunk.digest
            checkpoint[METRICS_KEY] = self.metrics.read_text(encoding="utf-8") if is_first else ""

    def on_step(self, trainer: Trainer, module: LanguageModule, step: int) -> None:
        """Save if runs part here. All ranks do, or none."""
        if step + 1 not in self.steps:
            return
        path = self.folder / checkpoint_name(step + 1)
        (is_there,) = ranks.any_of(path.exists())
        if is_there:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        self._is_saving = True
        try:
            trainer.save_checkpoint(path)
        finally:
            self._is_saving = False
