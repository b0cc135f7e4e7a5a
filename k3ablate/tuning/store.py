"""Where are the trials of an experiment's studies kept, and what does TPE propose next? The only import of optuna.

One journal file holds every study: a file that is only added to, which suits network disks. Whoever opens it holds the
folder's lease (`study.held`), so that no two processes write at once. A trial is RUNNING from the moment its values are
chosen until its run has a record, whoever trains it; whether somebody does is told by the lease of the run, not here.

A diverged trial is told as one that was pruned before it had a value: TPE ranks it below every trial with a loss and
stays away from it, and no loss is made up for it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import TrialState, create_trial

from k3ablate.config import Tree
from k3ablate.search import TPE, Range, Scalar
from k3ablate.storage import naming

PREFIX = "k3ablate:"  # in front of what is remembered beside a study


class Ended(StrEnum):
    """How far a trial is. A loss exists only when it finished."""

    OPEN = "open"
    FINISHED = "finished"
    DIVERGED = "diverged"


STATES = {
    TrialState.RUNNING: Ended.OPEN,
    TrialState.COMPLETE: Ended.FINISHED,
    TrialState.PRUNED: Ended.DIVERGED,
}


@dataclass(frozen=True)
class Trial:
    """One trial: its number in the study, from 0, the values by their paths, and what came of it."""

    number: int
    values: Mapping[str, Scalar]
    ended: Ended
    loss: float | None


class Journal:
    """The studies in one file. To be opened, used and dropped while the folder is held."""

    def __init__(self, path: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        _mend(path)
        lock = JournalFileSymlinkLock(str(path))  # a link is atomic on network disks of every version
        with naming(path):
            self._storage = JournalStorage(JournalFileBackend(str(path), lock))

    def trials(self, study: str) -> list[Trial]:
        """Every trial of `study`, by number."""
        found = self._study(study).get_trials(deepcopy=False)
        return [Trial(trial.number, dict(trial.params), STATES[trial.state], trial.value) for trial in found]

    def add(self, study: str, space: Mapping[str, Range], values: Mapping[str, Scalar]) -> None:
        """An open trial with these values."""
        distributions = {path: _distribution(one) for path, one in space.items()}
        trial = create_trial(state=TrialState.RUNNING, params=dict(values), distributions=distributions)
        self._study(study).add_trial(trial)

    def propose(self, study: str, space: Mapping[str, Range], sampler: TPE, number: int) -> None:
        """An open trial with values that TPE proposes, given its number: what it draws does not depend on who asks."""
        seed = int(np.random.SeedSequence([sampler.seed, number]).generate_state(1)[0])
        tpe = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, multivariate=True, constant_liar=True)
        self._study(study, tpe).ask({path: _distribution(one) for path, one in space.items()})

    def finish(self, study: str, number: int, loss: float) -> None:
        """Tell the loss of a trial; one that has ended stays as it is."""
        self._study(study).tell(number, loss, skip_if_finished=True)

    def diverge(self, study: str, number: int) -> None:
        """Tell that a trial has no loss; one that has ended stays as it is."""
        self._study(study).tell(number, state=TrialState.PRUNED, skip_if_finished=True)

    def remembered(self, study: str, key: str) -> Tree:
        """What `remember` kept, or None."""
        found = self._study(study).user_attrs.get(f"{PREFIX}{key}")
        return None if found is None else json.loads(found)

    def remember(self, study: str, key: str, content: Tree) -> None:
        """Keep `content`, which JSON knows, beside the study."""
        self._study(study).set_user_attr(f"{PREFIX}{key}", json.dumps(content))

    def _study(self, name: str, sampler: optuna.samplers.BaseSampler | None = None) -> optuna.Study:
        return optuna.create_study(storage=self._storage, study_name=name, load_if_exists=True, sampler=sampler)


def _distribution(one: Range) -> BaseDistribution:
    if one.choices is not None:
        return CategoricalDistribution(one.choices)
    low, high = one.ends
    if one.whole:
        return IntDistribution(int(low), int(high), log=one.scale == "log")
    return FloatDistribution(low, high, log=one.scale == "log")


def _mend(path: Path) -> None:
    """Cut off a last line that a crash left without its end: the next one would be lost with it."""
    try:
        with path.open("rb+") as file:
            content = file.read()
            if content and not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)
                os.fsync(file.fileno())
    except FileNotFoundError:
        return
