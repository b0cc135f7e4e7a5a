"""How often was a run tried, what ended each attempt, and is it worth another? `attempts.jsonl` in the run's folder.

One line per attempt that ended without settling the run; the file is only ever added to, so that whoever looks later
knows what happened, and a launcher that starts anew counts on. An attempt that left the run further than any before it
is never held against it. Opening a run again begins a new count. Who starts the next attempt is in `local`; how an
attempt that ended well came out is in the record.
"""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

from pydantic import Field

from k3ablate.config import Closed
from k3ablate.storage import append_line

ATTEMPTS_FILE = "attempts.jsonl"


class Cause(StrEnum):
    """What ended an attempt; `REOPENED` is no attempt but the line from which on they are counted."""

    TIME_LIMIT = "time_limit"
    PREEMPTED = "preempted"
    WORKER_DIED = "worker_died"
    NODE_FAILED = "node_failed"
    REQUESTED = "requested"  # a person stopped it
    ERROR = "error"
    REOPENED = "reopened"


class Attempt(Closed):
    """One attempt at a run, when it had ended without settling it."""

    cause: Cause
    num_steps: int = Field(ge=0)  # that the newest checkpoint holds: what the next attempt starts from
    detail: str = ""  # what is known beside the cause, as the subject of a sentence: "worker died with signal 9"
    job: str = ""  # of the scheduler
    host: str = ""


# Attempts that end at one step before a run is given up. A worker's death and an error are the run's own doing more
# often than not; what a cluster does to it is not.
LIMITS: Mapping[Cause, int] = MappingProxyType({
    Cause.TIME_LIMIT: 3,
    Cause.WORKER_DIED: 3,
    Cause.ERROR: 3,
    Cause.PREEMPTED: 10,
    Cause.NODE_FAILED: 10,
})  # fmt: skip

WHAT_HAPPENED = {
    Cause.TIME_LIMIT: "hit the time limit",
    Cause.PREEMPTED: "were preempted",
    Cause.NODE_FAILED: "lost their node",
}


def note_attempt(folder: Path, attempt: Attempt) -> None:
    """Add a line for `attempt` to the run in `folder`; an OSError names the file."""
    append_line(folder / ATTEMPTS_FILE, attempt.model_dump_json())


def attempts(folder: Path) -> list[Attempt]:
    """Those since the run in `folder` was last opened again, first to last; lines that a crash damaged are skipped."""
    found = _whole_lines(folder / ATTEMPTS_FILE)
    opened = [number for number, attempt in enumerate(found, start=1) if attempt.cause is Cause.REOPENED]
    return found[opened[-1] if opened else 0 :]


def reopen(folder: Path) -> None:
    """Begin a new count; what happened before stays readable."""
    if attempts(folder):
        note_attempt(folder, Attempt(cause=Cause.REOPENED, num_steps=0))


def give_up(tried: Sequence[Attempt], limits: Mapping[Cause, int] = LIMITS) -> str | None:
    """Why another attempt is not worth it, or None: for some cause, its limit of attempts that all ended at one step.

    Such a row begins with the attempt that came further than all before it, and ends with the last.
    """
    if not tried:
        return None
    last = tried[-1]
    furthest = max(attempt.num_steps for attempt in tried)
    row = tried[next(index for index, attempt in enumerate(tried) if attempt.num_steps == furthest) :]
    times = sum(attempt.cause is last.cause for attempt in row)
    limit = limits.get(last.cause)
    return _reason(last, times, furthest) if limit is not None and times >= limit else None


def _reason(last: Attempt, times: int, num_steps: int) -> str:
    if last.cause in WHAT_HAPPENED:
        return f"no progress: {times} attempts {WHAT_HAPPENED[last.cause]} at step {num_steps}"
    return f"{last.detail or last.cause.replace('_', ' ')}, {times} times"


def _whole_lines(path: Path) -> list[Attempt]:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [attempt for attempt in map(_parsed, lines) if attempt is not None]


def _parsed(line: bytes) -> Attempt | None:
    try:
        return Attempt.model_validate(json.loads(line))
    except ValueError:  # cut off by a crash, or by a full disk
        return None
