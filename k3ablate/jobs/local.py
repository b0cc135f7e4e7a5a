"""How does a grid run on this machine? Worker processes take run after run, longest first.

`run_grid` returns when every run has a record; what is finished or diverged is not touched, what failed, ran out of
time or was interrupted goes on from its checkpoint. A run that raises or kills its process does not disturb the others.
Two launchers share a grid: a run that the other one holds is waited for. What a worker does is in `worker`. `run_jobs`
is the same for runs of which only the folder is known, as in a scheduler's task (`launch`), and can be asked to stop;
nothing here needs torch.
"""

import math
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from platform import node
from typing import TYPE_CHECKING

from k3ablate.config import InputError
from k3ablate.jobs.attempts import Attempt, Cause, attempts, give_up, note_attempt
from k3ablate.jobs.folders import LOG_FILE, Progress, RunFolder, prepare
from k3ablate.jobs.holders import scheduler_job
from k3ablate.jobs.leases import Watch
from k3ablate.jobs.progress import Pace, Reporter, Standing
from k3ablate.jobs.worker import Answer, Outcome, Task, Trainer, train_run, work, write_failure
from k3ablate.records import SETTLED, Label, RunRecord
from k3ablate.storage import require_writable
from k3ablate.training.stopping import SIGNALS, STOP_SIGNAL

if TYPE_CHECKING:
    from k3ablate.plan import PlanRow
    from k3ablate.training.spec import Execution

POLL_SECONDS = 1.0
GOODBYE_SECONDS = 10.0  # for a worker that has nothing left to do
LOG_LINES = 40  # of a dead worker's log, kept with the failure


@dataclass(frozen=True)
class Job:
    """One run of the grid: what it costs, and what a worker is told of it."""

    task: Task
    tokens: int
    flops: float  # training FLOPs

    @property
    def name(self) -> str:
        """What it is called here."""
        return self.task.name

    @property
    def folder(self) -> RunFolder:
        """Where it lies."""
        return self.task.folder

    @property
    def digest(self) -> str:
        """Its identity, and the name of its folder."""
        return self.folder.digest


@dataclass(frozen=True)
class Crew:
    """The workers of a launcher: how many, and what each is told when it starts."""

    num_workers: int
    num_threads: int
    execution_json: str  # of an `Execution`, which needs torch
    trainer: Trainer = train_run  # imported by name in the workers


@dataclass(frozen=True)
class Stop:
    """Whether the workers should stop, asked about once a second, and how long one may take for its last step."""

    is_requested: Callable[[], bool] = lambda: False
    seconds: float = math.inf


@dataclass(frozen=True)
class Ended:
    """How a launch ended: the records, and the runs that were being trained when it was asked to stop."""

    records: Mapping[str, RunRecord]  # by digest
    stopped: Sequence[Job]


def run_grid(
    rows: "Sequence[PlanRow]",
    root: Path,
    execution: "Execution",
    num_workers: int,
    reporter: Reporter,
    trainer: Trainer = train_run,
) -> dict[str, RunRecord]:
    """Run what has to be run; the record of every row by digest.

    InputError if the disk refuses or a worker meets wrong input (nothing finished is lost); KeyboardInterrupt leaves a
    state to resume from. `trainer` is imported by name in the workers.
    """
    assert num_workers > 0, "the command line asks for at least one"
    require_writable(root)
    crew = Crew(num_workers, execution.num_threads, execution.model_dump_json(), trainer)
    return dict(run_jobs(_jobs(rows, root), crew, reporter).records)


def run_jobs(jobs: Sequence[Job], crew: Crew, reporter: Reporter, stop: Stop = Stop()) -> Ended:
    """Run what has to be run until every job has a record or `stop` is requested; InputError as for `run_grid`."""
    grid = _Grid(jobs, crew, reporter, stop)
    grid.run()
    return Ended(grid.records, grid.stopped)


def default_workers() -> int:
    """One per core that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _jobs(rows: "Sequence[PlanRow]", root: Path) -> list[Job]:
    """One job per digest, named after its first row."""
    jobs: dict[str, Job] = {}
    for row in rows:
        assert row.spec is not None, "corpora are built before a grid runs"
        if row.label.digest not in jobs:
            jobs[row.label.digest] = Job(task_of(row.label, prepare(root, row.spec)), row.spec.tokens, row.flops)
    return list(jobs.values())


def task_of(label: Label, folder: RunFolder) -> Task:
    """What a worker is told of the run in `folder`."""
    tags = {"experiment": label.experiment, "arm": label.arm, "size": label.size, "seed": str(label.seed)}
    return Task(folder, label.name, tags)


@dataclass(eq=False)
class _Worker:
    """The launcher's end of a worker process."""

    process: SpawnProcess
    connection: "Connection[Task, Answer]"
    job: Job | None = None

    def take(self, job: Job) -> None:
        self.job = job
        try:
            self.connection.send(job.task)
        except BrokenPipeError:
            return  # it died while idle; `wait` reports the closed pipe next

    def ask_to_stop(self) -> None:
        assert self.process.pid is not None, "a worker is started where it is made"
        if self.process.exitcode is None:
            os.kill(self.process.pid, STOP_SIGNAL)


@dataclass
class _Grid:
    """The launcher's bookkeeping: every job is waiting, at a worker, held by another launcher, or has a record."""

    jobs: Sequence[Job]
    crew: Crew
    reporter: Reporter
    stop: Stop
    records: dict[str, RunRecord] = field(default_factory=dict)
    waiting: deque[Job] = field(default_factory=deque)
    held: list[Job] = field(default_factory=list)
    stopped: list[Job] = field(default_factory=list)
    workers: list[_Worker] = field(default_factory=list)
    watch: Watch = field(default_factory=Watch)  # of runs that others hold
    progress: dict[str, Progress] = field(default_factory=dict)  # of jobs without a record
    pace: Pace = field(default_factory=Pace)

    def run(self) -> None:
        self._sort_in()
        patience = 0.0  # an interrupted grid does not wait for its workers
        try:
            with self.reporter:
                while len(self.records) < len(self.jobs) and not self.stop.is_requested():
                    self._look_at_held()
                    self._assign()
                    self._listen()
                    self.reporter.show(self._standing())
                self._ask_to_stop()
            patience = GOODBYE_SECONDS
        finally:
            _stop(self.workers, patience)

    def _ask_to_stop(self) -> None:
        """Let every run end after its step. Asked again and again: a worker that starts up does not listen yet."""
        deadline = time.monotonic() + self.stop.seconds
        while busy := [worker for worker in self.workers if worker.job is not None]:
            if time.monotonic() > deadline:
                _kill(busy)
            for worker in busy:
                worker.ask_to_stop()
            self._listen()

    def _sort_in(self) -> None:
        """Longest first, so that no long run starts when the others are done."""
        for job in sorted(self.jobs, key=lambda job: job.flops, reverse=True):
            record = job.folder.record()
            if record is not None and record.status in SETTLED:
                self.records[job.digest] = record
            else:
                self.progress[job.digest] = job.folder.progress()
                self.waiting.append(job)

    def _look_at_held(self) -> None:
        """Runs of another launcher: take over its records, and its runs if it went away."""
        for job in [*self.held]:
            if self.watch.is_held(job.folder.path):
                continue
            record = job.folder.record()
            self.held.remove(job)
            if record is None:
                self.waiting.appendleft(job)
            else:
                self._end(job, record)

    def _assign(self) -> None:
        idle = [worker for worker in self.workers if worker.job is None]
        while self.waiting and (idle or len(self.workers) < self.crew.num_workers):
            worker = idle.pop() if idle else self._start_worker()
            worker.take(self.waiting.popleft())

    def _start_worker(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        crew = self.crew
        arguments = (theirs, crew.num_threads, crew.execution_json, crew.trainer)
        process = context.Process(target=work, args=arguments, daemon=True)
        with _signals_ignored():
            process.start()
        theirs.close()  # so that the worker's death closes the pipe
        worker = _Worker(process, ours)
        self.workers.append(worker)
        return worker

    def _listen(self) -> None:
        """Wait for answers, or for the next look around."""
        busy: Mapping[object, _Worker] = {worker.connection: worker for worker in self.workers if worker.job}
        if not busy:
            if self.held:
                time.sleep(POLL_SECONDS)
            return
        for connection in wait([worker.connection for worker in busy.values()], timeout=POLL_SECONDS):
            self._hear(busy[connection])

    def _hear(self, worker: _Worker) -> None:
        job = worker.job
        assert job is not None, "only workers with a job are listened to"
        try:
            answer = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._bury(worker, job)
            return
        worker.job = None
        if answer.outcome is Outcome.BLOCKED:
            raise InputError(f"{answer.message}. What is finished is kept; run again to go on")
        if answer.outcome is Outcome.STOPPED:
            self._lay_down(worker, job)
            return
        record = job.folder.record() if answer.outcome is Outcome.ENDED else None
        if record is None:
            self.held.append(job)
        else:
            self._end(job, record)

    def _lay_down(self, worker: _Worker, job: Job) -> None:
        """A worker has left its run resumable. If nobody here asked for that, another worker goes on with it."""
        _stop([worker], GOODBYE_SECONDS)
        self.workers.remove(worker)
        if self.stop.is_requested():
            self.stopped.append(job)
        else:
            self.waiting.appendleft(job)

    def _bury(self, worker: _Worker, job: Job) -> None:
        """A process is gone, and perhaps only it was to blame: its run is tried again, but not for ever."""
        if self.stop.is_requested():
            self._lay_down(worker, job)
            return
        _stop([worker], GOODBYE_SECONDS)
        self.workers.remove(worker)
        cause = _cause_of_death(worker.process.exitcode)
        _note_death(job.folder, cause)
        reason = give_up(attempts(job.folder.path))
        if reason is None:
            self.reporter.say(f"{job.name}: {cause}; goes on from its last checkpoint")
            self.waiting.appendleft(job)
            return
        with job.folder.claimed() as lease:
            if lease is None:
                self.held.append(job)
                return
            record = write_failure(job.folder, reason, f"{reason}. Its log ends:\n{_log_end(job)}")
        self._end(job, record)

    def _end(self, job: Job, record: RunRecord) -> None:
        self.records[job.digest] = record
        self.reporter.ended(self._standing(), job.name, record)

    def _standing(self) -> Standing:
        running = [worker.job for worker in self.workers if worker.job is not None]
        self.progress.update({job.digest: job.folder.progress() for job in [*running, *self.held]})
        tokens = [self._tokens(job) for job in self.jobs]
        costs = [job.flops / job.tokens for job in self.jobs]
        flops_done = sum(cost * done for cost, (_, done) in zip(costs, tokens, strict=True))
        return Standing(
            num_runs=len(self.jobs),
            num_ended=len(self.records),
            running=[job.name for job in running],
            tokens=sum(asked for asked, _ in tokens),
            tokens_done=sum(done for _, done in tokens),
            flops=sum(cost * asked for cost, (asked, _) in zip(costs, tokens, strict=True)),
            flops_done=flops_done,
            flops_per_second=self.pace.flops_per_second(flops_done),
        )

    def _tokens(self, job: Job) -> tuple[int, int]:
        """Tokens asked for and done. With a record both are what was done: a run that diverges early saves work."""
        record = self.records.get(job.digest)
        if record is not None:
            return record.tokens, record.tokens
        return job.tokens, self.progress[job.digest].tokens


def _stop(workers: Sequence[_Worker], seconds: float) -> None:
    """Let them end by themselves for `seconds`, then kill them; what they write is atomic, so that loses nothing."""
    for worker in workers:
        worker.connection.close()
    for worker in workers:
        worker.process.join(seconds)
    _kill(workers)


def _kill(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()
        worker.process.join()


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """A process that starts inside ignores Ctrl-C from its first instruction on, and requests to stop until it listens.

    Signals belong to the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *SIGNALS)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _note_death(folder: RunFolder, cause: str) -> None:
    steps, job = folder.saved_steps(), scheduler_job()
    note_attempt(folder.path, Attempt(cause=Cause.WORKER_DIED, num_steps=steps, detail=cause, job=job, host=node()))


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"worker died with signal {-exit_code}"
    return f"worker exited with code {exit_code}"


def _log_end(job: Job) -> str:
    try:
        lines = (job.folder.path / LOG_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return "(it wrote none)"
    return "\n".join(lines[-LOG_LINES:])
