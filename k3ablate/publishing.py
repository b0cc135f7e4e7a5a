"""How do records become a table, a fit and a figure? `collect` and `report`, the verbs after the seam.

Everything that is written depends on the plan and the records only, so that the same records give the same bytes.
The fitting is in `fits`, the looks are in `report`; nothing here trains.

    <root>/results/<experiment>/   runs.csv runs.parquet   one row per run (`collect`)
                                   curves.csv multipliers.csv (`report`)
                                   table split evidence   each as Markdown, CSV, LaTeX and HTML (`report`)
                                   figures/   each as PNG, SVG, PDF and a CSV of what it shows (`report`)
                                   site/index.html   all of it to open in a browser (`report`)
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas

from k3ablate import splitting
from k3ablate.answers import ArmResult, Collected, Problem, Reported
from k3ablate.config import InputError
from k3ablate.experiment import EXPERIMENT_NAME, Experiment, load
from k3ablate.fits.analysis import Analysis, ArmAnalysis, analyse
from k3ablate.fits.split_analysis import split_analysis
from k3ablate.jobs import folders
from k3ablate.jobs.folders import results_folder
from k3ablate.labels import Labels
from k3ablate.plan import PlanRow
from k3ablate.presenting import Findings, present
from k3ablate.recipes import experiment_path
from k3ablate.records import FLOPS_CONVENTION, RunRecord, table, write_table
from k3ablate.report import curves, multipliers, split_table
from k3ablate.report.notes import CURVES_OF_MULTIPLIERS, notes
from k3ablate.report.tables import Provenance, render_text
from k3ablate.splitting import SplitAnswer
from k3ablate.tracking import keep_report
from k3ablate.verbs import digests, plan_from_known_corpora

if TYPE_CHECKING:
    from k3ablate.mlflow_store import Store

RUNS_STEM = "runs"
CURVES_FILE = "curves.csv"
BOOTSTRAP_SEED = 0  # the same records give the same intervals
SYNC = "`k3ablate sync {name}` where it ran"
MAX_NAMED = 6  # of the runs that are missing


@dataclass(frozen=True)
class _Material:
    """An experiment with its planned rows and the records there are."""

    name: str  # as it was asked for
    experiment: Experiment
    rows: tuple[PlanRow, ...]
    records: Mapping[str, RunRecord]
    root: Path
    folder: Path  # where results go

    def table(self) -> pandas.DataFrame:
        """One row per planned run that has a record."""
        return table((row.label for row in self.rows), self.records)


def runs(name: str, root: Path) -> tuple[pandas.DataFrame, str]:
    """One row per planned run that has ended, and the name of the baseline; InputError where there is none."""
    material = _read(name, root)
    return material.table(), material.experiment.names.baseline


def collect(name: str, root: Path) -> Collected:
    """Write the table of records as CSV and parquet; InputError where no run has ended yet."""
    return _collected(_read(name, root))


def collect_from_store(name: str, root: Path, uri: str | None) -> Collected:
    """The same table, byte by byte, from what a store has, on a machine that need not have runs, corpora or plans.

    The store at `uri`, or the usual one, has to know how `name` calls its runs (`sync`); InputError where it does not,
    where it cannot be used, or where what it has is not what was sent.
    """
    from k3ablate import tracking
    from k3ablate.mlflow_store import Store, shown
    from k3ablate.sqlite_files import file_of

    place = uri or tracking.tracking_uri(root)
    experiment, experiment_digest = _identity(name)
    if (file := file_of(place)) is not None and not file.exists():
        raise InputError(f"{place}: no such store; name one by --uri, or by {tracking.URI_VARIABLE}")
    try:
        labels, records = _stored(Store(place), experiment)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{shown(place)}: cannot be used ({tracking.first_line(error)}); name a store that answers by --uri"
        ) from error
    if labels is None or not records:
        raise InputError(f"{shown(place)}: has no run of {experiment} that has ended; {SYNC.format(name=name)}")
    if experiment_digest not in (None, labels.experiment_digest) or labels.experiment != experiment:
        raise InputError(f"{shown(place)}: knows another version of {experiment}; {SYNC.format(name=name)}")
    found = labels.labels()
    return _written(experiment, table(found, records), len(found), results_folder(root, experiment))


def report(
    name: str, root: Path, form: str | None = None, floor: float | None = None, at_loss: float | None = None,
    at_flops: float | None = None, output: Path | None = None,
) -> Reported:  # fmt: skip
    """Collect, fit, and write tables, figures and the site; InputError where no run has ended yet.

    They go to `output`, or among the results, and to MLflow as artifacts of the experiment.

    Multipliers are read from curves of `form`; None leaves the choice to `analyse`. `floor` is that of a form that arms
    share. They are read at `at_loss`, where the baseline has spent `at_flops`, or, both None, each where it was
    measured. Where no run finished the table lists every run with its reason.
    """
    material = _read(name, root, output)
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    options = {"form": form, "floor": floor, "at-loss": at_loss, "at-flops": at_flops}
    found = analyse(
        material.table(), material.experiment.names.baseline, form, generator, at_loss=at_loss, at_compute=at_flops,
        floor=floor,
    )  # fmt: skip
    collected = _collected(material)  # after what may be refused, so that nothing is written then
    analysis = _with_missing(found, material)
    split, no_split = _split(analysis)
    findings = Findings(
        experiment=material.experiment, rows=material.rows, records=material.records, root=material.root,
        runs=material.table(), analysis=analysis, split=split, no_split=no_split,
        provenance=_provenance(material, options),
    )  # fmt: skip
    fitted = curves.write_curves(analysis, material.folder / CURVES_FILE)
    along = multipliers.write_multipliers(analysis, material.folder / CURVES_OF_MULTIPLIERS)
    presented = present(findings, material.folder)
    files = [*map(Path, collected.files), fitted, along, *presented.opened]
    line = findings.provenance.line()
    return Reported(
        experiment=material.experiment.name,
        arms=[_arm_result(analysis, arm) for arm in analysis.arms],
        curves=curves.rows(analysis),
        multipliers=multipliers.rows(analysis),
        parallel=analysis.parallel,
        not_tested=analysis.not_tested,
        notes=notes(analysis),
        excluded=[
            Problem(f"{run.arm} {run.size} seed {run.seed}", run.status, run.reason) for run in analysis.excluded
        ],
        provenance=line,
        files=list(map(str, files)),
        logged=keep_report(root, material.experiment.name, material.folder, [*files, *presented.site]),
        table=f"{render_text(analysis, findings.provenance)}\n{_split_text(split, no_split, line)}",
        split=split,
        no_split=no_split,
    )


def _split(analysis: Analysis) -> tuple[SplitAnswer | None, str]:
    """The split to the arm that changes everything, or the reason why there is none."""
    if len({component for arm in analysis.arms for component in arm.changed}) < 2:
        return None, "one component: its multiplier is all there is"
    try:
        return splitting.answer(analysis, split_analysis(analysis), FLOPS_CONVENTION), ""
    except InputError as error:
        return None, str(error)


def _split_text(found: SplitAnswer | None, reason: str, provenance: str) -> str:
    return f"No split: {reason}" if found is None else split_table.render_text(found, (*found.remarks(), provenance))


def _read(name: str, root: Path, folder: Path | None = None) -> _Material:
    experiment = load(experiment_path(name))
    rows = plan_from_known_corpora(experiment, root).rows
    records = folders.records(root, digests(rows))
    if not records:
        raise InputError(f"{name}: no run has ended yet; `k3ablate run {name}` trains them")
    return _Material(name, experiment, rows, records, root, folder or results_folder(root, experiment.name))


def _identity(name: str) -> tuple[str, str | None]:
    """An experiment's own name and its digest, which is None where its file is not here and `name` is that name."""
    try:
        path = experiment_path(name)
    except InputError:
        if not EXPERIMENT_NAME.fullmatch(name):
            raise
        return name, None
    experiment = load(path)
    return experiment.name, experiment.digest()


def _stored(store: "Store", experiment: str) -> tuple[Labels | None, Mapping[str, RunRecord]]:
    """How an experiment calls its runs, and the records there are of them."""
    content = store.plan(experiment)
    if content is None:
        return None, {}
    labels = Labels.read(content, f"the plan of {experiment} in the store")
    return labels, store.records(dict.fromkeys(line.digest for line in labels.lines if line.digest))


def _collected(material: _Material) -> Collected:
    return _written(material.experiment.name, material.table(), len(material.rows), material.folder)


def _written(experiment: str, frame: pandas.DataFrame, num_planned: int, folder: Path) -> Collected:
    files = write_table(frame, folder / RUNS_STEM)
    counts = Counter(frame["status"].tolist())
    return Collected(experiment, [str(file) for file in files], len(frame), num_planned, counts)


def _with_missing(analysis: Analysis, material: _Material) -> Analysis:
    """Runs that were planned and have no record are said under the table, like those that are excluded."""
    labels = [row.label for row in material.rows]
    missing = [
        f"{label.arm} {label.size} seed {label.seed}" for label in labels if label.digest not in material.records
    ]
    if not missing:
        return analysis
    named = ", ".join(missing[:MAX_NAMED]) + (", ..." if len(missing) > MAX_NAMED else "")
    warning = f"{len(missing)} of {len(labels)} planned runs have no record yet: {named}"
    return dataclasses.replace(analysis, warnings=(*analysis.warnings, warning))


def _provenance(material: _Material, options: Mapping[str, str | float | None]) -> Provenance:
    records = material.records.values()
    asked = [f"--{name} {value}" for name, value in options.items() if value is not None]
    return Provenance(
        experiment=material.experiment.name,
        experiment_digest=material.experiment.digest(),
        corpus=_all({record.corpus for record in records}),
        flops_convention=FLOPS_CONVENTION,
        code_version=_all({record.versions.get("code", "not recorded") for record in records}),
        command=" ".join([f"k3ablate report {material.name}", *asked]),
        date=max((record.ended[:10] for record in records if record.ended), default=None),
    )


def _all(values: set[str]) -> str:
    return ", ".join(sorted(values))


def _arm_result(analysis: Analysis, arm: ArmAnalysis) -> ArmResult:
    largest, found, paired = arm.largest, arm.multiplier, arm.paired
    return ArmResult(
        arm=arm.arm,
        num_runs=len(arm.points),
        largest_size=largest.size if largest else None,
        loss=largest.loss if largest else None,
        loss_seed_sd=largest.seed_sd if largest and largest.num_seeds > 1 else None,
        form=analysis.form,
        multiplier=found.value if found else None,
        multiplier_low=found.interval.low if found else None,
        multiplier_high=found.interval.high if found else None,
        read_at_loss=found.loss if found else None,
        read_at_baseline_flops=found.baseline_compute if found else None,
        read_at_arm_flops=found.arm_compute if found else None,
        beyond=found.beyond if found else None,
        p_value=found.p_value if found else None,
        holm_p_value=arm.holm_p_value,
        paired=paired.value if paired else None,
        paired_low=paired.interval.low if paired else None,
        paired_high=paired.interval.high if paired else None,
        paired_p_value=paired.p_value if paired else None,
        no_multiplier=arm.no_multiplier,
    )
