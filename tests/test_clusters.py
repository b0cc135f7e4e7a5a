"""The verb `submit` from the outside, with a Slurm that only answers (a real one: tests/slurm)."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from k3ablate import cli
from k3ablate.jobs import awaited, controller
from k3ablate.jobs.controller import Full, Limits, QueuedTask, Refused, Unreachable
from k3ablate.jobs.dispatch import Order
from k3ablate.jobs.folders import NO_PROGRESS, RunFolder
from k3ablate.jobs.packs import PackedRun, read_pack_file
from k3ablate.jobs.worker import failed_record
from k3ablate.plan import PlanRow
from k3ablate.records import RunRecord

EXPERIMENT = """
name: tiny
question: What is handed to Slurm?
expected: two runs
stopping: none
exclusion: none
baseline:
  model: kimi-k2
  data: {source: {kind: files, format: text, train: [train.txt], validation: [validation.txt]}}
  training: cpu
  set: {training.context: 32, training.batch_size: 4, training.validation_tokens: 512}
components:
  rate: {paths: [training.optimizer.learning_rate], levels: {k2: {}, low: {training.optimizer.learning_rate: 1.0e-4}}}
design: list
arms: [{name: low, levels: {rate: low}}]
names: {baseline: k2}
sizes: [{name: xs, width: 24, num_layers: 2, head_width: 8, num_active: 2}]
budgets: [{kind: tokens_per_parameter, ratio: 1}]
seeds: [0]
execution: {num_threads: 2}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an experiment, its text, cluster recipes, and a Slurm that takes everything."""
    furnish(tmp_path, monkeypatch)
    monkeypatch.setattr(controller, "limits", lambda say: Limits(max_array_size=10, max_jobs=10))
    monkeypatch.setattr(controller, "queue", lambda say: [])
    monkeypatch.setattr(controller, "submit", lambda *_, say: "11")
    return tmp_path


def furnish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(f"{first}{second}" for first in "abcdefgh" for second in "aeiou") * 300
    (tmp_path / "train.txt").write_text(text)
    (tmp_path / "validation.txt").write_text(text[1001:9001])
    (tmp_path / "tiny.yaml").write_text(EXPERIMENT)
    (tmp_path / "here.yaml").write_text("{minutes: 10, cpus: 2, runs_per_job: 2}")
    (tmp_path / "narrow.yaml").write_text("{minutes: 10}")
    (tmp_path / "empty.yaml").write_text("# minutes: 10")
    (tmp_path / "list.yaml").write_text("[minutes, 10]")
    (tmp_path / "elsewhere.yaml").write_text("{minutes: 10, cpus: 2, partition: nowhere}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("K3ABLATE_RUNS", "runs")


def code_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("nowhere", "recipes/cluster/nowhere.yaml: no such cluster recipe; write one of h200, local"),
        ("narrow.yaml", "narrow.yaml: cpus: found 1, but by the experiment's `execution` a run takes 2"),
        ("empty.yaml", "empty.yaml: found nothing: the file is empty; write a mapping, e.g. partition: NAME"),
        ("list.yaml", "list.yaml: found a list; write a mapping"),
    ],
)
def test_a_cluster_that_does_not_fit_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], cluster: str, message: str
) -> None:
    assert code_of("submit", "tiny.yaml", "--cluster", cluster) == cli.WRONG_INPUT
    assert message in capsys.readouterr().err
    assert not (place / "runs").exists()


def test_a_dry_run_shows_the_text_that_is_submitted_and_writes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("submit", "tiny.yaml", "--cluster", "here.yaml")
    assert code_of(*arguments, "--dry-run") == cli.WRONG_INPUT
    said = "tiny: its corpus is not built yet; `k3ablate submit tiny.yaml --cluster here.yaml` without --dry-run builds"
    assert said in capsys.readouterr().err
    assert not (place / "runs").exists()

    assert code_of(*arguments, "--json") == cli.DONE
    answer = json.loads(capsys.readouterr().out)
    (array,) = answer["arrays"]
    assert (array["job"], array["num_tasks"], array["num_runs"]) == ("11", 1, 2)
    written = Path(array["folder"]) / "job.sh"
    assert written.read_text() == array["script"]

    before = sorted(place.rglob("*"))
    assert code_of(*arguments, "--dry-run") == cli.DONE
    assert sorted(place.rglob("*")) == before
    shown = capsys.readouterr().out
    assert shown.rstrip("\n") == written.read_text().replace("/0001/", "/0002/").replace("/0001\n", "/0002\n").rstrip()


def test_a_corpus_that_is_not_built_is_called_by_its_recipe(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = EXPERIMENT.partition("  data: ")[2].partition("\n")[0]
    (place / "tiny.yaml").write_text(EXPERIMENT.replace(source, "texts"))
    (place / "recipes" / "data").mkdir(parents=True)
    (place / "recipes" / "data" / "texts.yaml").write_text(source)
    assert code_of("submit", "tiny.yaml", "--cluster", "here.yaml", "--dry-run") == cli.WRONG_INPUT
    assert "not built yet; `k3ablate data build texts` builds it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("sbatch: error: invalid partition specified: nowhere", "partition: found 'nowhere', which Slurm does not"),
        ("Invalid account or account/partition combination specified", "account: not stated, and Slurm does not take"),
        ("Invalid qos specification", "qos: not stated"),
        ("Invalid feature specification", "constraint: not stated"),
        ("Invalid generic resource (gres) specification", "gpus: found 0"),
    ],
)
def test_what_slurm_does_not_take_of_a_recipe_is_wrong_input_and_leaves_nothing(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: str, message: str
) -> None:
    def refuse(*_: object, say: object) -> str:
        raise Refused(answer)

    monkeypatch.setattr(controller, "submit", refuse)
    assert code_of("submit", "tiny.yaml", "--cluster", "elsewhere.yaml") == cli.WRONG_INPUT
    assert f"elsewhere.yaml: {message}" in (said := capsys.readouterr().err)
    assert answer in said
    assert not [*(place / "runs" / "jobs" / "tiny").iterdir()]


@pytest.mark.parametrize(
    ("answer", "num_left"),
    [
        (Refused("sbatch: error: the administrator's plugin says no"), 0),
        (Full("sbatch: error: AssocMaxSubmitJobLimit"), 0),
        (Unreachable("Socket timed out"), 1),  # it may have come after all, and is known by its folder
    ],
)
def test_what_is_not_taken_is_named_and_the_work_has_failed(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: Exception,
    num_left: int,
) -> None:
    def refuse(*_: object, say: object) -> str:
        raise answer

    monkeypatch.setattr(controller, "submit", refuse)
    assert code_of("submit", "tiny.yaml", "--cluster", "here.yaml") == cli.FAILED
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tiny: 0 submitted, 0 queued before, 0 done"
    assert lines[1].startswith("2 not submitted (")
    assert lines[1].endswith(f"): {answer}")
    assert len([*(place / "runs" / "jobs" / "tiny").iterdir()]) == num_left


def test_a_slurm_that_is_away_is_waited_for_aloud_and_the_work_has_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(tmp_path, monkeypatch)
    monkeypatch.setattr(controller, "PAUSES", (0.0, 0.0))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "scontrol").write_text("#!/bin/sh\necho x >> calls\necho Socket timed out on it >&2; exit 1\n")
    (programs / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    assert code_of("submit", "tiny.yaml", "--cluster", "here.yaml") == cli.FAILED
    answer = capsys.readouterr()
    waits = [line for line in answer.err.splitlines() if "Slurm" in line]
    assert waits == ["Slurm does not answer (Socket timed out on it); trying again for about a minute"]
    assert (tmp_path / "calls").read_text() == "x\n" * 3
    assert answer.out.splitlines()[1].endswith(
        "): Slurm does not say what it holds: Socket timed out on it. Nothing was submitted; try again"
    )


def test_a_run_that_a_local_process_trains_is_left_alone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("submit", "tiny.yaml", "--cluster", "here.yaml")
    assert code_of(*arguments, "--json") == cli.DONE
    first, second = (run.digest for run in packed(place, 1))
    capsys.readouterr()
    with RunFolder(place / "runs" / first).claimed():
        assert code_of(*arguments) == cli.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "tiny: 1 submitted, 0 queued before, 0 done, 1 running elsewhere"
    assert [run.digest for run in packed(place, 2)] == [second]


def test_a_run_that_a_task_of_the_queue_trains_counts_as_queued(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("submit", "tiny.yaml", "--cluster", "here.yaml")
    assert code_of(*arguments) == cli.DONE
    monkeypatch.setattr(controller, "queue", lambda say: [QueuedTask("11", 0, "RUNNING", "")])
    capsys.readouterr()
    with RunFolder(place / "runs" / packed(place, 1)[0].digest).claimed():
        assert code_of(*arguments) == cli.DONE
    assert capsys.readouterr().out == "tiny: 0 submitted, 2 queued before, 0 done\n"


def test_trials_and_their_study_lie_where_the_recipe_says(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = []

    def fail(rows: Sequence[PlanRow], order: Order, reporter: object) -> dict[str, RunRecord]:
        orders.append((order, [row.label.name for row in rows]))
        return {row.label.digest: failed_record(row.spec, NO_PROGRESS, "planted") for row in rows if row.spec}

    monkeypatch.setattr(awaited, "run_grid", fail)
    space = "{training.optimizer.weight_decay: {low: 1.0e-2, high: 1.0e-1}}"
    (place / "tiny.yaml").write_text(
        f"{EXPERIMENT}tuning: {{sizes: [xs], trials: 3, sampler: {{kind: random}}, space: {space}}}\n"
    )
    (place / "there.yaml").write_text("{minutes: 10, cpus: 2, runs: there}")
    arguments = ("tune", "tiny.yaml", "--cluster", "there.yaml", "--arm", "low")
    assert code_of(*arguments) == cli.FAILED
    ((order, names),) = orders
    assert (order.experiment, order.root, order.source) == ("tiny-tuning", place / "there", "there.yaml")
    assert names == [f"low/trial-{number} xs seed 0" for number in range(3)]
    assert (place / "there" / "tuning" / "tiny" / "journal.log").exists()
    assert not (place / "runs").exists()
    assert "low xs trial 0 failed: planted" in capsys.readouterr().out

    assert code_of(*arguments, "--workers", "2") == cli.WRONG_INPUT
    assert code_of(*arguments[:3], "narrow.yaml") == cli.WRONG_INPUT
    assert "narrow.yaml: cpus: found 1" in capsys.readouterr().err


def packed(place: Path, number: int) -> list[PackedRun]:
    file = read_pack_file(place / "runs" / "jobs" / "tiny" / f"{number:04d}" / "packs.json")
    return [run for pack in file.packs for run in pack]
