"""Which tuned values do the arms of a plan get, where do they come from, and were they found for these very arms?

Lines for `check` and `plan`, with those of optimal tokens per parameter, which all arms of a size share. The values
themselves are in the rows of a plan (`plan`), how they were found in `tuning`.
"""

from collections.abc import Iterable

from k3ablate.answers import number
from k3ablate.budgets import ComputeOptimal, flops_per_ratio
from k3ablate.experiment import Experiment, distinct_arms, setting_digest
from k3ablate.plan import PlanRow, points


def lines(experiment: Experiment, rows: Iterable[PlanRow]) -> list[str]:
    """One per size with an optimal budget, one per arm and size, then what is doubtful; none where nothing is taken."""
    tuned = experiment.tuned
    if tuned is None:
        return _ladder(experiment)
    found: dict[tuple[str, str], str] = {}
    for row in rows:
        values = ", ".join(
            f"{path} {number(value) if isinstance(value, float) else value} ({row.tuned.origins[path]})"
            for path, value in row.tuned.values.items()
        )
        found.setdefault((row.label.arm, row.label.size), f"{row.label.arm} {row.label.size}: {values}")
    shared = "; every arm gets the baseline's" if tuned.arms == "baseline" else ""
    return [*_ladder(experiment), f"values tuned by {tuned.experiment}{shared}:", *found.values(), *_doubts(experiment)]


def _ladder(experiment: Experiment) -> list[str]:
    """The tokens per parameter of each size whose budget is compute-optimal, and where they come from."""
    found: list[str] = []
    for point in points(experiment):
        if isinstance(point.budget, ComputeOptimal):
            law, ratio = point.budget.law, point.budget.ratio_of(point.counts)
            beyond = law.beyond(ratio * flops_per_ratio(point.counts))
            warning = "" if beyond == 1 else f"; WARNING: {beyond:.3g} times beyond the budgets that were swept"
            found.append(
                f"{point.name}: {number(ratio)} tokens per parameter (law of {point.budget.arm} in the sweep "
                f"{point.budget.experiment}, through {', '.join(law.sizes)} FLOPs{warning})"
            )
    baseline = setting_digest(experiment, distinct_arms(experiment)[0], ())
    changed = {
        one.experiment for one in experiment.budgets if isinstance(one, ComputeOptimal) and one.setting != baseline
    }
    return found + [f"WARNING: the baseline is not the one that was swept in {name}" for name in sorted(changed)]


def _doubts(experiment: Experiment) -> list[str]:
    """Arms that are not what was tuned under their name, and arms that had more trials than others."""
    tuned = experiment.tuned
    assert tuned is not None, "asked about tuned values only"
    known = [arm for arm in distinct_arms(experiment) if arm.name in tuned.tuned]
    changed = [
        arm.name for arm in known
        if setting_digest(experiment, arm, tuned.tuned[arm.name].tuning.space) != tuned.tuned[arm.name].setting
    ]  # fmt: skip
    counts = {arm.name: tuned.tuned[arm.name].num_trials for arm in known}
    found = []
    if changed:
        found.append(
            f"WARNING: {', '.join(changed)}: the configuration is not the one that was tuned under this name; "
            f"`k3ablate tune {tuned.experiment}` tunes it again"
        )
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{arm} {count}" for arm, count in counts.items())
        found.append(f"WARNING: unequal tuning: trials by arm: {told}")
    return found
