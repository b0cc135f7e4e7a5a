"""How does a person change the course of an experiment? The verbs `cancel` and `retry`.

`cancel` takes runs out of Slurm's queue, `retry` opens runs again that failed or were lost. Both say what they did, and
twice is harmless: neither touches what has finished, and neither starts anything (`run` and `submit` do).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from k3ablate.answers import printable
from k3ablate.config import InputError
from k3ablate.experiment import load
from k3ablate.jobs import attempts, controller, leases
from k3ablate.jobs.controller import Refused, Unreachable
from k3ablate.jobs.folders import SETTLED_STATES, RunFolder, State, states
from k3ablate.jobs.leases import Held
from k3ablate.jobs.submissions import locked, submissions
from k3ablate.jobs.whereabouts import AtSlurm, Lookout, RunTask, Tasks, tasks_of_runs, whereabouts
from k3ablate.recipes import experiment_path
from k3ablate.records import SETTLED
from k3ablate.tuning.submitted import submitted_trials
from k3ablate.verbs import AskedRun, Say, digests, plan_from_known_corpora


@dataclass(frozen=True)
class Cancelled:
    """`cancel`: which tasks Slurm was told to end, and what becomes of the runs in them."""

    experiment: str
    tasks: Sequence[str] = ()
    running: Sequence[str] = ()  # names of runs that such a task held
    saved: Sequence[str] = ()  # and of those among them that had a checkpoint already
    queued: Sequence[str] = ()  # and of those that nobody held
    others: Sequence[str] = ()  # not asked for, but in the same tasks
    elsewhere: Mapping[str, str] = field(default_factory=dict)  # name -> who carries it out; nothing was done there
    next_command: str = ""  # that goes on with them
    problem: str = ""  # why it is not known whether Slurm did it, or empty

    def text(self) -> str:
        """What was cancelled, and what was not."""
        if self.problem:
            lines = [f"{self.experiment}: {self.problem}"]
        elif not self.tasks:
            lines = [f"{self.experiment}: nothing of it is in Slurm's queue"]
        else:
            lines = [
                f"{self.experiment}: cancelled {len(self.tasks)} tasks: {len(self.queued)} runs were waiting, "
                f"{len(self.running)} were running",
                *(f"{name}: was running; {self._rest(name)}" for name in self.running),
                f"`{self.next_command}` goes on with them",
            ]
        if self.others:
            lines.append(f"in the same tasks, so cancelled too: {', '.join(self.others)}")
        lines += [f"{name}: left alone, {reason}" for name, reason in self.elsewhere.items()]
        return "\n".join(map(printable, lines))

    def _rest(self, name: str) -> str:
        if name in self.saved:
            return "goes on from its last checkpoint"
        return "starts anew, unless its task still writes a checkpoint"


@dataclass(frozen=True)
class Retried:
    """`retry`: which runs are open again."""

    experiment: str
    opened: Mapping[str, str]  # name -> what it was
    left: Mapping[str, str]  # name -> why it was not touched
    next_command: str  # that goes on with them, or empty
    note: str  # what is not known

    def text(self) -> str:
        """What is open again, and what goes on with it."""
        lines = [f"{self.experiment}: {len(self.opened)} runs are open again"] if self.opened else []
        lines += [f"{name}: was {state}" for name, state in self.opened.items()]
        lines += [f"{name}: left alone, {reason}" for name, reason in self.left.items()]
        lines += [self.note] if self.note else []
        lines += [f"`{self.next_command}` goes on with them"] if self.next_command else []
        return "\n".join(map(printable, lines or [f"{self.experiment}: nothing failed, is lost or stale"]))


def cancel(name: str, root: Path, arm: str | None, size: str | None, say: Say) -> Cancelled:
    """End the tasks of Slurm's that have these runs; InputError where no run is meant. `say` is told of every wait."""
    experiment = load(experiment_path(name))
    rows = _selected(plan_from_known_corpora(experiment, root).rows, arm, size)
    return _cancel(experiment.name, _names(rows), root, _submit(name), say)


def cancel_trials(name: str, root: Path, arm: str | None, size: str | None, say: Say) -> Cancelled:
    """As `cancel`, of the trials that were handed to a cluster."""
    apart, trials = submitted_trials(name, root)
    return _cancel(apart, _names(_selected(trials, arm, size)), root, f"k3ablate tune {name} --cluster RECIPE", say)


def _cancel(experiment: str, wanted: Mapping[str, str], root: Path, next_command: str, say: Say) -> Cancelled:
    """Of the runs `wanted`, digest to name, what was submitted as this experiment's."""
    if not submissions(root):
        return Cancelled(experiment, elsewhere=_elsewhere(wanted, {}, _strangers(root, states(root, wanted), ())))
    with locked(root, say):  # nobody submits them again meanwhile
        try:
            tasks = tasks_of_runs(submissions(root), controller.queue(say=say))
            ours = _live_tasks(tasks, wanted, experiment)
            packed = {run.digest: run.name for task in ours for run in task.pack}
            by_folder = states(root, {**packed, **wanted})
            strangers = _strangers(root, by_folder, ours)
            _end(ours, say)
        except (Refused, Unreachable) as answer:
            problem = f"Slurm does not do it: {answer}. The same command cancels what is left"
            return Cancelled(experiment, problem=problem)
    over = {*SETTLED_STATES, State.FAILED}
    unsettled = {digest for digest in packed if by_folder[digest] not in over and digest not in strangers}
    running = {digest for digest in unsettled & wanted.keys() if by_folder[digest] is State.RUNNING}
    left = {digest: wanted[digest] for digest in wanted if digest not in packed or digest in strangers}
    return Cancelled(
        experiment=experiment,
        tasks=[task.name for task in ours],
        running=[wanted[digest] for digest in wanted if digest in running],
        saved=[wanted[digest] for digest in wanted if digest in running and RunFolder(root / digest).saved_steps()],
        queued=[wanted[digest] for digest in wanted if digest in unsettled - running],
        others=[packed[digest] for digest in packed if digest in unsettled - wanted.keys()],
        elsewhere=_elsewhere(left, tasks, strangers),
        next_command=next_command if ours else "",
    )


def retry(name: str, root: Path) -> Retried:
    """Forget failures and attempts. A run that a process, or a task of Slurm's, still has is left alone."""
    experiment = load(experiment_path(name))
    rows = plan_from_known_corpora(experiment, root).rows
    lookout = Lookout(root)
    where = whereabouts(root, digests(rows), lookout)
    opened, left, was_submitted = {}, {}, False
    for digest, called in _names(rows).items():
        state, tasks = where.states[digest], where.tasks.get(digest, ())
        if state not in (State.FAILED, State.STALE, AtSlurm.LOST):
            continue
        live = [task.name for task in tasks if task.is_live]
        if live:
            left[called] = f"task {live[-1]} still has it; when that has ended, the same command opens it"
        elif not _open(RunFolder(root / digest), state, tasks):
            left[called] = "a process is at it"
        else:
            opened[called] = str(state)
            was_submitted = was_submitted or bool(tasks)
    command = _submit(name) if was_submitted else f"k3ablate run {name}"
    return Retried(experiment.name, opened, left, command if opened else "", lookout.note)


def _submit(name: str) -> str:
    return f"k3ablate submit {name} --cluster RECIPE"


def _selected(rows: Sequence[AskedRun], arm: str | None, size: str | None) -> list[AskedRun]:
    """Those of an arm and a size; InputError for one that there is not."""
    for option, wanted, known in (
        ("--arm", arm, [row.label.arm for row in rows]),
        ("--size", size, [row.label.size for row in rows]),
    ):
        if wanted is not None and wanted not in known:
            raise InputError(f"{option} {wanted}: there is none; write one of {', '.join(dict.fromkeys(known))}")
    return [row for row in rows if arm in (None, row.label.arm) and size in (None, row.label.size)]


def _names(rows: Iterable[AskedRun]) -> dict[str, str]:
    """What every run is called, by digest, in the order of the plan: its first name, where rows share it."""
    names: dict[str, str] = {}
    for row in rows:
        if row.label.digest:
            names.setdefault(row.label.digest, row.label.name)
    return names


def _live_tasks(tasks: Tasks, digests: Iterable[str], experiment: str) -> list[RunTask]:
    """Those that have these runs and were submitted for `experiment`, each once."""
    found = {
        task.key: task
        for digest in digests
        for task in tasks.get(digest, ())
        if task.is_live and task.submission.experiment == experiment
    }
    return [*found.values()]


def _end(tasks: Sequence[RunTask], say: Say) -> None:
    for job in dict.fromkeys(task.job for task in tasks):
        its = [task for task in tasks if task.job == job]
        controller.cancel(job, [task.index for task in its], say)
        its[0].submission.close(task.key for task in its)


def _strangers(root: Path, by_folder: Mapping[str, State], tasks: Iterable[RunTask]) -> dict[str, str]:
    """The job, or empty for none, of every run that is held by somebody else than one of these tasks."""
    ours = {task.name for task in tasks}
    holders = {
        digest: leases.job_of_holder(root / digest) or ""
        for digest, state in by_folder.items()
        if state is State.RUNNING
    }
    return {digest: job for digest, job in holders.items() if job not in ours}


def _elsewhere(names: Mapping[str, str], tasks: Tasks, strangers: Mapping[str, str]) -> dict[str, str]:
    """Of the runs called `names`, those that somebody else carries out: run -> why nothing was done about it."""
    found = {}
    for digest, name in names.items():
        live = [task for task in tasks.get(digest, ()) if task.is_live]
        job = strangers.get(digest)
        if job == "":
            found[name] = "a process that is no task of Slurm's holds it; Ctrl-C ends it there"
        elif live and job in (None, live[-1].name):
            others = live[-1].submission.experiment
            found[name] = f"it is in task {live[-1].name} of experiment {others}; `k3ablate cancel {others}` ends that"
        elif job is not None:
            found[name] = (
                f"job {job} of Slurm's holds it, which is no task that this cancels; `scancel {job}` ends that"
            )
    return found


def _open(folder: RunFolder, state: State | AtSlurm, tasks: Sequence[RunTask]) -> bool:
    """Whether nobody holds the run, which is open now. A stale lease of another machine stays for whoever goes on."""
    if state is State.STALE and leases.held(folder.path) is Held.ELSEWHERE:
        attempts.reopen(folder.path)
        return True
    with folder.claimed() as lease:
        if lease is None:
            return False
        record = folder.record()
        if record is not None and record.status in SETTLED:
            return False  # it has come to an end since
        folder.forget_failure()
    for task in tasks[-1:]:
        task.submission.close([task.key])
    return True
