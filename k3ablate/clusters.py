"""How does an experiment run on a cluster? The verb `submit`, and `work`, which a task of an array runs there.

As in `verbs`, from the name of an experiment to an answer; the tasks go on by themselves after that. Nothing here
trains, talks to Slurm (`jobs.controller`) or knows what is submitted already (`jobs.dispatch`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from k3ablate.config import InputError, located, parse
from k3ablate.experiment import Experiment, load
from k3ablate.jobs import dispatch
from k3ablate.jobs.cluster import read_cluster_recipe
from k3ablate.jobs.dispatch import Handed, Order
from k3ablate.jobs.folders import corpora_folder
from k3ablate.jobs.launch import carry_out
from k3ablate.jobs.progress import Reporter
from k3ablate.plan import PlanRow, data_recipes
from k3ablate.recipes import experiment_path, recipe, recipe_names
from k3ablate.storage import require_writable
from k3ablate.training.corpus import known
from k3ablate.training.spec import DataRecipe
from k3ablate.verbs import Say, plan_from_built_corpora, plan_from_known_corpora, prepare_tracking


@dataclass(frozen=True)
class Submitted:
    """`submit`: the arrays that Slurm has now, or would get, and the runs that are in none of them."""

    experiment: str
    cluster: str
    arrays: Sequence[Handed]
    is_dry_run: bool
    num_settled: int
    num_queued: int  # in a task that waits or runs
    num_elsewhere: int  # in no such task, but held by a live process
    failed: Sequence[str]
    not_submitted: Sequence[str]
    reason: str

    def text(self) -> str:
        """A line per array, or its script where nothing was handed in, then what was left out and why."""
        if self.is_dry_run:
            return "\n".join(array.script for array in self.arrays) or self._rest()
        lines = [
            f"job {array.job}: {array.num_tasks} tasks, {array.num_runs} runs, in {array.folder}"
            for array in self.arrays
        ]
        return "\n".join([*lines, self._rest()])

    def _rest(self) -> str:
        num_new = sum(array.num_runs for array in self.arrays)
        head = f"{self.experiment}: {num_new} submitted, {self.num_queued} queued before, {self.num_settled} done"
        lines = [head + (f", {self.num_elsewhere} running elsewhere" if self.num_elsewhere else "")]
        if self.failed:
            retry = f"`k3ablate retry {self.experiment}` opens them again"
            lines.append(f"{len(self.failed)} failed ({', '.join(self.failed)}); {retry}")
        if self.not_submitted:
            lines.append(f"{len(self.not_submitted)} not submitted ({', '.join(self.not_submitted)}): {self.reason}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Worked:
    """`work`: how a task ended."""

    counts: Counter[str]  # status -> runs
    num_left: int


def submit(name: str, root: Path, cluster: str, say: Say, *, is_dry_run: bool = False) -> Submitted:
    """Hand to Slurm what is open and not in its queue; a dry run shows the texts and writes nothing."""
    experiment = load(experiment_path(name))
    asked = read_cluster_recipe(cluster)
    with located(cluster):
        asked.check(experiment.execution)
    folder = asked.folder_of_runs(root)
    order = Order(experiment.name, folder, asked, experiment.execution, source=cluster)
    if is_dry_run:
        outcome = dispatch.preview(_known_rows(experiment, folder, f"submit {name} --cluster {cluster}"), order, say)
    else:
        require_writable(folder)
        rows = plan_from_built_corpora(experiment, folder, say).rows
        if asked.tracking == "live":
            prepare_tracking(folder, experiment, rows)
        outcome = dispatch.submit(rows, order, say)
    return Submitted(
        experiment=experiment.name,
        cluster=cluster,
        arrays=outcome.handed,
        is_dry_run=is_dry_run,
        num_settled=outcome.num_settled,
        num_queued=outcome.num_queued,
        num_elsewhere=outcome.num_elsewhere,
        failed=outcome.failed,
        not_submitted=outcome.not_submitted,
        reason=outcome.reason,
    )


def work(pack_path: Path, reporter: Reporter) -> Worked:
    """Carry out the pack of the Slurm task that this process is."""
    carried = carry_out(pack_path, reporter)
    return Worked(Counter(str(record.status) for record in carried.records.values()), carried.num_left)


def _known_rows(experiment: Experiment, root: Path, command: str) -> Sequence[PlanRow]:
    """The plan, where its corpora are built: before that runs have no digests."""
    rows = plan_from_known_corpora(experiment, root).rows
    if not all(row.spec for row in rows):
        raise InputError(f"{experiment.name}: its corpus is not built yet; {_building(experiment, root, command)}")
    return rows


def _building(experiment: Experiment, root: Path, command: str) -> str:
    """What to type for the corpora that are missing: the recipes' names, where all of them have one."""
    missing = [recipe for recipe in data_recipes(experiment) if known(recipe, corpora_folder(root)) is None]
    names = [name for name in recipe_names("data") if parse(DataRecipe, recipe("data", name), source=name) in missing]
    if len(names) < len(missing):
        return f"`k3ablate {command}` without --dry-run builds it before it submits"
    return " and ".join(f"`k3ablate data build {name}`" for name in names) + " builds it"
