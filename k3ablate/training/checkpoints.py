"""How does a run survive a crash? Checkpoints that are whole or absent, two of them, and the newest good one.

Writing is a temporary file, flushed to the disk and renamed; reading checks every byte by the file's own checksums.
A checkpoint names the run it belongs to. When to resume is decided in `run.py`.
"""

import errno
import io
import logging
import time
import zipfile
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule, Trainer

from k3ablate.config import InputError
from k3ablate.model import ranks
from k3ablate.storage import TEMPORARY, replace_file
from k3ablate.training.callbacks import StepCallback
from k3ablate.training.module import LanguageModule

KEPT = 2
DIGEST_KEY = "digest"
PATTERN = "step-*.ckpt"
# What zipfile and torch make of an archive whose contents are whole and whose list of them is not: places outside the
# file, names that are no text, kinds of compression that nobody uses.
DAMAGE = (zipfile.BadZipFile, EOFError, KeyError, OSError, OverflowError, RuntimeError, ValueError)

logger = logging.getLogger(__name__)


def checkpoint_name(num_steps: int) -> str:
    """The file of a checkpoint after so many steps."""
    return f"step-{num_steps:09d}.ckpt"


def saved_steps(path: Path) -> int:
    """How many steps the checkpoint at `path` was saved after."""
    return int(path.stem.removeprefix("step-"))


def newest(folder: Path, digest: str, key: str = DIGEST_KEY, most_steps: int | None = None) -> Path | None:
    """The last good checkpoint in `folder`, of `most_steps` steps at most, or None.

    InputError if what it names by `key` is not `digest`: it belongs to another run.
    """
    for path in sorted(folder.glob(PATTERN), reverse=True):
        if most_steps is not None and saved_steps(path) > most_steps:
            continue
        try:
            owner = _owner(path, key)
        except DAMAGE as error:
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise  # the disk's refusal
            logger.warning("%s is damaged; the checkpoint before it is taken", path)
            continue
        if owner != digest:
            noun = "run" if key == DIGEST_KEY else key
            raise InputError(f"{path}: belongs to {noun} {owner}, this is {noun} {digest}; move it out of this folder")
        return path
    return None


def drop_unfinished(folder: Path) -> None:
    """Delete what processes that died were writing; only for who holds the run."""
    for path in folder.glob(f"*{TEMPORARY}"):
        path.unlink()


class AtomicCheckpoints(CheckpointIO):
    """Lightning's way to the disk. Its own writes to a temporary folder that may be on another disk."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write all of `checkpoint` or nothing."""
        assert storage_options is None, "nothing to configure"
        content = io.BytesIO()
        torch.save(checkpoint, content)  # to memory first: torch reports a full disk as an internal error
        replace_file(Path(path), lambda file: file.write(content.getbuffer()))

    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Any = None,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint; it cannot run code."""
        loaded: dict[str, Any] = torch.load(path, map_location=map_location, weights_only=True)
        return loaded

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete the file."""
        Path(path).unlink(missing_ok=True)


class SaveCheckpoints(StepCallback):
    """Saves every `seconds` and when training is asked to stop; keeps the newest two. Comes last among callbacks."""

    def __init__(self, folder: Path, digest: str, seconds: float) -> None:
        super().__init__()
        self.folder = folder
        self.digest = digest
        self.seconds = seconds
        self._last = time.monotonic()

    def on_save_checkpoint(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        checkpoint: dict[str, Any],
    ) -> None:
        """Name the run."""
        checkpoint[DIGEST_KEY] = self.digest

    def on_step(self, trainer: Trainer, module: LanguageModule, step: int) -> None:
        """Save if it is time. What one rank asks for, all do at this step: stop, or save, which they do together."""
        is_due = time.monotonic() - self._last >= self.seconds
        trainer.should_stop, is_due = ranks.any_of(trainer.should_stop, is_due)
        if not trainer.should_stop and not is_due:
            return
        trainer.save_checkpoint(self.folder / checkpoint_name(step + 1))
        if ranks.rank() == 0:
            for path in sorted(self.folder.glob(PATTERN))[:-KEPT]:
                path.unlink()
        self._last = time.monotonic()


def _owner(path: Path, key: str) -> object:
    """What a checkpoint names by `key`, once every member of the archive matches its checksum; torch looks at none."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise zipfile.BadZipFile(damaged)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True).get(key)
