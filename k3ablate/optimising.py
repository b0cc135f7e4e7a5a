"""How does each arm come to its own optimum? The verb `tune`: trials as ordinary runs, recipes of what is best.

Idempotent like `run`: a second call finds every trial ended and writes the same files. What a study is and how it goes
on after a kill is in `tuning.study`; an experiment takes the values by `tuned:` (`tuned`). Trials are trained here, or
on a cluster (`trial_jobs`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from k3ablate.answers import Problem, table
from k3ablate.config import located
from k3ablate.experiment import Experiment, load_untuned, setting_digest
from k3ablate.jobs import local
from k3ablate.jobs.folders import corpora_folder
from k3ablate.jobs.progress import Reporter
from k3ablate.jobs.worker import Trainer, train_run
from k3ablate.kernels.warm_up import warm_up
from k3ablate.plan import PlanRow, trial_recipes
from k3ablate.recipes import TUNED, experiment_path
from k3ablate.records import RunRecord, Status
from k3ablate.search import Range
from k3ablate.storage import require_writable
from k3ablate.training.corpus import Corpus, build
from k3ablate.training.data import check_budget
from k3ablate.training.spec import DataRecipe
from k3ablate.trial_jobs import OnCluster
from k3ablate.tuned import Law, TunedArm, TunedPath, TunedSize
from k3ablate.tuning import findings
from k3ablate.tuning.costs import UNBUILT
from k3ablate.tuning.extension import extend_edges
from k3ablate.tuning.laws import laws
from k3ablate.tuning.store import Trial
from k3ablate.tuning.study import Asked, Study, conduct, look
from k3ablate.tuning.trials import SEPARATE, Studies, studies
from k3ablate.verbs import check_validation, prepare_tracking


@dataclass(frozen=True)
class TunedAnswer:
    """`tune`: what every study found, by arm and size, and what follows for other sizes."""

    experiment: str
    seed: int
    sampler: str
    arms: Mapping[str, Mapping[str, TunedSize]]
    laws: Mapping[str, Mapping[str, Law]]
    open_studies: Mapping[str, str] = field(default_factory=dict)  # arm and size -> how far it is
    extended: Sequence[str] = ()
    problems: Sequence[Problem] = ()
    files: Sequence[str] = ()

    def text(self) -> str:
        """A row per arm, size and path, then the laws and what is not done."""
        rows = [
            self._cells(arm, name, path, size)
            for arm, sizes in self.arms.items() for name, size in sizes.items() for path in size.paths
        ]  # fmt: skip
        headers = ["arm", "size", "path", "optimum", "95 percent", "loss", "trials", "note"]
        lines = [f"{self.experiment}: sampler {self.sampler}, runs with seed {self.seed}", "", table(rows, headers), ""]
        lines += [f"{arm}: {path} {_law(law)}" for arm, by_path in self.laws.items() for path, law in by_path.items()]
        lines += [f"{name}: {state}" for name, state in self.open_studies.items()]
        lines += [f"{problem.name} {problem.status}: {problem.reason}" for problem in self.problems]
        return "\n".join([*lines, *self.extended, *self.files])

    def _cells(self, arm: str, name: str, path: str, size: TunedSize) -> list[str]:
        one = size.paths[path]
        value = f"{one.value:.4g}" if isinstance(one.value, float) else str(one.value)
        loss = size.best_loss if not one.is_from_curve or size.curve_loss is None else size.curve_loss
        trials = ", ".join(f"{count} {ended}" for ended, count in size.trials.items())
        interval = _between(one.low, one.high) if one.is_from_curve else ""
        return [arm, name, path, value, interval, f"{loss:.4f}", trials, _source(one, size.space[path])]


def tune(
    name: str,
    root: Path,
    num_workers: int,
    reporter: Reporter,
    *,
    arms: Sequence[str] = (),
    sizes: Sequence[str] = (),
    num_trials: int | None = None,
    is_extended: bool = False,
    output: Path | None = None,
    cluster: str | None = None,
    trainer: Trainer = train_run,
) -> TunedAnswer:
    """Bring the studies of some arms and sizes, or of all, to their trials, and write what all of them tell.

    With `is_extended`, ranges whose optimum lies at an edge are widened by one step first, for every arm of that size.
    With `cluster`, a recipe, trials go through Slurm's queue instead of this machine's workers.
    KeyboardInterrupt leaves a state that the next call goes on from.
    """
    experiment = load_untuned(experiment_path(name))
    train = (
        _Here(experiment, root, num_workers, reporter, trainer)
        if cluster is None
        else OnCluster.of(name, experiment, root, cluster, reporter)
    )
    root = train.root
    require_writable(root)
    _check_names(experiment, num_trials, arms, sizes)
    corpora = {recipe: build(recipe, corpora_folder(root), reporter.say) for recipe in trial_recipes(experiment)}
    check_validation(experiment.name, corpora)
    every = studies(experiment, {recipe: corpus.digest for recipe, corpus in corpora.items()}, num_trials)
    chosen = every.chosen(arms, sizes)
    folder = root / "tuning" / experiment.name
    extended: list[str] = []
    if is_extended:
        extended, further = extend_edges(folder, every, chosen, partial(_tuned_size, every))
        chosen = [study for study in every.all if study in chosen or study in further]
    unfinished = conduct(folder, chosen, _Runner(every, corpora, train)).unfinished
    trials, spaces = look(folder, every.all)
    found = _tuned_arms(every, trials, spaces)
    by_arm = {arm: laws(tuned.sizes) for arm, tuned in found.items()}
    files = _write(every, found, by_arm, trials, output or TUNED / experiment.name)
    return TunedAnswer(
        experiment=experiment.name,
        seed=every.seed,
        sampler=", ".join(f"{key} {value}" for key, value in every.tuning.sampler.tree().items()).removeprefix("kind "),
        arms={arm: tuned.sizes for arm, tuned in found.items()},
        laws=by_arm,
        open_studies=_open(every, trials),
        extended=extended,
        problems=[*(_problem(one, record) for one, record in unfinished), *_diverged(every, trials, spaces)],
        files=list(map(str, files)),
    )


def _check_names(experiment: Experiment, num_trials: int | None, arms: Sequence[str], sizes: Sequence[str]) -> None:
    """InputError for what is wrong with a study, before a corpus is built for it."""
    studies(experiment, dict.fromkeys(trial_recipes(experiment), UNBUILT), num_trials).chosen(arms, sizes)


@dataclass
class _Runner:
    """Trials as rows of a plan, for whatever trains these."""

    studies: Studies
    corpora: Mapping[DataRecipe, Corpus]
    train: Callable[[Sequence[PlanRow]], Mapping[str, RunRecord]]  # a record for every row, by digest

    def __call__(self, asked: Sequence[Asked]) -> list[RunRecord]:
        rows = [self.studies.row(one.study, one.number, one.values) for one in asked]
        for one, row in zip(asked, rows, strict=True):
            assert row.spec is not None, "corpora are built"
            with located(f"arm {one.study.arm}, size {one.study.size}"):
                check_budget(self.corpora[row.spec.data], row.spec.training, row.tokens)
        records = self.train(rows)
        return [records[row.label.digest] for row in rows]


@dataclass
class _Here:
    """Trains trials on this machine, as `run` does."""

    experiment: Experiment
    root: Path
    num_workers: int
    reporter: Reporter
    trainer: Trainer
    is_prepared: bool = False

    def __call__(self, rows: Sequence[PlanRow]) -> Mapping[str, RunRecord]:
        if not self.is_prepared:
            warm_up()
            apart = self.experiment.model_copy(update={"name": f"{self.experiment.name}{SEPARATE}"})
            prepare_tracking(self.root, apart, rows)
            self.is_prepared = True
        execution = self.experiment.execution
        return local.run_grid(rows, self.root, execution, self.num_workers, self.reporter, self.trainer)


def _tuned_arms(
    every: Studies, trials: Mapping[str, Sequence[Trial]], spaces: Mapping[str, Mapping[str, Range]]
) -> dict[str, TunedArm]:
    """What there is to write: arms with a complete study in which a trial has a loss."""
    found: dict[str, TunedArm] = {}
    for study in every.all:
        if not findings.is_complete(trials[study.name], every.tuning) or not findings.has_loss(trials[study.name]):
            continue
        size = _tuned_size(every, study, trials[study.name], spaces[study.name])
        arm = every.arm(study.arm)
        before = found.get(study.arm)
        found[study.arm] = TunedArm(
            experiment=every.experiment.name,
            arm=study.arm,
            setting=setting_digest(every.experiment, arm, every.tuning.space),
            corpus=every.corpus_of(study),
            seed=every.seed,
            tuning=every.tuning,
            sizes={**(before.sizes if before else {}), study.size: size},
        )
    return found


def _tuned_size(every: Studies, study: Study, trials: Sequence[Trial], space: Mapping[str, Range]) -> TunedSize:
    return findings.tuned_size(trials, space, every.tuning.reach, every.ladder[study.size].flops)


def _diverged(
    every: Studies, trials: Mapping[str, Sequence[Trial]], spaces: Mapping[str, Mapping[str, Range]]
) -> list[Problem]:
    """Studies that have ended without a loss: their arms have no values at these sizes."""
    return [
        Problem(f"{study.arm} {study.size}", Status.FAILED, findings.diverged(trials[study.name], spaces[study.name]))
        for study in every.all
        if findings.is_complete(trials[study.name], every.tuning) and not findings.has_loss(trials[study.name])
    ]


def _write(
    every: Studies, found: Mapping[str, TunedArm], by_arm: Mapping[str, Mapping[str, Law]],
    trials: Mapping[str, Sequence[Trial]], folder: Path,
) -> list[Path]:  # fmt: skip
    files: list[Path] = []
    for arm, tuned in found.items():
        rows: list[tuple[str, Trial, PlanRow]] = [
            (study.size, trial, every.row(study, trial.number, trial.values))
            for study in every.all if study.arm == arm for trial in trials[study.name]
        ]  # fmt: skip
        files += findings.write_arm(tuned, findings.table(rows), folder)
    return [*files, findings.write_laws(by_arm, folder)] if files else []


def _open(every: Studies, trials: Mapping[str, Sequence[Trial]]) -> dict[str, str]:
    """Studies that lack trials: their arms must not be compared with those that have them."""
    return {
        f"{study.arm} {study.size}": f"{sum(trial.loss is not None for trial in trials[study.name])} of "
        f"{every.tuning.trials} trials finished; not tuned yet"
        for study in every.all if not findings.is_complete(trials[study.name], every.tuning)
    }  # fmt: skip


def _problem(one: Asked, record: RunRecord) -> Problem:
    name = f"{one.study.arm} {one.study.size} trial {one.number}"
    return Problem(name, str(record.status), record.reason.splitlines()[0])


def _source(one: TunedPath, space: Range) -> str:
    """Where a value comes from, and what to do where it is at an edge."""
    if one.is_from_curve:
        return f"curve; {one.note}" if one.note else "curve"
    edge = "" if not one.is_at_edge else "AT THE EDGE, "
    extends = "`tune --extend` goes on; " if edge and space.choices is None else ""
    return f"{edge}{extends}best trial: {one.note}"


def _law(law: Law) -> str:
    through = f"goes as FLOPs^{law.exponent:.3g}, through {', '.join(law.sizes)}"
    if law.exponent_low is None or law.exponent_high is None:
        return f"{through}: no interval from two sizes"
    return f"{through}: exponent {_between(law.exponent_low, law.exponent_high)}"


def _between(low: float | None, high: float | None) -> str:
    """An interval; an end beyond the range that was tried is open."""
    return f"{'open' if low is None else f'{low:.4g}'} to {'open' if high is None else f'{high:.4g}'}"
