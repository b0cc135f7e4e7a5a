"""How should compute be shared between parameters and tokens? The verb `isoflop`, over runs that have ended.

An experiment with budgets of kind flops and several sizes is a sweep at equal compute once `run` has trained it; here
it is read, per arm and budget. The ladder that follows goes into the main experiment as `budgets` of kind
tokens_per_parameter. Nothing here trains; the parabola is in `tuning.isoflop`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3ablate.answers import number, table
from k3ablate.budgets import Flops, flops_per_ratio
from k3ablate.config import InputError, write_yaml
from k3ablate.experiment import Experiment, distinct_arms, load, setting_digest
from k3ablate.jobs import folders
from k3ablate.model.counting import Counts
from k3ablate.plan import PlanRow, points
from k3ablate.recipes import experiment_path
from k3ablate.records import PUBLISHED_SET, Status
from k3ablate.tuned import Ladder, Law, Rung
from k3ablate.tuning.costs import LARGEST_EXCESS
from k3ablate.tuning.isoflop import BestRatio, Spent, best_ratio, ratio_law, rung
from k3ablate.verbs import digests, plan_from_known_corpora

LADDERS = Path("recipes") / "ladders"


@dataclass(frozen=True)
class IsoFlop:
    """`isoflop`: the best tokens per parameter by arm and budget, and what a ladder should take."""

    experiment: str
    arms: Mapping[str, Sequence[BestRatio]]
    laws: Mapping[str, Law]  # of tokens per parameter over FLOPs
    ladder: Mapping[str, Mapping[str, Rung]]  # arm -> size
    notes: Sequence[str]
    files: Sequence[str] = ()

    def text(self) -> str:
        """A row per arm and budget, then laws, the ladder and the notes."""
        headers = ["arm", "FLOPs", "sizes", "tokens per parameter", "95 percent", "loss", "note"]
        rows = [self._cells(arm, one) for arm, found in self.arms.items() for one in found]
        lines = [table(rows, headers), ""]
        for arm, law in self.laws.items():
            interval = "" if law.exponent_low is None else f" ({law.exponent_low:.3g} to {law.exponent_high:.3g})"
            lines.append(f"{arm}: tokens per parameter go as FLOPs^{law.exponent:.3g}{interval}")
        for arm, sizes in self.ladder.items():
            lines += [f"{arm}: ladder: {size} {_told(one)}" for size, one in sizes.items()]
        return "\n".join([*lines, *(f"- {note}" for note in self.notes), *self.files])

    def _cells(self, arm: str, one: BestRatio) -> list[str]:
        best = one.optimum
        interval = "" if best.interval is None else f"{best.interval.low:.3g} to {best.interval.high:.3g}"
        note = "" if one.is_claimed else f"NOT CLAIMED, best run's: {best.note}"
        return [arm, number(one.flops), str(one.num_sizes), f"{best.value:.3g}", interval, f"{best.loss:.4f}", note]


def isoflop(name: str, root: Path, output: Path | None = None) -> IsoFlop:
    """Read the sweep of an experiment and write its ladder, to `output` or where experiments look for it.

    InputError where its budgets are not FLOPs, or no run has finished.
    """
    experiment = load(experiment_path(name))
    rows = plan_from_known_corpora(experiment, root).rows
    runs, far = _finished(experiment, rows, root)
    if not runs:
        raise InputError(f"{experiment.name}: no run has finished; `k3ablate run {name}` trains them")
    found: dict[str, list[BestRatio]] = {}
    for (arm, flops), spent in sorted(runs.items(), key=lambda item: item[0][1]):
        found.setdefault(arm, []).append(best_ratio(flops, spent))
    laws = {arm: law for arm, ratios in found.items() if (law := ratio_law(ratios)) is not None}
    crossed = {arm: law for arm, law in laws.items() if law.exponent < 1}
    ladder = {arm: _ladder(found[arm], law, _counts(experiment, rows, arm)) for arm, law in crossed.items()}
    return IsoFlop(
        experiment=experiment.name,
        arms=found,
        laws=laws,
        ladder=ladder,
        notes=[
            *(f"{run}: spent {factor:.3g} times its budget, by whole steps" for run, factor in far.items()),
            *(
                f"{arm}: no ladder: its tokens per parameter grow as fast as FLOPs"
                for arm in laws
                if arm not in crossed
            ),
        ],
        files=_write(experiment, crossed, ladder, output),
    )


def _write(
    experiment: Experiment, laws: Mapping[str, Law], ladder: Mapping[str, Mapping[str, Rung]], output: Path | None
) -> list[str]:
    """The file of the ladder; none where the baseline has no law."""
    baseline = distinct_arms(experiment)[0]
    if baseline.name not in laws:
        return []
    path = output or LADDERS / f"{experiment.name}.yaml"
    found = Ladder(
        experiment=experiment.name,
        baseline=baseline.name,
        setting=setting_digest(experiment, baseline, ()),
        laws=dict(laws),
        sizes={arm: dict(sizes) for arm, sizes in ladder.items()},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_yaml(found.tree(), path)
    return [str(path)]


def _finished(
    experiment: Experiment, rows: Sequence[PlanRow], root: Path
) -> tuple[dict[tuple[str, float], list[Spent]], dict[str, float]]:
    """Finished runs by arm and budget, and those that spent more than their budget, with the factor."""
    ladder = {point.name: point for point in points(experiment)}
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


def _counts(experiment: Experiment, rows: Sequence[PlanRow], arm: str) -> dict[str, Counts]:
    """What an arm is at each size, whatever the budget."""
    sizes = {point.name: point.size.name for point in points(experiment)}
    return {sizes[row.label.size]: row.counts for row in rows if row.label.arm == arm}


def _ladder(found: Sequence[BestRatio], law: Law, counts: Mapping[str, Counts]) -> dict[str, Rung]:
    return {size: rung(found, law, one.active_params, flops_per_ratio(one)) for size, one in counts.items()}


def _told(one: Rung) -> str:
    beyond = "" if one.beyond == 1 else f"; WARNING: {one.beyond:.3g} times beyond the budgets that were swept"
    return (
        f"{one.ratio:.3g} ({one.low:.3g} to {one.high:.3g}): {number(one.tokens)} tokens for "
        f"{number(one.active_params)} parameters, {number(one.flops)} FLOPs{beyond}"
    )
