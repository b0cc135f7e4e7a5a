"""Which trials were handed to a cluster? Read from what was submitted, so that asking changes nothing.

For `status` and `cancel`, which take them like the rows of a plan. Trials of this machine, and those that no study has
chosen yet, are not among them; what a study makes of its trials is in `study`.
"""

from dataclasses import dataclass
from pathlib import Path

from k3ablate.config import InputError
from k3ablate.experiment import load_untuned
from k3ablate.jobs.packs import PackedRun
from k3ablate.jobs.submissions import submissions
from k3ablate.recipes import experiment_path
from k3ablate.records import Label
from k3ablate.tuning.trials import SEPARATE


@dataclass(frozen=True)
class TrialLabel(Label):
    """That of a trial, whose arm is the one that is tuned."""

    called: str = ""

    @property
    def name(self) -> str:
        """With the trial's number."""
        return self.called


@dataclass(frozen=True)
class SubmittedTrial:
    """One trial that Slurm has, or had."""

    label: TrialLabel
    tokens: int
    flops: float  # training FLOPs


def submitted_trials(name: str, root: Path) -> tuple[str, list[SubmittedTrial]]:
    """What the trials of an experiment are submitted as, and each of them, first to last.

    InputError where none was submitted from `root`.
    """
    apart = f"{load_untuned(experiment_path(name)).name}{SEPARATE}"
    ours = [submission for submission in submissions(root) if submission.experiment == apart]
    found = {run.digest: run for submission in ours for pack in submission.packs() for run in pack}
    if not found:
        raise InputError(
            f"{name}: none of its trials was submitted from {root}; `k3ablate tune {name} --cluster RECIPE` does that"
        )
    return apart, [_trial(apart, run) for run in found.values()]


def _trial(experiment: str, run: PackedRun) -> SubmittedTrial:
    arm = run.tags["arm"].rpartition("/")[0]
    label = TrialLabel(experiment, arm, run.tags["size"], int(run.tags["seed"]), run.digest, {}, 0.0, called=run.name)
    return SubmittedTrial(label, run.tokens, run.flops)
