"""How does a grid run on a cluster while somebody waits for it? Submitted, looked after, and read when it has ended.

`run_grid` is to a cluster what `local.run_grid` is to this machine, and trains nothing itself. Its process may be
killed at any time: the queue goes on, and the next call finds what has ended and what is queued. Any number of
processes may wait for one run. The folders are looked at often, Slurm is asked rarely. What is handed in is decided in
`dispatch`; to submit and leave, that alone does.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from platform import node

from k3ablate.jobs import dispatch, folders, leases
from k3ablate.jobs.attempts import Attempt, Cause, attempts, give_up, note_attempt
from k3ablate.jobs.dispatch import Order
from k3ablate.jobs.folders import SETTLED_STATES, RunFolder, State
from k3ablate.jobs.progress import Pace, Reporter, Standing
from k3ablate.jobs.submissions import TaskName
from k3ablate.jobs.whereabouts import AtSlurm, Lookout, RunTask, whereabouts
from k3ablate.jobs.worker import failed_record, write_failure
from k3ablate.plan import PlanRow
from k3ablate.records import RunRecord, Status

FIRST_POLL, LONGEST_POLL = 0.5, 10.0  # seconds between two looks at the folders
FIRST_LOOK, LONGEST_LOOK = 10.0, 120.0  # and at the queue, which forgets ended tasks after 300 by default
GROWTH = 1.5  # of either, while nothing ends

OVER = SETTLED_STATES | {State.FAILED}
CAUSES = {
    "NODE_FAIL": Cause.NODE_FAILED,
    "BOOT_FAIL": Cause.NODE_FAILED,
    "PREEMPTED": Cause.PREEMPTED,
    "TIMEOUT": Cause.TIME_LIMIT,
}  # what Slurm calls the end of a task; any other may be its runs' own doing


def run_grid(rows: Sequence[PlanRow], order: Order, reporter: Reporter) -> dict[str, RunRecord]:
    """Submit what is open, wait, and submit again what was lost; the record of every row by digest.

    What failed before is tried again. A run that Slurm does not take, or whose task a person has ended meanwhile, has a
    failed record in the answer and none in its folder. InputError where there is no Slurm, or it does not take what the
    recipe says. KeyboardInterrupt leaves the queue as it is.
    """
    grid = _Grid({row.label.digest: row for row in rows}, order, reporter, Lookout(order.root))
    grid.run()
    return grid.records


@dataclass
class _Grid:
    """What is waited for. Every run is with Slurm or another process, about to be submitted, or has a record."""

    rows: Mapping[str, PlanRow]
    order: Order
    reporter: Reporter
    lookout: Lookout
    records: dict[str, RunRecord] = field(default_factory=dict)
    ended_before: set[TaskName] | None = None  # tasks, when this began; None until Slurm has answered
    opened: set[str] = field(default_factory=set)  # what had failed before this began
    running: Sequence[str] = ()  # names, at the last look
    said: str = ""  # last, of what may hold for long
    pace: Pace = field(default_factory=Pace)

    @property
    def open(self) -> list[str]:
        """Runs without a record."""
        return [digest for digest in self.rows if digest not in self.records]

    def run(self) -> None:
        pause = FIRST_LOOK
        self._open_failed()
        with self.reporter:
            self._read()
            while self.open:
                self._look()
                pause = FIRST_LOOK if self._wait(pause) else min(LONGEST_LOOK, GROWTH * pause)

    def _open_failed(self) -> None:
        for digest, record in folders.records(self.order.root, self.rows).items():
            folder = self._folder(digest)
            if record.status is Status.FAILED:
                with folder.claimed() as lease:
                    if lease is not None and folder.record() == record:
                        folder.forget_failure()
                        self.opened.add(digest)

    def _wait(self, seconds: float) -> bool:
        """Until it is time for a look at the queue, or everything has ended; whether anything has."""
        deadline, pause, has_news = time.monotonic() + seconds, FIRST_POLL, False
        while self.open and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            is_new = self._read()
            pause = FIRST_POLL if is_new else min(LONGEST_POLL, GROWTH * pause)
            has_news = has_news or is_new
        return has_news

    def _read(self) -> bool:
        """Take what has ended; whether there was anything. A run out of time may go on: the queue tells."""
        found = folders.records(self.order.root, self.open)
        ended = {digest: record for digest, record in found.items() if record.status is not Status.OUT_OF_TIME}
        for digest, record in ended.items():
            self._end(digest, record)
        self.reporter.show(self._standing())
        return bool(ended)

    def _look(self) -> None:
        """Ask Slurm once where everything is, and hand in what nobody has."""
        where = whereabouts(self.order.root, self.open, self.lookout)
        if self.lookout.note and self.ended_before is not None:  # it has answered before, so what is queued goes on
            self._say_once(self.lookout.note)
            return
        self.running = [self._name(digest) for digest in self.open if where.states[digest] is State.RUNNING]
        last = {digest: tasks[-1] for digest in self.open if (tasks := where.tasks.get(digest))}
        idle = {
            digest: where.states[digest] for digest in self.open
            if where.states[digest] not in OVER | {State.RUNNING, AtSlurm.QUEUED}
            and not any(task.is_live for task in where.tasks.get(digest, ()))
        }  # fmt: skip
        if not self.lookout.note:
            if self.ended_before is None:
                self.ended_before = {task.key for tasks in where.tasks.values() for task in tasks if not task.is_live}
            self._judge({digest: (state, last[digest]) for digest, state in idle.items() if digest in last})
        self._submit([self.rows[digest] for digest in idle if digest not in self.records])

    def _judge(self, idle: "Mapping[str, tuple[State | AtSlurm, RunTask]]") -> None:
        """Of runs whose last task is gone: what ends here, and whose loss is noted."""
        assert self.ended_before is not None, "Slurm has answered"
        ends = self.lookout.endings(task for _, task in idle.values())
        lost = {}
        for digest, (state, task) in idle.items():
            end = ends.get(task.key, "nobody knows how")
            is_old = task.key in self.ended_before
            if is_old and digest in self.opened:
                continue  # with a new count of attempts
            if state is AtSlurm.LOST or (state is State.STALE and not _was_cancelled(task, end)):
                lost[digest] = task, end
            elif is_old:
                continue  # whoever stopped it then wants it to go on now
            elif state is State.OUT_OF_TIME and (record := self._folder(digest).record()) is not None:
                self._end(digest, record)
            else:
                self._give_up(digest, f"task {task.name} was cancelled; the same command submits its runs again")
        begun = {task.name: self._begun(task) for task, _ in lost.values()}
        for digest, (task, end) in lost.items():
            if digest in (begun[task.name] or [digest]):  # where there is none, it may not be able to begin any
                self._note_loss(self._folder(digest), task, end)

    def _begun(self, task: RunTask) -> list[str]:
        """Runs of its pack that it was at when it ended, or that somebody has noted so."""
        paths = [self._folder(run.digest).path for run in task.pack]
        return [
            path.name for path in paths
            if leases.job_of_holder(path) == task.name or any(one.job == task.name for one in attempts(path))
        ]  # fmt: skip

    def _note_loss(self, folder: RunFolder, task: RunTask, end: str) -> None:
        """An attempt ended without a word; once too often, and the run has failed."""
        with folder.claimed() as lease:
            if lease is None or folder.record() is not None:
                return
            if all(attempt.job != task.name for attempt in attempts(folder.path)):
                detail = f"task {task.name} ended without a record ({end}), its log: {task.submission.log(task.key)}"
                cause = CAUSES.get(end.partition(" ")[0], Cause.WORKER_DIED)
                steps = folder.saved_steps()
                note_attempt(
                    folder.path, Attempt(cause=cause, num_steps=steps, detail=detail, job=task.name, host=node())
                )
                self.reporter.say(f"{self._name(folder.digest)}: {detail}")
            reason = give_up(attempts(folder.path))
            if reason is not None:
                write_failure(folder, reason, f"{reason}\n")

    def _submit(self, rows: Sequence[PlanRow]) -> None:
        if not rows:
            return
        outcome = dispatch.submit(rows, self.order, self.reporter.say)
        for array in outcome.handed:
            self.reporter.say(f"job {array.job}: {array.num_tasks} tasks, {array.num_runs} runs, in {array.folder}")
        if outcome.is_refused:
            for row in rows:
                if row.label.name in outcome.not_submitted:
                    self._give_up(row.label.digest, f"Slurm refuses it: {outcome.reason}")
        else:
            self._say_once(f"{len(outcome.not_submitted)} runs wait here: {outcome.reason}" if outcome.reason else "")

    def _say_once(self, message: str) -> None:
        if message not in ("", self.said):
            self.reporter.say(message)
        self.said = message

    def _give_up(self, digest: str, reason: str) -> None:
        """For this call: its folder stays open."""
        spec = self.rows[digest].spec
        assert spec is not None, "corpora are built before a grid runs"
        self._end(digest, failed_record(spec, self._folder(digest).progress(), reason))

    def _end(self, digest: str, record: RunRecord) -> None:
        self.records[digest] = record
        self.reporter.ended(self._standing(), self._name(digest), record)

    def _standing(self) -> Standing:
        done = {
            digest: self.records[digest].tokens if digest in self.records else self._folder(digest).progress().tokens
            for digest in self.rows
        }
        # Of what has ended, what was done is all there was to do.
        asked = {digest: done[digest] if digest in self.records else row.tokens for digest, row in self.rows.items()}
        cost = {digest: row.flops / row.tokens for digest, row in self.rows.items()}
        flops_done = sum(cost[digest] * tokens for digest, tokens in done.items())
        return Standing(
            num_runs=len(self.rows),
            num_ended=len(self.records),
            running=self.running,
            tokens=sum(asked.values()),
            tokens_done=sum(done.values()),
            flops=sum(cost[digest] * tokens for digest, tokens in asked.items()),
            flops_done=flops_done,
            flops_per_second=self.pace.flops_per_second(flops_done),
        )

    def _folder(self, digest: str) -> RunFolder:
        return RunFolder(self.order.root / digest)

    def _name(self, digest: str) -> str:
        return self.rows[digest].label.name


def _was_cancelled(task: RunTask, end: str) -> bool:
    return task.is_closed or end.startswith("CANCELLED")
