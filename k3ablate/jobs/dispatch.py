"""How do the rows of a plan become arrays in Slurm's queue? Each run once, in as many arrays as the controller takes.

What is settled, failed, in the queue or held by a process is left alone, so that submitting twice submits nothing new
and submitting after a refusal sends only what is missing. A run that failed is opened again by `k3ablate retry`. What
a task does is in `launch`.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from k3ablate.config import located
from k3ablate.jobs import controller
from k3ablate.jobs.cluster import ClusterRecipe
from k3ablate.jobs.controller import Full, Refused, Say, Unreachable
from k3ablate.jobs.folders import SETTLED_STATES, RunFolder, State, prepare, states
from k3ablate.jobs.local import task_of
from k3ablate.jobs.packs import Pack, PackedRun, PackFile, by_minutes, by_number
from k3ablate.jobs.slurm import script
from k3ablate.jobs.submissions import Submission, locked, next_folders, queued_digests
from k3ablate.plan import PlanRow
from k3ablate.training.spec import Execution

STOP_SHARE = 0.5  # of the time between warning and limit, for the last step; then the task sees to what is left


@dataclass(frozen=True)
class Order:
    """What is asked for: an experiment's runs below `root`, as tasks of one kind that run `command` on a pack file."""

    experiment: str
    root: Path
    recipe: ClusterRecipe
    execution: Execution
    command: Sequence[str] = ()  # () is this package's own
    source: str = "cluster recipe"  # what the recipe is called, in messages

    def command_on(self, pack_path: Path) -> list[str]:
        """What a task runs."""
        container = self.recipe.container
        own = [sys.executable if container is None else container.python, "-m", "k3ablate.cli", "work"]
        return [*(self.command or own), str(pack_path)]


@dataclass(frozen=True)
class Handed:
    """One array that is, or would be, in the queue."""

    folder: Path
    script: str
    num_tasks: int
    num_runs: int
    job: str | None = None  # None: not handed in


@dataclass
class Outcome:
    """What came of an order. Runs by name where somebody may have to do something about them."""

    handed: list[Handed] = field(default_factory=list)
    num_settled: int = 0
    num_queued: int = 0  # in a task that waits or runs
    num_elsewhere: int = 0  # in no such task, but held by a live process
    failed: list[str] = field(default_factory=list)
    not_submitted: list[str] = field(default_factory=list)
    reason: str = ""  # why
    is_refused: bool = False  # for good: asking again changes nothing, unless a person does something


def submit(rows: Sequence[PlanRow], order: Order, say: Say) -> Outcome:
    """Freeze what is open and hand it to Slurm; `say` is told of every wait.

    InputError where there is no Slurm, or where it does not take what the recipe says.
    """
    by_digest, outcome = {row.label.digest: row for row in rows}, Outcome()
    with locked(order.root, say):
        for chunk in _chunks(by_digest, order, outcome, say):
            if outcome.reason:
                outcome.not_submitted += _names(chunk.pack_file.packs)
            else:
                _hand_in(chunk, by_digest, outcome, say)
    return outcome


def preview(rows: Sequence[PlanRow], order: Order, say: Say) -> Outcome:
    """What `submit` would hand in, with the same texts; nothing is written."""
    outcome = Outcome()
    for chunk in _chunks({row.label.digest: row for row in rows}, order, outcome, say):
        outcome.handed.append(chunk.handed(None))
    return outcome


@dataclass(frozen=True)
class _Chunk:
    """One array before it is handed in."""

    submission: Submission
    pack_file: PackFile
    script: str
    order: Order

    def handed(self, job: str | None) -> Handed:
        packs = self.pack_file.packs
        return Handed(self.submission.folder, self.script, len(packs), sum(map(len, packs)), job)


def _open(rows: Mapping[str, PlanRow], found: Mapping[str, State], root: Path, outcome: Outcome) -> list[PlanRow]:
    """One row per run that has not come to an end; the others are counted."""
    open_rows = []
    for digest, row in rows.items():
        if found[digest] in SETTLED_STATES:
            outcome.num_settled += 1
        elif found[digest] is State.FAILED:
            outcome.failed.append(_packed(row, root).name)
        else:
            open_rows.append(row)
    return open_rows


def _chunks(rows: Mapping[str, PlanRow], order: Order, outcome: Outcome, say: Say) -> Iterator[_Chunk]:
    """What nobody has, as arrays; what the controller has no room for, or no answer, goes to `outcome`."""
    found = states(order.root, rows)
    open_rows = _open(rows, found, order.root, outcome)
    try:
        limits, queue = controller.limits(say), controller.queue(say=say)
    except (Refused, Unreachable) as answer:
        outcome.not_submitted = [_packed(row, order.root).name for row in open_rows]
        outcome.reason = f"Slurm does not say what it holds: {answer}. Nothing was submitted; try again"
        return
    queued = queued_digests(order.root, queue)
    unqueued = [row for row in open_rows if row.label.digest not in queued]
    free = [row for row in unqueued if found[row.label.digest] is not State.RUNNING]
    outcome.num_queued = len(open_rows) - len(unqueued)
    outcome.num_elsewhere = len(unqueued) - len(free)
    packs = _packs([_packed(row, order.root) for row in free], order.recipe)
    room = max(0, limits.max_jobs - len(queue) - 1)
    fitting, others = packs[:room], packs[room:]
    cuts = range(0, len(fitting), limits.max_array_size)
    for start, folder in zip(cuts, next_folders(order.root, order.experiment, len(cuts)), strict=True):
        yield _chunk(fitting[start : start + limits.max_array_size], order, Submission(folder))
    if others:
        outcome.not_submitted += _names(others)
        outcome.reason = outcome.reason or (
            f"the controller keeps at most {limits.max_jobs} tasks (MaxJobCount) and has {len(queue)}; "
            "submit again when some have ended"
        )


def _chunk(packs: Sequence[Pack], order: Order, submission: Submission) -> _Chunk:
    execution, recipe = order.execution, order.recipe
    stop_seconds = max(1, int(STOP_SHARE * recipe.signal_seconds))
    pack_file = PackFile(
        experiment=order.experiment,
        execution=execution.tree(),
        num_threads=execution.num_threads,
        stop_seconds=stop_seconds,
        packs=tuple(packs),
    )
    name = f"k3ablate-{order.experiment}"
    text = script(recipe, submission.folder, name, order.command_on(submission.pack_path), len(packs))
    return _Chunk(submission, pack_file, text, order)


def _hand_in(chunk: _Chunk, rows: Mapping[str, PlanRow], outcome: Outcome, say: Say) -> None:
    """Its runs are frozen, then it goes to Slurm; what that says instead of an id is the outcome's reason."""
    submission = chunk.submission
    for spec in (rows[run.digest].spec for pack in chunk.pack_file.packs for run in pack):
        assert spec is not None, "corpora are built before runs are submitted"
        prepare(submission.root, spec)
    submission.write(chunk.pack_file, chunk.script)
    try:
        job = controller.submit(submission.script, submission.comment, say=say)
    except (Refused, Unreachable) as answer:
        if isinstance(answer, Refused):
            submission.remove()
            with located(chunk.order.source):
                chunk.order.recipe.refuse(str(answer))
        outcome.reason = str(answer)
        outcome.is_refused = isinstance(answer, Refused) and not isinstance(answer, Full)
        outcome.not_submitted += _names(chunk.pack_file.packs)
        return
    submission.note_job(job, f"0-{len(chunk.pack_file.packs) - 1}")
    outcome.handed.append(chunk.handed(job))


def _packs(runs: Sequence[PackedRun], recipe: ClusterRecipe) -> list[Pack]:
    if recipe.minutes_per_job is None:
        return by_number(runs, recipe.runs_per_job or 1)
    assert recipe.flops_per_second is not None, "the recipe has asked for it"
    return by_minutes(runs, recipe.minutes_per_job, recipe.flops_per_second)


def _packed(row: PlanRow, root: Path) -> PackedRun:
    task = task_of(row.label, RunFolder(root / row.label.digest))
    return PackedRun(digest=row.label.digest, name=task.name, tags=dict(task.tags), tokens=row.tokens, flops=row.flops)


def _names(packs: Sequence[Pack]) -> list[str]:
    return [run.name for pack in packs for run in pack]
