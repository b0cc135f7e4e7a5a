"""The command line from the outside: exit codes, one message per mistake, pure JSON."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from k3ablate import cli, publishing, verbs
from k3ablate.answers import Problem, Ran
from k3ablate.jobs import local
from k3ablate.jobs.folders import RunFolder, prepare
from k3ablate.records import Evaluation, RoutedPairs, RunRecord, Status, write_routing

DENSE = """
vocabulary_size: 32
width: 8
num_layers: 2
mixer: {main: {kind: softmax, num_heads: 2, num_key_value_heads: 2, head_width: 4}}
feed_forward: {main: {kind: dense, hidden_width: 16}}
"""
HEAVY = ("torch", "lightning", "mlflow", "datasets", "pandas", "scipy", "matplotlib", "numba")

EXPERIMENT = """
name: tiny
question: Does anything change?
expected: nothing
stopping: a training loss above training.divergence_loss stops the run
exclusion: diverged runs are listed
baseline:
  model: kimi-k2
  data:
    source: {kind: files, format: text, train: [train.txt], validation: [validation.txt]}
  training: cpu
  set: {training.context: 32, training.batch_size: 4, training.validation_tokens: 64}
components:
  attention:
    levels:
      k2: {}
      k3: {model.mixer: {from: kimi-k3}}
design: one_at_a_time
names: {baseline: k2}
match: none
sizes:
  - {name: xs, width: 32, num_layers: 4, head_width: 16, num_active: 2}
budgets:
  - {kind: tokens, tokens: 256}
seeds: [0]
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an experiment, its text, and a folder of runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("K3ABLATE_RUNS", str(tmp_path / "runs"))
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
    (tmp_path / "dense.yaml").write_text(DENSE)
    for name, num_lines in (("train", 200), ("validation", 40)):
        (tmp_path / f"{name}.txt").write_text("\n".join(f"{name} line {line}" for line in range(num_lines)))
    return tmp_path


@pytest.fixture
def k3ablate(place: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Result]]:
    """Run one command in this process."""
    before = signal.getsignal(signal.SIGTERM)

    def run(*arguments: str) -> Result:
        with pytest.raises(SystemExit) as stopped:
            cli.main([*arguments])
        captured = capsys.readouterr()
        assert isinstance(stopped.value.code, int)
        return Result(stopped.value.code, captured.out, captured.err)

    yield run
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def edit(place: Path) -> Callable[[Mapping[str, str]], None]:
    """Replace pieces of the experiment; each must be there."""

    def edit(pieces: Mapping[str, str]) -> None:
        text = (place / "tiny.yaml").read_text()
        for old, new in pieces.items():
            assert old in text
            text = text.replace(old, new)
        (place / "tiny.yaml").write_text(text)

    return edit


def assert_refused(result: Result, *pieces: str) -> None:
    """Exit code 2, nothing on standard output, no traceback, and a message that holds every piece."""
    assert result.code == 2
    assert result.out == ""
    assert "Traceback" not in result.err
    for piece in pieces:
        assert piece in result.err


@pytest.mark.parametrize(
    ("change", "pieces"),
    [
        pytest.param(
            {"design: one_at_a_time": "design: one_at_a_time\ncolour: red"},
            ("tiny.yaml", "colour", "'red'", "write one of"),
            id="unknown key",
        ),
        pytest.param(
            {"{from: kimi-k3}": "{main: {kind: mamba}}"},
            ("tiny.yaml", "model.mixer.main", "'mamba'", "'kda'"),
            id="unknown tag",
        ),
        pytest.param(
            {"{from: kimi-k3}": "{from: kimi-k2}"},
            ("tiny.yaml", "components.attention.levels.k3", "changes nothing", "write another value"),
            id="an arm that changes nothing",
        ),
        pytest.param(
            {
                "attention:": "feed_forward:",
                "mixer: {from: kimi-k3}": "feed_forward: {main: {kind: dense, hidden_width: 64}}",
            },
            ("tiny.yaml", "balancing is 'sign_update'", "has no router", "write balancing: {kind: none}"),
            id="balancing without a router",
        ),
        pytest.param(
            {"training.batch_size: 4": "training.batch_size: 4, training.micro_batch_size: 3"},
            ("tiny.yaml", "baseline.training", "micro_batch_size 3 does not divide batch_size 4", "write a divisor"),
            id="batches that do not divide",
        ),
        pytest.param(
            {"seeds: [0]": "seeds: [0]\nseeds: [1]"},
            ("tiny.yaml", "duplicate key", "seeds"),
            id="duplicate keys",
        ),
        pytest.param(
            {"training: cpu": "training: gpu"},
            ("recipes/training/gpu.yaml", "no such training recipe", "cpu"),
            id="an unknown recipe",
        ),
        pytest.param(
            {"tokens: 256": "tokens: many"},
            ("tiny.yaml", "budgets", "'many'"),
            id="a word for a number",
        ),
    ],
)
@pytest.mark.parametrize("command", ["check", "plan"])
def test_bad_experiments_are_refused_with_the_place_and_the_remedy(
    k3ablate: Callable[..., Result], edit, change: Mapping[str, str], pieces: tuple[str, ...], command: str
) -> None:
    edit(change)
    assert_refused(k3ablate(command, "tiny.yaml"), *pieces)


def test_a_missing_file_is_refused_with_its_neighbours(k3ablate: Callable[..., Result]) -> None:
    assert_refused(k3ablate("check", "tinny.yaml"), "tinny.yaml: no such file", "did you mean 'tiny.yaml'?")


def test_an_unknown_experiment_is_refused_with_the_known_ones(k3ablate: Callable[..., Result]) -> None:
    assert_refused(k3ablate("plan", "nonesuch"), "experiments/nonesuch.yaml: no such experiment", "demo")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["power", "a.csv"],
            "a.csv: is a table of runs, and an experiment is needed: a YAML file, or one of attnres, ",
        ),
        (["report", "a.parquet"], "a.parquet: is a table of runs, and an experiment is needed: "),
        (
            ["power", "empty/none.yaml"],
            "empty/none.yaml: no such file; name an experiment by its YAML file, or one of ",
        ),
        (["power", "nowhere/none"], "nowhere/none: no such file; name an experiment by its YAML file, or one of "),
        (["fit", "empty/none.yaml"], "empty/none.yaml: no such file; name an experiment by its YAML file, or one of "),
        (["fit", "./empty"], "./empty: is a folder; name a table of runs, a .csv or .parquet file, or an experiment"),
        (["split", "/"], "/: is a folder; name a table of runs"),
        (["fit", "train.txt"], "train.txt: a table is a .csv or a .parquet file"),
        (["compare", "tiny.yaml", "./empty"], "tiny.yaml: a file that is no log; name a .csv"),
        (
            ["compare", "./empty", "tiny.yaml"],
            "./empty: no folder of a run (metrics.jsonl is not in it); name a folder",
        ),
    ],
)
def test_a_name_of_another_kind_is_told_what_was_expected(
    k3ablate: Callable[..., Result], place: Path, arguments: list[str], message: str
) -> None:
    (place / "empty").mkdir()
    result = k3ablate(*arguments)
    assert_refused(result)
    assert result.err.startswith(message)
    assert len(result.err.splitlines()) == 1


def test_a_corpus_too_small_is_refused_before_the_first_run(k3ablate: Callable[..., Result], edit, place: Path) -> None:
    edit({"tokens: 256": "tokens: 1000000"})
    result = k3ablate("run", "tiny.yaml")
    assert_refused(result, "tiny: arm k2, size xs", "1,000,064", "write at most 2,816")
    assert list((place / "runs").glob("*/spec.json")) == []


def test_a_runs_folder_below_a_file_is_refused(k3ablate: Callable[..., Result], place, monkeypatch) -> None:
    monkeypatch.setenv("K3ABLATE_RUNS", str(place / "tiny.yaml" / "runs"))
    assert_refused(k3ablate("run", "tiny.yaml"), "tiny.yaml/runs", "a part of this path is a file", "K3ABLATE_RUNS")


@pytest.mark.parametrize(
    ("number", "pieces"),
    [
        (errno.ENOSPC, ("the disk is full", "free some space")),
        (errno.EACCES, ("no permission", "a folder that you may write to")),
        (errno.EROFS, ("read-only", "a folder that can be written to")),
    ],
)
def test_a_disk_that_refuses_is_one_message(
    k3ablate: Callable[..., Result], place: Path, monkeypatch: pytest.MonkeyPatch, number: int, pieces: tuple[str, ...]
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    result = k3ablate("run", "tiny.yaml")
    assert_refused(result, str(place / "runs"), "K3ABLATE_RUNS", *pieces)
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "piece"),
    [
        (["frobnicate"], "frobnicate"),
        (["plan"], "--experiment"),
        (["plan", "tiny.yaml", "--wrong"], "--wrong"),
        (["plan", "tiny.yaml", "--workers", "many"], "many"),
        (["plan", "tiny.yaml", "--workers", "0"], "--workers 0: write 1 or more"),
        (["count", "kimi-k3", "--context", "0"], "--context 0: write 1 or more"),
        (["count", "kimi-k4"], "kimi-k3"),
        (["count", "kimi-k3", "--ranks", "0"], "--ranks 0: write 1 or more"),
        (
            ["count", "kimi-k3", "--ranks", "5"],
            "ranks 5: 896 experts do not lie on them in equal shares; write one of 1,",
        ),
        (["count", "dense.yaml", "--ranks", "2"], "--ranks 2: dense.yaml has no routed experts"),
        (["count"], "count: write either MODEL or --run RUN"),
        (["count", "kimi-k3", "--run", "0123"], "count: write either MODEL or --run RUN"),
        (["count", "--run", "0123"], "0123: no run, neither below"),
        (["data", "info", "nonesuch"], "recipes/data/nonesuch.yaml"),
        (["collect", "tiny.yaml"], "k3ablate run tiny.yaml"),
    ],
)
def test_wrong_calls_are_refused(k3ablate: Callable[..., Result], arguments: list[str], piece: str) -> None:
    result = k3ablate(*arguments)
    assert result.code == 2
    assert piece in " ".join((result.out + result.err).split())


@pytest.mark.parametrize(
    ("counts", "code"),
    [
        ({"finished": 2}, 0),
        ({"finished": 1, "diverged": 1}, 0),
        ({"finished": 1, "failed": 1}, 1),
        ({"finished": 1, "out_of_time": 1}, 3),
        ({"failed": 1, "out_of_time": 1}, 1),
    ],
)
def test_exit_codes_of_a_grid(
    k3ablate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, counts: dict[str, int], code: int
) -> None:
    ran = Ran("tiny", counts, [Problem("k2 xs seed 0", "failed", "ZeroDivisionError: why")])
    monkeypatch.setattr(verbs, "run", lambda *arguments: ran)
    result = k3ablate("run", "tiny.yaml")
    assert result.code == code
    assert result.out == ""
    assert result.err.splitlines()[1:] == ["k2 xs seed 0 failed: ZeroDivisionError: why"]


def test_a_grid_answers_in_json(k3ablate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Ran("tiny", Counter(finished=2, failed=1), [Problem("k2 xs seed 0", "failed", "ZeroDivisionError: why")])
    monkeypatch.setattr(verbs, "run", lambda *arguments: ran)
    result = k3ablate("run", "tiny.yaml", "--json")
    assert json.loads(result.out) == {
        "experiment": "tiny",
        "counts": {"finished": 2, "failed": 1},
        "problems": [{"name": "k2 xs seed 0", "status": "failed", "reason": "ZeroDivisionError: why"}],
    }
    assert (result.code, result.err) == (1, "")


def test_a_kernel_that_does_not_exist_starts_no_worker(
    k3ablate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "run_grid", lambda *arguments: pytest.fail("a grid was about to start"))
    for forced, problem in (("foo", "=foo: no such kernel"), ("foo=numba", " foo: no such operation")):
        monkeypatch.setenv("K3ABLATE_KERNELS", forced)
        result = k3ablate("run", "tiny.yaml")
        assert_refused(result, problem)
        assert result.err.splitlines()[-1].startswith("K3ABLATE_KERNELS: ")


def test_an_interrupted_grid_says_so(k3ablate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> Ran:
        raise KeyboardInterrupt

    monkeypatch.setattr(verbs, "run", interrupt)
    result = k3ablate("run", "tiny.yaml")
    assert (result.code, result.out) == (3, "")
    assert result.err == "interrupted; the same command goes on from here\n"


def test_an_interrupt_while_libraries_load_says_so(
    k3ablate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_exit_code", interrupt)
    for command, told in (("run", "goes on from here"), ("demo", "goes on from here"), ("plan", "starts afresh")):
        assert k3ablate(command, "tiny.yaml") == Result(3, "", f"interrupted; the same command {told}\n")


@pytest.mark.parametrize("command", ["power", "report", "collect", "fit", "split"])
def test_what_keeps_nothing_says_that_it_starts_afresh(
    k3ablate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    for name in ("report", "collect", "runs"):
        monkeypatch.setattr(publishing, name, interrupt)
    monkeypatch.setattr(verbs, "power", interrupt)
    assert k3ablate(command, "tiny.yaml") == Result(3, "", "interrupted; the same command starts afresh\n")


def test_a_failed_grid_is_not_reported(k3ablate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "run", lambda *arguments: Ran("demo", {"failed": 1}, []))
    monkeypatch.setattr(publishing, "report", lambda *arguments: pytest.fail("nothing to report"))
    assert k3ablate("demo").code == 1


def test_check_shows_the_question_and_every_change(k3ablate: Callable[..., Result]) -> None:
    text = k3ablate("check", "tiny.yaml").out
    assert text.startswith("tiny: Does anything change?\n")
    assert "k2 (the baseline's configuration)" in text
    assert '  model.mixer.main.kind: "mla" -> "kda"' in text
    answer = json.loads(k3ablate("check", "tiny.yaml", "--json").out)
    assert {"path": "model.mixer.main.kind", "before": "mla", "after": "kda"} in answer["arms"]["+attention"]
    assert answer["arms"]["k2"] == []
    assert answer["num_rows"] == 2


def test_a_plan_has_totals_and_states_its_assumption(k3ablate: Callable[..., Result], place: Path) -> None:
    answer = json.loads(k3ablate("plan", "tiny.yaml", "--workers", "2", "--json").out)
    first, second = answer["rows"]
    assert (first["arm"], first["size"], first["seed"], first["tokens"]) == ("k2", "xs", 0, 256)
    assert first["flops"] == 3 * first["flops_per_token"] * 256
    assert answer["flops"] == first["flops"] + second["flops"]
    assert answer["hours_left"] == answer["flops"] / answer["flops_per_second"] / 2 / 3600
    text = k3ablate("plan", "tiny.yaml").out
    assert "assumed; nothing has been measured here yet" in text
    assert verbs.UNBUILT_NOTE in text
    assert not (place / "runs").exists()


def test_a_count_is_exact(k3ablate: Callable[..., Result]) -> None:
    answer = json.loads(k3ablate("count", "kimi-k3", "--json").out)
    assert {"total_params", "active_params", "flops_per_token", "links", "groups"} <= set(answer)
    assert sum(answer["groups"].values()) == answer["total_params"]
    assert round(answer["active_params"] / 1e9, 4) == 104.1896  # architecture specification, section 3
    assert sum(answer["flops"].values()) == answer["flops_per_token"]
    assert (answer["links"], answer["link_table"][1]["block_with_output"]) == (1_003, 1_003)
    assert (answer["traffic"], answer["run_traffic"]) == (None, None)
    assert f"{answer['total_params']:,}" in k3ablate("count", "kimi-k3").out


def test_a_count_shows_every_number_of_its_json(k3ablate: Callable[..., Result]) -> None:
    answer = json.loads(k3ablate("count", "kimi-k3", "--ranks", "32", "--json").out)
    text = k3ablate("count", "kimi-k3", "--ranks", "32").out
    assert {(reading["counted"], reading["published"]) for reading in answer["conventions"]} == {
        ("total", 2.78e12),
        ("activated", 104.2e9),
        ("checkpoint", 2_779_931_837_184),
    }
    traffic = answer["traffic"]
    assert (traffic["leaving_share"], traffic["worst_load"], traffic["bytes_per_number"]) == (31 / 32, 1.0, 2)
    shown = [
        *answer["groups"].values(),
        *answer["outside"].values(),
        *(reading["parameters"] for reading in answer["conventions"]),
        *(value for row in answer["link_table"] for value in row.values() if isinstance(value, int)),
        round(traffic["full_width_bytes"]),
        round(traffic["routed_width_bytes"]),
    ]
    assert [value for value in shown if f" {value:,}" not in text] == []


def test_a_recipe_by_path_has_nothing_published(k3ablate: Callable[..., Result]) -> None:
    answer = json.loads(k3ablate("count", "dense.yaml", "--json").out)
    assert {reading["published"] for reading in answer["conventions"]} == {None}
    assert (answer["links"], answer["link_table"]) == (0, [])
    assert answer["groups"]["softmax_mixers"] == 2 * 4 * 8 * 8  # layers, matrices, in, out
    assert " - " in k3ablate("count", "dense.yaml").out


def fake_records(root: Path) -> list[RunFolder]:
    """Every run of the experiment ended, without being trained."""
    experiment = verbs.load(Path("tiny.yaml"))
    found = []
    for row in verbs.plan_from_built_corpora(experiment, root, lambda message: None).rows:
        assert row.spec is not None
        folder = prepare(root, row.spec)
        evaluation = Evaluation(loss=2.0 + row.label.seed, bits_per_byte=3.0, num_tokens=64)
        folder.write_record(
            RunRecord(
                digest=row.label.digest,
                status=Status.FINISHED,
                evaluations={"validation": evaluation},
                num_steps=2,
                tokens=row.tokens,
                flops=row.flops,
                flops_6nd=row.flops,
                active_params=row.counts.active_params,
                total_params=row.counts.total_params,
                wall_seconds=4.0,
                tokens_per_second=64.0,
                corpus=row.spec.corpus,
            )
        )
        found.append(folder)
    return found


@pytest.mark.slow
def test_a_run_is_counted_with_the_routing_that_it_left(k3ablate: Callable[..., Result], place: Path) -> None:
    """Three routed layers of 96 experts on two ranks: all pairs on one, three quarters, and half."""
    folder, _ = fake_records(place / "runs")
    pairs = [[2] * 48 + [0] * 48, [1] * 48 + [3] * 48, [7] * 96]
    write_routing(RoutedPairs(digest=folder.digest, validation="validation", num_tokens=48, pairs=pairs), folder.path)
    answer = json.loads(k3ablate("count", "--run", folder.digest, "--ranks", "2", "--json").out)
    record = folder.record()
    assert record is not None
    assert (answer["total_params"], answer["active_params"]) == (record.total_params, record.active_params)
    assert answer["flops_per_token"] * 3 * record.tokens == record.flops  # at the run's own context
    run = answer["run_traffic"]
    assert (run["run"], run["validation"], run["num_tokens"]) == (folder.digest, "validation", 48)
    assert [layer["layer"] for layer in run["layers"]] == [1, 2, 3]
    traffics = [layer["traffic"] for layer in run["layers"]]
    assert [traffic["worst_load"] for traffic in traffics] == [2.0, 1.5, 1.0]
    assert {traffic["leaving_share"] for traffic in traffics} == {0.5}
    assert {traffic["full_width_bytes"] for traffic in traffics} == {2 * 2 * 0.5 * 32 * 2}
    assert traffics[2] == answer["traffic"]
    text = k3ablate("count", "--run", str(folder.path), "--ranks", "2").out
    rows = [line.split() for line in text.splitlines() if line.startswith(("even", "run, layer"))]
    assert [row[-3:] for row in rows] == [["50.00%", load, "128"] for load in ("1.000", "2.000", "1.500", "1.000")]
    assert f"run {folder.digest}: as it routed 48 tokens of validation" in text


@pytest.mark.slow
def test_the_figure_of_an_experiment_has_its_baseline_and_says_what_there_is(
    k3ablate: Callable[..., Result], place: Path
) -> None:
    fake_records(place / "runs")
    answer = json.loads(k3ablate("figure", "k2-vs-k3", "--table", "tiny.yaml", "--json").out)
    drawn = {row["arm"] for row in answer["data"] if row["panel"] == "ours" and row["arm"]}
    assert drawn == {"k2 (baseline)", "+attention"}
    assert any(line.startswith("ours: no multiplier of +attention") and "one size" in line for line in answer["says"])
    assert [Path(file).parent for file in answer["files"]] == [place / "runs" / "figures"] * 4


@pytest.mark.slow
def test_a_run_without_counts_of_its_routing(k3ablate: Callable[..., Result], place: Path) -> None:
    folder, _ = fake_records(place / "runs")
    arguments = ("count", "--run", folder.digest, "--ranks", "2")
    assert_refused(k3ablate(*arguments), "no routing.json", "finished before counts were kept; delete the folder")
    folder.forget_failure()
    assert_refused(k3ablate(*arguments), "no routing.json", "this run is waiting; name one that has finished")
    assert json.loads(k3ablate(*arguments[:-2], "--json").out)["traffic"] is None  # all but traffic needs no counts


@pytest.mark.slow
def test_a_run_whose_specification_is_damaged_is_named(k3ablate: Callable[..., Result], place: Path) -> None:
    folder, other = fake_records(place / "runs")
    (folder.path / "spec.json").write_text('{"model": ')
    assert_refused(
        k3ablate("count", "--run", folder.digest), f"{folder.digest}/spec.json: not the specification of a run"
    )
    (other.path / "spec.json").write_text(other.frozen().model_dump_json().replace('"seed":0', '"seed":7'))
    assert_refused(k3ablate("count", "--run", other.digest), f"{other.digest}/spec.json:", "it was edited")


@pytest.mark.slow
def test_a_finished_experiment_loads_no_training_library(place: Path) -> None:
    fake_records(place / "runs")
    script = (
        "import sys\nfrom k3ablate.cli import main\ntry:\n    main(['run', 'tiny.yaml'])\n"
        "except SystemExit as stop:\n    print(stop.code, {'lightning', 'mlflow', 'datasets'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "0 set()\n"
    assert result.stderr == "tiny: 2 finished\n"


@pytest.mark.slow
def test_what_has_ended_is_shown_collected_and_measured(k3ablate: Callable[..., Result], place: Path) -> None:
    first, _ = fake_records(place / "runs")
    record = first.record()
    assert record is not None
    changes = {"status": "failed", "reason": "Broke: so\nit did", "evaluations": {}}
    first.write_failure(RunRecord.model_validate(record.tree() | changes), "Traceback")
    status = k3ablate("status", "tiny.yaml")
    assert status.out.splitlines()[-2:] == ["tiny: 1 failed, 1 finished", "k2 xs seed 0 failed: Broke: so"]
    assert json.loads(k3ablate("status", "tiny.yaml", "--json").out)["counts"] == {
        "k2": {"xs": {"failed": 1}},
        "+attention": {"xs": {"finished": 1}},
    }

    collected = json.loads(k3ablate("collect", "tiny.yaml", "--json").out)
    assert (collected["num_rows"], collected["counts"]) == (2, {"failed": 1, "finished": 1})
    assert [Path(file).name for file in collected["files"]] == ["runs.csv", "runs.parquet"]
    assert (place / "runs" / "results" / "tiny" / "runs.csv").read_text().startswith("digest,experiment,arm,")

    plan = json.loads(k3ablate("plan", "tiny.yaml", "--json").out)
    assert plan["basis"] == "measured on 2 runs"
    assert plan["flops_per_second"] == plan["flops"] / 8.0
    assert plan["flops_left"] == plan["rows"][0]["flops"]


@pytest.mark.slow
def test_a_corpus_is_built_once_and_described(k3ablate: Callable[..., Result], place: Path) -> None:
    (place / "text.yaml").write_text(
        "source: {kind: files, format: text, train: [train.txt], validation: [validation.txt]}"
    )
    assert_refused(k3ablate("data", "info", "text.yaml"), "text.yaml: this corpus is not built", "k3ablate data build")
    built = k3ablate("data", "build", "text.yaml", "--json")
    assert "corpus: reading files" in built.err
    answer = json.loads(built.out)
    assert {found["name"]: found["num_documents"] for found in answer["sets"]} == {"train": 1, "validation": 1}
    assert json.loads(k3ablate("data", "info", "text.yaml", "--json").out) == answer
    assert k3ablate("data", "build", "text.yaml", "--json").err == ""


COMMAND = [sys.executable, "-m", "k3ablate.cli", "count", "dense.yaml"]


def test_a_reader_that_has_seen_enough_is_no_error(place: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(COMMAND, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_full_standard_output_is_told_as_such(place: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(COMMAND, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (
        2,
        "standard output: no space left on device; send it to a place that takes it\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--version"], ["run", "--help"], ["data", "--help"], ["fit", "--help"], ["compare", "--help"]],
)
def test_help_loads_no_heavy_library(arguments: list[str]) -> None:
    script = (
        f"import sys\nfrom k3ablate.cli import main\ntry:\n    main({arguments!r})\n"
        f"except SystemExit as stop:\n    print('exit', stop.code, sorted(set({HEAVY!r}) & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "exit 0 []"


def test_help_names_every_command(k3ablate: Callable[..., Result]) -> None:
    result = k3ablate("--help")
    assert result.code == 0
    for command in (
        "check", "plan", "run", "status", "collect", "report", "demo", "count", "doctor", "data", "fit", "split",
        "compare", "power", "sync", "submit", "cancel", "retry", "figure",
    ):  # fmt: skip
        assert f" {command} " in result.out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning")
def test_what_was_left_in_folders_is_sent_and_collected_again(
    k3ablate: Callable[..., Result], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    fake_records(place / "runs")
    k3ablate("collect", "tiny.yaml")
    table = place / "runs" / "results" / "tiny" / "runs.csv"
    here = table.read_bytes()
    sent = k3ablate("sync", "tiny.yaml")
    assert (sent.code, sent.out) == (0, f"tiny: 2 sent; store sqlite:///{place / 'runs' / 'mlflow.db'}\n")
    assert json.loads(k3ablate("sync", "tiny.yaml", "--json").out)["counts"] == {"nothing_new": 2}
    table.unlink()
    assert k3ablate("collect", "tiny.yaml", "--from", "mlflow").code == 0
    assert table.read_bytes() == here
    lost = k3ablate("sync", "tiny.yaml", "--uri", "http://127.0.0.1:9")
    assert (lost.code, lost.out.splitlines()[-1][:25]) == (1, "the store cannot be used ")
    assert_refused(k3ablate("collect", "tiny.yaml", "--uri", "http://127.0.0.1:9"), "write --from mlflow with it")


def log_curves(folders: list[RunFolder]) -> None:
    """Every run logged a falling loss over 100 steps."""
    for folder in folders:
        lines = [{"step": step, "tokens": 128 * (step + 1), "loss": 2.0 + 3.0 / (step + 1)} for step in range(100)]
        (folder.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_compare_takes_all_seeds_of_an_arm_and_size(k3ablate: Callable[..., Result], place: Path, edit) -> None:
    edit({"seeds: [0]": "seeds: [0, 1]"})
    log_curves(fake_records(place / "runs"))
    result = k3ablate("compare", "tiny.yaml/k2/xs", str(place / "tiny.yaml") + "/+attention/xs", "--json")
    assert result.code == 0
    found = json.loads(result.out)
    assert [run["seeds"] for run in found["runs"]] == [["0", "1"], ["0", "1"]]
    assert found["readings"][1]["ratio"]["tokens"] == {"value": 1.0, "interval": {"low": 1.0, "high": 1.0}}


def test_compare_finds_collected_runs_of_an_older_plan(k3ablate: Callable[..., Result], place: Path, edit) -> None:
    log_curves(fake_records(place / "runs"))
    k3ablate("collect", "tiny.yaml")
    edit({"tokens: 256": "tokens: 384"})
    result = k3ablate("compare", "tiny.yaml/k2/xs", "tiny.yaml/+attention/xs")
    assert result.code == 0
    assert "tiny.yaml/+attention/xs" in result.out


def test_compare_refuses_cells_that_are_not_there(k3ablate: Callable[..., Result]) -> None:
    assert_refused(k3ablate("compare", "tiny.yaml/k2/xs", "tiny.yaml/k3/xs"), "no run of it has logged anything")
    assert_refused(k3ablate("compare", "tiny.yaml/k9/xs", "tiny.yaml/k2/xs"), "no such arm and size", "+attention/xs")


TWO_SIZES = {
    "  - {name: xs, width: 32, num_layers: 4, head_width: 16, num_active: 2}": (
        "  - {name: xs, width: 32, num_layers: 4, head_width: 16, num_active: 2}\n"
        "  - {name: s, width: 64, num_layers: 4, head_width: 16, num_active: 2}"
    ),
    "seeds: [0]": "seeds: [0, 1]\nreplicate_seeds: [100, 101]",
}


def test_plan_says_what_the_design_tells_apart_and_what_it_assumed(k3ablate: Callable[..., Result], edit) -> None:
    edit(TWO_SIZES)
    result = k3ablate("plan", "tiny.yaml")
    assert "told from 1 in 8 of 10 such experiments: a multiplier of 1.0" in result.out
    assert "assumed: a deviation of 0.0012 in loss between seeds, that of a public speed-run" in result.out
    power = json.loads(k3ablate("plan", "tiny.yaml", "--json").out)["power"]
    assert [arm["name"] for arm in power["arms"]] == ["+attention", "a/a"]
    assert power["arms"][0]["smallest"] > 1


def test_plan_of_very_many_runs_leaves_the_simulation_to_power(
    k3ablate: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "PLAN_POWER_RUNS", 1)
    assert json.loads(k3ablate("plan", "tiny.yaml", "--json").out)["power"] is None
    assert "power: not simulated for more than 1 runs; `k3ablate power tiny.yaml`" in k3ablate("plan", "tiny.yaml").out


def test_plan_of_one_size_says_why_it_tells_nothing(k3ablate: Callable[..., Result]) -> None:
    result = k3ablate("plan", "tiny.yaml")
    assert result.code == 0
    assert "power: none: " in result.out
    assert "one size, no curve" in result.out
    assert json.loads(k3ablate("plan", "tiny.yaml", "--json").out)["power"] is None


def test_power_takes_the_runs_that_have_ended_as_its_pilot(k3ablate: Callable[..., Result], place: Path, edit) -> None:
    edit(TWO_SIZES)
    arguments = ("power", "tiny.yaml", "--simulations", "20", "--json")
    before = json.loads(k3ablate(*arguments).out)
    assert before["basis"]["degrees_of_freedom"] is None
    fake_records(place / "runs")
    after = json.loads(k3ablate(*arguments).out)
    assert after["basis"]["degrees_of_freedom"] == 6  # three arms, two sizes, two seeds
    assert "the runs of this experiment that have ended" in after["basis"]["source"]
    stated = json.loads(k3ablate(*arguments, "--seed-deviation", "0.002", "--loss", "2", "--multiplier", "1.5").out)
    assert stated["basis"]["truth"]["seed_sd"] == 0.001
    assert stated["multipliers"] == [1.5]


def test_power_reads_a_pilot_from_a_table(k3ablate: Callable[..., Result], place: Path, edit) -> None:
    edit(TWO_SIZES)
    rows = [f"k2,{size},{seed},{size * 1e9},{3 - size / 10 + seed / 100}" for size in (1, 2, 3) for seed in (0, 1)]
    (place / "pilot.csv").write_text("\n".join(["arm,size,seed,flops,loss", *rows]))
    result = k3ablate("power", "tiny.yaml", "--pilot", "pilot.csv", "--simulations", "20")
    assert "the deviation between seeds in pilot.csv (3 degrees of freedom)" in result.out
    refused = k3ablate("power", "tiny.yaml", "--pilot", "pilot.csv", "--seed-deviation", "0.001")
    assert_refused(refused, "state no other beside --pilot")
    assert_refused(k3ablate("power", "tiny.yaml", "--simulations", "0"), "--simulations 0: write 20 or more")


def test_power_reads_where_it_is_asked_to(k3ablate: Callable[..., Result], edit) -> None:
    edit(TWO_SIZES)
    arguments = ("power", "tiny.yaml", "--simulations", "20")
    found = json.loads(k3ablate(*arguments, "--form", "power", "--at-loss", "1.75", "--json").out)
    assert (found["read_at"], found["design"]["form"], found["design"]["num_draws"]) == ("at loss 1.75", "power", 119)
    assert "read where each was measured" in k3ablate(*arguments, "--form", "power").out
    assert_refused(k3ablate(*arguments, "--at-loss", "2", "--at-flops", "1e9", "--json"), "state one of them")
    assert_refused(k3ablate(*arguments, "--form", "shared_floor", "--json"), "--form shared_floor: power simulates")
    assert "119 bootstrap draws" in " ".join(k3ablate("power", "--help").out.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--form", "foo"], "form: unknown form 'foo'; write one of power, "),
        (["--floor", "1"], "floor 1.0: only forms that arms share take one"),
        (["--floor", "1", "--form", "power"], "floor 1.0: only forms that arms share take one"),
        (["--at-loss", "2", "--at-flops", "1e9"], "were both stated; state one of them"),
        (["--at-flops", "-1"], "compute -1.0; write a positive number"),
        (["--at-loss", "nan"], "loss nan; write a positive number"),
    ],
)
def test_a_report_that_is_refused_writes_nothing(
    k3ablate: Callable[..., Result], place: Path, options: list[str], message: str
) -> None:
    fake_records(place / "runs")
    result = k3ablate("report", "tiny.yaml", *options, "--json")
    assert_refused(result, message)
    assert len(result.err.splitlines()) == 1
    assert not (place / "runs" / "results").exists()
