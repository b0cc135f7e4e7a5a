"""A grid of runs that cost nothing, on a real Slurm, and how to wait for what becomes of it."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from k3ablate.jobs.attempts import Attempt, attempts
from k3ablate.jobs.cluster import ClusterRecipe
from k3ablate.jobs.controller import silent
from k3ablate.jobs.dispatch import Order, Outcome, preview, submit
from k3ablate.jobs.folders import RunFolder, State
from k3ablate.training.spec import Execution

HERE = Path(__file__).parent
PATIENCE_SECONDS = 90.0


class FakeGrid:
    """Rows of `fake_runs` in the folder `root`, submitted to `cluster`."""

    def __init__(self, cluster: Any, fake_runs: ModuleType, root: Path) -> None:
        self.cluster = cluster
        self.fake_runs = fake_runs
        self.root = root
        self.said: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        """What a task needs to find the stand-ins."""
        folders = (HERE, HERE.parent / "jobs", HERE.parent.parent)
        return {"PYTHONPATH": os.pathsep.join(str(folder) for folder in folders)}

    def order(self, trainer: str, **recipe: Any) -> Order:
        """Tasks that run `fake_work.py TRAINER` as the recipe says."""
        asked = {"minutes": 5, "signal_seconds": 20, "environment": self.environment, **recipe}
        command = [sys.executable, str(HERE / "fake_work.py"), trainer]
        return Order("fake", self.root, ClusterRecipe(**asked), Execution(), command)

    def submit(self, num_runs: int, trainer: str, **recipe: Any) -> Outcome:
        """Seeds 0 to num_runs - 1."""
        return submit(self.rows(num_runs), self.order(trainer, **recipe), self.said.append)

    def preview(self, num_runs: int, trainer: str, **recipe: Any) -> Outcome:
        """What `submit` would do."""
        return preview(self.rows(num_runs), self.order(trainer, **recipe), silent)

    def rows(self, num_runs: int) -> list[Any]:
        """One per seed, the later ones longer."""
        return [self.fake_runs.make_row(seed, tokens=1024 * (1 + seed)) for seed in range(num_runs)]

    def folders(self, num_runs: int) -> list[RunFolder]:
        """By seed."""
        return [RunFolder(self.root / row.label.digest) for row in self.rows(num_runs)]

    def states(self, num_runs: int) -> list[State]:
        """By seed."""
        return [folder.state() for folder in self.folders(num_runs)]

    def num_attempts(self, num_runs: int) -> list[int]:
        """How often a trainer met each run."""
        return [self.fake_runs.num_attempts(folder.path) for folder in self.folders(num_runs)]

    def attempts(self, seed: int) -> Sequence[Attempt]:
        """Of one run, those that settled nothing."""
        return attempts(self.folders(seed + 1)[seed].path)

    def wait_for_states(self, *states: State) -> None:
        """Until the runs have these states, by seed."""
        self.wait(lambda: self.states(len(states)) == list(states))

    def wait_for_empty_queue(self) -> None:
        """Until no task waits or runs."""
        self.wait(lambda: not self.cluster.queue())

    def wait(self, condition: Callable[[], object]) -> None:
        """Until `condition` holds; a failure shows everything there is to see."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.everything()
            time.sleep(0.1)

    def logs(self) -> str:
        """What all tasks have printed."""
        return "\n".join(f"--- {path}\n{path.read_text()}" for path in sorted(self.root.glob("jobs/*/*/logs/*")))

    def everything(self) -> str:
        """For a failure: queue, logs, runs."""
        runs = [path.read_text() for path in sorted(self.root.glob("*/log.txt"))]
        return "\n".join(["it did not happen in time", *self.cluster.queue(), self.logs(), *runs, self.cluster.logs()])
