"""How does a store of runs get what it lacks? `sync`, for nodes without a network and stores that were away.

What is sent is read from the folders of runs, keyed by digest, so that doing it twice, or while runs train, changes
nothing. How one run is sent is in `tracking`; a table is collected from a store in `publishing`.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from k3ablate.answers import Problem, Synced
from k3ablate.config import InputError
from k3ablate.experiment import load
from k3ablate.jobs.folders import RunFolder, State
from k3ablate.jobs.local import task_of
from k3ablate.jobs.worker import Task
from k3ablate.labels import Labels
from k3ablate.mlflow_store import Store, StoredRun, shown
from k3ablate.outbox import Busy
from k3ablate.recipes import experiment_path
from k3ablate.records import METRICS_FILE, refuse_links
from k3ablate.tracking import Watched, deliver, first_line, tracking_uri
from k3ablate.verbs import plan_from_known_corpora

NOT_BEGUN = "not_begun"  # beside the outcomes of `tracking.Delivery`
SAY_SECONDS = 5.0  # between two lines of progress


def sync(name: str, root: Path, uri: str | None, say: Callable[[str], None]) -> Synced:
    """Send the store at `uri`, or the usual one, what it lacks of the runs of an experiment, and how they are called.

    A run that cannot be sent is told in the answer and does not keep back the others; a store that does not answer ends
    it. InputError where the experiment or the address is wrong, or no corpus is built, so that no run can be known.
    """
    experiment = load(experiment_path(name))
    labels = [row.label for row in plan_from_known_corpora(experiment, root).rows]
    tasks = {label.digest: task_of(label, RunFolder(root / label.digest)) for label in reversed(labels) if label.digest}
    if not tasks:
        raise InputError(f"{name}: its corpus is not built here, so its runs are not known; `k3ablate run {name}`")
    syncing = _Syncing(Store(uri or tracking_uri(root)), list(reversed(tasks.values())), say)
    root.mkdir(parents=True, exist_ok=True)
    failure = syncing.run(root, experiment.name, Labels.of(labels, experiment.digest()).written())
    return Synced(experiment.name, shown(syncing.store.uri), syncing.counts, syncing.problems, failure)


@dataclass
class _Syncing:
    """What is to be sent, and what came of it."""

    store: Store
    tasks: list[Task]
    say: Callable[[str], None]
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[Problem] = field(default_factory=list)

    def run(self, root: Path, experiment: str, labels: bytes) -> str | None:
        """Send everything; the reason if the store ended it."""
        try:
            self.store.keep_plan(root, experiment, labels)
            known = self.store.runs()
        except InputError:  # the address
            raise
        except Exception as error:  # noqa: BLE001 - whatever a store raises, it cannot be used
            return first_line(error)
        next_line = time.monotonic() + SAY_SECONDS
        for number, task in enumerate(self.tasks):
            if not self._send(task, known) and (failure := self._failure()) is not None:
                return failure
            if time.monotonic() > next_line:
                self.say(f"sync: {number + 1} of {len(self.tasks)} runs")
                next_line = time.monotonic() + SAY_SECONDS
        return None

    def _send(self, task: Task, known: Mapping[str, StoredRun]) -> bool:
        """False where it could not be sent, which is told."""
        try:
            self.counts[self._outcome(task, known.get(task.folder.digest))] += 1
        except (InputError, Busy) as error:
            self.problems.append(Problem(task.name, "not sent", str(error)))
        except Exception as error:  # noqa: BLE001 - whatever a store raises, other runs do not depend on it
            self.problems.append(Problem(task.name, "not sent", first_line(error)))
            return False
        return True

    def _outcome(self, task: Task, known: StoredRun | None) -> str:
        folder = task.folder
        refuse_links(folder.path)  # before anything there is read
        if not folder.path.is_dir():
            return NOT_BEGUN
        state = folder.state()
        if state is State.WAITING and not (folder.path / METRICS_FILE).exists():
            return NOT_BEGUN
        return deliver(self.store, folder.path, Watched(task.name, task.tags, state is State.RUNNING), known)

    def _failure(self) -> str | None:
        """Why the store does not answer; None if only one run is to blame."""
        try:
            self.store.ask()
        except Exception as error:  # noqa: BLE001 - whatever a store raises, it cannot be used
            return first_line(error)
        return None
