"""How do the studies of an experiment come to their trials, whoever is interrupted and however many take part?

`conduct` chooses values for open trials, has them run, tells what came of them, and goes on until every study has its
number. Any number of processes may do this with one folder at the same time. Choosing and telling happen while the
folder is held, so that nobody chooses one too many. An open trial belongs to nobody: every process hands all of them to
its runner, which trains a run that nobody holds and waits for one that somebody does. A killed process therefore loses
nothing, its trial is run again with the same values, and a slow one is left alone.

What is tried first is in `space`, the file in `store`, what a run is in `trials`, and what the trials tell in
`optimum`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k3ablate.jobs.leases import claimed
from k3ablate.records import PUBLISHED_SET, SETTLED, RunRecord, Status
from k3ablate.search import TPE, Range, Scalar, Tuning
from k3ablate.tuning.space import Values, band, point

if TYPE_CHECKING:
    from k3ablate.tuning.store import Journal, Trial

JOURNAL_FILE = "journal.log"
LOOK_SECONDS = 0.05
EXTENSIONS = "extensions"  # remembered beside a study
FEWEST_ADDED = 2


@dataclass(frozen=True)
class Study:
    """Tuning of one arm at one size. `name` is its identity in the journal."""

    name: str
    arm: str
    size: str
    tuning: Tuning


@dataclass(frozen=True)
class Asked:
    """An open trial that is to be run."""

    study: Study
    number: int
    values: Values


@dataclass(frozen=True)
class Extension:
    """A space that was widened, and the values of the trials that were added for it."""

    space: Mapping[str, Range]
    values: Sequence[Values]


@dataclass(frozen=True)
class Conducted:
    """The trials of every study by its name, and the runs that could not be finished."""

    trials: "Mapping[str, Sequence[Trial]]"
    spaces: Mapping[str, Mapping[str, Range]]  # with what was widened
    unfinished: Sequence[tuple[Asked, RunRecord]]


Runner = Callable[[Sequence[Asked]], Sequence[RunRecord]]  # runs what has no record yet; a record for each, in order


def conduct(folder: Path, studies: Sequence[Study], runner: Runner) -> Conducted:
    """Bring every study to its number of trials. A run that fails, or has no time left, stops its own study only.

    KeyboardInterrupt, from the runner, leaves a state that the next call goes on from.
    """
    unfinished: dict[str, list[tuple[Asked, RunRecord]]] = {}
    while asked := _ask(folder, [study for study in studies if study.name not in unfinished]):
        records = runner(asked)
        for one, record in zip(asked, records, strict=True):
            if record.status not in SETTLED:
                unfinished.setdefault(one.study.name, []).append((one, record))
        _tell(folder, asked, records)
    trials, spaces = look(folder, studies)
    return Conducted(trials, spaces, [one for found in unfinished.values() for one in found])


def look(folder: Path, studies: Sequence[Study]) -> "tuple[dict[str, list[Trial]], dict[str, Mapping[str, Range]]]":
    """The trials and the space of every study as they stand."""
    with held(folder) as journal:
        trials = {study.name: journal.trials(study.name) for study in studies}
        spaces = {study.name: _space(study, _extensions(journal, study)) for study in studies}
    return trials, spaces


def extend(
    folder: Path, studies: Sequence[Study], before: Mapping[str, Range], after: Mapping[str, Range], num_trials: int,
    check: Callable[[Study, Values], object],
) -> None:  # fmt: skip
    """Widen the space, each range on one side at most, and add trials over the added bands. All `studies` get the same.

    `check` raises for values that an arm does not take: nothing is written then. A space that is not `before` any more
    has been widened by another process and stays as it is.
    """
    with held(folder) as journal:
        known = {study.name: _extensions(journal, study) for study in studies}
        if any(_space(study, known[study.name]) != before for study in studies):
            return
        added = _added(studies[0], before, after, max(FEWEST_ADDED, num_trials))
        for study in studies:
            for values in added.values:
                check(study, values)
        for study in studies:
            journal.remember(study.name, EXTENSIONS, [_written(one) for one in [*known[study.name], added]])


@contextmanager
def held(folder: Path) -> "Iterator[Journal]":
    """The journal in `folder`, while no other process has it."""
    from k3ablate.tuning.store import Journal

    folder.mkdir(parents=True, exist_ok=True)
    while True:
        with claimed(folder) as lease:
            if lease is not None:
                yield Journal(folder / JOURNAL_FILE)
                return
        time.sleep(LOOK_SECONDS)


def _ask(folder: Path, studies: Sequence[Study]) -> list[Asked]:
    """Choose what can be chosen by now; all open trials, those of other processes too."""
    from k3ablate.tuning.store import Ended

    found = []
    with held(folder) as journal:
        for study in studies:
            _choose(journal, study)
            found += [
                Asked(study, trial.number, trial.values)
                for trial in journal.trials(study.name)
                if trial.ended is Ended.OPEN
            ]
    return found


def _choose(journal: "Journal", study: Study) -> None:
    """Add the trials whose values do not depend on open ones."""
    from k3ablate.tuning.store import Ended

    tuning = study.tuning
    added = [(one.space, values) for one in _extensions(journal, study) for values in one.values]
    own, others = _parted(journal.trials(study.name), [values for _, values in added])
    for number in range(len(own), tuning.trials):
        values = point(tuning, number)
        if values is not None:
            journal.add(study.name, tuning.space, values)
            continue
        assert isinstance(tuning.sampler, TPE), "every other sampler knows all of its points"
        start = number - (number - tuning.sampler.startup) % tuning.sampler.parallel
        own, others = _parted(journal.trials(study.name), [values for _, values in added])
        if any(trial.ended is Ended.OPEN for trial in [*own[:start], *others]):
            return
        journal.propose(study.name, tuning.space, tuning.sampler, number)
    known = [trial.values for trial in others]
    for space, added_values in added:
        if added_values not in known:
            journal.add(study.name, space, added_values)
            known.append(added_values)


def _parted(trials: "Sequence[Trial]", added: Sequence[Values]) -> "tuple[list[Trial], list[Trial]]":
    """The trials of the space as it was written, and those of a band: either may have come first."""
    own = [trial for trial in trials if trial.values not in added]
    return own, [trial for trial in trials if trial.values in added]


def _tell(folder: Path, asked: Sequence[Asked], records: Sequence[RunRecord]) -> None:
    with held(folder) as journal:
        for one, record in zip(asked, records, strict=True):
            if record.status is Status.FINISHED:
                journal.finish(one.study.name, one.number, record.evaluations[PUBLISHED_SET].loss)
            elif record.status is Status.DIVERGED:
                journal.diverge(one.study.name, one.number)


def _extensions(journal: "Journal", study: Study) -> list[Extension]:
    kept = journal.remembered(study.name, EXTENSIONS) or []
    return [
        Extension({path: Range.model_validate(one) for path, one in tree["space"].items()}, tree["values"])
        for tree in kept
    ]


def _written(one: Extension) -> dict[str, object]:
    space = {path: found.model_dump(mode="json") for path, found in one.space.items()}
    return {"space": space, "values": [dict(values) for values in one.values]}


def _space(study: Study, extensions: Sequence[Extension]) -> Mapping[str, Range]:
    return extensions[-1].space if extensions else study.tuning.space


def _added(study: Study, before: Mapping[str, Range], after: Mapping[str, Range], num_trials: int) -> Extension:
    """Trials spread evenly over the band of each path that is widened, and anywhere in the others."""
    wider = [path for path, one in after.items() if one != before[path]]
    scattered = Tuning(sizes=(study.size,), space=dict(after), trials=num_trials, sampler=TPE(startup=num_trials))
    values = [dict(point(scattered, number) or {}) for number in range(num_trials)]
    for path in wider:
        for one, value in zip(values, band(before[path], after[path], num_trials), strict=True):
            one[path] = value
    distinct = [one for index, one in enumerate(values) if one not in values[:index]]
    beyond = [one for one in distinct if any(not _is_within(before[path], one[path]) for path in wider)]
    return Extension(after, beyond)


def _is_within(one: Range, value: Scalar) -> bool:
    low, high = one.ends
    return low <= float(value) <= high
