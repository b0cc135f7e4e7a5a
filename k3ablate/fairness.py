"""Is a gain the arm's, or was the arm only better tuned? The verb `fairness`: each multiplier read twice, side by side.

Once with the baseline's tuned values in every arm, once with every arm at its own optimum. The baseline's runs are the
same both times. Trains what is missing of both grids, like `run`. The multipliers are those of `report`; finding the
values is `tune`'s work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from pandas import DataFrame

from k3ablate import verbs
from k3ablate.answers import Problem
from k3ablate.answers import table as text_table
from k3ablate.config import InputError
from k3ablate.experiment import Experiment, load
from k3ablate.fits.analysis import Analysis, analyse
from k3ablate.jobs import local
from k3ablate.jobs.folders import SETTLED_STATES, results_folder, states
from k3ablate.jobs.progress import Reporter
from k3ablate.jobs.worker import Trainer, train_run
from k3ablate.kernels.warm_up import warm_up
from k3ablate.plan import PlanRow
from k3ablate.recipes import experiment_path
from k3ablate.records import FLOPS_CONVENTION, RunRecord, table
from k3ablate.report.style import factor
from k3ablate.storage import require_writable, write_atomic
from k3ablate.tuned import TunedArm

Settings = Literal["baseline", "own"]
SEED = 0  # of the bootstrap: the same records give the same intervals
FILE_STEM = "fairness"


@dataclass(frozen=True)
class Reading:
    """An arm with one kind of settings: multiplier with its 95 percent interval, and loss at the largest size."""

    multiplier: float | None
    low: float | None
    high: float | None
    loss: float | None
    no_multiplier: str = ""

    def text(self) -> str:
        """'1.16 (1.05 to 1.30)', or why there is none."""
        if self.multiplier is None or self.low is None or self.high is None:
            return self.no_multiplier or "-"
        return f"{factor(self.multiplier)} ({factor(self.low)} to {factor(self.high)})"


@dataclass(frozen=True)
class FairArm:
    """One arm both ways, and how it was tuned."""

    arm: str
    num_trials: int
    at_edge: Sequence[str]  # size and path of optima that are at the edge of their range
    outermost: Sequence[str]  # size, path and value of optima that are the largest or smallest number of their choices
    no_claim: str  # why the arm's multiplier is not one, empty where it is
    shared: Reading
    own: Reading

    def text(self) -> str:
        """The multiplier at its own optimum, or that it claims nothing, and why."""
        return f"no claim: {self.no_claim}; read: {self.own.text()}" if self.no_claim else self.own.text()


@dataclass(frozen=True)
class Fairness:
    """`fairness`: every arm with the baseline's settings shared, and at its own optimum."""

    experiment: str
    tuned: str
    baseline: str
    flops_convention: str
    arms: Sequence[FairArm]
    problems: Sequence[Problem] = ()  # runs without a loss
    files: Sequence[str] = ()

    def text(self) -> str:
        """The table, and what it must not be read as."""
        headers = ["arm", "trials", f"{self.baseline}'s settings shared", "each at its own optimum", "loss", "own loss"]
        rows = [
            [one.arm, one.num_trials, one.shared.text(), one.text(), _loss(one.shared.loss), _loss(one.own.loss)]
            for one in self.arms
        ]
        return "\n".join([text_table(rows, headers), "", *(f"- {note}" for note in self.notes()), "", *self.files])

    def notes(self) -> list[str]:
        """What was equal, and what is doubtful."""
        trials = {one.num_trials for one in self.arms}
        notes = [
            f"values: tuned by {self.tuned}; multipliers against {self.baseline} in the same column, FLOPs: "
            f"{self.flops_convention}; losses at the largest size",
            f"trials: {trials.pop()} for every arm"
            if len(trials) == 1
            else "trials: NOT EQUAL, so neither is the chance",
        ]
        if edges := [f"{one.arm} ({', '.join(one.at_edge)})" for one in self.arms if one.at_edge]:
            notes.append(
                f"at the edge of their range, no claim: {'; '.join(edges)}; `k3ablate tune {self.tuned} --extend` "
                "widens it"
            )
        if outermost := [f"{one.arm} ({', '.join(one.outermost)})" for one in self.arms if one.outermost]:
            notes.append(
                f"the largest or smallest of their choices, so that a further one may be better: "
                f"{'; '.join(outermost)}; write it among the choices, if the path allows it"
            )
        return notes + [f"{problem.name} {problem.status}: {problem.reason}" for problem in self.problems]


def fairness(
    name: str, root: Path, num_workers: int, reporter: Reporter, form: str | None = None, trainer: Trainer = train_run
) -> Fairness:
    """Train what is missing with either kind of settings, and read every multiplier from both.

    InputError where the experiment takes no tuned values. `form` as in `report`. KeyboardInterrupt leaves a state that
    the next call goes on from.
    """
    experiment = load(experiment_path(name))
    if experiment.tuned is None:
        raise InputError(
            f"{experiment.name}: takes no tuned values; write tuned: X, for an experiment X that `k3ablate tune X` "
            "has tuned"
        )
    grids = {settings: _rows(experiment, settings, root, reporter) for settings in ("baseline", "own")}
    records = _run([row for rows in grids.values() for row in rows], experiment, root, num_workers, reporter, trainer)
    read = {settings: _analysis(experiment, rows, records, form) for settings, rows in grids.items()}
    shared, own = (_readings(read[settings]) for settings in ("baseline", "own"))
    found = Fairness(
        experiment=experiment.name,
        tuned=experiment.tuned.experiment,
        baseline=experiment.names.baseline,
        flops_convention=FLOPS_CONVENTION,
        arms=[_arm(arm, experiment, shared[arm], own[arm]) for arm in experiment.tuned.tuned if arm in own],
        problems=verbs.problems([row for rows in grids.values() for row in rows], records),
    )
    return _written(found, results_folder(root, experiment.name))


def _rows(experiment: Experiment, settings: Settings, root: Path, reporter: Reporter) -> tuple[PlanRow, ...]:
    assert experiment.tuned is not None, "has been checked"
    tuned = experiment.tuned.model_copy(update={"arms": settings})
    return verbs.plan_from_built_corpora(experiment.model_copy(update={"tuned": tuned}), root, reporter.say).rows


def _run(
    rows: Sequence[PlanRow], experiment: Experiment, root: Path, num_workers: int, reporter: Reporter, trainer: Trainer
) -> Mapping[str, RunRecord]:
    """Records of both grids; runs that belong to both are trained once."""
    require_writable(root)
    if not SETTLED_STATES.issuperset(states(root, verbs.digests(rows)).values()):
        warm_up()
        verbs.prepare_tracking(root, experiment, rows)
    return local.run_grid(rows, root, experiment.execution, num_workers, reporter, trainer)


def _analysis(
    experiment: Experiment, rows: Sequence[PlanRow], records: Mapping[str, RunRecord], form: str | None
) -> Analysis:
    frame = table((row.label for row in rows), records)
    return analyse(frame, experiment.names.baseline, form, np.random.default_rng(SEED))


def _readings(analysis: Analysis) -> dict[str, Reading]:
    return {
        arm.arm: Reading(
            multiplier=arm.multiplier.value if arm.multiplier else None,
            low=arm.multiplier.interval.low if arm.multiplier else None,
            high=arm.multiplier.interval.high if arm.multiplier else None,
            loss=arm.largest.loss if arm.largest else None,
            no_multiplier=arm.no_multiplier,
        )
        for arm in analysis.arms
    }


def _arm(name: str, experiment: Experiment, shared: Reading, own: Reading) -> FairArm:
    assert experiment.tuned is not None, "has been checked"
    tuned, baseline = experiment.tuned.tuned[name], experiment.tuned.tuned[experiment.names.baseline]
    at_edge, outermost = _at_edge(tuned)
    reasons = _unequal(tuned, baseline)
    if at_edge:
        reasons.append("optimum at the edge of its range")
    if _at_edge(baseline)[0] and tuned is not baseline:
        reasons.append(f"{baseline.arm}'s optimum at the edge of its range")
    return FairArm(name, tuned.num_trials, at_edge, outermost, ", ".join(reasons), shared, own)


def _at_edge(arm: TunedArm) -> tuple[list[str], list[str]]:
    """Size and path of optima at the edge of a range, and of those that are the outermost of their choices."""
    found = [
        (size, path, size.space[path].choices is not None, f"{name} {path}")
        for name, size in arm.sizes.items() for path, one in size.paths.items() if one.is_at_edge
    ]  # fmt: skip
    return (
        [where for _, _, is_choice, where in found if not is_choice],
        [f"{where} {size.paths[path].value}" for size, path, is_choice, where in found if is_choice],
    )


def _unequal(arm: TunedArm, baseline: TunedArm) -> list[str]:
    """Sizes at which an arm had more chances than the baseline, or fewer."""
    sizes = dict.fromkeys([*arm.sizes, *baseline.sizes])
    counts = [(size, *(sum(one.sizes[size].trials.values()) if size in one.sizes else 0 for one in (arm, baseline)))
              for size in sizes]  # fmt: skip
    told = [f"{size} {own} against {other}" for size, own, other in counts if own != other]
    return [f"unequal trials ({', '.join(told)})"] if told else []


def _written(found: Fairness, folder: Path) -> Fairness:
    """The table and its numbers among the results."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{FILE_STEM}.md", folder / f"{FILE_STEM}.csv"]
    write_atomic(files[0], found.text().rstrip() + "\n")
    rows = [
        {"arm": one.arm, "trials": one.num_trials, "at_edge": "; ".join(one.at_edge),
         "outermost": "; ".join(one.outermost), "no_claim": one.no_claim}
        | {f"{kind}_{key}": getattr(reading, key) for kind, reading in (("shared", one.shared), ("own", one.own))
           for key in ("multiplier", "low", "high", "loss")}
        for one in found.arms
    ]  # fmt: skip
    write_atomic(files[1], DataFrame(rows).to_csv(index=False))
    return replace(found, files=list(map(str, files)))


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
