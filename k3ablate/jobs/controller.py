"""What does Slurm's controller say? Its limits, its queue, a task's state; scripts handed to it, tasks requeued.

Few questions, each about everything at once, since a controller serves a whole cluster; what fails for now is tried
again with growing pauses. Answers come from options made for programs, never from tables for people. Which runs a task
carries out is in `submissions`, what is submitted in `slurm`.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from k3ablate.config import InputError

PAUSES = (2.0, 5.0, 10.0, 20.0, 30.0)  # seconds between tries
PATIENCE_SECONDS = 70.0  # after the first try none begins later, however long each waits for its answer
ANSWER_SECONDS = 180.0  # sbatch itself waits up to two minutes for room in the queue

# What sbatch and scontrol say when the same may be accepted, or understood, a little later.
UNREACHABLE = (
    "Unable to contact slurm controller", "Socket timed out", "Connection refused", "Connection timed out",
    "Zero Bytes were transmitted", "Communication connection failure", "Transport endpoint is not connected",
)  # fmt: skip
FULL = (
    "AssocMaxSubmitJobLimit", "QOSMaxSubmitJobPerUserLimit", "AssocGrpSubmitJobsLimit", "QOSGrpSubmitJobsLimit",
    "Job violates accounting/QOS policy", "temporarily unable to accept job",
)  # fmt: skip
NO_TIME = ("None", "N/A", "Unknown")
OVER = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "TIMEOUT",
})  # fmt: skip


Say = Callable[[str], None]


def silent(message: str) -> None:
    """Tells nobody that Slurm is waited for: a look is tried once, a task has its own words for it."""


class Unreachable(Exception):  # noqa: N818 - an answer of its own kind
    """The controller did not answer, for all the patience there was; a command may or may not have been carried out."""


class Refused(Exception):  # noqa: N818
    """The controller said no, in its words."""


class Full(Refused):
    """No room for it now, by somebody's limit: the same may be taken when other jobs have ended."""


@dataclass(frozen=True)
class Limits:
    """Of the whole cluster."""

    max_array_size: int  # one more than the highest index
    max_jobs: int  # tasks that the controller keeps in mind, ended ones included


@dataclass(frozen=True)
class QueuedTask:
    """One task that the controller knows: `job` is the array's id, `index` the task's in it (None: no array)."""

    job: str
    index: int | None
    state: str
    comment: str

    @property
    def is_live(self) -> bool:
        """Whether it is still to run, or runs."""
        return self.state not in OVER


@dataclass(frozen=True)
class TaskFacts:
    """What the controller says of one task that runs or is being ended. A cancelled one is ended, and none of these."""

    is_running: bool
    is_preempted: bool  # another job takes its place, or has taken it
    is_over_limit: bool  # of its time
    num_restarts: int  # more than the task was told when it started: it is in the queue again


def limits(say: Say = silent) -> Limits:
    """As the controller is configured; InputError where there is no Slurm. `say` is told of a wait."""
    text = _ask("scontrol", "show", "config", say=say)
    found = dict(re.findall(r"^(\w+)\s*=\s*(\d+)", text, flags=re.MULTILINE))
    return Limits(max_array_size=int(found["MaxArraySize"]), max_jobs=int(found["MaxJobCount"]))


def queue(pauses: Sequence[float] | None = None, say: Say = silent) -> list[QueuedTask]:
    """Every task that the controller knows and shows, of everybody, ended ones included: one question.

    Unreachable after one try more than there are `pauses` (seconds; None: PAUSES); `say` is told before the first.
    """
    asked = ("squeue", "--noheader", "--array", "--all", "--states=all", "--format=%i|%T|%k")
    return [task for line in _ask(*asked, pauses=pauses, say=say).splitlines() if (task := _queued(line))]


def facts(task: str) -> TaskFacts | None:
    """Of `task`, written <array>_<index>; None where the controller has forgotten it."""
    try:
        text = _ask("scontrol", "--oneliner", "show", "job", task)
    except Refused:
        return None
    found = dict(part.partition("=")[::2] for part in text.split())
    run_time, limit = _seconds(found["RunTime"]), _seconds(found["TimeLimit"])
    return TaskFacts(
        is_running=found["JobState"] == "RUNNING",
        is_preempted=found.get("PreemptTime", "None") not in NO_TIME,
        is_over_limit=run_time is not None and limit is not None and run_time >= limit,
        num_restarts=int(found["Restarts"]),
    )


def submit(script: Path, comment: str, array: str | None = None, say: Say = silent) -> str:
    """Hand in `script`, whose comment is `comment`; the job's id. `array` replaces the script's indices.

    Refused with Slurm's words, Full where a limit says so; Unreachable. A submission that seemed to fail is looked for
    in the queue before it is tried again; `say` is told once that it is.
    """
    known = {task.job for task in queue(say=say) if task.comment == comment}
    indices = [] if array is None else [f"--array={array}"]
    for is_another_left in _tries():
        try:
            return _once(("sbatch", "--parsable", *indices, str(script))).strip().partition(";")[0]
        except Unreachable as unreachable:
            accepted = {task.job for task in queue() if task.comment == comment} - known
            if accepted:
                return accepted.pop()
            last: Exception = unreachable
        except Refused as refused:
            if not _says(str(refused), FULL):
                raise
            last = Full(str(refused))
        if is_another_left:
            say(_waiting(last))
            say = silent
    raise last


def requeue(task: str) -> bool:
    """Put `task`, written <array>_<index>, back into the queue; False where Slurm does not do that for it."""
    assert "_" in task, "an array's own id would requeue all of it"
    try:
        _ask("scontrol", "requeue", task)
    except Refused:
        return False
    return True


def cancel(job: str, indices: Iterable[int], say: Say = silent) -> None:
    """End these tasks of the array `job`: waiting ones at once, running ones after a signal. Ended ones stay as are."""
    _ask("scancel", "--quiet", f"{job}_[{written_indices(indices)}]", say=say)


def ask_once(*command: str) -> str:
    """What one of Slurm's commands prints, or Unreachable or Refused, at the first try."""
    return _ask(*command, pauses=())


def written_indices(indices: Iterable[int]) -> str:
    """As Slurm writes them: '0-3,7'."""
    ordered = enumerate(sorted(set(indices)))
    rows = [[index for _, index in row] for _, row in groupby(ordered, lambda item: item[1] - item[0])]
    return ",".join(f"{row[0]}-{row[-1]}" if len(row) > 1 else f"{row[0]}" for row in rows)


def read_indices(text: str) -> set[int]:
    """What `written_indices` wrote; ValueError for anything else."""
    ends = [part.partition("-")[::2] for part in text.split(",")]
    return {index for first, last in ends for index in range(int(first), int(last or first) + 1)}


def _seconds(duration: str) -> int | None:
    """Slurm's [days-]hours:minutes:seconds; None for words like UNLIMITED."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", duration)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((24 * days + hours) * 60 + minutes) * 60 + seconds


def _queued(line: str) -> QueuedTask | None:
    """None for what no task of ours begins with: a line break in somebody's comment makes lines of its own."""
    match = re.fullmatch(r"(\d+)(?:_(\S+))?\|([A-Z_]+)\|(.*)", line)
    if match is None:
        return None
    job, index, state, comment = match.groups("")
    return QueuedTask(job, int(index) if index.isdigit() else None, state, comment)


def _ask(*command: str, pauses: Sequence[float] | None = None, say: Say = silent) -> str:
    """What `command` prints. Unreachable after several tries, of which `say` is told once; Refused at once."""
    for is_another_left in _tries(pauses):
        try:
            return _once(command)
        except Unreachable as unreachable:
            last = unreachable
            if is_another_left:
                say(_waiting(last))
                say = silent
    raise last


def _waiting(answer: Exception) -> str:
    what = "does not answer" if isinstance(answer, Unreachable) else "has no room yet"
    return f"Slurm {what} ({answer}); trying again for about a minute"


def _tries(pauses: Sequence[float] | None = None) -> Iterator[bool]:
    """One item per try, after its pause: whether there may be another. None begins after PATIENCE_SECONDS."""
    pauses = PAUSES if pauses is None else pauses
    begin = time.monotonic()
    yield bool(pauses)
    for number, pause in enumerate(pauses, start=1):
        if time.monotonic() - begin + pause > PATIENCE_SECONDS:
            return
        time.sleep(pause)
        yield number < len(pauses)


def _once(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=ANSWER_SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise InputError(
            f"{command[0]}: no such command, so no Slurm here; run this where jobs are submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{command[0]} gave no answer in {ANSWER_SECONDS:.0f} s") from None
    if done.returncode == 0:
        return done.stdout
    message = " ".join(done.stderr.split()) or f"{command[0]} exited with code {done.returncode}"
    raise Unreachable(message) if _says(message, UNREACHABLE) else Refused(message)


def _says(message: str, phrases: Sequence[str]) -> bool:
    return any(phrase.lower() in message.lower() for phrase in phrases)


def _environment() -> Mapping[str, str]:
    """Without what Slurm tells a task about itself: a job submitted from there would take it for its own."""
    own = ("SLURM_", "SLURMD_", "SRUN_")
    return {name: value for name, value in os.environ.items() if not name.startswith(own) or name == "SLURM_CONF"}
