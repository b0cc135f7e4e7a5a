"""How should compute be shared between parameters and tokens? The verb `isoflop`, over runs that have ended.

An experiment with budgets of kind flops and several sizes is a sweep at equal compute once `run` has trained it; here
it is read, per arm and budget. The ladder that follows goes into the main experiment as `budgets` of kind
tokens_per_parameter. Nothing here trains; the parabola is in `tuning.isoflop`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3ablate.answers import number, table
from k3ablate.config import InputError
from k3ablate.experiment import Experiment, Flops, load
from k3ablate.jobs import folders
from k3ablate.plan import points
from k3ablate.recipes import experiment_path
from k3ablate.records import PUBLISHED_SET, Status
from k3ablate.tuned import Law
from k3ablate.tuning.isoflop import BestRatio, Spent, best_ratio, ratio_law
from k3ablate.verbs import digests, plan_from_known_corpora

LARGEST_EXCESS = 0.05  # of a run's FLOPs over its budget, which whole optimizer steps round up


@dataclass(frozen=True)
class IsoFlop:
    """`isoflop`: the best tokens per parameter by arm and budget, and what a ladder should take."""

    experiment: str
    arms: Mapping[str, Sequence[BestRatio]]
    laws: Mapping[str, Law]  # of tokens per parameter over FLOPs
    ladder: Mapping[str, Mapping[str, float]]  # arm -> size -> tokens per parameter
    notes: Sequence[str]

    def text(self) -> str:
        """A row per arm and budget, then laws, the ladder and the notes."""
        headers = ["arm", "FLOPs", "sizes", "tokens per parameter", "95 percent", "loss", "note"]
        rows = [self._cells(arm, one) for arm, found in self.arms.items() for one in found]
        lines = [table(rows, headers), ""]
        for arm, law in self.laws.items():
            interval = "" if law.exponent_low is None else f" ({law.exponent_low:.3g} to {law.exponent_high:.3g})"
            lines.append(f"{arm}: tokens per parameter go as FLOPs^{law.exponent:.3g}{interval}")
        for arm, sizes in self.ladder.items():
            lines.append(f"{arm}: ladder: " + ", ".join(f"{size} {ratio:.3g}" for size, ratio in sizes.items()))
        return "\n".join([*lines, *(f"- {note}" for note in self.notes)])

    def _cells(self, arm: str, one: BestRatio) -> list[str]:
        best = one.optimum
        interval = "" if best.interval is None else f"{best.interval.low:.3g} to {best.interval.high:.3g}"
        note = "" if one.is_claimed else f"NOT CLAIMED, best run's: {best.note}"
        return [arm, number(one.flops), str(one.num_sizes), f"{best.value:.3g}", interval, f"{best.loss:.4f}", note]


def isoflop(name: str, root: Path) -> IsoFlop:
    """Read the sweep of an experiment; InputError where its budgets are not FLOPs, or no run has finished."""
    experiment = load(experiment_path(name))
    runs, far = _finished(experiment, root)
    if not runs:
        raise InputError(f"{experiment.name}: no run has finished; `k3ablate run {name}` trains them")
    found: dict[str, list[BestRatio]] = {}
    for (arm, flops), spent in sorted(runs.items(), key=lambda item: item[0][1]):
        found.setdefault(arm, []).append(best_ratio(flops, spent))
    laws = {arm: law for arm, ratios in found.items() if (law := ratio_law(ratios)) is not None}
    return IsoFlop(
        experiment=experiment.name,
        arms=found,
        laws=laws,
        ladder={arm: _ladder(law, found[arm], runs, arm) for arm, law in laws.items()},
        notes=[f"{run}: spent {factor:.3g} times its budget, by whole steps" for run, factor in far.items()],
    )


def _finished(experiment: Experiment, root: Path) -> tuple[dict[tuple[str, float], list[Spent]], dict[str, float]]:
    """Finished runs by arm and budget, and those that spent more than their budget, with the factor."""
    ladder = {point.name: point for point in points(experiment)}
    rows = plan_from_known_corpora(experiment, root).rows
    records = folders.records(root, digests(rows))
    runs: dict[tuple[str, float], list[Spent]] = {}
    far: dict[str, float] = {}
    for row in rows:
        record, point = records.get(row.label.digest), ladder[row.label.size]
        if not isinstance(point.budget, Flops):
            raise InputError(
                f"{experiment.name}: not at equal compute; write budgets of kind flops, e.g. "
                "[{kind: flops, flops: 1.0e+12}]"
            )
        if record is None or record.status is not Status.FINISHED or row.label.arm == experiment.names.replicate:
            continue
        loss = record.evaluations[PUBLISHED_SET].loss
        spent = Spent(point.size.name, record.active_params, record.tokens, loss)
        runs.setdefault((row.label.arm, point.budget.flops), []).append(spent)
        if abs(record.flops / point.budget.flops - 1) > LARGEST_EXCESS:
            far[f"{row.label.arm} {row.label.size}"] = record.flops / point.budget.flops
    return runs, far


def _ladder(
    law: Law, found: Sequence[BestRatio], runs: Mapping[tuple[str, float], Sequence[Spent]], arm: str
) -> dict[str, float]:
    """Tokens per parameter at which each size of the sweep is compute-optimal, where that lies among the budgets.

    A size costs about k FLOPs per token, so that ratio r takes k r N FLOPs: the law at those FLOPs must give r back.
    """
    ladder = {}
    for size in dict.fromkeys(run.size for one in found for run in runs[arm, one.flops]):
        costs = [(one.flops / run.tokens, run) for one in found for run in runs[arm, one.flops] if run.size == size]
        per_token, run = costs[0]
        # ln r = ln coefficient + exponent (ln(k N) + ln r)
        ratio = (law.coefficient * (per_token * run.active_params) ** law.exponent) ** (1 / (1 - law.exponent))
        if law.beyond(per_token * run.active_params * ratio) == 1:
            ladder[size] = ratio
    return ladder
