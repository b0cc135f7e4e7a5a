"""Where is a run, and how far did it get? One folder per digest; its state is derived from what lies there.

`prepare` freezes the specification, `RunFolder` reads and writes the rest. A run is held by a lease (`leases`), what
ended its attempts is in `attempts`, and no state has to be cleaned up after a crash. Nothing here trains or starts
processes (`local`), and nothing here imports torch, so that a worker can set its threads before torch is loaded.

    <root>/<digest>/   spec.json record.json metrics.jsonl routing.json specimen.json checkpoints/ log.txt failure.txt
                       attempts.jsonl lock lease.json
    <root>/corpora/  <root>/mlflow.db  <root>/results/<experiment>/
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from k3ablate.config import InputError, parse
from k3ablate.jobs import attempts, leases
from k3ablate.jobs.leases import Held, Lease
from k3ablate.records import (
    CHECKPOINTS_FOLDER,
    METRICS_FILE,
    RECORD_FILE,
    SETTLED,
    SPEC_FILE,
    FrozenSpec,
    RoutedPairs,
    RunRecord,
    Specimen,
    read_record,
    read_routing,
    read_spec,
    read_specimen,
    refuse_link,
    refuse_links,
    require_spec_of,
    write_record,
    write_spec,
)
from k3ablate.storage import TEMPORARY, server_time, write_atomic

if TYPE_CHECKING:
    from k3ablate.training.spec import RunSpec

LOG_FILE = "log.txt"
FAILURE_FILE = "failure.txt"

CHECKPOINT = re.compile(r"step-(?P<steps>\d+)\.ckpt")
TAIL_BYTES = 65_536  # of metrics.jsonl: holds many lines, however long the file


class State(StrEnum):
    """Where a run is. The last four are the statuses of its record.

    Stale: its holder is on another machine and has not beaten for `leases.STALE_SECONDS` by the file server's clock, or
    was on this one and died before it left a checkpoint. Whoever claims it goes on with it. Interrupted: nobody holds
    it and there is a checkpoint.
    """

    WAITING = "waiting"
    RUNNING = "running"
    STALE = "stale"
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
    tokens_per_second: float = 0.0  # between its last two lines


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
        """The state that the folder's content shows; InputError as for `record`."""
        record = self.record()
        return self.open_state(partial(server_time, self.path.parent)) if record is None else State(record.status)

    def open_state(self, now: "Callable[[], float | None]") -> State:
        """That of a run without a record; `now` gives the file server's time, asked for where another machine holds it.

        One look at the folder, and more only where something lies there: on a network each costs a millisecond.
        """
        names = _names(self.path)
        held = leases.held(self.path) if leases.LEASE_FILE in names else Held.NO
        if held is Held.YES:
            return State.RUNNING
        if held is Held.ELSEWHERE:
            time = now()
            return State.STALE if time is not None and leases.beat_is_old(self.path, time) else State.RUNNING
        if CHECKPOINTS_FOLDER in names and self._has_checkpoint():
            return State.INTERRUPTED
        return State.STALE if held is Held.DEAD else State.WAITING

    def frozen(self) -> FrozenSpec:
        """What was frozen; InputError for a file that is not there, damaged, edited or of another run."""
        found = read_spec(self.path, self.digest)
        if found is None:
            raise InputError(f"{self.path}: no {SPEC_FILE}, so no run; name a run's folder")
        return found

    def spec(self) -> "RunSpec":
        """The specification; InputError as for `frozen`. Brings torch."""
        from k3ablate.training.spec import RunSpec

        return parse(RunSpec, self.frozen().spec, source=str(self.path / SPEC_FILE))

    def record(self) -> RunRecord | None:
        """What came out, or None; a file that is damaged or of another run is an InputError that names it.

        So is the specification of another run beside it, or where a record is to come.
        """
        require_spec_of(self.path, self.digest)
        return read_record(self.path, self.digest)

    def routing(self) -> RoutedPairs | None:
        """How its tokens were routed when it finished, or None; what is damaged is an InputError, as for the record."""
        return read_routing(self.path, self.digest)

    def specimen(self) -> Specimen | None:
        """What it did with a few tokens when it had finished, or None; InputError as for the record."""
        return read_specimen(self.path, self.digest)

    def write_record(self, record: RunRecord) -> None:
        """Settle the run."""
        write_record(record, self.path)

    def write_failure(self, record: RunRecord, details: str) -> None:
        """Keep a failed record, and `details` (a traceback) beside it."""
        write_atomic(self.path / FAILURE_FILE, details)
        self.write_record(record)

    def forget_failure(self) -> None:
        """Make the run open again, with a new count of attempts; metrics and checkpoints stay."""
        attempts.reopen(self.path)
        (self.path / RECORD_FILE).unlink(missing_ok=True)
        (self.path / FAILURE_FILE).unlink(missing_ok=True)

    def progress(self) -> Progress:
        """By the last whole line of metrics.jsonl, whose steps count from 0; a line cut off by a crash is skipped."""
        for line in reversed(_tail(self.path / METRICS_FILE).splitlines()):
            try:
                entry = json.loads(line)
                num_steps, tokens = int(entry["step"]) + 1, int(entry["tokens"])
                return Progress(num_steps, tokens, float(entry.get("tokens_per_second", 0.0)))
            except (ValueError, KeyError, TypeError):
                continue
        return NO_PROGRESS

    def saved_steps(self) -> int:
        """Steps that the newest checkpoint holds, by its name; 0 where there is none."""
        found = map(CHECKPOINT.fullmatch, _names(self.path / CHECKPOINTS_FOLDER))
        return max((int(name["steps"]) for name in found if name), default=0)

    def claimed(self) -> "AbstractContextManager[Lease | None]":
        """Hold the run while the block lasts; None where another process holds it (`leases.claimed`).

        InputError for a link in its folder: training would write where that leads.
        """
        refuse_links(self.path)
        return leases.claimed(self.path)

    def _has_checkpoint(self) -> bool:
        return any(not name.endswith(TEMPORARY) for name in _names(self.path / CHECKPOINTS_FOLDER))


def corpora_folder(root: Path) -> Path:
    """Where the corpora of all experiments lie."""
    return root / "corpora"


def results_folder(root: Path, experiment: str) -> Path:
    """Where the table and figure of an experiment go."""
    return root / "results" / experiment


def prepare(root: Path, spec: "RunSpec") -> RunFolder:
    """The folder of `spec` with the specification frozen in it; another specification there is an InputError."""
    from k3ablate.training.provenance import versions

    folder = RunFolder(root / spec.digest())
    refuse_links(folder.path)
    if read_spec(folder.path, folder.digest) is None:
        folder.path.mkdir(parents=True, exist_ok=True)
        write_spec(FrozenSpec(digest=folder.digest, spec=spec.tree(), versions=versions()), folder.path)
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


def states(root: Path, digests: Iterable[str], known: Mapping[str, RunRecord] | None = None) -> dict[str, State]:
    """The state of every run, by digest; `known`: their records, where somebody has read them already."""
    wanted = [*digests]
    found = records(root, wanted) if known is None else known
    now, there = cache(partial(server_time, root)), set(_names(root))
    return {digest: _state(root, digest, found.get(digest), now, digest in there) for digest in wanted}


def records(root: Path, digests: Iterable[str]) -> dict[str, RunRecord]:
    """The records there are, by digest; a folder that is a link is an InputError."""
    there = set(_names(root))
    found = {digest: _record(root / digest) for digest in digests if digest in there}
    return {digest: record for digest, record in found.items() if record is not None}


def records_and_damage(root: Path, digests: Iterable[str]) -> tuple[dict[str, RunRecord], dict[str, str]]:
    """As `records`, for one who only looks: by digest, the records there are, and what is wrong with other folders."""
    there = set(_names(root))
    found: dict[str, RunRecord] = {}
    damage: dict[str, str] = {}
    for digest in digests:
        try:
            record = _record(root / digest) if digest in there else None
        except InputError as error:
            damage[digest] = str(error)
        else:
            found |= {digest: record} if record is not None else {}
    return found, damage


def _state(
    root: Path, digest: str, record: RunRecord | None, now: "Callable[[], float | None]", is_there: bool
) -> State:
    if record is not None:
        return State(record.status)
    return RunFolder(root / digest).open_state(now) if is_there else State.WAITING


def _record(path: Path) -> RunRecord | None:
    refuse_link(path)
    return RunFolder(path).record()


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
