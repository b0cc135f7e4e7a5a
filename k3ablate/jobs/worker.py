"""What does one worker process do? It takes run after run over a pipe and never takes the launcher down.

The heavy libraries are imported at the first run and stay. Nothing here decides what is run (`local`), and nothing at
the top of this file may import torch: threads are set before.
"""

import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from k3ablate import storage
from k3ablate.config import InputError
from k3ablate.jobs.folders import LOG_FILE, Progress, RunFolder, corpora_folder
from k3ablate.jobs.leases import LostLease
from k3ablate.kernels.pages import keep_pages
from k3ablate.records import SETTLED, RunRecord, Status
from k3ablate.training import stopping

if TYPE_CHECKING:
    from k3ablate.training.spec import Execution, RunSpec

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
# How often a thread of torch's OpenMP looks for its next operation before it sleeps. By default some 10 ms, on the core
# that the second part of a numba kernel waits for. On two threads this count saved 7 percent of a K3 step of 16 x 256
# and a quarter of the CPU time; sleeping at once (OMP_WAIT_POLICY=passive) cost K2's small operations 65 percent.
SPIN_VARIABLE, SPIN_COUNT = "GOMP_SPINCOUNT", "10000"


@dataclass(frozen=True)
class Task:
    """A run for a worker: where it lies, and what a person who watches it calls it."""

    folder: RunFolder
    name: str
    tags: Mapping[str, str]


Trainer = Callable[["RunSpec", Task, "Execution"], None]  # leaves record.json in the task's folder


class Outcome(Enum):
    """How an attempt at a run ended."""

    ENDED = auto()  # there is a record
    HELD = auto()  # another process is at it
    STOPPED = auto()  # as was asked; a checkpoint lies there
    BLOCKED = auto()  # the disk refuses, or the input is wrong: a person has to mend it first


@dataclass(frozen=True)
class Answer:
    """What a worker says after an attempt."""

    outcome: Outcome
    message: str = ""


def work(connection: "Connection[Answer, Task]", num_threads: int, execution_json: str, trainer: Trainer) -> None:
    """Process entry: attempt each task that comes through the pipe, until the launcher closes it or asks to stop."""
    stopping.listen()
    os.setpgrp()  # a terminal's Ctrl-C goes to the launcher alone; Lightning would undo an ignored signal
    threading.Thread(target=_die_with_launcher, daemon=True).start()
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(num_threads)))
    os.environ.setdefault(SPIN_VARIABLE, SPIN_COUNT)
    keep_pages()
    while True:
        try:
            task = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        answer = attempt(task, execution_json, trainer)
        try:
            connection.send(answer)
        except BrokenPipeError:  # the launcher has stopped meanwhile, e.g. because another worker was blocked
            return
        if answer.outcome is Outcome.STOPPED:
            return


def attempt(task: Task, execution_json: str, trainer: Trainer) -> Answer:
    """Train the run unless it is settled or held; what it raises becomes its failed record, if the run is to blame."""
    folder = task.folder
    try:
        with folder.claimed() as lease:
            if lease is None:
                return Answer(Outcome.HELD)
            record = folder.record()
            if record is None or record.status not in SETTLED:
                if record is not None:
                    folder.forget_failure()
                with _output_to(folder.path / LOG_FILE):
                    _train(task, execution_json, trainer)
            return Answer(Outcome.ENDED)
    except LostLease as reason:
        return Answer(Outcome.HELD, str(reason))
    except stopping.Stopped:
        return Answer(Outcome.STOPPED)
    except InputError as error:
        return Answer(Outcome.BLOCKED, str(error))
    except OSError as error:
        refusal = storage.problem(error)
        if refusal is None:
            raise
        return Answer(Outcome.BLOCKED, refusal)


def train_run(spec: "RunSpec", task: Task, execution: "Execution") -> None:
    """The real thing, in this process or in several that it starts."""
    if execution.strategy == "single":
        train_here(spec, task, execution)
        return
    from k3ablate.jobs.ranks import train_on_ranks

    execution.require_shares(spec)
    train_on_ranks(task, execution)


def train_here(spec: "RunSpec", task: Task, execution: "Execution") -> None:
    """In this process: `training.run.train` on the corpus and store that lie beside the run folders."""
    from k3ablate import tracking
    from k3ablate.training import run
    from k3ablate.training.corpus import open_corpus

    root = task.folder.path.parent
    corpus = open_corpus(spec.corpus, corpora_folder(root))
    tracker = tracking.tracker(root, task.folder.path, task.name, task.tags)
    run.train(spec, task.folder.path, corpus, execution, tracker)


def failed_record(spec: "RunSpec", progress: Progress, reason: str) -> RunRecord:
    """What is known of a run that broke: its size, how far it got, and why it ended."""
    from k3ablate.model.counting import count

    counts = count(spec.model, spec.training.context)
    return RunRecord(
        digest=spec.digest(),
        status=Status.FAILED,
        reason=reason,
        num_steps=progress.num_steps,
        tokens=progress.tokens,
        flops=counts.training_flops(progress.tokens),
        flops_6nd=counts.training_flops_6nd(progress.tokens),
        active_params=counts.active_params,
        total_params=counts.total_params,
        wall_seconds=0.0,
        tokens_per_second=0.0,
        corpus=spec.corpus,
    )


def write_failure(folder: RunFolder, reason: str, details: str) -> RunRecord:
    """Settle the run as failed, as far as it got; `details` lie beside the record that is returned."""
    record = failed_record(folder.spec(), folder.progress(), reason)
    folder.write_failure(record, details)
    return record


def _train(task: Task, execution_json: str, trainer: Trainer) -> None:
    from k3ablate.training.provenance import versions_beside
    from k3ablate.training.spec import Execution

    folder = task.folder
    spec = folder.spec()
    found = versions_beside(folder.frozen().versions)
    if "planned_code" in found:
        print(f"planned with code {found['planned_code']}, goes on with {found['code']}")
    execution = Execution.model_validate_json(execution_json)
    try:
        trainer(spec, task, execution)
        assert folder.record() is not None, "a trainer leaves a record"
    except Exception as error:
        if isinstance(error, InputError | LostLease | stopping.Stopped) or storage.problem(error) is not None:
            raise
        traceback.print_exc()
        reason = "".join(traceback.format_exception_only(error)).strip()
        write_failure(folder, reason, traceback.format_exc())


def _die_with_launcher() -> None:
    """A killed launcher leaves no worker behind; checkpoints are atomic, so dying at once loses little."""
    launcher = parent_process()
    assert launcher is not None, "runs in a process of its own"
    launcher.join()
    os._exit(1)


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Everything that is printed, by C libraries too, goes to the end of the file at `path`."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(number) for number in (1, 2)]
    try:
        with path.open("ab") as log:
            for number in (1, 2):
                os.dup2(log.fileno(), number)
            faulthandler.enable(log.fileno())  # a segmentation fault says where
            yield
            faulthandler.disable()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in zip((1, 2), saved, strict=True):
            os.dup2(copy, number)
            os.close(copy)
