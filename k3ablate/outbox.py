"""What does a run's folder hold that a store of runs should get? Numbers by step, files, parameters.

Whatever is sent is read from the folder and depends on nothing else, so that whoever sends it (the run itself while it
trains, or `sync` afterwards, or both) sends the same. A step is sent once no crash can make the run take it again: when
a checkpoint holds it, or when the record has settled the run. Who sends, and to where, is in `tracking`.
"""

import fcntl
import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from k3ablate.config import Tree
from k3ablate.records import (
    CHECKPOINTS_FOLDER,
    METRICS_FILE,
    RECORD_FILE,
    ROUTING_FILE,
    SETTLED,
    SPEC_FILE,
    RunRecord,
    read_record,
    read_routing,
    read_spec,
    refuse_link,
    refuse_links,
)

SENT_FILES = (SPEC_FILE, METRICS_FILE, ROUTING_FILE, RECORD_FILE)  # the record last, as in the folder
LOCK_FILE = "tracking.lock"
LOCK_SECONDS = 60.0  # how long one sender waits for another to be done with a run
CHECKPOINTS = "step-*.ckpt"  # named after how many steps they hold


class Busy(Exception):  # noqa: N818 - nothing is wrong
    """Another process is sending this."""


@dataclass(frozen=True)
class Mark:
    """How much of a run's log a store has: its first bytes, and what they were."""

    num_bytes: int
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> "Mark":
        """All of `content`."""
        return cls(len(content), hashlib.sha256(content).hexdigest())

    @classmethod
    def read(cls, text: str) -> "Mark":
        """What `written` wrote; of anything else a mark that no log bears."""
        num_bytes, _, sha256 = text.partition(" ")
        return cls(int(num_bytes), sha256) if num_bytes.isdecimal() else cls(0, "")

    def written(self) -> str:
        """As one short text."""
        return f"{self.num_bytes} {self.sha256}"

    def begins(self, content: bytes) -> bool:
        """Whether `content` begins with what the store has."""
        return len(content) >= self.num_bytes and Mark.of(content[: self.num_bytes]) == self


NOTHING = Mark.of(b"")


@dataclass(frozen=True)
class LoggedStep:
    """The finite numbers of one line of a log, and the mark of a store that has all lines up to it."""

    step: int
    seconds: float  # of training, when it was measured
    values: Mapping[str, float]
    mark: Mark


@dataclass(frozen=True)
class Outbox:
    """The folder of a run, as something to send from. What is damaged or another run's is an InputError."""

    folder: Path

    @property
    def digest(self) -> str:
        """Whose it is."""
        return self.folder.name

    @cached_property
    def record(self) -> RunRecord | None:
        """What came out, if the run has ended, when it was first asked for."""
        return read_record(self.folder, self.digest)

    @property
    def is_settled(self) -> bool:
        """Whether nothing here will change any more."""
        return self.record is not None and self.record.status in SETTLED

    def require_own(self) -> None:
        """InputError for a link, a file of another run, or one that is damaged or edited: nothing is sent then."""
        refuse_links(self.folder)
        read_spec(self.folder, self.digest)
        read_routing(self.folder, self.digest)
        _ = self.record

    def parameters(self) -> dict[str, str]:
        """Dotted path and text of every leaf of the specification."""
        frozen = read_spec(self.folder, self.digest)
        return dict(_leaves(frozen.spec)) if frozen is not None else {}

    def certain_steps(self) -> float:
        """How many steps will not be taken again: all once settled, else those that the newest checkpoint holds."""
        if self.is_settled:
            return math.inf
        found = (self.folder / CHECKPOINTS_FOLDER).glob(CHECKPOINTS)
        counts = [path.stem.removeprefix("step-") for path in found]
        return max((int(count) for count in counts if count.isdecimal()), default=0)

    def steps_after(self, sent: Mark, num_steps: float) -> Iterator[LoggedStep] | None:
        """The lines of the first `num_steps` steps that a store with `sent` lacks; None where it has another log."""
        content = self.files.get(METRICS_FILE, b"")
        return _steps(content, sent.num_bytes, num_steps) if sent.begins(content) else None

    @cached_property
    def files(self) -> dict[str, bytes]:
        """What is there of SENT_FILES, by name, in that order, when it was first asked for."""
        names = [name for name in SENT_FILES if name != RECORD_FILE or self.record is not None]
        found = {name: read_bytes(self.folder / name) for name in names}
        return {name: content for name, content in found.items() if content}


@contextmanager
def sending(folder: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Keep other senders of what lies in `folder` out while the block lasts; raises Busy after `seconds` of waiting.

    InputError where `folder` is a link: what lies elsewhere is not sent.
    """
    refuse_link(folder)
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    deadline = time.monotonic() + seconds
    try:
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                raise Busy(f"{folder.name}: another process has been sending it for {seconds:g} s")
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)  # releases the lock


def flat(line: Mapping[str, Tree]) -> dict[str, float]:
    """One finite number per name: a list `imbalance` is `imbalance/0`, `imbalance/1`, ...; the rest is left out."""
    numbers: dict[str, float] = {}
    for name, value in line.items():
        if isinstance(value, list):
            numbers |= {f"{name}/{layer}": float(one) for layer, one in enumerate(value) if _is_number(one)}
        elif name != "step" and _is_number(value):
            numbers[name] = float(value)
    return numbers


def read_bytes(path: Path) -> bytes:
    """What the file holds; nothing if it is not there."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _steps(content: bytes, start: int, num_steps: float) -> Iterator[LoggedStep]:
    """Whole lines only: the last may be about to be written. One that a crash cut off has no numbers."""
    seen = hashlib.sha256(content[:start])
    for raw in content[start:].splitlines(keepends=True):
        line = _parsed(raw)
        if not raw.endswith(b"\n") or int(line.get("step", -1)) >= num_steps:
            return
        start += len(raw)
        seen.update(raw)
        if "step" in line:
            mark = Mark(start, seen.hexdigest())
            yield LoggedStep(int(line["step"]), flat(line).get("seconds", 0.0), flat(line), mark)


def _parsed(raw: bytes) -> dict[str, Tree]:
    try:
        line = json.loads(raw)
    except ValueError:
        return {}
    return line if isinstance(line, dict) and _is_number(line.get("step", 0)) else {}


def _is_number(value: Tree) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(tree, Mapping):
        for key, below in tree.items():
            yield from _leaves(below, f"{path}.{key}" if path else key)
    else:
        yield path, str(tree)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
