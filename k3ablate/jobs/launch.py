"""What does one task of a Slurm array do? It carries out the runs of its pack, and sees to it that they go on.

The runs go through the launcher of this machine (`local`), one after the other in a process of their own; torch is
loaded only there. A signal before the time limit or a preemption lets the run end after its step with a checkpoint;
then this task alone goes back into the queue, or, where Slurm does not requeue it, is submitted anew under a new job.
Nobody else requeues: neither Lightning nor submitit is asked to. A task that a person cancels stays cancelled.
"""

import json
import os
import platform
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TypeVar

from k3ablate.config import InputError
from k3ablate.jobs import controller, leases
from k3ablate.jobs.attempts import Attempt, Cause, attempts, give_up, note_attempt
from k3ablate.jobs.controller import Refused, TaskFacts, Unreachable
from k3ablate.jobs.folders import RunFolder
from k3ablate.jobs.local import Crew, Job, Stop, run_jobs
from k3ablate.jobs.packs import Pack, PackFile, chosen, read_pack_file
from k3ablate.jobs.progress import Reporter
from k3ablate.jobs.submissions import Submission, of_pack_file
from k3ablate.jobs.worker import Task, Trainer, train_run, write_failure
from k3ablate.records import RunRecord, Status
from k3ablate.training.stopping import SIGNALS, STOP_SIGNAL

JOB_VARIABLE, INDEX_VARIABLE, RESTARTS_VARIABLE = "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT"

Answered = TypeVar("Answered")


@dataclass(frozen=True)
class Carried:
    """How a task ended: the records of its pack by digest, and how many runs have none yet."""

    records: Mapping[str, RunRecord]
    num_left: int


@dataclass(frozen=True)
class SlurmTask:
    """This process as Slurm knows it, and the submission it belongs to."""

    submission: Submission
    job: str  # of the array
    index: int
    num_restarts: int

    @property
    def name(self) -> str:
        """As Slurm writes it. The number of the task's own job will not do: an array's last task has the array's."""
        return f"{self.job}_{self.index}"

    def go_on(self) -> str:
        """Back into the queue with this task and no other; what was done, in words."""
        if controller.requeue(self.name):
            return f"task {self.name} is in the queue again"
        array = str(self.index)
        try:
            job = controller.submit(self.submission.script, self.submission.comment, array)
        except Refused as refused:
            raise InputError(f"task {self.name} cannot go on: {refused}. Submit its experiment again") from None
        self.submission.note_job(job, array)
        return f"task {self.name} is not requeued here; it goes on as {job}_{array}"


def carry_out(pack_path: Path, reporter: Reporter, trainer: Trainer = train_run) -> Carried:
    """The open runs of this task's pack; InputError outside a task, and for a task of another array."""
    pack_file = read_pack_file(pack_path)
    task, pack = _this_task(of_pack_file(pack_path), pack_file)
    jobs = _jobs(pack, task.submission.root)
    for job in jobs:
        _note_lost_node(job, task)
    records = {job.digest: record for job in jobs if (record := _settled(job, reporter))}
    left = [job for job in jobs if job.digest not in records]
    crew = Crew(1, pack_file.num_threads, json.dumps(pack_file.execution), trainer)
    with _Signals() as signals:
        ended = run_jobs(left, crew, reporter, Stop(signals.has_come, pack_file.stop_seconds))
        records |= ended.records
        if len(records) < len(jobs):
            _see_to_the_rest(task, ended.stopped, signals.warned, reporter)
    return Carried(records, len(jobs) - len(records))


def _this_task(submission: Submission, pack_file: PackFile) -> tuple[SlurmTask, Pack]:
    pack = chosen(pack_file.packs, os.environ.get(INDEX_VARIABLE), INDEX_VARIABLE)
    job = os.environ.get(JOB_VARIABLE)
    if job is None:
        raise InputError(f"{JOB_VARIABLE}: not set; this command is for the tasks of a Slurm array")
    restarts = int(os.environ.get(RESTARTS_VARIABLE, "0"))
    return SlurmTask(submission, job, int(os.environ[INDEX_VARIABLE]), restarts), pack


def _jobs(pack: Pack, root: Path) -> list[Job]:
    return [Job(Task(RunFolder(root / run.digest), run.name, run.tags), run.tokens, run.flops) for run in pack]


def _note_lost_node(job: Job, task: SlurmTask) -> None:
    """A lease of this very task was left by a launch of it that ended without a word."""
    if leases.job_of_holder(job.folder.path) == task.name:
        _note(job, Cause.NODE_FAILED, task)


def _note(job: Job, cause: Cause, task: SlurmTask) -> None:
    steps = job.folder.saved_steps() or 0
    note_attempt(job.folder.path, Attempt(cause=cause, num_steps=steps, job=task.name, host=platform.node()))


def _settled(job: Job, reporter: Reporter) -> RunRecord | None:
    """The record of a run that is not to be tried again here: it has one, or its attempts have led nowhere."""
    record = job.folder.record()
    if record is not None:
        return None if record.status is Status.OUT_OF_TIME else record
    reason = give_up(attempts(job.folder.path))
    if reason is None:
        return None
    with job.folder.claimed() as lease:
        if lease is None:
            return None  # another process is at it all the same
        reporter.say(f"{job.name}: given up: {reason}")
        return write_failure(job.folder, reason, f"{reason}\n")


def _see_to_the_rest(task: SlurmTask, stopped: Sequence[Job], was_warned: bool, reporter: Reporter) -> None:
    """Note why the attempts ended, and go on unless a person ended them, or Slurm goes on by itself."""
    found = _patiently(lambda: controller.facts(task.name), reporter)
    is_requeued = found is not None and found.num_restarts > task.num_restarts
    cause = Cause.REQUESTED if is_requeued else _cause(found, was_warned)
    for job in stopped:
        _note(job, cause, task)
    if cause is Cause.REQUESTED:
        rest = "Slurm has it in its queue again" if is_requeued else "its runs stay as they are"
        reporter.say(f"task {task.name} was ended from outside; {rest}")
    else:
        reporter.say(f"{cause.replace('_', ' ')}: {_patiently(task.go_on, reporter)}")


def _patiently(ask: Callable[[], Answered], reporter: Reporter) -> Answered:
    """What the controller answers, however long it is away: all that is left to do here, until Slurm ends this task."""
    while True:
        try:
            return ask()
        except Unreachable as error:
            reporter.say(f"{error}; asking again")


def _cause(found: TaskFacts | None, was_warned: bool) -> Cause:
    """Slurm ends a task for many reasons with the same signals. REQUESTED: there is nothing to be done."""
    if found is None:
        return Cause.REQUESTED
    if found.is_preempted:
        return Cause.PREEMPTED
    if found.is_over_limit or (found.is_running and was_warned):
        return Cause.TIME_LIMIT
    # A running task that is terminated without a word: a node is being shut down, or the cluster is set up so.
    return Cause.PREEMPTED if found.is_running else Cause.REQUESTED


class _Signals:
    """What Slurm has sent while the block lasts: a warning, a request to terminate, or nothing."""

    def __init__(self) -> None:
        self.warned = False
        self.terminated = False
        self._undo = ExitStack()

    def __enter__(self) -> "_Signals":
        for number in SIGNALS:
            self._undo.callback(signal.signal, number, signal.signal(number, self._note))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def has_come(self) -> bool:
        return self.warned or self.terminated

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == STOP_SIGNAL:
            self.warned = True
        else:
            self.terminated = True
