"""How does a question become an answer? The verbs of the command line as functions, from a name to an answer.

Each takes the name or path of an experiment and the folder of runs, and does only what is missing there; what they
return is in `answers`. Nothing here prints; `run` reports its progress to a `Reporter`. Records become tables and
figures in `publishing`, models are counted in `counting`.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pandas import DataFrame

from k3ablate import own_values
from k3ablate.answers import (
    Change,
    Checked,
    CorpusAnswer,
    CorpusSet,
    Planned,
    PlannedRow,
    Problem,
    Ran,
    number,
)
from k3ablate.config import InputError, located, parse, read_yaml
from k3ablate.experiment import Experiment, arm_differences, load
from k3ablate.jobs import folders, local
from k3ablate.jobs.folders import SETTLED_STATES, State, corpora_folder, results_folder
from k3ablate.jobs.progress import Reporter
from k3ablate.kernels.warm_up import warm_up
from k3ablate.labels import Labels
from k3ablate.plan import Plan, PlanRow, data_recipes, expand, trial_recipes
from k3ablate.recipes import experiment_path, recipe_path
from k3ablate.records import (
    FLOPS_CONVENTION,
    METRICS_FILE,
    PUBLISHED_SET,
    RUNS_TABLE,
    Label,
    RunRecord,
    Status,
    read_table,
    table,
)
from k3ablate.storage import require_writable
from k3ablate.training import trunks
from k3ablate.training.corpus import Corpus, build, known
from k3ablate.training.data import check_budget
from k3ablate.training.spec import DataRecipe
from k3ablate.tuning.costs import check_costs

if TYPE_CHECKING:
    from k3ablate.fits.power import DesignPower
    from k3ablate.planning import PowerAnswer

Say = Callable[[str], None]


class AskedRun(Protocol):
    """What is asked of a run: a row of a plan, or a trial."""

    @property
    def label(self) -> Label:
        """How it is called; without a digest while its corpus is not built."""

    @property
    def tokens(self) -> int:
        """Its budget."""

    @property
    def flops(self) -> float:
        """Training FLOPs."""


# Of one worker on a small model, where nothing has been measured yet.
ASSUMED_FLOPS_PER_SECOND = 5e9
# Simulations of `plan`, which must not become slow; draws as in `fits.power`, for intervals of exactly 95 percent.
PLAN_TABLES, PLAN_DRAWS, PLAN_CHOOSING = 40, 79, 2
PLAN_POWER_RUNS = 400  # more take longer than 6 s to simulate
OWN_PILOT = "the runs of this experiment that have ended"
UNBUILT_NOTE = "The corpus is not built yet, so digests are not known and its size is not checked; `run` builds it."


def check(name: str, root: Path) -> Checked:
    """Read and validate everything that can be known before training; InputError says what to mend."""
    experiment = load(experiment_path(name))
    plan = plan_from_known_corpora(experiment, root)
    with located(experiment.name):
        check_costs(experiment)
    check_validation(
        experiment.name, {recipe: known(recipe, corpora_folder(root)) for recipe in trial_recipes(experiment)}
    )
    changes = {
        arm: [Change(*difference) for difference in differences if difference.before is not difference.after]
        for arm, differences in arm_differences(experiment).items()
    }
    return Checked(
        experiment=experiment.name,
        question=experiment.question,
        metric=experiment.metric,
        expected=experiment.expected,
        baseline=experiment.names.baseline,
        match=experiment.match,
        num_rows=len(plan.rows),
        arms=changes,
        tuned=own_values.lines(experiment, plan.rows),
    )


def plan(name: str, root: Path, num_workers: int) -> Planned:
    """Every row with its cost and state, and the time that is left."""
    experiment = load(experiment_path(name))
    rows = plan_from_known_corpora(experiment, root).rows
    records = folders.records(root, digests(rows))
    states = folders.states(root, digests(rows), records)
    runs = {row.label.digest or str(index): row for index, row in enumerate(rows)}.values()
    left = [row for row in runs if states.get(row.label.digest) not in SETTLED_STATES]
    flops_left = sum(row.flops for row in left)
    trunk_notes = _saved_by_trunks(rows, left) if all(row.spec for row in rows) else [UNBUILT_NOTE]
    rate, basis = _throughput(records.values())
    design, power_text = _power_of_plan(name, experiment, rows, records)
    return Planned(
        experiment=experiment.name,
        rows=[_planned_row(row, states.get(row.label.digest, State.WAITING)) for row in rows],
        num_runs=len(runs),
        tokens=sum(row.tokens for row in runs),
        flops=sum(row.flops for row in runs),
        flops_left=flops_left,
        num_workers=num_workers,
        flops_per_second=rate,
        basis=basis,
        hours_left=flops_left / rate / num_workers / 3600,
        notes=[*own_values.lines(experiment, rows), *trunk_notes],
        power=design,
        power_text=power_text,
    )


def power(
    name: str,
    root: Path,
    *,
    pilot: DataFrame | None = None,
    pilot_name: str = "the pilot",
    seed_deviation: float | None = None,
    loss: float | None = None,
    exponent: float | None = None,
    multipliers: Sequence[float] = (),
    form: str | None = None,
    at_loss: float | None = None,
    at_flops: float | None = None,
    num_tables: int | None = None,
) -> "PowerAnswer":
    """What the planned runs tell apart (`planning.power`); runs that have ended are the pilot where none is stated."""
    from k3ablate import planning  # brings scipy, for which other verbs need not wait
    from k3ablate.fits.power import NUM_TABLES

    experiment = load(experiment_path(name))
    rows = plan_from_known_corpora(experiment, root).rows
    if pilot is None and (seed_deviation, loss, exponent) == (None, None, None):
        pilot, pilot_name = _own_pilot(rows, folders.records(root, digests(rows))), OWN_PILOT
    return planning.power(
        _planned_table(rows), baseline=experiment.names.baseline, pilot=pilot, pilot_name=pilot_name,
        seed_deviation=seed_deviation, loss=loss, exponent=exponent, multipliers=multipliers or planning.CLAIMED,
        form=form, at_loss=at_loss, at_flops=at_flops,
        num_tables=NUM_TABLES if num_tables is None else num_tables, name=name, flops_convention=FLOPS_CONVENTION,
    )  # fmt: skip


def run(name: str, root: Path, num_workers: int, reporter: Reporter) -> Ran:
    """Train what is missing. KeyboardInterrupt leaves a state that the next call goes on from."""
    experiment = load(experiment_path(name))
    require_writable(root)
    rows = plan_from_built_corpora(experiment, root, reporter.say).rows
    states = folders.states(root, digests(rows))
    if not SETTLED_STATES.issuperset(states.values()):
        warm_up()
        prepare_tracking(root, experiment, rows)
    records = local.run_grid(rows, root, experiment.execution, num_workers, reporter)
    _tell_stored_trunks(root, reporter.say)
    return Ran(experiment.name, Counter(str(record.status) for record in records.values()), problems(rows, records))


def cell(name: str, root: Path) -> list[Path]:
    """Folders of the runs of EXPERIMENT/ARM/SIZE, a seed each, by its plan, or by its table where none of these ran.

    InputError for another name, and where no run of that cell has logged anything.
    """
    experiment_name, arm, size = _parts(name)
    experiment = load(experiment_path(experiment_name))
    labels = [row.label for row in plan_from_known_corpora(experiment, root).rows]
    known = list(dict.fromkeys(f"{label.arm}/{label.size}" for label in labels))
    if f"{arm}/{size}" not in known:
        raise InputError(f"{name}: {experiment_name} has no such arm and size; write one of {', '.join(known)}")
    planned = [label.digest for label in labels if (label.arm, label.size) == (arm, size) and label.digest]
    for found in (planned, _collected_digests(results_folder(root, experiment.name), arm, size)):
        if logged := [root / digest for digest in found if (root / digest / METRICS_FILE).is_file()]:
            return logged
    raise InputError(f"{name}: no run of it has logged anything; `k3ablate run {experiment_name}` trains them")


def build_corpus(name: str, root: Path, say: Say) -> CorpusAnswer:
    """Build the corpus of a data recipe, given by name or path, if it is not there."""
    return _corpus_answer(name, build(_data_recipe(name), corpora_folder(root), say))


def corpus_info(name: str, root: Path) -> CorpusAnswer:
    """What the corpus of a data recipe holds; InputError where it is not built."""
    corpus = known(_data_recipe(name), corpora_folder(root))
    if corpus is None:
        raise InputError(f"{name}: this corpus is not built; `k3ablate data build {name}` builds it")
    return _corpus_answer(name, corpus)


def plan_from_known_corpora(experiment: Experiment, root: Path) -> Plan:
    """The plan as far as corpora are built. Nothing is written."""
    return _checked_plan(
        experiment, {recipe: known(recipe, corpora_folder(root)) for recipe in data_recipes(experiment)}
    )


def plan_from_built_corpora(experiment: Experiment, root: Path, say: Say) -> Plan:
    """The plan with every digest; corpora that are missing are built, and runs are told where they part."""
    corpora = {recipe: build(recipe, corpora_folder(root), say) for recipe in data_recipes(experiment)}
    found = _checked_plan(experiment, corpora)
    trunks.announce(root, (row.spec for row in found.rows if row.spec is not None))
    return found


def _checked_plan(experiment: Experiment, corpora: Mapping[DataRecipe, Corpus | None]) -> Plan:
    """Expanded, with text enough for every budget."""
    names = {recipe: None if corpus is None else corpus.digest for recipe, corpus in corpora.items()}
    with located(experiment.name):
        expanded = expand(experiment, names.__getitem__)
    by_digest = {corpus.digest: corpus for corpus in corpora.values() if corpus is not None}
    check_validation(experiment.name, corpora)
    for row in expanded.rows:
        if row.spec is not None:
            _check_row_budget(row, by_digest[row.spec.corpus])
    return expanded


def check_validation(name: str, corpora: Mapping[DataRecipe, Corpus | None]) -> None:
    """Data recipes are compared on one validation set; InputError for arms with several."""
    built = [corpus for corpus in corpora.values() if corpus is not None]
    for first, other in itertools.pairwise(built):
        if other.content(PUBLISHED_SET) != first.content(PUBLISHED_SET):
            raise InputError(
                f"{name}: its data recipes have different {PUBLISHED_SET} sets (corpora {first.digest} and "
                f"{other.digest}), on which losses do not compare; hold out the same text in all of them (the same "
                "packages, or the same files under `validation`), cut by the same tokenizer (of pairs, one that states "
                "its own `source`)"
            )


def _check_row_budget(row: PlanRow, corpus: Corpus) -> None:
    assert row.spec is not None
    label = row.label
    with located(f"{label.experiment}: arm {label.arm}, size {label.size}"):
        check_budget(corpus, row.spec.training, row.tokens)


def digests(rows: Iterable[AskedRun]) -> list[str]:
    """The runs of a plan, each once; rows whose corpus is not built have none."""
    return list(dict.fromkeys(row.label.digest for row in rows if row.label.digest))


def problems(rows: Iterable[AskedRun], records: Mapping[str, RunRecord]) -> list[Problem]:
    """Every run that ended without a loss, once, under its first name."""
    found: dict[str, Problem] = {}
    for row in rows:
        record = records.get(row.label.digest)
        if record is not None and record.status is not Status.FINISHED:
            reason = record.reason.splitlines()[0]
            found.setdefault(record.digest, Problem(row.label.name, str(record.status), reason))
    return list(found.values())


def _saved_by_trunks(rows: Iterable[PlanRow], left: Iterable[PlanRow]) -> list[str]:
    """What runs with other budgets share, in a line, and what of it the time left does not count on."""
    found, open_still = (
        trunks.shared((row.spec, row.flops) for row in some if row.spec is not None) for some in (rows, left)
    )
    if found is None:
        return []
    counted = "" if open_still is None else (
        f"; what is left is counted in full, and may be {number(open_still.flops_saved)} FLOPs less"
    )  # fmt: skip
    return [
        f"trunks: {found.num_runs} runs of several budgets share {found.num_trunks}, which saves up to "
        f"{number(found.flops_saved)} of their {number(found.flops)} FLOPs: as much as runs that start later find "
        f"saved{counted}"
    ]


def _tell_stored_trunks(root: Path, say: Say) -> None:
    """How large the checkpoints are that nothing deletes."""
    count, num_bytes = trunks.stored(root)
    if count:
        say(
            f"trunks: {count} checkpoints in {root / trunks.FOLDER}, {number(num_bytes)}B; runs with another budget "
            "start from them, and deleting them loses nothing else"
        )


def _planned_row(row: PlanRow, state: State) -> PlannedRow:
    label, counts = row.label, row.counts
    return PlannedRow(
        arm=label.arm,
        size=label.size,
        seed=label.seed,
        total_params=counts.total_params,
        active_params=counts.active_params,
        flops_per_token=counts.flops_per_token,
        mismatch=label.mismatch,
        tokens=row.tokens,
        flops=row.flops,
        digest=label.digest or None,
        state=str(state),
    )


def _power_of_plan(
    name: str, experiment: Experiment, rows: Sequence[PlanRow], records: Mapping[str, RunRecord]
) -> "tuple[DesignPower | None, Sequence[str]]":
    """What the design tells apart by a few simulations, in numbers and in lines; or the line that says why nothing."""
    if len(rows) > PLAN_POWER_RUNS:
        return None, [f"power: not simulated for more than {PLAN_POWER_RUNS} runs; `k3ablate power {name}` does that"]
    from k3ablate import planning

    try:
        found = planning.power(
            _planned_table(rows), baseline=experiment.names.baseline, pilot=_own_pilot(rows, records), name=name,
            pilot_name=OWN_PILOT, num_tables=PLAN_TABLES, num_draws=PLAN_DRAWS, num_choosing=PLAN_CHOOSING,
        )  # fmt: skip
    except InputError as error:
        return None, [f"power: none: {error}"]
    return found.design, found.short()


def _planned_table(rows: Iterable[PlanRow]) -> DataFrame:
    """A table of the runs as they will be labelled, without results."""
    return DataFrame([
        {"arm": row.label.arm, "size": row.label.size, "seed": row.label.seed, "flops": row.flops,
         "varied": str(row.label.varied), **row.label.levels}
        for row in rows
    ])  # fmt: skip


def _own_pilot(rows: Iterable[PlanRow], records: Mapping[str, RunRecord]) -> DataFrame | None:
    """The runs that have ended, where they tell the deviation between seeds."""
    from k3ablate import planning

    found = table((row.label for row in rows), records) if records else None
    return found if found is not None and planning.tells_noise(found) else None


def _throughput(records: Iterable[RunRecord]) -> tuple[float, str]:
    """Training FLOPs per second of one worker: measured on what has ended, else assumed."""
    timed = [record for record in records if record.wall_seconds > 0 and record.flops > 0]
    if not timed:
        return ASSUMED_FLOPS_PER_SECOND, "assumed; nothing has been measured here yet"
    rate = sum(record.flops * record.trained_share for record in timed) / sum(record.wall_seconds for record in timed)
    return rate, f"measured on {len(timed)} runs"


def _parts(name: str) -> tuple[str, str, str]:
    """Experiment, arm and size; an arm may hold a stroke (a/a), and so may the path of an experiment's file."""
    file, dot, rest = name.partition(".yaml/")
    experiment, _, rest = (f"{file}.yaml", "", rest) if dot else name.partition("/")
    arm, _, size = rest.rpartition("/")
    if not (arm and size):
        raise InputError(f"{name}: write EXPERIMENT/ARM/SIZE")
    return experiment, arm, size


def _collected_digests(folder: Path, arm: str, size: str) -> list[str]:
    """Those in the table that was collected last: runs of an older plan, or of a corpus that is not here."""
    path = folder / RUNS_TABLE
    if not path.exists():
        return []
    runs = read_table(path)
    return runs[(runs["arm"] == arm) & (runs["size"] == size)]["digest"].tolist()


def prepare_tracking(root: Path, experiment: Experiment, rows: Iterable[PlanRow]) -> None:
    """Before the workers start: processes that meet a fresh store at once break it."""
    from k3ablate import tracking

    if tracking.mode() is tracking.Mode.LIVE:
        labels = Labels.of((row.label for row in rows), experiment.digest())
        tracking.prepare(root, experiment.name, labels.written())


def _data_recipe(name: str) -> DataRecipe:
    path = Path(name) if name.endswith((".yaml", ".yml")) else recipe_path("data", name)
    return parse(DataRecipe, read_yaml(path), source=str(path))


def _corpus_answer(name: str, corpus: Corpus) -> CorpusAnswer:
    sets = [
        CorpusSet(set_name, facts.num_documents, facts.num_bytes, facts.num_tokens)
        for set_name, facts in corpus.facts.sets.items()
    ]
    vocabulary_size = corpus.facts.recipe.vocabulary_size
    return CorpusAnswer(name, corpus.digest, str(corpus.folder), vocabulary_size, sets, corpus.facts.dropped)
