"""How does a grid run on this machine? Worker processes take run after run, longest first.

`run_grid` returns when every run has a record; what is finished or diverged is not touched, what failed, ran out of
time or was interrupted goes on from its checkpoint. A run that raises or kills its process does not disturb the others.
Two launchers share a grid: a run that the other one holds is waited for. What a worker does is in `worker`.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from k3ablate.config import InputError
from k3ablate.jobs.folders import LOG_FILE, Progress, RunFolder, prepare
from k3ablate.jobs.progress import Pace, Reporter, Standing
from k3ablate.jobs.worker import Answer, Outcome, Task, Trainer, failed_record, train_run, work
from k3ablate.plan import PlanRow
from k3ablate.records import SETTLED, Label, RunRecord
from k3ablate.storage import require_writable
from k3ablate.training.spec import Execution, RunSpec

MAX_RESTARTS = 2  # of a run whose worker died
POLL_SECONDS = 1.0
GOODBYE_SECONDS = 10.0  # for a worker that has nothing left to do
LOG_LINES = 40  # of a dead worker's log, kept with the failure


@dataclass(frozen=True)
class Job:
    """One run of the grid: what it is and costs, and what a worker is told of it."""

    spec: RunSpec
    task: Task
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


def run_grid(
    rows: Sequence[PlanRow],
    root: Path,
    execution: Execution,
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
    grid = _Grid(_jobs(rows, root), execution, num_workers, reporter, trainer)
    grid.run()
    return grid.records


def default_workers() -> int:
    """One per core that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _jobs(rows: Sequence[PlanRow], root: Path) -> list[Job]:
    """One job per digest, named after its first row."""
    jobs: dict[str, Job] = {}
    for row in rows:
        assert row.spec is not None, "corpora are built before a grid runs"
        if row.label.digest not in jobs:
            jobs[row.label.digest] = Job(row.spec, _task(row.label, prepare(root, row.spec)), row.flops)
    return list(jobs.values())


def _task(label: Label, folder: RunFolder) -> Task:
    tags = {"experiment": label.experiment, "arm": label.arm, "size": label.size, "seed": str(label.seed)}
    return Task(folder, f"{label.arm} {label.size} seed {label.seed}", tags)


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


@dataclass
class _Grid:
    """The launcher's bookkeeping: every job is waiting, at a worker, held by another launcher, or has a record."""

    jobs: Sequence[Job]
    execution: Execution
    num_workers: int
    reporter: Reporter
    trainer: Trainer
    records: dict[str, RunRecord] = field(default_factory=dict)
    waiting: deque[Job] = field(default_factory=deque)
    held: list[Job] = field(default_factory=list)
    workers: list[_Worker] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)
    progress: dict[str, Progress] = field(default_factory=dict)  # of jobs without a record
    pace: Pace = field(default_factory=Pace)

    def run(self) -> None:
        self._sort_in()
        patience = 0.0  # an interrupted grid does not wait for its workers
        try:
            with self.reporter:
                while len(self.records) < len(self.jobs):
                    self._look_at_held()
                    self._assign()
                    self._listen()
                    self.reporter.show(self._standing())
            patience = GOODBYE_SECONDS
        finally:
            _stop(self.workers, patience)

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
            if job.folder.is_held():
                continue
            record = job.folder.record()
            self.held.remove(job)
            if record is None:
                self.waiting.appendleft(job)
            else:
                self._end(job, record)

    def _assign(self) -> None:
        idle = [worker for worker in self.workers if worker.job is None]
        while self.waiting and (idle or len(self.workers) < self.num_workers):
            worker = idle.pop() if idle else self._start_worker()
            worker.take(self.waiting.popleft())

    def _start_worker(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self.execution.num_threads, self.execution.model_dump_json(), self.trainer)
        process = context.Process(target=work, args=arguments, daemon=True)
        with _interrupts_ignored():
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
        record = job.folder.record() if answer.outcome is Outcome.ENDED else None
        if record is None:
            self.held.append(job)
        else:
            self._end(job, record)

    def _bury(self, worker: _Worker, job: Job) -> None:
        """A process is gone, and perhaps only it was to blame: its run is tried again, but not for ever."""
        _stop([worker], GOODBYE_SECONDS)
        self.workers.remove(worker)
        self.deaths[job.digest] += 1
        reason = _cause_of_death(worker.process.exitcode)
        if self.deaths[job.digest] <= MAX_RESTARTS:
            self.reporter.say(f"{job.name}: {reason}; goes on from its last checkpoint")
            self.waiting.appendleft(job)
            return
        with job.folder.claimed() as is_mine:
            if not is_mine:
                self.held.append(job)
                return
            record = failed_record(job.spec, job.folder.progress(), reason)
            job.folder.write_failure(record, f"{reason}, {MAX_RESTARTS + 1} times. Its log ends:\n{_log_end(job)}")
        self._end(job, record)

    def _end(self, job: Job, record: RunRecord) -> None:
        self.records[job.digest] = record
        self.reporter.ended(self._standing(), job.name, record)

    def _standing(self) -> Standing:
        running = [worker.job for worker in self.workers if worker.job is not None]
        self.progress.update({job.digest: job.folder.progress() for job in [*running, *self.held]})
        tokens = [self._tokens(job) for job in self.jobs]
        costs = [job.flops / job.spec.tokens for job in self.jobs]
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
        return job.spec.tokens, self.progress[job.digest].tokens


def _stop(workers: Sequence[_Worker], seconds: float) -> None:
    """Let them end by themselves for `seconds`, then kill them; what they write is atomic, so that loses nothing."""
    for worker in workers:
        worker.connection.close()
    for worker in workers:
        worker.process.join(seconds)
        worker.process.kill()
        worker.process.join()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A process that starts inside ignores Ctrl-C from its first instruction on. Signals belong to the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


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
