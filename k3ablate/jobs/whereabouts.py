"""Where is each run, by its folder and by Slurm's queue together? Waiting, queued, running ... or lost.

`Lookout` asks Slurm at most one question a look, and less often while it does not answer; the folders are shown then as
they are. `whereabouts` joins the answer with the folders' states. What a task's end was called comes from the queue, or
from accounting where that is kept. Nothing here changes anything (`clusters` does).
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from k3ablate.config import InputError
from k3ablate.jobs import accounting, controller
from k3ablate.jobs.attempts import Cause, attempts
from k3ablate.jobs.controller import OVER, QueuedTask, Refused, Unreachable
from k3ablate.jobs.folders import State, states
from k3ablate.jobs.packs import Pack
from k3ablate.jobs.submissions import Submission, TaskName, submissions
from k3ablate.records import RunRecord

FIRST_PAUSE, LONGEST_PAUSE = 30.0, 600.0  # seconds without questions after one that failed; doubled each time


class AtSlurm(StrEnum):
    """States of a run that its folder does not know.

    Queued: a task that waits or runs has it, and has not begun with it. Lost: it was submitted, is in no queue, has no
    record, and nobody has stopped it.
    """

    QUEUED = "queued"
    LOST = "lost"


@dataclass(frozen=True)
class RunTask:
    """A task of Slurm's that has, or had, a run to carry out."""

    submission: Submission
    job: str  # of the array
    index: int
    state: str | None  # in the queue; None where that knows nothing of it
    is_closed: bool  # a person has ended it, or said that it is lost
    pack: Pack  # every run that it carries out

    @property
    def key(self) -> TaskName:
        """As accounting knows it."""
        return self.job, self.index

    @property
    def name(self) -> str:
        """As Slurm writes it."""
        return f"{self.job}_{self.index}"

    @property
    def is_live(self) -> bool:
        """Whether it is still to run, or runs."""
        return self.state is not None and self.state not in OVER


Tasks = Mapping[str, Sequence[RunTask]]  # by digest, each run's in the order in which Slurm numbered them


@dataclass
class _Patience:
    """When may somebody be asked again who did not answer?"""

    pause: float = 0.0
    since: float = 0.0

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.since + self.pause - time.monotonic())

    def failed(self) -> None:
        self.pause = min(max(FIRST_PAUSE, 2 * self.pause), LONGEST_PAUSE)
        self.since = time.monotonic()

    def answered(self) -> None:
        self.pause = 0.0


@dataclass
class Lookout:
    """Looks at Slurm again and again, for the runs below `root`."""

    root: Path
    ends: dict[TaskName, str] = field(default_factory=dict)  # that accounting told: they stay as they are
    note: str = ""  # why the last look shows no queue, or not all tasks
    _seen: Tasks | None = None
    _queue: _Patience = field(default_factory=_Patience)
    _accounting: _Patience = field(default_factory=_Patience)

    def tasks(self) -> Tasks | None:
        """Of every run that was ever submitted; None where Slurm does not answer, and `note` says why."""
        made = submissions(self.root)
        if not made:
            return {}
        if not self._queue.seconds_left:
            self._ask(made)
        return self._seen

    def endings(self, tasks: Iterable[RunTask]) -> Mapping[TaskName, str]:
        """How these tasks ended, by the queue or by accounting; those that nobody knows of are left out."""
        ended = [*tasks]
        unknown = [task.job for task in ended if task.state is None and task.key not in self.ends]
        if unknown and not self._accounting.seconds_left:
            try:
                self.ends |= accounting.endings(unknown)
                self._accounting.answered()
            except (Unreachable, Refused, InputError):  # where none is kept, nothing is known: that is all
                self._accounting.failed()
        return self.ends | {task.key: task.state for task in ended if task.state is not None}

    def _ask(self, made: Sequence[Submission]) -> None:
        try:
            queue = controller.queue(pauses=())
        except (Unreachable, Refused, InputError) as answer:
            self._queue.failed()
            self._seen = None
            self.note = f"Slurm does not answer ({answer}); what is shown is in the folders of the runs alone"
            return
        self._queue.answered()
        damage: list[str] = []
        self._seen = tasks_of_runs(made, queue, damage)
        self.note = "; ".join([*damage, "the tasks of these are not in it"] if damage else [])


@dataclass(frozen=True)
class Whereabouts:
    """By digest: the states of runs, how the last task of each lost one ended, in words, and all their tasks."""

    states: Mapping[str, State | AtSlurm]
    lost: Mapping[str, str]
    tasks: Tasks


def tasks_of_runs(made: Iterable[Submission], queue: Iterable[QueuedTask], damage: list[str] | None = None) -> Tasks:
    """Those of every run in these submissions. A damaged one is an InputError, or goes to `damage` and is left out."""
    by_job: dict[str, dict[int, str]] = {}
    by_comment: dict[str, set[str]] = {}
    for queued in queue:
        if queued.index is not None:
            by_job.setdefault(queued.job, {})[queued.index] = queued.state
            by_comment.setdefault(queued.comment, set()).add(queued.job)
    found: dict[str, list[RunTask]] = {}
    for submission in made:
        jobs = submission.jobs() | by_comment.get(submission.comment, set())
        seen = {(job, index): state for job in jobs for index, state in by_job.get(job, {}).items()}
        try:
            closed, packs = submission.closed(), submission.packs()
        except InputError as error:
            if damage is None:
                raise
            damage.append(str(error))
            continue
        for job, index in seen.keys() | submission.noted_tasks():
            if index < len(packs):
                key = job, index
                task = RunTask(submission, job, index, seen.get(key), key in closed, packs[index])
                for run in packs[index]:
                    found.setdefault(run.digest, []).append(task)
    return {digest: sorted(tasks, key=lambda task: int(task.job)) for digest, tasks in found.items()}


def whereabouts(
    root: Path, digests: Sequence[str], lookout: Lookout, known: Mapping[str, RunRecord] | None = None
) -> Whereabouts:
    """Of these runs; `known` as for `folders.states`. Slurm is asked first: a task that ends meanwhile is not lost."""
    tasks = lookout.tasks() or {}
    by_folder = states(root, digests, known)
    found = {digest: _state(state, tasks.get(digest, ())) for digest, state in by_folder.items()}
    suspects = {digest: tasks[digest][-1] for digest, state in found.items() if state is AtSlurm.LOST}
    ends = lookout.endings(suspects.values())
    lost = {}
    for digest, task in suspects.items():
        end = ends.get(task.key)
        if _was_stopped(root / digest, task, end):
            found[digest] = by_folder[digest]
        else:
            log = task.submission.log(task.key)
            lost[digest] = f"task {task.name} ended: {end or 'nobody knows how'}; its log: {log}"
    return Whereabouts(found, lost, tasks)


def _state(state: State, tasks: Sequence[RunTask]) -> State | AtSlurm:
    """LOST is a suspicion yet."""
    if not tasks or state not in (State.WAITING, State.INTERRUPTED, State.STALE, State.OUT_OF_TIME):
        return state
    live = [task.state for task in tasks if task.is_live]
    if live:  # a task that runs would beat, unless its node hangs
        return State.STALE if state is State.STALE and "RUNNING" in live else AtSlurm.QUEUED
    return state if state in (State.STALE, State.OUT_OF_TIME) or tasks[-1].is_closed else AtSlurm.LOST


def _was_stopped(folder: Path, task: RunTask, end: str | None) -> bool:
    """Whether a person did it: by Slurm's word, or by the run's own."""
    if end is not None and end.startswith("CANCELLED"):
        return True
    tried = attempts(folder)
    return bool(tried) and tried[-1].cause is Cause.REQUESTED and tried[-1].job == task.name
