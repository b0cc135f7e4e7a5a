"""How does each arm come to its own optimum? The verb `tune`: trials as ordinary runs, recipes of what is best.

Idempotent like `run`: a second call finds every trial ended and writes the same files. What a study is and how it goes
on after a kill is in `tuning.study`; an experiment takes the values by `tuned:` (`tuned`). Trials are trained here, or
on a cluster (`trial_jobs`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from k3ablate.records import RunRecord
from k3ablate.search import Range
from k3ablate.storage import require_writable
from k3ablate.training.corpus import Corpus, build
from k3ablate.training.data import check_budget
from k3ablate.training.spec import DataRecipe
from k3ablate.trial_jobs import OnCluster
from k3ablate.tuned import Law, TunedArm, TunedSize
from k3ablate.tuning import findings
from k3ablate.tuning.laws import laws
from k3ablate.tuning.space import widened
from k3ablate.tuning.store import Trial
from k3ablate.tuning.study import Asked, Study, conduct, extend, look
from k3ablate.tuning.trials import SEPARATE, Studies, check_widened, studies
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
        lines += [
            f"{arm}: {path} goes as FLOPs^{law.exponent:.3g}{_between(law.exponent_low, law.exponent_high)} through "
            f"{', '.join(law.sizes)}"
            for arm, by_path in self.laws.items() for path, law in by_path.items()
        ]  # fmt: skip
        lines += [f"{name}: {state}" for name, state in self.open_studies.items()]
        lines += [f"{problem.name} {problem.status}: {problem.reason}" for problem in self.problems]
        return "\n".join([*lines, *self.extended, *self.files])

    def _cells(self, arm: str, name: str, path: str, size: TunedSize) -> list[str]:
        one = size.paths[path]
        value = f"{one.value:.4g}" if isinstance(one.value, float) else str(one.value)
        loss = size.best_loss if not one.is_from_curve or size.curve_loss is None else size.curve_loss
        edge = "AT THE EDGE, `tune --extend` goes on; " if one.is_at_edge else ""
        trials = ", ".join(f"{count} {ended}" for ended, count in size.trials.items())
        source = "curve" if one.is_from_curve else f"{edge}best trial: {one.note}"
        return [arm, name, path, value, _between(one.low, one.high).strip(" ()"), f"{loss:.4f}", trials, source]


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
    corpora = {recipe: build(recipe, corpora_folder(root), reporter.say) for recipe in trial_recipes(experiment)}
    check_validation(experiment.name, corpora)
    every = studies(experiment, {recipe: corpus.digest for recipe, corpus in corpora.items()}, num_trials)
    chosen = every.chosen(arms, sizes)
    folder = root / "tuning" / experiment.name
    extended: list[str] = []
    if is_extended:
        extended, further = _extend(folder, every, chosen)
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
        problems=[_problem(one, record) for one, record in unfinished],
        files=list(map(str, files)),
    )


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


def _extend(folder: Path, every: Studies, chosen: Iterable[Study]) -> tuple[list[str], list[Study]]:
    """Widen what has its optimum at an edge, by size; what was done, and the studies that have trials left now."""
    trials, spaces = look(folder, every.all)
    done: list[str] = []
    further: list[Study] = []
    for size in dict.fromkeys(study.size for study in chosen):
        peers = [study for study in every.all if study.size == size]
        for upwards in (True, False):
            sides = {
                path: upwards
                for study in chosen if study.size == size and findings.is_complete(trials[study.name], every.tuning)
                for path, side in findings.edges(_tuned_size(every, study, trials, spaces)).items() if side is upwards
            }  # fmt: skip
            sides = {
                path: side for path, side in sides.items()
                if widened(spaces[peers[0].name][path], side).ends != spaces[peers[0].name][path].ends
            }  # fmt: skip
            if sides:
                before = spaces[peers[0].name]
                wider = {path: widened(one, sides[path]) if path in sides else one for path, one in before.items()}
                check_widened(every, size, wider)
                extend(folder, peers, sides, every.tuning.trials // 2)
                further += peers
                done += [
                    f"{size}: {path} widened {'upwards' if upwards else 'downwards'}, for every arm" for path in sides
                ]
    return done or ["--extend: no optimum lies at an edge that can be moved"], further


def _tuned_arms(
    every: Studies, trials: Mapping[str, Sequence[Trial]], spaces: Mapping[str, Mapping[str, Range]]
) -> dict[str, TunedArm]:
    """What there is to write: arms with a complete study."""
    found: dict[str, TunedArm] = {}
    for study in every.all:
        if not findings.is_complete(trials[study.name], every.tuning):
            continue
        size = _tuned_size(every, study, trials, spaces)
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


def _tuned_size(
    every: Studies, study: Study, trials: Mapping[str, Sequence[Trial]], spaces: Mapping[str, Mapping[str, Range]]
) -> TunedSize:
    where = f"{every.experiment.name}: arm {study.arm}, size {study.size}"
    flops = every.ladder[study.size].flops
    return findings.tuned_size(trials[study.name], spaces[study.name], every.tuning.reach, flops, where)


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


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({low:.4g} to {high:.4g})"
