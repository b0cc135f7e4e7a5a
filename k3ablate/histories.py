"""What did the runs of an experiment log, what did its tuning try, and what did its sweep measure, for pictures?

Reads run folders, tuned recipes and the table of records, and hands them to `report` as plain numbers; the pictures are
in `report.training_figures`, `report.tuning_figures` and `report.isoflop_figures`. Nothing here trains, fits a curve of
loss against compute, or draws. Runs whose folder is not here (a table from a store) have no trace, and it says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas

from k3ablate import recipes, run_logs
from k3ablate.budgets import Flops
from k3ablate.config import InputError, parse
from k3ablate.experiment import Experiment
from k3ablate.fits.logged_runs import LogColumns, read_run
from k3ablate.plan import Point, points
from k3ablate.records import METRICS_FILE, Label, RunRecord, Status, read_routing, read_table
from k3ablate.report.traces import NOTHING, RunTrace, Series, Sweep
from k3ablate.tuned import LAWS, Law, TunedValues, file_of, resolved
from k3ablate.tuning.isoflop import BestRatio, Spent, best_ratio, ratio_law

LOAD = "worst_load"  # a column made here


def traces(labels: Iterable[Label], records: Mapping[str, RunRecord], root: Path) -> list[RunTrace]:
    """A trace of every run that has a record, in the order of the plan."""
    return [
        _trace(label, records[label.digest], root / label.digest) for label in labels if label.digest in records
    ]  # fmt: skip


def tuned(experiment: Experiment) -> tuple[TunedValues, dict[str, pandas.DataFrame]] | None:
    """What the studies of the experiment found, and the trials of each arm; None where nothing is tuned.

    Those it takes its values from, where it takes them from another's. InputError for files that are none.
    """
    name = experiment.name if experiment.tuned is None else experiment.tuned.experiment
    folder = recipes.tuned_folder(name)
    if folder is None:
        return None
    values = parse(TunedValues, resolved(name, recipes.tuned_recipes), source=str(folder))
    tables = {arm: (folder / file_of(arm)).with_suffix(".csv") for arm in values.tuned if arm != LAWS}
    return values, {arm: read_table(path) for arm, path in tables.items() if path.is_file()}


def sweeps(experiment: Experiment, runs: pandas.DataFrame) -> tuple[list[Sweep], dict[str, Law]]:
    """The runs at equal compute by arm and budget, with what is best there, and each arm's law of it over budgets.

    Nothing where budgets are not FLOPs.
    """
    ladder = {point.name: point for point in points(experiment)}
    finished = runs[(runs["status"] == Status.FINISHED) & (runs["arm"] != experiment.names.replicate)]
    budgets = finished["size"].map(lambda size: ladder[size].budget if size in ladder else None)
    at_flops = finished.loc[np.array([isinstance(budget, Flops) for budget in budgets], dtype=bool)]
    flops = [budget.flops for budget in budgets if isinstance(budget, Flops)]
    groups = at_flops.assign(budget=flops).sort_values("budget", kind="stable").groupby(["arm", "budget"], sort=False)
    found: list[Sweep] = []
    best: dict[str, list[BestRatio]] = {}
    for (arm, budget), rows in groups:
        spent = _spent(rows, ladder)
        ratio = best_ratio(float(str(budget)), spent)
        best.setdefault(str(arm), []).append(ratio)
        found.append(_sweep(str(arm), spent, ratio))
    laws = {arm: law for arm, ratios in best.items() if (law := ratio_law(ratios)) is not None}
    return found, laws


def _spent(rows: pandas.DataFrame, ladder: Mapping[str, Point]) -> list[Spent]:
    return [
        Spent(ladder[str(row["size"])].size.name, int(row["active_params"]), int(row["tokens"]), float(row["loss"]))
        for row in rows.to_dict("records")
    ]


def _sweep(arm: str, spent: Sequence[Spent], found: BestRatio) -> Sweep:
    best = found.optimum
    return Sweep(
        arm=arm,
        flops=found.flops,
        sizes=tuple(one.size for one in spent),
        ratios=tuple(one.ratio for one in spent),
        losses=tuple(one.loss for one in spent),
        value=best.value,
        loss=best.loss,
        is_claimed=found.is_claimed,
        low=best.low,
        high=best.high,
        note=best.note,
    )


def _trace(label: Label, record: RunRecord, folder: Path) -> RunTrace:
    loss, load, missing = NOTHING, NOTHING, ""
    try:
        lines = pandas.DataFrame(run_logs.lines(folder))
        if len(lines):
            loss, load = _series(label.name, lines, "loss"), _load(label.name, lines)
        else:
            missing = f"nothing was logged, or its folder is not here (no {METRICS_FILE})"
    except InputError as error:
        missing = str(error)
    return RunTrace(
        arm=label.arm,
        size=label.size,
        seed=label.seed,
        status=str(record.status),
        reason=record.reason,
        num_steps=record.num_steps,
        loss=loss,
        worst_load=load,
        dead_share=_dead_share(folder, label.digest),
        missing=missing,
    )


def _series(name: str, lines: pandas.DataFrame, column: str) -> Series:
    run = read_run(name, lines, LogColumns(loss=column), window=0.0)
    return Series(run.curve.spent["tokens"], run.curve.loss_N, run.curve.start)


def _load(name: str, lines: pandas.DataFrame) -> Series:
    """Of the layer whose busiest expert had most; steps in which nothing was routed are left out."""
    layers = [line if isinstance(line, list) else [] for line in lines.get("imbalance", [])]
    worst = [max((load for load in line if load is not None), default=np.nan) for line in layers]
    if not np.isfinite(worst).any():
        return NOTHING
    return _series(name, lines.assign(**{LOAD: worst}), LOAD)


def _dead_share(folder: Path, digest: str) -> float | None:
    """Of routed experts of all layers, those that no token of the validation set chose; None without counts."""
    routing = read_routing(folder, digest) if folder.is_dir() else None
    if routing is None or not any(routing.pairs):
        return None
    return float(np.mean([count == 0 for layer in routing.pairs for count in layer]))
