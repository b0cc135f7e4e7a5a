"""How are the trials of a study trained on a cluster? `OnCluster`, which `optimising` takes instead of this machine.

Trials are ordinary runs of the experiment `<name>-tuning`: packing, limits, requeueing, attempts and tracking are those
of `submit`, the waiting is in `jobs.awaited`. Nothing here knows what is tried (`tuning.study`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from k3ablate.config import located
from k3ablate.experiment import Experiment
from k3ablate.jobs import awaited
from k3ablate.jobs.cluster import read_cluster_recipe
from k3ablate.jobs.dispatch import Order
from k3ablate.jobs.progress import Reporter
from k3ablate.plan import PlanRow
from k3ablate.records import RunRecord
from k3ablate.tuning.trials import SEPARATE
from k3ablate.verbs import prepare_tracking


@dataclass
class OnCluster:
    """Trains trials through Slurm's queue, and waits for them."""

    name: str  # of the experiment, as it was asked for
    experiment: Experiment
    order: Order
    reporter: Reporter
    is_prepared: bool = False

    @classmethod
    def of(cls, name: str, experiment: Experiment, root: Path, cluster: str, reporter: Reporter) -> Self:
        """By a cluster recipe; InputError where it is wrong, or a run does not fit on what a task gets."""
        recipe = read_cluster_recipe(cluster)
        with located(cluster):
            recipe.check(experiment.execution)
        apart = experiment.model_copy(update={"name": f"{experiment.name}{SEPARATE}"})
        order = Order(apart.name, recipe.folder_of_runs(root), recipe, apart.execution, source=cluster)
        return cls(name, apart, order, reporter)

    @property
    def root(self) -> Path:
        """Where runs, corpora and studies lie."""
        return self.order.root

    def __call__(self, rows: Sequence[PlanRow]) -> Mapping[str, RunRecord]:
        """The record of every row by digest. KeyboardInterrupt says what becomes of what is queued."""
        if not self.is_prepared and self.order.recipe.tracking == "live":
            prepare_tracking(self.root, self.experiment, rows)
        self.is_prepared = True
        try:
            return awaited.run_grid(rows, self.order, self.reporter)
        except KeyboardInterrupt:
            self.reporter.say(
                f"trials that are queued or running go on; `k3ablate tune {self.name} --cluster {self.order.source}` "
                f"goes on with the study, `k3ablate cancel {self.name} --tuning` ends them"
            )
            raise
