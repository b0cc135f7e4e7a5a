"""Which tuned values do the arms of a plan get, where do they come from, and were they found for these very arms?

Lines for `check` and `plan`. The values themselves are in the rows of a plan (`plan`), how they were found in `tuning`.
"""

from collections.abc import Iterable

from k3ablate.answers import number
from k3ablate.experiment import Experiment, distinct_arms, setting_digest
from k3ablate.plan import PlanRow


def lines(experiment: Experiment, rows: Iterable[PlanRow]) -> list[str]:
    """One per arm and size, then what is doubtful; none where nothing tuned is taken."""
    tuned = experiment.tuned
    if tuned is None:
        return []
    found: dict[tuple[str, str], str] = {}
    for row in rows:
        values = ", ".join(
            f"{path} {number(value) if isinstance(value, float) else value} ({row.tuned.origins[path]})"
            for path, value in row.tuned.values.items()
        )
        found.setdefault((row.label.arm, row.label.size), f"{row.label.arm} {row.label.size}: {values}")
    shared = "; every arm gets the baseline's" if tuned.arms == "baseline" else ""
    return [f"values tuned by {tuned.experiment}{shared}:", *found.values(), *_doubts(experiment)]


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
