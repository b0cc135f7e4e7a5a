"""The command line: one short function per command, and what each exit code means.

0 done, 1 the work failed, 2 the input is wrong (one message says where and what to write), 3 interrupted and resumable.
Answers go to standard output, everything else to standard error. Imports sit inside the functions, so that help is
there at once.
"""

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError, Parameter

import k3ablate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pandas import DataFrame

    from k3ablate.answers import Answer, Problem, Ran

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 3
DEMO = "demo"
RESUMABLE = ("run", "tune", "fairness", DEMO)  # what else is interrupted starts afresh

app = App(
    name="k3ablate",
    help="Train language models from swappable pieces over a ladder of sizes, and split the gain of K3 over K2.\n\n"
    "EXPERIMENT is a YAML file or the name of one in experiments/. Runs lie in runs/, or where K3ABLATE_RUNS says.",
    version=k3ablate.__version__,
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
data_app = App(name="data", help="Corpora: text cut into tokens once, named by content.")
app.command(data_app)

Json = Annotated[bool, Parameter(name="--json", negative="", help="The same numbers at full precision, as JSON.")]
Form = Annotated[
    str | None,
    Parameter(help="Curve that multipliers are read from: power, power_floor, shared_floor or shared_exponent."),
]
Floor = Annotated[float | None, Parameter(help="Floor of a form that arms share; 0 for none; default: a free one.")]
ReadAtLoss = Annotated[float | None, Parameter(name="--at-loss", help="Read every multiplier at this loss.")]
ReadAtFlops = Annotated[
    float | None, Parameter(name="--at-flops", help="Read every multiplier where the baseline has spent this compute.")
]
ReportFolder = Annotated[
    Path | None, Parameter(name="--out", help="Folder to write to, to be committed or served as it is.")
]
Context = Annotated[int | None, Parameter(help="Tokens a token may see; default: 4096, or the run's own.")]
OfRun = Annotated[str | None, Parameter(name="--run", help="Digest or folder of a run whose model is counted.")]
Ranks = Annotated[int | None, Parameter(help="Ranks that share out the experts of a layer.")]
OptimizerOf = Annotated[
    str | None,
    Parameter(name="--optimizer", help="Training recipe, a file or its name: show how it updates each tensor."),
]
FitForm = Annotated[
    str | None,
    Parameter(help="power, power_floor, chinchilla, shared_floor or shared_exponent; default: by what the table has."),
]
By = Annotated[str | None, Parameter(help="Column of the arms, where it is not `arm`.")]
X = Annotated[str | None, Parameter(help="Column of the compute, where it is not `flops`.")]
Y = Annotated[str | None, Parameter(help="Column of the losses, where it is not `loss`.")]
Where = Annotated[
    list[str] | None, Parameter(negative="", help="Rows to keep: column=value, or != < <= > >=; may repeat.")
]
Params = Annotated[str | None, Parameter(help="Column of the parameters, where it is not `active_params`.")]
Tokens = Annotated[str | None, Parameter(help="Column of the tokens, where it is not `tokens`.")]
Predict = Annotated[
    list[str] | None,
    Parameter(negative="", help="Where to forecast: a compute, or parameters,tokens for chinchilla; may repeat."),
]
Delta = Annotated[float, Parameter(help="Huber's threshold; inf for least squares, 0 for least absolute deviations.")]
Of = Annotated[Literal["log", "plain"], Parameter(help="Residuals of ln L, or of the loss itself.")]
FitIntervals = Annotated[
    Literal["noise", "resampling"] | None,
    Parameter(help="Noise of seeds or residuals, or points drawn again; default: noise, resampling for large tables."),
]
FitBaseline = Annotated[str | None, Parameter(help="Arm that the multipliers of all others are against.")]
AtLoss = Annotated[float | None, Parameter(help="Read at this loss; default: the lowest that every arm measured.")]
AtFlops = Annotated[float | None, Parameter(help="Read where the baseline has spent this compute.")]
Target = Annotated[str | None, Parameter(help="Arm to split; default: the last that changes every component.")]
Baseline = Annotated[str | None, Parameter(help="Arm to start from; default: the experiment's, or the first.")]
Total = Annotated[float | None, Parameter(help="Multiplier claimed elsewhere; what the parts leave is unattributed.")]
Components = Annotated[
    list[str] | None, Parameter(name="--component", negative="", help="Column of a component's levels; may repeat.")
]
SeedDeviation = Annotated[
    float | None, Parameter(help="Standard deviation between seeds, in loss; default: .0012, of a public speed-run.")
]
Pilot = Annotated[
    str | None, Parameter(help="Experiment or table with two seeds at some size, which tells noise and curve.")
]
PlannedLoss = Annotated[float | None, Parameter(name="--loss", help="Expected loss of the baseline's largest size.")]
PlannedExponent = Annotated[float | None, Parameter(name="--exponent", help="Expected exponent of its losses.")]
PowerForm = Annotated[
    str | None, Parameter(help="Curve that multipliers are read from: power or power_floor; default: as `report`.")
]
Simulations = Annotated[int, Parameter(help="Tables to simulate.")]
TrueMultipliers = Annotated[
    list[float] | None,
    Parameter(
        name="--multiplier", negative="", help="State the power at this gain; may repeat; default: 1.16 and 1.25."
    ),
]
FigureTable = Annotated[str | None, Parameter(name="--table", help="Experiment, .parquet or .csv of our own runs.")]
FigureFolder = Annotated[Path | None, Parameter(name="--output", help="Default: figures, in the folder of runs.")]
FigureArm = Annotated[
    str | None, Parameter(name="--arm", help="Arm that stands for K3; default: the last that changes most components.")
]
CurveBy = Annotated[Literal["tokens", "flops", "hours"], Parameter(help="What the table shows with intervals.")]
LossTargets = Annotated[
    list[float] | None,
    Parameter(
        name="--target", negative="", help="Loss to read at; may repeat; default: the lowest all meet, and above."
    ),
]
Window = Annotated[
    float | None,
    Parameter(help="Share of the tokens that losses are averaged over; default: 0.1 for a training loss, else 0."),
]
StepColumn = Annotated[str | None, Parameter(name="--step", help="Column of the steps, where it is not `step`.")]
HoursColumn = Annotated[str | None, Parameter(name="--hours", help="Column of the hours, where it is not `hours`.")]
SecondsColumn = Annotated[str | None, Parameter(name="--seconds", help="Column of the seconds, if not `seconds`.")]
CollectFrom = Annotated[Literal["folders", "mlflow"], Parameter(name="--from", help="Where records are read.")]
StoreUri = Annotated[str | None, Parameter(help="MLflow store; default: MLFLOW_TRACKING_URI, or the one beside runs.")]
Cluster = Annotated[str, Parameter(help="A cluster recipe: a file, or the name of one in recipes/cluster.")]
DryRun = Annotated[bool, Parameter(name="--dry-run", negative="", help="Print the scripts; write and submit nothing.")]
Watch = Annotated[bool, Parameter(negative="", help="Look again and again until every run has ended.")]
Every = Annotated[float, Parameter(help="Seconds between two looks of --watch.")]
OfTrials = Annotated[
    bool, Parameter(name="--tuning", negative="", help="Its trials, which `tune --cluster` has submitted, instead.")
]
OnlyArm = Annotated[str | None, Parameter(name="--arm", help="Only runs of this arm.")]
OnlySize = Annotated[str | None, Parameter(name="--size", help="Only runs of this size.")]
TunedArms = Annotated[list[str] | None, Parameter(name="--arm", negative="", help="Tune this arm; may repeat.")]
TunedSizes = Annotated[
    list[str] | None, Parameter(name="--size", negative="", help="Tune at this proxy size; may repeat.")
]
Trials = Annotated[
    int | None, Parameter(help="Trials of every arm at every size, where it is not what EXPERIMENT says.")
]
Extend = Annotated[
    bool, Parameter(name="--extend", negative="", help="First widen each range whose optimum lies at an edge.")
]
LadderFile = Annotated[
    Path | None, Parameter(name="--output", help="File of the ladder; default: recipes/ladders/EXPERIMENT.yaml.")
]
TrialCluster = Annotated[
    str | None, Parameter(name="--cluster", help="Train the trials through Slurm, by this cluster recipe (`submit`).")
]
TunedFolder = Annotated[
    Path | None, Parameter(name="--output", help="Folder of the recipes; default: recipes/tuned/EXPERIMENT.")
]
Workers = Annotated[int | None, Parameter(help="Worker processes, one run each at a time; default: one per core.")]


@app.command
def demo(*, workers: Workers = None, json: Json = False) -> int:
    """The whole path on this machine, in minutes: run, collect and report the experiment `demo`."""
    ran = _run(DEMO, workers)
    _say(ran.text())
    return _code_of(ran) or report(DEMO, json=json)


@app.command
def check(experiment: str, *, json: Json = False) -> int:
    """Read and validate an experiment; show the question and what each arm changes."""
    from k3ablate import verbs

    return _show(verbs.check(experiment, _root()), json)


@app.command
def plan(experiment: str, *, workers: Workers = None, json: Json = False) -> int:
    """Rows, parameters, FLOPs, tokens, states, expected hours, and what the design could tell apart."""
    from k3ablate import verbs

    return _show(verbs.plan(experiment, _root(), _workers(workers)), json)


@app.command
def run(experiment: str, *, workers: Workers = None, json: Json = False) -> int:
    """Train on this machine: skips what is finished, goes on where it was interrupted."""
    ran = _run(experiment, workers)
    if json:
        _show(ran, as_json=True)
    else:
        _say(ran.text())
    return _code_of(ran)


@app.command
def tune(
    experiment: str,
    *,
    arm: TunedArms = None,
    size: TunedSizes = None,
    trials: Trials = None,
    extend: Extend = False,
    output: TunedFolder = None,
    workers: Workers = None,
    cluster: TrialCluster = None,
    json: Json = False,
) -> int:
    """Bring each arm to its own optimum: the same space and number of trials for all; goes on where it was interrupted.

    EXPERIMENT says what is varied (`tuning:`), and another one, or itself, takes the result by `tuned: EXPERIMENT`.
    Several processes may tune one experiment in one folder of runs. With --cluster the trials go through Slurm's queue,
    and this process only waits: it may be stopped and started again while they go on.
    """
    from k3ablate import optimising
    from k3ablate.config import InputError
    from k3ablate.jobs.progress import reporter

    if cluster is not None and workers is not None:
        raise InputError("tune: --workers are this machine's, on a cluster its recipe says `max_running`; write one")
    answer = optimising.tune(
        experiment, _root(), _workers(workers), reporter(sys.stderr), arms=arm or (), sizes=size or (),
        num_trials=None if trials is None else _at_least_one(trials, "--trials"), is_extended=extend, output=output,
        cluster=cluster,
    )  # fmt: skip
    _show(answer, json)
    return _code_of_problems(answer.problems)


@app.command
def fairness(experiment: str, *, form: Form = None, workers: Workers = None, json: Json = False) -> int:
    """Multipliers with the baseline's tuned settings shared and with each arm at its own optimum, side by side.

    EXPERIMENT takes tuned values (`tuned:`); what is missing of either grid is trained first.
    """
    from k3ablate import fairness as fair
    from k3ablate.jobs.progress import reporter

    answer = fair.fairness(experiment, _root(), _workers(workers), reporter(sys.stderr), form)
    _show(answer, json)
    return _code_of_problems(answer.problems)


@app.command
def isoflop(experiment: str, *, output: LadderFile = None, json: Json = False) -> int:
    """Best tokens per parameter at equal compute, by arm: of the runs of EXPERIMENT, whose budgets are FLOPs.

    Writes a ladder, which another experiment takes as a budget {kind: compute_optimal, from: EXPERIMENT}.
    """
    from k3ablate import budgeting

    return _show(budgeting.isoflop(experiment, _root(), output), json)


@app.command
def submit(experiment: str, *, cluster: Cluster, dry_run: DryRun = False, json: Json = False) -> int:
    """Hand to Slurm what is neither done nor in its queue, as arrays; the tasks then go on by themselves."""
    from k3ablate import clusters

    answer = clusters.submit(experiment, _root(), cluster, _say, is_dry_run=dry_run)
    _show(answer, json)
    return FAILED if answer.not_submitted else DONE


@app.command(show=False)
def work(packs: Path) -> int:
    """What a task of a Slurm array runs: its pack of the file PACKS."""
    from k3ablate import clusters
    from k3ablate.jobs.progress import reporter

    worked = clusters.work(packs, reporter(sys.stderr))
    if worked.num_left:
        return INTERRUPTED
    return FAILED if worked.counts.get("failed") else DONE


@app.command
def status(
    experiment: str, *, tuning: OfTrials = False, watch: Watch = False, every: Every = 10.0, json: Json = False
) -> int:
    """States of the runs by arm and size, their pace, the expected end, and the first line of every failure.

    With --watch until every run has ended; Ctrl-C ends that with code 3, so that `&&` goes on only after the runs.
    """
    from k3ablate import standings
    from k3ablate.config import InputError

    if watch and json:
        raise InputError(
            "status: --watch shows a table that changes, --json the numbers of one look; write one of them"
        )
    if watch and tuning:
        raise InputError("status: --watch ends with the runs of a plan, and `tune` itself shows its trials; write one")
    if not watch:
        look = standings.status_of_trials if tuning else standings.status
        return _show(look(experiment, _root()), json)
    if not 1 <= every < float("inf"):
        raise InputError(f"--every {every:g}: seconds between two looks; write 1 or more")
    from k3ablate import watching

    try:
        return _show(watching.watch(experiment, _root(), every, watching.screen(sys.stdout)), as_json=False)
    except BrokenPipeError:  # its reader has seen enough
        _drop_output()
        return DONE


@app.command
def cancel(
    experiment: str, *, tuning: OfTrials = False, arm: OnlyArm = None, size: OnlySize = None, json: Json = False
) -> int:
    """End what Slurm has of it: queued runs leave the queue, running ones write a checkpoint; `submit` goes on."""
    from k3ablate import interventions

    cancelling = interventions.cancel_trials if tuning else interventions.cancel
    answer = cancelling(experiment, _root(), arm, size, _say)
    _show(answer, json)
    return FAILED if answer.problem else DONE


@app.command
def retry(experiment: str, *, json: Json = False) -> int:
    """Open failed, lost and stale runs again: their attempts count anew, metrics and checkpoints stay."""
    from k3ablate import interventions

    return _show(interventions.retry(experiment, _root()), json)


@app.command
def collect(experiment: str, *, source: CollectFrom = "folders", uri: StoreUri = None, json: Json = False) -> int:
    """Run folders to one table, as CSV and parquet; with --from mlflow, what a store of runs has of them."""
    from k3ablate import publishing
    from k3ablate.config import InputError

    if source == "mlflow":
        return _show(publishing.collect_from_store(experiment, _root(), uri), json)
    if uri is not None:
        raise InputError(f"--uri {uri}: names a store of runs; write --from mlflow with it")
    return _show(publishing.collect(experiment, _root()), json)


@app.command
def sync(experiment: str, *, uri: StoreUri = None, json: Json = False) -> int:
    """Send MLflow what it lacks of the runs: after training without a network, or a store that was away."""
    from k3ablate import syncing

    answer = syncing.sync(experiment, _root(), uri, _say)
    _show(answer, json)
    return DONE if answer.is_complete else FAILED


@app.command
def report(
    experiment: str,
    *,
    form: Form = None,
    floor: Floor = None,
    at_loss: ReadAtLoss = None,
    at_flops: ReadAtFlops = None,
    out: ReportFolder = None,
    json: Json = False,
) -> int:
    """Collect, fit, and write tables, figures and the site, into the results of the experiment or another folder."""
    from k3ablate import publishing

    return _show(publishing.report(experiment, _root(), form, floor, at_loss, at_flops, out), json)


@app.command
def fit(
    table: str,
    *,
    form: FitForm = None,
    by: By = None,
    x: X = None,
    y: Y = None,
    params: Params = None,
    tokens: Tokens = None,
    where: Where = None,
    predict: Predict = None,
    delta: Delta = 1e-3,
    residuals: Of = "log",
    intervals: FitIntervals = None,
    baseline: FitBaseline = None,
    json: Json = False,
) -> int:
    """Fit a curve to every arm of TABLE: an experiment, a .parquet or a .csv of runs, anybody's.

    Without --form: chinchilla where --params or --tokens is named or the table has no compute, else power_floor where
    every arm determines its floor, else power. With --baseline every other arm also gets its multiplier against it.
    """
    from k3ablate import answers, fitting
    from k3ablate.fits.forms import SHARED

    frame, convention, first = _table(table)
    found = fitting.fit(
        frame, form, by=by, x=x, y=y, params=params, tokens=tokens, where=where or [],
        predict=[fitting.point(text) for text in predict or []], delta=delta, residuals=residuals, intervals=intervals,
        baseline=first if baseline is None and form in SHARED else baseline,
        flops_convention=convention if x is None else None,
    )  # fmt: skip
    _print(answers.as_json(found.fits) if json else found.text())
    return DONE


@app.command
def split(
    table: str,
    *,
    at_loss: AtLoss = None,
    at_flops: AtFlops = None,
    form: Form = None,
    target: Target = None,
    baseline: Baseline = None,
    total: Total = None,
    components: Components = None,
    by: By = None,
    x: X = None,
    y: Y = None,
    where: Where = None,
    json: Json = False,
) -> int:
    """Split the gain from a baseline to a target arm of TABLE into its components, with intervals.

    TABLE is an experiment, a .parquet or a .csv of runs, anybody's. A full factorial gives Shapley values; of other
    designs it says what their arms tell, and what they do not.
    """
    from k3ablate import splitting

    frame, convention, first = _table(table)
    answer = splitting.split(
        frame, form, baseline=first if baseline is None else baseline, target=target, at_loss=at_loss,
        at_flops=at_flops, total=total, components=components or [], by=by, x=x, y=y, where=where or [],
        flops_convention=convention if x is None else None,
    )  # fmt: skip
    return _show(answer, json)


@app.command
def power(
    experiment: str,
    *,
    seed_deviation: SeedDeviation = None,
    pilot: Pilot = None,
    loss: PlannedLoss = None,
    exponent: PlannedExponent = None,
    multiplier: TrueMultipliers = None,
    form: PowerForm = None,
    at_loss: ReadAtLoss = None,
    at_flops: ReadAtFlops = None,
    simulations: Simulations = 200,
    json: Json = False,
) -> int:
    """What EXPERIMENT could tell apart: interval widths and the smallest gains, by simulating its whole analysis.

    Each simulated table has 119 bootstrap draws (a report has 1,000): of 40 k - 1 draws the middle 95 percent are a
    whole number of ranks, so that fewer make intervals a little wider and not wrong.

    Without --pilot or --seed-deviation the runs of the experiment that have ended tell the noise, if they do.
    """
    from k3ablate import verbs

    answer = verbs.power(
        experiment, _root(), pilot=None if pilot is None else _table(pilot)[0], pilot_name=pilot or "",
        seed_deviation=seed_deviation, loss=loss, exponent=exponent,
        multipliers=multiplier or (), form=form, at_loss=at_loss, at_flops=at_flops, num_tables=simulations,
    )  # fmt: skip
    return _show(answer, json)


@app.command
def compare(
    *runs: str,
    by: CurveBy = "tokens",
    target: LossTargets = None,
    window: Window = None,
    step: StepColumn = None,
    tokens: Tokens = None,
    x: X = None,
    y: Y = None,
    hours: HoursColumn = None,
    seconds: SecondsColumn = None,
    json: Json = False,
) -> int:
    """Compare training curves: tokens, FLOPs and hours that each RUN spends until it meets a loss; the first is 1.

    A RUN is a digest or its first letters, the folder of a run, a .csv with a row per logged step, several of these
    with commas between them (seeds of one group), or EXPERIMENT/ARM/SIZE (all its seeds).
    """
    from k3ablate import comparing

    answer = comparing.compare(
        _logs(runs), by=by, targets=target or [], window=window, step=step, tokens=tokens, x=x, y=y, hours=hours,
        seconds=seconds,
    )  # fmt: skip
    return _show(answer, json)


@app.command
def figure(
    name: str,
    *,
    table: FigureTable = None,
    output: FigureFolder = None,
    baseline: Baseline = None,
    arm: FigureArm = None,
    json: Json = False,
) -> int:
    """Draw the figure NAME, as PNG, SVG, PDF and CSV: k2-vs-k3, as published, with our own runs beside it.

    The published arrow is measured from the coordinates of the report's figure; ours, from the runs of TABLE, stands at
    a loss that both arms measured, with its interval.
    """
    from k3ablate import picturing

    runs = None
    if table is not None:
        frame, convention, first = _table(table)
        runs = picturing.Runs(table, frame, first, convention)
    folder = output or _root() / picturing.FOLDER
    return _show(picturing.figure(name, folder, runs, baseline=baseline, arm=arm), json)


@app.command
def count(
    model: str | None = None,
    *,
    of_run: OfRun = None,
    context: Context = None,
    ranks: Ranks = None,
    optimizer: OptimizerOf = None,
    json: Json = False,
) -> int:
    """Parameters by group and convention, FLOPs per token, links and, with --ranks, expert-parallel traffic of MODEL.

    With --optimizer also which rule each tensor falls under: its update, how Muon cuts it, its scale and its decay.
    MODEL is a recipe file, its name, kimi-k2 or kimi-k3; with --run instead, it is the model of that run, and --ranks
    also reads how the run's tokens were routed.
    """
    from k3ablate import counting
    from k3ablate.config import InputError

    tokens = None if context is None else _at_least_one(context, "--context")
    num_ranks = None if ranks is None else _at_least_one(ranks, "--ranks")
    if model is not None and of_run is None:
        return _show(counting.count_model(model, tokens, num_ranks, optimizer), json)
    if of_run is not None and model is None:
        return _show(counting.count_run(of_run, _root(), tokens, num_ranks, optimizer), json)
    raise InputError("count: write either MODEL or --run RUN")


@data_app.command
def build(recipe: str, *, json: Json = False) -> int:
    """Build the corpus of RECIPE, a file or the name of one in recipes/data, if it is not there."""
    from k3ablate import verbs

    return _show(verbs.build_corpus(recipe, _root(), _say), json)


@data_app.command
def info(recipe: str, *, json: Json = False) -> int:
    """What the corpus of RECIPE holds."""
    from k3ablate import verbs

    return _show(verbs.corpus_info(recipe, _root()), json)


@app.command
def doctor(*, json: Json = False) -> int:
    """What this machine has, and what that allows."""
    from k3ablate.doctor import examine

    return _show(examine(_root()), json)


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` and `timeout` stop as Ctrl-C does
        code = _exit_code(arguments)
    except KeyboardInterrupt:
        command = (sys.argv[1:] if arguments is None else arguments)[:1]
        goes_on = bool(command) and command[0] in RESUMABLE
        _say(f"interrupted; the same command {'goes on from here' if goes_on else 'starts afresh'}")
        code = INTERRUPTED
    sys.exit(code)


def _exit_code(arguments: list[str] | None) -> int:
    from k3ablate import storage
    from k3ablate.config import InputError

    try:
        code = app(arguments, exit_on_error=False)
    except CycloptsError:
        return WRONG_INPUT  # it has said what is wrong
    except InputError as error:
        _say(str(error))
        return WRONG_INPUT
    except OSError as error:
        problem = storage.problem(error)
        if problem is None:
            raise
        _say(problem)
        return WRONG_INPUT
    return code if isinstance(code, int) else DONE


def _table(name: str) -> "tuple[DataFrame, str | None, str | None]":
    """Runs in a file, or of an experiment with its FLOPs convention and its baseline, collected afresh."""
    from k3ablate import records
    from k3ablate.config import InputError
    from k3ablate.recipes import EXPERIMENT_SUFFIXES
    from k3ablate.table_files import TABLE_SUFFIXES

    path = Path(name)
    if path.suffix in TABLE_SUFFIXES or (path.is_file() and path.suffix not in (*EXPERIMENT_SUFFIXES, "")):
        return records.read_table(path), None, None
    if path.is_dir() and "/" in name:
        raise InputError(f"{name}: is a folder; name a table of runs, a .csv or .parquet file, or an experiment")
    from k3ablate import publishing

    frame, baseline = publishing.runs(name, _root())
    return frame, records.FLOPS_CONVENTION, baseline


def _logs(names: tuple[str, ...]) -> "dict[str, list[DataFrame]]":
    """What the runs of each name logged; only the runs of an experiment's arm need its plan, and so torch."""
    from k3ablate import run_logs
    from k3ablate.config import InputError

    found: dict[str, list[run_logs.NamedRun]] = {}
    for name in names:
        if name in found:
            raise InputError(f"compare: {name} stands there twice; name each run once")
        runs = run_logs.find_group(name, _root())
        if runs is None:
            from k3ablate import verbs

            runs = [run_logs.NamedRun(name, folder) for folder in verbs.cell(name, _root())]
        found[name] = runs
    run_logs.refuse_repeats(found)
    return {name: [run.read() for run in runs] for name, runs in found.items()}


def _run(experiment: str, workers: int | None) -> "Ran":
    from k3ablate import verbs
    from k3ablate.jobs.progress import reporter

    return verbs.run(experiment, _root(), _workers(workers), reporter(sys.stderr))


def _code_of(ran: "Ran") -> int:
    """A diverged run is a result; a failed one is not, and one out of time is not over."""
    if ran.counts.get("failed"):
        return FAILED
    return INTERRUPTED if ran.counts.get("out_of_time") else DONE


def _code_of_problems(problems: "Sequence[Problem]") -> int:
    """As `_code_of` for runs."""
    statuses = {problem.status for problem in problems}
    if "failed" in statuses:
        return FAILED
    return INTERRUPTED if "out_of_time" in statuses else DONE


def _show(answer: "Answer", as_json: bool) -> int:
    from k3ablate import answers

    _print(answers.as_json(answer) if as_json else answer.text())
    return DONE


def _print(text: str) -> None:
    """To standard output, at once: its errors are none of the folder of runs."""
    from k3ablate.config import InputError

    try:
        print(text, flush=True)
    except BrokenPipeError:
        _drop_output()  # its reader, e.g. `head`, has seen enough
    except OSError as error:
        _drop_output()
        problem = (error.strerror or str(error)).lower()
        raise InputError(f"standard output: {problem}; send it to a place that takes it") from error


def _drop_output() -> None:
    """What standard output still holds goes nowhere, or Python would try to write it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _root() -> Path:
    from k3ablate.storage import runs_root

    return runs_root()


def _workers(workers: int | None) -> int:
    from k3ablate.jobs.local import default_workers

    return default_workers() if workers is None else _at_least_one(workers, "--workers")


def _at_least_one(value: int, option: str) -> int:
    from k3ablate.config import InputError

    if value < 1:
        raise InputError(f"{option} {value}: write 1 or more")
    return value


if __name__ == "__main__":
    main()
