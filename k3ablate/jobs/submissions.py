"""What was submitted? One folder per array, written before Slurm sees it, and the ids under which Slurm knows it.

    <root>/jobs/lock
    <root>/jobs/<experiment>/<number>/   packs.json job.sh logs/ jobs/<id of a job of Slurm's> closed.txt

A task is known by its job's id, or by the comment, which is the folder: a launcher that died between handing an array
in and noting its id submits nothing twice. What a task has reached is in the runs' own folders (`folders`).
"""

import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from k3ablate.jobs.controller import QueuedTask, read_indices
from k3ablate.jobs.packs import Pack, PackFile, read_pack_file
from k3ablate.storage import append_line, write_atomic

JOBS_FOLDER = "jobs"
PACKS_FILE = "packs.json"
SCRIPT_FILE = "job.sh"
CLOSED_FILE = "closed.txt"

TaskName = tuple[str, int]  # an array's id, and an index in it


@dataclass(frozen=True)
class Submission:
    """The folder of one array, and of the jobs that carry on its tasks."""

    folder: Path

    @property
    def pack_path(self) -> Path:
        """What its tasks read."""
        return self.folder / PACKS_FILE

    @property
    def script(self) -> Path:
        """What Slurm was given."""
        return self.folder / SCRIPT_FILE

    @property
    def comment(self) -> str:
        """How its jobs are marked in the queue."""
        return str(self.folder)

    @property
    def experiment(self) -> str:
        """For which it was made."""
        return self.folder.parent.name

    @property
    def root(self) -> Path:
        """The folder of runs."""
        return self.folder.parent.parent.parent

    def write(self, pack_file: PackFile, script: str) -> None:
        """Everything that its tasks need."""
        (self.folder / "logs").mkdir(parents=True)
        (self.folder / JOBS_FOLDER).mkdir()
        pack_file.write(self.pack_path)
        write_atomic(self.script, script)

    def remove(self) -> None:
        """Slurm has refused it, so that nothing knows of it."""
        shutil.rmtree(self.folder)

    def note_job(self, job: str, array: str) -> None:
        """Slurm knows the tasks `array` (indices as sbatch takes them) as `job`."""
        write_atomic(self.folder / JOBS_FOLDER / job, array + "\n")

    def jobs(self) -> set[str]:
        """The ids that were noted."""
        folder = self.folder / JOBS_FOLDER
        return {path.name for path in folder.iterdir() if path.name.isdigit()} if folder.is_dir() else set()

    def noted_tasks(self) -> set[TaskName]:
        """The tasks of those jobs."""
        return {(job, index) for job in self.jobs() for index in _read_array(self.folder / JOBS_FOLDER / job)}

    def close(self, tasks: Iterable[TaskName]) -> None:
        """A person has ended these tasks, or knows that they are lost: their runs need no explanation any more."""
        append_line(self.folder / CLOSED_FILE, " ".join(f"{job}_{index}" for job, index in sorted(tasks)))

    def closed(self) -> set[TaskName]:
        """Those of which that was said."""
        path = self.folder / CLOSED_FILE
        found = re.findall(r"\b(\d+)_(\d+)\b", path.read_text()) if path.exists() else []
        return {(job, int(index)) for job, index in found}

    def log(self, task: TaskName) -> Path:
        """What this task printed, if it ever started."""
        job, index = task
        return self.folder / "logs" / f"{job}_{index}_0_log.out"

    def packs(self) -> tuple[Pack, ...]:
        """By index of their task; InputError for a damaged file."""
        return read_pack_file(self.pack_path).packs


def of_pack_file(path: Path) -> Submission:
    """The submission whose tasks were given `path`."""
    return Submission(path.absolute().parent)


def submissions(root: Path) -> list[Submission]:
    """All below `root`, of every experiment: a run may belong to several."""
    return [Submission(path.parent) for path in sorted((root / JOBS_FOLDER).glob(f"*/*/{PACKS_FILE}"))]


def next_folders(root: Path, experiment: str, number: int) -> list[Path]:
    """Where the next submissions of `experiment` go. Nothing is created; hold `locked` until it is."""
    folder = root / JOBS_FOLDER / experiment
    taken = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
    first = max(taken, default=0) + 1
    return [folder / f"{index:04d}" for index in range(first, first + number)]


def queued_digests(root: Path, queue: Iterable[QueuedTask]) -> set[str]:
    """The runs of all tasks of `root` that wait in `queue` or run."""
    live = [task for task in queue if task.is_live and task.index is not None]
    return {digest for submission in submissions(root) for digest in _queued_of(submission, live)}


@contextmanager
def locked(root: Path, say: Callable[[str], None]) -> Iterator[None]:
    """One process at a time decides what is submitted from `root`; others wait, and `say` so."""
    folder = root / JOBS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another `submit` or `cancel` is at work here, and may be waiting for Slurm itself; waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)  # releases the lock


def _queued_of(submission: Submission, live: Iterable[QueuedTask]) -> Iterator[str]:
    jobs = submission.jobs()
    indices = {task.index for task in live if task.job in jobs or task.comment == submission.comment}
    if not indices:
        return
    for index, pack in enumerate(submission.packs()):
        if index in indices:
            yield from (run.digest for run in pack)


def _read_array(path: Path) -> set[int]:
    """Empty for a note that a full disk cut off."""
    try:
        return read_indices(path.read_text().strip())
    except ValueError:
        return set()
