"""Where is a run, and how far did it get? One folder per digest; its state is derived from what lies there.

`prepare` freezes the specification, `RunFolder` reads and writes the rest. A run is held by a lock that the kernel
releases when its process dies, so no state has to be cleaned up after a crash. Nothing here trains or starts processes
(`local`), and nothing here imports torch, so that a worker can set its threads before torch is loaded.

    <root>/<digest>/   spec.json record.json metrics.jsonl routing.json checkpoints/ log.txt failure.txt lock
    <root>/corpora/  <root>/mlflow.db  <root>/results/<experiment>/
"""

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from k3ablate.config import InputError
from k3ablate.records import (
    CHECKPOINTS_FOLDER,
    METRICS_FILE,
    RECORD_FILE,
    SETTLED,
    SPEC_FILE,
    RoutedPairs,
    RunRecord,
    read_record,
    read_routing,
    write_record,
)
from k3ablate.storage import write_atomic

if TYPE_CHECKING:
    from k3ablate.training.spec import RunSpec

LOG_FILE = "log.txt"
FAILURE_FILE = "failure.txt"
LOCK_FILE = "lock"

TAIL_BYTES = 65_536  # of metrics.jsonl: holds many lines, however long the file
CLAIM_SECONDS = 0.5  # how long `claimed` waits for someone who only looks at the lock


class State(StrEnum):
    """Where a run is. The last four are the statuses of its record."""

    WAITING = "waiting"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"
    DIVERGED = "diverged"
    OUT_OF_TIME = "out_of_time"
    FAILED = "failed"


SETTLED_STATES = frozenset(State(status) for status in SETTLED)


class Progress(NamedTuple):
    """How far a run got, by its own metrics."""

    num_steps: int
    tokens: int


NO_PROGRESS = Progress(num_steps=0, tokens=0)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run. Every write is atomic; every read copes with a file that is not there."""

    path: Path

    @property
    def digest(self) -> str:
        """The run's name by content, which is the folder's."""
        return self.path.name

    def state(self) -> State:
        """The state that the folder's content shows."""
        record = self.record()
        if record is not None:
            return State(record.status)
        if self.is_held():
            return State.RUNNING
        return State.INTERRUPTED if self._has_checkpoint() else State.WAITING

    def record(self) -> RunRecord | None:
        """What came out, or None; a file that is damaged or of another run is an InputError that names it."""
        return read_record(self.path, self.digest)

    def routing(self) -> RoutedPairs | None:
        """How its tokens were routed when it finished, or None; what is damaged is an InputError, as for the record."""
        return read_routing(self.path, self.digest)

    def write_record(self, record: RunRecord) -> None:
        """Settle the run."""
        write_record(record, self.path)

    def write_failure(self, record: RunRecord, details: str) -> None:
        """Keep a failed record, and `details` (a traceback) beside it."""
        write_atomic(self.path / FAILURE_FILE, details)
        self.write_record(record)

    def forget_failure(self) -> None:
        """Make the run open again; metrics and checkpoints stay."""
        (self.path / RECORD_FILE).unlink(missing_ok=True)
        (self.path / FAILURE_FILE).unlink(missing_ok=True)

    def progress(self) -> Progress:
        """By the last whole line of metrics.jsonl, whose steps count from 0; a line cut off by a crash is skipped."""
        for line in reversed(_tail(self.path / METRICS_FILE).splitlines()):
            try:
                entry = json.loads(line)
                return Progress(num_steps=int(entry["step"]) + 1, tokens=int(entry["tokens"]))
            except (ValueError, KeyError, TypeError):
                continue
        return NO_PROGRESS

    @contextmanager
    def claimed(self) -> Iterator[bool]:
        """Hold the run while the block lasts; False where another process holds it."""
        descriptor = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            yield _lock_within(descriptor, CLAIM_SECONDS)
        finally:
            os.close(descriptor)  # releases the lock

    def is_held(self) -> bool:
        """Whether a live process holds the run."""
        try:
            descriptor = os.open(self.path / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def _has_checkpoint(self) -> bool:
        checkpoints = self.path / CHECKPOINTS_FOLDER
        return checkpoints.is_dir() and any(entry.suffix != ".tmp" for entry in checkpoints.iterdir())


def corpora_folder(root: Path) -> Path:
    """Where the corpora of all experiments lie."""
    return root / "corpora"


def results_folder(root: Path, experiment: str) -> Path:
    """Where the table and figure of an experiment go."""
    return root / "results" / experiment


def prepare(root: Path, spec: "RunSpec") -> RunFolder:
    """The folder of `spec` with the specification frozen in it; another specification there is an InputError."""
    folder = RunFolder(root / spec.digest())
    frozen = _read(folder.path / SPEC_FILE)
    if frozen is None:
        folder.path.mkdir(parents=True, exist_ok=True)
        write_atomic(folder.path / SPEC_FILE, json.dumps(spec.tree(), indent=1, sort_keys=True) + "\n")
    elif _tree(frozen) != spec.tree():
        raise InputError(
            f"{folder.path / SPEC_FILE}: holds another specification than its digest says; delete {folder.path}"
        )
    return folder


def find(root: Path, name: str) -> RunFolder:
    """The run of digest `name` below `root`, or whose folder `name` is; InputError where there is none."""
    for path in (root / name, Path(name).resolve()):
        if (path / SPEC_FILE).is_file():
            return RunFolder(path)
    raise InputError(
        f"{name}: no run, neither below {root} nor a folder with a {SPEC_FILE}; write a digest that "
        "`k3ablate plan EXPERIMENT` shows, or a run's folder"
    )


def states(root: Path, digests: Iterable[str]) -> dict[str, State]:
    """The state of every run, by digest."""
    return {digest: RunFolder(root / digest).state() for digest in digests}


def records(root: Path, digests: Iterable[str]) -> dict[str, RunRecord]:
    """The records there are, by digest."""
    found = {digest: RunFolder(root / digest).record() for digest in digests}
    return {digest: record for digest, record in found.items() if record is not None}


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _tree(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError:
        return None  # damaged, or not UTF-8: equal to no specification


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_within(descriptor: int, seconds: float) -> bool:
    """Take the lock for oneself. `is_held` holds a shared one for an instant, so a refusal is tried again."""
    deadline = time.monotonic() + seconds
    while not _lock(descriptor, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
